//! Chooses instructions: IR over values becomes eBPF over virtual registers.

use regalloc2::{Operand, PReg, PRegSet, RegClass, VReg};
use runnel_ir::{
    BinaryOp, Block, Cond, EntityRef, InstData, Key, Program, SecondaryMap, Size, Table, Terminator, UnaryOp,
    Value, Width,
};
use smallvec::{SmallVec, smallvec};

use super::{Layout, LowerError};
use crate::helpers;
use crate::insn;

/// Second operand of arithmetic, comparisons and stores: a register operand of the instruction, or an immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rhs {
    /// The instruction's next register operand.
    Reg,
    /// An immediate.
    Imm(i32),
}

/// What a machine instruction does. Register operands stand in [`MachineInst::operands`], in the order named here.
#[derive(Clone, Debug)]
pub enum Op {
    /// Defines the context, which comes in r1.
    Start,
    /// def = constant.
    Const(u64),
    /// def = map.
    Map(u32),
    /// def = address in a map's value.
    MapValue(u32, u32),
    /// def = frame pointer + offset.
    FrameAddr(i32),
    /// def = low half of the use.
    Move32,
    /// def (same register as the first use) = arithmetic with class and operation bits `code`, `off` 1 if signed.
    Alu(u8, i16, Rhs),
    /// def (same register as the use) = byte swap of so many bits.
    Swap(i32),
    /// def (same register as the use) = -use, in a class.
    Neg(u8),
    /// def = memory at use + offset.
    Load(Size, i16),
    /// memory at use + offset = rhs.
    Store(Size, i16, Rhs),
    /// memory at use + offset += second use, atomically.
    AtomicAdd(Size, i16),
    /// def = memory at frame pointer + offset.
    LoadFrame(Size, i16),
    /// memory at frame pointer + offset = rhs.
    StoreFrame(Size, i16, Rhs),
    /// r0 = helper(r1, …).
    Call(u32),
    /// Ends the block: to the first successor if the comparison holds, else to the second.
    Branch(Cond, Width, Rhs),
    /// Ends the block: to its successor.
    Jump,
    /// Ends the program.
    Return,
    /// Goes on with the original's code, which stands behind the program, with the context in r1.
    Original,
}

/// An instruction over virtual registers.
#[derive(Clone, Debug)]
pub struct MachineInst {
    /// What it does.
    pub op: Op,
    /// Its register operands.
    pub operands: SmallVec<[Operand; 6]>,
    /// Registers that it destroys.
    pub clobbers: PRegSet,
    /// Where the IR instruction came from.
    pub origin: Option<u32>,
}

/// A block of machine instructions.
#[derive(Clone, Debug, Default)]
pub struct MachineBlock {
    /// Its instructions, as a range of [`Code::insts`].
    pub range: (usize, usize),
    /// Blocks that may follow.
    pub succs: Vec<regalloc2::Block>,
    /// Blocks that may come before.
    pub preds: Vec<regalloc2::Block>,
    /// Registers that take the values handed over.
    pub params: Vec<VReg>,
    /// Registers handed over to the only successor.
    pub args: Vec<VReg>,
}

/// A program over virtual registers, blocks in the order in which they will be emitted.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// All instructions.
    pub insts: Vec<MachineInst>,
    /// All blocks.
    pub blocks: Vec<MachineBlock>,
    /// How many virtual registers there are.
    pub vregs: usize,
    /// Bytes of the frame used by slots and key buffers; spilled registers go below.
    pub frame: u32,
}

/// The physical register with number `r`.
pub fn preg(r: usize) -> PReg {
    PReg::new(r, RegClass::Int)
}

