//! Longest-prefix matching by arrays: one indexed by the first two bytes of the address, and below it blocks
//! indexed by one further byte each, wherever longer prefixes lie.
//!
//! Shorter prefixes are pushed down to where they apply (Gupta, Lin and McKeown, "Routing lookups in hardware at
//! memory access speeds", INFOCOM 1998, with smaller steps), so that a lookup never looks back. An entry is a row
//! id, or, with its highest bit set, the number of a block. Equal blocks are one, whatever their level, and a block
//! whose entries are all one row id is that row id. The root is indexed by the two bytes as they lie in memory,
//! and filled accordingly, so that no byte swap is needed.

use std::collections::HashMap;

use runnel_ir::{BinaryOp, Block, Builder, Cond, Data, Key, Size, Target, Value, Width};

use super::{Probe, Refusal, address, count_of, element, pack, within};
use crate::contents::PREFIX_HEAD;
use crate::cost;
use crate::keyparts::{Word, emit_shl};
use crate::prepare::Prefix;
use crate::rows::RowId;

/// Entries of a block: one step is a byte.
const FANOUT: usize = 256;
const STEP: u32 = 8;
/// While building, entries have 32 bits, and this one says that the rest is a block's number.
const BLOCK: u32 = 1 << 31;
/// More blocks than this many times what fits the budget are not even tried, equal ones counted.
const MAX_REPEATS: u64 = 4;

/// A multi-level index.
#[derive(Clone, PartialEq, Debug)]
pub struct LevelIndex {
    /// Bytes that index the root: two, or one where no prefix is longer.
    root_bytes: u32,
    /// Levels of blocks below the root, at most.
    depth: u32,
    /// Size of an entry.
    size: Size,
    root: Vec<u8>,
    /// The blocks, padded to a power of two of them.
    blocks: Vec<u8>,
    used_blocks: usize,
    prefixes: usize,
    always_hits: bool,
    /// Levels below the root that a lookup goes down, if all prefixes are looked up equally often.
    mean_depth: f64,
}

/// Bits `start` to `start + bits` of an address, counted from the highest.
fn field(address: u128, start: u32, bits: u32) -> usize {
    ((address << start) >> (128 - bits)) as usize
}

/// The blocks made so far.
struct Pool {
    entries: Vec<u32>,
    /// Levels from each block down to the lowest leaf.
    heights: Vec<u32>,
    /// First block with a given digest.
    known: HashMap<u64, u32>,
    built: u64,
    /// Most blocks.
    limit: u64,
    budget: u64,
}

