//! Replaces what always is one constant by that constant, and branches that always go one way by jumps.
//!
//! Sparse conditional constant propagation (Wegman and Zadeck, "Constant Propagation with Conditional Branches",
//! TOPLAS 1991): optimistic, over values and edges at once, so that what only dead branches contribute does not
//! count. Three things are added.
//!
//! * A value may be one of a few constants, or not zero (see [`crate::lattice`]).
//! * Loads from constant data are constants where the address is known, and one of a column's values where only
//!   the row is not. Addresses of slots, data and table values are not zero.
//! * Behind a comparison with a constant, more is known of the value compared. Each such edge makes a name of its
//!   own for the value, valid in what the edge dominates (the pi nodes of Bodík et al., "ABCD", PLDI 2000,
//!   without writing them into the program).
//!
//! A branch that is decided only because an operand is one of several constants stays if that operand also bounds
//! [an access or a loop](runnel_analysis::Extents): whoever re-checks the program does not see into memory,
//! and needs the branch as a bound. What stands behind such a branch is kept sound too, although it may never run.
//! Live data never folds.
//!
//! Uses: dominators, provenance, possible bits, extents, def-use lists. Invalidates: everything about values and edges;
//! blocks may become unreachable.

mod columns;
mod refinements;

use runnel_analysis::{Extents, Knowledge, Memory, PossibleBits, Site, Use, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Inst, InstData, Program, SecondaryMap, Terminator, Value};

use self::columns::Columns;
use self::refinements::{Name, Refinements};
use crate::lattice::{Decision, Known};

/// Folds constants in `program`; says whether it changed.
pub fn fold_constants(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let bits = PossibleBits::new(program, &cfg, Knowledge::True);
    let memory = Memory::new(program, &cfg);
    let solution = Solver::new(program, &cfg, &memory, &bits).solve();
    rewrite(program, &cfg, &solution)
}

/// What the propagation found.
struct Solution {
    refinements: Refinements,
    known: SecondaryMap<Value, Known>,
    refined: Vec<Known>,
    outcomes: SecondaryMap<Block, Option<Decision>>,
}

impl Solution {
    fn of(&self, name: Name) -> &Known {
        match name {
            Name::Value(value) => &self.known[value],
            Name::Refined(i) => &self.refined[i],
        }
    }

    /// What is known of `value` where `block` uses it.
    fn operand(&self, block: Block, value: Value) -> &Known {
        self.of(self.refinements.name(block, value))
    }

    /// What is known of `value` where an edge hands it over.
    fn on_edge(&self, block: Block, edge: usize, value: Value) -> &Known {
        self.of(self.refinements.name_on_edge(block, edge, value))
    }
}

/// A piece of work: something whose operands are better known than before.
#[derive(Clone, Copy)]
enum Task {
    At(Use),
    Refine(usize),
}

struct Solver<'p> {
    program: &'p Program,
    memory: &'p Memory<'p>,
    bits: &'p PossibleBits,
    uses: Uses,
    columns: Columns,
    extents: Extents,
    reached: SecondaryMap<Block, bool>,
    taken: SecondaryMap<Block, [bool; 2]>,
    work: Vec<Task>,
    solution: Solution,
}

