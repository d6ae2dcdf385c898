//! Rewrites programs as compilers leave them, so that passes find something to do. What a program does stays the same,
//! and so does that a kernel accepts it.

use runnel_ir::{BinaryOp, DataKind, Inst, InstData, Program, Size, SlotData, Value, Width, verify};

/// Rewrites four programs of five, each in one of the ways below; the rest stay as they were generated.
pub fn rewrite_some(seed: u64, program: &mut Program) {
    match seed % 5 {
        1 => split_offsets(program),
        2 => load_by_copies(program),
        3 => load_in_pieces(program),
        4 => copy_from_columns(program),
        _ => {}
    }
}

/// Instructions that come before another one.
struct Before<'a> {
    program: &'a mut Program,
    insts: &'a mut Vec<Inst>,
}

impl Before<'_> {
    fn make(&mut self, data: InstData) -> Option<Value> {
        let inst = self.program.new_inst(data, None);
        self.insts.push(inst);
        self.program.insts[inst].result
    }

    fn value(&mut self, data: InstData) -> Value {
        self.make(data).expect("the instruction has a result")
    }
}

/// Lets `rewrite` put instructions before each one, and change it.
fn rewrite(program: &mut Program, mut rewrite: impl FnMut(&mut Before<'_>, &mut InstData)) {
    for block in program.layout.clone() {
        let mut insts = Vec::new();
        for inst in std::mem::take(&mut program.blocks[block].insts) {
            let mut data = program.insts[inst].data.clone();
            rewrite(&mut Before { program, insts: &mut insts }, &mut data);
            program.insts[inst].data = data;
            insts.push(inst);
        }
        program.blocks[block].insts = insts;
    }
    debug_assert!(verify(program).is_ok(), "{program}");
}

/// Splits the offsets of accesses in two, one part added to the address, as compilers leave it where an address is
/// used more than once.
pub fn split_offsets(program: &mut Program) {
    rewrite(program, |before, data| {
        if let InstData::Load { ptr, offset, .. }
        | InstData::Store { ptr, offset, .. }
        | InstData::AtomicAdd { ptr, offset, .. } = data
            && *offset % 3 != 0
        {
            let rhs = before.value(InstData::Const((*offset - 7) as u64));
            *ptr = before.value(InstData::Binary { op: BinaryOp::Add, width: Width::W64, lhs: *ptr, rhs });
            *offset = 7;
        }
    });
}

/// Lets every wide load go by way of a stack slot, to which its bytes are copied one by one, as compilers copy what
/// may not be aligned.
pub fn load_by_copies(program: &mut Program) {
    let slot = program.slots.push(SlotData { size: 8 });
    rewrite(program, |before, data| {
        let InstData::Load { size, ptr, offset } = *data else { return };
        if size == Size::B1 {
            return;
        }
        let to = before.value(InstData::SlotAddr { slot, offset: 0 });
        for at in 0..size.bytes() as i32 {
            let value = before.value(InstData::Load { size: Size::B1, ptr, offset: offset + at });
            before.make(InstData::Store { size: Size::B1, ptr: to, offset: at, value });
        }
        *data = InstData::Load { size, ptr: to, offset: 0 };
    });
}

/// Puts what wide loads give together from their bytes, as compilers read packed fields: in the machine's order, or in
/// the other one.
pub fn load_in_pieces(program: &mut Program) {
    rewrite(program, |before, data| {
        let InstData::Load { size, ptr, offset } = *data else { return };
        let count = size.bytes() as i32;
        let swapped = offset % 2 == 1;
        let width = if offset % 4 == 2 && size != Size::B8 { Width::W32 } else { Width::W64 };
        let mut whole = None;
        for at in 0..count {
            let byte = before.value(InstData::Load { size: Size::B1, ptr, offset: offset + at });
            let place = if swapped { count - 1 - at } else { at };
            let rhs = before.value(InstData::Const(place as u64 * 8));
            let part = before.value(InstData::Binary { op: BinaryOp::Shl, width, lhs: byte, rhs });
            let Some(lhs) = whole else {
                whole = Some(part);
                continue;
            };
            let or = InstData::Binary { op: BinaryOp::Or, width, lhs, rhs: part };
            if at == count - 1 {
                *data = or;
            } else {
                whole = Some(before.value(or));
            }
        }
    });
}

/// Makes every other byte of constant rows the same in all rows, and lets wide loads from there go by way of a stack
/// slot: once constants are folded, some of the bytes that are copied are constants.
pub fn copy_from_columns(program: &mut Program) {
    for data in program.data.values_mut().filter(|d| d.kind == DataKind::Const && d.stride > 1) {
        let stride = data.stride as usize;
        for at in (stride..data.bytes.len()).filter(|at| at % 4 != 1) {
            data.bytes[at] = data.bytes[at % stride];
        }
    }
    load_by_copies(program);
}
