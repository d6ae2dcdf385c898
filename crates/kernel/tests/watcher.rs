//! The consistency watcher against the real kernel: what bumps an epoch, what does not, what survives what.
//! Needs root.
//!
//! Other processes of the machine may do what bumps every epoch meanwhile, as it must. Where a test
//! counts bumps exactly it leaves those out, by comparing with slots for which nothing is watched.

mod common;
mod watcher_support;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{ARRAY_OF_MAPS, HASH, MMAPABLE, XDP, compile, holder, map_spec, program, returns};
use runnel_bpf::insn::{self, Insn};
use runnel_kernel::Error;
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::object::Object;
use runnel_kernel::program::Program;
use runnel_kernel::watcher::{Change, Options, RING_RECORDS, SLOTS, Watcher, WatcherError};
use watcher_support::{
    BATCH_UPDATE, DELETE, FREEZE, HeldPage, LOOKUP_AND_DELETE, UPDATE, UnfaultedPage, eventually, helper,
    low_memory, raw_bpf, raw_bpf_int80,
};

const SLOT: u32 = 3;

fn table() -> Map {
    Map::create(&map_spec("table", HASH, 4, 4, 1024, 0)).expect("creating")
}

/// A watcher without pins, and a table that it watches for [`SLOT`].
fn watched_table() -> (Watcher, Map) {
    let watcher = Watcher::install(None).expect("installing");
    let map = table();
    watcher.watch(map.id(), SLOT).expect("watching");
    (watcher, map)
}

fn epoch(watcher: &Watcher) -> u64 {
    watcher.epoch(SLOT).expect("a slot")
}

/// The changes that an action makes to this map, and by how much the epoch rose.
fn observe(watcher: &Watcher, map: &Map, action: impl FnOnce()) -> (Vec<Change>, u64) {
    let (before, position) = (epoch(watcher), watcher.ring_position());
    action();
    let bumps = epoch(watcher) - before;
    let (changes, _) = watcher.changes_since(position).expect("reading the log");
    (changes.into_iter().filter(|c| c.map_id == Some(map.id())).collect(), bumps)
}

/// The part of a slot's epoch that is not due to writes to everything, which strangers cause at any time: those
/// raise the neighbouring slots, for which nothing is watched, as much. The hook bumps slots in ascending order, so
/// with the higher neighbour read first and the lower one last, equality of the two means that the slot between
/// them had just their value from strangers.
fn own_epoch(watcher: &Watcher, slot: u32) -> u64 {
    let read = |slot| watcher.epoch(slot).expect("a slot");
    loop {
        let (high, own, low) = (read(slot + 1), read(slot), read(slot - 1));
        if high == low {
            return own - low;
        }
    }
}

/// How much an action raises the epoch by itself.
fn own_bumps(watcher: &Watcher, action: impl FnOnce()) -> u64 {
    let before = own_epoch(watcher, SLOT);
    action();
    own_epoch(watcher, SLOT) - before
}

fn key_of(change: &Change) -> Option<u32> {
    change.key.as_ref().map(|k| u32::from_ne_bytes(k.as_slice().try_into().expect("four bytes")))
}

#[test]
fn every_writing_command_bumps_before_it_returns_and_is_logged() {
    let (watcher, map) = watched_table();
    let update = |k: u32| map.update(&k.to_ne_bytes(), &[1; 4], UpdateMode::Any).expect("updating");

    let (changes, bumps) = observe(&watcher, &map, || update(7));
    assert!(bumps >= 2, "once at entry and once at exit");
    assert_eq!(
        changes,
        [Change { map_id: Some(map.id()), command: UPDATE, key: Some(7u32.to_ne_bytes().into()), result: 0 }]
    );

    let (changes, bumps) =
        observe(&watcher, &map, || assert!(map.delete(&7u32.to_ne_bytes()).expect("deleting")));
    assert!(bumps >= 2);
    assert_eq!((changes[0].command, key_of(&changes[0])), (DELETE, Some(7)));

    update(8);
    let (changes, bumps) = observe(&watcher, &map, || {
        assert!(map.lookup_and_delete(&8u32.to_ne_bytes()).expect("taking").is_some());
    });
    assert!(bumps >= 2);
    assert_eq!((changes[0].command, key_of(&changes[0])), (LOOKUP_AND_DELETE, Some(8)));

    let (changes, bumps) =
        observe(&watcher, &map, || map.update_batch(&[1; 8], &[2; 8]).expect("updating a batch"));
    assert!(bumps >= 2);
    assert_eq!((changes[0].command, key_of(&changes[0])), (BATCH_UPDATE, None), "any key");

    let (changes, bumps) = observe(&watcher, &map, || map.freeze().expect("freezing"));
    assert!(bumps >= 2);
    assert_eq!(changes[0].command, FREEZE);

    let (changes, bumps) =
        observe(&watcher, &map, || assert!(map.update(&[0; 4], &[0; 4], UpdateMode::Any).is_err()));
    assert!(bumps >= 2, "the hook cannot know that it will fail");
    assert_eq!(changes[0].result, -libc::EPERM);
}

