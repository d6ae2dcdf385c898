//! An array of row ids, indexed by the key as a number: for consecutive indices and dense keys of one word.
//!
//! The number is the key's bytes as they lie in memory, or reversed where that makes the keys denser (ports and
//! addresses in network byte order). Where row ids follow the index, or are all one, there is no array, only the
//! bounds check.

use runnel_ir::{BinaryOp, Block, Builder, Cond, Data, Key, Size, Target, UnaryOp, Value, Width};

use super::{Probe, Refusal, address, count_of, element, jump_to_row, pack, size_for, within};
use crate::cost;
use crate::keyparts::{Word, emit_shl};
use crate::prepare::Matching;
use crate::rows::RowId;

/// Ranges up to this many keys may be as sparse as they like: the array then is at most 256 KiB.
const FREE_RANGE: u128 = 1 << 16;
/// Beyond that, one key in so many has to have an entry.
const MAX_SPARSITY: u128 = 64;
/// All numbers below this may be tabulated without a bounds check.
const MAX_DOMAIN: u64 = 1 << 16;

/// Which numbers have a place in the array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scope {
    /// All that the word can hold.
    All,
    /// `count` of them, from `first`.
    Range { reversed: bool, first: u64, count: u64 },
}

/// How an index becomes a row id.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Ids {
    /// Every index has this row.
    Same(RowId),
    /// The row id is the index plus this.
    Sequence(u32),
    /// The row ids, padded to a power of two of them.
    Array { size: Size, bytes: Vec<u8> },
}

/// An array of row ids, indexed by the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectIndex {
    word: Word,
    scope: Scope,
    ids: Ids,
    otherwise: RowId,
    entries: usize,
    always_hits: bool,
}

/// The byte swap that reverses a word, if one instruction can.
fn swap(word: Word) -> Option<UnaryOp> {
    match word.len() {
        2 => Some(UnaryOp::Bswap16),
        4 => Some(UnaryOp::Bswap32),
        8 => Some(UnaryOp::Bswap64),
        _ => None,
    }
}

/// The numbers of keys, and how many there are from the lowest to the highest.
fn range(numbers: impl Iterator<Item = u64> + Clone) -> (u64, u128) {
    let (low, high) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
    (low, u128::from(high - low) + 1)
}

impl Scope {
    fn choose(word: Word, numbers: &[u64]) -> Result<Scope, Refusal> {
        let (low, plain) = range(numbers.iter().copied());
        let (reversed_low, reversed) = match swap(word) {
            Some(op) => range(numbers.iter().map(|&n| op.eval(n))),
            None => (0, u128::MAX),
        };
        let (first, range) = if plain <= reversed { (low, plain) } else { (reversed_low, reversed) };
        // Without check and subtraction: worth it for small arrays, and where the range is most of them anyhow.
        let domain = word.mask.checked_add(1).filter(|d| d.is_power_of_two() && *d <= MAX_DOMAIN);
        if domain.is_some_and(|d| d <= 256 || range * 2 > u128::from(d)) {
            return Ok(Scope::All);
        }
        let entries = numbers.len();
        if range > FREE_RANGE.max(entries as u128 * MAX_SPARSITY) {
            return Err(Refusal::Sparse { entries, range });
        }
        let count = range as u64;
        // Beginning at zero saves the subtraction, where the padded array has room for it.
        let whole = first.saturating_add(count);
        let (first, count) = if whole <= count.next_power_of_two() { (0, whole) } else { (first, count) };
        Ok(Scope::Range { reversed: plain > reversed, first, count })
    }
}

impl DirectIndex {
    /// Builds the array, if the key is one word and the keys are dense enough.
    pub(crate) fn new(matching: &Matching, budget: u64) -> Result<DirectIndex, Refusal> {
        let &[word] = matching.words.as_slice() else {
            return Err(Refusal::KeyTooLong { bytes: matching.words.len() * 8, limit: 8 });
        };
        let numbers: Vec<u64> = matching.items.iter().map(|(values, _)| values[0]).collect();
        let scope = Scope::choose(word, &numbers)?;
        let max = matching.items.iter().map(|(_, row)| row.0).max().unwrap_or(0).max(matching.otherwise.0);
        let size = size_for(max);
        let mut made = DirectIndex {
            word,
            scope,
            ids: Ids::Same(RowId::MISS),
            otherwise: matching.otherwise,
            entries: matching.items.len(),
            always_hits: false,
        };
        let count = made.count();
        within(count.next_power_of_two() * u64::from(size.bytes()), budget)?;
        let mut ids = vec![matching.otherwise.0; count as usize];
        for (&number, (_, row)) in numbers.iter().zip(&matching.items) {
            if let Some(id) = made.index(number).and_then(|i| ids.get_mut(i as usize)) {
                *id = row.0;
            }
        }
        made.always_hits =
            !ids.contains(&RowId::MISS.0) && (scope == Scope::All || matching.otherwise != RowId::MISS);
        made.ids = Ids::of(ids, size, matching.otherwise);
        Ok(made)
    }

    /// Number of indices.
    fn count(&self) -> u64 {
        match self.scope {
            Scope::All => self.word.mask + 1,
            Scope::Range { count, .. } => count,
        }
    }

