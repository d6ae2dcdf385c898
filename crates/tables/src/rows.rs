//! The values of a table, each once, laid out so that a row id becomes an address by a mask and a shift.

use std::collections::HashMap;

use runnel_ir::{DataKind, DataObject};

/// Names a row of a table's values. 0 is the miss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RowId(pub u32);

impl RowId {
    /// The key has no entry.
    pub const MISS: RowId = RowId(0);
}

/// Tables of consecutive indices keep one row an index up to this many bytes of rows, because the row id then is
/// the index plus one and needs no array. A page stays in the first-level cache; beyond it, telling equal
/// values apart only costs cache.
const IDENTITY_BYTES: u64 = 4096;

/// The values that lookups give, by row id.
///
/// Values are distinct, save that row 0, which stands for the miss, repeats a valid one (so that what holds for
/// the value of every entry holds for every row), and that a small table of consecutive indices may keep a row
/// for each index. A table without entries has the one row 0, all zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Distance between rows in bytes: the value size rounded up to a power of two of at least 8.
    pub stride: u32,
    /// The rows, each of the table's value size, row 0 first.
    pub rows: Vec<Box<[u8]>>,
}

impl Rows {
    /// Bytes between the rows of a table whose values have `value_size` bytes; none if that would exceed 2 GiB.
    pub(crate) fn stride_for(value_size: u32) -> Option<u32> {
        (value_size <= 1 << 30).then(|| value_size.max(8).next_power_of_two())
    }

    /// Numbers `values`, in order of first appearance; gives the rows and the id of each value.
    pub(crate) fn number<'v>(
        stride: u32,
        value_size: u32,
        values: impl ExactSizeIterator<Item = &'v [u8]>,
        consecutive: bool,
    ) -> (Rows, Vec<RowId>) {
        let identity = consecutive
            && (values.len() as u64 + 1).next_power_of_two() * u64::from(stride) <= IDENTITY_BYTES;
        let mut rows: Vec<Box<[u8]>> = vec![Box::default()];
        let mut ids = Vec::with_capacity(values.len());
        let mut known: HashMap<&[u8], RowId> = HashMap::new();
        let values: Vec<&[u8]> = values.collect();
        let identity = identity && values.windows(2).any(|w| w[0] != w[1]);
        for value in values {
            let next = RowId(rows.len() as u32);
            let id = if identity { next } else { *known.entry(value).or_insert(next) };
            if id == next {
                rows.push(value.into());
            }
            ids.push(id);
        }
        rows[0] = match rows.get(1) {
            Some(first) => first.clone(),
            None => vec![0; value_size as usize].into(),
        };
        (Rows { stride, rows }, ids)
    }

    /// Number of rows as laid out: a power of two.
    pub fn padded(&self) -> usize {
        self.rows.len().next_power_of_two()
    }

    /// What to mask a row id with, so that any value whatever becomes the id of a row.
    pub fn mask(&self) -> u32 {
        (self.padded() - 1) as u32
    }

    /// What to shift a masked row id left by to get its offset in bytes.
    pub fn shift(&self) -> u32 {
        self.stride.trailing_zeros()
    }

    /// Which share of a value's bytes differs between rows, from 0 to 1. What does not is known without a look.
    pub fn varying(&self) -> f64 {
        let first = &self.rows[0];
        let mut differs = vec![false; first.len()];
        for row in &self.rows {
            differs.iter_mut().zip(row.iter().zip(first)).for_each(|(d, (a, b))| *d |= a != b);
        }
        differs.iter().filter(|d| **d).count() as f64 / first.len().max(1) as f64
    }

    /// Size of the data object in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.padded() as u64 * u64::from(self.stride)
    }

    /// The rows as a data object, padded to a power of two of them by repeating row 0.
    pub fn object(&self, name: impl Into<String>) -> DataObject {
        let stride = self.stride as usize;
        let mut bytes = vec![0; self.padded() * stride];
        let padding = std::iter::repeat(&self.rows[0]);
        for (slot, row) in bytes.chunks_exact_mut(stride).zip(self.rows.iter().chain(padding)) {
            slot[..row.len()].copy_from_slice(row);
        }
        DataObject { name: name.into(), kind: DataKind::Const, stride: self.stride, bytes }
    }
}
