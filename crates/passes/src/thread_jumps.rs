//! Lets a jump that decides a later branch go straight to where that branch leads.
//!
//! Where the arguments of an edge (constants, or addresses that are not null), or the comparisons passed before it,
//! decide the branch at the end of the block that it leads to, the edge is directed to a copy of that block that
//! ends in a jump instead. The same goes for a short chain of blocks up to the last branch that is so decided. Edges
//! with the same way before them share one copy. Each path executes the same instructions as before, effects
//! included, only fewer branches. (Known as jump threading; see Muchnick, "Advanced Compiler Design and
//! Implementation", section 18.)
//!
//! A block that a loop comes back to is never copied: that would give the loop a second entry, and copying could
//! go on for ever. Copies are bounded by [`MAX_CHAIN`] instructions for one, and by the program's own size for all.
//!
//! Uses: dominators, provenance, edges. Invalidates: everything about edges; SSA form, which
//! [`crate::ssa_repair`] restores.

use std::collections::BTreeMap;

use runnel_analysis::Provenances;
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, EntitySet, InstData, Program, Target, Terminator, Value};

use crate::edit::drop_unreachable;
use crate::lattice::Known;
use crate::ssa_repair::{ExtraDefs, repair};

/// The most instructions that one block may have to be copied.
const MAX_BLOCK: usize = 12;
/// The most instructions in a chain of copies.
const MAX_CHAIN: usize = 24;
/// How many comparisons before the edge are taken into account.
const MAX_LOOK_BACK: usize = 8;
/// How often the program is gone through; more is seldom found, and the next call goes on.
const MAX_ROUNDS: usize = 4;
/// Programs of this size grow no further: the kernel takes a million instructions, executed ones included.
const MAX_SIZE: usize = 1 << 16;

/// Directs decided edges of `program` to where they lead; says whether there were any.
pub fn thread_jumps(program: &mut Program) -> bool {
    let mut room = program.size().min(MAX_SIZE.saturating_sub(program.size()));
    let mut changed = drop_unreachable(program);
    for _ in 0..MAX_ROUNDS {
        if !thread_once(program, &mut room) {
            break;
        }
        changed = true;
    }
    changed
}

/// Blocks to be copied, each with the number of the target that it is left by.
type Way = Vec<(Block, usize)>;

/// An edge: the block that it leaves, and which of its targets it is.
type Edge = (Block, usize);

fn thread_once(program: &mut Program, room: &mut usize) -> bool {
    let ways = plan(program);
    let mut extra = ExtraDefs::new();
    let mut changed = false;
    for (way, edges) in ways {
        let size: usize = way.iter().map(|&(block, _)| program.blocks[block].insts.len() + 1).sum();
        if size > *room {
            continue;
        }
        *room -= size;
        let copy = copy_way(program, &way, &mut extra);
        for (block, edge) in edges {
            if let Some(target) = program.blocks[block].terminator.targets_mut().nth(edge) {
                target.block = copy;
            }
        }
        changed = true;
    }
    if changed {
        drop_unreachable(program);
        repair(program, &extra);
    }
    changed
}

/// The ways worth copying, each with the edges to be directed to its copy, in the order of the first such edge.
fn plan(program: &Program) -> Vec<(Way, Vec<Edge>)> {
    let cfg = Cfg::new(program);
    let provenances = Provenances::new(program, &cfg);
    let mut heads: EntitySet<Block> = EntitySet::new();
    for &block in cfg.order() {
        for target in program.blocks[block].terminator.targets() {
            if cfg.is_back_edge(block, target.block) {
                heads.insert(target.block);
            }
        }
    }
    let planner = Planner { program, cfg: &cfg, provenances: &provenances, heads };
    let mut ways: Vec<(Way, Vec<Edge>)> = Vec::new();
    let mut known: BTreeMap<Way, usize> = BTreeMap::new();
    for &block in cfg.order() {
        for (edge, target) in program.blocks[block].terminator.targets().enumerate() {
            // What leads only here needs no copy: the edges out of it are looked at with all that is known on this one.
            if cfg.preds(target.block).len() == 1 {
                continue;
            }
            let way = planner.way(block, edge, target);
            if way.is_empty() {
                continue;
            }
            let i = *known.entry(way.clone()).or_insert_with(|| {
                ways.push((way, Vec::new()));
                ways.len() - 1
            });
            ways[i].1.push((block, edge));
        }
    }
    ways
}

/// What is known of values on one way through the program.
type Facts = BTreeMap<Value, Known>;

struct Planner<'p> {
    program: &'p Program,
    cfg: &'p Cfg,
    provenances: &'p Provenances,
    /// The blocks that loops come back to.
    heads: EntitySet<Block>,
}

