//! Gives edges blocks of their own, so that moves have a place where they disturb no other path.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Program, Target, Terminator};

/// The program with every edge that leaves a branch and needs a place of its own going through a new, empty block:
/// edges that hand over values, and edges into blocks with several predecessors.
pub fn split(program: &Program) -> Program {
    let mut out = program.compact();
    let cfg = Cfg::new(&out);
    // Blocks that nothing reaches confuse nobody but the register allocator.
    out.layout.retain(|&b| cfg.is_reachable(b));
    let mut layout = Vec::with_capacity(out.layout.len());
    let mut far = Vec::new();
    for block in std::mem::take(&mut out.layout) {
        layout.push(block);
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
                if near {
                    layout.push(edge);
                } else {
                    far.push(edge);
                }
            }
        }
        out.blocks[block].terminator = Terminator::Branch { cond, width, lhs, rhs, then, other };
    }
    layout.append(&mut far);
    out.layout = layout;
    out.compact()
}
