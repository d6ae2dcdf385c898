//! Puts the blocks in order, and gives edges blocks of their own, so that moves have a place where they disturb no
//! other path.
//!
//! Packets that fail a check leave early, and the others are those that a network function is there for. So, as far as
//! one can tell without knowing the traffic, the longer side of a branch is the one that packets take: it follows
//! directly, and what leaves goes behind everything else.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Program, SecondaryMap, Target, Terminator};

/// The program with every edge that leaves a branch and needs a place of its own going through a new, empty block
/// (edges that hand over values, and edges into blocks with several predecessors), and for each block of its layout
/// whether it belongs behind all others.
///
/// The layout itself is in reverse post-order. That is more than taste: where all predecessors of a block stood behind
/// it, allocations by `regalloc2` 0.15 were refused by its own checker.
pub fn split(program: &Program) -> (Program, Vec<bool>) {
    let mut out = program.compact();
    let cfg = Cfg::new(&out);
    let ways = Ways::new(&out, &cfg);
    let order = ways.in_order(&out);
    let leaves = ways.leaving_blocks(&out, &order);
    // New blocks that stand in front of a block, or behind one.
    let mut before: SecondaryMap<Block, Option<Block>> = SecondaryMap::new();
    let mut behind: SecondaryMap<Block, Vec<(Block, bool)>> = SecondaryMap::new();
    for (at, &block) in order.iter().enumerate() {
        let Terminator::Branch { cond, width, lhs, rhs, mut then, mut other } =
            out.blocks[block].terminator.clone()
        else {
            continue;
        };
        let same = then.block == other.block;
        for target in [&mut then, &mut other] {
            if target.args.is_empty() && !same && cfg.preds(target.block).len() == 1 {
                continue;
            }
            let to = target.block;
            let edge = out.new_block();
            out.blocks[edge].terminator = Terminator::Jump(target.clone());
            *target = Target::to(edge);
            let far = leaves[block] || ways.is_leaving(&out, block, to);
            let falls_through = order.get(at + 1) == Some(&to);
            if far || falls_through || before[to].is_some() || cfg.is_back_edge(block, to) {
                behind[block].push((edge, far));
            } else {
                before[to] = Some(edge);
            }
        }
        out.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
    }
    let mut far = Vec::new();
    out.layout.clear();
    for block in order {
        let blocks = before[block].map(|edge| (edge, false)).into_iter().chain([(block, leaves[block])]);
        for (block, is_far) in blocks.chain(std::mem::take(&mut behind[block])) {
            out.layout.push(block);
            far.push(is_far);
        }
    }
    (out.compact(), far)
}

/// How many instructions lie on the longest way from the beginning of each block to an end of the program, no loop
/// gone through twice.
struct Ways<'c> {
    cfg: &'c Cfg,
    longest: SecondaryMap<Block, usize>,
}

impl<'c> Ways<'c> {
    fn new(program: &Program, cfg: &'c Cfg) -> Ways<'c> {
        let mut longest: SecondaryMap<Block, usize> = SecondaryMap::new();
        for &block in cfg.order().iter().rev() {
            let ahead = program.blocks[block].terminator.targets().map(|t| t.block);
            let ahead = ahead.filter(|&target| !cfg.is_back_edge(block, target));
            let rest = ahead.map(|target| longest[target]).max().unwrap_or(0);
            longest[block] = rest + program.blocks[block].insts.len() + 1;
        }
        Ways { cfg, longest }
    }

    /// Whether the edge leads past most of what the other side of the branch still does.
    fn is_leaving(&self, program: &Program, from: Block, to: Block) -> bool {
        let longest = program.blocks[from].terminator.targets().map(|t| self.longest[t.block]).max();
        longest.is_some_and(|longest| self.longest[to] * 2 < longest)
    }

    /// The reachable blocks in the reverse post-order that has the longer side directly behind a branch, where no
    /// other way to the same place forbids it.
    fn in_order(&self, program: &Program) -> Vec<Block> {
        let next = |block: Block| {
            let mut targets: Vec<Block> =
                program.blocks[block].terminator.targets().map(|t| t.block).collect();
            // What is visited last comes first in the order.
            targets.sort_by_key(|&target| self.longest[target]);
            targets.into_iter()
        };
        let mut order = Vec::new();
        let mut seen: SecondaryMap<Block, bool> = SecondaryMap::new();
        seen[program.entry()] = true;
        let mut stack = vec![(program.entry(), next(program.entry()))];
        while let Some((block, targets)) = stack.last_mut() {
            match targets.next() {
                Some(target) if !std::mem::replace(&mut seen[target], true) => {
                    stack.push((target, next(target)));
                }
                Some(_) => {}
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order.reverse();
        order
    }

    /// The blocks that only packets come to which leave.
    fn leaving_blocks(&self, program: &Program, order: &[Block]) -> SecondaryMap<Block, bool> {
        let mut leaves: SecondaryMap<Block, bool> = SecondaryMap::new();
        for &block in order.iter().skip(1) {
            let mut ahead = self.cfg.preds(block).iter().filter(|&&pred| !self.cfg.is_back_edge(pred, block));
            leaves[block] = ahead.all(|&pred| leaves[pred] || self.is_leaving(program, pred, block));
        }
        leaves
    }
}
