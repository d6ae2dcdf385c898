//! One table: the kernel's rules for its kind on top of slots and values.

use std::collections::BTreeSet;

use runnel_ir::{Table, TableData, TableKind};

use super::errno::{E2BIG, EEXIST, EINVAL, ENOENT, ENOSPC};
use super::keyed::Keyed;
use super::prefix::{LENGTH_BYTES, Lengths, cut, length};
use super::values::Values;
use super::{Contents, Entry, UpdateMode};
use crate::fault::{ControlError, SetupError, What};

/// How the slot of a key's value is found.
#[derive(Clone, Debug)]
enum Finder {
    /// By the key's bytes.
    Exact(Keyed),
    /// By the longest prefix; keys are kept cut to their prefix.
    Prefix(Keyed, Lengths),
    /// The key is the slot.
    Index,
    /// Not at all.
    Opaque,
}

/// A table and what it holds.
#[derive(Clone, Debug)]
pub(super) struct TableState {
    pub(super) data: TableData,
    finder: Finder,
    values: Values,
    /// Slots whose entry a lookup found.
    hit: Vec<bool>,
    /// Keys of such entries that are gone.
    hit_before: BTreeSet<Box<[u8]>>,
    /// Room to cut a key to its prefix.
    scratch: Vec<u8>,
}

impl TableState {
    pub(super) fn new(
        table: Table,
        data: &TableData,
        cpus: u32,
        start: u64,
    ) -> Result<TableState, SetupError> {
        let bad = |reason| Err(SetupError::BadTable { table: data.name.clone(), reason });
        if data.kind != TableKind::Opaque {
            if data.value_size == 0 {
                return bad("values must have at least one byte");
            }
            if data.key_size == 0 {
                return bad("keys must have at least one byte");
            }
        }
        let keyed = || Keyed::new(data.key_size, data.max_entries, data.keeps_recency);
        let finder = match data.kind {
            TableKind::Exact => Finder::Exact(keyed()),
            // The kernel's bounds: `LPM_DATA_SIZE_MIN` and `LPM_DATA_SIZE_MAX`.
            TableKind::Prefix if !(5..=260).contains(&data.key_size) => {
                return bad("keys of prefix tables are four bytes of length and 1 to 256 of address");
            }
            TableKind::Prefix => Finder::Prefix(keyed(), Lengths::new(data.key_size)),
            TableKind::Index if data.key_size != 4 => return bad("keys of index tables have four bytes"),
            TableKind::Index => Finder::Index,
            TableKind::Opaque => Finder::Opaque,
        };
        let copies = if data.per_cpu { cpus } else { 1 };
        let mut values = Values::new(table, start, data.value_size, copies);
        let mut hit = Vec::new();
        if data.kind == TableKind::Index {
            values.grow(data.max_entries as usize);
            hit = vec![false; data.max_entries as usize];
        }
        let scratch = vec![0; data.key_size as usize];
        Ok(TableState { data: data.clone(), finder, values, hit, hit_before: BTreeSet::new(), scratch })
    }

    pub(super) fn copies(&self) -> usize {
        self.values.copies()
    }

    /// Address of the value of a table of one entry.
    pub(super) fn first_address(&self) -> u64 {
        self.values.address(0, 0)
    }

    /// Address of the value that `key` finds for `cpu`; counts as a use.
    pub(super) fn lookup(&mut self, key: &[u8], cpu: u32) -> Option<u64> {
        let slot = self.find(key)?;
        if let Finder::Exact(keyed) | Finder::Prefix(keyed, _) = &mut self.finder {
            keyed.touch(slot);
        }
        self.hit[slot as usize] = true;
        Some(self.values.address(slot as usize, self.copy_of(cpu)))
    }

    /// All copies of the value that `key` finds.
    pub(super) fn get(&mut self, key: &[u8]) -> Option<Box<[u8]>> {
        let slot = self.find(key)?;
        Some(self.values.all(slot as usize))
    }

    fn copy_of(&self, cpu: u32) -> usize {
        if self.data.per_cpu { cpu as usize } else { 0 }
    }

