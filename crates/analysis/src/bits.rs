//! Which bits of each value can be set.
//!
//! A forward fixpoint over masks (a value's mask only ever grows), from nothing but access sizes and arithmetic. It
//! comes with two kinds of [`Knowledge`]: what is true, and what the kernel's verifier can be relied on to find out by
//! itself, which is less.

use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, Block, InstData, Program, SecondaryMap, UnaryOp, Value, Width};

use crate::settle;

/// What the masks are to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Knowledge {
    /// What is true of every execution.
    True,
    /// What the verifier of Linux finds out too. It draws no bounds from byte swaps, divisions, and shifts by what
    /// is no constant below the width (`check_alu_op` and `is_safe_to_compute_dst_reg_range` in `kernel/bpf/verifier.c` of 6.18), nor
    /// from products of factors beyond 32 bits. A mask that such a value needs to be a bound must stay.
    Verifiable,
}

/// For each value a mask of the bits that can be 1.
pub struct PossibleBits {
    knowledge: Knowledge,
    mask: SecondaryMap<Value, u64>,
}

impl PossibleBits {
    /// Computes the masks of all values in reachable blocks.
    pub fn new(program: &Program, cfg: &Cfg, knowledge: Knowledge) -> PossibleBits {
        let mut this = PossibleBits { knowledge, mask: SecondaryMap::new() };
        this.mask[program.context()] = u64::MAX;
        settle(cfg, |block| this.visit(program, block));
        this
    }

    /// The bits of `value` that can be 1.
    pub fn of(&self, value: Value) -> u64 {
        self.mask[value]
    }

    /// Whether no bit of `value` outside of `mask` can be 1.
    pub fn fits(&self, value: Value, mask: u64) -> bool {
        self.mask[value] & !mask == 0
    }

    fn visit(&mut self, program: &Program, block: Block) -> bool {
        let mut changed = false;
        let data = &program.blocks[block];
        for &inst in &data.insts {
            let node = &program.insts[inst];
            if let Some(result) = node.result {
                changed |= self.raise(result, self.result(program, &node.data));
            }
        }
        for target in data.terminator.targets() {
            for (&param, &arg) in program.blocks[target.block].params.iter().zip(&target.args) {
                changed |= self.raise(param, self.mask[arg]);
            }
        }
        changed
    }

    fn raise(&mut self, value: Value, found: u64) -> bool {
        let changed = found & !self.mask[value] != 0;
        self.mask[value] |= found;
        changed
    }

    fn result(&self, program: &Program, data: &InstData) -> u64 {
        match *data {
            InstData::Const(c) => c,
            InstData::Load { size, .. } => size.mask(),
            InstData::Unary { op, arg } => unary(self.knowledge, op, self.mask[arg]),
            InstData::Binary { op, width, lhs, rhs } => {
                let operands = (self.mask[lhs], self.mask[rhs]);
                binary(self.knowledge, op, width, operands, program.as_const(rhs))
            }
            // A context field of four bytes may be a pointer of eight: only the plugin knows.
            _ => u64::MAX,
        }
    }
}

fn unary(knowledge: Knowledge, op: UnaryOp, arg: u64) -> u64 {
    let sext = |bits: u32| {
        let low = arg & (u64::MAX >> (64 - bits));
        if low >> (bits - 1) & 1 == 1 { low | u64::MAX << bits } else { low }
    };
    match op {
        UnaryOp::Sext8 => sext(8),
        UnaryOp::Sext16 => sext(16),
        UnaryOp::Sext32 => sext(32),
        UnaryOp::Zext32 => op.eval(arg),
        UnaryOp::Bswap16 | UnaryOp::Bswap32 | UnaryOp::Bswap64 => match knowledge {
            Knowledge::True => op.eval(arg),
            Knowledge::Verifiable => u64::MAX,
        },
    }
}

/// All bits up to the highest one set in `mask`.
fn below(mask: u64) -> u64 {
    u64::MAX.checked_shr(mask.leading_zeros()).unwrap_or(0)
}

