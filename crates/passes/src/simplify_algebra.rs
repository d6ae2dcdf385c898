//! Replaces arithmetic by simpler arithmetic with the same result.
//!
//! Local rewriting by the laws in [`rules`](self::rules): neutral and absorbing constants, operations on one operand
//! twice, chains of the same operation with constants, masks and extensions of bits that are not there,
//! multiplication and unsigned division by powers of two, byte swaps on both sides of a comparison, and comparisons of
//! 64 bits with constants that only one of 32 can hold as an immediate. Tests of the highest bit that a value can have
//! become comparisons, which unlike them exist in both directions. Constants
//! go to the right of operations whose operands may be exchanged, subtractions of constants become additions, and
//! constants added to the address of a slot, data object or table value become part of the address.
//!
//! A mask or extension that changes nothing stays where it bounds [an access or a loop](runnel_analysis::Extents), unless
//! whoever re-checks the program finds the same bound without it. Comparisons between values that may be pointers keep
//! their form. Adding constants in one step instead of two leaves a pointer based on the same value, so that what was
//! proved of one still holds for the other.
//!
//! Uses: possible bits, extents, definitions of operands. Invalidates: def-use lists.

mod rules;

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Cond, Inst, InstData, Program, Terminator, UnaryOp, Value, Width};

use self::rules::{Facts, Simpler, Term};
use crate::edit::Replacements;

/// How many rules may be applied in a row to one instruction: more than any sensible chain needs.
const MAX_STEPS: usize = 16;

/// Simplifies the arithmetic of `program`; says whether it changed.
pub fn simplify_algebra(program: &mut Program) -> bool {
    let facts = Facts::new(program);
    let cfg = Cfg::new(program);
    let mut replacements = Replacements::default();
    let mut changed = false;
    for &block in cfg.order() {
        let mut insts = Vec::new();
        for inst in std::mem::take(&mut program.blocks[block].insts) {
            program.insts[inst].data.map_args(|v| replacements.find(v));
            let mut simplified = Simplified { inst, before: Vec::new(), copy_of: None };
            changed |= simplified.run(program, &facts);
            insts.append(&mut simplified.before);
            match (simplified.copy_of, program.insts[inst].result) {
                (Some(by), Some(result)) => replacements.replace(result, by),
                _ => insts.push(inst),
            }
        }
        program.blocks[block].insts = insts;
        program.blocks[block].terminator.map_args(|v| replacements.find(v));
        changed |= simplify_branch(program, &facts, block);
    }
    replacements.apply(program);
    changed
}

/// One instruction under treatment.
struct Simplified {
    inst: Inst,
    /// Instructions that it came to need before it.
    before: Vec<Inst>,
    /// The value that it turned out to be.
    copy_of: Option<Value>,
}

impl Simplified {
    fn run(&mut self, program: &mut Program, facts: &Facts) -> bool {
        let Some(result) = program.insts[self.inst].result else { return false };
        let mut changed = false;
        for _ in 0..MAX_STEPS {
            let data = &program.insts[self.inst].data;
            let Some(simpler) = rules::simpler(program, facts, data, result) else { break };
            changed = true;
            match simpler {
                Simpler::Same(value) => {
                    self.copy_of = Some(value);
                    break;
                }
                Simpler::Inst(data) => program.insts[self.inst].data = data,
                Simpler::Binary(op, width, lhs, rhs) => {
                    let lhs = self.value(program, lhs);
                    let rhs = self.value(program, rhs);
                    program.insts[self.inst].data = InstData::Binary { op, width, lhs, rhs };
                }
            }
        }
        changed
    }

    fn value(&mut self, program: &mut Program, term: Term) -> Value {
        match term {
            Term::Value(value) => value,
            Term::Constant(c) => {
                let inst = program.new_inst(InstData::Const(c), None);
                self.before.push(inst);
                program.insts[inst].result.expect("a constant has a result")
            }
        }
    }
}

/// Simplifies the comparison at the end of a block.
fn simplify_branch(program: &mut Program, facts: &Facts, block: Block) -> bool {
    let Terminator::Branch { cond, width, lhs, rhs, then, other } = program.blocks[block].terminator.clone()
    else {
        return false;
    };
    if lhs == rhs {
        let Some(holds) = holds_on_equals(cond) else { return false };
        program.blocks[block].terminator = Terminator::Jump(if holds { then } else { other });
        return true;
    }
    if width == Width::W64 && fits_half_only(program, facts, cond, lhs, rhs) {
        let width = Width::W32;
        program.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
        return true;
    }
    if let Some(cond) = top_bit(program, facts, cond, width, (lhs, rhs)) {
        program.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
        return true;
    }
    let Some((lhs, constant)) = without_swap(program, facts, cond, width, (lhs, rhs)) else { return false };
    let inst = program.append_inst(block, InstData::Const(constant), None);
    let rhs = program.insts[inst].result.expect("a constant has a result");
    program.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
    true
}

/// Whether the condition holds on equal operands, as far as that does not depend on what they are.
fn holds_on_equals(cond: Cond) -> Option<bool> {
    match cond {
        Cond::Eq | Cond::Ule | Cond::Uge | Cond::Sle | Cond::Sge => Some(true),
        Cond::Ne | Cond::Ult | Cond::Ugt | Cond::Slt | Cond::Sgt => Some(false),
        Cond::Any | Cond::None => None,
    }
}

/// Whether the lower halves can be compared instead of two values, the right one of which is a constant that an
/// instruction holds only so: immediates have 32 bits, and their sign is extended.
fn fits_half_only(program: &Program, facts: &Facts, cond: Cond, lhs: Value, rhs: Value) -> bool {
    let is_unsigned = !matches!(cond, Cond::Slt | Cond::Sle | Cond::Sgt | Cond::Sge);
    let half = |c: u64| u32::try_from(c).is_ok() && i32::try_from(c).is_err();
    is_unsigned && program.as_const(rhs).is_some_and(half) && facts.bits(lhs) & !u64::from(u32::MAX) == 0
}

/// The comparison that tells whether the highest bit that a value can have is set.
fn top_bit(
    program: &Program,
    facts: &Facts,
    cond: Cond,
    width: Width,
    (lhs, rhs): (Value, Value),
) -> Option<Cond> {
    let bit = Some(width.truncate(program.as_const(rhs)?)).filter(|bit| bit.is_power_of_two())?;
    let is_top = width.truncate(facts.bits(lhs)) & !(bit | (bit - 1)) == 0;
    match cond {
        Cond::Any if is_top => Some(Cond::Uge),
        Cond::None if is_top => Some(Cond::Ult),
        _ => None,
    }
}

/// What to compare with which constant instead of a value with swapped bytes with another constant.
fn without_swap(
    program: &Program,
    facts: &Facts,
    cond: Cond,
    width: Width,
    (lhs, rhs): (Value, Value),
) -> Option<(Value, u64)> {
    let (Cond::Eq | Cond::Ne, InstData::Unary { op, arg }) = (cond, program.def(lhs)?) else { return None };
    let constant = width.truncate(program.as_const(rhs)?);
    let swapped = match op {
        UnaryOp::Bswap16 => 0xffff,
        UnaryOp::Bswap32 => u64::from(u32::MAX),
        UnaryOp::Bswap64 if width == Width::W64 => u64::MAX,
        _ => return None,
    };
    (constant <= swapped && facts.bits(*arg) & !swapped == 0).then(|| (*arg, op.eval(constant)))
}
