//! The consistency watcher: nobody writes to a watched map through bpf(2) without the epoch of every program
//! that depends on it being bumped first.
//!
//! An optimized program reads its epoch at its entry, by direct address in the [`Watcher::epochs_map`], and
//! compares it with the one it was compiled for. If they differ the original runs. So what has to hold is:
//! once a write to a watched map has begun, no packet starts in code specialized for the contents before.
//!
//! # The protocol
//!
//! In the kernel (`src/bpf/watcher.bpf.c`), for each call that may write a watched map *m* with programs *P*:
//!
//! * at entry, before the kernel looks at the arguments: `begun[m] += 1`, then `epoch[p] += 1` for all *p* in *P*;
//! * at exit, before the caller goes on: `epoch[p] += 1` again, a record in the ring, `ended[m] += 1`.
//!
//! A call whose target is not known is counted in a pair of its own (`all`) and bumps every epoch. All these
//! are atomic read-modify-write instructions, which are full barriers on x86 (and with `BPF_FETCH` everywhere).
//!
//! Here, [`Watcher::begin_snapshot`] reads `epoch[p]` **first**, then `ended` and then `begun` of each map and
//! of `all`, and demands that they are equal. Suppose the snapshot is granted with epoch *e*, and take any write *w*:
//!
//! * *w* bumped the epoch after our first read. Then the epoch is not *e* any more, and since epochs never
//!   return, code compiled for *e* runs no packet that starts after the bump, which comes before the write.
//! * *w* bumped it before. Then `begun` was raised still earlier, so we counted it. `ended` was read before
//!   `begun`, and at every moment `ended ≤ begun`; equality of the older value of the smaller with the younger
//!   value of the larger means that nothing was in flight when we read `ended`. So *w* had ended, and what we
//!   read from the map afterwards is after it.
//!
//! (Were `begun` read first, one write could begin and another end in between, and the sum would deceive.)
//! [`Watcher::still_valid`] compares the epoch once more when the reading is done: unchanged means that no write
//! has begun meanwhile. It need not be asked for safety: the guard in the program asks the same.
//!
//! # What is a write
//!
//! Update, delete, lookup-and-delete, the batch forms, and freeze; a test run of a SYSCALL program, which can
//! write any map without naming it; an iterator made by another process than the one that opened the watcher, and any
//! write to a map of maps (a new writer may appear, so who holds a map must be asked again); commands newer than this
//! watcher; any call whose arguments cannot be read at entry (a page not yet faulted in) or are not the same at
//! exit; any call by the 32-bit entry.
//!
//! Loading a program writes nothing. But when a load by another process returns, and the program holds a watched map,
//! the epochs of those that depend on the map are bumped: a new writer has appeared. So a snapshot's epoch has to be
//! read before it is asked who holds the maps. Nobody uses a program before its load has returned, unless a thread
//! guesses its descriptor or its id; that is not seen.
//!
//! Not seen, and excluded elsewhere: writes by programs (known by who holds the map), by memory mappings (such
//! maps are never specialized), by the kernel itself, by iterators over a map ([`crate::holders`]).
//! Not seen at all: a thread that exchanges the arguments of another thread's call and puts them back before it
//! returns. Unprivileged processes can make every program fall back by calling bpf(2) with unreadable arguments;
//! that costs speed, never correctness.
//!
//! # Attaching
//!
//! A thread that was already inside bpf(2) when the hooks were attached may write later without having been
//! seen. Attaching (1) sets a flag on every thread, or finds it set, and adds our function to the list that
//! flagged threads call; then (2) we wait until every CPU has passed a full barrier, then (3) we look at the
//! saved registers of every thread until none is found inside bpf(2) that the entry hook has not seen.
//! A thread on its way in first saves its registers, then reads the flag and the list. If it read them before our change,
//! its saved registers were written before, and the barrier of (2) makes them visible to (3), which waits for
//! it. If it read them after, it is seen by the hook. Threads born later inherit the flag. A thread that is
//! found outside once needs no second look: its next call meets the hook. Stale registers of a thread that runs
//! in user space look like a call still under way; the next interrupt clears them, and waiting is bounded.
//!
//! The same look serves [`Watcher::watch`]: calls that entered before the map was watched did not count it.
//! The hook notes a generation number before it looks the map up, with a full barrier in between; `watch`
//! enters the map, raises the number, and waits for calls with an older one. Calls that may write anything are
//! not waited for: they are counted, so no snapshot is granted before they end.
//!
//! # Whose it is
//!
//! Pinned, the watcher outlives every process, SIGKILL included; that is the only form to use under programs
//! that do so too. One process at a time owns it (installs or opens it, and calls `watch`); that is not checked.
//! A thread that dies inside bpf(2) cannot unbalance the counters, since the exit hook runs on its way out; were
//! it ever to happen, snapshots would be refused, not falsely granted.