#[test]
fn reading_and_writing_other_maps_bumps_nothing() {
    let (watcher, map) = watched_table();
    let other = table();
    let bumps = own_bumps(&watcher, || {
        other.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating");
        other.delete(&[1; 4]).expect("deleting");
        map.lookup(&[1; 4]).expect("looking up");
        map.read_all().expect("reading");
        Map::from_id(map.id()).expect("opening");
    });
    assert_eq!(bumps, 0);
    assert_eq!(watcher.in_flight(other.id()).expect("asking"), None);
}

#[test]
fn only_the_slots_of_the_map_are_bumped_and_unwatching_ends_it() {
    let (watcher, map) = watched_table();
    let other = table();
    let (of_other, second) = (SLOT + 10, SLOT + 20);
    watcher.watch(other.id(), of_other).expect("watching");
    watcher.watch(map.id(), second).expect("watching");
    assert_eq!(watcher.watched_by(SLOT).expect("asking"), [map.id()]);
    let write = || map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating");
    let epochs = || [SLOT, of_other, second].map(|s| own_epoch(&watcher, s));
    let before = epochs();
    write();
    assert_eq!(epochs(), [before[0] + 2, before[1], before[2] + 2]);
    watcher.unwatch(map.id(), SLOT).expect("unwatching");
    assert_eq!(own_bumps(&watcher, write), 0);
    watcher.unwatch(map.id(), second).expect("unwatching");
    assert_eq!(watcher.in_flight(map.id()).expect("asking"), None);
    // Its place among the counters is free for another map.
    watcher.watch(map.id(), SLOT).expect("watching again");
    assert_eq!(own_bumps(&watcher, write), 2);
}

#[test]
fn another_process_is_seen_too() {
    let (watcher, map) = watched_table();
    let bpffs = PrivateBpffs::new().expect("mounting");
    map.pin(&bpffs.path().join("map")).expect("pinning");
    let (changes, bumps) = observe(&watcher, &map, || {
        let status = helper("update_once", &bpffs.path().join("map")).wait().expect("waiting");
        assert!(status.success());
    });
    assert!(bumps >= 2);
    assert!(changes.iter().any(|c| c.command == UPDATE && c.key.as_deref() == Some(&[9; 4])), "{changes:?}");
}

#[test]
fn arguments_on_a_page_not_yet_faulted_in_bump_everything() {
    let (watcher, map) = watched_table();
    let (key, value) = ([5u8; 4], [6u8; 4]);
    // union bpf_attr for an update: descriptor, padding, key, value, flags.
    let attr: Vec<u8> = [map.as_fd().as_raw_fd() as u64, key.as_ptr() as u64, value.as_ptr() as u64, 0]
        .into_iter()
        .flat_map(u64::to_ne_bytes)
        .collect();
    let page = UnfaultedPage::holding(&attr);
    let unrelated = SLOT + 9;
    let before = [epoch(&watcher), watcher.epoch(unrelated).expect("a slot")];
    let position = watcher.ring_position();
    assert_eq!(raw_bpf(UPDATE, page.address(), 32), 0);
    assert_eq!(map.lookup(&key).expect("looking up").as_deref(), Some(&value[..]), "the update succeeds");
    assert!(epoch(&watcher) >= before[0] + 2);
    assert!(watcher.epoch(unrelated).expect("a slot") >= before[1] + 2, "every epoch");
    let (changes, _) = watcher.changes_since(position).expect("reading the log");
    assert!(changes.iter().any(|c| c.map_id.is_none() && c.command == UPDATE), "{changes:?}");
}

