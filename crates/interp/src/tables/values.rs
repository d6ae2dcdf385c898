//! Memory of a table's values: numbered slots, each with one copy of a value or one for each CPU.

use runnel_ir::Table;

use crate::fault::{Object, What};
use crate::image::inside;

/// Values of one table. A value begins at a multiple of eight bytes, as in the kernel's maps.
#[derive(Clone, Debug)]
pub(super) struct Values {
    table: Table,
    start: u64,
    size: usize,
    stride: usize,
    copies: usize,
    bytes: Vec<u8>,
}

impl Values {
    /// Memory that begins at place `start` for values of `size` bytes in `copies`, none there yet.
    pub(super) fn new(table: Table, start: u64, size: u32, copies: u32) -> Values {
        let stride = stride(size) as usize;
        Values { table, start, size: size as usize, stride, copies: copies as usize, bytes: Vec::new() }
    }

    /// Makes room, filled with zeros, for slots up to `count`.
    pub(super) fn grow(&mut self, count: usize) {
        let bytes = count * self.copies * self.stride;
        if self.bytes.is_empty() {
            // Memory that comes zeroed costs nothing until it is touched.
            self.bytes = vec![0; bytes];
        } else if bytes > self.bytes.len() {
            self.bytes.resize(bytes, 0);
        }
    }

    pub(super) fn copies(&self) -> usize {
        self.copies
    }

    /// Place of a copy in the flat memory.
    pub(super) fn place(&self, slot: usize, copy: usize) -> u64 {
        self.start + self.offset(slot, copy) as u64
    }

    fn offset(&self, slot: usize, copy: usize) -> usize {
        (slot * self.copies + copy) * self.stride
    }

    /// One copy of a value.
    pub(super) fn copy(&self, slot: usize, copy: usize) -> &[u8] {
        let at = self.offset(slot, copy);
        &self.bytes[at..at + self.size]
    }

    /// One copy of a value, to be changed.
    pub(super) fn copy_mut(&mut self, slot: usize, copy: usize) -> &mut [u8] {
        let at = self.offset(slot, copy);
        &mut self.bytes[at..at + self.size]
    }

    /// Sets all copies to zero.
    pub(super) fn clear(&mut self, slot: usize) {
        let at = self.offset(slot, 0);
        self.bytes[at..at + self.copies * self.stride].fill(0);
    }

    /// All copies of a value one after another, without padding.
    pub(super) fn all(&self, slot: usize) -> Box<[u8]> {
        (0..self.copies).flat_map(|copy| self.copy(slot, copy)).copied().collect()
    }

    /// Where in memory an access from the program's side lies: inside of one copy.
    fn range(&self, place: u64, len: usize) -> Result<std::ops::Range<usize>, What> {
        let object = || Object::Entry(self.table);
        let at = inside(place, self.start, self.bytes.len() as u64, 0, object)?;
        let copy = at - at % self.stride;
        inside(at as u64, copy as u64, self.size as u64, len, object)?;
        if at + len > self.bytes.len() {
            return Err(What::OutOfBounds { object: object(), offset: 0, len, size: 0 });
        }
        Ok(at..at + len)
    }

    pub(super) fn slice(&self, place: u64, len: usize) -> Result<&[u8], What> {
        Ok(&self.bytes[self.range(place, len)?])
    }

    pub(super) fn slice_mut(&mut self, place: u64, len: usize) -> Result<&mut [u8], What> {
        let range = self.range(place, len)?;
        Ok(&mut self.bytes[range])
    }
}

/// Distance in bytes from one copy of a value to the next.
pub(super) fn stride(size: u32) -> u64 {
    u64::from(size).next_multiple_of(8)
}