    /// The index of a number, unless it lies outside of the array.
    fn index(&self, number: u64) -> Option<u64> {
        match self.scope {
            Scope::All => Some(number),
            Scope::Range { reversed, first, count } => {
                let number = swap(self.word).filter(|_| reversed).map_or(number, |op| op.eval(number));
                let index = self.word.width().truncate(number.wrapping_sub(first));
                (index < count).then_some(index)
            }
        }
    }

    /// Appends the index. Where there is an outside, checks for it and goes on inside.
    fn emit_index(&self, b: &mut Builder<'_>, key: &Key, done: Block) -> Value {
        let index = self.word.emit(b, key);
        let Scope::Range { reversed, first, count } = self.scope else { return index };
        let width = self.word.width();
        let index = swap(self.word).filter(|_| reversed).map_or(index, |op| b.unary(op, index));
        let index = if first == 0 { index } else { b.binary_imm(BinaryOp::Sub, width, index, first) };
        let (inside, outside) = (b.create_block(), b.create_block());
        let limit = b.iconst(count);
        b.branch(Cond::Ult, width, index, limit, Target::to(inside), Target::to(outside));
        b.switch_to(outside);
        jump_to_row(b, done, self.otherwise);
        b.switch_to(inside);
        index
    }

    /// Appends the offset in the array, bounded by a mask even where a branch bounds it already: what the verifier
    /// learns from a branch it does not keep for copies made before.
    fn emit_offset(&self, b: &mut Builder<'_>, key: &Key, done: Block, size: Size, len: usize) -> Value {
        let shift = size.bytes().trailing_zeros();
        if self.scope == Scope::All {
            return self.word.emit_bounded(b, key, shift);
        }
        let index = self.emit_index(b, key, done);
        let mask = (len >> shift) as u64 - 1;
        let bounded = b.binary_imm(BinaryOp::And, self.word.width(), index, mask);
        emit_shl(b, bounded, shift)
    }
}

impl Ids {
    fn of(mut ids: Vec<u32>, size: Size, otherwise: RowId) -> Ids {
        let first = ids[0];
        if ids.iter().all(|&id| id == first) {
            return Ids::Same(RowId(first));
        }
        if ids.windows(2).all(|w| w[1] == w[0].wrapping_add(1)) {
            return Ids::Sequence(first);
        }
        ids.resize(ids.len().next_power_of_two(), otherwise.0);
        Ids::Array { size, bytes: pack(size, ids.into_iter()) }
    }
}

impl Probe for DirectIndex {
    fn lookup(&self, key: &[u8]) -> RowId {
        let Some(index) = self.index(self.word.of(key)) else { return self.otherwise };
        match &self.ids {
            Ids::Same(row) => *row,
            Ids::Sequence(start) => RowId(index as u32 + start),
            Ids::Array { size, bytes } => RowId(element(bytes, *size, index as usize)),
        }
    }

    fn always_hits(&self) -> bool {
        self.always_hits
    }

    fn objects(&self) -> Vec<(&'static str, &[u8])> {
        match &self.ids {
            Ids::Array { bytes, .. } => vec![("ids", bytes)],
            Ids::Same(_) | Ids::Sequence(_) => Vec::new(),
        }
    }

    fn emit(&self, b: &mut Builder<'_>, data: &[Data], key: &Key, done: Block) {
        let row = match &self.ids {
            Ids::Same(row) => {
                self.emit_index(b, key, done);
                return jump_to_row(b, done, *row);
            }
            Ids::Sequence(start) => {
                let index = self.emit_index(b, key, done);
                match start {
                    0 => index,
                    start => b.binary_imm(BinaryOp::Add, Width::W64, index, u64::from(*start)),
                }
            }
            Ids::Array { size, bytes } => {
                let offset = self.emit_offset(b, key, done, *size, bytes.len());
                let at = address(b, data[0], offset);
                b.load(*size, at, 0)
            }
        };
        b.jump(Target::with(done, [row]));
    }

    fn probe_ns(&self) -> f64 {
        let check = match self.scope {
            Scope::All => 0.0,
            Scope::Range { .. } => cost::BRANCH + cost::OPERATION,
        };
        let load = match &self.ids {
            Ids::Same(_) => 0.0,
            Ids::Sequence(_) => cost::OPERATION,
            Ids::Array { bytes, .. } => cost::indexed_load(bytes.len() as u64),
        };
        cost::words(1) + check + load
    }

    fn name(&self) -> &'static str {
        "direct index"
    }

    fn why(&self) -> String {
        let scope = match self.scope {
            Scope::All => "every possible key has a place".to_string(),
            Scope::Range { first, count, reversed } => {
                let order = if reversed { ", bytes reversed" } else { "" };
                format!("keys lie between {first} and {}{order}", first + (count - 1))
            }
        };
        let ids = match &self.ids {
            Ids::Same(_) => "all have the same row".to_string(),
            Ids::Sequence(_) => "rows follow the key".to_string(),
            Ids::Array { size, bytes } => {
                format!("array of {} row ids of {} bits", bytes.len() / size.bytes() as usize, size.bits())
            }
        };
        format!("{}; {scope}; {ids}", count_of(self.entries, "key"))
    }
}
