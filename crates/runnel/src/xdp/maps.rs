//! Maps of a loaded object as a whole: filled from a file of contents, read back, and compared.
//!
//! A comparison runs each variant of a program on an [`Instance`]: the object loaded once more, with maps of its own
//! and filled with the same contents. Device maps can only hold interfaces that exist, so their entries are given a
//! [`StandIn`]: an interface in a network namespace that nobody else sees and that no packet reaches. Which slot a
//! packet is sent to is recorded elsewhere; what stands in the slot does not matter.
//!
//! A map that cannot be read back (a ring buffer, a queue) is refused where a program uses it: what is written there
//! could differ unseen. Nothing here takes a snapshot of maps that others write meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use runnel_bpf::maps_json::{Entry, MapContents, MapsJsonError, Value};
use runnel_bpf::spec::MapSpec;
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::netns::{Netns, VethPair};
use runnel_kernel::object::{LoadedObject, LoadedProgram, Object};
use runnel_kernel::possible_cpus;
use thiserror::Error;

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// `BPF_MAP_TYPE_*` of maps of programs, of maps, and of devices by interface index.
const PROG_ARRAY: u32 = 3;
const MAPS_OF_MAPS: [u32; 2] = [12, 13];
const DEVICE_MAPS: [u32; 2] = [14, 25];

/// Why maps cannot be filled or read.
#[derive(Debug, Error)]
pub enum MapsError {
    /// The kernel or libbpf says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The contents do not fit the object's maps.
    #[error("the contents given do not fit the program's maps: {0}")]
    Contents(#[from] MapsJsonError),
    /// One entry cannot be written.
    #[error("map `{map}`, entry {entry} of the contents given: {why}")]
    Entry {
        /// The map.
        map: String,
        /// Position of the entry in the contents, from 0.
        entry: usize,
        /// What is wrong.
        why: String,
    },
    /// A map cannot be read back.
    #[error(
        "map `{map}` cannot be read back ({source}), so what a program writes there cannot be compared; programs \
         that use such maps cannot be replayed"
    )]
    Unreadable {
        /// The map.
        map: String,
        /// What the kernel said.
        source: KernelError,
    },
}

type Result<T> = std::result::Result<T, MapsError>;

/// An interface that stands for every other, in a network namespace of its own.
#[derive(Debug)]
pub struct StandIn {
    netns: Netns,
    pair: VethPair,
}

impl StandIn {
    /// Makes the namespace and the interface; both go with this value.
    ///
    /// # Errors
    /// What the kernel says; a want of privilege.
    pub fn new() -> Result<StandIn> {
        let netns = Netns::new()?;
        let pair = netns.veth("standin0", &netns, "standin1")?;
        Ok(StandIn { netns, pair })
    }

    /// Its index, which means something only inside of its namespace.
    pub fn ifindex(&self) -> u32 {
        self.pair.near().ifindex()
    }
}

/// What entries of device maps are filled with.
#[derive(Clone, Copy, Debug)]
pub enum Devices<'a> {
    /// The interface indices of the contents, in the calling thread's network namespace.
    AsGiven,
    /// A stand-in wherever the contents name an interface.
    StandIn(&'a StandIn),
}

/// Writes contents into the maps of a loaded object.
///
/// # Errors
/// [`MapsError`] for the first entry that does not fit or that the kernel refuses; entries before it are written.
pub fn fill(loaded: &LoadedObject, contents: &MapContents, devices: Devices<'_>) -> Result<()> {
    let named = |(name, map): (&String, &Map)| MapSpec { name: name.clone(), ..map.spec().clone() };
    let specs: Vec<MapSpec> = loaded.maps().iter().map(named).collect();
    contents.check(&specs)?;
    for (name, entries) in &contents.maps {
        let map = loaded.map(name)?;
        for (index, entry) in entries.iter().enumerate() {
            put(loaded, map, entry, devices).map_err(|why| MapsError::Entry {
                map: name.clone(),
                entry: index,
                why,
            })?;
        }
    }
    Ok(())
}

fn put(
    loaded: &LoadedObject,
    map: &Map,
    entry: &Entry,
    devices: Devices<'_>,
) -> std::result::Result<(), String> {
    let text = |e: KernelError| e.to_string();
    match &entry.value {
        Value::Bytes(value) if DEVICE_MAPS.contains(&map.spec().map_type) => {
            put_device(map, &entry.key, value, devices)
        }
        Value::Bytes(value) => map.update(&entry.key, value, UpdateMode::Any).map_err(text),
        Value::PerCpu(values) => {
            let stride = (map.spec().value_size as usize).next_multiple_of(8);
            let mut all = vec![0; map.value_len()];
            for (cpu, value) in values {
                let start = *cpu as usize * stride;
                let place = all.get_mut(start..start + value.len()).ok_or_else(|| {
                    format!("has a value for CPU {cpu}, and this machine has {} CPUs", possible_cpus())
                })?;
                place.copy_from_slice(value);
            }
            map.update(&entry.key, &all, UpdateMode::Any).map_err(text)
        }
        Value::Program(name) => {
            let program = &loaded.program(name).map_err(text)?.program;
            map.update_fd(&entry.key, program.as_fd()).map_err(text)
        }
        Value::Map(name) => {
            let inner = loaded.map(name).map_err(text)?;
            map.update_fd(&entry.key, inner.as_fd()).map_err(text)
        }
    }
}

