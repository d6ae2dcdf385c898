//! Order of use of a table's slots, for tables that make room by dropping what was not used for longest.
//!
//! The order is exact. The kernel's LRU maps only approximate it, and promise nobody which entry goes
//! (`kernel/bpf/bpf_lru_list.c`): no result that depends on the choice can be compared with a kernel's.

/// End of the list, and mark of slots that are not in it.
const NONE: u32 = u32::MAX;

/// A doubly linked list over slot numbers, the most recently used first.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    newer: Vec<u32>,
    older: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Default for Recency {
    fn default() -> Recency {
        Recency { newer: Vec::new(), older: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Recency {
    /// The slot used longest ago.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Makes `slot` the one used last, whether it was in the list or not.
    pub(super) fn touch(&mut self, slot: u32) {
        if self.newest == slot {
            return;
        }
        self.forget(slot);
        let at = slot as usize;
        if self.newer.len() <= at {
            self.newer.resize(at + 1, NONE);
            self.older.resize(at + 1, NONE);
        }
        self.older[at] = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.newer[newest as usize] = slot,
        }
        self.newest = slot;
    }

    /// Takes `slot` out of the list, if it is there.
    pub(super) fn forget(&mut self, slot: u32) {
        let at = slot as usize;
        let is_listed = at < self.newer.len()
            && (self.newest == slot
                || self.oldest == slot
                || self.newer[at] != NONE
                || self.older[at] != NONE);
        if !is_listed {
            return;
        }
        let (newer, older) = (self.newer[at], self.older[at]);
        match newer {
            NONE => self.newest = older,
            n => self.older[n as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.newer[o as usize] = newer,
        }
        (self.newer[at], self.older[at]) = (NONE, NONE);
    }
}
