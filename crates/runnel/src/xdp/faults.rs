//! Ways for an optimized program to be wrong, seeded on purpose: so that the checker is checked.
//!
//! Each function makes one mistake that an analysis, a table compiler, a transformation or a code generator could make,
//! in what a version is made for ([`Plan`]), in the specialized IR, or in the bytecode. It says whether it found a place
//! for it. A checker is worth its name if it notices every one of them, and nothing where there is none.

use runnel_bpf::insn::{self, Insn};
use runnel_engine::specialize::{Specialized, TableState};
use runnel_ir::{
    BinaryOp, Block, Builder, Cond, Data, DataKind, Inst, InstData, Program, Terminator, Value, Width,
};
use runnel_tables::Contents;

use super::version::Plan;

/// What an address of a store is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// The first byte of the packet.
    Packet,
    /// Somewhere in the packet that is not known beforehand: behind a header of variable length.
    Header,
    /// The value of a table.
    Table,
}

/// The contents of a table that a version is going to be made for.
pub fn contents<'p>(plan: &'p mut Plan, name: &str) -> Option<&'p mut Contents> {
    let table = plan.ir.tables.iter().find(|(_, data)| data.name == name).map(|(table, _)| table)?;
    match &mut plan.tables[table] {
        Some(TableState::Known(contents)) => Some(contents),
        _ => None,
    }
}

/// Takes the guard out: the version runs whatever the epoch is.
pub fn skip_guard(specialized: &mut Specialized) -> bool {
    let entry = specialized.program.entry();
    decide(&mut specialized.program, entry, true)
}

/// Makes a branch go one way always.
pub fn decide(program: &mut Program, block: Block, holds: bool) -> bool {
    let Terminator::Branch { then, other, .. } = program.blocks[block].terminator.clone() else {
        return false;
    };
    program.blocks[block].terminator = Terminator::Jump(if holds { then } else { other });
    true
}

/// Leaves out the store to byte `offset` from a base.
pub fn lose_store(program: &mut Program, base: Base, offset: i32) -> bool {
    let Some((block, inst)) = find_store(program, base, offset) else { return false };
    program.blocks[block].insts.retain(|&i| i != inst);
    true
}

/// Stores other bits to byte `offset` from a base: those of `bits` are flipped.
pub fn disturb_store(program: &mut Program, base: Base, offset: i32, bits: u64) -> bool {
    let Some((block, inst)) = find_store(program, base, offset) else { return false };
    let InstData::Store { value, .. } = program.insts[inst].data else { return false };
    let Some(wrong) = insert(program, block, inst, |b| b.binary_imm(BinaryOp::Xor, Width::W64, value, bits))
    else {
        return false;
    };
    if let InstData::Store { value, .. } = &mut program.insts[inst].data {
        *value = wrong;
    }
    true
}

/// Exchanges two stretches of the packet of `length` bytes: what belongs to one is stored to the other.
pub fn swap_stores(program: &mut Program, first: i32, second: i32, length: i32) -> bool {
    let mut moved = 0;
    let moves = |offset: i32| match offset {
        o if (first..first + length).contains(&o) => o - first + second,
        o if (second..second + length).contains(&o) => o - second + first,
        o => o,
    };
    for (_, inst) in stores(program) {
        if base_of(program, inst) != Some(Base::Packet) {
            continue;
        }
        if let InstData::Store { offset, .. } = &mut program.insts[inst].data {
            moved += u32::from(moves(*offset) != *offset);
            *offset = moves(*offset);
        }
    }
    moved > 1
}

/// Adds `by` to an argument of every call of a function.
pub fn change_argument(program: &mut Program, callee: &str, argument: usize, by: u64) -> bool {
    let is_it = |inst: &Inst| match &program.insts[*inst].data {
        InstData::Call { callee: called, .. } => program.callees[*called].name == callee,
        _ => false,
    };
    let found: Vec<(Block, Inst)> = all(program).filter(|(_, inst)| is_it(inst)).collect();
    for &(block, inst) in &found {
        let InstData::Call { args, .. } = &program.insts[inst].data else { continue };
        let Some(&right) = args.get(argument) else { return false };
        let wrong = insert(program, block, inst, |b| b.binary_imm(BinaryOp::Add, Width::W64, right, by));
        if let (Some(wrong), InstData::Call { args, .. }) = (wrong, &mut program.insts[inst].data) {
            args[argument] = wrong;
        }
    }
    !found.is_empty()
}

