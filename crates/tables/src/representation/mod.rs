//! The representations: one file each, all answering the same five questions.
//!
//! Each is built from a table's contents, or refuses with the reason. `lookup` is the model of what `emit` writes;
//! tests run the emitted probe and compare.

mod compare;
mod constant;
mod direct;
mod hash;
mod levels;

use runnel_ir::{Block, Builder, Data, DataKind, DataObject, Key, Program, Size, Target, Value, Width};
use thiserror::Error;

pub use compare::CompareTree;
pub use constant::Constant;
pub use direct::DirectIndex;
pub use hash::PerfectHash;
pub use levels::LevelIndex;

use crate::rows::RowId;

/// What every representation can say and do.
trait Probe {
    fn lookup(&self, key: &[u8]) -> RowId;
    fn always_hits(&self) -> bool;
    /// The objects that the probe addresses, by names that say what each is for.
    fn objects(&self) -> Vec<(&'static str, &[u8])>;
    fn emit(&self, b: &mut Builder<'_>, data: &[Data], key: &Key, done: Block);
    fn probe_ns(&self) -> f64;
    fn name(&self) -> &'static str;
    fn why(&self) -> String;
}

/// A data structure that stands for a table, and the probe into it.
#[derive(Clone, PartialEq, Debug)]
pub enum Representation {
    /// Every lookup has the same outcome: the miss, of an empty table, or one row.
    Constant(Constant),
    /// Comparisons with the keys, in the code itself.
    Compare(CompareTree),
    /// An array of row ids, indexed by the key.
    Direct(DirectIndex),
    /// A hash table without collisions.
    Hash(PerfectHash),
    /// Arrays indexed by the address's bytes, one after the other.
    Levels(LevelIndex),
}

impl Representation {
    fn probe(&self) -> &dyn Probe {
        match self {
            Representation::Constant(x) => x,
            Representation::Compare(x) => x,
            Representation::Direct(x) => x,
            Representation::Hash(x) => x,
            Representation::Levels(x) => x,
        }
    }

    /// What the emitted probe gives for a key, provided that the key can occur at the site which the
    /// representation was built for.
    pub fn lookup(&self, key: &[u8]) -> RowId {
        self.probe().lookup(key)
    }

    /// Whether no key that can occur at the site misses.
    pub fn always_hits(&self) -> bool {
        self.probe().always_hits()
    }

    /// The objects that the probe addresses, in the order in which [`Representation::emit`] takes them. Their names
    /// say what each is for and begin with `name`. The rows are not among them.
    pub fn data(&self, name: &str) -> Vec<DataObject> {
        let object = |(part, bytes): (&str, &[u8])| DataObject {
            name: format!("{name}.{part}"),
            kind: DataKind::Const,
            stride: 0,
            bytes: bytes.to_vec(),
        };
        self.probe().objects().into_iter().map(object).collect()
    }

    /// Adds the objects to a program, once for all sites that use the representation.
    pub fn install(&self, program: &mut Program, name: &str) -> Vec<Data> {
        self.data(name).into_iter().map(|object| program.data.push(object)).collect()
    }

    /// Appends the probe to `block`, which has no terminator yet. `data` is what [`Representation::install`] gave.
    /// Every path ends in a jump that hands the row id to `done`, a block with exactly one parameter; new blocks go
    /// to the end of the layout. The key must be one of the site for which the representation was built.
    pub fn emit(&self, program: &mut Program, data: &[Data], block: Block, key: &Key, done: Block) {
        self.probe().emit(&mut Builder::at(program, block), data, key, done);
    }

    /// Size of the objects in bytes, without the rows.
    pub fn memory_bytes(&self) -> u64 {
        self.probe().objects().iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Predicted time to get the row id, in nanoseconds.
    pub fn probe_ns(&self) -> f64 {
        self.probe().probe_ns()
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.probe().name()
    }

    /// What it consists of and why it applies, for people.
    pub fn why(&self) -> String {
        self.probe().why()
    }
}

/// Why a table cannot be represented in some way.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// How the table finds entries is not known.
    #[error("only callees know how this table finds an entry")]
    Opaque,
    /// Rows are copies, and would not see the writes.
    #[error("values may be written, and rows are copies of them")]
    ValuesWritten,
    /// The length to look for is not fixed at the full length.
    #[error("the prefix length of the query is not known to be the full {bits} bits")]
    QueryLength {
        /// Length of an address in bits.
        bits: u32,
    },
    /// Too much to compare.
    #[error("{bytes} bytes of the key would be compared, and the limit is {limit}")]
    KeyTooLong {
        /// Bytes that count.
        bytes: usize,
        /// The most that this representation takes.
        limit: usize,
    },
    /// Values that cannot be laid out as rows.
    #[error("values of {bytes} bytes are too large for rows")]
    ValueTooLong {
        /// Size of a value in bytes.
        bytes: usize,
    },
    /// Code would grow too much.
    #[error("{entries} entries are more than {limit}")]
    TooManyEntries {
        /// Number of entries.
        entries: usize,
        /// The most that this representation takes.
        limit: usize,
    },
    /// More than one outcome is possible.
    #[error("lookups have more than one outcome")]
    SeveralOutcomes,
    /// Not exact matching in disguise.
    #[error("prefixes have {count} lengths other than zero, not one")]
    SeveralLengths {
        /// Number of lengths.
        count: usize,
    },
    /// An array would be nearly empty.
    #[error("{entries} keys are spread over a range of {range}")]
    Sparse {
        /// Number of keys.
        entries: usize,
        /// Distance from the lowest to the highest, plus one.
        range: u128,
    },
    /// The search for a hash function came to its limit.
    #[error("no perfect hash was found in {tries} tries")]
    NoHash {
        /// Number of functions tried.
        tries: u32,
    },
    /// The objects would not fit the budget.
    #[error("it would take {bytes} bytes or more, and the budget is {budget}")]
    TooLarge {
        /// Bytes needed, at least.
        bytes: u64,
        /// Bytes allowed.
        budget: u64,
    },
}

/// Refuses what is larger than the budget.
pub(crate) fn within(bytes: u64, budget: u64) -> Result<(), Refusal> {
    if bytes <= budget { Ok(()) } else { Err(Refusal::TooLarge { bytes, budget }) }
}

/// The jump that ends a path of a probe whose outcome is known.
fn jump_to_row(b: &mut Builder<'_>, done: Block, row: RowId) {
    let row = b.iconst(u64::from(row.0));
    b.jump(Target::with(done, [row]));
}

/// The address `offset` bytes into an object.
fn address(b: &mut Builder<'_>, data: Data, offset: Value) -> Value {
    let base = b.data_addr(data, 0);
    b.binary(runnel_ir::BinaryOp::Add, Width::W64, base, offset)
}

/// The smallest size that holds `max`.
fn size_for(max: u32) -> Size {
    match max {
        0..=0xff => Size::B1,
        0x100..=0xffff => Size::B2,
        _ => Size::B4,
    }
}

/// Element `index` of an array of little-endian integers.
fn element(bytes: &[u8], size: Size, index: usize) -> u32 {
    let width = size.bytes() as usize;
    let mut out = [0; 4];
    if let Some(found) = bytes.get(index * width..(index + 1) * width) {
        out[..width].copy_from_slice(found);
    }
    u32::from_le_bytes(out)
}

/// An array of little-endian integers.
fn pack(size: Size, elements: impl ExactSizeIterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * size.bytes() as usize);
    match size {
        Size::B1 => bytes.extend(elements.map(|e| e as u8)),
        Size::B2 => elements.for_each(|e| bytes.extend_from_slice(&(e as u16).to_le_bytes())),
        Size::B4 | Size::B8 => elements.for_each(|e| bytes.extend_from_slice(&e.to_le_bytes())),
    }
    bytes
}

/// A number of things, for people.
fn count_of(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ if what.ends_with('x') => format!("{count} {what}es"),
        _ => format!("{count} {what}s"),
    }
}
