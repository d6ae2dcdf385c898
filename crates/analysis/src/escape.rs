//! Which stack slots can be reached by other means than pointers whose provenance says so.
//!
//! A slot escapes when its address is passed to a callee, stored, made part of a key, or goes where
//! [`Provenances`] loses its track. Loads, stores, address arithmetic, comparisons and the value operand of an
//! update, which only reads, let nothing escape. Flow-insensitive: what escapes anywhere has escaped everywhere.

use runnel_ir::{InstData, Program, SecondaryMap, Slot, Terminator, Value};

use crate::{Object, Pointer, Provenance, Provenances, Site, Use};

/// For each slot, the first use (in layout order) by which its address leaves.
pub struct Escapes {
    by: SecondaryMap<Slot, Option<Use>>,
}

impl Escapes {
    /// Finds the slots of `program` whose address leaves.
    pub fn new(program: &Program, provenances: &Provenances) -> Escapes {
        let mut this = Escapes { by: SecondaryMap::new() };
        for &block in &program.layout {
            let data = &program.blocks[block];
            for &inst in &data.insts {
                let node = &program.insts[inst];
                let at = Use { block, site: Site::Inst(inst) };
                this.instruction(provenances, &node.data, node.result, at);
            }
            this.terminator(program, provenances, &data.terminator, Use { block, site: Site::Terminator });
        }
        this
    }

    /// Whether memory of `slot` may be accessed by callees and through pointers of unknown provenance.
    pub fn escapes(&self, slot: Slot) -> bool {
        self.by[slot].is_some()
    }

    /// The first use by which the address of `slot` leaves.
    pub fn by(&self, slot: Slot) -> Option<Use> {
        self.by[slot]
    }

    fn leaves(&mut self, provenances: &Provenances, value: Value, at: Use) {
        if let Some(slot) = slot_of(provenances.of(value)) {
            self.by[slot] = self.by[slot].or(Some(at));
        }
    }

    fn instruction(&mut self, provenances: &Provenances, data: &InstData, result: Option<Value>, at: Use) {
        match data {
            InstData::Load { .. } | InstData::CtxLoad { .. } => {}
            InstData::Store { value, .. } | InstData::AtomicAdd { value, .. } => {
                self.leaves(provenances, *value, at);
            }
            InstData::Update { key, flags, .. } => {
                key.iter().for_each(|part| self.leaves(provenances, part.value, at));
                self.leaves(provenances, *flags, at);
            }
            InstData::Binary { lhs, rhs, .. } => {
                let of = |v| provenances.of(v);
                let kept = result.and_then(|r| slot_of(of(r)));
                let subtracted = slot_of(of(*lhs)) == slot_of(of(*rhs)) && is_number(of, result);
                for &v in [lhs, rhs] {
                    if slot_of(of(v)) != kept && !subtracted {
                        self.leaves(provenances, v, at);
                    }
                }
            }
            _ => data.for_each_arg(|v| self.leaves(provenances, v, at)),
        }
    }

    fn terminator(&mut self, program: &Program, provenances: &Provenances, end: &Terminator, at: Use) {
        for target in end.targets() {
            for (&param, &arg) in program.blocks[target.block].params.iter().zip(&target.args) {
                if slot_of(provenances.of(arg)) != slot_of(provenances.of(param)) {
                    self.leaves(provenances, arg, at);
                }
            }
        }
        if let Terminator::Return(v) = end {
            self.leaves(provenances, *v, at);
        }
    }
}

fn is_number(of: impl Fn(Value) -> Provenance, result: Option<Value>) -> bool {
    result.is_some_and(|r| of(r) == Provenance::Scalar)
}

fn slot_of(provenance: Provenance) -> Option<Slot> {
    match provenance {
        Provenance::Pointer(Pointer { object: Object::Slot(slot), .. }) => Some(slot),
        _ => None,
    }
}
