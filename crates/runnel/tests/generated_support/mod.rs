//! Generated programs in the kernel: maps made from the declarations of tables, filled, and a program loaded on them.
//!
//! Every test here needs root and fails with the kernel's error without it.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use runnel::xdp::candidate::{data_map_of, lay_out};
use runnel::xdp::maps::{Held, Snapshot};
use runnel_bpf::insn::Insn;
use runnel_bpf::lift::{lift, table};
use runnel_bpf::lower::{Layout, lower};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_ir::{EntityRef, Program as Ir, TableData, TableKind};
use runnel_kernel::error::{Errno, Error, LoadError};
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::object::LoadedProgram;
use runnel_kernel::possible_cpus;
use runnel_kernel::program::Program;
use runnel_kernel::test_run::TestRunner;
use runnel_passes::clean_up;
use runnel_testkit::programs::compilers::rewrite_some;
use runnel_testkit::programs::{Config, Entry, Generated, PROGRAMS, generate};

/// `BPF_PROG_TYPE_XDP` and `BPF_XDP`.
const XDP: (u32, u32) = (6, 37);
/// `BPF_F_NO_PREALLOC`, without which there are no prefix tables.
const NO_PREALLOC: u32 = 1;
/// Packets to run a program on: so many that some find what tables hold.
const PACKETS: u32 = 64;
/// No such entry.
const ENOENT: i32 = 2;
/// Lines of the verifier's log that are worth reading: the last instructions, and the complaint.
const LOG_LINES: usize = 25;

/// The program of a seed, of one of five sizes, rewritten in one of five ways.
pub fn program_of(seed: u64) -> Generated {
    let size = 8 + (seed / 5 % 5) as u32 * 16;
    let mut generated = generate(seed, &Config { packets: PACKETS, ..Config::kernel().sized(size) });
    rewrite_some(seed, &mut generated.program);
    generated
}

/// The map that a table of a generated program is.
fn map_of(declared: &TableData) -> MapSpec {
    // Numbers of `enum bpf_map_type`.
    let (map_type, flags) = match (declared.kind, declared.per_cpu) {
        (TableKind::Exact, false) => (1, 0),
        (TableKind::Exact, true) => (5, 0),
        (TableKind::Index, false) => (2, 0),
        (TableKind::Index, true) => (6, 0),
        (TableKind::Prefix, _) => (11, NO_PREALLOC),
        (TableKind::Opaque, _) if declared.name == PROGRAMS => (3, 0),
        (TableKind::Opaque, _) => (14, 0),
    };
    let spec = MapSpec {
        name: declared.name.clone(),
        map_type,
        key_size: declared.key_size,
        value_size: declared.value_size,
        max_entries: declared.max_entries,
        flags,
    };
    assert_eq!(table(&spec), *declared, "the lifter takes the map for another table");
    spec
}

/// Maps of which only helpers know what they hold, by name. Nobody fills them, so all programs share them: the kernel
/// waits for RCU whenever a device map goes, and with thousands of them its workers would pile up.
static SHARED: Mutex<BTreeMap<String, Map>> = Mutex::new(BTreeMap::new());

/// The map of a table: a new one, if anything can be in it.
fn create(declared: &TableData) -> Map {
    let new = || Map::create(&map_of(declared)).expect("creating a map");
    if declared.kind != TableKind::Opaque {
        return new();
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.entry(declared.name.clone()).or_insert_with(new).try_clone().expect("sharing a map")
}

/// A program in the kernel, on maps of its own.
pub struct Loaded {
    /// The program.
    pub original: LoadedProgram,
    /// Its tables, and behind them the map of its data.
    maps: Vec<Map>,
    /// What the map of its data held when the program was loaded.
    data: Vec<u8>,
}

/// What a program made of a packet.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub verdict: u32,
    pub packet: Vec<u8>,
}

impl Loaded {
    /// Lowers and loads a program on new maps with these entries.
    pub fn new(program: &Ir, entries: &[Entry]) -> Result<Loaded, String> {
        let (places, data) = lay_out(program, &[], program.tables.len() as u32);
        let layout = Layout { data: &places, ..Layout::default() };
        let lowered = lower(program, &layout).map_err(|e| format!("it cannot be lowered: {e}"))?;
        Self::load(program, lowered.insns, data, entries)
    }

    /// Lifts what was loaded, cleans it up, and loads that on new maps. `program` declares the tables. Nothing, if
    /// the lifter does not take what the lowering has made.
    pub fn lifted(&self, program: &Ir, entries: &[Entry]) -> Result<Option<Loaded>, String> {
        let Ok(mut lifted) = lift(&self.original.spec) else { return Ok(None) };
        clean_up(&mut lifted);
        let lowered = lower(&lifted, &Layout::default()).map_err(|e| format!("it cannot be lowered: {e}"))?;
        let loaded = Self::load(program, lowered.insns, self.data.clone(), entries);
        loaded.map(Some).map_err(|why| format!("{why}\n{lifted}"))
    }

