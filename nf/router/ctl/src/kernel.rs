//! The router's maps in the kernel, by plain `bpf(2)`.
//!
//! It relies on the maps being the router's, which it can tell by the sizes of their keys and values only.
//! Entries are written one at a time, in the way that routing daemons do it.

use std::collections::HashSet;
use std::path::PathBuf;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use router_ctl::layout::map;
use router_ctl::{MapData, Neighbour, Port, RouteKey, RouteValue, TxCounter};

/// Key and value sizes of the router's maps, in bytes.
const SHAPES: [(&str, usize, usize); 7] = [
    (map::ROUTES, RouteKey::SIZE, RouteValue::SIZE),
    (map::PORTS, u32::SIZE, Port::SIZE),
    (map::NEIGHBOURS, 4, Neighbour::SIZE),
    (map::LOCAL_ADDRS, 4, u32::SIZE),
    (map::TX_PORTS, u32::SIZE, u32::SIZE),
    (map::TX_COUNTERS, u32::SIZE, TxCounter::SIZE),
    (map::DROP_COUNTERS, u32::SIZE, u64::SIZE),
];

/// Why a map cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("where the map `{0}` is was not said; give --maps DIR or --id {0}=ID")]
    NotGiven(&'static str),
    #[error("cannot open the map `{name}` at {place}: {source}")]
    Open { name: &'static str, place: String, source: libbpf_rs::Error },
    #[error(
        "the map at {place} is not the router's `{name}`: its keys and values have {found:?} bytes, not {expected:?}"
    )]
    Shape { name: &'static str, place: String, found: (usize, usize), expected: (usize, usize) },
    #[error("{0} has that entry already; change it, or delete it first")]
    Exists(&'static str),
    #[error("{0} has no such entry")]
    Absent(&'static str),
    #[error("{0} is full")]
    Full(&'static str),
    #[error("no network device has that index")]
    NoDevice,
    #[error("cannot {action} {name}: {source}")]
    Access { action: &'static str, name: &'static str, source: libbpf_rs::Error },
    #[error("{name} holds an entry that means nothing: {bytes:02x?}")]
    Meaning { name: &'static str, bytes: Vec<u8> },
}

/// Where the maps are.
pub struct Maps {
    dir: Option<PathBuf>,
    ids: Vec<(String, u32)>,
}

impl Maps {
    /// Maps are looked for among `ids` first, then in `dir`.
    pub fn new(dir: Option<PathBuf>, ids: Vec<(String, u32)>) -> Self {
        Self { dir, ids }
    }

    /// Opens a map by its name.
    pub fn open(&self, name: &'static str) -> Result<Map, KernelError> {
        let by_id = self.ids.iter().find(|(n, _)| n == name);
        let (handle, place) = match (by_id, &self.dir) {
            (Some((_, id)), _) => (MapHandle::from_map_id(*id), format!("id {id}")),
            (None, Some(dir)) => {
                let path = dir.join(name);
                (MapHandle::from_pinned_path(&path), path.display().to_string())
            }
            (None, None) => return Err(KernelError::NotGiven(name)),
        };
        let handle = match handle {
            Ok(handle) => handle,
            Err(source) => return Err(KernelError::Open { name, place, source }),
        };
        let found = (handle.key_size() as usize, handle.value_size() as usize);
        match SHAPES.iter().find(|(n, ..)| *n == name) {
            Some(&(_, key, value)) if (key, value) != found => {
                Err(KernelError::Shape { name, place, found, expected: (key, value) })
            }
            _ => Ok(Map { name, handle }),
        }
    }

    /// Opens a map unless it is not given, or not pinned.
    pub fn open_if_there(&self, name: &'static str) -> Result<Option<Map>, KernelError> {
        match self.open(name) {
            Ok(map) => Ok(Some(map)),
            Err(KernelError::NotGiven(_)) => Ok(None),
            Err(KernelError::Open { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// An opened map.
pub struct Map {
    name: &'static str,
    handle: MapHandle,
}

impl Map {
    /// Writes entries, whether they are there or not.
    pub fn fill(&self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), KernelError> {
        entries.iter().try_for_each(|(key, value)| self.update_bytes(key, value, MapFlags::ANY))
    }

    /// Writes an entry; `flags` say whether it must or must not be there.
    pub fn update<K: MapData, V: MapData>(
        &self,
        key: &K,
        value: &V,
        flags: MapFlags,
    ) -> Result<(), KernelError> {
        self.update_bytes(&key.to_bytes(), &value.to_bytes(), flags)
    }

    /// Deletes an entry that must be there.
    pub fn delete<K: MapData>(&self, key: &K) -> Result<(), KernelError> {
        self.delete_bytes(&key.to_bytes())
    }

    /// [`update`](Self::update) with bytes as the map holds them.
    pub fn update_bytes(&self, key: &[u8], value: &[u8], flags: MapFlags) -> Result<(), KernelError> {
        self.handle.update(key, value, flags).map_err(|e| self.error("write to", e))
    }

    /// [`delete`](Self::delete) with bytes as the map holds them.
    pub fn delete_bytes(&self, key: &[u8]) -> Result<(), KernelError> {
        self.handle.delete(key).map_err(|e| self.error("delete from", e))
    }

    /// All entries. Where others change the map meanwhile, some may be missing.
    pub fn dump<K: MapData, V: MapData>(&self) -> Result<Vec<(K, V)>, KernelError> {
        self.dump_with(|key| self.handle.lookup(key, MapFlags::ANY), |value| self.meaning(&value))
    }

    /// All entries of a per-CPU map, with the values of all CPUs.
    pub fn dump_percpu<K: MapData, V: MapData>(&self) -> Result<Vec<(K, Vec<V>)>, KernelError> {
        self.dump_with(
            |key| self.handle.lookup_percpu(key, MapFlags::ANY),
            |values| values.iter().map(|value| self.meaning(value)).collect(),
        )
    }

    fn dump_with<K: MapData, R, V>(
        &self,
        lookup: impl Fn(&[u8]) -> libbpf_rs::Result<Option<R>>,
        meaning: impl Fn(R) -> Result<V, KernelError>,
    ) -> Result<Vec<(K, V)>, KernelError> {
        let mut entries = Vec::new();
        // The kernel begins anew where the last key has gone, so keys can repeat, and need not end.
        let mut seen = HashSet::new();
        for key in self.handle.keys().take(2 * self.handle.max_entries() as usize) {
            if let Some(value) = lookup(&key).map_err(|e| self.error("read", e))?
                && seen.insert(key.clone())
            {
                entries.push((self.meaning(&key)?, meaning(value)?));
            }
        }
        Ok(entries)
    }

    fn meaning<T: MapData>(&self, bytes: &[u8]) -> Result<T, KernelError> {
        T::from_bytes(bytes).ok_or_else(|| KernelError::Meaning { name: self.name, bytes: bytes.into() })
    }

    /// Names the errors that have one cause (`kernel/bpf/hashtab.c`, `lpm_trie.c`, `devmap.c`).
    fn error(&self, action: &'static str, source: libbpf_rs::Error) -> KernelError {
        match source.kind() {
            ErrorKind::AlreadyExists => KernelError::Exists(self.name),
            ErrorKind::NotFound => KernelError::Absent(self.name),
            // Of a hash table. A trie says ENOSPC, which tells its own tale.
            ErrorKind::TooBig => KernelError::Full(self.name),
            ErrorKind::InvalidInput if self.name == map::TX_PORTS && action == "write to" => {
                KernelError::NoDevice
            }
            _ => KernelError::Access { action, name: self.name, source },
        }
    }
}
