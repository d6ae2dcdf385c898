//! The laws, each for one shape of instruction. None makes an instruction more costly.

use runnel_analysis::{Extents, Knowledge, PossibleBits, Provenances};
use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, InstData, Program, UnaryOp, Value, Width};

/// An operand: one that is there, or a constant to be made.
#[derive(Clone, Copy)]
pub(super) enum Term {
    Value(Value),
    Constant(u64),
}

/// What an instruction may be replaced by.
pub(super) enum Simpler {
    /// The value that it always equals.
    Same(Value),
    /// An instruction on operands that are there.
    Inst(InstData),
    /// An operation one of whose operands may have to be made.
    Binary(BinaryOp, Width, Term, Term),
}

const LOW_32: u64 = u32::MAX as u64;

/// What the laws need to know of the program, computed before any is applied: none changes what a value is.
pub(super) struct Facts {
    bits: PossibleBits,
    verifiable: PossibleBits,
    extents: Extents,
}

impl Facts {
    pub(super) fn new(program: &Program) -> Facts {
        let cfg = Cfg::new(program);
        Facts {
            bits: PossibleBits::new(program, &cfg, Knowledge::True),
            verifiable: PossibleBits::new(program, &cfg, Knowledge::Verifiable),
            extents: Extents::new(program, &cfg, &Provenances::new(program, &cfg)),
        }
    }

    /// The bits of `value` that can be 1.
    pub(super) fn bits(&self, value: Value) -> u64 {
        self.bits.of(value)
    }
}

/// What an instruction may be replaced by, by the first law that applies.
pub(super) fn simpler(program: &Program, facts: &Facts, data: &InstData, result: Value) -> Option<Simpler> {
    let rules = Rules { program, facts, result };
    match *data {
        InstData::Binary { .. } | InstData::Unary { .. } if facts.bits(result) == 0 => constant(0),
        InstData::Binary { op, width, lhs, rhs } => rules.binary(op, width, lhs, rhs),
        InstData::Unary { op, arg } => rules.unary(op, arg),
        _ => None,
    }
}

struct Rules<'p> {
    program: &'p Program,
    facts: &'p Facts,
    /// The value that the instruction defines.
    result: Value,
}

fn constant(value: u64) -> Option<Simpler> {
    Some(Simpler::Inst(InstData::Const(value)))
}

fn unary(op: UnaryOp, arg: Value) -> Option<Simpler> {
    Some(Simpler::Inst(InstData::Unary { op, arg }))
}

fn with(op: BinaryOp, width: Width, lhs: Value, rhs: u64) -> Option<Simpler> {
    Some(Simpler::Binary(op, width, Term::Value(lhs), Term::Constant(rhs)))
}

/// The exponent of a power of two.
fn log2(value: u64) -> Option<u64> {
    value.is_power_of_two().then(|| u64::from(value.trailing_zeros()))
}

