//! Merges stores of neighbouring bytes into wider ones.
//!
//! Compilers copy a packed structure, such as a hardware address, byte by byte where its alignment is not known, and
//! specialization makes constants of some of the bytes. Two stores of the same size to neighbouring bytes become one of
//! twice the size where what they store can be had in one piece as well:
//!
//! * two constants;
//! * two values loaded from neighbouring bytes, which go nowhere else: one load of twice the size;
//! * a value loaded from constant data, and a constant that stands beside it in every row that the load may read.
//!
//! Repeated, this gives stores of two, four and eight bytes.
//!
//! Example: `v1 = load.8 v0; store.8 v9+6, v1; v2 = load.8 v0+1; store.8 v9+7, v2` becomes
//! `v3 = load.16 v0; store.16 v9+6, v3`.
//!
//! Both halves stand in one block, and between the first of their instructions and the last nothing else may touch what
//! is written, or change what is read; the wide access stands where the last store stood, so that whatever proved the
//! halves to be in bounds stands before it. Only memory that nobody else sees is read and written so: in a table's
//! value others could see, or we could see, bytes in an order of our making. Slots are accessed only where the wide access
//! is aligned.
//!
//! Uses: provenance, aliases, use counts. Invalidates: def-use lists. The idea is that of superword-level parallelism
//! (Larsen and Amarasinghe, PLDI 2000).

use std::collections::{HashMap, HashSet};

use runnel_analysis::{Memory, Object, Offset, Place, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, DataKind, Inst, InstData, Program, Size, Value};

/// What a store stores.
#[derive(Clone, Copy)]
enum What {
    /// A constant.
    Constant(u64),
    /// What the instruction at `load` of the block reads at an address, and nobody else uses.
    Loaded { load: usize, from: (Value, i32) },
}

/// A store that may be half of a wider one.
#[derive(Clone, Copy)]
struct Piece {
    store: usize,
    size: Size,
    to: (Value, i32),
    what: What,
}

impl Piece {
    /// The positions of its instructions.
    fn positions(&self) -> impl Iterator<Item = usize> {
        let load = match self.what {
            What::Loaded { load, .. } => Some(load),
            What::Constant(_) => None,
        };
        load.into_iter().chain([self.store])
    }
}

/// A store to be made instead of two.
struct Merged {
    size: Size,
    to: (Value, i32),
    what: Wide,
    /// The positions of the instructions that it stands for, the last of which is its own.
    instead: Vec<usize>,
}

/// What a merged store stores.
enum Wide {
    Constant(u64),
    Loaded((Value, i32)),
}

/// Merges stores in `program`; says whether there were any to merge.
pub fn merge_stores(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let mut changed = false;
    loop {
        // Most programs have none, and those need no analysis.
        let blocks: Vec<Block> =
            cfg.order().iter().copied().filter(|&b| stores(program, b).nth(1).is_some()).collect();
        if blocks.is_empty() {
            return changed;
        }
        let found = Finder { program, memory: Memory::new(program, &cfg), uses: Uses::new(program) };
        let found: Vec<(Block, Vec<Merged>)> =
            blocks.into_iter().map(|block| (block, found.in_block(block))).collect();
        if found.iter().all(|(_, merged)| merged.is_empty()) {
            return changed;
        }
        changed = true;
        for (block, merged) in found {
            apply(program, block, merged);
        }
    }
}

/// The stores of a block that could be halves of wider ones, by their positions.
fn stores(program: &Program, block: Block) -> impl Iterator<Item = (usize, Inst)> {
    program.blocks[block].insts.iter().copied().enumerate().filter(
        |&(_, inst)| matches!(program.insts[inst].data, InstData::Store { size, .. } if size != Size::B8),
    )
}

struct Finder<'p> {
    program: &'p Program,
    memory: Memory<'p>,
    uses: Uses,
}

