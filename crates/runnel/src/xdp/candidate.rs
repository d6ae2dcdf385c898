//! From a specialized program to one that the kernel has verified: memory laid out, code lowered, loaded.
//!
//! All constant data of a version lies in the one value of one array map, each object at a cache line of its own,
//! together with the counter of packets that fell back. Nothing here touches a hook.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use runnel_bpf::lower::{DataPlace, Fallback, Layout, LowerError, Lowered, lower};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_engine::specialize::Specialized;
use runnel_ir::{Data, EntityRef, InstData, Program as Ir, SecondaryMap, Table};
use runnel_kernel::error::{Error as KernelError, LoadError};
use runnel_kernel::map::{Map, Mapping};
use runnel_kernel::program::{LoadStats, Program};
use thiserror::Error;

/// Bytes between the starts of objects: a cache line.
const LINE: usize = 64;
/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PROG_ARRAY`.
const PROG_ARRAY: u32 = 3;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// Where in the data map packets that fell back are counted.
const FALLBACKS: u32 = 0;

/// What a version refers to besides its own data.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The original, as loaded.
    pub original: &'a ProgramSpec,
    /// The maps of the original, in the order of `original.maps`.
    pub maps: &'a [&'a Map],
    /// The map that holds the epoch, and the offset of the epoch in its value.
    pub epoch: (&'a Map, u32),
    /// The program array that holds the original in slot 0.
    pub fallback: &'a Map,
}

/// A version that the kernel has taken.
#[derive(Debug)]
pub struct Candidate {
    /// The program.
    pub program: Program,
    /// What was loaded.
    pub spec: ProgramSpec,
    /// Its data.
    pub data: Map,
    mapping: Mapping,
    /// Size of the data in bytes.
    pub memory_bytes: u64,
    /// Time to lower the program.
    pub lower_time: Duration,
    /// Time to create and fill the data map.
    pub data_time: Duration,
    /// What the load cost.
    pub load: LoadStats,
}

impl Candidate {
    /// Packets that this version handed to the original so far.
    pub fn fallbacks(&self) -> u64 {
        self.mapping.load_u64(FALLBACKS as usize)
    }
}

/// Why there is no candidate. The original goes on.
#[derive(Debug, Error)]
pub enum CandidateError {
    /// The specialized program cannot be lowered.
    #[error("the specialized program {0}")]
    Lower(#[from] LowerError),
    /// The kernel's verifier refuses it.
    #[error("the kernel's verifier refuses the specialized program: {}", .0.reason())]
    Refused(Box<LoadError>),
    /// A map could not be created or filled.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Creates the program array of one slot that holds the original.
///
/// # Errors
/// What the kernel says.
pub fn fallback_array(original: &Program) -> Result<Map, KernelError> {
    let spec = MapSpec {
        name: "runnel_fallback".into(),
        map_type: PROG_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        flags: 0,
    };
    let array = Map::create(&spec)?;
    array.update_fd(&0u32.to_ne_bytes(), original.as_fd())?;
    Ok(array)
}

/// Lays out, lowers and loads a specialized program.
///
/// # Errors
/// [`CandidateError`]; nothing is left behind.
pub fn build(specialized: &Specialized, around: Surroundings<'_>) -> Result<Candidate, CandidateError> {
    let epoch_map = around.original.maps.len() as u32;
    let (data_map, array) = (epoch_map + 1, epoch_map + 2);
    let placed = [
        (specialized.epoch, DataPlace { map: epoch_map, offset: around.epoch.1 }),
        (specialized.fallbacks, DataPlace { map: data_map, offset: FALLBACKS }),
    ];
    let (places, bytes) = lay_out(&specialized.program, &placed, data_map);
    let tables: Vec<u32> = specialized.table_of.iter().map(|t: &Table| t.as_u32()).collect();
    let started = Instant::now();
    let layout = Layout {
        tables: &tables,
        data: &places,
        fallback: Some(Fallback { array, slot: 0, original: &around.original.insns }),
    };
    let Lowered { insns, .. } = lower(&specialized.program, &layout)?;
    let lower_time = started.elapsed();

    let started = Instant::now();
    let (data, mapping) = data_map_of(&bytes)?;
    let data_time = started.elapsed();

    let mut spec = around.original.clone();
    spec.insns = insns;
    spec.maps.extend([around.epoch.0.spec().clone(), data.spec().clone(), around.fallback.spec().clone()]);
    let fds: Vec<BorrowedFd<'_>> = around
        .maps
        .iter()
        .map(|m| m.as_fd())
        .chain([around.epoch.0.as_fd(), data.as_fd(), around.fallback.as_fd()])
        .collect();
    let (program, load) = Program::load(&spec, &fds).map_err(|e| CandidateError::Refused(Box::new(e)))?;
    let memory_bytes = bytes.len() as u64;
    Ok(Candidate { program, spec, data, mapping, memory_bytes, lower_time, data_time, load })
}

/// Creates the map that holds a program's data, as [`lay_out`] gave it.
///
/// # Errors
/// What the kernel says.
pub fn data_map_of(bytes: &[u8]) -> Result<(Map, Mapping), KernelError> {
    let map = Map::create(&MapSpec {
        name: "runnel_data".into(),
        map_type: ARRAY,
        key_size: 4,
        value_size: bytes.len() as u32,
        max_entries: 1,
        flags: MMAPABLE,
    })?;
    let mapping = map.mmap(true)?;
    mapping.write(0, bytes);
    Ok((map, mapping))
}

/// Gives each data object of a program that its code addresses a place in map `map`, except those that are `placed`
/// already. The second part is the value that the map must have; its first line is left to the caller.
pub fn lay_out(program: &Ir, placed: &[(Data, DataPlace)], map: u32) -> (Vec<DataPlace>, Vec<u8>) {
    let mut used: SecondaryMap<Data, bool> = SecondaryMap::new();
    for &block in &program.layout {
        for &inst in &program.blocks[block].insts {
            if let InstData::DataAddr { data, .. } = program.insts[inst].data {
                used[data] = true;
            }
        }
    }
    let mut bytes = vec![0; LINE];
    let mut places = vec![DataPlace { map, offset: 0 }; program.data.len()];
    for (data, object) in &program.data {
        if let Some((_, place)) = placed.iter().find(|(d, _)| *d == data) {
            places[data.index()] = *place;
        } else if used[data] {
            places[data.index()].offset = bytes.len() as u32;
            bytes.extend(&object.bytes);
            bytes.resize(bytes.len().next_multiple_of(LINE), 0);
        }
    }
    (places, bytes)
}