mod install;
mod layout;
mod ring;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use thiserror::Error;

pub use install::{Hook, Options};
pub use layout::{KEY_MAX, MAX_WATCHED, RING_RECORDS, SLOT_BYTES, SLOTS};
pub use ring::{Change, RingPosition};

use crate::error::{Errno, Error, Result};
use crate::map::{Map, Mapping, UpdateMode};
use crate::program::Program;
use layout::state;

/// What can go wrong with the watcher beside what the kernel refuses.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatcherError {
    /// Writes are under way: try again in a moment.
    #[error("writes to map(s) {maps:?}{} are under way", if *unknown { " and to an unknown target" } else { "" })]
    WritesInFlight {
        /// Ids of the maps being written.
        maps: Vec<u32>,
        /// Whether a call is under way that may write anything.
        unknown: bool,
    },
    /// The map is not watched.
    #[error("map {map_id} is not watched for epoch slot {slot}")]
    NotWatched {
        /// Id of the map.
        map_id: u32,
        /// The epoch slot asked for.
        slot: u32,
    },
    /// No more maps can be watched.
    #[error("{MAX_WATCHED} maps are watched already")]
    TooManyMaps,
    /// The slot's number is out of range.
    #[error("there is no epoch slot {slot}; slots are 0 to {}", SLOTS - 1)]
    NoSuchSlot {
        /// The number given.
        slot: u32,
    },
    /// A watcher, or part of one, is pinned there.
    #[error("a watcher is pinned in {} already; open it, or remove it first", dir.display())]
    AlreadyInstalled {
        /// The directory.
        dir: PathBuf,
    },
    /// No whole watcher of this version is pinned there.
    #[error("no complete watcher of this version is pinned in {} (found: {found:?}); install one", dir.display())]
    NotInstalled {
        /// The directory.
        dir: PathBuf,
        /// What is there.
        found: Vec<String>,
    },
    /// Threads did not leave bpf(2) in time.
    #[error("still inside a bpf(2) system call after 30 s: {}", list(threads))]
    StillInside {
        /// The threads.
        threads: Vec<Thread>,
    },
    /// The ring no longer holds the records asked for.
    #[error("the log of writes from {from} to {upto} is partly overwritten; take a fresh snapshot")]
    RingOverrun {
        /// First record asked for.
        from: u64,
        /// Where the ring stands.
        upto: u64,
    },
    /// Writers keep the ring busy.
    #[error("writers leave no quiet moment to read the log of writes; try again")]
    RingBusy,
}

/// A thread of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Thread {
    fn from_bytes(bytes: &[u8]) -> Thread {
        let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let name = bytes[8..].split(|b| *b == 0).next().unwrap_or_default();
        Thread { tid: number(0), pid: number(4), name: String::from_utf8_lossy(name).into_owned() }
    }
}

