//! What registers and stack hold that must be known before SSA can be built: constants, and pointers to the
//! frame, the context and maps. And how the frame is divided.
//!
//! A forward data flow over the bytecode. The lattice per register is flat: one known thing, or anything. The frame
//! is then cut into areas, each a maximal run of bytes that overlapping accesses tie together. An area whose
//! address is handed to a helper as memory stays memory (a stack slot of the IR); the others are cut
//! into pieces at every access boundary, and each piece becomes an SSA variable.

use runnel_ir::Size;

use super::flow::Flow;
use super::{LiftError, Result, Unsupported, refuse};
use crate::helpers::{self, Extent, Helper};
use crate::insn::{self, Insn};
use crate::spec::ProgramSpec;

/// What is known of a register or spilled register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing.
    Any,
    /// This constant.
    Const(u64),
    /// The context.
    Context,
    /// The frame pointer plus this many bytes (so never positive for a valid access).
    Frame(i32),
    /// The map with this index.
    Map(u32),
}

/// The frame pointer's register.
const FP: usize = 10;
/// Deepest stack offset that the kernel allows.
const FRAME_SIZE: i32 = 512;

/// What is known at one point of the program.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// By register.
    pub regs: [Known; 11],
    /// Eight-byte stack words of which something is known, by offset.
    spills: Vec<(i32, Known)>,
    /// Eight-byte stack words whose bytes all come from one store, by offset.
    whole: Vec<i32>,
}

impl State {
    fn entry() -> State {
        let mut regs = [Known::Any; 11];
        regs[1] = Known::Context;
        regs[FP] = Known::Frame(0);
        State { regs, spills: Vec::new(), whole: Vec::new() }
    }

    /// What is known of the stack word at `offset`.
    fn spill(&self, offset: i32) -> Known {
        self.spills.iter().find(|(at, _)| *at == offset).map_or(Known::Any, |(_, k)| *k)
    }

    /// Whether the bytes of the stack word at `offset` all come from one store, whichever way was taken.
    fn is_whole(&self, offset: i32) -> bool {
        self.whole.contains(&offset)
    }

    fn clobber(&mut self, start: i32, end: i32) {
        self.spills.retain(|(at, _)| *at >= end || at + 8 <= start);
        self.whole.retain(|at| *at >= end || at + 8 <= start);
    }

    fn join(&mut self, other: &State) -> bool {
        let before = self.clone();
        for (mine, theirs) in self.regs.iter_mut().zip(&other.regs) {
            if mine != theirs {
                *mine = Known::Any;
            }
        }
        self.spills.retain(|(at, known)| other.spill(*at) == *known);
        self.whole.retain(|at| other.is_whole(*at));
        *self != before
    }
}

/// An access to the frame.
#[derive(Clone, Copy)]
struct Access {
    pc: usize,
    start: i32,
    end: i32,
    /// Whether a helper gets the address and may do more than copy a key.
    memory: bool,
}

/// A stretch of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// First byte, relative to the frame pointer.
    pub start: i32,
    /// One past the last byte.
    pub end: i32,
    /// Whether it must be memory.
    pub memory: bool,
}

impl Area {
    /// Where a slot that holds the area begins, relative to the frame pointer: what is aligned in the frame is aligned
    /// in the slot then.
    pub fn slot_start(&self) -> i32 {
        self.start & !7
    }
}

/// One variable's worth of a frame area that is not memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte, relative to the frame pointer.
    pub start: i32,
    /// How many.
    pub size: Size,
}

/// What is known of the frame and at the start of each block.
pub struct Frame {
    /// State at the start of each block of the flow.
    pub at_entry: Vec<State>,
    /// The areas, ascending.
    pub areas: Vec<Area>,
    /// The pieces of all areas that are not memory, ascending.
    pub pieces: Vec<Piece>,
    /// The words that are stored as a whole, by offset, and cut into pieces: compilers keep different things in them at
    /// different times, a pointer among them, which must not be taken apart.
    pub words: Vec<i32>,
}

