//! Memory of a table's values: numbered slots, each with one copy of a value or one for each CPU.

use runnel_ir::Table;

use crate::address::{entry_address, entry_distance, place};
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

    /// Address of a copy.
    pub(super) fn address(&self, slot: usize, copy: usize) -> u64 {
        entry_address(self.table, slot, self.start + self.offset(slot, copy) as u64)
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
    fn range(&self, address: u64, len: usize) -> Result<std::ops::Range<usize>, What> {
        let memory = self.bytes.len() as u64;
        let at = inside(place(address), self.start, memory, len, || Object::Values(self.table))?;
        let slot = at / (self.stride * self.copies);
        let distance = entry_distance(address, slot) * (self.stride * self.copies) as i64;
        let within = (at % self.stride) as i64 + distance;
        inside(within as u64, 0, self.size as u64, len, || Object::Entry(self.table))?;
        Ok(at..at + len)
    }

    pub(super) fn slice(&self, address: u64, len: usize) -> Result<&[u8], What> {
        Ok(&self.bytes[self.range(address, len)?])
    }

    pub(super) fn slice_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], What> {
        let range = self.range(address, len)?;
        Ok(&mut self.bytes[range])
    }
}

/// Distance in bytes from one copy of a value to the next.
pub(super) fn stride(size: u32) -> u64 {
    u64::from(size).next_multiple_of(8)
}