#[test]
fn a_key_on_a_page_not_yet_faulted_in_is_logged_as_unknown() {
    let (watcher, map) = watched_table();
    let page = UnfaultedPage::holding(&[5; 4]);
    let value = [6u8; 4];
    let attr = [map.as_fd().as_raw_fd() as u64, page.address() as u64, value.as_ptr() as u64, 0];
    let (changes, bumps) =
        observe(&watcher, &map, || assert_eq!(raw_bpf(UPDATE, attr.as_ptr() as usize, 32), 0));
    assert!(bumps >= 2);
    assert_eq!(changes.iter().map(|c| c.key.clone()).collect::<Vec<_>>(), [None]);
    assert!(map.lookup(&[5; 4]).expect("looking up").is_some());
}

#[test]
fn attributes_that_end_early_bump_everything() {
    let (watcher, _map) = watched_table();
    let attr = [0u64; 4];
    let before = epoch(&watcher);
    raw_bpf(UPDATE, attr.as_ptr() as usize, 8);
    assert!(epoch(&watcher) >= before + 2);
}

#[test]
fn the_32_bit_entry_bumps_everything() {
    let (watcher, map) = watched_table();
    let memory = low_memory();
    // Key at 64, value at 72 of a page below 4 GiB; the structure is the same for both entries.
    let attr = [map.as_fd().as_raw_fd() as u64, memory as u64 + 64, memory as u64 + 72, 0];
    // SAFETY: the page is ours, mapped writable, and larger than what is written.
    unsafe {
        std::ptr::copy_nonoverlapping(attr.as_ptr(), memory as *mut u64, 4);
        std::ptr::write_bytes((memory + 64) as *mut u8, 0x44, 16);
    }
    let before = [epoch(&watcher), watcher.epoch(SLOT + 9).expect("a slot")];
    assert_eq!(raw_bpf_int80(UPDATE, memory as u32, 32), 0);
    assert!(map.lookup(&[0x44; 4]).expect("looking up").is_some(), "the update succeeds");
    assert!(epoch(&watcher) >= before[0] + 2);
    assert!(watcher.epoch(SLOT + 9).expect("a slot") >= before[1] + 2, "every epoch");
    watcher
        .begin_snapshot(&[map.id()], SLOT)
        .map(|_| ())
        .or_else(in_flight_by_others)
        .expect("all calls have ended");
}

fn in_flight_by_others(error: Error) -> Result<(), Error> {
    match error {
        Error::Watcher(WatcherError::WritesInFlight { maps, unknown: true }) if maps.is_empty() => Ok(()),
        other => Err(other),
    }
}

/// `held` stops at the page whose address is in its context.
const SYSCALL_PROGRAMS: &str = r#"
SEC("syscall") int nothing(void *ctx) { return 0; }
SEC("syscall") int held(__u64 *ctx) { __u64 x; return bpf_copy_from_user(&x, sizeof(x), (void *)*ctx); }
"#;

#[test]
fn running_a_system_call_program_bumps_everything_and_running_a_packet_program_nothing() {
    let (watcher, _map) = watched_table();
    let compiled = compile("calls", SYSCALL_PROGRAMS);
    let loaded = Object::open(&compiled.path()).expect("opening").load().expect("loading");
    let nothing = &loaded.program("nothing").expect("a program").program;
    let before = epoch(&watcher);
    nothing.test_run(&[], &[0; 8], 0, 0).expect("running");
    assert!(epoch(&watcher) >= before + 2);
    let packet = Program::load(&returns(XDP, 2), &[]).expect("loading").0;
    assert_eq!(own_bumps(&watcher, || drop(packet.test_run(&[0; 64], &[], 1, 0).expect("running"))), 0);
}

