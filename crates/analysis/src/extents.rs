//! Values that decide which bytes are accessed, or how often a loop runs.
//!
//! These are the distances in pointer arithmetic, the arguments of callees, which may be sizes, and the operands of
//! branches in loops, with all that they are computed from. Whoever re-checks the program without knowing what
//! memory holds needs to see bounds on them in the program itself: a comparison or a mask that bounds one may be
//! redundant and still has to stay.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, InstData, Program, SecondaryMap, Terminator, Value, ValueDef};

use crate::{Provenance, Provenances};

/// For each value whether it is, or goes by arithmetic and parameters into, a distance, an argument or a bound.
pub struct Extents {
    goes: SecondaryMap<Value, bool>,
}

impl Extents {
    /// Finds the values that decide what reachable blocks access and how often they run.
    pub fn new(program: &Program, cfg: &Cfg, provenances: &Provenances) -> Extents {
        let mut this = Extents { goes: SecondaryMap::new() };
        let mut work = Vec::new();
        for node in cfg.order().iter().flat_map(|&b| &program.blocks[b].insts).map(|&i| &program.insts[i]) {
            match (&node.data, node.result) {
                (InstData::Call { args, .. }, _) => work.extend(args),
                (InstData::Binary { lhs, rhs, .. }, Some(result))
                    if matches!(provenances.of(result), Provenance::Pointer(_) | Provenance::Unknown) =>
                {
                    work.extend([*lhs, *rhs].into_iter().filter(|&v| !provenances.of(v).is_non_null()));
                }
                _ => {}
            }
        }
        let in_loop = in_loop(program, cfg);
        for &block in cfg.order().iter().filter(|&&block| in_loop[block]) {
            if let Terminator::Branch { lhs, rhs, .. } = program.blocks[block].terminator {
                work.extend([lhs, rhs]);
            }
        }
        while let Some(value) = work.pop() {
            if std::mem::replace(&mut this.goes[value], true) {
                continue;
            }
            match program.values[value] {
                ValueDef::Inst(inst) => {
                    if let data @ (InstData::Binary { .. } | InstData::Unary { .. }) =
                        &program.insts[inst].data
                    {
                        data.for_each_arg(|v| work.push(v));
                    }
                }
                ValueDef::Param(block, index) => {
                    for &pred in cfg.preds(block) {
                        let targets = program.blocks[pred].terminator.targets();
                        work.extend(targets.filter(|t| t.block == block).map(|t| t.args[index as usize]));
                    }
                }
            }
        }
        this
    }

    /// Whether `value` decides which bytes are accessed or how often a loop runs.
    pub fn contains(&self, value: Value) -> bool {
        self.goes[value]
    }
}

/// For each block whether a loop leads through it: those from which the source of a back edge can be reached without
/// passing its target.
fn in_loop(program: &Program, cfg: &Cfg) -> SecondaryMap<Block, bool> {
    let mut found: SecondaryMap<Block, bool> = SecondaryMap::new();
    for &block in cfg.order() {
        for target in program.blocks[block].terminator.targets() {
            if !cfg.is_back_edge(block, target.block) {
                continue;
            }
            let mut seen: SecondaryMap<Block, bool> = SecondaryMap::new();
            seen[target.block] = true;
            found[target.block] = true;
            let mut work = vec![block];
            while let Some(block) = work.pop() {
                if !std::mem::replace(&mut seen[block], true) {
                    found[block] = true;
                    work.extend(cfg.preds(block));
                }
            }
        }
    }
    found
}
