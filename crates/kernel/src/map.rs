//! Maps: create, find, read, write, freeze, pin, map into memory.
//!
//! A [`Map`] is a descriptor with what the kernel says of it. Sizes of values are those that user space sees:
//! per-CPU maps carry one copy per possible CPU, each rounded up to eight bytes (`bpf_map_value_size` in
//! `kernel/bpf/syscall.c`); maps whose values are descriptors or ids carry four bytes.
//!
//! Nothing here knows what a table means, caches contents, or protects a reading from concurrent writers: that
//! is the watcher's epoch.

mod mapping;
mod read;

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_sys as sys;
use runnel_bpf::spec::MapSpec;

pub use mapping::Mapping;

use crate::error::{Errno, Error, Result, check};
use crate::sys::{expect_kind, fdinfo, ids, kernel_name, name_from, owned, possible_cpus};

/// A map in the kernel: a descriptor, its id and its declaration.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    id: u32,
    spec: MapSpec,
}

/// Whether an update may create an entry, must create it, or must find it (`BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateMode {
    /// Create or overwrite.
    Any,
    /// Create; `EEXIST` if the key is there.
    NoExist,
    /// Overwrite; `ENOENT` if the key is not there.
    Exist,
}

impl UpdateMode {
    fn flags(self) -> u64 {
        u64::from(match self {
            UpdateMode::Any => sys::BPF_ANY,
            UpdateMode::NoExist => sys::BPF_NOEXIST,
            UpdateMode::Exist => sys::BPF_EXIST,
        })
    }
}

/// Bytes of a value as user space passes it for a map of this declaration.
///
/// Source: `bpf_map_value_size` in `kernel/bpf/syscall.c`.
pub fn user_value_size(spec: &MapSpec) -> usize {
    match spec.map_type {
        sys::BPF_MAP_TYPE_PERCPU_HASH
        | sys::BPF_MAP_TYPE_LRU_PERCPU_HASH
        | sys::BPF_MAP_TYPE_PERCPU_ARRAY
        | sys::BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE => {
            (spec.value_size as usize).next_multiple_of(8) * possible_cpus()
        }
        sys::BPF_MAP_TYPE_PROG_ARRAY
        | sys::BPF_MAP_TYPE_PERF_EVENT_ARRAY
        | sys::BPF_MAP_TYPE_CGROUP_ARRAY
        | sys::BPF_MAP_TYPE_ARRAY_OF_MAPS
        | sys::BPF_MAP_TYPE_HASH_OF_MAPS => 4,
        _ => spec.value_size as usize,
    }
}

impl Map {
    /// Creates a map. Errors: `EINVAL` for a declaration that the kernel does not take, `E2BIG` or `ENOMEM`
    /// for one too large, a want of privilege.
    pub fn create(spec: &MapSpec) -> Result<Map> {
        Self::create_with(spec, None)
    }

    /// Creates a map whose values are maps (`ARRAY_OF_MAPS`, `HASH_OF_MAPS`); `inner` shows what they are like.
    pub fn create_outer(spec: &MapSpec, inner: &Map) -> Result<Map> {
        Self::create_with(spec, Some(inner))
    }