impl Frame {
    /// Analyses `spec`.
    ///
    /// # Errors
    /// Uses of frame or context pointers that cannot be followed.
    pub fn new(spec: &ProgramSpec, flow: &Flow) -> Result<Frame> {
        let at_entry = fixpoint(spec, flow)?;
        let mut accesses = Vec::new();
        let mut pointer_words = Vec::new();
        for (block, state) in flow.blocks.iter().zip(&at_entry) {
            let mut state = state.clone();
            for pc in block.pcs(&spec.insns) {
                collect(spec, pc, &state, &mut accesses, &mut pointer_words)?;
                step(spec, pc, &mut state)?;
            }
        }
        check_pointer_words(spec, flow, &at_entry, &pointer_words)?;
        for access in &accesses {
            if access.start < -FRAME_SIZE || access.end > 0 || access.start >= access.end {
                return refuse(access.pc, Unsupported::Malformed("accesses the stack outside of the frame"));
            }
        }
        let areas = areas(&accesses);
        let pieces = pieces(&accesses, &areas);
        let mut frame = Frame { at_entry, areas, pieces, words: Vec::new() };
        frame.words = accesses.iter().filter(|a| a.end - a.start == 8).map(|a| a.start).collect();
        frame.words.sort_unstable();
        frame.words.dedup();
        frame.words =
            frame.words.iter().copied().filter(|&at| frame.pieces_in(at, at + 8).len() > 1).collect();
        Ok(frame)
    }

    /// How many variables the frame has: one for each piece, then one for each word.
    pub fn vars(&self) -> usize {
        self.pieces.len() + self.words.len()
    }

    /// The variable that holds the word at `start`, if it is cut into pieces.
    pub fn word(&self, start: i32) -> Option<usize> {
        self.words.binary_search(&start).ok().map(|index| self.pieces.len() + index)
    }

    /// The word's variable, if a load of so many bytes can take all of it from there.
    pub fn whole_word(&self, state: &State, start: i32, bytes: u32) -> Option<usize> {
        self.word(start).filter(|_| bytes == 8 && state.is_whole(start))
    }

    /// The area that holds `offset`.
    pub fn area(&self, offset: i32) -> Option<(usize, &Area)> {
        self.areas.iter().enumerate().find(|(_, a)| a.start <= offset && offset < a.end)
    }

    /// Indices of the pieces in `[start, end)`; none where that is memory.
    pub fn pieces_in(&self, start: i32, end: i32) -> std::ops::Range<usize> {
        let first = self.pieces.partition_point(|p| p.start < start);
        let last = self.pieces.partition_point(|p| p.start < end);
        first..last
    }
}

fn fixpoint(spec: &ProgramSpec, flow: &Flow) -> Result<Vec<State>> {
    let mut at_entry: Vec<Option<State>> = vec![None; flow.blocks.len()];
    at_entry[0] = Some(State::entry());
    // In reverse post-order until nothing changes. Each round can only lose facts, so it ends.
    let mut changed = true;
    while changed {
        changed = false;
        for (at, block) in flow.blocks.iter().enumerate() {
            let Some(mut state) = at_entry[at].clone() else { continue };
            for pc in block.pcs(&spec.insns) {
                step(spec, pc, &mut state)?;
            }
            for &succ in &block.succs {
                changed |= match &mut at_entry[succ] {
                    Some(known) => known.join(&state),
                    slot => {
                        *slot = Some(state.clone());
                        true
                    }
                };
            }
        }
    }
    // Every block of the flow can be reached, so every state is there.
    Ok(at_entry.into_iter().flatten().collect())
}

/// What holds after the instruction at `pc`.
pub fn step(spec: &ProgramSpec, pc: usize, state: &mut State) -> Result<()> {
    let insn = spec.insns[pc];
    let (dst, src) = (usize::from(insn.dst()), usize::from(insn.src()));
    if dst > FP || (insn.class() != insn::LD && insn.class() != insn::JMP && src > FP) {
        return refuse(pc, Unsupported::Malformed("no such register"));
    }
    match insn.class() {
        insn::ALU | insn::ALU64 => {
            let known = alu(spec, pc, state)?;
            if dst == FP {
                return refuse(pc, Unsupported::Malformed("writes the frame pointer"));
            }
            state.regs[dst] = known;
        }
        insn::LD => state.regs[dst] = load_imm(spec, pc)?,
        insn::LDX => {
            state.regs[dst] = match state.regs[src] {
                Known::Frame(base) if insn.size() == insn::DW => state.spill(base + i32::from(insn.off)),
                _ => Known::Any,
            };
        }
        insn::ST | insn::STX => {
            if let Known::Frame(base) = state.regs[dst] {
                let start = base + i32::from(insn.off);
                state.clobber(start, start + bytes(insn));
                if insn.mode() == insn::MEM && insn.size() == insn::DW {
                    state.whole.push(start);
                    state.whole.sort_unstable();
                    let known = stored(insn, state);
                    if known != Known::Any {
                        state.spills.push((start, known));
                        state.spills.sort_by_key(|(at, _)| *at);
                    }
                }
            }
        }
        insn::JMP if insn.op() == insn::CALL => {
            clobber_memory(spec, pc, state)?;
            state.regs[0..6].fill(Known::Any);
        }
        _ => {}
    }
    Ok(())
}

