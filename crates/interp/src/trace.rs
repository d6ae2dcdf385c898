//! What a program touches, told as it runs: the input of cache models.

use runnel_ir::Table;

/// Hears of every fetch and access of a run. Each method does nothing unless it is given a body.
///
/// Addresses are the program's; [`crate::place`] gives where in a flat memory they lie.
pub trait Trace {
    /// Instructions `first..first + count` are executed in a row. Positions count instructions and terminators in
    /// the order of the program's layout, from 0; every one is taken to be of one size. A block that a call leaves
    /// for good, or that ends in a fault, is told as a whole all the same.
    fn fetch(&mut self, first: u32, count: u32) {
        let _ = (first, count);
    }
    /// `bytes` bytes at `address` are read.
    fn load(&mut self, address: u64, bytes: u32) {
        let _ = (address, bytes);
    }
    /// `bytes` bytes at `address` are written.
    fn store(&mut self, address: u64, bytes: u32) {
        let _ = (address, bytes);
    }
    /// A key is looked up in a table; `address` is that of the value found, or 0.
    fn lookup(&mut self, table: Table, key: &[u8], address: u64) {
        let _ = (table, key, address);
    }
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTrace;

impl Trace for NoTrace {}