    fn create_with(spec: &MapSpec, inner: Option<&Map>) -> Result<Map> {
        let opts = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as _,
            map_flags: spec.flags,
            inner_map_fd: inner.map_or(0, |m| m.fd.as_raw_fd() as u32),
            ..Default::default()
        };
        let name = kernel_name(&spec.name);
        // SAFETY: `name` and `opts` live during the call; the sizes are plain numbers that the kernel checks.
        let ret = unsafe {
            sys::bpf_map_create(
                spec.map_type,
                name.as_ptr(),
                spec.key_size,
                spec.value_size,
                spec.max_entries,
                &opts,
            )
        };
        let doing = || {
            format!(
                "creating map `{}` (type {}, key {} bytes, value {} bytes, {} entries, flags {:#x})",
                spec.name, spec.map_type, spec.key_size, spec.value_size, spec.max_entries, spec.flags
            )
        };
        Self::from_fd(owned(ret).map_err(|e| Error::from_errno(doing(), e))?)
    }

    /// Takes over a map's descriptor and asks the kernel what it is; `Usage` if it is something else.
    pub fn from_fd(fd: OwnedFd) -> Result<Map> {
        expect_kind(fd.as_fd(), "bpf-map")?;
        let info = info(fd.as_fd())?;
        let spec = MapSpec {
            name: name_from(&info.name),
            map_type: info.type_,
            key_size: info.key_size,
            value_size: info.value_size,
            max_entries: info.max_entries,
            flags: info.map_flags,
        };
        Ok(Map { fd, id: info.id, spec })
    }

    /// The map with this id; `Kernel` with `ENOENT` when there is none (any more).
    pub fn from_id(id: u32) -> Result<Map> {
        // SAFETY: a plain number.
        let fd = owned(unsafe { sys::bpf_map_get_fd_by_id(id) });
        Self::from_fd(fd.map_err(|e| Error::from_errno(format!("opening map id {id}"), e))?)
    }

    /// The map pinned at `path`.
    pub fn from_pin(path: &Path) -> Result<Map> {
        Self::from_fd(crate::bpffs::open_pin(path)?)
    }

    /// Pins the map at `path`, in a BPF file system.
    pub fn pin(&self, path: &Path) -> Result<()> {
        crate::bpffs::pin(self.fd.as_fd(), path)
    }

    /// Another handle to the same map.
    pub fn try_clone(&self) -> Result<Map> {
        let fd = self.fd.try_clone().map_err(|e| Error::io("duplicating a map descriptor", e))?;
        Ok(Map { fd, id: self.id, spec: self.spec.clone() })
    }

    /// The kernel's id of the map: stable while the map lives.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The declaration; the name is what the kernel kept of it (15 bytes).
    pub fn spec(&self) -> &MapSpec {
        &self.spec
    }

    /// Bytes of a value as user space passes it (all CPUs' copies for per-CPU maps).
    pub fn value_len(&self) -> usize {
        user_value_size(&self.spec)
    }

    /// Whether user space may no longer write to the map. Only fdinfo tells.
    pub fn is_frozen(&self) -> Result<bool> {
        Ok(fdinfo(self.fd.as_raw_fd(), "frozen")?.as_deref() == Some("1"))
    }

    /// Forbids any further write from user space, for ever. `EBUSY` while a writable mapping lives.
    pub fn freeze(&self) -> Result<()> {
        // SAFETY: a live descriptor.
        check(unsafe { sys::bpf_map_freeze(self.fd.as_raw_fd()) })
            .map_err(|e| Error::from_errno(format!("freezing map `{}`", self.spec.name), e))?;
        Ok(())
    }

    /// Maps the contents of an array (created with `BPF_F_MMAPABLE`) into memory, writable or not.
    pub fn mmap(&self, writable: bool) -> Result<Mapping> {
        Mapping::new(self, writable)
    }

    /// The value of `key` as user space sees it ([`Map::value_len`] bytes), or `None`.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value_len()];
        Ok(self.lookup_into(key, &mut value)?.then_some(value))
    }

    /// Like [`Map::lookup`] into a buffer of exactly [`Map::value_len`] bytes; false when the key is not there.
    pub fn lookup_into(&self, key: &[u8], value: &mut [u8]) -> Result<bool> {
        self.check_sizes(key, Some(value.len()))?;
        // SAFETY: both buffers have the sizes that the kernel uses for this map, checked above.
        let ret = unsafe {
            sys::bpf_map_lookup_elem(self.fd.as_raw_fd(), key.as_ptr().cast(), value.as_mut_ptr().cast())
        };
        self.found(ret, "looking up in")
    }

    /// Looks up and removes an entry in one command.
    pub fn lookup_and_delete(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value_len()];
        self.check_sizes(key, None)?;
        // SAFETY: both buffers have the sizes that the kernel uses for this map, checked above.
        let ret = unsafe {
            sys::bpf_map_lookup_and_delete_elem(
                self.fd.as_raw_fd(),
                key.as_ptr().cast(),
                value.as_mut_ptr().cast(),
            )
        };
        Ok(self.found(ret, "looking up and deleting in")?.then_some(value))
    }

    /// Writes one entry; `value` has [`Map::value_len`] bytes.
    pub fn update(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<()> {
        self.check_sizes(key, Some(value.len()))?;
        // SAFETY: both buffers have the sizes that the kernel uses for this map, checked above.
        let ret = unsafe {
            sys::bpf_map_update_elem(
                self.fd.as_raw_fd(),
                key.as_ptr().cast(),
                value.as_ptr().cast(),
                mode.flags(),
            )
        };
        check(ret).map_err(|e| self.write_error("updating", e))?;
        Ok(())
    }

    /// Stores a descriptor (a program in a program array, a map in a map of maps).
    pub fn update_fd(&self, key: &[u8], fd: BorrowedFd<'_>) -> Result<()> {
        self.update(key, &fd.as_raw_fd().to_ne_bytes(), UpdateMode::Any)
    }

    /// Writes `keys.len() / key_size` entries by one command. Maps without batch commands answer `Unsupported`.
    ///
    /// On failure part of the entries may have been written.
    pub fn update_batch(&self, keys: &[u8], values: &[u8]) -> Result<()> {
        let (key_size, value_len) = (self.spec.key_size as usize, self.value_len());
        let count = keys.len().checked_div(key_size).unwrap_or(0);
        if count * key_size != keys.len() || count * value_len != values.len() {
            let problem = format!("{} key bytes and {} value bytes do not match", keys.len(), values.len());
            return Err(Error::usage(format!("updating map `{}`", self.spec.name), problem));
        }
        let mut count = u32::try_from(count).map_err(|_| Error::usage("batch update", "too many entries"))?;
        // SAFETY: the buffers hold `count` keys and values of this map's sizes, checked above; no options.
        let ret = unsafe {
            sys::bpf_map_update_batch(
                self.fd.as_raw_fd(),
                keys.as_ptr().cast(),
                values.as_ptr().cast(),
                &mut count,
                std::ptr::null(),
            )
        };
        check(ret).map_err(|e| self.write_error("updating a batch of", e))?;
        Ok(())
    }

    /// Deletes one entry; false when it was not there.
    pub fn delete(&self, key: &[u8]) -> Result<bool> {
        self.check_sizes(key, None)?;
        // SAFETY: the key has this map's key size, checked above.
        let ret = unsafe { sys::bpf_map_delete_elem(self.fd.as_raw_fd(), key.as_ptr().cast()) };
        self.found(ret, "deleting from")
    }

    fn found(&self, ret: i32, doing: &str) -> Result<bool> {
        match check(ret) {
            Ok(_) => Ok(true),
            Err(Errno(libc::ENOENT)) => Ok(false),
            Err(e) if doing.starts_with("looking up in") => Err(self.error(doing, e)),
            Err(e) => Err(self.write_error(doing, e)),
        }
    }

    fn check_sizes(&self, key: &[u8], value_len: Option<usize>) -> Result<()> {
        let problem = if key.len() != self.spec.key_size as usize {
            format!("the key has {} bytes instead of {}", key.len(), self.spec.key_size)
        } else if let Some(len) = value_len.filter(|len| *len != self.value_len()) {
            format!("the value has {len} bytes instead of {}", self.value_len())
        } else {
            return Ok(());
        };
        Err(Error::usage(format!("accessing map `{}`", self.spec.name), problem))
    }

    fn error(&self, doing: &str, errno: Errno) -> Error {
        Error::from_errno(format!("{doing} map `{}` (id {})", self.spec.name, self.id), errno)
    }

    /// The kernel answers a write to a frozen map with `EPERM`, as it does for a descriptor that is read-only.
    fn write_error(&self, doing: &str, errno: Errno) -> Error {
        if errno.0 == libc::EPERM && self.is_frozen().unwrap_or(false) {
            return Error::Frozen { map: self.spec.name.clone() };
        }
        self.error(doing, errno)
    }

    /// The ids of the maps that are elements of this map of maps.
    fn elements(&self) -> Result<HashSet<u32>> {
        let mut found = HashSet::new();
        let mut key = None;
        while let Some(next) = self.next_key(key.as_deref())? {
            let element = self.lookup(&next)?;
            found.extend(element.and_then(|id| Some(u32::from_ne_bytes(*id.first_chunk()?))));
            key = Some(next);
        }
        Ok(found)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ids of all maps on this machine.
pub fn all_map_ids() -> Result<Vec<u32>> {
    ids("maps", sys::bpf_map_get_next_id)
}

/// The maps of maps on this machine, each with the ids of its elements unless it does not let itself be read: programs
/// that hold one of them reach its elements.
pub(crate) fn outer_maps() -> Result<Vec<(u32, Option<HashSet<u32>>)>> {
    let mut found = Vec::new();
    for id in all_map_ids()? {
        let map = match Map::from_id(id) {
            Ok(map) => map,
            // Gone since.
            Err(Error::Kernel { errno: Errno(libc::ENOENT), .. }) => continue,
            Err(e) => return Err(e),
        };
        if matches!(map.spec.map_type, sys::BPF_MAP_TYPE_ARRAY_OF_MAPS | sys::BPF_MAP_TYPE_HASH_OF_MAPS) {
            found.push((id, map.elements().ok()));
        }
    }
    Ok(found)
}

fn info(fd: BorrowedFd<'_>) -> Result<sys::bpf_map_info> {
    let mut info = sys::bpf_map_info::default();
    let mut len = size_of::<sys::bpf_map_info>() as u32;
    // SAFETY: `info` is a plain structure of `len` bytes that the kernel fills.
    check(unsafe { sys::bpf_map_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) })
        .map_err(|e| Error::from_errno("asking what a map is", e))?;
    Ok(info)
}