/// What a store writes.
fn stored(insn: Insn, state: &State) -> Known {
    if insn.class() == insn::ST {
        Known::Const(insn.imm as i64 as u64)
    } else {
        state.regs[usize::from(insn.src())]
    }
}

fn bytes(insn: Insn) -> i32 {
    match insn.size() {
        insn::B => 1,
        insn::H => 2,
        insn::W => 4,
        _ => 8,
    }
}

fn alu(spec: &ProgramSpec, pc: usize, state: &State) -> Result<Known> {
    let insn = spec.insns[pc];
    let operand = if insn.is_reg() {
        state.regs[usize::from(insn.src())]
    } else {
        Known::Const(insn.imm as i64 as u64)
    };
    let wide = insn.class() == insn::ALU64;
    Ok(match (insn.op(), state.regs[usize::from(insn.dst())], operand) {
        (insn::MOV, _, known) if wide && insn.off == 0 => known,
        (insn::MOV, _, Known::Const(c)) if insn.off == 0 => Known::Const(u64::from(c as u32)),
        (insn::ADD, Known::Frame(base), Known::Const(c)) if wide => frame(pc, i64::from(base) + c as i64)?,
        (insn::SUB, Known::Frame(base), Known::Const(c)) if wide => frame(pc, i64::from(base) - c as i64)?,
        (insn::ADD, Known::Const(c), Known::Frame(base)) if wide => frame(pc, i64::from(base) + c as i64)?,
        (insn::END | insn::NEG, Known::Frame(_), _) | (_, Known::Frame(_), _) if insn.op() != insn::MOV => {
            return refuse(pc, Unsupported::StackPointer("arithmetic with a value that is not constant"));
        }
        (_, Known::Context, _) if insn.op() != insn::MOV => {
            return refuse(pc, Unsupported::Context("arithmetic"));
        }
        (_, _, Known::Frame(_)) if insn.is_reg() => {
            return refuse(pc, Unsupported::StackPointer("as an operand of arithmetic"));
        }
        (_, _, Known::Context) if insn.is_reg() => {
            return refuse(pc, Unsupported::Context("as an operand of arithmetic"));
        }
        _ => Known::Any,
    })
}

fn frame(pc: usize, offset: i64) -> Result<Known> {
    match i32::try_from(offset) {
        Ok(offset) if offset.abs() <= FRAME_SIZE => Ok(Known::Frame(offset)),
        _ => refuse(pc, Unsupported::StackPointer("far outside of the frame")),
    }
}

fn load_imm(spec: &ProgramSpec, pc: usize) -> Result<Known> {
    let insn = spec.insns[pc];
    if !insn.is_ld_imm64() {
        return refuse(pc, Unsupported::LegacyLoad);
    }
    let Some(high) = spec.insns.get(pc + 1) else {
        return refuse(pc, Unsupported::Malformed("ends in the middle of ld_imm64"));
    };
    match insn.src() {
        0 => Ok(Known::Const(u64::from(insn.imm as u32) | u64::from(high.imm as u32) << 32)),
        insn::PSEUDO_MAP_IDX | insn::PSEUDO_MAP_IDX_VALUE => match u32::try_from(insn.imm) {
            Ok(index) if (index as usize) < spec.maps.len() => {
                Ok(if insn.src() == insn::PSEUDO_MAP_IDX { Known::Map(index) } else { Known::Any })
            }
            _ => refuse(pc, Unsupported::Malformed("refers to a map that the program does not have")),
        },
        kind => refuse(pc, Unsupported::PseudoLoad(kind)),
    }
}

/// The helper that the call at `pc` names.
pub fn called(spec: &ProgramSpec, pc: usize) -> Result<&'static Helper> {
    let insn = spec.insns[pc];
    match insn.src() {
        insn::PSEUDO_CALL => refuse(pc, Unsupported::Subprogram),
        insn::PSEUDO_KFUNC_CALL => refuse(pc, Unsupported::Kfunc),
        _ => u32::try_from(insn.imm)
            .ok()
            .and_then(helpers::helper)
            .ok_or(LiftError { pc, reason: Unsupported::Helper(insn.imm) }),
    }
}

