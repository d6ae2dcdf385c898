//! What a statement may use: numbers, pointers with the bytes known to be there, initialised slots.

use runnel_ir::{Slot, Table, Value};

/// What a pointer may point into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    Packet,
    /// The value of an entry of a table.
    Entry(Table),
    /// A stack slot.
    Slot,
    /// Data, or the value of a table of one entry: always there.
    Fixed,
}

/// A pointer to bytes that may be accessed.
#[derive(Clone, Debug)]
pub(super) struct Pointer {
    pub(super) value: Value,
    /// The bytes that may be accessed: offsets from `low`, inclusive, to `high`, exclusive.
    pub(super) low: i32,
    pub(super) high: i32,
    /// What it may point into, depending on the path.
    pub(super) origins: Vec<Origin>,
    pub(super) writable: bool,
    /// Whether a variable offset may be added.
    pub(super) steerable: bool,
}

impl Pointer {
    pub(super) fn span(&self) -> u32 {
        (self.high - self.low) as u32
    }

    pub(super) fn may_be(&self, origin: Origin) -> bool {
        self.origins.contains(&origin)
    }
}

/// The packet's bounds, as read, and how many bytes are known to be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) data: Value,
    pub(super) end: Value,
    pub(super) len: u32,
}

/// What a statement may use.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub(super) scalars: Vec<Value>,
    pub(super) pointers: Vec<Pointer>,
    /// Slots of which every byte was stored to.
    pub(super) slots: Vec<Slot>,
    pub(super) packet: Option<View>,
    pub(super) in_loop: bool,
    pub(super) depth: u32,
}

impl Scope {
    /// Drops what became invalid.
    pub(super) fn apply(&mut self, kills: &Kills) {
        if kills.packet {
            self.packet = None;
        }
        self.pointers.retain(|pointer| {
            !pointer.origins.iter().any(|origin| match origin {
                Origin::Packet => kills.packet,
                Origin::Entry(table) => kills.tables.contains(table),
                Origin::Slot | Origin::Fixed => false,
            })
        });
    }
}

/// What became invalid.
#[derive(Clone, Debug, Default)]
pub(super) struct Kills {
    /// Pointers into the packet.
    pub(super) packet: bool,
    /// Pointers to values of these tables.
    pub(super) tables: Vec<Table>,
}

impl Kills {
    pub(super) fn merge(&mut self, other: Kills) {
        self.packet |= other.packet;
        self.tables.extend(other.tables);
    }
}
