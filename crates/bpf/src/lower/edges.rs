//! Gives edges blocks of their own, so that moves have a place where they disturb no other path.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Program, Target, Terminator};

/// The program with every edge that leaves a branch and needs a place of its own going through a new, empty block
/// (edges that hand over values, and edges into blocks with several predecessors), and for each block of its layout
/// whether it belongs behind all others: the new blocks of edges that are taken by a jump.
///
/// The layout itself is in reverse post-order. That is more than taste: where all predecessors of a block stood
/// behind it, allocations by `regalloc2` 0.15 were refused by its own checker.
pub fn split(program: &Program) -> (Program, Vec<bool>) {
    let mut out = program.compact();
    let cfg = Cfg::new(&out);
    let mut layout = Vec::with_capacity(out.layout.len());
    let mut far = Vec::with_capacity(out.layout.len());
    // Reverse post-order, whatever order the passes left.
    out.layout = cfg.order().to_vec();
    for block in std::mem::take(&mut out.layout) {
        layout.push(block);
        far.push(false);
        let Terminator::Branch { cond, width, lhs, rhs, mut then, mut other } =
            out.blocks[block].terminator.clone()
        else {
            continue;
        };
        let same = then.block == other.block;
        for (target, near) in [(&mut then, false), (&mut other, true)] {
            if !target.args.is_empty() || same || cfg.preds(target.block).len() > 1 {
                let edge = out.new_block();
                out.blocks[edge].terminator = Terminator::Jump(target.clone());
                *target = Target::to(edge);
                layout.push(edge);
                far.push(!near);
            }
        }
        out.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
    }
    out.layout = layout;
    (out.compact(), far)
}