/// The stack memory that a helper call touches: argument, first byte, one past the last.
pub fn stack_args(spec: &ProgramSpec, pc: usize, state: &State) -> Result<Vec<(u8, i32, i32)>> {
    let helper = called(spec, pc)?;
    let mut found = Vec::new();
    for arg in helper.memory {
        let Known::Frame(start) = state.regs[usize::from(arg.pointer)] else { continue };
        let map = || match state.regs[1] {
            Known::Map(index) => Ok(&spec.maps[index as usize]),
            _ => refuse(pc, Unsupported::UnknownMap(helper.name)),
        };
        let size = match arg.extent {
            Extent::Key => map()?.key_size,
            Extent::Value => map()?.value_size,
            Extent::Arg(size) => match state.regs[usize::from(size)] {
                Known::Const(c) => u32::try_from(c).unwrap_or(u32::MAX),
                _ => return refuse(pc, Unsupported::BufferSize(helper.name)),
            },
        };
        let end = i32::try_from(size).ok().and_then(|size| start.checked_add(size));
        let Some(end) = end else {
            return refuse(pc, Unsupported::Malformed("a buffer larger than the frame"));
        };
        if end > start {
            found.push((arg.pointer, start, end));
        }
    }
    Ok(found)
}

fn clobber_memory(spec: &ProgramSpec, pc: usize, state: &mut State) -> Result<()> {
    for (_, start, end) in stack_args(spec, pc, state)? {
        state.clobber(start, end);
    }
    Ok(())
}

/// Whether the call at `pc` becomes a table instruction of the IR, whose key is given as values.
pub fn is_table_access(spec: &ProgramSpec, pc: usize, state: &State) -> bool {
    let insn = spec.insns[pc];
    let number = insn.imm as u32;
    let accesses = [helpers::MAP_LOOKUP_ELEM, helpers::MAP_UPDATE_ELEM, helpers::MAP_DELETE_ELEM];
    let known = match state.regs[1] {
        Known::Map(index) => super::table(&spec.maps[index as usize]).kind != runnel_ir::TableKind::Opaque,
        _ => false,
    };
    insn.src() == 0 && accesses.contains(&number) && known
}

fn collect(
    spec: &ProgramSpec,
    pc: usize,
    state: &State,
    accesses: &mut Vec<Access>,
    pointer_words: &mut Vec<i32>,
) -> Result<()> {
    let insn = spec.insns[pc];
    let known = |reg: u8| state.regs[usize::from(reg.min(10))];
    match insn.class() {
        insn::LDX | insn::ST | insn::STX => {
            let base = if insn.class() == insn::LDX { insn.src() } else { insn.dst() };
            match known(base) {
                Known::Frame(at) => {
                    let start = at + i32::from(insn.off);
                    accesses.push(Access {
                        pc,
                        start,
                        end: start + bytes(insn),
                        memory: insn.mode() == insn::ATOMIC,
                    });
                }
                Known::Context if insn.class() != insn::LDX => {
                    return refuse(pc, Unsupported::Context("a store to it"));
                }
                _ => {}
            }
            if insn.class() == insn::STX && matches!(known(insn.src()), Known::Frame(_) | Known::Context) {
                let Known::Frame(at) = known(base) else {
                    return refuse(pc, Unsupported::StackPointer("stored outside of the frame"));
                };
                if insn.size() != insn::DW || insn.mode() != insn::MEM {
                    return refuse(pc, Unsupported::StackPointer("stored in part"));
                }
                pointer_words.push(at + i32::from(insn.off));
            }
        }
        insn::JMP | insn::JMP32 if insn.op() == insn::CALL => {
            let as_values = is_table_access(spec, pc, state);
            for (arg, start, end) in stack_args(spec, pc, state)? {
                accesses.push(Access { pc, start, end, memory: !(as_values && arg == 2) });
            }
            check_pointer_args(spec, pc, state)?;
        }
        insn::JMP | insn::JMP32 if insn.op() == insn::EXIT => {
            if matches!(known(0), Known::Frame(_) | Known::Context) {
                return refuse(pc, Unsupported::Malformed("returns a pointer"));
            }
        }
        insn::JMP | insn::JMP32 if insn.op() != insn::JA => {
            let pointer = |k| matches!(k, Known::Frame(_) | Known::Context);
            if pointer(known(insn.dst())) || (insn.is_reg() && pointer(known(insn.src()))) {
                return refuse(pc, Unsupported::StackPointer("compared"));
            }
        }
        _ => {}
    }
    Ok(())
}

/// Frame pointers may go only where the helper's description says what happens to the memory.
fn check_pointer_args(spec: &ProgramSpec, pc: usize, state: &State) -> Result<()> {
    let helper = called(spec, pc)?;
    for arg in 1..=helper.arity {
        let described = helper.memory.iter().any(|m| m.pointer == arg);
        if matches!(state.regs[usize::from(arg)], Known::Frame(_)) && !described {
            return refuse(pc, Unsupported::StackPointer("handed to a helper that is not known to take one"));
        }
    }
    Ok(())
}

