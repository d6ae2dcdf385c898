//! What becomes of an address: a forward taint analysis over def-use lists.
//!
//! The address is followed through arithmetic and block parameters, flow-insensitively, with its distance from
//! where it began as long as that is one constant. Arithmetic other than adding and subtracting hides the
//! distance and is reported, but followed too: what comes out of it may still be an address. Only what is stored
//! or handed to a callee is lost from sight.

use std::collections::{BTreeMap, BTreeSet};

use runnel_ir::{BinaryOp, Effects, InstData, Program, Terminator, Value, Width};

use crate::{Site, Use, Uses};

/// Bytes that are accessed through an address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Field {
    /// Offset from where the address began; none when it is not one constant.
    pub offset: Option<i64>,
    /// Size in bytes.
    pub size: u32,
}

/// How an address is used other than to access memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum EscapeKind {
    /// Handed to a callee that writes no memory.
    LentToCallee,
    /// Handed to a callee that may write memory.
    GivenToCallee,
    /// Stored in memory.
    Stored,
    /// Part of a lookup key, or an update's flags.
    UsedAsKey,
    /// Compared with something else than null.
    Compared,
    /// Used in arithmetic other than adding to it.
    Computed,
    /// The program's verdict.
    Returned,
}

/// A use of an address by which it, or the number that it is, becomes visible.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Escape {
    /// How.
    pub kind: EscapeKind,
    /// Where.
    pub at: Use,
}

/// What becomes of an address.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PointerUses {
    /// Fields read, by loads and as the value of updates, each with one place that does.
    pub reads: BTreeMap<Field, Use>,
    /// Fields stored to or added to, each with one place that does.
    pub writes: BTreeMap<Field, Use>,
    /// The other uses, comparisons with null apart.
    pub escapes: BTreeSet<Escape>,
}

/// The values that an address flows to, each with its distance from where the address began.
type Reached = BTreeMap<Value, Option<i64>>;

impl PointerUses {
    /// Follows the address `value`, which is `offset` bytes behind where it is said to begin.
    pub fn of(program: &Program, uses: &Uses, value: Value, offset: i64) -> PointerUses {
        let reached = reach(program, uses, value, offset);
        let mut found = PointerUses::default();
        for (&value, &distance) in &reached {
            for &at in uses.of(value) {
                match at.site {
                    Site::Inst(inst) => {
                        found.instruction(program, &program.insts[inst].data, (value, distance), at);
                    }
                    Site::Terminator => {
                        found.terminator(program, &program.blocks[at.block].terminator, value, at);
                    }
                }
            }
        }
        found
    }

    fn escape(&mut self, kind: EscapeKind, at: Use) {
        self.escapes.insert(Escape { kind, at });
    }

    fn instruction(
        &mut self,
        program: &Program,
        data: &InstData,
        (value, distance): (Value, Option<i64>),
        at: Use,
    ) {
        let field = |offset: i32, size: u32| Field {
            offset: distance.map(|d| d.wrapping_add(i64::from(offset))),
            size,
        };
        match data {
            InstData::Load { size, offset, .. } => {
                self.reads.entry(field(*offset, size.bytes())).or_insert(at);
            }
            InstData::Store { size, ptr, offset, value: stored }
            | InstData::AtomicAdd { size, ptr, offset, value: stored } => {
                if *ptr == value {
                    self.writes.entry(field(*offset, size.bytes())).or_insert(at);
                    if matches!(data, InstData::AtomicAdd { .. }) {
                        self.reads.entry(field(*offset, size.bytes())).or_insert(at);
                    }
                }
                if *stored == value {
                    self.escape(EscapeKind::Stored, at);
                }
            }
            InstData::Update { table, key, value: from, flags } => {
                if *from == value {
                    self.reads.entry(field(0, program.tables[*table].value_size)).or_insert(at);
                }
                if *flags == value || key.iter().any(|part| part.value == value) {
                    self.escape(EscapeKind::UsedAsKey, at);
                }
            }
            InstData::Lookup { .. } | InstData::Delete { .. } => self.escape(EscapeKind::UsedAsKey, at),
            InstData::Call { callee, .. } => {
                let writes = program.callees[*callee].effects.contains(Effects::WRITES_MEMORY);
                let kind = if writes { EscapeKind::GivenToCallee } else { EscapeKind::LentToCallee };
                self.escape(kind, at);
            }
            InstData::Binary { .. } | InstData::Unary { .. } if !is_address(data, value) => {
                self.escape(EscapeKind::Computed, at);
            }
            _ => {}
        }
    }

    fn terminator(&mut self, program: &Program, end: &Terminator, value: Value, at: Use) {
        match *end {
            Terminator::Branch { width, lhs, rhs, .. } if lhs == value || rhs == value => {
                let other = if lhs == value { rhs } else { lhs };
                if width != Width::W64 || program.as_const(other) != Some(0) {
                    self.escape(EscapeKind::Compared, at);
                }
            }
            Terminator::Return(_) => self.escape(EscapeKind::Returned, at),
            _ => {}
        }
    }
}

/// The parameters that the jumps of `end` set to `value`.
pub(crate) fn params_given<'a>(
    program: &'a Program,
    end: &'a Terminator,
    value: Value,
) -> impl Iterator<Item = Value> + 'a {
    end.targets().flat_map(move |target| {
        let params = &program.blocks[target.block].params;
        params.iter().zip(&target.args).filter(move |&(_, &arg)| arg == value).map(|(&param, _)| param)
    })
}

/// Whether adding to or subtracting from the address `value` is all that the instruction does.
fn is_address(data: &InstData, value: Value) -> bool {
    match *data {
        InstData::Binary { op: BinaryOp::Add, width: Width::W64, lhs, rhs } => lhs != rhs,
        InstData::Binary { op: BinaryOp::Sub, width: Width::W64, lhs, rhs } => lhs == value && lhs != rhs,
        _ => false,
    }
}

fn reach(program: &Program, uses: &Uses, value: Value, offset: i64) -> Reached {
    let mut reached = Reached::from([(value, Some(offset))]);
    let mut work = vec![value];
    while let Some(value) = work.pop() {
        let distance = reached[&value];
        for at in uses.of(value) {
            let mut raise = |to: Value, distance: Option<i64>| {
                let known = *reached.entry(to).or_insert_with(|| {
                    work.push(to);
                    distance
                });
                if known.is_some() && known != distance {
                    reached.insert(to, None);
                    work.push(to);
                }
            };
            match at.site {
                Site::Inst(inst) => {
                    let node = &program.insts[inst];
                    if let (InstData::Binary { .. } | InstData::Unary { .. }, Some(result)) =
                        (&node.data, node.result)
                    {
                        raise(result, moved(program, &node.data, value, distance));
                    }
                }
                Site::Terminator => {
                    let end = &program.blocks[at.block].terminator;
                    params_given(program, end, value).for_each(|param| raise(param, distance));
                }
            }
        }
    }
    reached
}

/// The distance after the instruction, if it adds a constant.
fn moved(program: &Program, data: &InstData, value: Value, distance: Option<i64>) -> Option<i64> {
    let InstData::Binary { op, lhs, rhs, .. } = *data else { return None };
    if !is_address(data, value) {
        return None;
    }
    let other = program.as_const(if lhs == value { rhs } else { lhs })? as i64;
    let signed = if op == BinaryOp::Sub { other.wrapping_neg() } else { other };
    Some(distance?.wrapping_add(signed))
}
