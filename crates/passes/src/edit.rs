//! What several passes need in order to change a program: values that take the place of others.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, InstData, Program, SecondaryMap, Value, ValueDef};

/// Values to be replaced everywhere. Gathered first and applied at once, so that a pass may go on reading the
/// program as it was.
#[derive(Default)]
pub(crate) struct Replacements {
    by: SecondaryMap<Value, Option<Value>>,
    any: bool,
}

impl Replacements {
    /// Lets `by` take the place of `value`. The two must not be the same in the end.
    pub(crate) fn replace(&mut self, value: Value, by: Value) {
        let by = self.find(by);
        debug_assert_ne!(value, by, "a value cannot replace itself");
        self.by[value] = Some(by);
        self.any = true;
    }

    /// What stands for `value` in the end.
    pub(crate) fn find(&self, mut value: Value) -> Value {
        while let Some(by) = self.by[value] {
            value = by;
        }
        value
    }

    /// Changes every use in the program; says whether there was anything to replace.
    pub(crate) fn apply(&self, program: &mut Program) -> bool {
        if self.any {
            program.map_values(|v| self.find(v));
        }
        self.any
    }
}

/// Puts a constant before all instructions of `block`.
pub(crate) fn constant_at_front(program: &mut Program, block: Block, constant: u64) -> Value {
    let inst = program.new_inst(InstData::Const(constant), None);
    program.blocks[block].insts.insert(0, inst);
    program.insts[inst].result.expect("a constant has a result")
}

/// Takes the blocks that cannot be reached out of the layout; says whether there were any.
pub(crate) fn drop_unreachable(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let before = program.layout.len();
    program.layout.retain(|&block| cfg.is_reachable(block));
    program.layout.len() != before
}

/// The blocks that jump to `block`, each once, in the order of their numbers.
pub(crate) fn distinct_preds(cfg: &Cfg, block: Block) -> Vec<Block> {
    let mut preds = cfg.preds(block).to_vec();
    preds.sort_unstable();
    preds.dedup();
    preds
}

/// The arguments that each edge into `block` hands over.
pub(crate) fn incoming(program: &Program, cfg: &Cfg, block: Block) -> Vec<Vec<Value>> {
    let preds = distinct_preds(cfg, block);
    let targets = preds.iter().flat_map(|&pred| program.blocks[pred].terminator.targets());
    targets.filter(|target| target.block == block).map(|target| target.args.to_vec()).collect()
}

/// Drops the parameters of `block` that are not `kept`, with the arguments for them.
/// Every block of the layout must be reachable.
pub(crate) fn retain_params(program: &mut Program, cfg: &Cfg, block: Block, kept: &[bool]) {
    let params = std::mem::take(&mut program.blocks[block].params);
    let params: Vec<Value> =
        params.into_iter().zip(kept).filter(|(_, kept)| **kept).map(|(p, _)| p).collect();
    for (i, &param) in params.iter().enumerate() {
        program.values[param] = ValueDef::Param(block, i as u32);
    }
    program.blocks[block].params = params;
    for pred in distinct_preds(cfg, block) {
        for target in program.blocks[pred].terminator.targets_mut().filter(|t| t.block == block) {
            let mut kept = kept.iter();
            target.args.retain(|_| kept.next() == Some(&true));
        }
    }
}