#[test]
fn a_system_call_program_under_way_is_waited_for_when_attaching() {
    let compiled = compile("calls", SYSCALL_PROGRAMS);
    let loaded = Object::open(&compiled.path()).expect("opening").load().expect("loading");
    let held = &loaded.program("held").expect("a program").program;
    let (page, released) = (HeldPage::new(), AtomicBool::new(false));
    let address = page.address();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| held.test_run(&[], &address.to_ne_bytes(), 0, 0).expect("running").retval);
        page.wait();
        let installer = scope.spawn(|| {
            let watcher = Watcher::install(None).expect("installing");
            assert!(released.load(Ordering::SeqCst), "it waited for the program");
            watcher.begin_snapshot(&[], SLOT).map(|_| ()).or_else(in_flight_by_others).expect("not counted");
        });
        // Time for the installation to end wrongly.
        std::thread::sleep(std::time::Duration::from_secs(1));
        released.store(true, Ordering::SeqCst);
        page.release(&[]);
        installer.join().expect("the installer");
        assert_eq!(run.join().expect("the run"), 0);
    });
}

#[test]
fn a_system_call_program_under_way_delays_snapshots_but_not_watching() {
    let compiled = compile("calls", SYSCALL_PROGRAMS);
    let loaded = Object::open(&compiled.path()).expect("opening").load().expect("loading");
    let held = &loaded.program("held").expect("a program").program;
    let watcher = Watcher::install(None).expect("installing");
    let (page, map) = (HeldPage::new(), table());
    let address = page.address();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| held.test_run(&[], &address.to_ne_bytes(), 0, 0).expect("running").retval);
        page.wait();
        watcher.watch(map.id(), SLOT).expect("watching");
        let refused = watcher.begin_snapshot(&[map.id()], SLOT).expect_err("it may write anything");
        assert!(matches!(refused, Error::Watcher(WatcherError::WritesInFlight { unknown: true, .. })));
        page.release(&[]);
        assert_eq!(run.join().expect("the run"), 0);
    });
    eventually("a snapshot is granted", || watcher.begin_snapshot(&[map.id()], SLOT).is_ok());
}

#[test]
fn a_new_program_bumps_the_slots_of_the_maps_that_it_holds_unless_the_owner_loads_it() {
    let (watcher, map) = watched_table();
    let load = || drop(Program::load(&holder(&map), &[map.as_fd()]).expect("loading"));
    assert_eq!(own_bumps(&watcher, load), 0, "the owner knows its own programs");
    let bpffs = PrivateBpffs::new().expect("mounting");
    let pin = bpffs.path().join("map");
    map.pin(&pin).expect("pinning");
    let run = |job: &str| assert!(helper(job, &pin).wait().expect("waiting").success());
    let (changes, _) = observe(&watcher, &map, || {
        assert_eq!(own_bumps(&watcher, || run("load_holder")), 1);
    });
    assert!(changes.is_empty(), "loading writes nothing: {changes:?}");
    // What is read of the map later must not rely on the log: the new program writes without being logged.
    let position = watcher.ring_position();
    run("load_holder");
    let (changes, _) = watcher.changes_since(position).expect("reading the log");
    assert!(changes.iter().any(|c| c.map_id.is_none()), "{changes:?}");
}

#[test]
fn a_new_program_that_holds_no_watched_map_bumps_nothing() {
    let (watcher, _map) = watched_table();
    let load =
        || assert!(helper("load_program", std::path::Path::new("/")).wait().expect("waiting").success());
    // Strangers may write to everything meanwhile.
    eventually("a program is loaded and no epoch moves", || {
        let before = epoch(&watcher);
        load();
        epoch(&watcher) == before
    });
}

#[test]
fn making_an_iterator_bumps_everything_and_other_links_nothing() {
    let (watcher, _map) = watched_table();
    let run = |job: &str| assert!(helper(job, std::path::Path::new("/")).wait().expect("waiting").success());
    let before = epoch(&watcher);
    run("link_iterator");
    assert!(epoch(&watcher) >= before + 2);
    // Strangers may write to everything meanwhile.
    eventually("a link is made and no epoch moves", || {
        let before = epoch(&watcher);
        run("link_other");
        epoch(&watcher) == before
    });
}

#[test]
fn a_change_of_a_map_of_maps_bumps_everything() {
    let (watcher, map) = watched_table();
    let outer = Map::create_outer(&map_spec("outer", ARRAY_OF_MAPS, 4, 4, 4, 0), &map).expect("creating");
    let before = epoch(&watcher);
    outer.update_fd(&1u32.to_ne_bytes(), map.as_fd()).expect("putting the map in");
    assert!(epoch(&watcher) >= before + 2);
}

