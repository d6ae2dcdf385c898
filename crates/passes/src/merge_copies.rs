//! Merges copies of neighbouring bytes into wider ones.
//!
//! Compilers copy a packed structure, such as a hardware address, byte by byte where its alignment is not known.
//! Where the value of a load goes nowhere but into a store of the same size, and next to it the same happens with the
//! bytes that follow on both sides, one load and one store of twice the size do the same. Repeated, this gives
//! copies of two, four and eight bytes.
//!
//! Example: `v1 = load.8 v0; store.8 v9+6, v1; v2 = load.8 v0+1; store.8 v9+7, v2` becomes
//! `v3 = load.16 v0; store.16 v9+6, v3`.
//!
//! Both halves stand in one block, and between the first load and the last store nothing else may touch what is
//! written, or change what is read; the wide access stands where the last store stood, so that whatever proved the
//! halves to be in bounds stands before it. Only memory that nobody else changes is read so: of a table's value, bytes
//! written meanwhile by others must not be seen in an order of our making.
//!
//! Uses: provenance, aliases, use counts. Invalidates: def-use lists. The idea is that of superword-level parallelism
//! (Larsen and Amarasinghe, PLDI 2000), for copies alone.

use std::collections::HashSet;

use runnel_analysis::{Memory, Place, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Inst, InstData, Program, Size, Value, ValueDef};

/// A load whose value goes into one store and nowhere else.
#[derive(Clone, Copy)]
struct Copy {
    load: usize,
    store: usize,
    size: Size,
    from: (Value, i32),
    to: (Value, i32),
}

/// Merges copies in `program`; says whether there were any to merge.
pub fn merge_copies(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let mut changed = false;
    for &block in cfg.order() {
        // Most blocks copy nothing, and those need no analysis.
        while candidates(program, block).len() > 1 {
            let Some((low, high)) = find(program, &cfg, block) else { break };
            merge(program, block, low, high);
            changed = true;
        }
    }
    changed
}

/// The copies of a block, by what their instructions look like.
fn candidates(program: &Program, block: Block) -> Vec<Copy> {
    let insts = &program.blocks[block].insts;
    let mut found = Vec::new();
    for (store, &inst) in insts.iter().enumerate() {
        let InstData::Store { size, ptr, offset, value } = program.insts[inst].data else { continue };
        let ValueDef::Inst(def) = program.values[value] else { continue };
        let InstData::Load { size: loaded, ptr: source, offset: at } = program.insts[def].data else {
            continue;
        };
        let Some(load) = insts[..store].iter().rposition(|&i| i == def) else { continue };
        if loaded == size && size != Size::B8 {
            found.push(Copy { load, store, size, from: (source, at), to: (ptr, offset) });
        }
    }
    found
}

/// Two copies that can become one.
fn find(program: &Program, cfg: &Cfg, block: Block) -> Option<(Copy, Copy)> {
    let memory = Memory::new(program, cfg);
    let uses = Uses::new(program);
    let insts = &program.blocks[block].insts;
    let mut copies = candidates(program, block);
    copies.retain(|c| program.insts[insts[c.load]].result.is_some_and(|v| uses.count(v) == 1));
    copies.sort_by_key(|c| (c.size, c.to.0, c.from.0, c.to.1));
    copies.windows(2).map(|pair| (pair[0], pair[1])).find(|(low, high)| {
        let step = low.size.bytes() as i32;
        let follows = |a: (Value, i32), b: (Value, i32)| a.0 == b.0 && a.1.checked_add(step) == Some(b.1);
        low.size == high.size
            && follows(low.from, high.from)
            && follows(low.to, high.to)
            && is_undisturbed(program, &memory, insts, low, high)
    })
}

/// Whether nothing between the two copies' instructions minds that they become one, at the last of them.
fn is_undisturbed(program: &Program, memory: &Memory<'_>, insts: &[Inst], low: &Copy, high: &Copy) -> bool {
    let both = low.size.bytes() * 2;
    let source = memory.place(low.from.0, low.from.1, both);
    let target = memory.place(low.to.0, low.to.1, both);
    if !memory.is_private(&source) || memory.may_alias(&source, &target) {
        return false;
    }
    let own: HashSet<usize> = [low.load, low.store, high.load, high.store].into();
    let (first, last) = (low.load.min(high.load), low.store.max(high.store));
    (first..=last).filter(|at| !own.contains(at)).all(|at| {
        let data = &program.insts[insts[at]].data;
        let apart = |place: &Place, other: &Place| !memory.may_alias(place, other);
        match (data, memory.access(insts[at])) {
            (InstData::Load { .. }, Some(place)) => apart(&place, &target),
            (InstData::Store { .. }, Some(place)) => apart(&place, &target) && apart(&place, &source),
            _ => data.effects(program).is_empty() || matches!(data, InstData::CtxLoad { .. }),
        }
    })
}

/// Puts one copy of twice the size in the place of two.
fn merge(program: &mut Program, block: Block, low: Copy, high: Copy) {
    let last = low.store.max(high.store);
    let origin = program.insts[program.blocks[block].insts[last]].origin;
    let Some(size) = Size::from_bytes(low.size.bytes() * 2) else { return };
    let load = program.new_inst(InstData::Load { size, ptr: low.from.0, offset: low.from.1 }, origin);
    let Some(value) = program.insts[load].result else { return };
    let store = program.new_inst(InstData::Store { size, ptr: low.to.0, offset: low.to.1, value }, origin);
    let gone: HashSet<usize> = [low.load, low.store, high.load, high.store].into();
    let old = std::mem::take(&mut program.blocks[block].insts);
    for (at, inst) in old.into_iter().enumerate() {
        if at == last {
            program.blocks[block].insts.extend([load, store]);
        } else if !gone.contains(&at) {
            program.blocks[block].insts.push(inst);
        }
    }
}
