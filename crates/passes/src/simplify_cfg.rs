//! Straightens the control flow.
//!
//! * Blocks that cannot be reached leave the layout.
//! * A block that only jumps on is bypassed by those who jump to it, unless it saves them a move.
//! * A block with one way in, whose predecessor has one way out, becomes the end of its predecessor.
//! * A parameter that gets the same value from everywhere, or itself, or the same constant, is replaced by it (the
//!   trivial phis of Braun et al., "Simple and Efficient Construction of Static Single Assignment Form", CC 2013).
//! * A branch whose targets are equal becomes a jump; a constant left of a comparison goes to its right.
//! * The layout becomes the reverse post-order, in which a branch tends to be followed by its second target.
//!
//! Equal tails of blocks are not merged: one instruction would then access memory through different kinds of
//! pointers on different paths, which the kernel's verifier refuses.
//!
//! Uses: edges and def-use lists. Invalidates: everything about edges; block parameters; layout positions.

use runnel_analysis::{Site, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Program, SecondaryMap, Target, Terminator, Value};

use crate::edit::{Replacements, constant_at_front, drop_unreachable, incoming, retain_params};

/// Straightens the control flow of `program` until nothing is left to straighten; says whether it changed.
pub fn simplify_cfg(program: &mut Program) -> bool {
    let mut changed = false;
    loop {
        let mut again = settle_branches(program);
        again |= bypass_empty_blocks(program);
        again |= drop_unreachable(program);
        again |= replace_trivial_params(program);
        again |= merge_lines(program);
        if !again {
            return order_layout(program) || changed;
        }
        changed = true;
    }
}

fn settle_branches(program: &mut Program) -> bool {
    let mut changed = false;
    for &block in &program.layout.clone() {
        let Terminator::Branch { cond, width, lhs, rhs, then, other } = &program.blocks[block].terminator
        else {
            continue;
        };
        let settled = if then == other {
            Terminator::Jump(then.clone())
        } else if program.as_const(*lhs).is_some() && program.as_const(*rhs).is_none() {
            Terminator::Branch {
                cond: cond.swap(),
                width: *width,
                lhs: *rhs,
                rhs: *lhs,
                then: then.clone(),
                other: other.clone(),
            }
        } else {
            continue;
        };
        program.blocks[block].terminator = settled;
        changed = true;
    }
    changed
}

/// Where `block` jumps on to, if that is all it does.
fn passes_on<'p>(program: &'p Program, uses: &Uses, block: Block) -> Option<&'p Target> {
    let data = &program.blocks[block];
    let own =
        |param: &Value| uses.of(*param).iter().all(|at| at.block == block && at.site == Site::Terminator);
    match &data.terminator {
        Terminator::Jump(target) if data.insts.is_empty() && data.params.iter().all(own) => Some(target),
        _ => None,
    }
}

/// `target` as seen from before the empty block that it leads to, which passes on to `next`.
fn composed(program: &Program, target: &Target, next: &Target) -> Target {
    let params = &program.blocks[target.block].params;
    let given = |arg: &Value| match params.iter().position(|param| param == arg) {
        Some(i) => target.args[i],
        None => *arg,
    };
    Target::with(next.block, next.args.iter().map(given))
}

/// Where a jump to `target` ends up after the empty blocks behind it, as far as `is_worthwhile` says of each; none
/// if there are none, or if they form a ring.
fn destination(
    program: &Program,
    uses: &Uses,
    target: &Target,
    is_worthwhile: impl Fn(&Program, Block, &Target) -> bool,
) -> Option<Target> {
    let mut passed = vec![target.block];
    let mut at = target.clone();
    while let Some(next) =
        passes_on(program, uses, at.block).filter(|next| is_worthwhile(program, at.block, next))
    {
        if passed.contains(&next.block) {
            return None;
        }
        passed.push(next.block);
        at = composed(program, &at, next);
    }
    (passed.len() > 1).then_some(at)
}

fn bypass_empty_blocks(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    // What a block hands over that it was not handed itself takes a move: better to share one than to repeat it on
    // every edge.
    let is_worthwhile = |program: &Program, block: Block, next: &Target| {
        let params = &program.blocks[block].params;
        cfg.preds(block).len() == 1 || next.args.iter().all(|arg| params.contains(arg))
    };
    // The blocks bypassed keep their ends, and no parameter of theirs gets a use elsewhere: the lists stay right.
    let uses = Uses::new(program);
    let mut changed = false;
    for &block in &program.layout.clone() {
        let mut terminator = program.blocks[block].terminator.clone();
        for target in terminator.targets_mut() {
            if let Some(destination) = destination(program, &uses, target, is_worthwhile) {
                *target = destination;
                changed = true;
            }
        }
        program.blocks[block].terminator = terminator;
    }
    changed
}

fn replace_trivial_params(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let mut replacements = Replacements::default();
    for &block in cfg.order().iter().skip(1) {
        let given = incoming(program, &cfg, block);
        let mut kept = vec![true; program.blocks[block].params.len()];
        for (i, kept) in kept.iter_mut().enumerate() {
            let param = program.blocks[block].params[i];
            let args = given.iter().map(|args| replacements.find(args[i])).filter(|&arg| arg != param);
            if let Some(value) = only_value(program, block, args) {
                replacements.replace(param, value);
                *kept = false;
            }
        }
        if kept.contains(&false) {
            retain_params(program, &cfg, block, &kept);
        }
    }
    replacements.apply(program)
}

/// The one value that all of `args` are; a new constant, if they are all that constant.
fn only_value(program: &mut Program, block: Block, args: impl Iterator<Item = Value>) -> Option<Value> {
    let args: Vec<Value> = args.collect();
    let first = *args.first()?;
    if args.iter().all(|&arg| arg == first) {
        return Some(first);
    }
    let constant = program.as_const(first)?;
    args.iter()
        .all(|&arg| program.as_const(arg) == Some(constant))
        .then(|| constant_at_front(program, block, constant))
}

fn merge_lines(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let mut replacements = Replacements::default();
    let mut absorbed: SecondaryMap<Block, bool> = SecondaryMap::new();
    for &block in cfg.order() {
        if absorbed[block] {
            continue;
        }
        while let Terminator::Jump(target) = &program.blocks[block].terminator
            && cfg.preds(target.block).len() == 1
            && target.block != block
        {
            let target = target.clone();
            absorbed[target.block] = true;
            let params = std::mem::take(&mut program.blocks[target.block].params);
            for (&param, &arg) in params.iter().zip(&target.args) {
                replacements.replace(param, arg);
            }
            let insts = std::mem::take(&mut program.blocks[target.block].insts);
            program.blocks[block].insts.extend(insts);
            program.blocks[block].terminator = program.blocks[target.block].terminator.clone();
        }
    }
    program.layout.retain(|&block| !absorbed[block]);
    replacements.apply(program);
    cfg.order().iter().any(|&block| absorbed[block])
}

fn order_layout(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let changed = program.layout != cfg.order();
    program.layout = cfg.order().to_vec();
    changed
}
