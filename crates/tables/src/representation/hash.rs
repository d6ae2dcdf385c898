//! A hash table without collisions: one slot to look at, holding the key and the row id.
//!
//! The hash is multilinear: each word times an odd constant, summed, of which the highest bits count (Dietzfelbinger
//! et al., "A reliable randomized algorithm for the closest-pair problem", 1997, for one word). Few keys get a
//! table in which some choice of the constants separates them all. More keys are first divided into buckets of
//! about three, and each bucket has a multiplier of its own that brings its keys to free slots, found bucket by
//! bucket, the largest first (Belazzougui, Botelho and Dietzfelbinger, "Hash, displace, and compress", ESA 2009).
//!
//! Constants are drawn from a fixed sequence, so that equal contents give equal tables. Keys contrived against
//! it make the build fail after a bounded search, never a lookup slow.

use runnel_ir::{BinaryOp, Block, Builder, Cond, Data, Key, Size, Target, Value, Width};
use smallvec::SmallVec;

use super::{Probe, Refusal, address, count_of, element, jump_to_row, within};
use crate::cost;
use crate::keyparts::{WordValues, Words, emit_shl, values_of};
use crate::prepare::Matching;
use crate::rows::RowId;

/// Most words of a key: 32 bytes, which with the row id make a slot of 64.
const MAX_WORDS: usize = 4;
/// Hash functions tried before giving up; two to five are needed in the worst case of ordinary keys.
const TRIES: u32 = 32;
/// Hash functions tried for a table without buckets, for each size: most end after the first few keys.
const PLAIN_TRIES: u32 = 256;
/// Tables without buckets have at most so many entries, and bytes of slots.
const PLAIN_ENTRIES: usize = 64;
const PLAIN_BYTES: u64 = 8192;
/// Multipliers tried for a bucket. At the highest load, four of five slots are taken when the last single keys
/// are placed, so that all of them fail once in 10^396.
const BUCKET_TRIES: u32 = 4096;
/// Bytes of a bucket's multiplier.
const BUCKET_SHIFT: u32 = 2;

/// Multipliers of the words, and how many of the highest bits number the slots.
#[derive(Clone, PartialEq, Eq, Debug)]
struct HashFunction {
    multipliers: SmallVec<[u64; 4]>,
    slot_bits: u32,
}

/// The multipliers of the buckets.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Buckets {
    bits: u32,
    bytes: Vec<u8>,
}

/// Where in a slot things are: 8-byte words, then 4-byte words, then the row id.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Layout {
    words: SmallVec<[(u32, Size); 4]>,
    row: u32,
    shift: u32,
}

/// A hash table without collisions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PerfectHash {
    words: Words,
    function: HashFunction,
    buckets: Option<Buckets>,
    layout: Layout,
    slots: Vec<u8>,
    otherwise: RowId,
    entries: usize,
}

/// The sequence that constants are drawn from (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl HashFunction {
    fn draw(random: &mut SplitMix, words: usize, slot_bits: u32) -> HashFunction {
        HashFunction { multipliers: (0..words).map(|_| random.next() | 1).collect(), slot_bits }
    }

    fn hash(&self, values: &[u64]) -> u64 {
        values.iter().zip(&self.multipliers).fold(0, |sum, (v, m)| sum.wrapping_add(v.wrapping_mul(*m)))
    }

    fn slot(&self, hash: u64) -> usize {
        (hash >> (64 - self.slot_bits)) as usize
    }
}

impl Buckets {
    fn of(&self, hash: u64) -> usize {
        (hash >> (64 - self.bits)) as usize
    }

    fn multiplier(&self, hash: u64) -> u64 {
        u64::from(element(&self.bytes, Size::B4, self.of(hash)))
    }
}

impl Layout {
    fn of(words: &Words) -> Layout {
        let size = |mask: u64| if mask <= u64::from(u32::MAX) { Size::B4 } else { Size::B8 };
        let mut next = 8 * words.iter().filter(|w| size(w.mask) == Size::B8).count() as u32;
        let mut wide = 0;
        let place = |size: Size| {
            let cursor = if size == Size::B8 { &mut wide } else { &mut next };
            *cursor += size.bytes();
            (*cursor - size.bytes(), size)
        };
        let words = words.iter().map(|w| size(w.mask)).map(place).collect();
        Layout { words, row: next, shift: (next + 4).next_power_of_two().trailing_zeros() }
    }

