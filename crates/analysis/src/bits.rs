//! Which bits of each value can be set.
//!
//! A forward fixpoint over masks (a value's mask only ever grows). It uses nothing but access sizes and arithmetic:
//! whoever re-checks the program without knowing what memory holds, as the kernel's verifier does, comes to
//! the same bounds, so that a mask or extension that is redundant here may go without taking away a proof.

use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, Block, InstData, Program, SecondaryMap, UnaryOp, Value, Width};

use crate::settle;

/// For each value a mask of the bits that can be 1.
pub struct PossibleBits {
    mask: SecondaryMap<Value, u64>,
}

impl PossibleBits {
    /// Computes the masks of all values in reachable blocks.
    pub fn new(program: &Program, cfg: &Cfg) -> PossibleBits {
        let mut this = PossibleBits { mask: SecondaryMap::new() };
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
            InstData::Unary { op, arg } => unary(op, self.mask[arg]),
            InstData::Binary { op, width, lhs, rhs } => {
                binary(op, width, self.mask[lhs], self.mask[rhs], program.as_const(rhs))
            }
            // A context field of four bytes may be a pointer of eight: only the plugin knows.
            _ => u64::MAX,
        }
    }
}

fn unary(op: UnaryOp, arg: u64) -> u64 {
    let sext = |bits: u32| {
        let low = arg & (u64::MAX >> (64 - bits));
        if low >> (bits - 1) & 1 == 1 { low | u64::MAX << bits } else { low }
    };
    match op {
        UnaryOp::Sext8 => sext(8),
        UnaryOp::Sext16 => sext(16),
        UnaryOp::Sext32 => sext(32),
        _ => op.eval(arg),
    }
}

/// All bits up to the highest one set in `mask`.
fn below(mask: u64) -> u64 {
    u64::MAX.checked_shr(mask.leading_zeros()).unwrap_or(0)
}

fn binary(op: BinaryOp, width: Width, a: u64, b: u64, amount: Option<u64>) -> u64 {
    let (a, b) = (width.truncate(a), width.truncate(b));
    let found = match (op, amount) {
        (BinaryOp::And, _) => a & b,
        (BinaryOp::Or | BinaryOp::Xor, _) => a | b,
        (BinaryOp::Shl, Some(c)) => BinaryOp::Shl.eval(width, a, c),
        (BinaryOp::Lshr, Some(c)) => BinaryOp::Lshr.eval(width, a, c),
        // The largest sum or product of values within the bounds, unless it wraps.
        (BinaryOp::Add, _) => below(a).checked_add(below(b)).map_or(u64::MAX, below),
        (BinaryOp::Mul, _) => below(a).checked_mul(below(b)).map_or(u64::MAX, below),
        // Quotients, remainders and shifts by what is not constant: bounds that the kernel's verifier does not draw.
        _ => u64::MAX,
    };
    width.truncate(if width == Width::W32 && found > u64::from(u32::MAX) { u64::MAX } else { found })
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
                    let mask = binary(op, width, a, b, None);
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
                let mask = unary(op, a);
                assert!(members(a).iter().all(|&x| op.eval(x) & !mask == 0), "{op} {a:#x}");
            }
        }
    }

    #[test]
    fn shifts_by_a_constant_shift_the_mask() {
        assert_eq!(binary(BinaryOp::Shl, Width::W32, 0xff, u64::MAX, Some(28)), 0xf000_0000);
        assert_eq!(binary(BinaryOp::Lshr, Width::W64, 0xff, u64::MAX, Some(4)), 0xf);
        assert_eq!(binary(BinaryOp::Shl, Width::W64, 0xf0, u64::MAX, Some(64)), 0xf0);
    }
}