impl Rules<'_> {
    /// The bits of `value` that can be 1, for cutting off others: if the result bounds an access or a loop, whoever
    /// re-checks the program must find the bound too.
    fn bits(&self, value: Value) -> u64 {
        let facts = self.facts;
        if facts.extents.contains(self.result) { facts.verifiable.of(value) } else { facts.bits.of(value) }
    }

    fn fits(&self, value: Value, mask: u64) -> bool {
        self.bits(value) & !mask == 0
    }

    /// `value` cut to the width.
    fn copy(&self, width: Width, value: Value) -> Option<Simpler> {
        if width == Width::W64 || self.fits(value, LOW_32) {
            Some(Simpler::Same(value))
        } else {
            unary(UnaryOp::Zext32, value)
        }
    }

    fn binary(&self, op: BinaryOp, width: Width, lhs: Value, rhs: Value) -> Option<Simpler> {
        match (self.program.as_const(lhs), self.program.as_const(rhs)) {
            (Some(a), Some(b)) => constant(op.eval(width, a, b)),
            (Some(_), None) if op.is_commutative() => {
                Some(Simpler::Binary(op, width, Term::Value(rhs), Term::Value(lhs)))
            }
            (None, Some(c)) => {
                let amount = c & u64::from(width.bits() - 1);
                match op {
                    BinaryOp::Shl | BinaryOp::Lshr | BinaryOp::Ashr if amount != c => {
                        with(op, width, lhs, amount)
                    }
                    _ => {
                        let c = width.truncate(c);
                        self.with_constant(op, width, lhs, c).or_else(|| self.chain(op, width, lhs, c))
                    }
                }
            }
            _ if lhs == rhs => match op {
                BinaryOp::Sub | BinaryOp::Xor => constant(0),
                BinaryOp::And | BinaryOp::Or => self.copy(width, lhs),
                _ => None,
            },
            _ => None,
        }
    }

    /// Laws about one operation with the constant `c` on its right.
    fn with_constant(&self, op: BinaryOp, width: Width, lhs: Value, c: u64) -> Option<Simpler> {
        match (op, c) {
            (BinaryOp::And | BinaryOp::Mul, 0) => constant(0),
            // RFC 9669, section 4.1.
            (BinaryOp::Udiv | BinaryOp::Sdiv, 0) => constant(0),
            (BinaryOp::Urem | BinaryOp::Srem, 0) => self.copy(width, lhs),
            (BinaryOp::Mul | BinaryOp::Udiv | BinaryOp::Sdiv, 1) => self.copy(width, lhs),
            (
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Or
                | BinaryOp::Xor
                | BinaryOp::Shl
                | BinaryOp::Lshr
                | BinaryOp::Ashr,
                0,
            ) => self.copy(width, lhs),
            (BinaryOp::Sub, c) => with(BinaryOp::Add, width, lhs, width.truncate(c.wrapping_neg())),
            (BinaryOp::And, c) if width.truncate(self.bits(lhs)) & !c == 0 => self.copy(width, lhs),
            (BinaryOp::Mul, c) => with(BinaryOp::Shl, width, lhs, log2(c)?),
            (BinaryOp::Udiv, c) => with(BinaryOp::Lshr, width, lhs, log2(c)?),
            (BinaryOp::Urem, c) if c.is_power_of_two() => with(BinaryOp::And, width, lhs, c - 1),
            (BinaryOp::Add, c) if width == Width::W64 => self.address(lhs, c as i64),
            _ => None,
        }
    }

    /// A constant added to a known address.
    fn address(&self, base: Value, distance: i64) -> Option<Simpler> {
        let moved = |offset: u32, size: usize| {
            let sum = u32::try_from(i64::from(offset).checked_add(distance)?).ok()?;
            ((sum as usize) < size).then_some(sum)
        };
        let data = match *self.program.def(base)? {
            InstData::SlotAddr { slot, offset } => {
                InstData::SlotAddr { slot, offset: moved(offset, self.program.slots[slot].size as usize)? }
            }
            InstData::DataAddr { data, offset } => {
                InstData::DataAddr { data, offset: moved(offset, self.program.data[data].bytes.len())? }
            }
            InstData::TableValue { table, offset } => {
                let size = self.program.tables[table].value_size as usize;
                InstData::TableValue { table, offset: moved(offset, size)? }
            }
            _ => return None,
        };
        Some(Simpler::Inst(data))
    }

    /// Laws about an operation with a constant on the result of another one with a constant.
    fn chain(&self, op: BinaryOp, width: Width, lhs: Value, c: u64) -> Option<Simpler> {
        let InstData::Binary { op: inner, width: inner_width, lhs: x, rhs } = *self.program.def(lhs)? else {
            return None;
        };
        let first = self.program.as_const(rhs)?;
        if inner_width != width {
            return None;
        }
        let bits = u64::from(width.bits());
        let shift = first & (bits - 1);
        match (inner, op) {
            (BinaryOp::Add | BinaryOp::Mul | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor, _)
                if inner == op =>
            {
                with(op, width, x, op.eval(width, first, c))
            }
            (BinaryOp::Shl, BinaryOp::Shl) | (BinaryOp::Lshr, BinaryOp::Lshr) => {
                if shift + c < bits {
                    with(op, width, x, shift + c)
                } else {
                    constant(0)
                }
            }
            (BinaryOp::Shl, BinaryOp::Lshr) if shift == c => {
                let kept = width.truncate(u64::MAX) >> c;
                if width == Width::W64 && kept == LOW_32 {
                    unary(UnaryOp::Zext32, x)
                } else {
                    with(BinaryOp::And, width, x, kept)
                }
            }
            (BinaryOp::Shl, BinaryOp::Ashr) if shift == c && width == Width::W64 => match c {
                32 => unary(UnaryOp::Sext32, x),
                48 => unary(UnaryOp::Sext16, x),
                56 => unary(UnaryOp::Sext8, x),
                _ => None,
            },
            _ => None,
        }
    }

    fn unary(&self, op: UnaryOp, arg: Value) -> Option<Simpler> {
        if let Some(c) = self.program.as_const(arg) {
            return constant(op.eval(c));
        }
        // The bits that the operation reads, and those within which it changes nothing.
        let (read, kept) = match op {
            UnaryOp::Bswap16 => (0xffff, 0),
            UnaryOp::Bswap32 => (LOW_32, 0),
            UnaryOp::Bswap64 => (u64::MAX, 0),
            UnaryOp::Zext32 => (LOW_32, LOW_32),
            UnaryOp::Sext8 => (0xff, 0x7f),
            UnaryOp::Sext16 => (0xffff, 0x7fff),
            UnaryOp::Sext32 => (LOW_32, LOW_32 >> 1),
        };
        if self.fits(arg, kept) && kept != 0 {
            return Some(Simpler::Same(arg));
        }
        match *self.program.def(arg)? {
            InstData::Unary { op: UnaryOp::Zext32, arg: x } if read <= LOW_32 => unary(op, x),
            InstData::Unary { op: UnaryOp::Bswap16, arg: x } if op == UnaryOp::Bswap16 => {
                with(BinaryOp::And, Width::W64, x, 0xffff)
            }
            InstData::Unary { op: UnaryOp::Bswap32, arg: x } if op == UnaryOp::Bswap32 => {
                unary(UnaryOp::Zext32, x)
            }
            InstData::Unary { op: UnaryOp::Bswap64, arg: x } if op == UnaryOp::Bswap64 => {
                Some(Simpler::Same(x))
            }
            InstData::Binary { op: BinaryOp::And, lhs: x, rhs, .. }
                if self.program.as_const(rhs).is_some_and(|mask| mask & read == read) =>
            {
                unary(op, x)
            }
            _ => None,
        }
    }
}
