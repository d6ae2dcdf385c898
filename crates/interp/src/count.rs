//! What was executed, counted over any number of runs of one program.
//!
//! Only blocks, directions of branches, and table accesses are counted as the program runs. All else follows from
//! how often each block ran, and is worked out when asked for.

use std::ops::{AddAssign, SubAssign};

use runnel_ir::{Block, EntityRef, Table};

use crate::compile::Compiled;

/// Numbers of instructions by what they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// All instructions and terminators.
    pub instructions: u64,
    /// Of those, constants and addresses known beforehand; most instruction sets fold many of them into their users.
    pub constants: u64,
    /// Loads from memory, atomic additions included.
    pub loads: u64,
    /// Stores to memory, atomic additions included.
    pub stores: u64,
    /// Reads of context fields.
    pub context_loads: u64,
    /// Lookups, updates and deletions.
    pub table_accesses: u64,
    /// Calls.
    pub calls: u64,
    /// Conditional branches.
    pub branches: u64,
}

macro_rules! fieldwise {
    ($trait:ident $method:ident $op:tt) => {
        impl $trait for Totals {
            fn $method(&mut self, other: Totals) {
                self.instructions $op other.instructions;
                self.constants $op other.constants;
                self.loads $op other.loads;
                self.stores $op other.stores;
                self.context_loads $op other.context_loads;
                self.table_accesses $op other.table_accesses;
                self.calls $op other.calls;
                self.branches $op other.branches;
            }
        }
    };
}
fieldwise!(AddAssign add_assign +=);
fieldwise!(SubAssign sub_assign -=);

impl Totals {
    fn times(self, n: u64) -> Totals {
        Totals {
            instructions: self.instructions * n,
            constants: self.constants * n,
            loads: self.loads * n,
            stores: self.stores * n,
            context_loads: self.context_loads * n,
            table_accesses: self.table_accesses * n,
            calls: self.calls * n,
            branches: self.branches * n,
        }
    }
}

/// Accesses to one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCounts {
    /// Lookups.
    pub lookups: u64,
    /// Lookups that found an entry.
    pub hits: u64,
    /// Updates, whether or not they succeeded.
    pub updates: u64,
    /// Deletions, whether or not they succeeded.
    pub deletes: u64,
}

/// How much of what could have been reached was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reached {
    /// How many were reached.
    pub reached: u64,
    /// How many there are.
    pub total: u64,
}

impl Reached {
    /// The share reached; 1 when there was nothing to reach.
    pub fn share(self) -> f64 {
        if self.total == 0 { 1.0 } else { self.reached as f64 / self.total as f64 }
    }
}

/// Counts of one program. Each program has its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Runs that began.
    pub runs: u64,
    /// How often each block was entered, in layout order.
    pub(crate) blocks: Vec<u64>,
    /// How often each block's branch was taken, and not taken, in layout order.
    pub(crate) directions: Vec<[u64; 2]>,
    pub(crate) tables: Vec<TableCounts>,
    /// What of the entered blocks was not executed after all.
    pub(crate) skipped: Totals,
}

impl Counters {
    /// Counters of `program`, all at zero.
    pub fn new(program: &Compiled) -> Counters {
        let blocks = program.blocks.len();
        Counters {
            runs: 0,
            blocks: vec![0; blocks],
            directions: vec![[0; 2]; blocks],
            tables: vec![TableCounts::default(); program.table_count],
            skipped: Totals::default(),
        }
    }

    /// Sums by kind of instruction.
    pub fn totals(&self, program: &Compiled) -> Totals {
        let mut sum = Totals::default();
        for (block, &count) in program.blocks.iter().zip(&self.blocks) {
            sum += block.tally.times(count);
        }
        sum -= self.skipped;
        sum
    }

    /// How often `block` was entered; 0 when it is not part of the program.
    pub fn block(&self, program: &Compiled, block: Block) -> u64 {
        program.position(block).map_or(0, |i| self.blocks[i])
    }

    /// How often the branch at the end of `block` was taken, and how often not.
    pub fn branch(&self, program: &Compiled, block: Block) -> [u64; 2] {
        program.position(block).map_or([0; 2], |i| self.directions[i])
    }

    /// Accesses to a table.
    pub fn table(&self, table: Table) -> TableCounts {
        self.tables.get(table.index()).copied().unwrap_or_default()
    }

    /// Directions of branches that were taken at least once, of the two that each branch has.
    pub fn branches_reached(&self, program: &Compiled) -> Reached {
        let mut sum = Reached::default();
        for (block, directions) in program.blocks.iter().zip(&self.directions) {
            if block.tally.branches != 0 {
                sum.total += 2;
                sum.reached += directions.iter().filter(|&&n| n != 0).count() as u64;
            }
        }
        sum
    }

    /// Adds the counts of other runs of the same program.
    ///
    /// # Panics
    /// When `other` counts another program.
    pub fn merge(&mut self, other: &Counters) {
        let same = self.blocks.len() == other.blocks.len() && self.tables.len() == other.tables.len();
        assert!(same, "both count the same program");
        self.runs += other.runs;
        self.skipped += other.skipped;
        self.blocks.iter_mut().zip(&other.blocks).for_each(|(a, b)| *a += b);
        for (a, b) in self.directions.iter_mut().zip(&other.directions) {
            a[0] += b[0];
            a[1] += b[1];
        }
        for (a, b) in self.tables.iter_mut().zip(&other.tables) {
            a.lookups += b.lookups;
            a.hits += b.hits;
            a.updates += b.updates;
            a.deletes += b.deletes;
        }
    }
}
