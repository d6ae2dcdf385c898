//! What becomes of the hook when `runnel run` ends: killed, taken over, or asked to stop. Live packets flow through all
//! of it, and each is judged; tables are changed by `bpftool`. Needs root.
//!
//! Apart from the tests of sessions, which count packets: what other processes load moves their epochs.

mod cli_support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cli_support::RUNNEL;
use nix::sys::signal::Signal;
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::link::XdpLink;
use runnel_kernel::map::Map;
use runnel_kernel::program::Program;
use runnel_lab::checker::Checker;
use runnel_lab::consistency::traffic_spec;
use runnel_lab::device::{Device, DeviceSpec};
use runnel_lab::observer::Observer;
use runnel_lab::scene::{Pattern, Reroute, Scene, SceneSpec};
use runnel_lab::sys::{Cpus, monotonic_ns};
use runnel_lab::testbed::{ROUTER_DEV, Testbed};
use runnel_lab::traffic::{Fate, Traffic};
use runnel_lab::update::{Change, Update};

/// `runnel run` with a router, packets through it, and the judge.
struct Bench {
    device: Device,
    observer: Observer,
    scene: Scene,
    spec: DeviceSpec,
    testbed: Arc<Testbed>,
    _bpffs: PrivateBpffs,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Starts everything; a version is on the hook, and packets run in it.
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let scene = Scene::new(SceneSpec { routes: 200, seed: 5 }).unwrap();
        let testbed = Arc::new(Testbed::new().unwrap());
        let bpffs = PrivateBpffs::new().unwrap();
        let spec = DeviceSpec {
            runnel: RUNNEL.into(),
            object: cli_support::router(dir.path()),
            tables: Some(scene.tables.clone()),
            state_dir: bpffs.path().join("state"),
            bump: true,
        };
        let mut device = Device::start(&testbed, &spec).unwrap();
        device.wait_for_version("routes", scene.tables.routes.len()).unwrap();
        let cpus = Cpus::choose().unwrap();
        let mut traffic = Traffic::attach(&testbed, &traffic_spec(&scene, cpus)).unwrap();
        traffic.set_pattern(Pattern::Hot as usize);
        traffic.start();
        let until = Instant::now() + Duration::from_secs(60);
        while traffic.counters().made < 1000 {
            assert!(Instant::now() < until && !traffic.has_failed(), "no packets");
            std::thread::sleep(Duration::from_millis(1));
        }
        let observer = Observer::new(Checker::new(&scene.tables, &scene.destinations), traffic);
        Bench { device, observer, scene, spec, testbed, _bpffs: bpffs, _dir: dir }
    }

    fn hooked(&self) -> Program {
        let link = XdpLink::from_pin(&self.device.link_pin()).unwrap();
        Program::from_id(link.info().unwrap().program_id).unwrap()
    }

    fn original(&self) -> u32 {
        Program::from_pin(&self.device.pins().join("original")).unwrap().id()
    }

    /// Judges packets until `count` of `frame` have been seen that started after `time`; where they went.
    fn follow(&mut self, frame: u16, time: u64, count: usize) -> Vec<Fate> {
        let mut fates = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        while fates.len() < count {
            assert!(Instant::now() < until, "no packets");
            // This thread makes all updates, and makes none now.
            let judged = self.observer.judge(monotonic_ns(), |packet, _| {
                if packet.frame == frame && packet.started > time {
                    fates.push(packet.fate);
                }
            });
            judged.unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        fates
    }

    /// Makes a change with `bpftool`, and tells the judge.
    fn change(&mut self, change: Change) -> Update {
        let (key, value) = change.bytes();
        let hex = |bytes: Vec<u8>| bytes.into_iter().map(|byte| format!("{byte:02x}"));
        let begun = monotonic_ns();
        let output = Command::new("bpftool")
            .args(["map", "update", "pinned"])
            .arg(self.device.maps_dir().join("routes"))
            .args(["key", "hex"])
            .args(hex(key))
            .args(["value", "hex"])
            .args(hex(value.expect("no withdrawal")))
            .output()
            .expect("bpftool runs");
        assert!(output.status.success(), "{output:?}");
        let update = Update { begun, ended: monotonic_ns(), change };
        self.observer.update(&update);
        update
    }

    /// Ends the traffic; no packet was wrong or lost.
    fn finish_traffic(&mut self) {
        self.observer.traffic().stop().unwrap();
        self.observer.judge(u64::MAX, |_, _| {}).unwrap();
        let tally = self.observer.tally();
        assert!(tally.packets >= 1000);
        assert_eq!((tally.wrong, tally.lost), (0, 0), "{:?}", self.observer.explanations());
    }

    fn is_attached(&self) -> bool {
        let shown = self.testbed.router().ip(&["-j", "-d", "link", "show", "dev", ROUTER_DEV]).unwrap();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        shown[0].get("xdp").is_some()
    }
}

