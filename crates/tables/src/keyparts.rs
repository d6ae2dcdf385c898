//! Bytes of a key as one integer, made from the parts in which a program gives it, with few instructions.
//!
//! Keys are memory: byte `i` of a word is its bits `8 i` to `8 i + 7`, as a little-endian load would give them.
//! Only the bits asked for are computed, and a part is masked only where what stands above it would show.

use runnel_ir::{BinaryOp, Builder, InstData, Key, KeyPart, Program, Size, UnaryOp, Value, Width};
use smallvec::SmallVec;

/// Up to eight bytes of a key as a little-endian integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Where in the key the lowest byte lies.
    pub offset: u32,
    /// The bits that count; the others are zero.
    pub mask: u64,
}

/// The words that together hold what counts of a key.
pub(crate) type Words = SmallVec<[Word; 4]>;
/// What words hold, for one key.
pub(crate) type WordValues = SmallVec<[u64; 4]>;

impl Word {
    /// Bytes `start` to `end` (excluded; at most eight bytes) of the key.
    pub fn bytes(start: u32, end: u32) -> Word {
        Word { offset: start, mask: low_bytes(end.saturating_sub(start)) }
    }

    /// What the word holds for `key`; bytes beyond its end count as zero.
    pub fn of(self, key: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        let tail = key.get(self.offset as usize..).unwrap_or_default();
        let len = tail.len().min(8);
        bytes[..len].copy_from_slice(&tail[..len]);
        u64::from_le_bytes(bytes) & self.mask
    }

    /// The width at which words of this mask are compared: immediates of 32-bit operations are never too large.
    pub fn width(self) -> Width {
        width_of(self.mask)
    }

    /// Number of bytes up to the last that counts.
    pub fn len(self) -> u32 {
        8 - self.mask.leading_zeros() / 8
    }

    /// Whether no bit counts.
    pub fn is_empty(self) -> bool {
        self.mask == 0
    }

    /// Appends what computes the word.
    pub fn emit(self, b: &mut Builder<'_>, key: &Key) -> Value {
        combine(b, key, self, 0, Trust::Meaning)
    }

    /// Appends what computes the word shifted left by `shift`, such that a verifier sees from the last instructions
    /// alone that no bit outside the mask is set.
    pub(crate) fn emit_bounded(self, b: &mut Builder<'_>, key: &Key, shift: u32) -> Value {
        combine(b, key, self, shift, Trust::Bounds)
    }
}

/// The fewest words that hold the bits of `masks`, which has one mask for each byte of the key.
pub(crate) fn cover(masks: &[u8]) -> Words {
    let mut words = Words::new();
    let mut next = 0;
    while let Some(skip) = masks.get(next..).and_then(|rest| rest.iter().position(|&m| m != 0)) {
        let word = Word { offset: (next + skip) as u32, mask: u64::MAX };
        words.push(Word { mask: word.of(masks), ..word });
        next += skip + 8;
    }
    words
}

/// What each of `words` holds for `key`.
pub(crate) fn values_of(words: &[Word], key: &[u8]) -> WordValues {
    words.iter().map(|w| w.of(key)).collect()
}

/// A mask of the low `count` bytes, at most eight.
fn low_bytes(count: u32) -> u64 {
    match count {
        0 => 0,
        n => u64::MAX >> (64 - 8 * n.min(8)),
    }
}

pub(crate) fn width_of(mask: u64) -> Width {
    if mask <= u64::from(u32::MAX) { Width::W32 } else { Width::W64 }
}

/// Appends `value & mask` in its shortest form.
pub(crate) fn emit_mask(b: &mut Builder<'_>, value: Value, mask: u64) -> Value {
    match mask {
        u64::MAX => value,
        m if m == u64::from(u32::MAX) => b.unary(UnaryOp::Zext32, value),
        m => b.binary_imm(BinaryOp::And, width_of(m), value, m),
    }
}

/// Appends `value << shift`.
pub(crate) fn emit_shl(b: &mut Builder<'_>, value: Value, shift: u32) -> Value {
    if shift == 0 { value } else { b.binary_imm(BinaryOp::Shl, Width::W64, value, u64::from(shift)) }
}

/// What to believe of the upper bits of a value.
#[derive(Clone, Copy, PartialEq)]
enum Trust {
    /// What the operations mean.
    Meaning,
    /// Only what the Linux verifier tracks: it takes the result of a byte swap for unknown.
    Bounds,
}