#[test]
fn a_storm_of_writers_leaves_begun_and_ended_equal_and_no_write_unlogged() {
    let (watcher, map) = watched_table();
    let position = watcher.ring_position();
    const EACH: u32 = 400;
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let map = &map;
            scope.spawn(move || {
                for i in 0..EACH {
                    let key = (thread * 100 + i % 100).to_ne_bytes();
                    map.update(&key, &[1; 4], UpdateMode::Any).expect("updating");
                    if i % 3 == 0 {
                        map.delete(&key).expect("deleting");
                    }
                }
            });
        }
    });
    assert_eq!(watcher.in_flight(map.id()).expect("asking"), Some(0));
    let (changes, _) = watcher.changes_since(position).expect("reading the log");
    let ours = changes.iter().filter(|c| c.map_id == Some(map.id()));
    assert_eq!(ours.clone().filter(|c| c.command == UPDATE).count(), 4 * EACH as usize);
    assert_eq!(ours.clone().filter(|c| c.command == DELETE).count(), 4 * EACH.div_ceil(3) as usize);
    assert!(ours.clone().all(|c| c.key.is_some()));
}

#[test]
fn valid_snapshots_show_a_moment_between_writes() {
    let (watcher, map) = watched_table();
    let write =
        |key: u8, value: u32| map.update(&[key; 4], &value.to_ne_bytes(), UpdateMode::Any).expect("updating");
    (0..2).for_each(|k| write(k, 0));
    let stop = AtomicBool::new(false);
    let mut granted = 0;
    std::thread::scope(|scope| {
        // One key is always written before the other, so at each moment they are equal or one step apart.
        scope.spawn(|| {
            for value in 1.. {
                (0..2).for_each(|k| write(k, value));
                // Leave gaps, or no reading of the table ever fits between two writes.
                std::thread::sleep(std::time::Duration::from_micros(200));
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        eventually("50 snapshots are granted", || {
            let Ok(token) = watcher.begin_snapshot(&[map.id()], SLOT) else { return false };
            let entries = map.read_all().expect("reading");
            if watcher.still_valid(&token) {
                granted += 1;
                let value = |key: u8| {
                    let found = entries.iter().find(|(k, _)| **k == [key; 4]).expect("both keys are there");
                    u32::from_ne_bytes(found.1.as_ref().try_into().expect("four bytes"))
                };
                assert!(value(0) == value(1) || value(0) == value(1) + 1, "{} {}", value(0), value(1));
            }
            granted >= 50
        });
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_stale_reading_is_brought_up_to_date_key_by_key() {
    let (watcher, map) = watched_table();
    let mut position = watcher.ring_position();
    let mut copy: std::collections::BTreeMap<Vec<u8>, Vec<u8>> =
        map.read_all().expect("reading").into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..3000u32 {
                let key = (i * 7 % 50).to_ne_bytes();
                map.update(&key, &i.to_ne_bytes(), UpdateMode::Any).expect("updating");
                if i % 5 == 0 {
                    map.delete(&(i % 50).to_ne_bytes()).expect("deleting");
                }
            }
        });
        loop {
            let ended = writer.is_finished();
            let (changes, upto) = watcher.changes_since(position).expect("the ring is read often enough");
            for change in changes.into_iter().filter(|c| c.map_id == Some(map.id())) {
                let key = change.key.expect("single keys, all readable");
                match map.lookup(&key).expect("looking up") {
                    Some(value) => copy.insert(key, value),
                    None => copy.remove(&key),
                };
            }
            (position, rounds) = (upto, rounds + 1);
            if ended {
                break;
            }
        }
    });
    let now: std::collections::BTreeMap<Vec<u8>, Vec<u8>> =
        map.read_all().expect("reading").into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    assert_eq!(copy, now, "after {rounds} rounds");
}

#[test]
fn a_reader_that_comes_too_late_is_told() {
    let (watcher, map) = watched_table();
    let position = watcher.ring_position();
    for i in 0..=RING_RECORDS as u32 {
        map.update(&(i % 8).to_ne_bytes(), &[0; 4], UpdateMode::Any).expect("updating");
    }
    assert!(matches!(watcher.changes_since(position), Err(WatcherError::RingOverrun { .. })));
    let (_, now) = watcher.changes_since(watcher.ring_position()).expect("from now on it is fine");
    assert!(now > position);
}

#[test]
fn a_writer_killed_in_the_middle_leaves_nothing_in_flight() {
    let (watcher, map) = watched_table();
    let bpffs = PrivateBpffs::new().expect("mounting");
    let pin = bpffs.path().join("map");
    map.pin(&pin).expect("pinning");
    let mut child = helper("held_in_update", &pin);
    eventually("the helper is inside the update", || {
        assert!(child.try_wait().expect("asking").is_none(), "the helper ended by itself");
        watcher.in_flight(map.id()).expect("asking") == Some(1)
    });
    child.kill().expect("killing");
    child.wait().expect("waiting");
    assert_eq!(watcher.in_flight(map.id()).expect("asking"), Some(0));
}

/// Starts an update with these attributes on a thread of its own, and returns when the kernel is in the middle
/// of it: held at the key.
fn held_update<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    page: &'s HeldPage,
    attr: &'s [std::sync::atomic::AtomicU64; 4],
) -> std::thread::ScopedJoinHandle<'s, i64> {
    let thread = scope.spawn(move || raw_bpf(UPDATE, attr.as_ptr() as usize, 32));
    page.wait();
    thread
}