    /// The slot whose value a lookup of `key` gives.
    fn find(&mut self, key: &[u8]) -> Option<u32> {
        match &self.finder {
            Finder::Exact(keyed) => keyed.find(key),
            Finder::Prefix(keyed, lengths) => {
                let limit = length(key);
                if limit > lengths.max() {
                    return None;
                }
                self.scratch.copy_from_slice(key);
                // Cutting what is already cut to a longer prefix keeps the leading bits right.
                lengths.in_use(limit).find_map(|length| {
                    cut(&mut self.scratch, length);
                    keyed.find(&self.scratch)
                })
            }
            Finder::Index => index_of(key).filter(|&index| index < self.data.max_entries),
            Finder::Opaque => None,
        }
    }

    /// Inserts or replaces the entry of `key`. `value` goes into the copy of `cpu`, or into all copies when the
    /// control plane writes; other copies of a new entry are zero.
    pub(super) fn update(
        &mut self,
        key: &[u8],
        value: &[u8],
        flags: u64,
        cpu: Option<u32>,
    ) -> Result<(), i64> {
        let mode = || UpdateMode::from_flags(flags).ok_or(EINVAL);
        let slot = match &self.finder {
            Finder::Opaque => return Err(EINVAL),
            Finder::Index => self.index_slot(key, flags)?,
            Finder::Exact(_) => self.keyed_slot(key, mode()?)?,
            Finder::Prefix(_, lengths) => {
                let (mode, length) = (mode()?, length(key));
                if length > lengths.max() {
                    return Err(EINVAL);
                }
                let mut key: smallvec::SmallVec<[u8; 32]> = key.into();
                cut(&mut key, length);
                self.keyed_slot(&key, mode)?
            }
        };
        let copies = match cpu {
            Some(cpu) => self.copy_of(cpu)..self.copy_of(cpu) + 1,
            None => 0..self.copies(),
        };
        for copy in copies {
            self.values.copy_mut(slot as usize, copy).copy_from_slice(value);
        }
        Ok(())
    }

    /// The slot that an update of an array writes to. The order of the checks is the kernel's, and shows where
    /// several fail; values have no lock, so that its flag is refused, but only in the end.
    fn index_slot(&self, key: &[u8], flags: u64) -> Result<u32, i64> {
        const LOCK: u64 = 4;
        let mode = UpdateMode::from_flags(flags & !LOCK).ok_or(EINVAL)?;
        let index = index_of(key).filter(|&index| index < self.data.max_entries).ok_or(E2BIG)?;
        if mode == UpdateMode::Insert {
            return Err(EEXIST);
        }
        if flags & LOCK != 0 { Err(EINVAL) } else { Ok(index) }
    }

    /// The slot that an update writes to: of a new entry, or of the old one. An old entry moves to another slot,
    /// because the kernel links a new element in its place, unless each CPU has its copy: those are overwritten.
    fn keyed_slot(&mut self, key: &[u8], mode: UpdateMode) -> Result<u32, i64> {
        let max_entries = self.data.max_entries as usize;
        let (Finder::Exact(keyed) | Finder::Prefix(keyed, _)) = &mut self.finder else { return Err(EINVAL) };
        match (keyed.find(key), mode) {
            (Some(_), UpdateMode::Insert) => Err(EEXIST),
            (None, UpdateMode::Replace) => Err(ENOENT),
            (Some(slot), _) if self.data.per_cpu => {
                keyed.touch(slot);
                Ok(slot)
            }
            (Some(old), _) => {
                let new = keyed.replace(old);
                self.occupy(new);
                self.hit[new as usize] = std::mem::take(&mut self.hit[old as usize]);
                Ok(new)
            }
            (None, _) => {
                if keyed.len() >= max_entries {
                    match keyed.oldest() {
                        Some(oldest) => self.end_entry(oldest),
                        None if matches!(self.finder, Finder::Prefix(..)) => return Err(ENOSPC),
                        None => return Err(E2BIG),
                    }
                }
                self.begin_entry(key)
            }
        }
    }

    fn begin_entry(&mut self, key: &[u8]) -> Result<u32, i64> {
        let (Finder::Exact(keyed) | Finder::Prefix(keyed, _)) = &mut self.finder else { return Err(EINVAL) };
        let slot = keyed.insert(key);
        if let Finder::Prefix(_, lengths) = &mut self.finder {
            lengths.add(key);
        }
        self.occupy(slot);
        Ok(slot)
    }

