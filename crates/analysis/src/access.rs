//! How the program treats its tables: every access site, what becomes of the addresses that lookups give, and
//! whether anything in the program can change the table.
//!
//! Addresses are followed as [`PointerUses`] says. A table is read-only when nothing in *this* program can change
//! its contents; other programs and the control plane are not seen here, and neither is the order of eviction
//! that lookups change in a table that keeps recency.

use std::collections::BTreeSet;
use std::fmt;

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Effects, Inst, InstData, Program, SecondaryMap, Table, Terminator, Value};

use crate::flow::{EscapeKind, PointerUses, params_given};
use crate::{Site, Use, Uses};

/// An instruction that gives an address into a table's value: a lookup, a direct address, or a call that was
/// handed the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupSite {
    /// The block.
    pub block: Block,
    /// The instruction.
    pub inst: Inst,
    /// What becomes of its result. Offsets count from the start of the value.
    pub uses: PointerUses,
}

/// Why a table is not read-only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WriteReason {
    /// An update instruction names it.
    Updated,
    /// A delete instruction names it.
    Deleted,
    /// The table is handed to a callee that may write tables.
    TableGivenToCallee,
    /// The table itself is stored, compared or computed with, so that it cannot be followed.
    TableEscapes,
    /// A value is stored or added to through its address.
    ValueWritten,
    /// The address of a value is handed to a callee that may write memory.
    ValueGivenToCallee,
    /// The address of a value is stored, so that it cannot be followed.
    ValueEscapes,
}

impl fmt::Display for WriteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteReason::Updated => "the program inserts into it",
            WriteReason::Deleted => "the program deletes from it",
            WriteReason::TableGivenToCallee => "the program hands it to a helper that may change it",
            WriteReason::TableEscapes => "the program uses the map itself in a way that cannot be followed",
            WriteReason::ValueWritten => "the program writes to its values",
            WriteReason::ValueGivenToCallee => {
                "the program hands its values to a helper that may write to them"
            }
            WriteReason::ValueEscapes => {
                "the program stores the address of a value, which cannot be followed"
            }
        })
    }
}

/// Whether the program may change a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Verdict {
    /// It does not.
    #[default]
    ReadOnly,
    /// It may.
    ReadWrite {
        /// Why: of several reasons, the one found first.
        reason: WriteReason,
        /// Where.
        at: Use,
    },
}

/// All accesses to one table, each list in layout order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableAccess {
    /// Lookups.
    pub lookups: Vec<LookupSite>,
    /// Values addressed directly.
    pub direct: Vec<LookupSite>,
    /// Calls that are handed the table; their results are followed, as they may be addresses into it.
    pub calls: Vec<LookupSite>,
    /// Updates.
    pub updates: Vec<Inst>,
    /// Deletions.
    pub deletes: Vec<Inst>,
    /// Whether the program may change the table.
    pub verdict: Verdict,
}

/// The accesses to every table of a program.
pub struct TableAccesses {
    of: SecondaryMap<Table, TableAccess>,
}

impl TableAccesses {
    /// Collects the accesses in all reachable blocks.
    pub fn new(program: &Program) -> TableAccesses {
        let cfg = Cfg::new(program);
        let uses = Uses::new(program);
        let mut of: SecondaryMap<Table, TableAccess> = SecondaryMap::new();
        for &block in program.layout.iter().filter(|&&b| cfg.is_reachable(b)) {
            for &inst in &program.blocks[block].insts {
                if let Some(table) = table_of(&program.insts[inst].data) {
                    of[table].collect(program, &uses, block, inst);
                }
            }
        }
        TableAccesses { of }
    }

    /// The accesses to `table`.
    pub fn of(&self, table: Table) -> &TableAccess {
        &self.of[table]
    }
}

fn table_of(data: &InstData) -> Option<Table> {
    match *data {
        InstData::TableRef(table)
        | InstData::TableValue { table, .. }
        | InstData::Lookup { table, .. }
        | InstData::Update { table, .. }
        | InstData::Delete { table, .. } => Some(table),
        _ => None,
    }
}