fn update_attr(map: &Map, page: &HeldPage, value: &[u8; 4]) -> [std::sync::atomic::AtomicU64; 4] {
    [map.as_fd().as_raw_fd() as u64, page.address() as u64, value.as_ptr() as u64, 0].map(Into::into)
}

#[test]
fn no_snapshot_is_granted_while_a_write_is_in_the_middle() {
    let (watcher, map) = watched_table();
    let (page, value) = (HeldPage::new(), [1u8; 4]);
    let attr = update_attr(&map, &page, &value);
    std::thread::scope(|scope| {
        let before = epoch(&watcher);
        let thread = held_update(scope, &page, &attr);
        assert!(epoch(&watcher) > before, "bumped before the write happens");
        assert_eq!(map.lookup(&[7; 4]).expect("looking up"), None);
        let error = watcher.begin_snapshot(&[map.id()], SLOT).expect_err("a write is under way");
        let Error::Watcher(WatcherError::WritesInFlight { maps, .. }) = error else { panic!("{error}") };
        assert_eq!(maps, [map.id()]);
        let held = epoch(&watcher);
        page.release(&[7; 4]);
        assert_eq!(thread.join().expect("the writer"), 0);
        assert!(epoch(&watcher) > held, "and again before it returns");
    });
    assert!(map.lookup(&[7; 4]).expect("looking up").is_some());
    watcher.begin_snapshot(&[map.id()], SLOT).map(|_| ()).or_else(in_flight_by_others).expect("it has ended");
}

#[test]
fn arguments_changed_during_the_call_bump_everything() {
    let (watcher, map) = watched_table();
    let unwatched = table();
    let unrelated = SLOT + 9;
    for (first, second) in [(&map, &unwatched), (&unwatched, &map)] {
        let (page, value) = (HeldPage::new(), [1u8; 4]);
        let attr = update_attr(first, &page, &value);
        let position = watcher.ring_position();
        std::thread::scope(|scope| {
            let thread = held_update(scope, &page, &attr);
            attr[0].store(second.as_fd().as_raw_fd() as u64, Ordering::SeqCst);
            let held = [epoch(&watcher), watcher.epoch(unrelated).expect("a slot")];
            page.release(&[8; 4]);
            assert_eq!(thread.join().expect("the writer"), 0);
            assert!(epoch(&watcher) > held[0]);
            assert!(watcher.epoch(unrelated).expect("a slot") > held[1]);
        });
        let (changes, _) = watcher.changes_since(position).expect("reading the log");
        assert!(changes.iter().any(|c| c.map_id.is_none() && c.command == UPDATE), "{changes:?}");
        assert_eq!(watcher.in_flight(map.id()).expect("asking"), Some(0));
    }
}

