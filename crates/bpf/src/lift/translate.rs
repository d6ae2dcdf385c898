//! Builds SSA from the decoded bytecode.
//!
//! Variables are the registers r0 to r9, the pieces of the frame, and the words that are cut into pieces. A block that several edges enter takes one
//! parameter for each variable that is live there and of which nothing is known; redundant parameters are left for
//! `simplify_cfg` to remove. What the data flow knows (constants, frame, context and map pointers) never
//! becomes a variable: it is materialized where it is used.

use runnel_ir::{
    BinaryOp, Block, Builder, Callee, CalleeData, Cond, InstData, Key, KeyPart, Program, Size, Slot,
    SlotData, Table, TableKind, Target, Terminator, UnaryOp, Value, Width,
};
use smallvec::SmallVec;

use super::flow::Flow;
use super::frame::{self, Frame, Known, State};
use super::{LiftError, Result, Unsupported, refuse};
use crate::helpers::{self, Helper};
use crate::insn::{self, Insn};
use crate::spec::ProgramSpec;

/// Registers that are variables; the frame pointer is none.
const REGS: usize = 10;
/// Registers, at most one piece for each byte of the frame, and its words.
const MAX_VARS: usize = REGS + 512 + 512;

/// A set of variables.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VarSet([u64; MAX_VARS.div_ceil(64)]);

impl VarSet {
    const EMPTY: VarSet = VarSet([0; MAX_VARS.div_ceil(64)]);
    fn insert(&mut self, var: usize) {
        self.0[var / 64] |= 1 << (var % 64);
    }
    fn contains(&self, var: usize) -> bool {
        self.0[var / 64] >> (var % 64) & 1 == 1
    }
    fn union(&mut self, other: &VarSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
    fn subtract(&mut self, other: &VarSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a &= !b);
    }
}

/// Fills `program`, whose tables are declared, with the code of `spec`.
pub fn translate(spec: &ProgramSpec, flow: &Flow, frame: &Frame, program: &mut Program) -> Result<()> {
    let live = live_in(spec, flow, frame)?;
    let slots = frame
        .areas
        .iter()
        .map(|area| {
            let size = (area.end - area.slot_start()) as u32;
            area.memory.then(|| program.slots.push(SlotData { size }))
        })
        .collect();
    let entry = program.new_block();
    program.layout.push(entry);
    program.append_param(entry);
    let vars = REGS + frame.vars();
    let mut blocks = Vec::new();
    for (at, block) in flow.blocks.iter().enumerate() {
        let made = program.new_block();
        program.layout.push(made);
        let mut params = Vec::new();
        // The first block has the program's entry as one more predecessor.
        if block.preds.len() + usize::from(at == 0) > 1 {
            for var in (0..vars).filter(|&v| live[at].contains(v)) {
                if var >= REGS || frame.at_entry[at].regs[var] == Known::Any {
                    params.push((var, program.append_param(made)));
                }
            }
        }
        blocks.push(Made { block: made, params, out: Vec::new() });
    }
    let mut translator = Translator { spec, flow, frame, slots, blocks };
    translator.enter(program, entry);
    (0..flow.blocks.len()).try_for_each(|at| translator.block(program, at))
}

