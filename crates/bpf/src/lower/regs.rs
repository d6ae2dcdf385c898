//! Hands the code to `regalloc2`, and its result to the independent checker, always: a wrong allocation would be a
//! wrong verdict, and the check takes a fraction of the time that the kernel's verifier takes afterwards.

use regalloc2::{
    Algorithm, Block, Function, Inst, InstRange, MachineEnv, Operand, Output, PRegSet, RegAllocError,
    RegClass, RegallocOptions, VReg,
};

use super::LowerError;
use super::select::{Code, Op, preg};

/// The registers of the machine: r0 to r5 first, since a call takes no notice of r6 to r9 but the kernel's
/// compiler saves and restores each of those that a program uses.
fn machine() -> MachineEnv {
    let set = |range: std::ops::RangeInclusive<usize>| range.fold(PRegSet::empty(), |s, r| s.with(preg(r)));
    MachineEnv {
        preferred_regs_by_class: [set(0..=5), PRegSet::empty(), PRegSet::empty()],
        non_preferred_regs_by_class: [set(6..=9), PRegSet::empty(), PRegSet::empty()],
        scratch_by_class: [None; 3],
        fixed_stack_slots: Vec::new(),
    }
}

/// Chooses a register or stack word for every operand.
pub fn allocate(code: &Code) -> Result<Output, LowerError> {
    let options = RegallocOptions {
        verbose_log: false,
        validate_ssa: cfg!(debug_assertions),
        algorithm: Algorithm::Ion,
    };
    let env = machine();
    let failed = |e: RegAllocError| LowerError::Registers(e.to_string());
    let output = regalloc2::run(code, &env, &options).map_err(failed)?;
    let mut checker = regalloc2::checker::Checker::new(code, &env);
    checker.prepare(&output);
    checker.run().map_err(|e| LowerError::Registers(format!("the checker refuses it: {e:?}")))?;
    Ok(output)
}

impl Function for Code {
    fn num_insts(&self) -> usize {
        self.insts.len()
    }
    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }
    fn entry_block(&self) -> Block {
        Block::new(0)
    }
    fn block_insns(&self, block: Block) -> InstRange {
        let (start, end) = self.blocks[block.index()].range;
        InstRange::new(Inst::new(start), Inst::new(end))
    }
    fn block_succs(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].succs
    }
    fn block_preds(&self, block: Block) -> &[Block] {
        &self.blocks[block.index()].preds
    }
    fn block_params(&self, block: Block) -> &[VReg] {
        &self.blocks[block.index()].params
    }
    fn is_ret(&self, insn: Inst) -> bool {
        matches!(self.insts[insn.index()].op, Op::Return | Op::Original)
    }
    fn is_branch(&self, insn: Inst) -> bool {
        matches!(self.insts[insn.index()].op, Op::Branch(..) | Op::Jump)
    }
    fn branch_blockparams(&self, block: Block, _: Inst, _: usize) -> &[VReg] {
        &self.blocks[block.index()].args
    }
    fn inst_operands(&self, insn: Inst) -> &[Operand] {
        &self.insts[insn.index()].operands
    }
    fn inst_clobbers(&self, insn: Inst) -> PRegSet {
        self.insts[insn.index()].clobbers
    }
    fn num_vregs(&self) -> usize {
        self.vregs
    }
    fn spillslot_size(&self, _: RegClass) -> usize {
        1
    }
}