/// A word that ever holds a frame or context pointer must be known wherever it is read, and a register that holds
/// one on some path into a block must hold the same on all, or not be read: else SSA would have to merge them.
fn check_pointer_words(spec: &ProgramSpec, flow: &Flow, at_entry: &[State], words: &[i32]) -> Result<()> {
    for (block, entry) in flow.blocks.iter().zip(at_entry) {
        let mut state = entry.clone();
        for pc in block.pcs(&spec.insns) {
            let insn = spec.insns[pc];
            if insn.class() == insn::LDX
                && let Known::Frame(base) = state.regs[usize::from(insn.src().min(10))]
            {
                let start = base + i32::from(insn.off);
                let touches = words.iter().any(|&w| start < w + 8 && w < start + bytes(insn));
                let exact = insn.size() == insn::DW && words.contains(&start);
                if touches && !(exact && state.spill(start) != Known::Any) {
                    // The word may have been reused for something else on every path here; that is the
                    // ordinary case after register allocation, and then no pointer can be in it.
                    if may_hold_pointer(spec, flow, at_entry, block.start, pc, start, bytes(insn))? {
                        return refuse(
                            pc,
                            Unsupported::StackPointer(
                                "read back from a word that holds it only on some paths",
                            ),
                        );
                    }
                }
            }
            step(spec, pc, &mut state)?;
        }
    }
    Ok(())
}

/// Whether on some path to `pc` the last store that overlaps `[start, start + size)` stored a frame or context pointer.
fn may_hold_pointer(
    spec: &ProgramSpec,
    flow: &Flow,
    at_entry: &[State],
    block_start: usize,
    pc: usize,
    start: i32,
    size: i32,
) -> Result<bool> {
    let home = flow.blocks.iter().position(|b| b.start == block_start).unwrap_or(0);
    let mut seen = vec![false; flow.blocks.len()];
    let mut todo = vec![(home, Some(pc))];
    while let Some((at, before)) = todo.pop() {
        // The last overlapping store of the stretch decides; without one, look further back.
        let mut state = at_entry[at].clone();
        let mut last = None;
        for here in flow.blocks[at].pcs(&spec.insns) {
            if before.is_some_and(|b| here >= b) {
                break;
            }
            let insn = spec.insns[here];
            if matches!(insn.class(), insn::ST | insn::STX)
                && let Known::Frame(base) = state.regs[usize::from(insn.dst().min(10))]
            {
                let to = base + i32::from(insn.off);
                if to < start + size && start < to + bytes(insn) {
                    let pointer = matches!(stored(insn, &state), Known::Frame(_) | Known::Context);
                    last = Some(pointer);
                }
            }
            step(spec, here, &mut state)?;
        }
        match last {
            Some(true) => return Ok(true),
            Some(false) => {}
            None => {
                for &pred in &flow.blocks[at].preds {
                    if !std::mem::replace(&mut seen[pred], true) {
                        todo.push((pred, None));
                    }
                }
            }
        }
    }
    Ok(false)
}

/// Merges overlapping accesses.
fn areas(accesses: &[Access]) -> Vec<Area> {
    let mut sorted: Vec<Access> = accesses.to_vec();
    sorted.sort_by_key(|a| (a.start, a.end));
    let mut areas: Vec<Area> = Vec::new();
    for access in sorted {
        match areas.last_mut() {
            Some(last) if access.start < last.end => {
                last.end = last.end.max(access.end);
                last.memory |= access.memory;
            }
            _ => areas.push(Area { start: access.start, end: access.end, memory: access.memory }),
        }
    }
    areas
}

/// Cuts the areas that are not memory at every access boundary, and then to what one aligned access can have.
fn pieces(accesses: &[Access], areas: &[Area]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for area in areas.iter().filter(|a| !a.memory) {
        let inside = accesses.iter().filter(|a| area.start <= a.start && a.end <= area.end);
        let mut cuts: Vec<i32> = inside.flat_map(|a| [a.start, a.end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let mut at = pair[0];
            while at < pair[1] {
                let left = (pair[1] - at) as u32;
                let size = Size::ALL
                    .into_iter()
                    .rev()
                    .find(|s| s.bytes() <= left && at.rem_euclid(s.bytes() as i32) == 0);
                let size = size.unwrap_or(Size::B1);
                pieces.push(Piece { start: at, size });
                at += size.bytes() as i32;
            }
        }
    }
    pieces
}
