//! The router in the kernel, for tests: compiled from its source, loaded, run on one packet at a time.
//!
//! Tests need root, a kernel with BPF, and clang; they fail where these are missing.
//! Each test runs in a network and a mount namespace of its own, which go with the thread that made them, so
//! that nothing is left behind even if the test is killed.

use std::path::{Path, PathBuf};
use std::thread;

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput, ProgramMut};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use router_ctl::Tables;
use router_ctl::layout::{self, MapData, TxCounter, map};
use runnel_bpfcc::Compiler;
use tempfile::TempDir;

/// The loopback device of a network namespace always comes first.
pub const LOOPBACK: u32 = 1;

/// Runs a test in namespaces of its own.
pub fn isolated(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
                .expect("new network and mount namespaces, which takes root");
            // Mounts made from here on stay here.
            let nothing: Option<&Path> = None;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
                .expect("private mounts");
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A BPF file system in a directory of its own; both go with it.
pub struct Bpffs(TempDir);

impl Bpffs {
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        // A directory that is mounted on could not be removed. Nothing can be done about a failure here.
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// Mounts a BPF file system.
pub fn bpffs() -> Bpffs {
    let dir = TempDir::new().expect("a temporary directory");
    mount(Some("bpf"), dir.path(), Some("bpf"), MsFlags::empty(), None::<&Path>).expect("a BPF file system");
    Bpffs(dir)
}

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The router, loaded.
pub struct Router {
    object: Object,
}

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// `XDP_PASS` and so on.
    pub verdict: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Slots whose counters changed, and by how much.
    pub sent: Vec<(u32, TxCounter)>,
    /// Indices of drop counters that changed, and by how much.
    pub dropped: Vec<(u32, u64)>,
}

impl Router {
    /// Compiles and loads the router.
    pub fn load() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let object = dir.path().join("router.bpf.o");
        Compiler::find()
            .and_then(|compiler| compiler.strict().compile(&source_dir().join("router.bpf.c"), &object))
            .unwrap_or_else(|e| panic!("{e}"));
        let object = ObjectBuilder::default().open_file(&object).expect("the router's object file");
        Self { object: object.load().expect("the verifier takes the router, given root") }
    }

    fn map(&self, name: &str) -> impl MapCore {
        self.object.maps().find(|map| map.name() == name).unwrap_or_else(|| panic!("no map {name}"))
    }

    /// Pins every map under its name.
    pub fn pin_maps(&mut self, dir: &Path) {
        for mut map in self.object.maps_mut() {
            let path = dir.join(map.name());
            map.pin(path).expect("pinned");
        }
    }

    /// The id of a map.
    pub fn map_id(&self, name: &str) -> u32 {
        self.map(name).info().expect("map information").info.id
    }

    /// The value of an entry.
    pub fn entry(&self, name: &str, key: &impl MapData) -> Option<Vec<u8>> {
        self.map(name).lookup(&key.to_bytes(), MapFlags::ANY).expect("a lookup")
    }

    /// Key and value of every entry of a map, sorted. A device map has keys without entries.
    pub fn entries(&self, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let map = self.map(name);
        let value = |key: &[u8]| map.lookup(key, MapFlags::ANY).expect("a lookup");
        let mut entries: Vec<_> =
            map.keys().filter_map(|key| value(&key).map(|value| (key, value))).collect();
        entries.sort();
        entries
    }

    /// Writes tables into the maps.
    pub fn fill(&self, tables: &Tables) {
        for (name, entries) in tables.entries() {
            let map = self.map(name);
            for (key, value) in entries {
                map.update(&key, &value, MapFlags::ANY).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    /// Runs the router on a frame, once.
    pub fn run(&mut self, frame: &[u8]) -> Outcome {
        let before = (self.sent(), self.dropped());
        let mut out = vec![0; frame.len() + 256];
        let input = ProgramInput { data_in: Some(frame), data_out: Some(&mut out), ..Default::default() };
        let program: ProgramMut<'_> =
            self.object.progs_mut().find(|program| program.name() == "router").expect("the program");
        let output = program.test_run(input).expect("a test run");
        let (verdict, frame) = (output.return_value, output.data.expect("the frame").to_vec());
        let after = (self.sent(), self.dropped());
        Outcome {
            verdict,
            frame,
            sent: changes(&before.0, &after.0, |a, b| TxCounter {
                packets: b.packets - a.packets,
                bytes: b.bytes - a.bytes,
            }),
            dropped: changes(&before.1, &after.1, |a, b| b - a),
        }
    }

    /// The counters of all slots, summed over the CPUs.
    fn sent(&self) -> Vec<TxCounter> {
        self.counters(map::TX_COUNTERS, layout::MAX_PORTS, |cpus: Vec<TxCounter>| TxCounter {
            packets: cpus.iter().map(|cpu| cpu.packets).sum(),
            bytes: cpus.iter().map(|cpu| cpu.bytes).sum(),
        })
    }

    fn dropped(&self) -> Vec<u64> {
        self.counters(map::DROP_COUNTERS, layout::DropReason::ALL.len(), |cpus| cpus.iter().sum())
    }

    fn counters<V: MapData>(&self, name: &str, slots: usize, sum: impl Fn(Vec<V>) -> V) -> Vec<V> {
        let map = self.map(name);
        let read = |slot: u32| {
            let cpus = map.lookup_percpu(&slot.to_bytes(), MapFlags::ANY).expect("a lookup").expect("a slot");
            sum(cpus.iter().map(|bytes| V::from_bytes(bytes).expect("a counter")).collect())
        };
        (0..slots as u32).map(read).collect()
    }
}

fn changes<V: PartialEq>(before: &[V], after: &[V], difference: impl Fn(&V, &V) -> V) -> Vec<(u32, V)> {
    let both = (0..).zip(before.iter().zip(after));
    both.filter(|(_, (a, b))| a != b).map(|(slot, (a, b))| (slot, difference(a, b))).collect()
}
