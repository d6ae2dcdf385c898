//! Writes bytecode: allocated instructions and the allocator's moves, then jumps.

use regalloc2::{Allocation, AllocationKind, Block, Edit, Inst, InstOrEdit, Output};
use runnel_ir::{Cond, Size, Width};

use super::select::{Code, MachineInst, Op, Rhs};
use super::{Layout, LowerError, Lowered};
use crate::insn::{self, Insn};

/// How an emitted block ends.
enum End {
    Return,
    Original,
    Jump(usize),
    Branch { cond: Cond, width: Width, lhs: u8, rhs: (Rhs, u8), then: usize, other: usize },
}

/// An emitted block without its jumps.
struct Piece {
    insns: Vec<Insn>,
    origins: Vec<Option<u32>>,
    end: End,
}

impl Piece {
    /// Whether the original's code follows.
    fn is_last(&self) -> bool {
        matches!(self.end, End::Original)
    }
}

const FP: u8 = 10;

/// Stands for the original's code among the targets of jumps.
const ORIGINAL: usize = usize::MAX;

/// Writes `code` with the registers of `output`, blocks that are `far` behind the others, and the original's code
/// behind it all where `deopt` needs it.
pub fn emit(code: &Code, output: &Output, layout: &Layout<'_>, far: &[bool]) -> Result<Lowered, LowerError> {
    let stack = code.frame as usize + output.num_spillslots * 8;
    if stack > 512 {
        return Err(LowerError::Stack(stack as u32));
    }
    let emitter = Emitter { code, output };
    let pieces: Vec<Piece> = (0..code.blocks.len()).map(|at| emitter.block(at)).collect();
    link(&pieces, layout, far)
}

struct Emitter<'a> {
    code: &'a Code,
    output: &'a Output,
}