    fn write(&self, slot: &mut [u8], values: &[u64], row: RowId) {
        for (&value, &(at, size)) in values.iter().zip(&self.words) {
            let (at, len) = (at as usize, size.bytes() as usize);
            slot[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
        }
        slot[self.row as usize..][..4].copy_from_slice(&row.0.to_le_bytes());
    }
}

type Item = (WordValues, RowId);

impl PerfectHash {
    /// Builds the table, if keys are short enough and a hash function is found.
    pub(crate) fn new(matching: &Matching, budget: u64) -> Result<PerfectHash, Refusal> {
        let (words, items) = (&matching.words, &matching.items);
        if words.len() > MAX_WORDS {
            return Err(Refusal::KeyTooLong { bytes: words.len() * 8, limit: MAX_WORDS * 8 });
        }
        let layout = Layout::of(words);
        // A load between 0.4 and 0.8, and at least two slots, as a shift by all 64 bits is none.
        let slot_bits = (items.len() * 5).div_ceil(4).max(2).next_power_of_two().trailing_zeros();
        within(1 << (slot_bits + layout.shift), budget)?;
        let mut random = SplitMix(0);
        let (function, buckets) = match plain(items, words.len(), &layout, slot_bits, &mut random) {
            Some(function) => (function, None),
            None => {
                let (function, buckets) = (0..TRIES)
                    .find_map(|_| bucketed(items, HashFunction::draw(&mut random, words.len(), slot_bits)))
                    .ok_or(Refusal::NoHash { tries: TRIES })?;
                (function, Some(buckets))
            }
        };
        let mut made = PerfectHash {
            words: words.clone(),
            slots: vec![0; 1 << (function.slot_bits + layout.shift)],
            function,
            buckets,
            layout,
            otherwise: matching.otherwise,
            entries: items.len(),
        };
        made.fill(items);
        within(made.objects().iter().map(|(_, bytes)| bytes.len() as u64).sum(), budget)?;
        Ok(made)
    }

    fn slot_of(&self, values: &[u64]) -> usize {
        let hash = self.function.hash(values);
        match &self.buckets {
            None => self.function.slot(hash),
            Some(buckets) => self.function.slot(hash.wrapping_mul(buckets.multiplier(hash))),
        }
    }

    fn slot(&self, index: usize) -> &[u8] {
        &self.slots[index << self.layout.shift..][..1 << self.layout.shift]
    }

    /// Writes the keys to their slots. A free slot holds what other keys give, so that it does not matter whether
    /// a key of zeros compares equal there.
    fn fill(&mut self, items: &[Item]) {
        if self.otherwise != RowId::MISS {
            let values: WordValues = SmallVec::from_elem(0, self.words.len());
            for slot in self.slots.chunks_exact_mut(1 << self.layout.shift) {
                self.layout.write(slot, &values, self.otherwise);
            }
        }
        for (values, row) in items {
            let at = self.slot_of(values) << self.layout.shift;
            self.layout.write(&mut self.slots[at..][..1 << self.layout.shift], values, *row);
        }
    }

