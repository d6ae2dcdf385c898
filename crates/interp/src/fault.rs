//! What can go wrong while a program runs, and while its machine is set up.

use runnel_ir::{Block, Data, Inst, Slot, Table, VerifyError};
use thiserror::Error;

/// An object of memory, as messages name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// The packet, metadata in front of it included.
    Packet,
    /// A stack slot.
    Slot(Slot),
    /// A data object.
    Data(Data),
    /// The value of one entry of a table.
    Entry(Table),
    /// All values of a table.
    Values(Table),
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Object::Packet => f.write_str("the packet"),
            Object::Slot(slot) => write!(f, "slot {slot}"),
            Object::Data(data) => write!(f, "data {data}"),
            Object::Entry(table) => write!(f, "the value of an entry of table {table}"),
            Object::Values(table) => write!(f, "the memory of table {table}"),
        }
    }
}

/// What a program did that it must not do.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum What {
    /// An address that belongs to no object, null among them.
    #[error("{address:#x} is the address of no object")]
    Unmapped {
        /// The address.
        address: u64,
    },
    /// An access that is not wholly inside of the object that its address belongs to.
    #[error("an access of {len} at offset {offset} is not inside of {object}, which has {size} bytes")]
    OutOfBounds {
        /// The object.
        object: Object,
        /// Where the access begins, in bytes from the object's start; of the packet, from its first byte.
        offset: i64,
        /// Bytes accessed.
        len: usize,
        /// The object's size in bytes.
        size: u64,
    },
    /// A pointer into the packet from before a callee moved or resized it.
    #[error("the packet was moved or resized since the pointer into it was read")]
    StalePacketPointer,
    /// A byte of the stack that nothing was stored to in this run.
    #[error("byte {offset} of slot {slot} is read before anything is stored there")]
    Uninitialised {
        /// The slot.
        slot: Slot,
        /// The byte.
        offset: u64,
    },
    /// A store to constant data.
    #[error("data {data} is constant and is stored to")]
    ReadOnly {
        /// The object.
        data: Data,
    },
    /// The context has no such field.
    #[error("the context has no field of {size} bytes at offset {offset}")]
    NoContextField {
        /// Offset in bytes.
        offset: i32,
        /// Size in bytes.
        size: u32,
    },
    /// The host has no such function.
    #[error("callee `{name}` (number {number}) is not known to the host; give the host a function for it")]
    UnknownCallee {
        /// The callee's name.
        name: String,
        /// The plugin's number for it.
        number: u32,
    },
    /// A callee that cannot do anything with its arguments.
    #[error("argument {index} of the callee must be {expected}")]
    BadArgument {
        /// Position of the argument, from 0.
        index: usize,
        /// What it must be.
        expected: &'static str,
    },
    /// A table that the machine has not, or has with keys or values of other sizes.
    #[error("the machine's tables have no {table} like the program's; make them from the program's own")]
    NoSuchTable {
        /// The table.
        table: Table,
    },
    /// The value of a table that is not addressed directly.
    #[error("the value of table {table} has no address: only a table of one entry found by index has one")]
    NotDirect {
        /// The table.
        table: Table,
    },
    /// The program did not end within the steps that it was given.
    #[error("the program ran for more than {fuel} steps")]
    OutOfFuel {
        /// The steps that it was given.
        fuel: u64,
    },
}

/// A run that ended because the program did what it must not do. Memory and tables are as it left them.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{block}{}: {what}", inst.map(|i| format!(", {i}")).unwrap_or_default())]
pub struct Fault {
    /// The block where it happened.
    pub block: Block,
    /// The instruction; none when no single one is to blame.
    pub inst: Option<Inst>,
    /// What happened.
    pub what: What,
}

/// Why a program or its tables cannot be set up to run.
#[derive(PartialEq, Eq, Debug, Error)]
pub enum SetupError {
    /// The program is not well-formed.
    #[error("the program is not well-formed: {0}")]
    Malformed(#[from] VerifyError),
    /// More objects than addresses can tell apart.
    #[error("{count} {what}; the interpreter handles up to {limit}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        count: usize,
        /// How much is allowed.
        limit: usize,
    },
    /// A table whose sizes make no sense for its kind.
    #[error("table `{table}`: {reason}")]
    BadTable {
        /// The table's name.
        table: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More memory than the interpreter is ready to provide.
    #[error("{what} would take {bytes} bytes; the interpreter provides up to {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size in bytes.
        bytes: u64,
        /// How much is allowed.
        limit: u64,
    },
}

/// Why the control plane cannot do something with a table or packet.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ControlError {
    /// No table of that number.
    #[error("there is no table {0}")]
    NoTable(Table),
    /// A key or value of the wrong size.
    #[error("table `{table}` takes a {what} of {expected} bytes, not of {given}")]
    WrongSize {
        /// The table's name.
        table: String,
        /// Key or value.
        what: &'static str,
        /// Its size in bytes.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// The table itself refused.
    #[error("table `{table}`: {what} failed with error {errno} (a number of errno.h)")]
    Refused {
        /// The table's name.
        table: String,
        /// The operation.
        what: &'static str,
        /// The positive error number.
        errno: i64,
    },
    /// No CPU of that number.
    #[error("there is no CPU {cpu}; the tables were made for {cpus}")]
    NoCpu {
        /// The CPU asked for.
        cpu: u32,
        /// How many there are.
        cpus: u32,
    },
    /// A packet that does not fit its buffer.
    #[error("a packet of {len} bytes does not fit; the buffer takes {limit}")]
    PacketTooLong {
        /// The packet's length in bytes.
        len: usize,
        /// The longest packet that fits.
        limit: usize,
    },
}