/// What the instruction at `pc` reads and writes, before `state` is stepped over it.
fn accesses(spec: &ProgramSpec, frame: &Frame, pc: usize, state: &State) -> Result<(VarSet, VarSet)> {
    let insn = spec.insns[pc];
    let (mut uses, mut defs) = (VarSet::EMPTY, VarSet::EMPTY);
    let (dst, src) = (usize::from(insn.dst()), usize::from(insn.src()));
    let mut after = state.clone();
    frame::step(spec, pc, &mut after)?;
    let read = |uses: &mut VarSet, reg: usize| {
        if reg < REGS && state.regs[reg] == Known::Any {
            uses.insert(reg);
        }
    };
    let pieces = |set: &mut VarSet, start: i32, end: i32| {
        frame.pieces_in(start, end).for_each(|p| set.insert(REGS + p));
    };
    match insn.class() {
        insn::ALU | insn::ALU64 => {
            if after.regs[dst] == Known::Any {
                if insn.op() != insn::MOV {
                    read(&mut uses, dst);
                }
                if insn.is_reg() && insn.op() != insn::END && insn.op() != insn::NEG {
                    read(&mut uses, src);
                }
            }
            defs.insert(dst);
        }
        insn::LD => defs.insert(dst),
        insn::LDX => {
            match state.regs[src] {
                Known::Frame(base) if after.regs[dst] == Known::Any => {
                    let start = base + i32::from(insn.off);
                    match frame.whole_word(state, start, size_of(insn).bytes()) {
                        Some(word) => uses.insert(REGS + word),
                        None => pieces(&mut uses, start, start + size_of(insn).bytes() as i32),
                    }
                }
                _ => read(&mut uses, src),
            }
            defs.insert(dst);
        }
        insn::ST | insn::STX => {
            if insn.class() == insn::STX {
                read(&mut uses, src);
            }
            match state.regs[dst] {
                Known::Frame(base) => {
                    let start = base + i32::from(insn.off);
                    pieces(&mut defs, start, start + size_of(insn).bytes() as i32);
                    if size_of(insn) == Size::B8
                        && let Some(word) = frame.word(start)
                    {
                        defs.insert(REGS + word);
                    }
                }
                _ => read(&mut uses, dst),
            }
        }
        insn::JMP if insn.op() == insn::CALL => {
            let helper = frame::called(spec, pc)?;
            (1..=usize::from(helper.arity)).for_each(|reg| read(&mut uses, reg));
            for (_, start, end) in frame::stack_args(spec, pc, state)? {
                pieces(&mut uses, start, end);
            }
            (0..6).for_each(|reg| defs.insert(reg));
        }
        insn::JMP if insn.op() == insn::EXIT => read(&mut uses, 0),
        _ if insn.op() == insn::JA => {}
        _ => {
            read(&mut uses, dst);
            if insn.is_reg() {
                read(&mut uses, src);
            }
        }
    }
    Ok((uses, defs))
}

/// The variables that are live at the start of each block.
fn live_in(spec: &ProgramSpec, flow: &Flow, frame: &Frame) -> Result<Vec<VarSet>> {
    let mut transfer = Vec::new();
    for (block, entry) in flow.blocks.iter().zip(&frame.at_entry) {
        let mut state = entry.clone();
        let (mut uses, mut defs) = (VarSet::EMPTY, VarSet::EMPTY);
        for pc in block.pcs(&spec.insns) {
            let (mut used, defined) = accesses(spec, frame, pc, &state)?;
            used.subtract(&defs);
            uses.union(&used);
            defs.union(&defined);
            frame::step(spec, pc, &mut state)?;
        }
        transfer.push((uses, defs));
    }
    let mut live = vec![VarSet::EMPTY; flow.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for at in (0..flow.blocks.len()).rev() {
            let mut now = VarSet::EMPTY;
            flow.blocks[at].succs.iter().for_each(|&succ| now.union(&live[succ]));
            now.subtract(&transfer[at].1);
            now.union(&transfer[at].0);
            changed |= now != live[at];
            live[at] = now;
        }
    }
    Ok(live)
}

fn size_of(insn: Insn) -> Size {
    match insn.size() {
        insn::B => Size::B1,
        insn::H => Size::B2,
        insn::W => Size::B4,
        _ => Size::B8,
    }
}

/// A block of the flow in the making.
struct Made {
    block: Block,
    params: Vec<(usize, Value)>,
    /// Values of the variables at its end, once translated.
    out: Vec<Option<Value>>,
}

struct Translator<'a> {
    spec: &'a ProgramSpec,
    flow: &'a Flow,
    frame: &'a Frame,
    slots: Vec<Option<Slot>>,
    blocks: Vec<Made>,
}

/// The block being translated.
struct Cursor<'p> {
    b: Builder<'p>,
    state: State,
    vars: Vec<Option<Value>>,
    pc: usize,
}

impl Cursor<'_> {
    /// A variable that may never have been written: then any value will do.
    fn var(&mut self, var: usize) -> Value {
        match self.vars[var] {
            Some(value) => value,
            None => self.b.iconst(0),
        }
    }
}

