//! What a trace reached: directions of branches, and entries of tables.
//!
//! Counted by the interpreter on the lifted original, because that is the program whose behaviour is compared. What
//! was not reached is named by its instruction in the original, so that it can be judged; directions that no packet can
//! take, as far as that is plain to see, are told apart.

use std::collections::HashSet;
use std::fmt;

use runnel_bpf::disasm;
use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;
use runnel_interp::{Counters, Reached};
use runnel_ir::{BinaryOp, Block, Cond, InstData, Program, Table, TableKind, Terminator, Value, ValueDef};
use runnel_kernel::replay::PACKET_MIN;

use super::maps::Snapshot;
use super::reference::Reference;

/// A direction of a branch that no packet took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreached {
    /// The slot of the jump in the original, where it is known.
    pub insn: Option<usize>,
    /// The jump, in the notation of disassemblers; of the IR where the slot is not known.
    pub text: String,
    /// The direction: whether the condition holds.
    pub taken: bool,
    /// Why no packet can take it, if that is plain to see.
    pub impossible: Option<Impossible>,
}

/// Why no packet takes a direction of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Impossible {
    /// It is for an element that an array does not have, at an index that it has.
    NoElement,
    /// It is for a frame without a whole Ethernet header, and the kernel gives XDP none.
    NoHeader,
    /// Only such directions lead to the branch.
    Behind,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Impossible::NoElement => "every index of an array has an element",
            Impossible::NoHeader => "XDP is given no frame without an Ethernet header",
            Impossible::Behind => "only what cannot happen leads there",
        })
    }
}

/// Entries of one table that lookups found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableReach {
    /// The table.
    pub table: String,
    /// How many of its entries.
    pub entries: Reached,
}

/// What was reached.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reach {
    /// Directions of branches.
    pub branches: Reached,
    /// Those that were not reached.
    pub unreached: Vec<Unreached>,
    /// Entries of the tables that were asked about.
    pub tables: Vec<TableReach>,
}

impl Reach {
    /// What the interpreted runs of the lifted original `ir` reached together; entries of `tables` in the first run
    /// only, of which `contents` are what the tables held.
    pub fn new(
        ir: &Program,
        spec: &ProgramSpec,
        runs: &[&Reference],
        tables: &[Table],
        contents: &Snapshot,
    ) -> Reach {
        let Some((first, others)) = runs.split_first() else { return Reach::default() };
        let mut counters: Counters = first.counters().clone();
        others.iter().for_each(|run| counters.merge(run.counters()));
        let come_to = reachable(ir);
        let mut unreached = Vec::new();
        for &block in &ir.layout {
            if !matches!(ir.blocks[block].terminator, Terminator::Branch { .. }) {
                continue;
            }
            let directions = counters.branch(first.compiled(), block);
            for (taken, count) in [true, false].into_iter().zip(directions) {
                if count == 0 {
                    let behind = (!come_to.contains(&block)).then_some(Impossible::Behind);
                    let impossible = behind.or_else(|| impossible(ir, block, taken));
                    let (insn, text) = describe(ir, spec, block);
                    unreached.push(Unreached { insn, text, taken, impossible });
                }
            }
        }
        let entries = |&table: &Table| {
            let name = ir.tables[table].name.clone();
            let total = contents.maps.get(&name).map_or(0, |entries| entries.len() as u64);
            let reached = first.tables().entries_reached(table).len() as u64;
            TableReach { table: name, entries: Reached { reached, total } }
        };
        Reach {
            branches: counters.branches_reached(first.compiled()),
            unreached,
            tables: tables.iter().map(entries).collect(),
        }
    }

    /// Entries of all tables together.
    pub fn entries(&self) -> Reached {
        self.tables.iter().fold(Reached::default(), |sum, table| Reached {
            reached: sum.reached + table.entries.reached,
            total: sum.total + table.entries.total,
        })
    }
}

/// Where a branch stands in the original, if that is known, and what it says.
fn describe(ir: &Program, spec: &ProgramSpec, block: Block) -> (Option<usize>, String) {
    let origins = ir.blocks[block].insts.iter().filter_map(|&inst| ir.insts[inst].origin);
    let after = origins.max().map(|origin| origin as usize);
    let insn = after.and_then(|from| (from..spec.insns.len()).find(|&pc| is_branch(spec.insns[pc])));
    let text = match insn {
        Some(pc) => disasm::instruction(spec.insns[pc], spec.insns.get(pc + 1).copied()),
        None => format!("the branch at the end of {block}"),
    };
    (insn, text)
}