impl<'p> Solver<'p> {
    fn new(program: &'p Program, cfg: &Cfg, memory: &'p Memory<'p>, bits: &'p PossibleBits) -> Solver<'p> {
        let refinements = Refinements::new(program, cfg);
        let refined = vec![Known::Unreached; refinements.len()];
        let mut known: SecondaryMap<Value, Known> = SecondaryMap::new();
        known[program.context()] = Known::Varies;
        Solver {
            program,
            memory,
            bits,
            uses: Uses::new(program),
            columns: Columns::default(),
            extents: Extents::new(program, cfg, memory.provenances()),
            reached: SecondaryMap::new(),
            taken: SecondaryMap::new(),
            work: Vec::new(),
            solution: Solution { refinements, known, refined, outcomes: SecondaryMap::new() },
        }
    }

    fn solve(mut self) -> Solution {
        self.reach(self.program.entry());
        loop {
            while let Some(task) = self.work.pop() {
                match task {
                    Task::At(at) if self.reached[at.block] => self.evaluate(at),
                    Task::At(_) => {}
                    Task::Refine(i) => self.refine(i),
                }
            }
            let contradictions = self.contradictions();
            if contradictions.is_empty() {
                return self.solution;
            }
            contradictions.iter().for_each(|(i, known)| self.raise_refined(*i, known));
        }
    }

    /// Refinements by which nothing is left of a value, on edges that are taken all the same because the branch stays
    /// as a bound: each with what was known before. With nothing at all to go on, what stands behind the edge would be
    /// taken for never computed, while whoever re-checks the program follows it.
    fn contradictions(&self) -> Vec<(usize, Known)> {
        let taken = self.solution.refinements.on_edges().filter(|&(block, edge, i)| {
            self.taken[block][edge] && self.solution.refined[i] == Known::Unreached
        });
        let before = taken.map(|(_, _, i)| (i, self.solution.of(self.solution.refinements.node(i).parent)));
        before.filter(|(_, known)| **known != Known::Unreached).map(|(i, known)| (i, known.clone())).collect()
    }

    fn reach(&mut self, block: Block) {
        if std::mem::replace(&mut self.reached[block], true) {
            return;
        }
        self.work.push(Task::At(Use { block, site: Site::Terminator }));
        let insts = &self.program.blocks[block].insts;
        self.work.extend(insts.iter().rev().map(|&i| Task::At(Use { block, site: Site::Inst(i) })));
    }

    fn evaluate(&mut self, at: Use) {
        match at.site {
            Site::Inst(inst) => {
                if let Some(result) = self.program.insts[inst].result {
                    let found = self.result(at.block, &self.program.insts[inst].data, result);
                    self.raise(result, &found);
                }
            }
            Site::Terminator => self.leave(at.block),
        }
    }

    fn operand(&self, block: Block, value: Value) -> &Known {
        self.solution.operand(block, value)
    }

    fn result(&mut self, block: Block, data: &InstData, result: Value) -> Known {
        if self.memory.provenances().of(result).is_non_null() {
            return Known::NonZero;
        }
        match *data {
            InstData::Const(c) => Known::constant(c),
            InstData::TableRef(_) => Known::NonZero,
            InstData::Unary { op, arg } => Known::unary(op, self.operand(block, arg)),
            InstData::Binary { op, width, lhs, rhs } => {
                Known::binary(op, width, self.operand(block, lhs), self.operand(block, rhs))
            }
            InstData::Load { size, ptr, offset } => {
                self.columns.loaded(self.program, self.memory, size, ptr, offset)
            }
            _ => Known::Varies,
        }
    }

    fn raise(&mut self, value: Value, found: &Known) {
        let joined = self.solution.known[value].join(found);
        if joined != self.solution.known[value] {
            self.solution.known[value] = joined;
            self.work.extend(self.uses.of(value).iter().map(|&at| Task::At(at)));
            self.work.extend(self.solution.refinements.of_value(value).iter().map(|&i| Task::Refine(i)));
        }
    }

    fn refine(&mut self, i: usize) {
        let node = self.solution.refinements.node(i);
        let narrow = self.bits.fits(node.value, u64::from(u32::MAX));
        let found = self.solution.of(node.parent).refine(node.cond, node.width, node.constant, narrow);
        self.raise_refined(i, &found);
    }

    fn raise_refined(&mut self, i: usize, found: &Known) {
        let node = self.solution.refinements.node(i);
        let joined = self.solution.refined[i].join(found);
        if joined != self.solution.refined[i] {
            self.solution.refined[i] = joined;
            self.work.extend(self.uses.of(node.value).iter().map(|&at| Task::At(at)));
            self.work.extend(node.children.iter().map(|&child| Task::Refine(child)));
        }
    }

    fn leave(&mut self, block: Block) {
        let decision = self.decide(block);
        self.solution.outcomes[block] = Some(decision);
        for (edge, taken) in [decision.may_hold, decision.may_fail].into_iter().enumerate() {
            self.taken[block][edge] |= taken;
            if self.taken[block][edge] {
                self.follow(block, edge);
            }
        }
    }

    /// Whether a comparison of `value`, of which `known` is known, has to stay.
    fn is_bound(&self, value: Value, known: &Known) -> bool {
        matches!(known, Known::OneOf(set) if set.len() > 1) && self.extents.contains(value)
    }

    fn decide(&self, block: Block) -> Decision {
        match self.program.blocks[block].terminator {
            Terminator::Branch { cond, width, lhs, rhs, .. } => {
                let (a, b) = (self.operand(block, lhs), self.operand(block, rhs));
                if self.is_bound(lhs, a) || self.is_bound(rhs, b) {
                    return Decision::OPEN;
                }
                Known::decide(cond, width, a, b)
            }
            Terminator::Jump(_) => Decision { may_hold: true, may_fail: false },
            Terminator::Return(_) | Terminator::Deopt(_) => Decision { may_hold: false, may_fail: false },
        }
    }

    fn follow(&mut self, block: Block, edge: usize) {
        let Some(target) = self.program.blocks[block].terminator.targets().nth(edge) else { return };
        for (&param, &arg) in self.program.blocks[target.block].params.iter().zip(&target.args) {
            let found = self.solution.on_edge(block, edge, arg).clone();
            self.raise(param, &found);
        }
        self.reach(target.block);
    }
}