impl Emitter<'_> {
    fn block(&self, at: usize) -> Piece {
        let mut piece = Piece { insns: Vec::new(), origins: Vec::new(), end: End::Return };
        let mut origin = None;
        for step in self.output.block_insts_and_edits(self.code, Block::new(at)) {
            let before = piece.insns.len();
            match step {
                InstOrEdit::Inst(inst) => {
                    origin = self.code.insts[inst.index()].origin;
                    self.inst(at, inst, &mut piece);
                }
                InstOrEdit::Edit(Edit::Move { from, to }) => self.mov(*from, *to, &mut piece.insns),
            }
            let added = piece.insns.len() - before;
            piece.origins.extend(std::iter::repeat_n(origin, added));
        }
        piece
    }

    /// Offset of a spilled register from the frame pointer.
    fn spill(&self, slot: usize) -> i16 {
        -((self.code.frame as usize + 8 * (slot + 1)) as i16)
    }

    fn mov(&self, from: Allocation, to: Allocation, out: &mut Vec<Insn>) {
        let reg = |a: Allocation| a.as_reg().map(|r| r.hw_enc() as u8);
        let stack = |a: Allocation| a.as_stack().map(|s| self.spill(s.index()));
        out.push(match (reg(from), reg(to), stack(from), stack(to)) {
            (Some(from), Some(to), ..) => Insn::new(insn::ALU64 | insn::MOV | insn::X, to, from, 0, 0),
            (Some(from), _, _, Some(at)) => Insn::new(insn::STX | insn::MEM | insn::DW, FP, from, at, 0),
            (_, Some(to), Some(at), _) => Insn::new(insn::LDX | insn::MEM | insn::DW, to, FP, at, 0),
            // The allocator resolves moves from stack to stack by itself.
            _ => return,
        });
    }

    fn inst(&self, at: usize, inst: Inst, piece: &mut Piece) {
        let MachineInst { op, .. } = &self.code.insts[inst.index()];
        let allocs = self.output.inst_allocs(inst);
        // Every operand is constrained to a register.
        let reg = |i: usize| match allocs[i].kind() {
            AllocationKind::Reg => allocs[i].as_reg().map_or(0, |r| r.hw_enc() as u8),
            _ => 0,
        };
        let succ = |i: usize| self.code.blocks[at].succs[i].index();
        let out = &mut piece.insns;
        let wide = |out: &mut Vec<Insn>, dst, src, low: u32, high: u32| {
            out.push(Insn::new(insn::LD | insn::IMM | insn::DW, dst, src, 0, low as i32));
            out.push(Insn::new(0, 0, 0, 0, high as i32));
        };
        match *op {
            Op::Start => {}
            Op::Const(value) => match i32::try_from(value as i64) {
                Ok(imm) => out.push(Insn::new(insn::ALU64 | insn::MOV, reg(0), 0, 0, imm)),
                Err(_) if u32::try_from(value).is_ok() => {
                    out.push(Insn::new(insn::ALU | insn::MOV, reg(0), 0, 0, value as u32 as i32));
                }
                Err(_) => wide(out, reg(0), 0, value as u32, (value >> 32) as u32),
            },
            Op::Map(map) => wide(out, reg(0), insn::PSEUDO_MAP_IDX, map, 0),
            Op::MapValue(map, offset) => wide(out, reg(0), insn::PSEUDO_MAP_IDX_VALUE, map, offset),
            Op::FrameAddr(offset) => {
                out.push(Insn::new(insn::ALU64 | insn::MOV | insn::X, reg(0), FP, 0, 0));
                out.push(Insn::new(insn::ALU64 | insn::ADD, reg(0), 0, 0, offset));
            }
            Op::Move32 => out.push(Insn::new(insn::ALU | insn::MOV | insn::X, reg(1), reg(0), 0, 0)),
            Op::Alu(code, signed, Rhs::Imm(imm)) => out.push(Insn::new(code, reg(1), 0, signed, imm)),
            Op::Alu(code, signed, Rhs::Reg) => {
                out.push(Insn::new(code | insn::X, reg(2), reg(1), signed, 0));
            }
            Op::Swap(bits) => out.push(Insn::new(insn::ALU | insn::END | insn::X, reg(1), 0, 0, bits)),
            Op::Neg(class) => out.push(Insn::new(class | insn::NEG, reg(1), 0, 0, 0)),
            Op::Load(size, offset) => {
                out.push(Insn::new(insn::LDX | insn::MEM | bits(size), reg(1), reg(0), offset, 0));
            }
            Op::LoadFrame(size, offset) => {
                out.push(Insn::new(insn::LDX | insn::MEM | bits(size), reg(0), FP, offset, 0));
            }
            Op::Store(size, offset, Rhs::Imm(imm)) => {
                out.push(Insn::new(insn::ST | insn::MEM | bits(size), reg(0), 0, offset, imm));
            }
            Op::Store(size, offset, Rhs::Reg) => {
                out.push(Insn::new(insn::STX | insn::MEM | bits(size), reg(0), reg(1), offset, 0));
            }
            Op::StoreFrame(size, offset, Rhs::Imm(imm)) => {
                out.push(Insn::new(insn::ST | insn::MEM | bits(size), FP, 0, offset, imm));
            }
            Op::StoreFrame(size, offset, Rhs::Reg) => {
                out.push(Insn::new(insn::STX | insn::MEM | bits(size), FP, reg(0), offset, 0));
            }
            Op::AtomicAdd(size, offset) => {
                let code = insn::STX | insn::ATOMIC | bits(size);
                out.push(Insn::new(code, reg(0), reg(1), offset, i32::from(insn::ADD)));
            }
            Op::Call(helper) => out.push(Insn::new(insn::JMP | insn::CALL, 0, 0, 0, helper as i32)),
            Op::Branch(cond, width, rhs) => {
                let right = if rhs == Rhs::Reg { reg(1) } else { 0 };
                let (then, other) = (succ(0), succ(1));
                piece.end = End::Branch { cond, width, lhs: reg(0), rhs: (rhs, right), then, other };
            }
            Op::Jump => piece.end = End::Jump(succ(0)),
            Op::Return => {
                out.push(Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0));
                piece.end = End::Return;
            }
            Op::Original => piece.end = End::Original,
        }
    }
}

fn bits(size: Size) -> u8 {
    match size {
        Size::B1 => insn::B,
        Size::B2 => insn::H,
        Size::B4 => insn::W,
        Size::B8 => insn::DW,
    }
}

/// Follows jumps through blocks that do nothing else.
fn resolve(pieces: &[Piece], mut at: usize) -> usize {
    for _ in 0..pieces.len() {
        match pieces[at].end {
            End::Jump(to) if pieces[at].insns.is_empty() => at = to,
            _ => break,
        }
    }
    at
}

