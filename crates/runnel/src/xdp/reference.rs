//! The IR interpreter as third party: what a program does according to the definition of the IR, packet by packet.
//!
//! Original and optimized program both run in the kernel, and both come from the same lifter; the interpreter of the
//! lifted original is what tells whether the lifter understood the program. It also counts what was reached.
//!
//! It cannot take every program: helpers that it does not know, and tables of which it does not promise what they
//! evict, are named as reasons, and the comparison goes on without it.

use std::collections::BTreeMap;

use runnel_interp::xdp::{Event, Opaque, XdpHost, standard};
use runnel_interp::{
    Called, Compiled, ControlError, Counters, Ended, Entry, Fault, Machine, SetupError, State, Tables,
    Uninitialised,
};
use runnel_ir::{Data, EntityRef, Program, Table, TableData, TableKind};
use runnel_kernel::possible_cpus;
use thiserror::Error;

use super::maps::{Held, Snapshot};
use super::pin_helpers::{CPU, NODE, Pinned, RANDOM, TIME};
use super::snapshot::normal;

/// Flags that redirections to device maps may have: `BPF_F_BROADCAST` and `BPF_F_EXCLUDE_INGRESS`.
const DEVICE_FLAGS: u64 = 8 | 16;
/// `XDP_REDIRECT`.
const REDIRECT: u32 = 4;

/// Why a program cannot be interpreted here.
#[derive(Debug, Error)]
pub enum ReferenceError {
    /// The program cannot be made ready.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The contents of a table do not fit it.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A helper is unknown.
    #[error("the interpreter has no helper `{0}`")]
    Helper(String),
    /// What a table evicts is not defined.
    #[error("what table `{0}` evicts when it is full is the kernel's own business")]
    Recency(String),
    /// A table holds what cannot be interpreted.
    #[error("table `{0}` holds references to maps or programs that programs can look up")]
    References(String),
}

/// Where a redirection goes, in terms of the original program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// To an interface.
    Interface {
        /// Its index.
        index: u32,
        /// The flags.
        flags: u64,
    },
    /// To what a map of the program says.
    Map {
        /// Index of the map in the program's list; none if it is none of them.
        map: Option<usize>,
        /// The key.
        key: u64,
        /// The flags.
        flags: u64,
    },
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// The program gave a verdict.
    Verdict(u32),
    /// It gave up in favour of the original.
    Deopt,
    /// It left by a tail call: what comes of the packet is another program's business.
    Left,
}

/// A program that is interpreted packet after packet, with tables that keep what it writes.
pub struct Reference {
    compiled: Compiled,
    counters: Counters,
    state: State<XdpHost>,
    table_of: Vec<Table>,
    /// How each table finds entries.
    kinds: Vec<TableKind>,
}

impl Reference {
    /// Makes `program` ready on tables with these contents. `table_of[t]` is the table of the original that table `t`
    /// really is; where the list ends, a table is itself. `live` are the data objects that others change, with their
    /// contents.
    ///
    /// # Errors
    /// Why the program cannot be interpreted.
    pub fn new(
        program: &Program,
        table_of: &[Table],
        live: &[(Data, u64)],
        contents: &Snapshot,
        cpu: u32,
    ) -> Result<Reference, ReferenceError> {
        if let Some(unknown) = program.callees.values().find(|c| !is_known(c.number as i32, &c.name, c.arity))
        {
            return Err(ReferenceError::Helper(unknown.name.clone()));
        }
        let original = |table: Table| table_of.get(table.index()).copied().unwrap_or(table);
        let compiled = Compiled::new(program)?;
        let mut tables = Tables::new(program, possible_cpus() as u32)?;
        tables.set_cpu(cpu)?;
        let mut host = XdpHost::new(program);
        pin(&mut host);
        for (table, data) in &program.tables {
            let name = &program.tables[original(table)].name;
            if data.keeps_recency {
                return Err(ReferenceError::Recency(name.clone()));
            }
            let Some(entries) = contents.maps.get(name) else { continue };
            if data.kind == TableKind::Opaque {
                let indices = entries.keys().filter_map(|key| Some(u32::from_ne_bytes(*key.first_chunk()?)));
                let opaque = Opaque { indices: indices.collect(), flags: DEVICE_FLAGS };
                host.xdp.opaque.insert(table, opaque);
                continue;
            }
            for (key, value) in entries {
                let Held::Bytes(value) = value else { return Err(ReferenceError::References(name.clone())) };
                tables.put(table, key, &unpadded(data, value))?;
            }
        }
        let mut image = compiled.image();
        image.uninitialised = Uninitialised::ReadsZero;
        for (data, value) in live {
            if let Some(bytes) = image.data_mut(*data) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
        }
        let state = State::new(Machine::new(tables, image), host);
        let counters = Counters::new(&compiled);
        let kinds = program.tables.values().map(|t| t.kind).collect();
        Ok(Reference { compiled, counters, state, table_of: table_of.to_vec(), kinds })
    }