/// The blocks that can be reached without going what is plainly impossible.
fn reachable(ir: &Program) -> HashSet<Block> {
    let mut found: HashSet<Block> = [ir.entry()].into();
    let mut todo = vec![ir.entry()];
    while let Some(block) = todo.pop() {
        for (target, taken) in ir.blocks[block].terminator.targets().zip([true, false]) {
            if impossible(ir, block, taken).is_none() && found.insert(target.block) {
                todo.push(target.block);
            }
        }
    }
    found
}

/// Why no packet that comes to a branch takes this direction, if that is plain to see.
fn impossible(ir: &Program, block: Block, taken: bool) -> Option<Impossible> {
    if is_null_check(ir, block) == Some(taken) {
        Some(Impossible::NoElement)
    } else if is_header_check(ir, block) == Some(taken) {
        Some(Impossible::NoHeader)
    } else {
        None
    }
}

/// Which direction of a branch is for a frame shorter than an Ethernet header, if one is.
fn is_header_check(ir: &Program, block: Block) -> Option<bool> {
    let Terminator::Branch { mut cond, mut lhs, mut rhs, .. } = ir.blocks[block].terminator else {
        return None;
    };
    let is_end = |value| matches!(ir.def(value), Some(InstData::CtxLoad { offset: DATA_END, .. }));
    if is_end(lhs) {
        (cond, lhs, rhs) = (cond.swap(), rhs, lhs);
    }
    let InstData::Binary { op: BinaryOp::Add, lhs: start, rhs: distance, .. } = *ir.def(lhs)? else {
        return None;
    };
    let is_start = matches!(ir.def(start), Some(InstData::CtxLoad { offset: DATA, .. }));
    let in_header = ir.as_const(distance)? <= PACKET_MIN as u64;
    let beyond = match cond {
        Cond::Ugt => true,
        Cond::Ule => false,
        _ => return None,
    };
    (is_start && is_end(rhs) && in_header).then_some(beyond)
}

/// Which direction of a branch is for an array without an element at an index that it has, if one is.
fn is_null_check(ir: &Program, block: Block) -> Option<bool> {
    let Terminator::Branch { cond, lhs, rhs, .. } = ir.blocks[block].terminator else { return None };
    let InstData::Lookup { table, key } = ir.def(lhs)? else { return None };
    let table = &ir.tables[*table];
    let [part] = &key[..] else { return None };
    let indices = constants(ir, part.value, DEPTH)?;
    let is_there = indices.iter().all(|&index| index < u64::from(table.max_entries));
    let misses = match cond {
        Cond::Eq => true,
        Cond::Ne => false,
        _ => return None,
    };
    (table.kind == TableKind::Index && is_there && ir.as_const(rhs) == Some(0)).then_some(misses)
}

/// Offsets of `data` and `data_end` in `struct xdp_md`.
const DATA: i32 = 0;
const DATA_END: i32 = 4;
/// How far back values are followed that jumps hand over.
const DEPTH: u32 = 4;

/// The constants that a value is one of, if it is.
fn constants(ir: &Program, value: Value, depth: u32) -> Option<Vec<u64>> {
    if let Some(constant) = ir.as_const(value) {
        return Some(vec![constant]);
    }
    let ValueDef::Param(block, index) = ir.values[value] else { return None };
    let targets = ir.layout.iter().flat_map(|&from| ir.blocks[from].terminator.targets());
    let handed = targets.filter(|t| t.block == block).map(|t| t.args.get(index as usize));
    let mut all = Vec::new();
    for argument in handed {
        all.extend(constants(ir, *argument?, depth.checked_sub(1)?)?);
    }
    (!all.is_empty()).then_some(all)
}

fn is_branch(insn: Insn) -> bool {
    let jumps = matches!(insn.class(), insn::JMP | insn::JMP32);
    jumps && !matches!(insn.op(), insn::JA | insn::CALL | insn::EXIT)
}