#[test]
fn a_call_held_since_before_the_watching_began_is_waited_for() {
    let watcher = Watcher::install(None).expect("installing");
    let map = table();
    let (page, value, released) = (HeldPage::new(), [1u8; 4], AtomicBool::new(false));
    let attr = update_attr(&map, &page, &value);
    std::thread::scope(|scope| {
        let writer = held_update(scope, &page, &attr);
        let watching = scope.spawn(|| {
            watcher.watch(map.id(), SLOT).expect("watching");
            assert!(released.load(Ordering::SeqCst), "it waited for the writer");
        });
        // Time for `watch` to return wrongly.
        std::thread::sleep(std::time::Duration::from_millis(300));
        released.store(true, Ordering::SeqCst);
        page.release(&[7; 4]);
        watching.join().expect("the watching thread");
        assert_eq!(writer.join().expect("the writer"), 0);
    });
    assert!(map.lookup(&[7; 4]).expect("looking up").is_some());
    assert_eq!(watcher.in_flight(map.id()).expect("asking"), Some(0), "it was not counted, in or out");
}

#[test]
fn a_call_that_could_not_be_remembered_is_waited_for_before_a_snapshot() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    let watcher = Watcher::install(Some(bpffs.path())).expect("installing");
    let unwatched = table();
    let (page, value, released) = (HeldPage::new(), [1u8; 4], AtomicBool::new(false));
    let attr = update_attr(&unwatched, &page, &value);
    std::thread::scope(|scope| {
        let writer = held_update(scope, &page, &attr);
        // The kernel side counts a lost call at byte 16 of its state; to lose one really takes a lack of memory.
        let state = Map::from_pin(&bpffs.path().join("v1-state")).expect("opening");
        state.mmap(true).expect("mapping").fetch_add_u64(16, 1);
        let snapshot = scope.spawn(|| {
            watcher.begin_snapshot(&[], SLOT).map(|_| ()).or_else(in_flight_by_others).expect("a snapshot");
            assert!(released.load(Ordering::SeqCst), "it waited for whoever is inside");
        });
        // Time for the snapshot to be granted wrongly.
        std::thread::sleep(std::time::Duration::from_millis(300));
        released.store(true, Ordering::SeqCst);
        page.release(&[7; 4]);
        snapshot.join().expect("the snapshot");
        assert_eq!(writer.join().expect("the writer"), 0);
    });
}

#[test]
fn a_pinned_watcher_survives_the_process_that_installed_it() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    let map = table();
    map.pin(&bpffs.path().join("map")).expect("pinning");
    let mut installer = helper("install_and_hang", bpffs.path());
    let ready = bpffs.path().join("ready");
    eventually("the watcher is installed", || {
        assert!(installer.try_wait().expect("asking").is_none(), "the installer ended by itself");
        ready.exists()
    });
    let open = Watcher::open(bpffs.path()).expect("opening");
    installer.kill().expect("killing");
    installer.wait().expect("waiting");

    let before = epoch(&open);
    map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating");
    assert!(epoch(&open) >= before + 2, "the watcher goes on");
    drop(open);
    map.update(&[1; 4], &[2; 4], UpdateMode::Any).expect("updating");
    let again = Watcher::open(bpffs.path()).expect("opening again");
    assert!(epoch(&again) >= before + 4, "also while nobody has it open");
    assert_eq!(again.watched_by(SLOT).expect("asking"), [map.id()]);
    assert_eq!(
        own_bumps(&again, || drop(Program::load(&returns(XDP, 2), &[]).expect("loading"))),
        0,
        "a new owner"
    );
    assert!(matches!(
        Watcher::install(Some(bpffs.path())),
        Err(Error::Watcher(WatcherError::AlreadyInstalled { .. }))
    ));

    let before = epoch(&again);
    Watcher::remove(bpffs.path()).expect("removing");
    assert!(epoch(&again) > before, "whoever depends on it falls back");
    assert!(matches!(Watcher::open(bpffs.path()), Err(Error::Watcher(WatcherError::NotInstalled { .. }))));
    Watcher::remove(bpffs.path()).expect("removing twice is no error");
    assert!(bpffs.path().join("map").exists(), "strangers' pins stay");
}

