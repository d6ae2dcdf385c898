//! Judges whether a program is well-formed. Runs between passes in tests, and before lowering always.
//!
//! It says nothing about memory safety: that is the kernel verifier's to prove on the lowered program.

use cranelift_entity::{EntityRef, SecondaryMap};
use thiserror::Error;

use crate::cfg::{Cfg, Dominators};
use crate::{Block, InstData, Key, Program, TableKind, Terminator, Value, ValueDef};

/// A program that is not well-formed: a mistake of the pass that made it.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{block}: {message}")]
pub struct VerifyError {
    /// The block where it was found.
    pub block: Block,
    /// What is wrong there.
    pub message: String,
}

/// Checks that every entity exists, each value is defined once and before its uses on every path, jumps hand over as
/// many values as their target takes, keys cover their table's key exactly, and offsets lie within their object.
///
/// # Errors
/// The first violation found.
pub fn verify(program: &Program) -> Result<(), VerifyError> {
    let Some(&entry) = program.layout.first() else {
        return Err(VerifyError { block: Block::new(0), message: "the program has no block".into() });
    };
    Verifier::structure(program, entry)?;
    let cfg = Cfg::new(program);
    let dominators = Dominators::new(program, &cfg);
    let verifier = Verifier { program, cfg: &cfg, dominators: &dominators, place: places(program) };
    program.layout.iter().try_for_each(|&block| verifier.block(block))
}

/// Block and position in it where each value is defined; parameters stand before position 0.
fn places(program: &Program) -> SecondaryMap<Value, Option<(Block, usize)>> {
    let mut place = SecondaryMap::new();
    for &block in &program.layout {
        for &param in &program.blocks[block].params {
            place[param] = Some((block, 0));
        }
        for (i, &inst) in program.blocks[block].insts.iter().enumerate() {
            if let Some(result) = program.insts[inst].result {
                place[result] = Some((block, i + 1));
            }
        }
    }
    place
}

struct Verifier<'p> {
    program: &'p Program,
    cfg: &'p Cfg,
    dominators: &'p Dominators,
    place: SecondaryMap<Value, Option<(Block, usize)>>,
}