fn link(pieces: &[Piece], layout: &Layout<'_>, far: &[bool]) -> Result<Lowered, LowerError> {
    let order = order(pieces, far);
    let mut out = Lowered { insns: Vec::new(), origins: Vec::new() };
    let mut start = vec![usize::MAX; pieces.len()];
    let mut jumps = Vec::new();
    for (i, &at) in order.iter().enumerate() {
        start[at] = out.insns.len();
        out.insns.extend(&pieces[at].insns);
        out.origins.extend(&pieces[at].origins);
        let next = order.get(i + 1).copied();
        let jump_to = |out: &mut Lowered, jumps: &mut Vec<(usize, usize)>, insn, target| {
            jumps.push((out.insns.len(), target));
            out.insns.push(insn);
            out.origins.push(None);
        };
        let always = Insn::new(insn::JMP | insn::JA, 0, 0, 0, 0);
        match &pieces[at].end {
            End::Return => {}
            End::Original => {
                if next.is_some() {
                    jump_to(&mut out, &mut jumps, always, ORIGINAL);
                }
            }
            End::Jump(to) => {
                let to = resolve(pieces, *to);
                if Some(to) != next {
                    jump_to(&mut out, &mut jumps, always, to);
                }
            }
            End::Branch { cond, width, lhs, rhs, then, other } => {
                let (mut then, mut other) = (resolve(pieces, *then), resolve(pieces, *other));
                let mut cond = *cond;
                // There is no jump on "no bit in common", and one on the negation saves a jump where what
                // follows is what the condition leads to.
                let negated = cond == Cond::None || (Some(then) == next && cond != Cond::Any);
                if negated {
                    cond = cond.negate();
                    std::mem::swap(&mut then, &mut other);
                }
                if then != other {
                    jump_to(&mut out, &mut jumps, compare(cond, *width, *lhs, *rhs), then);
                }
                if Some(other) != next {
                    jump_to(&mut out, &mut jumps, always, other);
                }
            }
        }
    }
    for (pc, target) in jumps {
        let place = start.get(target).copied().unwrap_or(out.insns.len());
        let distance = place as i64 - pc as i64 - 1;
        out.insns[pc].off = i16::try_from(distance).map_err(|_| LowerError::Jump(distance))?;
    }
    if let Some(fallback) = layout.fallback.filter(|_| order.iter().any(|&at| pieces[at].is_last())) {
        out.insns.extend(fallback.original);
        out.origins.resize(out.insns.len(), None);
    }
    Ok(out)
}

/// The blocks that are emitted: those that something reaches other than by passing through. What goes on with the
/// original comes last, next to it.
fn order(pieces: &[Piece], far: &[bool]) -> Vec<usize> {
    let mut wanted = vec![false; pieces.len()];
    let mut todo = vec![resolve(pieces, 0)];
    while let Some(at) = todo.pop() {
        if !std::mem::replace(&mut wanted[at], true) {
            match &pieces[at].end {
                End::Return | End::Original => {}
                End::Jump(to) => todo.push(resolve(pieces, *to)),
                End::Branch { then, other, .. } => {
                    todo.push(resolve(pieces, *then));
                    todo.push(resolve(pieces, *other));
                }
            }
        }
    }
    let first = resolve(pieces, 0);
    let mut emitted: Vec<usize> = (0..pieces.len()).filter(|&at| wanted[at] && at != first).collect();
    emitted.sort_by_key(|&at| (pieces[at].is_last(), far[at]));
    std::iter::once(first).chain(emitted).collect()
}

fn compare(cond: Cond, width: Width, lhs: u8, (rhs, right): (Rhs, u8)) -> Insn {
    let class = if width == Width::W64 { insn::JMP } else { insn::JMP32 };
    let op = match cond {
        Cond::Eq => insn::JEQ,
        Cond::Ne => insn::JNE,
        Cond::Ult => insn::JLT,
        Cond::Ule => insn::JLE,
        Cond::Ugt => insn::JGT,
        Cond::Uge => insn::JGE,
        Cond::Slt => insn::JSLT,
        Cond::Sle => insn::JSLE,
        Cond::Sgt => insn::JSGT,
        Cond::Sge => insn::JSGE,
        Cond::Any | Cond::None => insn::JSET,
    };
    match rhs {
        Rhs::Imm(imm) => Insn::new(class | op, lhs, 0, 0, imm),
        Rhs::Reg => Insn::new(class | op | insn::X, lhs, right, 0, 0),
    }
}