    /// Makes room for the value in `slot`, and sets it to zero.
    fn occupy(&mut self, slot: u32) {
        if let Finder::Exact(keyed) | Finder::Prefix(keyed, _) = &self.finder {
            self.values.grow(keyed.slots_used());
            self.hit.resize(keyed.slots_used().max(self.hit.len()), false);
        }
        self.values.clear(slot as usize);
        self.hit[slot as usize] = false;
    }

    fn end_entry(&mut self, slot: u32) {
        let (Finder::Exact(keyed) | Finder::Prefix(keyed, _)) = &mut self.finder else { return };
        if std::mem::take(&mut self.hit[slot as usize]) {
            self.hit_before.insert(keyed.key(slot).into());
        }
        if let Finder::Prefix(keyed, lengths) = &mut self.finder {
            lengths.remove(keyed.key(slot));
        }
        if let Finder::Exact(keyed) | Finder::Prefix(keyed, _) = &mut self.finder {
            keyed.remove(slot);
        }
    }

    /// Ends the entry of exactly this key or prefix.
    pub(super) fn delete(&mut self, key: &[u8]) -> Result<(), i64> {
        let slot = match &self.finder {
            Finder::Index | Finder::Opaque => return Err(EINVAL),
            Finder::Exact(keyed) => keyed.find(key),
            Finder::Prefix(keyed, lengths) => {
                let length = length(key);
                if length > lengths.max() {
                    return Err(EINVAL);
                }
                self.scratch.copy_from_slice(key);
                cut(&mut self.scratch, length);
                keyed.find(&self.scratch)
            }
        };
        self.end_entry(slot.ok_or(ENOENT)?);
        Ok(())
    }

    /// Sets the copies of all CPUs of the entry that `key` finds.
    pub(super) fn set_copies(&mut self, key: &[u8], value: &[u8]) {
        let Some(slot) = self.find(key) else { return };
        for (copy, bytes) in value.chunks_exact(self.data.value_size as usize).enumerate() {
            self.values.copy_mut(slot as usize, copy).copy_from_slice(bytes);
        }
    }

    pub(super) fn contents(&self) -> Contents {
        let mut entries: Vec<Entry> = match &self.finder {
            Finder::Exact(keyed) | Finder::Prefix(keyed, _) => keyed
                .iter()
                .map(|slot| Entry { key: keyed.key(slot).into(), value: self.values.all(slot as usize) })
                .collect(),
            Finder::Index => (0..self.data.max_entries)
                .map(|i| Entry { key: i.to_ne_bytes().into(), value: self.values.all(i as usize) })
                .collect(),
            Finder::Opaque => Vec::new(),
        };
        entries.sort_unstable();
        Contents { name: self.data.name.clone(), entries }
    }

    pub(super) fn entries_reached(&self) -> BTreeSet<Box<[u8]>> {
        let mut reached = self.hit_before.clone();
        let slots = self.hit.iter().enumerate().filter(|(_, hit)| **hit).map(|(slot, _)| slot as u32);
        match &self.finder {
            Finder::Exact(keyed) | Finder::Prefix(keyed, _) => {
                reached.extend(slots.map(|slot| Box::from(keyed.key(slot))));
            }
            Finder::Index | Finder::Opaque => reached.extend(slots.map(|i| Box::from(i.to_ne_bytes()))),
        }
        reached
    }

    pub(super) fn forget_hits(&mut self) {
        self.hit.fill(false);
        self.hit_before.clear();
    }

    pub(super) fn value_slice(&self, address: u64, len: usize) -> Result<&[u8], What> {
        self.values.slice(address, len)
    }

    pub(super) fn value_slice_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], What> {
        self.values.slice_mut(address, len)
    }

    pub(super) fn wrong_size(&self, what: &'static str, expected: usize, given: usize) -> ControlError {
        ControlError::WrongSize { table: self.data.name.clone(), what, expected, given }
    }

    pub(super) fn refused(&self, what: &'static str, errno: i64) -> ControlError {
        ControlError::Refused { table: self.data.name.clone(), what, errno }
    }
}

/// The index that a key of four bytes is.
fn index_of(key: &[u8]) -> Option<u32> {
    key.first_chunk::<LENGTH_BYTES>().map(|bytes| u32::from_ne_bytes(*bytes))
}