impl Finder<'_> {
    /// Pairs of stores that can become one, no instruction in two of them.
    fn in_block(&self, block: Block) -> Vec<Merged> {
        let insts = &self.program.blocks[block].insts;
        let mut pieces: Vec<Piece> =
            stores(self.program, block).filter_map(|(at, inst)| self.piece(insts, at, inst)).collect();
        pieces.sort_by_key(|piece| (piece.size, piece.to, piece.store));
        let mut found = Vec::new();
        let mut at = 0;
        while let Some([low, high]) = pieces.get(at..at + 2) {
            let merged = self.merged(insts, low, high);
            at += if merged.is_some() { 2 } else { 1 };
            found.extend(merged);
        }
        found
    }

    fn piece(&self, insts: &[Inst], store: usize, inst: Inst) -> Option<Piece> {
        let InstData::Store { size, ptr, offset, value } = self.program.insts[inst].data else { return None };
        let what = match *self.program.def(value)? {
            InstData::Const(constant) => What::Constant(constant & size.mask()),
            InstData::Load { size: loaded, ptr, offset } if loaded == size && self.uses.count(value) == 1 => {
                let load = insts[..store]
                    .iter()
                    .rposition(|&inst| self.program.insts[inst].result == Some(value))?;
                What::Loaded { load, from: (ptr, offset) }
            }
            _ => return None,
        };
        Some(Piece { store, size, to: (ptr, offset), what })
    }

    /// What two stores become.
    fn merged(&self, insts: &[Inst], low: &Piece, high: &Piece) -> Option<Merged> {
        let step = low.size.bytes() as i32;
        let follows = |a: (Value, i32), b: (Value, i32)| a.0 == b.0 && a.1.checked_add(step) == Some(b.1);
        if low.size != high.size || !follows(low.to, high.to) {
            return None;
        }
        let size = Size::from_bytes(low.size.bytes() * 2)?;
        let what = match (low.what, high.what) {
            (What::Constant(a), What::Constant(b)) => Wide::Constant(joined(low.size, a, b)),
            (What::Loaded { from: a, .. }, What::Loaded { from: b, .. }) => {
                follows(a, b).then_some(Wide::Loaded(a))?
            }
            (What::Loaded { from, .. }, What::Constant(c)) => {
                let beside = (from.0, from.1.checked_add(step)?);
                self.is_column(beside, step, low.size, c).then_some(Wide::Loaded(from))?
            }
            (What::Constant(c), What::Loaded { from, .. }) => {
                let beside = (from.0, from.1.checked_sub(step)?);
                self.is_column(beside, -step, low.size, c).then_some(Wide::Loaded(beside))?
            }
        };
        // A wider immediate than an instruction holds would cost what it saves.
        if matches!(what, Wide::Constant(c) if i32::try_from(c as i64).is_err() && size == Size::B8) {
            return None;
        }
        let mut instead: Vec<usize> = low.positions().chain(high.positions()).collect();
        instead.sort_unstable();
        let merged = Merged { size, to: low.to, what, instead };
        self.is_undisturbed(insts, &merged).then_some(merged)
    }

    /// Whether the `size` bytes at an address, which lie `distance` bytes behind bytes that are read there anyway, are
    /// in the same object of constant data and hold this constant, whichever row is read.
    fn is_column(&self, from: (Value, i32), distance: i32, size: Size, constant: u64) -> bool {
        let len = size.bytes() as usize;
        let place = self.memory.place(from.0, from.1.wrapping_sub(distance), size.bytes());
        let Some(Object::Data(data)) = place.pointer.map(|p| p.object) else { return false };
        let object = &self.program.data[data];
        if object.kind != DataKind::Const {
            return false;
        }
        let bytes = constant.to_ne_bytes();
        let expected = if cfg!(target_endian = "little") { &bytes[..len] } else { &bytes[8 - len..] };
        let holds = |read: i64| {
            let start = usize::try_from(read + i64::from(distance)).ok();
            start.and_then(|start| object.bytes.get(start..start + len)) == Some(expected)
        };
        match place.pointer.map(|p| p.offset) {
            Some(Offset::Exact(at)) => holds(at),
            Some(Offset::Row(at)) => {
                let end = object.bytes.len().saturating_sub(len) as i64;
                (at..=end).step_by(object.stride as usize).all(holds)
            }
            _ => false,
        }
    }

    /// Whether nothing between the instructions of two stores minds that they become one, at the last of them.
    fn is_undisturbed(&self, insts: &[Inst], merged: &Merged) -> bool {
        let place = |(ptr, offset)| self.memory.place(ptr, offset, merged.size.bytes());
        let target = place(merged.to);
        let source = match merged.what {
            Wide::Loaded(from) => Some(place(from)),
            Wide::Constant(_) => None,
        };
        let apart = |place: &Place, other: &Place| !self.memory.may_alias(place, other);
        let fits = |place: &Place| self.memory.is_private(place) && self.memory.is_one_access(place);
        if !fits(&target) || source.is_some_and(|s| !fits(&s) || !apart(&s, &target)) {
            return false;
        }
        let (Some(&first), Some(&last)) = (merged.instead.first(), merged.instead.last()) else {
            return false;
        };
        (first..=last).filter(|at| !merged.instead.contains(at)).all(|at| {
            let data = &self.program.insts[insts[at]].data;
            match (data, self.memory.access(insts[at])) {
                (InstData::Load { .. }, Some(place)) => apart(&place, &target),
                (InstData::Store { .. }, Some(place)) => {
                    apart(&place, &target) && source.is_none_or(|source| apart(&place, &source))
                }
                _ => data.effects(self.program).is_empty() || matches!(data, InstData::CtxLoad { .. }),
            }
        })
    }
}

/// Two constants of `size` in neighbouring bytes as one.
fn joined(size: Size, low: u64, high: u64) -> u64 {
    let bits = size.bytes() * 8;
    if cfg!(target_endian = "little") { low | high << bits } else { high | low << bits }
}

/// Puts merged stores in the place of those that they stand for.
///
/// All at once is as good as one after the other: two accesses change their order only if one of them lay between
/// the instructions of the other's pair, and those that lie there do not mind.
fn apply(program: &mut Program, block: Block, merged: Vec<Merged>) {
    let gone: HashSet<usize> = merged.iter().flat_map(|m| m.instead.iter().copied()).collect();
    let mut made: HashMap<usize, Merged> =
        merged.into_iter().filter_map(|m| Some((*m.instead.last()?, m))).collect();
    for (at, inst) in std::mem::take(&mut program.blocks[block].insts).into_iter().enumerate() {
        let Some(Merged { size, to, what, .. }) = made.remove(&at) else {
            if !gone.contains(&at) {
                program.blocks[block].insts.push(inst);
            }
            continue;
        };
        let origin = program.insts[inst].origin;
        let data = match what {
            Wide::Constant(constant) => InstData::Const(constant),
            Wide::Loaded((ptr, offset)) => InstData::Load { size, ptr, offset },
        };
        let source = program.new_inst(data, origin);
        let value = program.insts[source].result.expect("constants and loads have results");
        let store = program.new_inst(InstData::Store { size, ptr: to.0, offset: to.1, value }, origin);
        program.blocks[block].insts.extend([source, store]);
    }
}