/// A thing in the kernel, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Program(u32),
    Map(u32),
    Link(u32),
}

impl Thing {
    /// Asked without opening it: closing a program array a second time while its slots are being cleared keeps the
    /// array for ever (`prog_array_map_clear` in `kernel/bpf/arraymap.c` takes a reference for work that is queued
    /// already).
    fn exists(self) -> bool {
        let (next_id, id): (unsafe extern "C" fn(u32, *mut u32) -> i32, u32) = match self {
            Thing::Program(id) => (libbpf_sys::bpf_prog_get_next_id, id),
            Thing::Map(id) => (libbpf_sys::bpf_map_get_next_id, id),
            Thing::Link(id) => (libbpf_sys::bpf_link_get_next_id, id),
        };
        let mut next = 0;
        // SAFETY: `next` is a live out-parameter.
        match unsafe { next_id(id - 1, &mut next) } {
            0 => next == id,
            error => {
                assert_eq!(error, -libc::ENOENT, "{self:?}");
                false
            }
        }
    }
}

/// The programs, maps and links that a process has open: so only its own count, whatever else goes on.
fn things_of(process: u32) -> Vec<Thing> {
    let mut things = Vec::new();
    for file in std::fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap() {
        // One that was closed in this moment.
        let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else { continue };
        let number = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line.map(|value| value.trim().parse::<u32>().unwrap())
        };
        // A link tells of its program too.
        things.extend(number("link_id").map(Thing::Link).or_else(|| number("prog_id").map(Thing::Program)));
        things.extend(number("map_id").map(Thing::Map));
    }
    things.sort();
    things.dedup();
    things
}

/// Waits for the kernel to be done with removing; what is still there after a long time.
fn left_of(mut things: Vec<Thing>) -> Vec<Thing> {
    let until = Instant::now() + Duration::from_secs(30);
    while !things.is_empty() && Instant::now() < until {
        things.retain(|thing| thing.exists());
        std::thread::sleep(Duration::from_millis(20));
    }
    things
}

/// What is in a directory and below.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}

#[test]
fn after_a_kill_the_version_stays_until_a_table_changes_and_then_the_original_runs() {
    let mut bench = Bench::new();
    let version = bench.hooked().id();
    assert_ne!(version, bench.original());
    let pins = files_below(bench.device.pins());
    let Reroute { frame, change, to } = bench.scene.reroute().unwrap();
    bench.device.process().kill().unwrap();

    let before = bench.follow(frame, monotonic_ns(), 100);
    assert!(
        before.iter().all(|fate| matches!(fate, Fate::Forwarded { destination, .. } if *destination != to.0))
    );
    assert_eq!(bench.hooked().id(), version);

    let update = bench.change(change);
    let after = bench.follow(frame, update.ended, 100);
    assert!(
        after.iter().all(|fate| matches!(fate, Fate::Forwarded { destination, .. } if *destination == to.0)),
        "{after:?}"
    );
    bench.finish_traffic();
    assert_eq!(bench.hooked().id(), version);
    assert_eq!(files_below(bench.device.pins()), pins);
    assert!(pins.iter().any(|pin| pin.parent().unwrap().ends_with("watcher")));
}