impl Verifier<'_> {
    /// What must hold before edges can be followed at all.
    fn structure(program: &Program, entry: Block) -> Result<(), VerifyError> {
        let mut listed: SecondaryMap<Block, bool> = SecondaryMap::new();
        let fail = |block, message: String| Err(VerifyError { block, message });
        for &block in &program.layout {
            if !program.blocks.is_valid(block) {
                return fail(block, "the layout names a block that does not exist".into());
            }
            if std::mem::replace(&mut listed[block], true) {
                return fail(block, "the layout names the block twice".into());
            }
        }
        if program.blocks[entry].params.len() != 1 {
            return fail(entry, "the entry takes one parameter, the context".into());
        }
        for &block in &program.layout {
            for target in program.blocks[block].terminator.targets() {
                if !listed[target.block] {
                    return fail(block, format!("jumps to {}, which is not in the layout", target.block));
                }
                if target.block == entry {
                    return fail(block, "jumps to the entry".into());
                }
                let takes = program.blocks[target.block].params.len();
                if target.args.len() != takes {
                    let gives = target.args.len();
                    return fail(
                        block,
                        format!("hands {gives} values to {}, which takes {takes}", target.block),
                    );
                }
            }
        }
        Ok(())
    }

    fn block(&self, block: Block) -> Result<(), VerifyError> {
        let fail = |message: String| Err(VerifyError { block, message });
        let data = &self.program.blocks[block];
        for (i, &param) in data.params.iter().enumerate() {
            if !self.program.values.is_valid(param)
                || self.program.values[param] != ValueDef::Param(block, i as u32)
            {
                return fail(format!("{param} does not know that it is parameter {i}"));
            }
        }
        for (i, &inst) in data.insts.iter().enumerate() {
            let node = &self.program.insts[inst];
            if node.data.has_result() != node.result.is_some() {
                return fail(format!(
                    "{inst} has a result where it should have none, or none where it should"
                ));
            }
            if let Some(result) = node.result
                && (self.program.values[result] != ValueDef::Inst(inst)
                    || self.place[result] != Some((block, i + 1)))
            {
                return fail(format!("{result} is defined elsewhere too"));
            }
            let mut bad = None;
            node.data.for_each_arg(|v| bad = bad.or((!self.is_defined(v, block, i)).then_some(v)));
            if let Some(v) = bad {
                return fail(format!("`{}` uses {v}, which is not defined on every path there", node.data));
            }
            self.references(&node.data).or_else(|m| fail(format!("`{}`: {m}", node.data)))?;
        }
        let mut bad = None;
        data.terminator
            .for_each_arg(|v| bad = bad.or((!self.is_defined(v, block, data.insts.len())).then_some(v)));
        if let Some(v) = bad {
            return fail(format!("`{}` uses {v}, which is not defined on every path there", data.terminator));
        }
        if let Terminator::Deopt(v) = data.terminator
            && v != self.program.context()
        {
            return fail("deopt takes the context".into());
        }
        Ok(())
    }

    fn is_defined(&self, value: Value, block: Block, before: usize) -> bool {
        match self.place[value] {
            None => false,
            Some((home, position)) if home == block => position <= before,
            Some((home, _)) => !self.cfg.is_reachable(block) || self.dominators.dominates(home, block),
        }
    }

    fn references(&self, data: &InstData) -> Result<(), String> {
        let p = self.program;
        let table =
            |t| if p.tables.is_valid(t) { Ok(&p.tables[t]) } else { Err(format!("{t} is not declared")) };
        let within = |offset: u32, size: usize, what: &dyn std::fmt::Display| {
            if offset as usize <= size { Ok(()) } else { Err(format!("{what} has only {size} bytes")) }
        };
        match data {
            InstData::SlotAddr { slot, offset } => {
                let found = p.slots.get(*slot).ok_or_else(|| format!("{slot} is not declared"))?;
                within(*offset, found.size as usize, slot)
            }
            InstData::DataAddr { data, offset } => {
                let found = p.data.get(*data).ok_or_else(|| format!("{data} is not declared"))?;
                within(*offset, found.bytes.len(), data)
            }
            InstData::TableRef(t) => table(*t).map(|_| ()),
            InstData::TableValue { table: t, offset } => within(*offset, table(*t)?.value_size as usize, t),
            InstData::Lookup { table: t, key }
            | InstData::Update { table: t, key, .. }
            | InstData::Delete { table: t, key } => {
                let found = table(*t)?;
                if found.kind == TableKind::Opaque {
                    return Err(format!("{t} is opaque: only callees may access it"));
                }
                covers(key, found.key_size)
            }
            InstData::Call { callee, args } => {
                let found = p.callees.get(*callee).ok_or_else(|| format!("{callee} is not declared"))?;
                if args.len() == usize::from(found.arity) {
                    Ok(())
                } else {
                    Err(format!("{callee} takes {} arguments", found.arity))
                }
            }
            InstData::CtxLoad { ctx, .. } if *ctx != p.context() => Err("ctx_load takes the context".into()),
            InstData::AtomicAdd { size, .. } if size.bytes() < 4 => {
                Err("atomics are of 32 or 64 bits".into())
            }
            _ => Ok(()),
        }
    }
}

fn covers(key: &Key, key_size: u32) -> Result<(), String> {
    let mut next = 0;
    for part in key {
        if u32::from(part.offset) != next {
            return Err(format!("the key's parts leave or repeat byte {}", next.min(part.offset.into())));
        }
        next += part.size.bytes();
    }
    if next == key_size { Ok(()) } else { Err(format!("the key has {next} bytes, the table's {key_size}")) }
}