fn rewrite(program: &mut Program, cfg: &Cfg, solution: &Solution) -> bool {
    let mut changed = false;
    for &block in cfg.order() {
        let Some(decision) = solution.outcomes[block] else { continue };
        let mut constants = Constants::new(block);
        for inst in program.blocks[block].insts.clone() {
            changed |= fold_result(program, solution, inst);
            let mut data = program.insts[inst].data.clone();
            data.map_args(|v| constants.of(program, v, solution.operand(block, v)));
            program.insts[inst].data = data;
        }
        let mut end = program.blocks[block].terminator.clone();
        for (edge, target) in end.targets_mut().enumerate() {
            for arg in &mut target.args {
                *arg = constants.of(program, *arg, solution.on_edge(block, edge, *arg));
            }
        }
        let settled = decided(&end, decision);
        changed |= settled.is_some();
        end = settled.unwrap_or(end);
        if let Terminator::Branch { lhs, rhs, .. } = &mut end {
            *lhs = constants.of(program, *lhs, solution.operand(block, *lhs));
            *rhs = constants.of(program, *rhs, solution.operand(block, *rhs));
        } else if let Terminator::Return(v) = &mut end {
            *v = constants.of(program, *v, solution.operand(block, *v));
        }
        program.blocks[block].terminator = end;
        changed |= constants.place(program);
    }
    changed
}

/// The jump that a branch with only one outcome becomes.
fn decided(end: &Terminator, decision: Decision) -> Option<Terminator> {
    let Terminator::Branch { then, other, .. } = end else { return None };
    let target = if decision.outcome()? { then } else { other };
    Some(Terminator::Jump(target.clone()))
}

/// Turns an instruction whose result is a constant into that constant.
fn fold_result(program: &mut Program, solution: &Solution, inst: Inst) -> bool {
    let node = &program.insts[inst];
    let constant = node.result.and_then(|r| solution.known[r].as_constant());
    let (Some(constant), false) = (constant, matches!(node.data, InstData::Const(_))) else { return false };
    program.insts[inst].data = InstData::Const(constant);
    true
}

/// Constants that one block needs for parameters and refined values, which no instruction there defines.
struct Constants {
    block: Block,
    made: Vec<(u64, Inst, Value)>,
}

impl Constants {
    fn new(block: Block) -> Constants {
        Constants { block, made: Vec::new() }
    }

    /// What to use in place of `value`, of which `known` is known.
    fn of(&mut self, program: &mut Program, value: Value, known: &Known) -> Value {
        let Some(constant) = known.as_constant() else { return value };
        if program.as_const(value) == Some(constant) {
            return value;
        }
        if let Some(&(_, _, made)) = self.made.iter().find(|(c, ..)| *c == constant) {
            return made;
        }
        let inst = program.new_inst(InstData::Const(constant), None);
        let made = program.insts[inst].result.expect("a constant has a result");
        self.made.push((constant, inst, made));
        made
    }

    /// Puts the constants at the block's beginning; says whether there are any.
    fn place(self, program: &mut Program) -> bool {
        let any = !self.made.is_empty();
        program.blocks[self.block].insts.splice(0..0, self.made.into_iter().map(|(_, inst, _)| inst));
        any
    }
}
