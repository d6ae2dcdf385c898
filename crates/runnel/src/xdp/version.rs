//! A specialized version of a program for an [`Instance`], on no hook: what replays and benchmarks compare and time.
//!
//! Nobody else knows the instance's maps, so its epoch is a map of its own that moves only by [`Version::expire`]. The
//! steps are apart, so that whoever checks the checker can put a fault between any two of them.

use std::time::{Duration, Instant};

use runnel_bpf::lift::{LiftError, lift};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_engine::specialize::{Request, SpecializeError, Specialized, TableState, specialize};
use runnel_ir::{Program as Ir, SecondaryMap, Table, TableData};
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::map::{Map, Mapping};
use runnel_kernel::netns::ParkedVeth;
use runnel_kernel::object::LoadedProgram;
use runnel_kernel::program::Program;
use runnel_passes::clean_up;
use runnel_tables::{Budget, Contents, Entry};
use thiserror::Error;

use super::candidate::{Candidate, CandidateError, Surroundings, build, fallback_array};
use super::maps::{Instance, MapsError};
use super::snapshot::left_by_kind;

/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// The epoch that every version here is made for.
const EPOCH: u64 = 1;

/// Why there is no version.
#[derive(Debug, Error)]
pub enum VersionError {
    /// The kernel says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The instance cannot be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The program cannot be lifted.
    #[error("the program cannot be specialized: {0}")]
    Lift(#[from] LiftError),
    /// The program cannot be specialized.
    #[error(transparent)]
    Specialize(#[from] SpecializeError),
    /// The version cannot be built.
    #[error(transparent)]
    Candidate(#[from] CandidateError),
}

type Result<T> = std::result::Result<T, VersionError>;

/// A program and what its tables hold.
#[derive(Debug)]
pub struct Plan {
    /// The original, lifted.
    pub ir: Ir,
    /// The same cleaned up, as the specializer takes it.
    clean: Ir,
    /// What is known of each table.
    pub tables: SecondaryMap<Table, Option<TableState>>,
    /// Time to lift the program and to clean it up, which is done once.
    pub lift: Duration,
    /// Time to read the tables.
    pub read: Duration,
}

impl Plan {
    /// Lifts the instance's program and reads its tables.
    ///
    /// # Errors
    /// What keeps it from either.
    pub fn new(instance: &Instance) -> Result<Plan> {
        Self::of(&instance.original()?.spec, &instance.maps()?)
    }

    /// The same for a program on maps that belong to no instance, given in the program's order.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of(original: &ProgramSpec, maps: &[&Map]) -> Result<Plan> {
        let started = Instant::now();
        let ir = lift(original)?;
        let lift = started.elapsed();
        let plan = Self::of_ir(ir, maps)?;
        Ok(Plan { lift: lift + plan.lift, ..plan })
    }

    /// The same for a program that is IR already. Its tables are the first of `maps`.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn of_ir(ir: Ir, maps: &[&Map]) -> Result<Plan> {
        let started = Instant::now();
        let mut clean = ir.clone();
        clean_up(&mut clean);
        let lift = started.elapsed();
        let started = Instant::now();
        let mut tables: SecondaryMap<Table, Option<TableState>> = SecondaryMap::new();
        for ((table, data), map) in ir.tables.iter().zip(maps) {
            tables[table] = Some(state(data, map)?);
        }
        Ok(Plan { ir, clean, tables, lift, read: started.elapsed() })
    }

    /// Specializes the program for the tables.
    ///
    /// # Errors
    /// What the specializer says.
    pub fn specialize(&self) -> Result<(Specialized, Duration)> {
        let started = Instant::now();
        let request =
            Request { program: &self.clean, tables: &self.tables, epoch: EPOCH, budget: Budget::default() };
        let specialized = specialize(&request)?;
        Ok((specialized, started.elapsed()))
    }
}

/// What the specializer may know of a map that nobody but this process and its programs holds.
fn state(data: &TableData, map: &Map) -> Result<TableState> {
    if let Some(why) = left_by_kind(data) {
        return Ok(TableState::Left(why.into()));
    }
    if map.spec().flags & MMAPABLE != 0 && !map.is_frozen()? {
        return Ok(TableState::Left("user space may write it through memory mappings".into()));
    }
    let entries = map.read_all()?.into_iter().map(|(key, value)| Entry { key, value }).collect();
    Ok(TableState::Known(Contents {
        kind: data.kind,
        key_size: data.key_size,
        value_size: data.value_size,
        max_entries: data.max_entries,
        entries,
    }))
}

/// A specialized version that the kernel has taken.
#[derive(Debug)]
pub struct Version {
    /// What was specialized.
    pub specialized: Specialized,
    /// The loaded program.
    pub candidate: Candidate,
    epoch: Map,
    epoch_memory: Mapping,
    /// The program array that holds the instance's original.
    _fallback: Map,
}

impl Version {
    /// Builds and loads a specialized program on the maps of an instance.
    ///
    /// # Errors
    /// What building says; nothing is left behind.
    pub fn build(instance: &Instance, specialized: Specialized) -> Result<Version> {
        Self::build_on(instance.original()?, &instance.maps()?, specialized)
    }

    /// The same on maps that belong to no instance, given in the program's order.
    ///
    /// # Errors
    /// As [`Version::build`].
    pub fn build_on(original: &LoadedProgram, maps: &[&Map], specialized: Specialized) -> Result<Version> {
        let epoch = Map::create(&MapSpec {
            name: "runnel_epoch".into(),
            map_type: ARRAY,
            key_size: 4,
            value_size: 64,
            max_entries: 1,
            flags: MMAPABLE,
        })?;
        let epoch_memory = epoch.mmap(true)?;
        epoch_memory.store_u64(0, EPOCH);
        let fallback = fallback_array(&original.program)?;
        let around = Surroundings { original: &original.spec, maps, epoch: (&epoch, 0), fallback: &fallback };
        let candidate = build(&specialized, around)?;
        Ok(Version { specialized, candidate, epoch, epoch_memory, _fallback: fallback })
    }

    /// The map that holds the epoch.
    pub fn epoch_map(&self) -> &Map {
        &self.epoch
    }

    /// The epoch now.
    pub fn epoch(&self) -> u64 {
        self.epoch_memory.load_u64(0)
    }

    /// Moves the epoch on: from now on the version hands every packet to the original.
    pub fn expire(&self) {
        self.epoch_memory.fetch_add_u64(0, 1);
    }
}

/// How long it takes to put `new` in the place of `old` on a hook. Both are attached elsewhere first, as a program
/// is that runs and one that is about to: else the kernel waits for a grace period in between.
///
/// # Errors
/// What the kernel says.
pub fn time_swap(old: &Program, new: &Program) -> std::result::Result<Duration, KernelError> {
    let (parked, hook) = (ParkedVeth::new()?, ParkedVeth::new()?);
    let _attached = [parked.park(0, old)?, parked.park(1, new)?];
    let link = hook.park(0, old)?;
    let started = Instant::now();
    link.update(new, Some(old))?;
    let time = started.elapsed();
    Ok(time)
}
