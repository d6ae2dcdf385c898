//! Where things stand in the watcher's shared memory: the same layout as in `src/bpf/watcher.bpf.c`.
//!
//! [`VERSION`] names the layout and the meaning of its fields. It is part of the pins' directory entries, so a
//! watcher pinned by another version is recognized instead of misread.

/// Changes with every change of layout or protocol.
pub(super) const VERSION: u32 = 1;

/// Epoch slots, one per optimized program.
pub const SLOTS: u32 = 64;
/// Bytes from one slot to the next in the epochs map: one cache line.
pub const SLOT_BYTES: u32 = 64;
/// Maps that can be watched at the same time.
pub const MAX_WATCHED: u32 = 1024;
/// Writes that the ring holds before it overwrites the oldest.
pub const RING_RECORDS: u64 = 4096;
/// Longest key that the ring holds; writes to maps with longer keys are logged without.
pub const KEY_MAX: usize = 40;

/// Offsets in the `state` map (`struct shared`).
pub(super) mod state {
    pub const ALL_BEGUN: usize = 0;
    pub const ALL_ENDED: usize = 8;
    pub const LOST: usize = 16;
    pub const GENERATION: usize = 24;
    pub const RING_RESERVED: usize = 32;
    pub const RING_WRITTEN: usize = 40;
    pub const OWNER_TGID: usize = 48;
    pub const OWNER_START: usize = 56;
    const MAPS: usize = 64;
    const MAP_BYTES: usize = 64;

    /// Offsets of one watched map's fields (`struct watched_map`).
    #[derive(Clone, Copy)]
    pub struct WatchedMap {
        pub begun: usize,
        pub ended: usize,
        pub slots: usize,
        pub map_id: usize,
    }

    pub fn map(index: u32) -> WatchedMap {
        let base = MAPS + index as usize * MAP_BYTES;
        WatchedMap { begun: base, ended: base + 8, slots: base + 16, map_id: base + 24 }
    }
}

/// One record of the ring (`struct record`).
pub(super) mod record {
    pub const BYTES: usize = 64;
    pub const SEQUENCE: usize = 0;
    pub const MAP_ID: usize = 8;
    pub const COMMAND: usize = 12;
    pub const KEY_LEN: usize = 14;
    pub const RESULT: usize = 16;
    pub const FLAGS: usize = 20;
    pub const KEY: usize = 24;

    pub const KEY_KNOWN: u32 = 1;
    pub const ANY_MAP: u32 = 2;
}

/// One thread as the `scan` iterator reports it: thread id, thread group id, name.
pub(super) const SCANNED_BYTES: usize = 24;