/// How far back [`possible_bits`] follows operands: key parts are loads, or one or two operations away from them.
const DEPTH: u32 = 3;

/// The bits of `value` that may be set.
fn possible_bits(program: &Program, value: Value, trust: Trust, depth: u32) -> u64 {
    let operand = |v| if depth == 0 { u64::MAX } else { possible_bits(program, v, trust, depth - 1) };
    let Some(data) = program.def(value) else { return u64::MAX };
    match data {
        InstData::Const(c) => *c,
        InstData::Load { size, .. } | InstData::CtxLoad { size, .. } => size.mask(),
        InstData::Unary { op: UnaryOp::Zext32, arg } => operand(*arg) & Size::B4.mask(),
        InstData::Unary { op: UnaryOp::Bswap16, .. } if trust == Trust::Meaning => Size::B2.mask(),
        InstData::Unary { op: UnaryOp::Bswap32, .. } if trust == Trust::Meaning => Size::B4.mask(),
        InstData::Binary { op, width, lhs, rhs } => {
            let shift = program.as_const(*rhs).map(|c| c & u64::from(width.bits() - 1));
            width.truncate(match (op, shift) {
                (BinaryOp::And, _) => operand(*lhs) & operand(*rhs),
                (BinaryOp::Or | BinaryOp::Xor, _) => operand(*lhs) | operand(*rhs),
                (BinaryOp::Shl, Some(s)) => operand(*lhs) << s,
                (BinaryOp::Lshr, Some(s)) => width.truncate(operand(*lhs)) >> s,
                _ => u64::MAX,
            })
        }
        _ => u64::MAX,
    }
}

/// `bits << place`, or to the right for a negative place.
fn shifted(bits: u64, place: i64) -> u64 {
    match u32::try_from(place) {
        Ok(left) => bits.checked_shl(left).unwrap_or(0),
        Err(_) => bits.checked_shr(place.unsigned_abs() as u32).unwrap_or(0),
    }
}

fn combine(b: &mut Builder<'_>, key: &Key, word: Word, shift: u32, trust: Trust) -> Value {
    let mask = word.mask << shift;
    let mut constant = 0;
    let mut sum: Option<(Value, u64)> = None;
    for part in key {
        let place = (i64::from(part.offset) - i64::from(word.offset)) * 8 + i64::from(shift);
        if shifted(part.size.mask(), place) & mask == 0 {
            continue;
        }
        if let Some(c) = b.program.as_const(part.value) {
            constant |= shifted(c & part.size.mask(), place) & mask;
            continue;
        }
        let (value, bits) = placed(b, part, place, mask, trust);
        sum = Some(match sum {
            None => (value, bits),
            Some((left, others)) => (b.binary(BinaryOp::Or, Width::W64, left, value), others | bits),
        });
    }
    let Some((mut value, bits)) = sum else { return b.iconst(constant) };
    if bits & !mask != 0 {
        value = emit_mask(b, value, mask);
    }
    if constant == 0 { value } else { b.binary_imm(BinaryOp::Or, Width::W64, value, constant) }
}

/// Appends what brings a part to its place in the word, and gives the bits that may then be set. Bits outside
/// of `mask` may be anything; those inside of it are the part's own.
fn placed(b: &mut Builder<'_>, part: &KeyPart, place: i64, mask: u64, trust: Trust) -> (Value, u64) {
    let mut value = part.value;
    let mut bits = possible_bits(b.program, value, trust, DEPTH);
    if place < 0 {
        // A shift of 32 bits drops the upper half on its way.
        let width = if part.size == Size::B4 { Width::W32 } else { Width::W64 };
        value = b.binary_imm(BinaryOp::Lshr, width, value, place.unsigned_abs());
        bits = shifted(width.truncate(bits), place);
        let own = shifted(part.size.mask(), place);
        if bits & mask & !own != 0 {
            (value, bits) = (emit_mask(b, value, own), bits & own);
        }
        return (value, bits);
    }
    if shifted(bits & !part.size.mask(), place) & mask != 0 {
        (value, bits) = (emit_mask(b, value, part.size.mask()), bits & part.size.mask());
    }
    (emit_shl(b, value, place as u32), shifted(bits, place))
}
