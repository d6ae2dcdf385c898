//! The contents of an array map as memory of this process, shared with the programs that use it.
//!
//! Every access is atomic or volatile, since programs may change the bytes at any moment. Offsets are checked
//! and panic when out of range, as slice indexing does: they come from this program's own layouts, never from
//! outside. Nothing here knows a layout.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libbpf_sys as sys;
use memmap2::{MmapOptions, MmapRaw};

use super::Map;
use crate::error::{Error, Result};

/// An array map's contents in memory. Unmapped on drop; a writable mapping keeps the map from being frozen.
///
/// Entry `i` starts at `i * value_size.next_multiple_of(8)`.
#[derive(Debug)]
pub struct Mapping {
    memory: MmapRaw,
    writable: bool,
}

impl Mapping {
    pub(super) fn new(map: &Map, writable: bool) -> Result<Mapping> {
        let spec = map.spec();
        let doing = format!("mapping map `{}` into memory", spec.name);
        if spec.map_type != sys::BPF_MAP_TYPE_ARRAY || spec.flags & sys::BPF_F_MMAPABLE == 0 {
            return Err(Error::usage(doing, "only arrays created with BPF_F_MMAPABLE can be mapped"));
        }
        let stride = (spec.value_size as usize).next_multiple_of(8);
        let len = stride
            .checked_mul(spec.max_entries as usize)
            .ok_or_else(|| Error::usage(&doing, "it is larger than the address space"))?;
        let mut options = MmapOptions::new();
        options.len(len);
        let fd = map.as_fd().as_raw_fd();
        match if writable { options.map_raw(fd) } else { options.map_raw_read_only(fd) } {
            Ok(memory) => Ok(Mapping { memory, writable }),
            Err(e) if writable && e.raw_os_error() == Some(libc::EPERM) => {
                Err(Error::Frozen { map: spec.name.clone() })
            }
            Err(e) => Err(Error::io(doing, e)),
        }
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether nothing is mapped (never so for a map that the kernel accepted).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The aligned 64-bit word at byte `offset`, for atomic reading. Writing needs a writable mapping: use
    /// [`Mapping::store_u64`] and [`Mapping::fetch_add_u64`], which check.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "offset {offset} is not aligned to 8");
        self.check(offset, 8);
        // SAFETY: in range and aligned by the two checks; the mapping lives as long as `self`, and every access
        // that this process makes to it is atomic or volatile.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) }
    }

    fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "offset {offset} is not aligned to 4");
        self.check(offset, 4);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset).cast()) }
    }

    /// Reads the 64-bit word at `offset`, sequentially consistent: no later read may pass it.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    /// Reads the 32-bit word at `offset`, sequentially consistent.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range.
    pub fn load_u32(&self, offset: usize) -> u32 {
        self.half_word(offset).load(Ordering::SeqCst)
    }

    /// Writes the 64-bit word at `offset` by one store, sequentially consistent: all earlier writes are seen
    /// by whoever sees it.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range, or the mapping is read-only.
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.check_writable();
        self.word(offset).store(value, Ordering::SeqCst);
    }

    /// Writes the 32-bit word at `offset` by one store, sequentially consistent.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range, or the mapping is read-only.
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.check_writable();
        self.half_word(offset).store(value, Ordering::SeqCst);
    }

    /// Adds to the 64-bit word at `offset` atomically, also against programs' atomic adds, and gives the old value.
    ///
    /// # Panics
    /// If `offset` is unaligned or out of range, or the mapping is read-only.
    pub fn fetch_add_u64(&self, offset: usize, add: u64) -> u64 {
        self.check_writable();
        self.word(offset).fetch_add(add, Ordering::SeqCst)
    }

    /// Copies bytes out. Not atomic as a whole.
    ///
    /// # Panics
    /// If the range is out of range.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range lies inside the mapping; `out` is ours, so the two cannot overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(self.memory.as_ptr().add(offset), out.as_mut_ptr(), out.len());
        }
    }

    /// Copies bytes in. Not atomic as a whole: publish by [`Mapping::store_u64`] afterwards.
    ///
    /// # Panics
    /// If the range is out of range, or the mapping is read-only.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check_writable();
        self.check(offset, bytes.len());
        // SAFETY: the range lies inside the writable mapping; `bytes` is ours, so the two cannot overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_mut_ptr().add(offset), bytes.len());
        }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} in a mapping of {}",
            self.len()
        );
    }

    fn check_writable(&self) {
        assert!(self.writable, "the mapping is read-only");
    }
}
