//! Replaces loads of what the program itself stored by the value that was stored.
//!
//! A load from a stack slot or the packet whose bytes all come from one earlier store, on every path and
//! unchanged since, takes that store's value: as it is, cut to the load's size, or shifted and cut where the load
//! is narrower than the store. Loads of constant data are [`crate::fold_constants`]'s business.
//!
//! A load wider than the last store to its bytes, in the same block, is put together from that store and an earlier
//! load of the same bytes, where there is one: a processor cannot forward such a load from the store that is still on
//! its way, and would wait for it to reach the cache.
//!
//! Uses: provenance, escapes, available loads and stores. Invalidates: def-use lists.

use runnel_analysis::{Available, Facts, Memory, Place, Point};
use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, Block, Inst, InstData, Program, Size, UnaryOp, Value, Width};

use crate::edit::Replacements;

/// Forwards stored values to loads in `program`; says whether it changed.
pub fn forward_loads(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let forwarded = find(program, &cfg);
    let mut pending = forwarded.iter().peekable();
    let mut replacements = Replacements::default();
    for &block in cfg.order() {
        let mut insts = Vec::new();
        for inst in std::mem::take(&mut program.blocks[block].insts) {
            match pending.next_if(|found| found.load == inst) {
                Some(found) => found.rewrite(program, &mut insts, &mut replacements),
                None => insts.push(inst),
            }
        }
        program.blocks[block].insts = insts;
    }
    replacements.apply(program);
    !forwarded.is_empty()
}

/// A load and what it gives.
struct Forwarded {
    load: Inst,
    size: Size,
    source: Source,
}

/// Where the bytes of a load come from.
enum Source {
    /// All of them from a store, which begins `skipped` bits below them.
    Store { stored: Value, skipped: u32 },
    /// From an earlier load of the same bytes, except for those that a store of `size`, `up` bits above the lowest, has
    /// replaced since.
    Patched { loaded: Value, stored: Value, size: Size, up: u32 },
}

/// The loads to be replaced, in the order of the blocks.
fn find(program: &Program, cfg: &Cfg) -> Vec<Forwarded> {
    let memory = Memory::new(program, cfg);
    let stores = Available::new(program, cfg, &memory, Facts::Stores);
    let mut loads = None;
    let mut found = Vec::new();
    for &block in cfg.order() {
        let mut point = stores.at_entry(block);
        for (at, &inst) in program.blocks[block].insts.iter().enumerate() {
            if let InstData::Load { size, .. } = program.insts[inst].data
                && let Some(place) = memory.access(inst).filter(|place| memory.is_private(place))
            {
                let source = covering_store(program, &point, size, &place).or_else(|| {
                    let patch = patch(program, &memory, block, at, &place)?;
                    let loads = loads.get_or_insert_with(|| {
                        Available::new(program, cfg, &memory, Facts::LoadsBetweenCalls)
                    });
                    patched(program, loads, block, patch, &place)
                });
                found.extend(source.map(|source| Forwarded { load: inst, size, source }));
            }
            point.pass(inst);
        }
    }
    found
}

/// By how many bits a value of `size` at byte `distance` of one of `whole` lies above the lowest bit of the latter.
fn shift(distance: u32, size: Size, whole: Size) -> u32 {
    let bytes =
        if cfg!(target_endian = "little") { distance } else { whole.bytes() - distance - size.bytes() };
    bytes * 8
}

/// The store that all bytes of a load come from.
fn covering_store(program: &Program, point: &Point<'_>, size: Size, place: &Place) -> Option<Source> {
    point.facts().find_map(|(store, stored_to)| {
        let distance = u32::try_from(stored_to.distance(place)?).ok()?;
        let InstData::Store { size: whole, value: stored, .. } = program.insts[store].data else {
            return None;
        };
        let covered = distance.checked_add(size.bytes())? <= whole.bytes();
        covered.then(|| Source::Store { stored, skipped: shift(distance, size, whole) })
    })
}

