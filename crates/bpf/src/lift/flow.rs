//! Decodes bytecode into blocks. Checks that jumps land on instructions and that no path runs off the end.

use smallvec::SmallVec;

use super::{Result, Unsupported, refuse};
use crate::insn::{self, Insn};

/// A stretch of instructions entered only at its start and left only at its end.
pub struct FlowBlock {
    /// First instruction slot.
    pub start: usize,
    /// Slot of the last instruction.
    pub last: usize,
    /// Blocks that may follow: of a conditional jump the one that is jumped to, then the one that follows.
    pub succs: SmallVec<[usize; 2]>,
    /// Blocks that may come before, once for each edge.
    pub preds: Vec<usize>,
}

/// The blocks of a program that can be reached, in reverse post-order; the first is the entry.
pub struct Flow {
    /// The blocks.
    pub blocks: Vec<FlowBlock>,
}

/// Slots that an instruction takes.
pub fn width(insn: Insn) -> usize {
    if insn.is_ld_imm64() { 2 } else { 1 }
}

/// Whether an instruction ends its block, and where a jump goes.
enum End {
    Falls,
    Exits,
    Jumps(usize),
    Branches(usize),
}

fn end_of(insns: &[Insn], pc: usize) -> Result<End> {
    let insn = insns[pc];
    let class = insn.class();
    if class != insn::JMP && class != insn::JMP32 {
        return Ok(End::Falls);
    }
    let jump = |distance: i64| {
        let to = pc as i64 + 1 + distance;
        usize::try_from(to).ok().filter(|&t| t < insns.len())
    };
    let found = match insn.op() {
        insn::CALL => return Ok(End::Falls),
        insn::EXIT => return Ok(End::Exits),
        insn::JCOND => return refuse(pc, Unsupported::MayGoto),
        insn::JA if class == insn::JMP32 => jump(insn.imm.into()).map(End::Jumps),
        insn::JA => jump(insn.off.into()).map(End::Jumps),
        op if op <= insn::JSLE => jump(insn.off.into()).map(End::Branches),
        _ => return refuse(pc, Unsupported::Malformed("no such jump")),
    };
    found.map_or_else(|| refuse(pc, Unsupported::Malformed("jumps out of the program")), Ok)
}

impl Flow {
    /// Finds the blocks of `insns`.
    ///
    /// # Errors
    /// Jumps that leave the program or land inside of an instruction, and `may_goto`.
    pub fn new(insns: &[Insn]) -> Result<Flow> {
        if insns.is_empty() {
            return refuse(0, Unsupported::Malformed("the program is empty"));
        }
        let starts = Self::leaders(insns)?;
        let (raw, entry) = Self::cut(insns, &starts)?;
        Ok(Self::in_order(raw, entry))
    }

    /// Marks each slot where a block starts.
    fn leaders(insns: &[Insn]) -> Result<Vec<bool>> {
        let mut starts = vec![false; insns.len()];
        let mut is_insn = vec![false; insns.len()];
        let mut targets = Vec::new();
        starts[0] = true;
        let mut pc = 0;
        while pc < insns.len() {
            is_insn[pc] = true;
            let next = pc + width(insns[pc]);
            match end_of(insns, pc)? {
                End::Falls => {}
                End::Exits => {
                    if next < insns.len() {
                        starts[next] = true;
                    }
                }
                End::Jumps(to) | End::Branches(to) => {
                    targets.push((pc, to));
                    if next < insns.len() {
                        starts[next] = true;
                    }
                }
            }
            if next > insns.len() {
                return refuse(pc, Unsupported::Malformed("ends in the middle of ld_imm64"));
            }
            pc = next;
        }
        for (pc, to) in targets {
            if !is_insn[to] {
                return refuse(pc, Unsupported::Malformed("jumps into the middle of ld_imm64"));
            }
            starts[to] = true;
        }
        Ok(starts)
    }

    fn cut(insns: &[Insn], starts: &[bool]) -> Result<(Vec<FlowBlock>, usize)> {
        let mut index = vec![usize::MAX; insns.len()];
        let mut count = 0;
        for (pc, &is) in starts.iter().enumerate() {
            if is {
                index[pc] = count;
                count += 1;
            }
        }
        let mut blocks: Vec<FlowBlock> = Vec::with_capacity(count);
        let mut pc = 0;
        while pc < insns.len() {
            let start = pc;
            let mut last = pc;
            while pc < insns.len() && (pc == start || !starts[pc]) {
                last = pc;
                pc += width(insns[pc]);
            }
            let mut succs = SmallVec::new();
            let end = end_of(insns, last)?;
            if let End::Jumps(to) | End::Branches(to) = end {
                succs.push(index[to]);
            }
            if matches!(end, End::Falls | End::Branches(_)) {
                // A block that nothing reaches may run off the end; `in_order` drops it.
                succs.push(if pc < insns.len() { index[pc] } else { usize::MAX });
            }
            blocks.push(FlowBlock { start, last, succs, preds: Vec::new() });
        }
        for (at, block) in blocks.iter().enumerate() {
            if at == 0 || block.succs.iter().all(|&s| s != usize::MAX) {
                continue;
            }
            return refuse(block.last, Unsupported::Malformed("runs off the end"));
        }
        if blocks[0].succs.contains(&usize::MAX) {
            return refuse(blocks[0].last, Unsupported::Malformed("runs off the end"));
        }
        Ok((blocks, 0))
    }

    /// Keeps what can be reached, in reverse post-order.
    fn in_order(raw: Vec<FlowBlock>, entry: usize) -> Flow {
        let mut seen = vec![false; raw.len()];
        let mut post = Vec::new();
        let mut stack = vec![(entry, 0)];
        seen[entry] = true;
        while let Some((block, next)) = stack.pop() {
            match raw[block].succs.get(next) {
                Some(&succ) => {
                    stack.push((block, next + 1));
                    if !std::mem::replace(&mut seen[succ], true) {
                        stack.push((succ, 0));
                    }
                }
                None => post.push(block),
            }
        }
        post.reverse();
        let mut position = vec![usize::MAX; raw.len()];
        for (new, &old) in post.iter().enumerate() {
            position[old] = new;
        }
        let mut raw: Vec<Option<FlowBlock>> = raw.into_iter().map(Some).collect();
        let mut blocks: Vec<FlowBlock> = post.iter().filter_map(|&old| raw[old].take()).collect();
        for block in &mut blocks {
            for succ in &mut block.succs {
                *succ = position[*succ];
            }
        }
        for at in 0..blocks.len() {
            for succ in blocks[at].succs.clone() {
                blocks[succ].preds.push(at);
            }
        }
        Flow { blocks }
    }
}

impl FlowBlock {
    /// The slots of the block's instructions.
    pub fn pcs<'a>(&self, insns: &'a [Insn]) -> impl Iterator<Item = usize> + 'a {
        let last = self.last;
        std::iter::successors(Some(self.start), move |&pc| {
            (pc < last).then(|| pc + width(insns[pc])).filter(|&next| next <= last)
        })
    }
}
