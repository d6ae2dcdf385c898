//! The log of writes, key by key, from which a snapshot is brought up to date instead of being taken anew.
//!
//! Every write to a watched map is appended at its exit, before it is counted as ended, so whoever finds a
//! map's counters equal finds all its writes in the ring. The ring holds the last [`RING_RECORDS`] writes;
//! positions are counted from the installation of the watcher and never reused, so a reader notices when it
//! comes too late.
//!
//! A writer that is stopped in the middle of a record (the host pauses a virtual CPU) could finish it after
//! the ring has gone round. So a reader first waits for a moment in which no writer is inside (`written` equals
//! `reserved`, read in this order: then no record below is being written), and afterwards looks whether the
//! ring has come round to what it read.

use std::time::{Duration, Instant};

use super::layout::{KEY_MAX, RING_RECORDS, record, state};
use super::{Watcher, WatcherError};
use crate::map::Mapping;

/// How many writes the ring had seen at some moment. Grows only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RingPosition(
    /// Number of writes logged before.
    pub u64,
);

/// One write to a watched map, or to an unknown target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The map, or `None` when any map may have been written.
    pub map_id: Option<u32>,
    /// `enum bpf_cmd`; 65535 for a call that could not be read.
    pub command: u32,
    /// The key, where exactly one was written, was the same at entry and exit, and has at most [`KEY_MAX`]
    /// bytes. `None`: any key of the map may have changed.
    pub key: Option<Vec<u8>>,
    /// What the call returned: negative errno on failure (a failed batch may have written part).
    pub result: i32,
}

/// Longest wait for a moment without a writer inside the ring; a record takes well under a microsecond.
const PATIENCE: Duration = Duration::from_millis(200);

impl Watcher {
    /// Where the ring stands now. Every write to a watched map that has not ended yet will be logged at or
    /// after this position.
    pub fn ring_position(&self) -> RingPosition {
        RingPosition(self.state.load_u64(state::RING_RESERVED))
    }

    /// All writes since `from`, and the position to go on from.
    ///
    /// The map's contents after these writes are whatever it holds now: look each key up again. On maps that
    /// evict (LRU) an update of one key may have removed another, which is not logged.
    ///
    /// Errors: [`WatcherError::RingOverrun`] when records since `from` are overwritten already: take a fresh
    /// snapshot. [`WatcherError::RingBusy`] when writers leave no quiet moment for 200 ms.
    pub fn changes_since(&self, from: RingPosition) -> Result<(Vec<Change>, RingPosition), WatcherError> {
        let upto = self.quiet_position()?;
        let overrun = || WatcherError::RingOverrun { from: from.0, upto };
        if upto < from.0 || upto - from.0 > RING_RECORDS {
            return Err(overrun());
        }
        let changes: Option<Vec<Change>> = (from.0..upto).map(|n| read(&self.ring, n)).collect();
        // A writer that reserved a record since then may be overwriting what was just read.
        if self.state.load_u64(state::RING_RESERVED) - from.0 > RING_RECORDS {
            return Err(overrun());
        }
        Ok((changes.ok_or_else(overrun)?, RingPosition(upto)))
    }

    /// A position below which every record is complete.
    fn quiet_position(&self) -> Result<u64, WatcherError> {
        let started = Instant::now();
        loop {
            let written = self.state.load_u64(state::RING_WRITTEN);
            if self.state.load_u64(state::RING_RESERVED) == written {
                return Ok(written);
            }
            if started.elapsed() > PATIENCE {
                return Err(WatcherError::RingBusy);
            }
            std::thread::yield_now();
        }
    }
}

/// Record number `n`, or `None` if its place holds another one.
fn read(ring: &Mapping, n: u64) -> Option<Change> {
    let base = (n % RING_RECORDS) as usize * record::BYTES;
    let mut bytes = [0u8; record::BYTES];
    ring.read(base, &mut bytes);
    let u64_at = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    let u32_at = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    let u16_at = |at: usize| u16::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
    let (flags, key_len) = (u32_at(record::FLAGS), u16_at(record::KEY_LEN) as usize);
    let key = (flags & record::KEY_KNOWN != 0 && key_len <= KEY_MAX)
        .then(|| bytes[record::KEY..record::KEY + key_len].to_vec());
    (u64_at(record::SEQUENCE) == n + 1).then(|| Change {
        map_id: (flags & record::ANY_MAP == 0).then(|| u32_at(record::MAP_ID)),
        command: u16_at(record::COMMAND).into(),
        key,
        result: u32_at(record::RESULT) as i32,
    })
}
