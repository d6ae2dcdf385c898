//! Removes what nobody needs: instructions whose results are not used, block parameters, unreachable blocks.
//!
//! What is needed is marked from the roots (instructions with effects, and terminators) backwards; a parameter is
//! needed only when something else than itself needs it, so that values which only go round a loop are dropped
//! too (mark and sweep as in Cytron et al., "Efficiently Computing Static Single Assignment Form", TOPLAS 1991,
//! section 7.1, with every branch a root). An instruction may go if its effects are
//! [removable](runnel_ir::Effects::is_removable): loads and lookups may, but not what changes anything.
//!
//! Unused tables, data, slots and callees stay declared, because others refer to them by number.
//!
//! Uses: effects. Invalidates: def-use lists; block parameters.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Program, SecondaryMap, Value, ValueDef};

use crate::edit::{drop_unreachable, retain_params};

/// Removes dead code from `program`; says whether there was any.
pub fn eliminate_dead_code(program: &mut Program) -> bool {
    let mut changed = drop_unreachable(program);
    let cfg = Cfg::new(program);
    let needed = mark(program, &cfg);
    for &block in cfg.order() {
        let kept: Vec<bool> = program.blocks[block].params.iter().map(|&p| needed[p]).collect();
        if block != program.entry() && kept.contains(&false) {
            retain_params(program, &cfg, block, &kept);
            changed = true;
        }
        let mut insts = std::mem::take(&mut program.blocks[block].insts);
        let before = insts.len();
        insts.retain(|&inst| {
            let node = &program.insts[inst];
            !node.data.effects(program).is_removable() || node.result.is_none_or(|r| needed[r])
        });
        changed |= insts.len() != before;
        program.blocks[block].insts = insts;
    }
    changed
}

/// The values that are needed.
fn mark(program: &Program, cfg: &Cfg) -> SecondaryMap<Value, bool> {
    let mut needed: SecondaryMap<Value, bool> = SecondaryMap::new();
    let mut work = Vec::new();
    for &block in cfg.order() {
        let data = &program.blocks[block];
        for node in data.insts.iter().map(|&inst| &program.insts[inst]) {
            if !node.data.effects(program).is_removable() {
                node.data.for_each_arg(|v| work.push(v));
            }
        }
        // What a jump hands over is needed only if the parameter is.
        let mut end = data.terminator.clone();
        end.targets_mut().for_each(|target| target.args.clear());
        end.for_each_arg(|v| work.push(v));
    }
    while let Some(value) = work.pop() {
        if std::mem::replace(&mut needed[value], true) {
            continue;
        }
        match program.values[value] {
            ValueDef::Inst(inst) => program.insts[inst].data.for_each_arg(|v| work.push(v)),
            ValueDef::Param(block, index) => {
                for &pred in cfg.preds(block) {
                    let targets = program.blocks[pred].terminator.targets();
                    work.extend(targets.filter(|t| t.block == block).map(|t| t.args[index as usize]));
                }
            }
        }
    }
    needed
}