    fn load(declares: &Ir, insns: Vec<Insn>, data: Vec<u8>, entries: &[Entry]) -> Result<Loaded, String> {
        let tables = declares.tables.values();
        let mut maps: Vec<Map> = tables.map(create).collect();
        let (data_map, _) = data_map_of(&data).expect("creating the map of data");
        maps.push(data_map);
        let spec = ProgramSpec {
            name: declares.name.clone(),
            section: "xdp".into(),
            prog_type: XDP.0,
            expected_attach_type: XDP.1,
            flags: 0,
            license: "GPL".into(),
            insns,
            maps: maps.iter().map(|map| map.spec().clone()).collect(),
        };
        let fds: Vec<_> = maps.iter().map(AsFd::as_fd).collect();
        let (program, _) = Program::load(&spec, &fds).map_err(|refused| complaint(&refused))?;
        let loaded = Loaded { original: LoadedProgram { program, spec }, maps, data };
        loaded.fill(entries);
        Ok(loaded)
    }

    /// Its maps, in the order in which it numbers them.
    pub fn maps(&self) -> Vec<&Map> {
        self.maps.iter().collect()
    }

    fn fill(&self, entries: &[Entry]) {
        for entry in entries {
            let map = &self.maps[entry.table.index()];
            map.update(&entry.key, &copies(map, &entry.value), UpdateMode::Any).expect("writing an entry");
        }
    }

    /// Deletes every other of the entries where that is possible, and gives those others that are still there other
    /// values.
    pub fn change(&self, entries: &[Entry]) {
        for (number, entry) in entries.iter().enumerate() {
            let map = &self.maps[entry.table.index()];
            if number % 2 == 0 && table(map.spec()).kind != TableKind::Index {
                map.delete(&entry.key).expect("deleting an entry");
                continue;
            }
            let value: Vec<u8> = entry.value.iter().map(|byte| !byte).collect();
            match map.update(&entry.key, &copies(map, &value), UpdateMode::Exist) {
                Err(Error::Kernel { errno: Errno(ENOENT), .. }) => {}
                done => done.expect("changing an entry"),
            }
        }
    }

    /// What its tables hold.
    pub fn tables(&self) -> Snapshot {
        let (_, tables) = self.maps.split_last().expect("there is a map of data");
        let entries = |map: &Map| -> BTreeMap<_, _> {
            let all = map.read_all().expect("reading a map");
            all.into_iter().map(|(key, value)| (key, Held::Bytes(value))).collect()
        };
        Snapshot { maps: tables.iter().map(|map| (map.spec().name.clone(), entries(map))).collect() }
    }

    /// Whether its data are as they were in the beginning: a generated program only reads them.
    pub fn data_is_intact(&self) -> bool {
        let data = self.maps.last().expect("there is a map of data");
        data.lookup(&[0; 4]).expect("reading the map of data").as_deref() == Some(&self.data)
    }
}

/// A value as a map takes it: that of each CPU, with padding, where each has its own.
fn copies(map: &Map, value: &[u8]) -> Vec<u8> {
    let mut value = value.to_vec();
    if map.value_len() != value.len() {
        value.resize(map.value_len() / possible_cpus(), 0);
        value = value.repeat(possible_cpus());
    }
    value
}

/// Runs a program on a packet.
pub fn run(runner: &mut TestRunner<'_>, packet: &[u8]) -> Seen {
    let outcome = runner.run(packet, &[]).expect("running a packet");
    Seen { verdict: outcome.retval, packet: outcome.data.into() }
}

/// What the verifier complains of, and what it saw last.
pub fn complaint(refused: &LoadError) -> String {
    let lines: Vec<&str> = refused.log.lines().collect();
    let last = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    format!("the kernel refuses it: {}\n{last}", refused.reason())
}

/// What parties differ in, if they do.
pub fn same_packet(names: [&str; 2], seen: [&Seen; 2], number: usize, input: &[u8]) -> Result<(), String> {
    if seen[0] == seen[1] {
        return Ok(());
    }
    let mut text = format!("packet {number} {input:02x?}");
    for (name, seen) in names.iter().zip(seen) {
        text.push_str(&format!("\n  {name}: verdict {}, {:02x?}", seen.verdict, seen.packet));
    }
    Err(text)
}

/// What tables differ in, if they do. Names are those of the parties.
pub fn same_tables(names: [&str; 2], tables: [&Snapshot; 2]) -> Result<(), String> {
    let (count, first) = tables[0].differences(tables[1], 5);
    if count == 0 {
        return Ok(());
    }
    let first: Vec<String> = first.iter().map(ToString::to_string).collect();
    Err(format!("{count} entries differ between {} and {}:\n{}", names[0], names[1], first.join("\n")))
}

/// Tries seeds, and fails for all of them together: with the first few failures in full and the seeds of all.
pub fn try_all(
    test: &str,
    seeds: impl Iterator<Item = u64>,
    mut check: impl FnMut(u64) -> Result<(), String>,
) {
    const SHOWN: usize = 3;
    let mut failed = Vec::new();
    for seed in seeds {
        if let Err(why) = check(seed) {
            if failed.len() < SHOWN {
                eprintln!("seed {seed}: {why}");
                eprintln!("reproduce: RUNNEL_SEED={seed} cargo test -p runnel --test generated {test}\n");
            }
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
}