#[test]
fn what_a_killed_installer_left_half_done_is_refused_and_can_be_removed() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    Watcher::install(Some(bpffs.path())).expect("installing");
    let enter = std::fs::read_dir(bpffs.path()).expect("listing").filter_map(Result::ok).map(|e| e.path());
    let enter: Vec<_> = enter.filter(|p| p.to_string_lossy().ends_with("-enter")).collect();
    assert_eq!(enter.len(), 1);
    std::fs::remove_file(&enter[0]).expect("unpinning the last pin");
    assert!(matches!(Watcher::open(bpffs.path()), Err(Error::Watcher(WatcherError::NotInstalled { .. }))));
    assert!(Watcher::install(Some(bpffs.path())).is_err());
    Watcher::remove(bpffs.path()).expect("removing");
    Watcher::install(Some(bpffs.path())).expect("installing anew");
    Watcher::remove(bpffs.path()).expect("removing");
    // Kernels with preloaded iterators put two pins of their own into every BPF file system.
    let left =
        std::fs::read_dir(bpffs.path()).expect("listing").filter_map(Result::ok).map(|e| e.file_name());
    assert_eq!(left.filter(|n| !n.to_string_lossy().ends_with(".debug")).count(), 0);
}

#[test]
fn with_bumping_off_writes_are_seen_but_epochs_stand() {
    let watcher = Watcher::install_with(None, Options { bump: false }).expect("installing");
    let map = table();
    watcher.watch(map.id(), SLOT).expect("watching");
    let (changes, bumps) =
        observe(&watcher, &map, || map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating"));
    assert_eq!((changes.len(), bumps), (1, 0));
}

#[test]
fn tokens_are_for_watched_maps_and_end_with_the_next_write() {
    let (watcher, map) = watched_table();
    let other = table();
    let refused = watcher.begin_snapshot(&[map.id(), other.id()], SLOT);
    assert!(matches!(refused, Err(Error::Watcher(WatcherError::NotWatched { .. }))));
    assert!(watcher.begin_snapshot(&[map.id()], SLOT + 1).is_err(), "watched, but not for this slot");
    assert!(watcher.epoch(SLOTS).is_err() && watcher.watch(map.id(), SLOTS).is_err());
    let mut granted = None;
    eventually("a token is granted and valid", || {
        granted = watcher.begin_snapshot(&[map.id()], SLOT).ok().filter(|token| watcher.still_valid(token));
        granted.is_some()
    });
    map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating");
    assert!(!watcher.still_valid(&granted.expect("a token")));
}

#[test]
fn a_program_reads_its_epoch_by_direct_address() {
    let (watcher, map) = watched_table();
    let insns = vec![
        Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX_VALUE, 0, 0),
        Insn::new(0, 0, 0, 0, Watcher::epoch_offset(SLOT) as i32),
        Insn::new(insn::LDX | insn::MEM | insn::DW, 0, 1, 0, 0),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ];
    let spec = program(XDP, insns, vec![watcher.epochs_map().spec().clone()]);
    let (reader, _) = Program::load(&spec, &[watcher.epochs_map().as_fd()]).expect("loading");
    let read = || u64::from(reader.test_run(&[0; 64], &[], 1, 0).expect("running").retval);
    for action in 0..3 {
        match action {
            0 => {}
            1 => assert!(watcher.bump(SLOT).expect("a slot") > 0),
            _ => map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating"),
        }
        let (low, seen, high) = (epoch(&watcher), read(), epoch(&watcher));
        assert!(low <= seen && seen <= high);
    }
    assert!(watcher.epochs_map().spec().flags & MMAPABLE != 0);
    assert_eq!(watcher.missed_runs().expect("asking"), 0);
}

#[test]
fn dropping_an_unpinned_watcher_makes_its_programs_fall_back() {
    let (watcher, map) = watched_table();
    let epochs = watcher.epochs_map().try_clone().expect("another handle").mmap(false).expect("mapping");
    let before = epochs.load_u64(Watcher::epoch_offset(SLOT) as usize);
    drop(watcher);
    let after = epochs.load_u64(Watcher::epoch_offset(SLOT) as usize);
    assert!(after > before);
    map.update(&[1; 4], &[1; 4], UpdateMode::Any).expect("updating");
    assert_eq!(epochs.load_u64(Watcher::epoch_offset(SLOT) as usize), after, "nobody watches any more");
}
