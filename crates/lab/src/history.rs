//! What one entry of a table held, and when it may have held it.
//!
//! An update takes effect at one moment somewhere between its beginning and its end. So a value may be read from the
//! beginning of the update that wrote it to the end of the next one, and *must* be read only between its update's
//! end and the next one's beginning. Updates of one entry do not overlap: there is one writer.

use std::collections::VecDeque;

/// Values of one entry over time, oldest first; `None`: it is not there.
#[derive(Clone, Debug)]
pub struct History<V> {
    versions: VecDeque<Version<V>>,
}

/// A value and the interval in which the update that wrote it took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<V> {
    /// What was written.
    pub value: Option<V>,
    /// When the update began: not before, the value can be read.
    pub begun: u64,
    /// When it returned: from then on, no older value can.
    pub ended: u64,
}

/// A value that a reader may see, and from when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible<'a, V> {
    /// The value.
    pub version: &'a Version<V>,
    /// The earliest moment, within the interval asked for, at which it may be read.
    pub from: u64,
    /// The update that replaced it, if one has.
    pub successor: Option<&'a Version<V>>,
}

impl<V: Copy> History<V> {
    /// An entry that has held this since ever.
    pub fn new(value: Option<V>) -> Self {
        Self { versions: VecDeque::from([Version { value, begun: 0, ended: 0 }]) }
    }

    /// Adds an update, which must not begin before the last one has ended.
    pub fn push(&mut self, value: Option<V>, begun: u64, ended: u64) {
        self.versions.push_back(Version { value, begun, ended });
    }

    /// The values that may be read at some moment from `from` to `to`, both included.
    pub fn during(&self, from: u64, to: u64) -> impl Iterator<Item = Visible<'_, V>> {
        self.versions.iter().enumerate().filter_map(move |(i, version)| {
            let successor = self.versions.get(i + 1);
            let last = successor.map_or(u64::MAX, |next| next.ended);
            let visible = version.begun <= to && last >= from;
            visible.then_some(Visible { version, from: from.max(version.begun), successor })
        })
    }

    /// When the last update that had returned by `time` did; `None` if there was none.
    pub fn updated_before(&self, time: u64) -> Option<u64> {
        let ended = self.versions.iter().rev().map(|v| v.ended).find(|ended| *ended <= time)?;
        (ended > 0).then_some(ended)
    }

    /// Forgets what nobody can read from `time` on.
    pub fn forget_before(&mut self, time: u64) {
        while self.versions.len() > 1 && self.versions[1].ended < time {
            self.versions.pop_front();
        }
    }
}