fn list(threads: &[Thread]) -> String {
    let one = |t: &Thread| format!("{} (process {}, thread {})", t.name, t.pid, t.tid);
    threads.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A permission to read maps and compile for what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotToken {
    /// The slot of the program that will depend on the snapshot.
    pub slot: u32,
    /// The epoch to compile for.
    pub epoch: u64,
    /// Where the log of writes stood: what ended before is in the maps.
    pub position: RingPosition,
}

/// The watcher in the kernel, owned by this process. See the module's description.
///
/// Dropping it takes an unpinned watcher out of the kernel, after bumping every epoch so that no program that
/// depends on it runs specialized code again; a pinned one stays.
#[derive(Debug)]
pub struct Watcher {
    epochs: Map,
    epochs_memory: Mapping,
    state: Mapping,
    ring: Mapping,
    watched: Map,
    scan: Program,
    links: [OwnedFd; 2],
    kept: Links,
    /// Held while the table of watched maps changes.
    watching: Mutex<()>,
    /// Calls that the kernel side could not remember and that are known to have ended.
    settled: Mutex<u64>,
}

/// Who keeps the hooks attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Pins.
    Pinned,
    /// This process alone.
    Held,
}

impl Watcher {
    /// Which hooks are in use.
    pub fn hook(&self) -> Hook {
        Hook::SyscallTracepoints
    }

    /// The map that holds the epochs: one value of [`SLOTS`] times [`SLOT_BYTES`] bytes, the epoch of a slot in
    /// its first eight bytes. Programs read it by direct address and must never write it.
    pub fn epochs_map(&self) -> &Map {
        &self.epochs
    }

    /// Byte offset of a slot's epoch in the value of [`Watcher::epochs_map`].
    pub fn epoch_offset(slot: u32) -> u32 {
        slot * SLOT_BYTES
    }

    /// The present epoch of a slot.
    pub fn epoch(&self, slot: u32) -> Result<u64> {
        Ok(self.epochs_memory.load_u64(checked(slot)?))
    }

    /// Bumps a slot's epoch: its program falls back from the next packet on. Returns the new epoch.
    pub fn bump(&self, slot: u32) -> Result<u64> {
        Ok(self.epochs_memory.fetch_add_u64(checked(slot)?, 1) + 1)
    }

    /// Makes writes to the map bump the slot's epoch, and waits for the calls that entered before.
    ///
    /// Errors: [`WatcherError::TooManyMaps`], [`WatcherError::NoSuchSlot`], [`WatcherError::StillInside`] (then
    /// the map is watched, but a write that began before may not have bumped the epoch: do not rely on it).
    pub fn watch(&self, map_id: u32, slot: u32) -> Result<()> {
        checked(slot)?;
        {
            let _guard = self.lock();
            let index = match self.index_of(map_id)? {
                Some(index) => index,
                None => self.add(map_id)?,
            };
            let at = state::map(index).slots;
            self.state.store_u64(at, self.state.load_u64(at) | 1 << slot);
        }
        self.settle()
    }

    /// Undoes [`Watcher::watch`]; not watched is no error. The slot's epoch is left as it is.
    pub fn unwatch(&self, map_id: u32, slot: u32) -> Result<()> {
        checked(slot)?;
        let _guard = self.lock();
        let Some(index) = self.index_of(map_id)? else { return Ok(()) };
        let fields = state::map(index);
        let slots = self.state.load_u64(fields.slots) & !(1 << slot);
        self.state.store_u64(fields.slots, slots);
        if slots == 0 {
            self.watched.delete(&map_id.to_ne_bytes())?;
            self.state.store_u64(fields.map_id, 0);
        }
        Ok(())
    }

    /// The maps that are watched for a slot.
    pub fn watched_by(&self, slot: u32) -> Result<Vec<u32>> {
        checked(slot)?;
        let _guard = self.lock();
        let fields = (0..MAX_WATCHED).map(state::map);
        let ours = fields.filter(|f| self.state.load_u64(f.slots) & 1 << slot != 0);
        Ok(ours.map(|f| self.state.load_u64(f.map_id) as u32).filter(|id| *id != 0).collect())
    }

    /// Writes under way to a watched map at this moment; `None` if it is not watched.
    pub fn in_flight(&self, map_id: u32) -> Result<Option<u64>> {
        let Some(index) = self.index_of(map_id)? else { return Ok(None) };
        let fields = state::map(index);
        Ok(Some(self.in_flight_at(fields.ended, fields.begun)))
    }

    /// `ended` is read first; see the module's description.
    fn in_flight_at(&self, ended: usize, begun: usize) -> u64 {
        let ended = self.state.load_u64(ended);
        self.state.load_u64(begun).wrapping_sub(ended)
    }