/// Chooses instructions for a program whose edges are split.
pub fn select(program: &Program, layout: &Layout<'_>) -> Result<Code> {
    let mut slots = Vec::new();
    let mut frame = 0;
    for slot in program.slots.values() {
        frame += slot.size.next_multiple_of(8);
        slots.push(-i64::from(frame));
    }
    let key = program.insts_in_layout().filter_map(|data| match data {
        InstData::Lookup { table, key }
        | InstData::Update { table, key, .. }
        | InstData::Delete { table, key } => {
            Some((key_shift(key) + program.tables[*table].key_size).next_multiple_of(8))
        }
        _ => None,
    });
    frame = frame.saturating_add(key.max().unwrap_or(0));
    if frame > 512 {
        return Err(LowerError::Stack(frame));
    }
    let mut selector = Selector {
        program,
        layout,
        slots: slots.iter().map(|&s| s as i32).collect(),
        key_buffer: -(frame as i32),
        number: SecondaryMap::new(),
        regs: SecondaryMap::new(),
        code: Code { vregs: program.values.len(), frame, ..Code::default() },
        origin: None,
    };
    for (i, &block) in program.layout.iter().enumerate() {
        selector.number[block] = i;
    }
    for (value, _) in &program.values {
        selector.regs[value] = Some(VReg::new(value.index(), RegClass::Int));
    }
    program.layout.iter().try_for_each(|&block| selector.block(block))?;
    let mut code = selector.code;
    for at in 0..code.blocks.len() {
        for succ in code.blocks[at].succs.clone() {
            code.blocks[succ.index()].preds.push(regalloc2::Block::new(at));
        }
    }
    Ok(code)
}

trait InLayout {
    fn insts_in_layout(&self) -> impl Iterator<Item = &InstData>;
}

impl InLayout for Program {
    fn insts_in_layout(&self) -> impl Iterator<Item = &InstData> {
        self.layout.iter().flat_map(|&b| &self.blocks[b].insts).map(|&i| &self.insts[i].data)
    }
}

struct Selector<'a> {
    program: &'a Program,
    layout: &'a Layout<'a>,
    slots: Vec<i32>,
    key_buffer: i32,
    number: SecondaryMap<Block, usize>,
    regs: SecondaryMap<Value, Option<VReg>>,
    code: Code,
    origin: Option<u32>,
}

type Result<T> = std::result::Result<T, LowerError>;