    /// Appends the hash, of which the highest bits count.
    fn emit_hash(&self, b: &mut Builder<'_>, data: &[Data], values: &[Value]) -> Value {
        let mut sum = None;
        for (&value, &multiplier) in values.iter().zip(&self.function.multipliers) {
            let product = b.binary_imm(BinaryOp::Mul, Width::W64, value, multiplier);
            sum = Some(match sum {
                None => product,
                Some(left) => b.binary(BinaryOp::Add, Width::W64, left, product),
            });
        }
        let hash = sum.unwrap_or_else(|| b.iconst(0));
        let Some(buckets) = &self.buckets else { return hash };
        let offset = emit_top_bits(b, hash, buckets.bits, BUCKET_SHIFT);
        let at = address(b, data[1], offset);
        let multiplier = b.load(Size::B4, at, 0);
        b.binary(BinaryOp::Mul, Width::W64, hash, multiplier)
    }
}

/// Appends the highest `bits` bits as a number, times a power of two.
fn emit_top_bits(b: &mut Builder<'_>, value: Value, bits: u32, shift: u32) -> Value {
    let top = b.binary_imm(BinaryOp::Lshr, Width::W64, value, u64::from(64 - bits));
    emit_shl(b, top, shift)
}

/// A hash function that separates all items by itself, in a table not too large.
fn plain(
    items: &[Item],
    words: usize,
    layout: &Layout,
    slot_bits: u32,
    random: &mut SplitMix,
) -> Option<HashFunction> {
    if items.len() > PLAIN_ENTRIES {
        return None;
    }
    let sizes =
        (slot_bits..).take_while(|bits| *bits == slot_bits || 1 << (bits + layout.shift) <= PLAIN_BYTES);
    for bits in sizes {
        for _ in 0..PLAIN_TRIES {
            let function = HashFunction::draw(random, words, bits);
            let mut taken = vec![false; 1 << bits];
            let mut free = |(values, _): &Item| {
                !std::mem::replace(&mut taken[function.slot(function.hash(values))], true)
            };
            if items.iter().all(&mut free) {
                return Some(function);
            }
        }
    }
    None
}

/// Multipliers that bring the items of each bucket to slots of their own, if there are such for this function.
fn bucketed(items: &[Item], function: HashFunction) -> Option<(HashFunction, Buckets)> {
    let bits = (items.len() / 4).max(2).next_power_of_two().trailing_zeros();
    let mut buckets = Buckets { bits, bytes: vec![0; 1 << (bits + BUCKET_SHIFT)] };
    let mut hashes: Vec<u64> = items.iter().map(|(values, _)| function.hash(values)).collect();
    // Buckets are the highest bits, so that sorted hashes stand together by bucket.
    hashes.sort_unstable();
    let mut groups: Vec<&[u64]> = hashes.chunk_by(|a, b| buckets.of(*a) == buckets.of(*b)).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let mut taken = vec![false; 1 << function.slot_bits];
    let mut slots = Vec::new();
    for group in groups {
        let multiplier = bucket_multiplier(group, &function, &mut taken, &mut slots)?;
        let at = buckets.of(group[0]) << BUCKET_SHIFT;
        buckets.bytes[at..at + 4].copy_from_slice(&multiplier.to_le_bytes());
    }
    Some((function, buckets))
}

/// The first multiplier of a fixed sequence that brings these hashes to free slots, which are taken then.
fn bucket_multiplier(
    group: &[u64],
    function: &HashFunction,
    taken: &mut [bool],
    slots: &mut Vec<usize>,
) -> Option<u32> {
    let mut random = SplitMix(1);
    (0..BUCKET_TRIES).find_map(|_| {
        let multiplier = random.next() as u32 | 1;
        slots.clear();
        for hash in group {
            let slot = function.slot(hash.wrapping_mul(u64::from(multiplier)));
            if taken[slot] || slots.contains(&slot) {
                return None;
            }
            slots.push(slot);
        }
        slots.iter().for_each(|&slot| taken[slot] = true);
        Some(multiplier)
    })
}

impl Probe for PerfectHash {
    fn lookup(&self, key: &[u8]) -> RowId {
        let values = values_of(&self.words, key);
        let slot = self.slot(self.slot_of(&values));
        let field = |at: u32, size: Size| {
            let mut bytes = [0; 8];
            bytes[..size.bytes() as usize].copy_from_slice(&slot[at as usize..][..size.bytes() as usize]);
            u64::from_le_bytes(bytes)
        };
        if values.iter().zip(&self.layout.words).all(|(&value, &(at, size))| field(at, size) == value) {
            RowId(field(self.layout.row, Size::B4) as u32)
        } else {
            self.otherwise
        }
    }

    fn always_hits(&self) -> bool {
        self.otherwise != RowId::MISS
    }

    fn objects(&self) -> Vec<(&'static str, &[u8])> {
        let slots = ("slots", &*self.slots);
        std::iter::once(slots).chain(self.buckets.as_ref().map(|b| ("buckets", &*b.bytes))).collect()
    }

    fn emit(&self, b: &mut Builder<'_>, data: &[Data], key: &Key, done: Block) {
        let values: SmallVec<[Value; 4]> = self.words.iter().map(|w| w.emit(b, key)).collect();
        let hash = self.emit_hash(b, data, &values);
        let offset = emit_top_bits(b, hash, self.function.slot_bits, self.layout.shift);
        let slot = address(b, data[0], offset);
        let differs = b.create_block();
        for ((&value, &(at, size)), word) in values.iter().zip(&self.layout.words).zip(&self.words) {
            let stored = b.load(size, slot, at as i32);
            let equal = b.create_block();
            b.branch(Cond::Eq, word.width(), value, stored, Target::to(equal), Target::to(differs));
            b.switch_to(equal);
        }
        let row = b.load(Size::B4, slot, self.layout.row as i32);
        b.jump(Target::with(done, [row]));
        b.switch_to(differs);
        jump_to_row(b, done, self.otherwise);
    }

    fn probe_ns(&self) -> f64 {
        let words = self.words.len();
        let hash = cost::words(words) + cost::MULTIPLICATION + (words - 1) as f64 * cost::OPERATION;
        let bucket = match &self.buckets {
            Some(b) => cost::OPERATION + cost::indexed_load(b.bytes.len() as u64) + cost::MULTIPLICATION,
            None => 0.0,
        };
        // The row id shares the cache line with the key.
        let slot = cost::OPERATION + cost::indexed_load(self.slots.len() as u64) + cost::OPERATION;
        hash + bucket + slot + words as f64 * cost::BRANCH
    }

    fn name(&self) -> &'static str {
        "perfect hash"
    }

    fn why(&self) -> String {
        let slots = 1u64 << self.function.slot_bits;
        let buckets = match &self.buckets {
            Some(b) => format!(", reached through {} multipliers", 1u64 << b.bits),
            None => String::new(),
        };
        let keys = count_of(self.entries, "key");
        format!("{keys} in {slots} slots of {} bytes{buckets}", 1 << self.layout.shift)
    }
}
