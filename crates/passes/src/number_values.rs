//! Computes each thing once: an instruction whose result an earlier one has already is removed.
//!
//! Dominator-scoped value numbering (Briggs, Cooper and Simpson, "Value Numbering", SPE 1997, section 4): the
//! dominator tree is walked with a scoped table from operation and operands to the value that has the result.
//! Instructions without effects qualify always; loads of packet, slots, constant data and context qualify where the
//! bytes are [still those](runnel_analysis::Available) that the earlier load read, on every path between the
//! two, and no call lies there (see [`Facts::LoadsBetweenCalls`]). Operations whose operands may be exchanged are found in either order.
//!
//! Lookups stay, as do loads of table values and live data: others may have changed them in between.
//!
//! Uses: dominators, provenance, escapes, available loads. Invalidates: def-use lists.

use std::collections::HashMap;

use runnel_analysis::{Available, Facts, Memory, Point};
use runnel_ir::cfg::{Cfg, Dominators};
use runnel_ir::{Block, Inst, InstData, Program, SecondaryMap, Value};

use crate::edit::Replacements;

/// Removes repeated computations from `program`; says whether there were any.
pub fn number_values(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let dominators = Dominators::new(program, &cfg);
    let memory = Memory::new(program, &cfg);
    let available = Available::new(program, &cfg, &memory, Facts::LoadsBetweenCalls);
    let mut numbering = Numbering::default();
    let mut scopes: Vec<(Block, Vec<InstData>)> = Vec::new();
    for &block in dominators.preorder() {
        while let Some((_, entered)) = scopes.pop_if(|(above, _)| !dominators.dominates(*above, block)) {
            entered.iter().for_each(|key| numbering.forget(key));
        }
        let mut point = available.at_entry(block);
        let mut entered = Vec::new();
        for &inst in &program.blocks[block].insts {
            entered.extend(numbering.visit(program, inst, &point));
            point.pass(inst);
        }
        scopes.push((block, entered));
    }
    let Numbering { replacements, repeated, .. } = numbering;
    for &block in cfg.order() {
        program.blocks[block].insts.retain(|&inst| !repeated[inst]);
    }
    replacements.apply(program)
}

#[derive(Default)]
struct Numbering {
    /// For each operation in scope the instructions that have its result, latest last; of operations without
    /// effects there is only one.
    leaders: HashMap<InstData, Vec<(Inst, Value)>>,
    replacements: Replacements,
    repeated: SecondaryMap<Inst, bool>,
}

impl Numbering {
    /// Finds an instruction's leader, or enters it as one; gives the key that it was entered by.
    fn visit(&mut self, program: &Program, inst: Inst, point: &Point<'_>) -> Option<InstData> {
        let node = &program.insts[inst];
        let result = node.result?;
        let is_load = matches!(node.data, InstData::Load { .. } | InstData::CtxLoad { .. });
        if !is_load && !node.data.effects(program).is_empty() {
            return None;
        }
        let mut key = node.data.clone();
        key.map_args(|v| self.replacements.find(v));
        order_operands(&mut key);
        let leaders = self.leaders.entry(key.clone()).or_default();
        let leader = leaders.iter().rev().find(|(leader, _)| !is_load || point.holds(*leader));
        if let Some(&(_, value)) = leader {
            self.replacements.replace(result, value);
            self.repeated[inst] = true;
            if !is_load {
                return None;
            }
        }
        // A repeated load renews what is known of the bytes.
        leaders.push((inst, self.replacements.find(result)));
        Some(key)
    }

    fn forget(&mut self, key: &InstData) {
        if let Some(leaders) = self.leaders.get_mut(key) {
            leaders.pop();
        }
    }
}

fn order_operands(key: &mut InstData) {
    if let InstData::Binary { op, lhs, rhs, .. } = key
        && op.is_commutative()
        && *lhs > *rhs
    {
        std::mem::swap(lhs, rhs);
    }
}
