//! What a value is computed from.

use std::collections::HashSet;

use runnel_ir::cfg::Cfg;
use runnel_ir::{Program, Value, ValueDef};

/// Whether any of `values` is computed from one of `sources`, by operands, addresses of loads and values handed over to
/// blocks; what went through memory is not followed.
pub fn reaches(program: &Program, values: impl Iterator<Item = Value>, sources: &HashSet<Value>) -> bool {
    if sources.is_empty() {
        return false;
    }
    let cfg = Cfg::new(program);
    let mut todo: Vec<Value> = values.collect();
    let mut seen: HashSet<Value> = todo.iter().copied().collect();
    while let Some(value) = todo.pop() {
        if sources.contains(&value) {
            return true;
        }
        let mut visit = |v| {
            if seen.insert(v) {
                todo.push(v);
            }
        };
        match program.values[value] {
            ValueDef::Inst(inst) => program.insts[inst].data.for_each_arg(&mut visit),
            ValueDef::Param(block, index) => {
                for &pred in cfg.preds(block) {
                    let targets = program.blocks[pred].terminator.targets();
                    targets.filter(|t| t.block == block).for_each(|t| visit(t.args[index as usize]));
                }
            }
        }
    }
    false
}