impl Selector<'_> {
    fn push(&mut self, op: Op, operands: SmallVec<[Operand; 6]>) {
        self.push_clobbering(op, operands, PRegSet::empty());
    }

    fn push_clobbering(&mut self, op: Op, operands: SmallVec<[Operand; 6]>, clobbers: PRegSet) {
        self.code.insts.push(MachineInst { op, operands, clobbers, origin: self.origin });
    }

    fn temp(&mut self) -> VReg {
        self.code.vregs += 1;
        VReg::new(self.code.vregs - 1, RegClass::Int)
    }

    /// The register that an instruction's result goes to.
    fn def(&self, value: Value) -> VReg {
        self.regs[value].unwrap_or(VReg::new(value.index(), RegClass::Int))
    }

    /// The register that holds `value`; what is materialized at each use gets a fresh one.
    fn reg(&mut self, value: Value) -> Result<VReg> {
        let op = match self.program.def(value) {
            Some(InstData::Const(c)) => Op::Const(*c),
            Some(InstData::TableRef(table)) => Op::Map(self.layout.map_of(*table)),
            Some(InstData::TableValue { table, offset }) => Op::MapValue(self.layout.map_of(*table), *offset),
            Some(InstData::DataAddr { data, offset }) => {
                let place = self.layout.data.get(data.index()).ok_or(LowerError::Place(*data))?;
                Op::MapValue(place.map, place.offset + offset)
            }
            Some(InstData::SlotAddr { slot, offset }) => {
                Op::FrameAddr(self.slots[slot.index()] + *offset as i32)
            }
            _ => return Ok(self.def(value)),
        };
        let temp = self.temp();
        self.push(op, smallvec![Operand::reg_def(temp)]);
        Ok(temp)
    }

    /// The value as an immediate for an operation of `width`, or a register that holds it.
    fn rhs(&mut self, value: Value, width: Width) -> Result<(Rhs, Option<Operand>)> {
        if let Some(c) = self.program.as_const(value) {
            // A 32-bit operation ignores the upper half, so any sign will do there.
            let signed = width.signed(c);
            if let Ok(imm) = i32::try_from(signed) {
                return Ok((Rhs::Imm(imm), None));
            }
        }
        let reg = self.reg(value)?;
        Ok((Rhs::Reg, Some(Operand::reg_use(reg))))
    }

    fn block(&mut self, block: Block) -> Result<()> {
        let data = &self.program.blocks[block];
        let start = self.code.insts.len();
        let is_entry = block == self.program.entry();
        let mut made = MachineBlock::default();
        if is_entry {
            let ctx = self.def(data.params[0]);
            self.push(Op::Start, smallvec![Operand::reg_fixed_def(ctx, preg(1))]);
        } else {
            made.params = data.params.iter().map(|&p| self.def(p)).collect();
        }
        for &inst in &data.insts {
            let node = &self.program.insts[inst];
            self.origin = node.origin;
            self.inst(&node.data, node.result)?;
        }
        self.origin = None;
        self.terminator(&data.terminator, &mut made)?;
        made.range = (start, self.code.insts.len());
        self.code.blocks.push(made);
        Ok(())
    }

    fn terminator(&mut self, terminator: &Terminator, made: &mut MachineBlock) -> Result<()> {
        for target in terminator.targets() {
            made.succs.push(regalloc2::Block::new(self.number[target.block]));
        }
        match terminator {
            Terminator::Jump(target) => {
                made.args = target.args.iter().map(|&a| self.reg(a)).collect::<Result<_>>()?;
                self.push(Op::Jump, smallvec![]);
            }
            Terminator::Branch { cond, width, lhs, rhs, .. } => {
                let (mut cond, mut lhs, mut rhs) = (*cond, *lhs, *rhs);
                if self.program.as_const(lhs).is_some() && self.program.as_const(rhs).is_none() {
                    (cond, lhs, rhs) = (cond.swap(), rhs, lhs);
                }
                let left = self.reg(lhs)?;
                let (kind, right) = self.rhs(rhs, *width)?;
                let mut operands: SmallVec<[Operand; 6]> = smallvec![Operand::reg_use(left)];
                operands.extend(right);
                self.push(Op::Branch(cond, *width, kind), operands);
            }
            Terminator::Return(value) => {
                let verdict = self.reg(*value)?;
                self.push(Op::Return, smallvec![Operand::reg_fixed_use(verdict, preg(0))]);
            }
            Terminator::Deopt(ctx) => self.deopt(*ctx)?,
        }
        Ok(())
    }

    /// Tail call of the original. It comes back only if it failed; then the original's code runs in line. It
    /// is jumped to rather than called: a subprogram could not make tail calls of its own (not without BTF), and its
    /// stack would count beside ours.
    fn deopt(&mut self, ctx: Value) -> Result<()> {
        let fallback = self.layout.fallback.ok_or(LowerError::NoFallback)?;
        let ctx = self.reg(ctx)?;
        let (array, slot, failed) = (self.temp(), self.temp(), self.temp());
        self.push(Op::Map(fallback.array), smallvec![Operand::reg_def(array)]);
        self.push(Op::Const(u64::from(fallback.slot)), smallvec![Operand::reg_def(slot)]);
        self.call(Op::Call(helpers::TAIL_CALL), &[ctx, array, slot], failed);
        self.push(Op::Original, smallvec![Operand::reg_fixed_use(ctx, preg(1))]);
        Ok(())
    }

    fn call(&mut self, op: Op, args: &[VReg], result: VReg) {
        let mut operands: SmallVec<[Operand; 6]> =
            args.iter().enumerate().map(|(i, &arg)| Operand::reg_fixed_use(arg, preg(i + 1))).collect();
        operands.push(Operand::reg_fixed_def(result, preg(0)));
        let clobbers = (1..=5).fold(PRegSet::empty(), |set, r| set.with(preg(r)));
        self.push_clobbering(op, operands, clobbers);
    }

    fn inst(&mut self, data: &InstData, result: Option<Value>) -> Result<()> {
        let result = result.map(|r| self.def(r));
        // Instructions without a result are those matched without using it.
        let def = |r: Option<VReg>| r.unwrap_or(VReg::invalid());
        match data {
            InstData::Const(_)
            | InstData::TableRef(_)
            | InstData::TableValue { .. }
            | InstData::DataAddr { .. }
            | InstData::SlotAddr { .. } => {}
            InstData::Binary { op, width, lhs, rhs } => self.binary(*op, *width, *lhs, *rhs, def(result))?,
            InstData::Unary { op, arg } => self.unary(*op, *arg, def(result))?,
            InstData::CtxLoad { size, ctx, offset } => {
                let base = self.reg(*ctx)?;
                let operands = smallvec![Operand::reg_use(base), Operand::reg_def(def(result))];
                self.push(Op::Load(*size, short(i64::from(*offset))?), operands);
            }
            InstData::Load { size, ptr, offset } => match self.frame_offset(*ptr, *offset)? {
                Some(at) => self.push(Op::LoadFrame(*size, at), smallvec![Operand::reg_def(def(result))]),
                None => {
                    let base = self.reg(*ptr)?;
                    let operands = smallvec![Operand::reg_use(base), Operand::reg_def(def(result))];
                    self.push(Op::Load(*size, short(i64::from(*offset))?), operands);
                }
            },
            InstData::Store { size, ptr, offset, value } => self.store(*size, *ptr, *offset, *value)?,
            InstData::AtomicAdd { size, ptr, offset, value } => {
                let base = self.reg(*ptr)?;
                let amount = self.reg(*value)?;
                let operands = smallvec![Operand::reg_use(base), Operand::reg_use(amount)];
                self.push(Op::AtomicAdd(*size, short(i64::from(*offset))?), operands);
            }
            InstData::Lookup { table, key } => {
                self.table_call(helpers::MAP_LOOKUP_ELEM, *table, key, &[], def(result))?;
            }
            InstData::Delete { table, key } => {
                self.table_call(helpers::MAP_DELETE_ELEM, *table, key, &[], def(result))?;
            }
            InstData::Update { table, key, value, flags } => {
                self.table_call(helpers::MAP_UPDATE_ELEM, *table, key, &[*value, *flags], def(result))?;
            }
            InstData::Call { callee, args } => {
                let callee = &self.program.callees[*callee];
                if args.len() > 5 {
                    return Err(LowerError::Arguments(callee.name.clone()));
                }
                let number = callee.number;
                let args = args.iter().map(|&a| self.reg(a)).collect::<Result<SmallVec<[VReg; 5]>>>()?;
                self.call(Op::Call(number), &args, def(result));
            }
        }
        Ok(())
    }

    /// Offset from the frame pointer of an access whose base is a stack slot.
    fn frame_offset(&self, ptr: Value, offset: i32) -> Result<Option<i16>> {
        match self.program.def(ptr) {
            Some(InstData::SlotAddr { slot, offset: inside }) => {
                let at = i64::from(self.slots[slot.index()]) + i64::from(*inside) + i64::from(offset);
                short(at).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn store(&mut self, size: Size, ptr: Value, offset: i32, value: Value) -> Result<()> {
        let width = if size == Size::B8 { Width::W64 } else { Width::W32 };
        if let Some(at) = self.frame_offset(ptr, offset)? {
            let (kind, operand) = self.rhs(value, width)?;
            self.push(Op::StoreFrame(size, at, kind), operand.into_iter().collect());
            return Ok(());
        }
        let base = self.reg(ptr)?;
        let (kind, operand) = self.rhs(value, width)?;
        let mut operands: SmallVec<[Operand; 6]> = smallvec![Operand::reg_use(base)];
        operands.extend(operand);
        self.push(Op::Store(size, short(i64::from(offset))?, kind), operands);
        Ok(())
    }

    /// Stores the key to the frame and calls a map helper with map, key and `more`.
    fn table_call(
        &mut self,
        helper: u32,
        table: Table,
        key: &Key,
        more: &[Value],
        result: VReg,
    ) -> Result<()> {
        let start = self.key_buffer + key_shift(key) as i32;
        for part in key {
            let width = if part.size == Size::B8 { Width::W64 } else { Width::W32 };
            let (kind, operand) = self.rhs(part.value, width)?;
            let at = short(i64::from(start) + i64::from(part.offset))?;
            self.push(Op::StoreFrame(part.size, at, kind), operand.into_iter().collect());
        }
        let more = more.iter().map(|&v| self.reg(v)).collect::<Result<SmallVec<[VReg; 2]>>>()?;
        let (map, buffer) = (self.temp(), self.temp());
        self.push(Op::FrameAddr(start), smallvec![Operand::reg_def(buffer)]);
        self.push(Op::Map(self.layout.map_of(table)), smallvec![Operand::reg_def(map)]);
        let mut args: SmallVec<[VReg; 5]> = smallvec![map, buffer];
        args.extend(more);
        self.call(Op::Call(helper), &args, result);
        Ok(())
    }

    fn binary(&mut self, op: BinaryOp, width: Width, lhs: Value, rhs: Value, def: VReg) -> Result<()> {
        let (mut lhs, mut rhs) = (lhs, rhs);
        let is_const = |v| self.program.as_const(v).is_some();
        if op.is_commutative() && is_const(lhs) && !is_const(rhs) {
            (lhs, rhs) = (rhs, lhs);
        }
        let class = if width == Width::W64 { insn::ALU64 } else { insn::ALU };
        if op == BinaryOp::Sub && self.program.as_const(lhs).is_some_and(|c| width.truncate(c) == 0) {
            let arg = self.reg(rhs)?;
            self.push(Op::Neg(class), smallvec![Operand::reg_use(arg), Operand::reg_reuse_def(def, 0)]);
            return Ok(());
        }
        let (bits, signed) = match op {
            BinaryOp::Add => (insn::ADD, 0),
            BinaryOp::Sub => (insn::SUB, 0),
            BinaryOp::Mul => (insn::MUL, 0),
            BinaryOp::Udiv => (insn::DIV, 0),
            BinaryOp::Urem => (insn::MOD, 0),
            BinaryOp::Sdiv => (insn::DIV, 1),
            BinaryOp::Srem => (insn::MOD, 1),
            BinaryOp::And => (insn::AND, 0),
            BinaryOp::Or => (insn::OR, 0),
            BinaryOp::Xor => (insn::XOR, 0),
            BinaryOp::Shl => (insn::LSH, 0),
            BinaryOp::Lshr => (insn::RSH, 0),
            BinaryOp::Ashr => (insn::ARSH, 0),
        };
        let left = self.reg(lhs)?;
        let (mut kind, mut right) = self.rhs(rhs, width)?;
        if let Rhs::Imm(imm) = kind {
            match op {
                // The kernel refuses shifts by the width or more, and divisions by an immediate zero.
                BinaryOp::Shl | BinaryOp::Lshr | BinaryOp::Ashr => {
                    kind = Rhs::Imm(imm & (width.bits() as i32 - 1));
                }
                BinaryOp::Udiv | BinaryOp::Urem | BinaryOp::Sdiv | BinaryOp::Srem if imm == 0 => {
                    let zero = self.temp();
                    self.push(Op::Const(0), smallvec![Operand::reg_def(zero)]);
                    (kind, right) = (Rhs::Reg, Some(Operand::reg_use(zero)));
                }
                _ => {}
            }
        }
        let mut operands: SmallVec<[Operand; 6]> = smallvec![Operand::reg_use(left)];
        operands.extend(right);
        operands.push(Operand::reg_reuse_def(def, 0));
        self.push(Op::Alu(class | bits, signed, kind), operands);
        Ok(())
    }

    fn unary(&mut self, op: UnaryOp, arg: Value, def: VReg) -> Result<()> {
        let arg = self.reg(arg)?;
        let reuse: SmallVec<[Operand; 6]> = smallvec![Operand::reg_use(arg), Operand::reg_reuse_def(def, 0)];
        match op {
            UnaryOp::Bswap16 => self.push(Op::Swap(16), reuse),
            UnaryOp::Bswap32 => self.push(Op::Swap(32), reuse),
            UnaryOp::Bswap64 => self.push(Op::Swap(64), reuse),
            UnaryOp::Zext32 => {
                self.push(Op::Move32, smallvec![Operand::reg_use(arg), Operand::reg_def(def)]);
            }
            // Two shifts rather than a sign-extending move, which kernels before 6.6 do not know.
            UnaryOp::Sext8 | UnaryOp::Sext16 | UnaryOp::Sext32 => {
                let shift = match op {
                    UnaryOp::Sext8 => 56,
                    UnaryOp::Sext16 => 48,
                    _ => 32,
                };
                let high = self.temp();
                let up = smallvec![Operand::reg_use(arg), Operand::reg_reuse_def(high, 0)];
                self.push(Op::Alu(insn::ALU64 | insn::LSH, 0, Rhs::Imm(shift)), up);
                let down = smallvec![Operand::reg_use(high), Operand::reg_reuse_def(def, 0)];
                self.push(Op::Alu(insn::ALU64 | insn::ARSH, 0, Rhs::Imm(shift)), down);
            }
        }
        Ok(())
    }
}

/// How far behind an aligned address a key must begin for each part of it to be aligned, as the kernel wants accesses
/// to the stack to be (`check_ptr_alignment` in `kernel/bpf/verifier.c`).
fn key_shift(key: &Key) -> u32 {
    let aligned =
        |shift: &u32| key.iter().all(|p| (u32::from(p.offset) + shift).is_multiple_of(p.size.bytes()));
    (0..8).find(aligned).unwrap_or(0)
}

fn short(offset: i64) -> Result<i16> {
    i16::try_from(offset).map_err(|_| LowerError::Offset(offset))
}