    /// Runs the program on a packet, with what helpers give.
    ///
    /// # Errors
    /// What it did that it must not do.
    pub fn run(&mut self, packet: &[u8], pinned: Pinned) -> Result<Run, RunError> {
        self.state.machine.packet.set(packet)?;
        let xdp = &mut self.state.host.xdp;
        xdp.begin_packet();
        (xdp.time_ns, xdp.random) = (pinned.time, pinned.random);
        let outcome = self.compiled.run(&mut self.state, &mut self.counters)?;
        Ok(match outcome.ended {
            Ended::Verdict(verdict) => Run::Verdict(verdict as u32),
            Ended::Deopt => Run::Deopt,
            Ended::Exit(_) => Run::Left,
        })
    }

    /// The packet as the last run left it.
    pub fn packet(&self) -> &[u8] {
        self.state.machine.packet.bytes()
    }

    /// Where the last run's packet goes if its verdict is to redirect it.
    pub fn destination(&self, verdict: u32) -> Option<Destination> {
        let events = self.state.host.xdp.events.iter().rev();
        let mut redirections = events.filter_map(|event| match *event {
            Event::Redirect { ifindex } => Some(Destination::Interface { index: ifindex, flags: 0 }),
            Event::RedirectMap { table, index, flags } => {
                let map = self.table_of.get(table.index()).copied().unwrap_or(table);
                Some(Destination::Map { map: Some(map.index()), key: index.into(), flags })
            }
            Event::TailCall { .. } => None,
        });
        if verdict == REDIRECT { redirections.next() } else { None }
    }

    /// What was executed so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The program as it is run.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Names of the tables that the kernel left otherwise; `names` are those of the program's tables, in order. Bits of
    /// keys that mean nothing do not count, nor do tables of which only helpers know what they hold.
    pub fn tables_that_differ(&self, names: &[String], kernel: &Snapshot) -> Vec<String> {
        let tables = self.state.machine.tables.contents().into_iter().zip(&self.kinds).zip(names);
        let differ = tables.filter(|((contents, kind), name)| {
            let Some(held) = kernel.maps.get(*name).filter(|_| **kind != TableKind::Opaque) else {
                return false;
            };
            let held: BTreeMap<Box<[u8]>, &Held> = held.iter().map(|(k, v)| (normal(**kind, k), v)).collect();
            let same = |entry: &Entry| match held.get(&entry.key) {
                Some(Held::Bytes(bytes)) => same_value(&entry.value, bytes),
                _ => false,
            };
            contents.entries.len() != held.len() || !contents.entries.iter().all(same)
        });
        differ.map(|(_, name)| name.clone()).collect()
    }

    /// The tables as they are now.
    pub fn tables(&self) -> &Tables {
        &self.state.machine.tables
    }

    /// Executed instructions per packet so far, without the constants and addresses that become operands of others.
    pub fn instructions_per_packet(&self) -> f64 {
        let totals = self.counters.totals(&self.compiled);
        (totals.instructions - totals.constants) as f64 / self.counters.runs.max(1) as f64
    }
}

/// Why a run gave no outcome.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program did what it must not do.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The packet does not fit.
    #[error(transparent)]
    Packet(#[from] ControlError),
}

fn is_known(number: i32, name: &str, arity: u8) -> bool {
    TIME.contains(&number) || [RANDOM, CPU, NODE].contains(&number) || standard(name, arity).is_some()
}

/// Lets helpers give what is pinned, as the rewritten copies do.
fn pin(host: &mut XdpHost) {
    for helper in TIME {
        host.set_function(helper as u32, Box::new(|xdp, _, _| Ok(Called::Value(xdp.time_ns))));
    }
    host.set_function(NODE as u32, Box::new(|_, _, _| Ok(Called::Value(0))));
}

/// A value without the padding that the kernel puts behind each CPU's.
fn unpadded(data: &TableData, value: &[u8]) -> Vec<u8> {
    let size = data.value_size as usize;
    if !data.per_cpu {
        return value.to_vec();
    }
    value.chunks(size.next_multiple_of(8)).flat_map(|cpu| &cpu[..size.min(cpu.len())]).copied().collect()
}

/// Whether values agree, of which the kernel's may have padding behind each CPU's.
fn same_value(value: &[u8], kernel: &[u8]) -> bool {
    if value.len() == kernel.len() {
        return value == kernel;
    }
    let cpus = possible_cpus();
    let (size, stride) = (value.len() / cpus, kernel.len() / cpus);
    value.chunks(size.max(1)).zip(kernel.chunks(stride.max(1))).all(|(a, b)| *a == b[..a.len().min(b.len())])
}