    /// Permission to read these maps for the program of this slot, if no write to them is under way.
    ///
    /// Errors: [`WatcherError::WritesInFlight`]: try again; under a stream of writes read the maps all the same,
    /// from a [`Watcher::ring_position`] taken before, and bring the result up to date by
    /// [`Watcher::changes_since`] once a token is granted. [`WatcherError::NotWatched`].
    pub fn begin_snapshot(&self, maps: &[u32], slot: u32) -> Result<SnapshotToken> {
        let epoch = self.epoch(slot)?;
        self.settle_lost_calls()?;
        let mut busy = Vec::new();
        for &map_id in maps {
            let not_watched = WatcherError::NotWatched { map_id, slot };
            let fields = state::map(self.index_of(map_id)?.ok_or(not_watched.clone())?);
            if self.state.load_u64(fields.slots) & 1 << slot == 0 {
                return Err(not_watched.into());
            }
            if self.in_flight_at(fields.ended, fields.begun) != 0 {
                busy.push(map_id);
            }
        }
        let unknown = self.in_flight_at(state::ALL_ENDED, state::ALL_BEGUN) != 0;
        if unknown || !busy.is_empty() {
            return Err(WatcherError::WritesInFlight { maps: busy, unknown }.into());
        }
        Ok(SnapshotToken { slot, epoch, position: self.ring_position() })
    }

    /// Whether no write to what the slot depends on has begun since the token was granted.
    pub fn still_valid(&self, token: &SnapshotToken) -> bool {
        self.epoch(token.slot).is_ok_and(|epoch| epoch == token.epoch)
    }

    /// Hook runs that the kernel skipped because the hook was already running on that CPU. Must be zero:
    /// kernels run these hooks with preemption off. Anything else means that a write may have gone unseen.
    pub fn missed_runs(&self) -> Result<u64> {
        let mut missed = 0;
        for link in &self.links {
            let info = crate::link::raw_info(std::os::fd::AsFd::as_fd(link))?;
            missed += Program::from_id(info.prog_id)?.info()?.recursion_misses;
        }
        Ok(missed)
    }

    /// Calls that the hook could not remember (no memory for the thread's note) bumped every epoch, but are not
    /// in the counters. They have ended once no thread is inside that entered before.
    fn settle_lost_calls(&self) -> Result<()> {
        let mut settled = self.settled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let lost = self.state.load_u64(state::LOST);
        if lost != *settled {
            self.settle()?;
            *settled = lost;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.watching.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn index_of(&self, map_id: u32) -> Result<Option<u32>> {
        let mut index = [0; 4];
        let found = self.watched.lookup_into(&map_id.to_ne_bytes(), &mut index)?;
        Ok(found.then(|| u32::from_ne_bytes(index)))
    }

    /// Gives the map a place among the counters. The place is filled before the map can be found.
    fn add(&self, map_id: u32) -> Result<u32> {
        let free = |index: &u32| self.state.load_u64(state::map(*index).map_id) == 0;
        let index = (0..MAX_WATCHED).find(free).ok_or(WatcherError::TooManyMaps)?;
        let fields = state::map(index);
        self.state.store_u64(fields.slots, 0);
        self.state.store_u64(fields.map_id, map_id.into());
        match self.watched.update(&map_id.to_ne_bytes(), &index.to_ne_bytes(), UpdateMode::NoExist) {
            Ok(()) => Ok(index),
            Err(e) => {
                self.state.store_u64(fields.map_id, 0);
                Err(if e.errno() == Some(Errno(libc::E2BIG)) { WatcherError::TooManyMaps.into() } else { e })
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if self.kept == Links::Held {
            // The mapping exists, so this cannot fail; and there would be no one to tell.
            let _ = install::bump_all(&self.epochs);
        }
    }
}

/// Byte offset of a slot, if there is such a slot.
fn checked(slot: u32) -> Result<usize> {
    if slot < SLOTS {
        return Ok(Watcher::epoch_offset(slot) as usize);
    }
    Err(Error::from(WatcherError::NoSuchSlot { slot }))
}
