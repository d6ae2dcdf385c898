//! Entries found by the bytes of their key: which slot each one has, and which slot is given out next.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};

use hashbrown::HashTable;

use super::recency::Recency;

/// Slots beyond a table's capacity. A slot given back is given out again only after this many others, so that a
/// pointer to a replaced or deleted value keeps showing the old value for a while, as a grace period does.
pub(super) const SPARE_SLOTS: u32 = 64;

/// Keys and the slots that their values are in.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    key_size: usize,
    keys: Vec<u8>,
    index: HashTable<u32>,
    /// Slots never given out begin here.
    fresh: u32,
    slots: u32,
    given_back: VecDeque<u32>,
    recency: Option<Recency>,
}

fn hash(key: &[u8]) -> u64 {
    // Always the same keys: what a table does must not depend on the process.
    let mut hasher = DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

fn key_of(keys: &[u8], key_size: usize, slot: u32) -> &[u8] {
    let at = slot as usize * key_size;
    &keys[at..at + key_size]
}

impl Keyed {
    pub(super) fn new(key_size: u32, capacity: u32, keeps_recency: bool) -> Keyed {
        Keyed {
            key_size: key_size as usize,
            keys: Vec::new(),
            index: HashTable::new(),
            fresh: 0,
            slots: capacity.saturating_add(SPARE_SLOTS),
            given_back: VecDeque::new(),
            recency: keeps_recency.then(Recency::default),
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Number of slots that were ever given out.
    pub(super) fn slots_used(&self) -> usize {
        self.fresh as usize
    }

    pub(super) fn key(&self, slot: u32) -> &[u8] {
        key_of(&self.keys, self.key_size, slot)
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        self.index.find(hash(key), |&slot| self.key(slot) == key).copied()
    }

    /// Notes that the entry in `slot` was used just now.
    pub(super) fn touch(&mut self, slot: u32) {
        if let Some(recency) = &mut self.recency {
            recency.touch(slot);
        }
    }

    /// The entry that was not used for longest, if the table keeps track.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.recency.as_ref().and_then(Recency::oldest)
    }

    /// Gives a key that has no entry a slot. The caller keeps the number of entries within the capacity.
    pub(super) fn insert(&mut self, key: &[u8]) -> u32 {
        let slot = self.take_slot();
        self.put_key(slot, key);
        let (keys, key_size) = (&self.keys, self.key_size);
        self.index.insert_unique(hash(key), slot, |&other| hash(key_of(keys, key_size, other)));
        self.touch(slot);
        slot
    }

    /// Gives the entry in `slot` another slot, as an update does that makes a new element.
    pub(super) fn replace(&mut self, old: u32) -> u32 {
        let new = self.take_slot();
        let key: Box<[u8]> = self.key(old).into();
        self.put_key(new, &key);
        if let Some(found) = self.index.find_mut(hash(&key), |&slot| slot == old) {
            *found = new;
        }
        self.give_back(old);
        self.touch(new);
        new
    }

    /// Ends the entry in `slot`.
    pub(super) fn remove(&mut self, slot: u32) {
        let hash = hash(self.key(slot));
        if let Ok(found) = self.index.find_entry(hash, |&other| other == slot) {
            found.remove();
            self.give_back(slot);
        }
    }

    /// The slots of all entries, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.index.iter().copied()
    }

    fn take_slot(&mut self) -> u32 {
        if self.fresh < self.slots {
            self.fresh += 1;
            return self.fresh - 1;
        }
        // Never empty: there are more slots than entries.
        self.given_back.pop_front().unwrap_or(0)
    }

    fn give_back(&mut self, slot: u32) {
        self.given_back.push_back(slot);
        if let Some(recency) = &mut self.recency {
            recency.forget(slot);
        }
    }

    fn put_key(&mut self, slot: u32, key: &[u8]) {
        let at = slot as usize * self.key_size;
        if self.keys.len() < at + self.key_size {
            self.keys.resize(at + self.key_size, 0);
        }
        self.keys[at..at + self.key_size].copy_from_slice(key);
    }
}