#[test]
fn the_next_run_takes_the_hook_over_and_cleans_up() {
    let mut bench = Bench::new();
    let link = XdpLink::from_pin(&bench.device.link_pin()).unwrap().id();
    assert!(!bench.device.took_over());
    let old = things_of(bench.device.process().id());
    bench.device.process().kill().unwrap();
    assert!(old.contains(&Thing::Link(link)) && old.iter().any(|thing| thing.exists()));
    let Reroute { frame, change, .. } = bench.scene.reroute().unwrap();
    bench.change(change);

    // The new one is told the tables as they were at first: for the judge, the route changes back.
    let begun = monotonic_ns();
    bench.device = Device::start(&bench.testbed, &bench.spec).unwrap();
    let Change::Route(prefix, _) = change else { panic!("{change:?}") };
    let first = bench.scene.tables.routes.iter().find(|(key, _)| key.prefix() == prefix).unwrap().1;
    let update = Update { begun, ended: monotonic_ns(), change: Change::Route(prefix, Some(first)) };
    bench.observer.update(&update);
    assert!(bench.device.took_over());
    assert_eq!(XdpLink::from_pin(&bench.device.link_pin()).unwrap().id(), link);
    let pinned =
        files_below(&bench.device.maps_dir()).into_iter().map(|pin| Map::from_pin(&pin).unwrap().id());
    let kept: Vec<Thing> = pinned.map(Thing::Map).chain([Thing::Link(link)]).collect();
    let gone: Vec<Thing> = old.into_iter().filter(|thing| !kept.contains(thing)).collect();
    assert!(gone.iter().any(|thing| matches!(thing, Thing::Program(_))), "{gone:?}");
    assert_eq!(left_of(gone), []);

    bench.device.wait_for_version("routes", bench.scene.tables.routes.len()).unwrap();
    assert_ne!(bench.hooked().id(), bench.original());
    bench.follow(frame, monotonic_ns(), 100);
    bench.finish_traffic();
    bench.device.stop().unwrap();
    assert!(!bench.is_attached() && !bench.spec.state_dir.exists());
}

#[test]
fn a_run_that_is_asked_to_stop_leaves_nothing() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut bench = Bench::new();
        let things = things_of(bench.device.process().id());
        let count = |is: fn(&Thing) -> bool| things.iter().filter(|thing| is(thing)).count();
        // The original and a version at least; the router's maps and more; the link and the watcher's two hooks.
        assert!(count(|t| matches!(t, Thing::Program(_))) >= 2, "{things:?}");
        assert!(count(|t| matches!(t, Thing::Map(_))) > 7, "{things:?}");
        assert!(count(|t| matches!(t, Thing::Link(_))) >= 3, "{things:?}");
        assert!(bench.is_attached());
        bench.finish_traffic();
        bench.device.process().signal(signal);
        bench.device.process().wait(Duration::from_secs(60)).unwrap();
        assert_eq!(left_of(things), [], "{signal}");
        assert!(!bench.is_attached(), "{signal}");
        assert!(!bench.spec.state_dir.exists(), "{signal}");
    }
}

#[test]
fn a_run_whose_interface_is_gone_says_so_and_ends() {
    let mut bench = Bench::new();
    let things = things_of(bench.device.process().id());
    bench.finish_traffic();
    bench.testbed.router().ip(&["link", "delete", ROUTER_DEV]).unwrap();
    let error = bench.device.process().wait(Duration::from_secs(60)).unwrap_err().to_string();
    assert!(error.contains("exit status: 1") && error.contains("is gone"), "{error}");
    assert_eq!(left_of(things), []);
    assert!(!bench.spec.state_dir.exists());
}

#[test]
fn an_interface_of_the_same_name_elsewhere_is_not_taken_over() {
    let mut bench = Bench::new();
    bench.finish_traffic();
    bench.device.process().kill().unwrap();
    let elsewhere = Arc::new(Testbed::new().unwrap());
    let error = Device::start(&elsewhere, &bench.spec).unwrap_err().to_string();
    assert!(error.contains("another network namespace") && error.contains("--state-dir"), "{error}");
    assert_eq!(Program::from_pin(&bench.device.pins().join("original")).unwrap().id(), bench.original());
    assert!(bench.is_attached());
}

#[test]
fn the_next_run_keeps_the_tables_of_the_killed_one() {
    let mut bench = Bench::new();
    let maps = |bench: &Bench| {
        let names = ["routes", "neighbours", "ports", "local_addrs"];
        names.map(|name| Map::from_pin(&bench.device.maps_dir().join(name)).unwrap().id())
    };
    let before = maps(&bench);
    bench.device.process().kill().unwrap();
    let Reroute { frame, change, to } = bench.scene.reroute().unwrap();
    let update = bench.change(change);
    bench.spec.tables = None;
    bench.device = Device::start(&bench.testbed, &bench.spec).unwrap();
    assert!(bench.device.took_over());
    assert_eq!(maps(&bench), before, "control planes hold these");
    bench.device.wait_for_version("routes", bench.scene.tables.routes.len()).unwrap();
    let after = bench.follow(frame, update.ended, 100);
    assert!(
        after.iter().all(|fate| matches!(fate, Fate::Forwarded { destination, .. } if *destination == to.0)),
        "{after:?}"
    );
    bench.finish_traffic();
    bench.device.stop().unwrap();
    assert!(!bench.spec.state_dir.exists());
}