/// Makes every comparison of a value with the constant `from` one with `to`.
pub fn change_compared(program: &mut Program, from: u64, to: u64) -> bool {
    let mut changed = false;
    for block in program.layout.clone() {
        let Terminator::Branch { rhs, .. } = program.blocks[block].terminator else { continue };
        if program.as_const(rhs) != Some(from) {
            continue;
        }
        let wrong = Builder::at(program, block).iconst(to);
        if let Terminator::Branch { rhs, .. } = &mut program.blocks[block].terminator {
            *rhs = wrong;
            changed = true;
        }
    }
    changed
}

/// Compares only the bits of `mask` wherever a value is compared with the constant `key` for equality.
pub fn truncate_comparison(program: &mut Program, key: u64, mask: u64) -> bool {
    let mut changed = false;
    for block in program.layout.clone() {
        let Terminator::Branch { cond: Cond::Eq | Cond::Ne, width, lhs, rhs, .. } =
            program.blocks[block].terminator
        else {
            continue;
        };
        if program.as_const(rhs).map(|c| width.truncate(c)) != Some(width.truncate(key)) {
            continue;
        }
        let mut b = Builder::at(program, block);
        let (left, right) = (b.binary_imm(BinaryOp::And, Width::W64, lhs, mask), b.iconst(key & mask));
        if let Terminator::Branch { lhs, rhs, .. } = &mut program.blocks[block].terminator {
            (*lhs, *rhs) = (left, right);
            changed = true;
        }
    }
    changed
}

/// Changes a data object of the version.
pub fn change_data(
    specialized: &mut Specialized,
    name: &str,
    change: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let objects = specialized.program.data.iter();
    let mut named = objects.filter(|(_, o)| o.kind == DataKind::Const && o.name.starts_with(name));
    let found: Option<Data> = named.next().map(|(data, _)| data);
    found.is_some_and(|data| change(&mut specialized.program.data[data].bytes))
}

/// Leaves out the first swap of two bytes.
pub fn lose_byte_swap(code: &mut [Insn]) -> bool {
    let swap = |i: &&mut Insn| i.class() == insn::ALU && i.op() == insn::END && i.imm == 16 && i.is_reg();
    // To little-endian, which it is already: nothing but the zero extension is left.
    code.iter_mut().find(swap).map(|i| i.code &= !insn::X).is_some()
}

/// Makes the first comparison `<` with the immediate `with` a `<=`.
pub fn blur_comparison(code: &mut [Insn], with: i32) -> bool {
    let compares =
        |i: &&mut Insn| i.class() == insn::JMP && i.op() == insn::JLT && !i.is_reg() && i.imm == with;
    code.iter_mut().find(compares).map(|i| i.code = insn::JMP | insn::JLE).is_some()
}

fn all(program: &Program) -> impl Iterator<Item = (Block, Inst)> {
    program
        .layout
        .iter()
        .flat_map(|&block| program.blocks[block].insts.iter().map(move |&inst| (block, inst)))
}

fn stores(program: &Program) -> Vec<(Block, Inst)> {
    all(program).filter(|(_, inst)| matches!(program.insts[*inst].data, InstData::Store { .. })).collect()
}

fn find_store(program: &Program, base: Base, byte: i32) -> Option<(Block, Inst)> {
    stores(program).into_iter().find(|&(_, inst)| {
        let InstData::Store { size, offset, .. } = program.insts[inst].data else { return false };
        base_of(program, inst) == Some(base) && (offset..offset + size.bytes() as i32).contains(&byte)
    })
}

/// What a store is relative to. Addresses have been folded, so that what is constant is in the offset.
fn base_of(program: &Program, inst: Inst) -> Option<Base> {
    let InstData::Store { ptr, .. } = program.insts[inst].data else { return None };
    match program.def(ptr) {
        Some(InstData::CtxLoad { .. }) => Some(Base::Packet),
        Some(InstData::Lookup { .. }) => Some(Base::Table),
        Some(InstData::SlotAddr { .. } | InstData::DataAddr { .. } | InstData::TableValue { .. }) => None,
        _ => Some(Base::Header),
    }
}

/// Writes an instruction before another in its block.
fn insert(
    program: &mut Program,
    block: Block,
    before: Inst,
    write: impl FnOnce(&mut Builder<'_>) -> Value,
) -> Option<Value> {
    let place = program.blocks[block].insts.iter().position(|&inst| inst == before)?;
    let behind = program.blocks[block].insts.split_off(place);
    let value = write(&mut Builder::at(program, block));
    program.blocks[block].insts.extend(behind);
    Some(value)
}