impl TableAccess {
    /// Every site that gives an address into the table's values.
    pub fn sites(&self) -> impl Iterator<Item = &LookupSite> {
        self.lookups.iter().chain(&self.direct).chain(&self.calls)
    }

    /// Whether the program does not change the table.
    pub fn is_read_only(&self) -> bool {
        self.verdict == Verdict::ReadOnly
    }

    fn collect(&mut self, program: &Program, uses: &Uses, block: Block, inst: Inst) {
        let node = &program.insts[inst];
        let at = Use { block, site: Site::Inst(inst) };
        match node.data {
            InstData::Lookup { .. } => {
                let site = self.site(program, uses, at, inst, 0);
                self.lookups.push(site);
            }
            InstData::TableValue { offset, .. } => {
                let site = self.site(program, uses, at, inst, i64::from(offset));
                self.direct.push(site);
            }
            InstData::Update { .. } => {
                self.updates.push(inst);
                self.judge(WriteReason::Updated, at);
            }
            InstData::Delete { .. } => {
                self.deletes.push(inst);
                self.judge(WriteReason::Deleted, at);
            }
            InstData::TableRef(_) => {
                if let Some(result) = node.result {
                    self.follow_table(program, uses, result);
                }
            }
            _ => {}
        }
    }

    fn judge(&mut self, reason: WriteReason, at: Use) {
        if self.is_read_only() {
            self.verdict = Verdict::ReadWrite { reason, at };
        }
    }

    /// Follows the address that `inst` gives, which is `offset` bytes into the value.
    fn site(&mut self, program: &Program, uses: &Uses, at: Use, inst: Inst, offset: i64) -> LookupSite {
        let result = program.insts[inst].result;
        let found = result.map(|r| PointerUses::of(program, uses, r, offset)).unwrap_or_default();
        if let Some(&at) = found.writes.values().min() {
            self.judge(WriteReason::ValueWritten, at);
        }
        for escape in &found.escapes {
            match escape.kind {
                EscapeKind::GivenToCallee => self.judge(WriteReason::ValueGivenToCallee, escape.at),
                EscapeKind::Stored => self.judge(WriteReason::ValueEscapes, escape.at),
                EscapeKind::LentToCallee
                | EscapeKind::UsedAsKey
                | EscapeKind::Compared
                | EscapeKind::Computed
                | EscapeKind::Returned => {}
            }
        }
        LookupSite { block: at.block, inst, uses: found }
    }

    /// Follows the table itself to the calls that it is handed to.
    fn follow_table(&mut self, program: &Program, uses: &Uses, table: Value) {
        let mut seen = BTreeSet::from([table]);
        let mut work = vec![table];
        while let Some(value) = work.pop() {
            for &at in uses.of(value) {
                match at.site {
                    Site::Inst(inst) => self.table_used(program, uses, inst, at),
                    Site::Terminator => {
                        let end = &program.blocks[at.block].terminator;
                        work.extend(params_given(program, end, value).filter(|&p| seen.insert(p)));
                        if is_operand(end, value) {
                            self.judge(WriteReason::TableEscapes, at);
                        }
                    }
                }
            }
        }
    }

    fn table_used(&mut self, program: &Program, uses: &Uses, inst: Inst, at: Use) {
        let InstData::Call { callee, .. } = program.insts[inst].data else {
            return self.judge(WriteReason::TableEscapes, at);
        };
        if self.calls.iter().any(|known| known.inst == inst) {
            return;
        }
        if program.callees[callee].effects.contains(Effects::WRITES_TABLES) {
            self.judge(WriteReason::TableGivenToCallee, at);
        }
        let site = self.site(program, uses, at, inst, 0);
        self.calls.push(site);
    }
}

/// Whether the terminator uses `value` itself, not only to hand it over.
fn is_operand(end: &Terminator, value: Value) -> bool {
    match *end {
        Terminator::Branch { lhs, rhs, .. } => lhs == value || rhs == value,
        Terminator::Return(v) | Terminator::Deopt(v) => v == value,
        Terminator::Jump(_) => false,
    }
}