/// A store to some of the bytes of a load: its position in the block, and how far it begins behind them.
#[derive(Clone, Copy)]
struct Patch {
    store: usize,
    distance: u32,
}

/// The last change of the bytes that instruction `at` of a block loads, if that is a store to some of them.
fn patch(program: &Program, memory: &Memory<'_>, block: Block, at: usize, place: &Place) -> Option<Patch> {
    let insts = &program.blocks[block].insts;
    let store = insts[..at].iter().rposition(|&inst| memory.may_change(inst, place))?;
    let InstData::Store { size, .. } = program.insts[insts[store]].data else { return None };
    let distance = u32::try_from(place.distance(&memory.access(insts[store])?)?).ok()?;
    let inside = distance.checked_add(size.bytes())? <= place.size;
    (inside && size.bytes() < place.size).then_some(Patch { store, distance })
}

/// What the bytes of a load are, if they were loaded before the store.
fn patched(
    program: &Program,
    loads: &Available,
    block: Block,
    patch: Patch,
    place: &Place,
) -> Option<Source> {
    let insts = &program.blocks[block].insts;
    let InstData::Store { size, value: stored, .. } = program.insts[insts[patch.store]].data else {
        return None;
    };
    let mut point = loads.at_entry(block);
    insts[..patch.store].iter().for_each(|&inst| point.pass(inst));
    let same = |(_, read): &(Inst, Place)| read.size == place.size && read.distance(place) == Some(0);
    let (load, _) = point.facts().find(same)?;
    let InstData::Load { size: whole, .. } = program.insts[load].data else { return None };
    let loaded = program.insts[load].result?;
    Some(Source::Patched { loaded, stored, size, up: shift(patch.distance, size, whole) })
}

/// Instructions in the making.
struct Maker<'a> {
    program: &'a mut Program,
    insts: &'a mut Vec<Inst>,
}

impl Maker<'_> {
    fn make(&mut self, data: InstData) -> Value {
        let inst = self.program.new_inst(data, None);
        self.insts.push(inst);
        self.program.insts[inst].result.expect("arithmetic has results")
    }

    fn with_constant(&mut self, op: BinaryOp, lhs: Value, constant: u64) -> Value {
        let rhs = self.make(InstData::Const(constant));
        self.make(InstData::Binary { op, width: Width::W64, lhs, rhs })
    }

    /// The lowest bits of a value; as a last instruction, which is not made yet.
    fn cut(&mut self, value: Value, size: Size) -> InstData {
        match size {
            Size::B4 => InstData::Unary { op: UnaryOp::Zext32, arg: value },
            _ => {
                let rhs = self.make(InstData::Const(size.mask()));
                InstData::Binary { op: BinaryOp::And, width: Width::W64, lhs: value, rhs }
            }
        }
    }
}

impl Forwarded {
    /// Writes what takes the load's place behind `insts`.
    fn rewrite(&self, program: &mut Program, insts: &mut Vec<Inst>, replacements: &mut Replacements) {
        let mut maker = Maker { program, insts };
        let data = match self.source {
            Source::Store { stored, skipped } => {
                let value = match skipped {
                    0 => stored,
                    _ => maker.with_constant(BinaryOp::Lshr, stored, u64::from(skipped)),
                };
                if self.size == Size::B8 {
                    if let Some(result) = maker.program.insts[self.load].result {
                        replacements.replace(result, value);
                    }
                    return;
                }
                maker.cut(value, self.size)
            }
            Source::Patched { loaded, stored, size, up } => {
                let lhs = maker.with_constant(BinaryOp::And, loaded, self.size.mask() & !(size.mask() << up));
                let part = maker.cut(stored, size);
                let part = maker.make(part);
                let rhs = match up {
                    0 => part,
                    _ => maker.with_constant(BinaryOp::Shl, part, u64::from(up)),
                };
                InstData::Binary { op: BinaryOp::Or, width: Width::W64, lhs, rhs }
            }
        };
        program.insts[self.load].data = data;
        insts.push(self.load);
    }
}
