//! Replaces loads of what the program itself stored by the value that was stored.
//!
//! A load from a stack slot or the packet whose bytes all come from one earlier store, on every path and
//! unchanged since, takes that store's value: as it is, cut to the load's size, or shifted and cut where the load
//! is narrower than the store. Loads of constant data are [`crate::fold_constants`]'s business.
//!
//! Uses: provenance, escapes, available stores. Invalidates: def-use lists.

use runnel_analysis::{Available, Facts, Memory, Place, Point};
use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, Inst, InstData, Program, Size, UnaryOp, Value, Width};

use crate::edit::Replacements;

/// Forwards stored values to loads in `program`; says whether it changed.
pub fn forward_loads(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let forwarded = find(program, &cfg);
    let mut pending = forwarded.iter().peekable();
    let mut replacements = Replacements::default();
    for &block in cfg.order() {
        let mut insts = Vec::new();
        for inst in std::mem::take(&mut program.blocks[block].insts) {
            match pending.next_if(|found| found.load == inst) {
                Some(found) => found.rewrite(program, &mut insts, &mut replacements),
                None => insts.push(inst),
            }
        }
        program.blocks[block].insts = insts;
    }
    replacements.apply(program);
    !forwarded.is_empty()
}

/// A load and the store that it reads.
struct Forwarded {
    load: Inst,
    size: Size,
    stored: Value,
    store_size: Size,
    /// How far the load begins behind the store, in bytes.
    distance: u32,
}

/// The loads to be replaced, in the order of the blocks.
fn find(program: &Program, cfg: &Cfg) -> Vec<Forwarded> {
    let memory = Memory::new(program, cfg);
    let stores = Available::new(program, cfg, &memory, Facts::Stores);
    let mut found = Vec::new();
    for &block in cfg.order() {
        let mut point = stores.at_entry(block);
        for &inst in &program.blocks[block].insts {
            if let InstData::Load { size, .. } = program.insts[inst].data
                && let Some(place) = memory.access(inst).filter(|place| memory.is_private(place))
            {
                found.extend(covering_store(program, &point, inst, size, &place));
            }
            point.pass(inst);
        }
    }
    found
}

/// The store that all bytes of a load come from.
fn covering_store(
    program: &Program,
    point: &Point<'_>,
    load: Inst,
    size: Size,
    place: &Place,
) -> Option<Forwarded> {
    point.facts().find_map(|(store, stored_to)| {
        let distance = u32::try_from(stored_to.distance(place)?).ok()?;
        let InstData::Store { size: store_size, value, .. } = program.insts[store].data else { return None };
        let covered = distance.checked_add(size.bytes())? <= store_size.bytes();
        covered.then_some(Forwarded { load, size, stored: value, store_size, distance })
    })
}

impl Forwarded {
    /// Writes what takes the load's place behind `insts`.
    fn rewrite(&self, program: &mut Program, insts: &mut Vec<Inst>, replacements: &mut Replacements) {
        let mut make = |program: &mut Program, data: InstData| {
            let inst = program.new_inst(data, None);
            insts.push(inst);
            program.insts[inst].result.expect("constants and shifts have results")
        };
        // Counted from the least significant byte.
        let skipped = if cfg!(target_endian = "little") {
            self.distance
        } else {
            self.store_size.bytes() - self.distance - self.size.bytes()
        };
        let mut value = self.stored;
        if skipped > 0 {
            let rhs = make(program, InstData::Const(u64::from(skipped * 8)));
            value =
                make(program, InstData::Binary { op: BinaryOp::Lshr, width: Width::W64, lhs: value, rhs });
        }
        let cut = match self.size {
            Size::B8 => {
                if let Some(result) = program.insts[self.load].result {
                    replacements.replace(result, value);
                }
                return;
            }
            Size::B4 => InstData::Unary { op: UnaryOp::Zext32, arg: value },
            Size::B1 | Size::B2 => {
                let rhs = make(program, InstData::Const(self.size.mask()));
                InstData::Binary { op: BinaryOp::And, width: Width::W64, lhs: value, rhs }
            }
        };
        program.insts[self.load].data = cut;
        insts.push(self.load);
    }
}