impl Planner<'_> {
    /// The way from an edge to the last branch that the edge decides; empty if it decides none.
    fn way(&self, block: Block, edge: usize, target: &Target) -> Way {
        let mut facts = self.facts_on(block, edge);
        let mut way = Way::new();
        let (mut decided, mut size) = (0, 0);
        let mut next = target;
        loop {
            let block = next.block;
            let data = &self.program.blocks[block];
            size += data.insts.len();
            let passed = way.iter().any(|&(before, _)| before == block);
            if passed || self.heads.contains(block) || data.insts.len() > MAX_BLOCK || size > MAX_CHAIN {
                break;
            }
            self.enter(&mut facts, next);
            match &data.terminator {
                Terminator::Jump(target) => {
                    way.push((block, 0));
                    next = target;
                }
                Terminator::Branch { cond, width, lhs, rhs, then, other } => {
                    let decision =
                        Known::decide(*cond, *width, &self.known(&facts, *lhs), &self.known(&facts, *rhs));
                    let Some(holds) = decision.outcome() else { break };
                    way.push((block, usize::from(!holds)));
                    decided = way.len();
                    next = if holds { then } else { other };
                }
                Terminator::Return(_) | Terminator::Deopt(_) => break,
            }
        }
        way.truncate(decided);
        way
    }

    /// What the comparison at the end of `block`, and those that lead to it alone, say on an edge.
    fn facts_on(&self, block: Block, edge: usize) -> Facts {
        let mut passed = vec![(block, edge)];
        let mut block = block;
        while let (&[pred], true) = (self.cfg.preds(block), passed.len() < MAX_LOOK_BACK) {
            let edge = self.program.blocks[pred].terminator.targets().position(|t| t.block == block);
            passed.push((pred, edge.unwrap_or(0)));
            block = pred;
        }
        let mut facts = Facts::new();
        for &(block, edge) in passed.iter().rev() {
            let Terminator::Branch { cond, width, lhs, rhs, .. } = self.program.blocks[block].terminator
            else {
                continue;
            };
            let cond = if edge == 0 { cond } else { cond.negate() };
            if let Some(c) = self.program.as_const(rhs) {
                let refined = self.known(&facts, lhs).refine(cond, width, c, false);
                facts.insert(lhs, refined);
            }
        }
        facts
    }

    fn known(&self, facts: &Facts, value: Value) -> Known {
        if let Some(known) = facts.get(&value) {
            return known.clone();
        }
        match self.program.as_const(value) {
            Some(c) => Known::constant(c),
            None if self.provenances.of(value).is_non_null() => Known::NonZero,
            None => Known::Varies,
        }
    }

    /// Notes what a block's parameters and results are when it is entered by `target`.
    fn enter(&self, facts: &mut Facts, target: &Target) {
        let data = &self.program.blocks[target.block];
        let args: Vec<Known> = target.args.iter().map(|&arg| self.known(facts, arg)).collect();
        facts.extend(data.params.iter().copied().zip(args));
        for node in data.insts.iter().map(|&inst| &self.program.insts[inst]) {
            let Some(result) = node.result else { continue };
            let known = match node.data {
                InstData::Unary { op, arg } => Known::unary(op, &self.known(facts, arg)),
                InstData::Binary { op, width, lhs, rhs } => {
                    Known::binary(op, width, &self.known(facts, lhs), &self.known(facts, rhs))
                }
                _ => continue,
            };
            if known != Known::Varies {
                facts.insert(result, known);
            }
        }
    }
}

/// Copies the blocks of a way, one jumping to the next and the last one to where the way leads; gives the first
/// copy. Its parameters are those of the first block.
fn copy_way(program: &mut Program, way: &Way, extra: &mut ExtraDefs) -> Block {
    let copies: Vec<Block> = way.iter().map(|_| program.new_block()).collect();
    program.layout.extend(&copies);
    let mut copied: BTreeMap<Value, Value> = BTreeMap::new();
    for (i, &(block, edge)) in way.iter().enumerate() {
        let original = program.blocks[block].clone();
        for &param in &original.params {
            copied.insert(param, program.append_param(copies[i]));
        }
        for &inst in &original.insts {
            let mut node = program.insts[inst].clone();
            node.data.map_args(|v| *copied.get(&v).unwrap_or(&v));
            let made = program.append_inst(copies[i], node.data, node.origin);
            if let (Some(was), Some(is)) = (node.result, program.insts[made].result) {
                copied.insert(was, is);
            }
        }
        if let Some(target) = original.terminator.targets().nth(edge) {
            let next = copies.get(i + 1).copied().unwrap_or(target.block);
            let args = target.args.iter().map(|v| *copied.get(v).unwrap_or(v));
            program.blocks[copies[i]].terminator = Terminator::Jump(Target::with(next, args));
        }
    }
    for (was, is) in copied {
        extra.entry(was).or_default().push(is);
    }
    copies[0]
}