impl Translator<'_> {
    /// The IR's entry does nothing but go to the first block.
    fn enter(&self, program: &mut Program, entry: Block) {
        let mut b = Builder::at(program, entry);
        let first = &self.blocks[0];
        let args: SmallVec<_> = first.params.iter().map(|_| b.iconst(0)).collect();
        b.jump(Target { block: first.block, args });
    }

    fn block(&mut self, program: &mut Program, at: usize) -> Result<()> {
        let flow = &self.flow.blocks[at];
        let made = &self.blocks[at];
        let mut vars = match flow.preds[..] {
            [pred] if at != 0 => self.blocks[pred].out.clone(),
            _ => vec![None; REGS + self.frame.vars()],
        };
        for &(var, value) in &made.params {
            vars[var] = Some(value);
        }
        let mut c = Cursor {
            b: Builder::at(program, made.block),
            state: self.frame.at_entry[at].clone(),
            vars,
            pc: flow.start,
        };
        for pc in flow.pcs(&self.spec.insns) {
            c.pc = pc;
            c.b.set_origin(Some(pc as u32));
            self.instruction(&mut c)?;
            if pc != flow.last {
                frame::step(self.spec, pc, &mut c.state)?;
            }
        }
        let targets = self.targets(&mut c, at)?;
        self.terminator(&mut c, targets)?;
        self.blocks[at].out = c.vars;
        Ok(())
    }

    /// The jumps out of a block with the values that the successors take.
    fn targets(&self, c: &mut Cursor<'_>, at: usize) -> Result<SmallVec<[Target; 2]>> {
        let mut after = c.state.clone();
        frame::step(self.spec, c.pc, &mut after)?;
        let mut targets = SmallVec::new();
        for &succ in &self.flow.blocks[at].succs {
            let made = &self.blocks[succ];
            let mut args = SmallVec::new();
            for &(var, _) in &made.params {
                let known = if var < REGS { after.regs[var] } else { Known::Any };
                args.push(match known {
                    Known::Any => c.var(var),
                    Known::Const(constant) => c.b.iconst(constant),
                    Known::Map(map) => c.b.value(InstData::TableRef(Table::from_u32(map))),
                    Known::Frame(_) => {
                        return refuse(c.pc, Unsupported::StackPointer("merged with another value"));
                    }
                    Known::Context => return refuse(c.pc, Unsupported::Context("merged with another value")),
                });
            }
            targets.push(Target { block: made.block, args });
        }
        Ok(targets)
    }

    fn terminator(&self, c: &mut Cursor<'_>, mut targets: SmallVec<[Target; 2]>) -> Result<()> {
        let insn = self.spec.insns[c.pc];
        let is_jump = matches!(insn.class(), insn::JMP | insn::JMP32);
        if is_jump && insn.op() == insn::EXIT {
            let verdict = self.reg(c, 0)?;
            c.b.ret(verdict);
        } else if is_jump && insn.op() != insn::CALL && insn.op() != insn::JA {
            let width = if insn.class() == insn::JMP32 { Width::W32 } else { Width::W64 };
            let lhs = self.reg(c, insn.dst())?;
            let rhs =
                if insn.is_reg() { self.reg(c, insn.src())? } else { c.b.iconst(insn.imm as i64 as u64) };
            let cond = condition(insn)
                .ok_or(LiftError { pc: c.pc, reason: Unsupported::Malformed("no such jump") })?;
            let (Some(other), Some(then)) = (targets.pop(), targets.pop()) else {
                return refuse(c.pc, Unsupported::Malformed("a branch without targets"));
            };
            c.b.branch(cond, width, lhs, rhs, then, other);
        } else {
            let Some(target) = targets.pop() else {
                return refuse(c.pc, Unsupported::Malformed("a jump without a target"));
            };
            c.b.terminate(Terminator::Jump(target));
        }
        Ok(())
    }

    /// The value of a register, materialized where it is known.
    fn reg(&self, c: &mut Cursor<'_>, reg: u8) -> Result<Value> {
        Ok(match c.state.regs[usize::from(reg)] {
            Known::Any => c.var(usize::from(reg)),
            Known::Const(constant) => c.b.iconst(constant),
            Known::Context => c.b.program.context(),
            Known::Map(map) => c.b.value(InstData::TableRef(Table::from_u32(map))),
            Known::Frame(offset) => match self.frame.area(offset) {
                Some((index, area)) if let Some(slot) = self.slots[index] => {
                    c.b.slot_addr(slot, (offset - area.slot_start()) as u32)
                }
                _ => return refuse(c.pc, Unsupported::StackPointer("its address is used as a value")),
            },
        })
    }

    fn instruction(&self, c: &mut Cursor<'_>) -> Result<()> {
        let insn = self.spec.insns[c.pc];
        match insn.class() {
            insn::ALU | insn::ALU64 => self.alu(c, insn),
            insn::LD => self.load_imm(c, insn),
            insn::LDX => self.load(c, insn),
            insn::ST | insn::STX => self.store(c, insn),
            _ if insn.op() == insn::CALL => self.call(c),
            _ => Ok(()),
        }
    }

    fn alu(&self, c: &mut Cursor<'_>, insn: Insn) -> Result<()> {
        let dst = insn.dst();
        let mut after = c.state.clone();
        frame::step(self.spec, c.pc, &mut after)?;
        if after.regs[usize::from(dst)] != Known::Any {
            c.vars[usize::from(dst)] = None;
            return Ok(());
        }
        let wide = insn.class() == insn::ALU64;
        let width = if wide { Width::W64 } else { Width::W32 };
        let malformed = refuse(c.pc, Unsupported::Malformed("no such arithmetic"));
        let result = match insn.op() {
            insn::END => {
                let arg = self.reg(c, dst)?;
                let swaps = wide || insn.is_reg();
                match (insn.imm, swaps) {
                    (16, true) => c.b.unary(UnaryOp::Bswap16, arg),
                    (32, true) => c.b.unary(UnaryOp::Bswap32, arg),
                    (64, true) => c.b.unary(UnaryOp::Bswap64, arg),
                    (16, false) => c.b.binary_imm(BinaryOp::And, Width::W64, arg, 0xffff),
                    (32, false) => c.b.unary(UnaryOp::Zext32, arg),
                    (64, false) => arg,
                    _ => return malformed,
                }
            }
            insn::NEG => {
                let arg = self.reg(c, dst)?;
                let zero = c.b.iconst(0);
                c.b.binary(BinaryOp::Sub, width, zero, arg)
            }
            insn::MOV => {
                let source =
                    if insn.is_reg() { self.reg(c, insn.src())? } else { c.b.iconst(insn.imm as i64 as u64) };
                let moved = match insn.off {
                    0 => source,
                    8 => c.b.unary(UnaryOp::Sext8, source),
                    16 => c.b.unary(UnaryOp::Sext16, source),
                    32 if wide => c.b.unary(UnaryOp::Sext32, source),
                    _ => return malformed,
                };
                if wide { moved } else { c.b.unary(UnaryOp::Zext32, moved) }
            }
            op => {
                let signed = insn.off == 1 && matches!(op, insn::DIV | insn::MOD);
                if insn.off != 0 && !signed {
                    return malformed;
                }
                let op = match op {
                    insn::ADD => BinaryOp::Add,
                    insn::SUB => BinaryOp::Sub,
                    insn::MUL => BinaryOp::Mul,
                    insn::DIV if signed => BinaryOp::Sdiv,
                    insn::DIV => BinaryOp::Udiv,
                    insn::MOD if signed => BinaryOp::Srem,
                    insn::MOD => BinaryOp::Urem,
                    insn::OR => BinaryOp::Or,
                    insn::AND => BinaryOp::And,
                    insn::XOR => BinaryOp::Xor,
                    insn::LSH => BinaryOp::Shl,
                    insn::RSH => BinaryOp::Lshr,
                    insn::ARSH => BinaryOp::Ashr,
                    _ => return malformed,
                };
                let lhs = self.reg(c, dst)?;
                let rhs =
                    if insn.is_reg() { self.reg(c, insn.src())? } else { c.b.iconst(insn.imm as i64 as u64) };
                c.b.binary(op, width, lhs, rhs)
            }
        };
        c.vars[usize::from(dst)] = Some(result);
        Ok(())
    }

    fn load_imm(&self, c: &mut Cursor<'_>, insn: Insn) -> Result<()> {
        // Constants and maps are known to the data flow; what is left is the address of a map's value.
        c.vars[usize::from(insn.dst())] = if insn.src() == insn::PSEUDO_MAP_IDX_VALUE {
            let offset = self.spec.insns[c.pc + 1].imm as u32;
            let table = insn.imm as u32;
            if offset > self.spec.maps[table as usize].value_size {
                return refuse(c.pc, Unsupported::Malformed("an offset behind the map's value"));
            }
            Some(c.b.value(InstData::TableValue { table: Table::from_u32(table), offset }))
        } else {
            None
        };
        Ok(())
    }

    fn load(&self, c: &mut Cursor<'_>, insn: Insn) -> Result<()> {
        let size = size_of(insn);
        let offset = i32::from(insn.off);
        let signed = match insn.mode() {
            insn::MEM => false,
            insn::MEMSX if size != Size::B8 => true,
            _ => return refuse(c.pc, Unsupported::Malformed("no such load")),
        };
        let mut after = c.state.clone();
        frame::step(self.spec, c.pc, &mut after)?;
        let known = after.regs[usize::from(insn.dst())] != Known::Any;
        let loaded = match c.state.regs[usize::from(insn.src())] {
            _ if known => None,
            Known::Context if signed => return refuse(c.pc, Unsupported::Context("a signed load from it")),
            Known::Context => {
                let ctx = c.b.program.context();
                Some(c.b.ctx_load(size, ctx, offset))
            }
            Known::Frame(base) => Some(self.load_frame(c, base + offset, size)?),
            _ => {
                let ptr = self.reg(c, insn.src())?;
                Some(c.b.load(size, ptr, offset))
            }
        };
        c.vars[usize::from(insn.dst())] = match loaded {
            Some(value) if signed => Some(match size {
                Size::B1 => c.b.unary(UnaryOp::Sext8, value),
                Size::B2 => c.b.unary(UnaryOp::Sext16, value),
                _ => c.b.unary(UnaryOp::Sext32, value),
            }),
            other => other,
        };
        Ok(())
    }

    fn load_frame(&self, c: &mut Cursor<'_>, start: i32, size: Size) -> Result<Value> {
        if let Some((slot, offset)) = self.memory(start) {
            let ptr = c.b.slot_addr(slot, 0);
            return Ok(c.b.load(size, ptr, offset));
        }
        if let Some(word) = self.frame.whole_word(&c.state, start, size.bytes()) {
            return Ok(c.var(REGS + word));
        }
        let mut whole: Option<Value> = None;
        for index in self.frame.pieces_in(start, start + size.bytes() as i32) {
            let piece = self.frame.pieces[index];
            let mut value = c.var(REGS + index);
            value = match piece.size {
                Size::B8 => value,
                Size::B4 => c.b.unary(UnaryOp::Zext32, value),
                narrow => c.b.binary_imm(BinaryOp::And, Width::W64, value, narrow.mask()),
            };
            let shift = (piece.start - start) as u64 * 8;
            if shift > 0 {
                value = c.b.binary_imm(BinaryOp::Shl, Width::W64, value, shift);
            }
            whole = Some(match whole {
                Some(low) => c.b.binary(BinaryOp::Or, Width::W64, low, value),
                None => value,
            });
        }
        whole.ok_or(LiftError { pc: c.pc, reason: Unsupported::StackPointer("an access to no area") })
    }

    /// The slot of a frame offset that lies in memory, and the offset in it.
    fn memory(&self, offset: i32) -> Option<(Slot, i32)> {
        let (index, area) = self.frame.area(offset)?;
        self.slots[index].map(|slot| (slot, offset - area.slot_start()))
    }

    fn store(&self, c: &mut Cursor<'_>, insn: Insn) -> Result<()> {
        let size = size_of(insn);
        let offset = i32::from(insn.off);
        if insn.mode() == insn::ATOMIC {
            // Without BPF_FETCH (0x01) only the add is an operation of the IR.
            if insn.class() != insn::STX || insn.imm != i32::from(insn::ADD) || size.bytes() < 4 {
                return refuse(c.pc, Unsupported::Atomic(insn.imm));
            }
        } else if insn.mode() != insn::MEM {
            return refuse(c.pc, Unsupported::Malformed("no such store"));
        }
        let base = c.state.regs[usize::from(insn.dst())];
        if let Known::Frame(at) = base
            && self.memory(at + offset).is_none()
        {
            let pointer = insn.class() == insn::STX
                && matches!(c.state.regs[usize::from(insn.src())], Known::Frame(_) | Known::Context);
            let value = if pointer { None } else { Some(self.stored(c, insn)?) };
            self.store_pieces(c, at + offset, size, value);
            return Ok(());
        }
        let value = self.stored(c, insn)?;
        let (ptr, offset) = match base {
            Known::Frame(at) => match self.memory(at + offset) {
                Some((slot, inside)) => (c.b.slot_addr(slot, 0), inside),
                None => return refuse(c.pc, Unsupported::StackPointer("an access to no area")),
            },
            _ => (self.reg(c, insn.dst())?, offset),
        };
        if insn.mode() == insn::ATOMIC {
            c.b.effect(InstData::AtomicAdd { size, ptr, offset, value });
        } else {
            c.b.store(size, ptr, offset, value);
        }
        Ok(())
    }

    fn stored(&self, c: &mut Cursor<'_>, insn: Insn) -> Result<Value> {
        if insn.class() == insn::ST {
            Ok(c.b.iconst(insn.imm as i64 as u64))
        } else {
            self.reg(c, insn.src())
        }
    }

    fn store_pieces(&self, c: &mut Cursor<'_>, start: i32, size: Size, value: Option<Value>) {
        if size == Size::B8
            && let Some(word) = self.frame.word(start)
        {
            c.vars[REGS + word] = value;
        }
        for index in self.frame.pieces_in(start, start + size.bytes() as i32) {
            let shift = (self.frame.pieces[index].start - start) as u64 * 8;
            c.vars[REGS + index] = match value {
                Some(value) if shift > 0 => Some(c.b.binary_imm(BinaryOp::Lshr, Width::W64, value, shift)),
                other => other,
            };
        }
    }

    fn call(&self, c: &mut Cursor<'_>) -> Result<()> {
        let helper = frame::called(self.spec, c.pc)?;
        let result = match c.state.regs[1] {
            Known::Map(map) if frame::is_table_access(self.spec, c.pc, &c.state) => {
                let table = Table::from_u32(map);
                let key = self.key(c, table)?;
                match helper.number {
                    helpers::MAP_LOOKUP_ELEM => c.b.lookup(table, key),
                    helpers::MAP_DELETE_ELEM => c.b.value(InstData::Delete { table, key }),
                    _ => {
                        let value = self.reg(c, 3)?;
                        let flags = self.reg(c, 4)?;
                        c.b.value(InstData::Update { table, key, value, flags })
                    }
                }
            }
            _ => {
                let callee = callee(c.b.program, helper);
                let mut args: SmallVec<[Value; 5]> = SmallVec::new();
                for arg in 1..=helper.arity {
                    args.push(self.reg(c, arg)?);
                }
                c.b.call(callee, args)
            }
        };
        c.vars[0] = Some(result);
        c.vars[1..6].fill(None);
        Ok(())
    }

    /// The key that register 2 points to, as values.
    fn key(&self, c: &mut Cursor<'_>, table: Table) -> Result<Key> {
        let (size, kind) = (c.b.program.tables[table].key_size, c.b.program.tables[table].kind);
        if size > u32::from(u16::MAX) {
            return refuse(c.pc, Unsupported::Malformed("a key of more than 64 KiB"));
        }
        if let Known::Frame(start) = c.state.regs[2]
            && self.memory(start).is_none()
        {
            let mut key = Key::new();
            for index in self.frame.pieces_in(start, start + size as i32) {
                let piece = self.frame.pieces[index];
                let offset = (piece.start - start) as u16;
                key.push(KeyPart { offset, size: piece.size, value: c.var(REGS + index) });
            }
            return Ok(key);
        }
        let (ptr, base) = match c.state.regs[2] {
            Known::Frame(start) => match self.memory(start) {
                Some((slot, inside)) => (c.b.slot_addr(slot, 0), inside),
                None => return refuse(c.pc, Unsupported::StackPointer("a key in no area")),
            },
            _ => (self.reg(c, 2)?, 0),
        };
        let mut key = Key::new();
        let mut at = 0;
        while at < size {
            // The length in front of a prefix stands alone, so that it can be seen to be constant.
            let limit = if kind == TableKind::Prefix && at < 4 { 4 } else { 8 };
            let left = (size - at).min(limit);
            let part = Size::ALL.into_iter().rev().find(|s| s.bytes() <= left).unwrap_or(Size::B1);
            let value = c.b.load(part, ptr, base + at as i32);
            key.push(KeyPart { offset: at as u16, size: part, value });
            at += part.bytes();
        }
        Ok(key)
    }
}

fn condition(insn: Insn) -> Option<Cond> {
    Some(match insn.op() {
        insn::JEQ => Cond::Eq,
        insn::JNE => Cond::Ne,
        insn::JGT => Cond::Ugt,
        insn::JGE => Cond::Uge,
        insn::JLT => Cond::Ult,
        insn::JLE => Cond::Ule,
        insn::JSET => Cond::Any,
        insn::JSGT => Cond::Sgt,
        insn::JSGE => Cond::Sge,
        insn::JSLT => Cond::Slt,
        insn::JSLE => Cond::Sle,
        _ => return None,
    })
}

/// The callee that stands for `helper`, declared at its first use.
fn callee(program: &mut Program, helper: &Helper) -> Callee {
    let known = program.callees.iter().find(|(_, c)| c.number == helper.number).map(|(callee, _)| callee);
    known.unwrap_or_else(|| {
        program.callees.push(CalleeData {
            name: helper.name.to_string(),
            number: helper.number,
            arity: helper.arity,
            effects: helper.effects,
        })
    })
}