/// An entry of a device map: the interface index, and with longer values the program that runs behind it.
fn put_device(map: &Map, key: &[u8], value: &[u8], devices: Devices<'_>) -> std::result::Result<(), String> {
    let (index, program) = value.split_at(value.len().min(4));
    if index.iter().all(|&b| b == 0) {
        return Ok(()); // A slot that holds nothing.
    }
    if program.iter().any(|&b| b != 0) {
        return Err("has a program behind its interface, which is not supported".into());
    }
    let written = match devices {
        Devices::AsGiven => map.update(key, value, UpdateMode::Any),
        Devices::StandIn(device) => {
            let mut value = value.to_vec();
            value[..index.len()].copy_from_slice(&device.ifindex().to_ne_bytes()[..index.len()]);
            device.netns.run(|| map.update(key, &value, UpdateMode::Any)).and_then(|written| written)
        }
    };
    written.map_err(|e| e.to_string())
}

/// What to load, and what to fill it with.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The object file.
    pub object: &'a Path,
    /// The program in it.
    pub program: &'a str,
    /// Contents of its maps; maps that are not named stay as the object declares them.
    pub contents: &'a MapContents,
    /// What stands in the device maps.
    pub devices: &'a StandIn,
}

/// An object loaded with maps of its own.
#[derive(Debug)]
pub struct Instance {
    loaded: LoadedObject,
    program: String,
}

impl Instance {
    /// Loads the object and fills its maps.
    ///
    /// # Errors
    /// What opening, loading and filling say.
    pub fn load(source: Source<'_>) -> Result<Instance> {
        let mut object = Object::open(source.object)?;
        object.expect_type(source.program, XDP)?;
        object.ignore_pins()?;
        let mut contents = source.contents.clone();
        set_constants(&mut object, &mut contents)?;
        let programs = companions(source.program, &contents);
        // An object's own program arrays name programs that nobody else does, so where one refers to another
        // everything is loaded.
        if programs.len() == 1 && !object_fills_program_arrays(source.object) {
            object.select(&[source.program])?;
        }
        let loaded = object.load()?;
        fill(&loaded, &contents, Devices::StandIn(source.devices))?;
        Ok(Instance { loaded, program: source.program.into() })
    }

    /// The program as it came out of the object.
    ///
    /// # Errors
    /// None that can happen: the program was loaded by its name.
    pub fn original(&self) -> Result<&LoadedProgram> {
        Ok(self.loaded.program(&self.program)?)
    }

    /// Its maps, in the order in which it numbers them.
    ///
    /// # Errors
    /// None that can happen: the maps are those of the same object.
    pub fn maps(&self) -> Result<Vec<&Map>> {
        Ok(self.loaded.maps_of(&self.original()?.spec)?)
    }

    /// Reads all maps that the loaded programs use.
    ///
    /// # Errors
    /// [`MapsError::Unreadable`] for maps without a way to read them.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let programs = self.loaded.programs();
        let used: BTreeSet<&str> =
            programs.values().flat_map(|p| &p.spec.maps).map(|spec| spec.name.as_str()).collect();
        let mut maps = BTreeMap::new();
        for (name, map) in self.loaded.maps() {
            match map.read_all() {
                Ok(entries) => {
                    let held = |value| self.held(map, value);
                    maps.insert(name.clone(), entries.into_iter().map(|(k, v)| (k, held(v))).collect());
                }
                Err(_) if !used.contains(name.as_str()) => {}
                Err(source) => return Err(MapsError::Unreadable { map: name.clone(), source }),
            }
        }
        Ok(Snapshot { maps })
    }

    /// What an entry holds, with the kernel's ids replaced by names, which are the same in every instance.
    fn held(&self, map: &Map, value: Box<[u8]>) -> Held {
        let map_type = map.spec().map_type;
        let id = value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let name = if map_type == PROG_ARRAY {
            self.loaded.programs().iter().find(|(_, p)| p.program.id() == id).map(|(name, _)| name)
        } else if MAPS_OF_MAPS.contains(&map_type) {
            self.loaded.maps().iter().find(|(_, m)| m.id() == id).map(|(name, _)| name)
        } else {
            None
        };
        name.map_or(Held::Bytes(value), |name| Held::Name(name.clone()))
    }
}