/// A quick digest of a block, mixing as in a multiplicative hash. Blocks with equal digests are compared.
fn digest(block: &[u32; FANOUT]) -> u64 {
    block.chunks_exact(2).fold(0, |h: u64, pair| {
        let both = u64::from(pair[0]) | u64::from(pair[1]) << 32;
        (h.rotate_left(5) ^ both).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl Pool {
    /// Writes what `prefixes`, which all begin with the bits before `start`, say about the next `bits` bits.
    /// Prefixes are sorted, so that each overwrites part of what the shorter ones around it wrote. The recursion
    /// goes down a byte of the address at a time, so at most 15 deep.
    fn fill(&mut self, out: &mut [u32], start: u32, bits: u32, prefixes: &[Prefix]) -> Result<(), Refusal> {
        let end = start + bits;
        let mut rest = prefixes;
        while let Some(first) = rest.first() {
            let slot = field(first.address, start, bits);
            let taken = if first.length <= end {
                out[slot..slot + (1 << (end - first.length))].fill(first.row.0);
                1
            } else {
                let len = rest.partition_point(|p| field(p.address, start, bits) == slot);
                out[slot] = self.block(end, &rest[..len], out[slot])?;
                len
            };
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// The entry for prefixes longer than `start` bits, where a shorter one says `inherited`.
    fn block(&mut self, start: u32, prefixes: &[Prefix], inherited: u32) -> Result<u32, Refusal> {
        let mut block = [inherited; FANOUT];
        self.fill(&mut block, start, STEP, prefixes)?;
        let first = block[0];
        if first & BLOCK == 0 && block.iter().all(|&e| e == first) {
            return Ok(first);
        }
        self.built += 1;
        let number = self.intern(&block);
        if self.heights.len() as u64 > self.limit || self.built > self.limit * MAX_REPEATS {
            // One block more than fits, padded.
            let bytes = self.budget.saturating_add(1);
            return Err(Refusal::TooLarge { bytes, budget: self.budget });
        }
        Ok(BLOCK | number)
    }

    fn intern(&mut self, block: &[u32; FANOUT]) -> u32 {
        let next = self.heights.len() as u32;
        let number = *self.known.entry(digest(block)).or_insert(next);
        if number != next && self.entries[number as usize * FANOUT..][..FANOUT] == *block {
            return number;
        }
        self.entries.extend_from_slice(block);
        self.heights.push(1 + self.height(block));
        next
    }

    /// Levels of blocks below these entries.
    fn height(&self, entries: &[u32]) -> u32 {
        let blocks = entries.iter().filter(|&&e| e & BLOCK != 0);
        blocks.map(|e| self.heights[(e & !BLOCK) as usize]).max().unwrap_or(0)
    }
}

impl LevelIndex {
    /// Builds the index from sorted prefixes of addresses of `address_bits` bits.
    pub(crate) fn new(address_bits: u32, prefixes: &[Prefix], budget: u64) -> Result<LevelIndex, Refusal> {
        let longest = prefixes.iter().map(|p| p.length).max().unwrap_or(0);
        let max_row = prefixes.iter().map(|p| p.row.0).max().unwrap_or(0);
        let root_bits = if longest <= STEP { STEP } else { (2 * STEP).min(address_bits) };
        let block_bytes = (FANOUT as u64) * u64::from(entry_size(0, max_row).bytes());
        let mut pool = Pool {
            entries: Vec::new(),
            heights: Vec::new(),
            known: HashMap::new(),
            built: 0,
            limit: budget / block_bytes,
            budget,
        };
        let mut root = vec![RowId::MISS.0; 1 << root_bits];
        pool.fill(&mut root, 0, root_bits, prefixes)?;
        let depth = pool.height(&root);
        let used_blocks = pool.heights.len();
        let padded = if used_blocks == 0 { 0 } else { used_blocks.next_power_of_two() };
        let size = entry_size(used_blocks, max_row);
        within(((root.len() + padded * FANOUT) as u64) * u64::from(size.bytes()), budget)?;
        let always_hits = !root.contains(&RowId::MISS.0) && !pool.entries.contains(&RowId::MISS.0);
        let flag = block_flag(size);
        let narrow = |e: u32| if e & BLOCK == 0 { e } else { e & !BLOCK | flag };
        let in_memory =
            |slot: usize| if root_bits == STEP { slot } else { usize::from((slot as u16).swap_bytes()) };
        let mut blocks = pack(size, pool.entries.iter().map(|&e| narrow(e)));
        blocks.resize(padded * FANOUT * size.bytes() as usize, 0);
        let below = prefixes.iter().map(|p| p.length.saturating_sub(root_bits).div_ceil(STEP).min(depth));
        Ok(LevelIndex {
            root_bytes: root_bits / STEP,
            depth,
            size,
            root: pack(size, (0..root.len()).map(|i| narrow(root[in_memory(i)]))),
            blocks,
            used_blocks,
            prefixes: prefixes.len(),
            always_hits,
            mean_depth: f64::from(below.sum::<u32>()) / prefixes.len().max(1) as f64,
        })
    }

    /// Byte `level` of those below the root.
    fn byte(&self, level: u32) -> Word {
        let at = PREFIX_HEAD as u32 + self.root_bytes + level;
        Word::bytes(at, at + 1)
    }

    fn root_word(&self) -> Word {
        Word::bytes(PREFIX_HEAD as u32, PREFIX_HEAD as u32 + self.root_bytes)
    }

    fn entry_shift(&self) -> u32 {
        self.size.bytes().trailing_zeros()
    }

    /// Appends the load of the entry that byte `level` selects in the block that `entry` names.
    fn emit_level(&self, b: &mut Builder<'_>, blocks: Data, key: &Key, level: u32, entry: Value) -> Value {
        let shift = self.entry_shift();
        let count = (self.blocks.len() / FANOUT) >> shift;
        let number = b.binary_imm(BinaryOp::And, Width::W32, entry, count as u64 - 1);
        let block = emit_shl(b, number, STEP + shift);
        let within = self.byte(level).emit_bounded(b, key, shift);
        let offset = b.binary(BinaryOp::Add, Width::W64, block, within);
        let at = address(b, blocks, offset);
        b.load(self.size, at, 0)
    }
}

/// The bit of an entry that says that the rest is a block's number.
fn block_flag(size: Size) -> u32 {
    1 << (size.bits() - 1)
}

/// The smallest size of entries that can name so many blocks and this row.
fn entry_size(blocks: usize, max_row: u32) -> Size {
    let fits = |size| blocks as u64 <= u64::from(block_flag(size)) && max_row < block_flag(size);
    if fits(Size::B2) { Size::B2 } else { Size::B4 }
}

impl Probe for LevelIndex {
    fn lookup(&self, key: &[u8]) -> RowId {
        let flag = block_flag(self.size);
        let mut entry = element(&self.root, self.size, self.root_word().of(key) as usize);
        for level in 0..self.depth {
            if entry & flag == 0 {
                break;
            }
            let index = (entry & !flag) as usize * FANOUT + self.byte(level).of(key) as usize;
            entry = element(&self.blocks, self.size, index);
        }
        RowId(entry)
    }

    fn always_hits(&self) -> bool {
        self.always_hits
    }

    fn objects(&self) -> Vec<(&'static str, &[u8])> {
        let blocks = (self.depth > 0).then_some(("blocks", &*self.blocks));
        std::iter::once(("root", &*self.root)).chain(blocks).collect()
    }

    fn emit(&self, b: &mut Builder<'_>, data: &[Data], key: &Key, done: Block) {
        let offset = self.root_word().emit_bounded(b, key, self.entry_shift());
        let at = address(b, data[0], offset);
        let mut entry = b.load(self.size, at, 0);
        for level in 0..self.depth {
            let below = b.create_block();
            let flag = b.iconst(u64::from(block_flag(self.size)));
            b.branch(Cond::None, Width::W32, entry, flag, Target::with(done, [entry]), Target::to(below));
            b.switch_to(below);
            entry = self.emit_level(b, data[1], key, level, entry);
        }
        b.jump(Target::with(done, [entry]));
    }

    fn probe_ns(&self) -> f64 {
        let root = cost::words(1) + cost::indexed_load(self.root.len() as u64);
        let level = cost::BRANCH
            + 2.0 * cost::OPERATION
            + cost::words(1)
            + cost::indexed_load(self.blocks.len() as u64);
        root + self.mean_depth * level
    }

    fn name(&self) -> &'static str {
        "multi-level index"
    }

    fn why(&self) -> String {
        let steps = "-8".repeat(self.depth as usize);
        format!(
            "{}; steps of {}{steps} bits, {}, entries of {} bits",
            count_of(self.prefixes, "prefix"),
            self.root_bytes * STEP,
            count_of(self.used_blocks, "block"),
            self.size.bits()
        )
    }
}
