//! The made-up addresses that programs see.
//!
//! An address names its object in the high bits and its place in the low ones:
//!
//! | bits | meaning |
//! |---|---|
//! | 60–63 | what the object is ([`Kind`]); 0 is nothing, so that null and small numbers point nowhere |
//! | 40–59 | which one of that kind; of a table's values, 10 bits for the table and the low 10 of the value's number |
//! | 0–39 | where in a flat memory, the objects lying one after another as a real machine would lay them |
//!
//! The name makes every access checkable against the bounds of the one object that the pointer was made from:
//! arithmetic that runs off the end of an object never ends up in its neighbour. The place is what a cache model
//! looks at; it ignores the rest (see [`place`]).

use runnel_ir::{Data, EntityRef, Slot, Table};

const KIND_SHIFT: u32 = 60;
const INDEX_SHIFT: u32 = 40;
const INDEX_MASK: u64 = (1 << (KIND_SHIFT - INDEX_SHIFT)) - 1;
const PLACE_MASK: u64 = (1 << INDEX_SHIFT) - 1;

/// Where the stack slots begin.
pub(crate) const STACK_PLACE: u64 = 0x10_0000;
/// Where the packet's buffer begins. Frames are page-aligned, as an XDP driver's are.
pub(crate) const PACKET_PLACE: u64 = 0x1000_0000;
/// Where the data objects begin.
pub(crate) const DATA_PLACE: u64 = 1 << 32;
/// Where the values of tables begin.
pub(crate) const TABLE_PLACE: u64 = 1 << 36;
/// Where the flat memory ends.
pub(crate) const END_PLACE: u64 = 1 << INDEX_SHIFT;

/// How many objects of one kind an address can tell apart.
pub(crate) const MAX_OBJECTS: usize = 1 << (KIND_SHIFT - INDEX_SHIFT);

/// How many tables an address can tell apart.
pub(crate) const MAX_TABLES: usize = MAX_OBJECTS >> TAG_BITS;

/// Bits of a value's number that are part of its address, so that a pointer that runs off one value is not taken
/// for a pointer to the next.
const TAG_BITS: u32 = 10;
const TAG_MASK: usize = (1 << TAG_BITS) - 1;

/// What an address points into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Nothing = 0,
    Context,
    Packet,
    Slot,
    Data,
    Entry,
    Table,
}

/// The address of the context. Only [`crate::Host`] knows what stands there, so nothing can be loaded from it.
pub const CONTEXT: u64 = address(Kind::Context, 0, 0);

/// The value by which a program hands the table itself to a callee.
pub fn table_ref(table: Table) -> u64 {
    address(Kind::Table, table.index() as u64, 0)
}

/// The table that [`table_ref`] made `value` from, if it did.
pub fn table_of(value: u64) -> Option<Table> {
    (kind(value) == Kind::Table && place(value) == 0).then(|| Table::new(index(value)))
}

/// Place of an address in the flat memory in which all objects lie: what a model of a data cache indexes by.
pub const fn place(address: u64) -> u64 {
    address & PLACE_MASK
}

/// Builds an address. The index wraps beyond 20 bits; what has that many objects was refused before.
pub(crate) const fn address(kind: Kind, index: u64, place: u64) -> u64 {
    (kind as u64) << KIND_SHIFT | (index & INDEX_MASK) << INDEX_SHIFT | place
}

pub(crate) fn slot_address(slot: Slot, place: u64) -> u64 {
    address(Kind::Slot, slot.index() as u64, place)
}

pub(crate) fn data_address(data: Data, place: u64) -> u64 {
    address(Kind::Data, data.index() as u64, place)
}

/// Address in the value number `slot` of a table.
pub(crate) fn entry_address(table: Table, slot: usize, place: u64) -> u64 {
    address(Kind::Entry, (table.index() << TAG_BITS | slot & TAG_MASK) as u64, place)
}

/// The table that an address made by [`entry_address`] belongs to.
pub(crate) fn entry_table(address: u64) -> Table {
    Table::new(index(address) >> TAG_BITS)
}

/// How far value number `slot` comes after the nearest that `address` may have been made for; 0 when it may have
/// been made for this one.
pub(crate) fn entry_distance(address: u64, slot: usize) -> i64 {
    const HALF: i64 = 1 << (TAG_BITS - 1);
    let tag = index(address) & TAG_MASK;
    let distance = (slot.wrapping_sub(tag) & TAG_MASK) as i64;
    if distance < HALF { distance } else { distance - 2 * HALF }
}

pub(crate) const fn kind(address: u64) -> Kind {
    match address >> KIND_SHIFT {
        1 => Kind::Context,
        2 => Kind::Packet,
        3 => Kind::Slot,
        4 => Kind::Data,
        5 => Kind::Entry,
        6 => Kind::Table,
        _ => Kind::Nothing,
    }
}

pub(crate) const fn index(address: u64) -> usize {
    (address >> INDEX_SHIFT & INDEX_MASK) as usize
}

/// Whether an address points into a stack slot.
pub(crate) const fn is_slot(address: u64) -> bool {
    matches!(kind(address), Kind::Slot)
}