/// Sets the initial values of constant data, which nobody can write once it is loaded.
fn set_constants(object: &mut Object, contents: &mut MapContents) -> Result<()> {
    let constants: Vec<String> =
        contents.maps.keys().filter(|name| name.contains(".rodata")).cloned().collect();
    for name in constants {
        if let Some([Entry { value: Value::Bytes(bytes), .. }]) = contents.maps.get(&name).map(|e| &e[..]) {
            object.set_initial(&name, bytes)?;
            contents.maps.remove(&name);
        }
    }
    Ok(())
}

/// The program and those that the contents put into program arrays.
fn companions<'a>(program: &'a str, contents: &'a MapContents) -> BTreeSet<&'a str> {
    let named = contents.maps.values().flatten().filter_map(|entry| match &entry.value {
        Value::Program(name) => Some(name.as_str()),
        _ => None,
    });
    named.chain([program]).collect()
}

fn object_fills_program_arrays(path: &Path) -> bool {
    let parsed = std::fs::read(path).ok().and_then(|bytes| runnel_bpf::object::Object::parse(&bytes).ok());
    let is_filled =
        |map: &runnel_bpf::object::MapDef| map.spec.map_type == PROG_ARRAY && !map.slots.is_empty();
    // What cannot be parsed here is left to libbpf as it is.
    parsed.is_none_or(|object| object.maps.iter().any(is_filled))
}

/// What an entry of a map holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held {
    /// Bytes; of per-CPU maps those of all CPUs, each CPU's rounded up to eight.
    Bytes(Box<[u8]>),
    /// A program or a map of the object, by name.
    Name(String),
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Held::Bytes(bytes) => f.write_str(&hex(bytes)),
            Held::Name(name) => write!(f, "`{name}`"),
        }
    }
}

/// What maps held when they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Entries by name of the map and key.
    pub maps: BTreeMap<String, BTreeMap<Box<[u8]>, Held>>,
}

/// An entry that two instances do not agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapDifference {
    /// The map.
    pub map: String,
    /// The key.
    pub key: Box<[u8]>,
    /// What the original left there, if anything.
    pub original: Option<Held>,
    /// What the optimized program left there, if anything.
    pub optimized: Option<Held>,
}

impl fmt::Display for MapDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |held: &Option<Held>| held.as_ref().map_or("no entry".into(), Held::to_string);
        let (original, optimized) = (side(&self.original), side(&self.optimized));
        write!(
            f,
            "map `{}`, key {}: the original leaves {original}, the optimized program {optimized}",
            self.map,
            hex(&self.key)
        )
    }
}

impl Snapshot {
    /// What the other, optimized side has otherwise: the number of such entries, and the first `limit` of them.
    pub fn differences(&self, optimized: &Snapshot, limit: usize) -> (u64, Vec<MapDifference>) {
        let (mut count, mut first) = (0, Vec::new());
        let empty = BTreeMap::new();
        let names: BTreeSet<&String> = self.maps.keys().chain(optimized.maps.keys()).collect();
        for name in names {
            let (a, b) = (self.maps.get(name).unwrap_or(&empty), optimized.maps.get(name).unwrap_or(&empty));
            let keys: BTreeSet<&Box<[u8]>> = a.keys().chain(b.keys()).collect();
            for key in keys.into_iter().filter(|&key| a.get(key) != b.get(key)) {
                count += 1;
                if first.len() < limit {
                    first.push(MapDifference {
                        map: name.clone(),
                        key: key.clone(),
                        original: a.get(key).cloned(),
                        optimized: b.get(key).cloned(),
                    });
                }
            }
        }
        (count, first)
    }
}

/// Bytes as pairs of hexadecimal digits, in groups of four bytes.
pub fn hex(bytes: &[u8]) -> String {
    let group = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.chunks(4).map(group).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, u8, u8)]) -> Snapshot {
        let mut maps: BTreeMap<String, BTreeMap<Box<[u8]>, Held>> = BTreeMap::new();
        for (map, key, value) in entries {
            let held = Held::Bytes(Box::new([*value, 0, 0, 0, 1]));
            maps.entry((*map).into()).or_default().insert(Box::new([*key]), held);
        }
        Snapshot { maps }
    }

    #[test]
    fn differences_are_entries_of_either_side() {
        let a = snapshot(&[("x", 1, 1), ("x", 2, 2), ("y", 1, 1)]);
        let b = snapshot(&[("x", 1, 1), ("x", 2, 3), ("x", 4, 4), ("z", 9, 9)]);
        let (count, first) = a.differences(&b, 3);
        assert_eq!(count, 4);
        let text: Vec<String> = first.iter().map(MapDifference::to_string).collect();
        assert_eq!(
            text,
            [
                "map `x`, key 02: the original leaves 02000000 01, the optimized program 03000000 01",
                "map `x`, key 04: the original leaves no entry, the optimized program 04000000 01",
                "map `y`, key 01: the original leaves 01000000 01, the optimized program no entry",
            ]
        );
        assert_eq!(a.differences(&a, 9), (0, vec![]));
    }
}