/// The mask of a result, from the masks of the operands; `amount` is the right one, if that is a constant.
fn binary(knowledge: Knowledge, op: BinaryOp, width: Width, (a, b): (u64, u64), amount: Option<u64>) -> u64 {
    let (a, b) = (width.truncate(a), width.truncate(b));
    let is_shift = matches!(op, BinaryOp::Shl | BinaryOp::Lshr | BinaryOp::Ashr);
    let is_division = matches!(op, BinaryOp::Udiv | BinaryOp::Urem | BinaryOp::Sdiv | BinaryOp::Srem);
    let is_plain_shift = is_shift && amount.is_some_and(|c| c < u64::from(width.bits()));
    if knowledge == Knowledge::Verifiable && (is_division || is_shift && !is_plain_shift) {
        return u64::MAX;
    }
    let found = match (op, amount) {
        (BinaryOp::And, _) => a & b,
        (BinaryOp::Or | BinaryOp::Xor, _) => a | b,
        (BinaryOp::Shl, Some(c)) => BinaryOp::Shl.eval(width, a, c),
        (BinaryOp::Lshr, Some(c)) => BinaryOp::Lshr.eval(width, a, c),
        // None of these is larger than the left operand; a remainder by zero is the left operand.
        (BinaryOp::Lshr, None) | (BinaryOp::Udiv | BinaryOp::Urem, _) => below(a),
        // The largest sum or product of values within the bounds, unless it wraps.
        (BinaryOp::Add, _) => below(a).checked_add(below(b)).map_or(u64::MAX, below),
        (BinaryOp::Mul, _) if a.max(b) <= u64::from(u32::MAX) => below(below(a) * below(b)),
        _ => u64::MAX,
    };
    // A sum or product beyond the width wraps to anything within it.
    if found == width.truncate(found) { found } else { width.truncate(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that stand for all with the same mask: its subsets of few bits, and the mask itself.
    fn members(mask: u64) -> Vec<u64> {
        let bits: Vec<u64> = (0..64).map(|i| 1u64 << i).filter(|bit| mask & bit != 0).collect();
        let mut members = vec![0, mask];
        for (i, &x) in bits.iter().enumerate() {
            members.push(x);
            members.extend(bits[..i].iter().map(|&y| x | y));
            members.push(mask & !x);
        }
        members
    }

    #[test]
    fn results_lie_within_the_mask() {
        let masks = [0, 1, 6, 0xff, 0x80, 0x8000_0000, 0xffff_ffff, 1 << 63];
        for &op in BinaryOp::ALL {
            for (&a, &b) in masks.iter().flat_map(|a| masks.iter().map(move |b| (a, b))) {
                for width in [Width::W32, Width::W64] {
                    let mask = binary(Knowledge::True, op, width, (a, b), None);
                    for (x, y) in
                        members(a).iter().flat_map(|&x| members(b).into_iter().take(40).map(move |y| (x, y)))
                    {
                        let result = op.eval(width, x, y);
                        assert_eq!(
                            result & !mask,
                            0,
                            "{op}.{width} {x:#x}, {y:#x} gives {result:#x}, not in {mask:#x}"
                        );
                    }
                }
            }
        }
        for &op in UnaryOp::ALL {
            for a in masks {
                let mask = unary(Knowledge::True, op, a);
                assert!(members(a).iter().all(|&x| op.eval(x) & !mask == 0), "{op} {a:#x}");
            }
        }
    }

    #[test]
    fn what_is_verifiable_is_true() {
        let masks = [0, 1, 6, 0xff, 0x80, 0x8000_0000, 0xffff_ffff, 1 << 63];
        for (&a, &b) in masks.iter().flat_map(|a| masks.iter().map(move |b| (a, b))) {
            for &op in BinaryOp::ALL {
                for (width, amount) in [(Width::W32, None), (Width::W64, None), (Width::W64, Some(b))] {
                    let of = |knowledge| binary(knowledge, op, width, (a, b), amount);
                    assert_eq!(
                        of(Knowledge::True) & !of(Knowledge::Verifiable),
                        0,
                        "{op}.{width} {a:#x} {b:#x}"
                    );
                }
            }
            for &op in UnaryOp::ALL {
                assert_eq!(unary(Knowledge::True, op, a) & !unary(Knowledge::Verifiable, op, a), 0);
            }
        }
    }

    #[test]
    fn shifts_by_a_constant_shift_the_mask() {
        assert_eq!(
            binary(Knowledge::True, BinaryOp::Shl, Width::W32, (0xff, u64::MAX), Some(28)),
            0xf000_0000
        );
        assert_eq!(binary(Knowledge::True, BinaryOp::Lshr, Width::W64, (0xff, u64::MAX), Some(4)), 0xf);
        assert_eq!(binary(Knowledge::True, BinaryOp::Shl, Width::W64, (0xf0, u64::MAX), Some(64)), 0xf0);
    }
}
