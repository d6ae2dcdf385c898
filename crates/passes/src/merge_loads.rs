//! Merges loads of neighbouring bytes that are put together again into wider ones.
//!
//! Where a packed field is read, compilers load its bytes one by one and put them together by shifts and ors. One load
//! does the same; and one load with a byte swap, where the bytes stand in the other order.
//!
//! Example: `v1 = load.8 v0+12; v2 = load.8 v0+13; v3 = shl v2, 8; v4 = or v3, v1` becomes `v4 = load.16 v0+12`.
//!
//! All bytes are loaded in the block of the `or`, and nothing writes them between the first of these loads and the `or`,
//! where the wide load will stand. Only memory that nobody else changes is read so, and slots only
//! where the wide load is aligned.
//!
//! Uses: provenance, aliases, use counts. Invalidates: def-use lists.

use runnel_analysis::{Memory, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{BinaryOp, Block, Inst, InstData, Program, Size, UnaryOp, Value, ValueDef, Width};

/// Merges loads in `program`; says whether there were any to merge.
pub fn merge_loads(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let mut found = Vec::new();
    let mut finder = None;
    for &block in cfg.order() {
        for (at, &root) in program.blocks[block].insts.iter().enumerate() {
            if let InstData::Binary { op: BinaryOp::Or, .. } = program.insts[root].data {
                let finder = finder.get_or_insert_with(|| Finder {
                    program,
                    memory: Memory::new(program, &cfg),
                    uses: Uses::new(program),
                });
                found.extend(finder.merged(block, at, root));
            }
        }
    }
    let changed = !found.is_empty();
    for Merged { block, root, load, swap } in found {
        let Some(swap) = swap else {
            program.insts[root].data = load;
            continue;
        };
        let origin = program.insts[root].origin;
        let load = program.new_inst(load, origin);
        let arg = program.insts[load].result.expect("a load has a result");
        program.insts[root].data = InstData::Unary { op: swap, arg };
        let insts = &mut program.blocks[block].insts;
        let at = insts.iter().position(|&inst| inst == root).expect("the instruction stands in its block");
        insts.insert(at, load);
    }
    changed
}

/// A load to stand in the place of an `or`, with a byte swap behind it if one is needed.
struct Merged {
    block: Block,
    root: Inst,
    load: InstData,
    swap: Option<UnaryOp>,
}

/// A load whose value goes into an `or`, so many bits up.
#[derive(Clone, Copy)]
struct Part {
    inst: Inst,
    size: Size,
    ptr: Value,
    offset: i32,
    up: u32,
}

struct Finder<'p> {
    program: &'p Program,
    memory: Memory<'p>,
    uses: Uses,
}

impl Finder<'_> {
    /// What the `or` at position `at` of a block becomes.
    fn merged(&self, block: Block, at: usize, root: Inst) -> Option<Merged> {
        let mut parts = Vec::new();
        let InstData::Binary { width, lhs, rhs, .. } = self.program.insts[root].data else { return None };
        self.collect(lhs, 0, width, &mut parts)?;
        self.collect(rhs, 0, width, &mut parts)?;
        parts.sort_by_key(|part| part.up);
        let bits = |part: &Part| part.size.bytes() * 8;
        let whole = Size::from_bytes(parts.iter().map(bits).sum::<u32>() / 8)?;
        let first = *parts.first()?;
        let follow = |next: fn(&Part, &Part) -> bool| {
            first.up == 0 && parts.windows(2).all(|p| p[0].up + bits(&p[0]) == p[1].up && next(&p[0], &p[1]))
        };
        let behind = |a: &Part, b: &Part| {
            a.ptr == b.ptr && a.offset.checked_add(a.size.bytes() as i32) == Some(b.offset)
        };
        let is_bytes = parts.iter().all(|part| part.size == Size::B1);
        let (offset, in_order) = if follow(behind) {
            (first.offset, cfg!(target_endian = "little"))
        } else if follow(|a, b| {
            a.ptr == b.ptr && b.offset.checked_add(b.size.bytes() as i32) == Some(a.offset)
        }) {
            (parts.last()?.offset, cfg!(target_endian = "big"))
        } else {
            return None;
        };
        let swap = match (in_order, whole) {
            (true, _) => None,
            (false, Size::B2) if is_bytes => Some(UnaryOp::Bswap16),
            (false, Size::B4) if is_bytes => Some(UnaryOp::Bswap32),
            (false, Size::B8) if is_bytes => Some(UnaryOp::Bswap64),
            _ => return None,
        };
        self.is_undisturbed(block, at, &parts, offset, whole).then_some(Merged {
            block,
            root,
            load: InstData::Load { size: whole, ptr: first.ptr, offset },
            swap,
        })
    }

    /// The loads that `value`, shifted up by so many bits, is put together from, if nothing else is in it and nobody
    /// else uses what is between.
    fn collect(&self, value: Value, up: u32, width: Width, parts: &mut Vec<Part>) -> Option<()> {
        if self.uses.count(value) != 1 {
            return None;
        }
        let ValueDef::Inst(inst) = self.program.values[value] else { return None };
        match self.program.insts[inst].data {
            InstData::Load { size, ptr, offset } => {
                let fits = up + size.bytes() * 8 <= width.bits();
                fits.then(|| parts.push(Part { inst, size, ptr, offset, up }))
            }
            InstData::Binary { op: BinaryOp::Or, width: inner, lhs, rhs } => {
                let width = narrower(width, inner);
                self.collect(lhs, up, width, parts)?;
                self.collect(rhs, up, width, parts)
            }
            InstData::Binary { op: BinaryOp::Shl, width: inner, lhs, rhs } => {
                let amount = u32::try_from(self.program.as_const(rhs)?).ok().filter(|&n| n < inner.bits())?;
                self.collect(lhs, up + amount, narrower(width, inner), parts)
            }
            _ => None,
        }
    }

    /// Whether the bytes stay as they are from the first load to the `or`.
    fn is_undisturbed(&self, block: Block, at: usize, parts: &[Part], offset: i32, size: Size) -> bool {
        let insts = &self.program.blocks[block].insts[..at];
        let Some(ptr) = parts.first().map(|part| part.ptr) else { return false };
        let place = self.memory.place(ptr, offset, size.bytes());
        let first = insts.iter().position(|inst| parts.iter().any(|part| part.inst == *inst));
        let all = parts.iter().all(|part| insts.contains(&part.inst));
        all && self.memory.is_private(&place)
            && self.memory.is_one_access(&place)
            && first.is_some_and(|first| insts[first..].iter().all(|&i| !self.memory.may_change(i, &place)))
    }
}

/// The narrower of two widths: bits beyond it are cut off on the way.
fn narrower(a: Width, b: Width) -> Width {
    if a == Width::W32 || b == Width::W32 { Width::W32 } else { Width::W64 }
}
