//! Tables as of one epoch, kept up to date key by key.
//!
//! The first reading takes everything; later ones only what the watcher's log says was written since. So a stream of
//! writes costs a look at the keys written, not a new reading of a large table for each.
//!
//! A key of an exact table is simply looked up again. A lookup in a prefix table gives the longest match, which says
//! that a prefix exists only if we know so from elsewhere: the log tells of successful inserts and deletes. Where
//! several writes to one prefix lie so close together that their order is not certain, and wherever the log does not
//! know the key, the table is read anew.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use runnel_ir::{TableData, TableKind};
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::map::Map;
use runnel_kernel::watcher::{Change, RingPosition, SnapshotToken, Watcher, WatcherError};
use runnel_tables::{Contents, Entry};

/// `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_DELETE_ELEM` of `enum bpf_cmd`.
const UPDATE: u32 = 2;
const DELETE: u32 = 3;
/// How often writes may get in the way before the attempt is given up for now.
const ATTEMPTS: u32 = 8;
/// How long to wait for writes under way to end.
const PATIENCE: Duration = Duration::from_millis(20);

type Error = KernelError;

/// The entries of a map by key.
type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Writes to one key of one map: command and result of each, in the order of the log.
type Writes = BTreeMap<(u32, Box<[u8]>), Vec<(u32, i32)>>;

/// What one map held when it was last looked at.
#[derive(Debug)]
struct Cached {
    kind: TableKind,
    entries: Entries,
}

/// The contents of a set of maps.
#[derive(Debug, Default)]
pub struct Snapshots {
    cached: HashMap<u32, Cached>,
    position: Option<RingPosition>,
}

impl Snapshots {
    /// Brings the contents of `maps` (with how they find entries) to one moment, at which the slot's epoch was the
    /// token's. Nothing, if writes left no such moment.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn refresh(
        &mut self,
        watcher: &Watcher,
        slot: u32,
        maps: &[(&Map, TableKind)],
    ) -> Result<Option<SnapshotToken>, Error> {
        let ids: Vec<u32> = maps.iter().map(|(map, _)| map.id()).collect();
        self.cached.retain(|id, _| ids.contains(id));
        for _ in 0..ATTEMPTS {
            let before = watcher.ring_position();
            for (map, kind) in maps {
                if let Slot::Vacant(slot) = self.cached.entry(map.id()) {
                    let Some(entries) = read(map, *kind)? else { return Ok(None) };
                    slot.insert(Cached { kind: *kind, entries });
                }
            }
            let from = *self.position.get_or_insert(before);
            let Some(token) = token(watcher, &ids, slot)? else { return Ok(None) };
            match watcher.changes_since(from) {
                Ok((changes, upto)) => {
                    self.apply(maps, &changes)?;
                    self.position = Some(upto);
                }
                Err(WatcherError::RingOverrun { .. }) => self.forget(),
                Err(WatcherError::RingBusy) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
            let complete = ids.iter().all(|id| self.cached.contains_key(id));
            if complete && watcher.still_valid(&token) {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// The contents of a map as of the last refresh.
    pub fn contents(&self, map: &Map) -> Option<Contents> {
        let cached = self.cached.get(&map.id())?;
        let spec = map.spec();
        Some(Contents {
            kind: cached.kind,
            key_size: spec.key_size,
            value_size: spec.value_size,
            max_entries: spec.max_entries,
            entries: cached.entries.iter().map(|(k, v)| Entry { key: k.clone(), value: v.clone() }).collect(),
        })
    }

    fn forget(&mut self) {
        self.cached.clear();
        self.position = None;
    }

    fn apply(&mut self, maps: &[(&Map, TableKind)], changes: &[Change]) -> Result<(), Error> {
        let mut written = Writes::new();
        for change in changes {
            match (change.map_id, &change.key) {
                (None, _) => self.cached.clear(),
                (Some(id), None) => {
                    self.cached.remove(&id);
                }
                (Some(id), Some(key)) => {
                    let Some(cached) = self.cached.get(&id) else { continue };
                    let key = normal(cached.kind, key);
                    written.entry((id, key)).or_default().push((change.command, change.result));
                }
            }
        }
        for ((id, key), writes) in written {
            let Some((map, _)) = maps.iter().find(|(map, _)| map.id() == id) else { continue };
            let Some(cached) = self.cached.get_mut(&id) else { continue };
            let present = match (cached.kind, &writes[..]) {
                (TableKind::Prefix, [(UPDATE, 0)]) => true,
                (TableKind::Prefix, [(DELETE, 0)]) => false,
                (TableKind::Prefix, [(UPDATE | DELETE, result)]) if *result < 0 => continue,
                // Several writes, or a command whose effect the log does not say.
                (TableKind::Prefix, _) => {
                    self.cached.remove(&id);
                    continue;
                }
                _ => true,
            };
            let value = if present { map.lookup(&key)? } else { None };
            match value {
                Some(value) => cached.entries.insert(key, value.into()),
                None => cached.entries.remove(&key),
            };
        }
        Ok(())
    }
}

/// Why a table is never specialized, whatever it holds.
pub(super) fn left_by_kind(data: &TableData) -> Option<&'static str> {
    if data.kind == TableKind::Opaque {
        Some("only helpers use it")
    } else if data.per_cpu {
        Some("each CPU has values of its own")
    } else if data.keeps_recency {
        Some("lookups decide what it evicts")
    } else {
        None
    }
}

/// Permission to take the contents for those of an epoch, once no write is under way.
fn token(watcher: &Watcher, ids: &[u32], slot: u32) -> Result<Option<SnapshotToken>, Error> {
    let started = Instant::now();
    loop {
        match watcher.begin_snapshot(ids, slot) {
            Ok(token) => return Ok(Some(token)),
            Err(Error::Watcher(WatcherError::WritesInFlight { .. })) if started.elapsed() < PATIENCE => {
                std::thread::yield_now();
            }
            Err(Error::Watcher(WatcherError::WritesInFlight { .. })) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

/// All entries of a map; nothing if writers made the walk start over too often.
fn read(map: &Map, kind: TableKind) -> Result<Option<Entries>, Error> {
    match map.read_all() {
        Ok(entries) => {
            Ok(Some(entries.into_iter().map(|(key, value)| (normal(kind, &key), value)).collect()))
        }
        Err(Error::ChangedWhileReading { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The key as the table compares it: bits of a prefix beyond its length do not count.
pub fn normal(kind: TableKind, key: &[u8]) -> Box<[u8]> {
    let mut key: Box<[u8]> = key.into();
    if kind == TableKind::Prefix
        && let Some((length, address)) = key.split_first_chunk_mut::<4>()
    {
        let mut bits = u32::from_ne_bytes(*length);
        for byte in address {
            let kept = bits.min(8);
            *byte &= (0xff00u32 >> kept) as u8;
            bits -= kept;
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_of_a_prefix_do_not_count() {
        let key = |bits: u32, address: [u8; 4]| [bits.to_ne_bytes(), address].concat();
        let masked = |bits, address| normal(TableKind::Prefix, &key(bits, address)).into_vec();
        assert_eq!(masked(32, [10, 1, 2, 3]), key(32, [10, 1, 2, 3]));
        assert_eq!(masked(12, [10, 0x1f, 2, 3]), key(12, [10, 0x10, 0, 0]));
        assert_eq!(masked(0, [10, 1, 2, 3]), key(0, [0, 0, 0, 0]));
        assert_eq!(normal(TableKind::Exact, &[1, 2, 3]).into_vec(), [1, 2, 3]);
    }
}
