//! Contents of maps as JSON: what `bpftool -j map dump` prints, one array under each map's name.
//!
//! ```json
//! {"routes": [{"key": ["0x20", "0x00"], "value": ["0x01"]}],
//!  "counters": [{"key": ["0x00"], "values": [{"cpu": 0, "value": ["0x00"]}]}],
//!  "jmp": [{"key": ["0x00"], "prog": "parse"}],
//!  "outer": [{"key": ["0x00"], "inner": "table_a"}]}
//! ```
//!
//! Entries are read straight into bytes, never through a tree of JSON values, because tables of a million entries
//! are ordinary. The form that bpftool adds for maps with BTF (`formatted`) is passed over, other unknown members
//! are errors. Whether sizes fit a map is asked with [`MapContents::check`]; nothing here talks to a kernel.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use crate::spec::MapSpec;

/// `BPF_MAP_TYPE_*` of the maps whose values are one per CPU, are programs, or are maps.
const PER_CPU: [u32; 4] = [5, 6, 10, 21];
const OF_PROGRAMS: u32 = 3;
const OF_MAPS: [u32; 2] = [12, 13];

/// The value of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The bytes of the value.
    Bytes(Vec<u8>),
    /// CPU number and bytes of each CPU's value, as listed.
    PerCpu(Vec<(u32, Vec<u8>)>),
    /// Name of the program in a slot of a program array.
    Program(String),
    /// Name of the map in a slot of a map of maps.
    Map(String),
}

/// One entry of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Value,
}

/// Contents of maps by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapContents {
    /// Entries of each map, as listed.
    pub maps: BTreeMap<String, Vec<Entry>>,
}

/// Where in the contents something is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Name of the map; `None` outside of all maps.
    pub map: Option<String>,
    /// Number of the entry, from 0; `None` outside of all entries.
    pub entry: Option<usize>,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.map, self.entry) {
            (Some(map), Some(entry)) => write!(f, "map `{map}`, entry {entry}"),
            (Some(map), None) => write!(f, "map `{map}`"),
            _ => f.write_str("map contents"),
        }
    }
}

/// Why contents of maps cannot be read or used.
#[derive(Debug, Error)]
pub enum MapsJsonError {
    /// The text is not JSON, or not of the form described above.
    #[error("{position}: {error}")]
    Syntax {
        /// Where it was noticed.
        position: Position,
        /// What is wrong, with line and column.
        error: serde_json::Error,
    },
    /// An entry does not fit its map.
    #[error("{position}: {why}")]
    Misfit {
        /// Which entry.
        position: Position,
        /// What does not fit.
        why: String,
    },
    /// There is no such map.
    #[error("map `{map}`: the object has no map of that name; it has {}", list_names(.known))]
    UnknownMap {
        /// The name.
        map: String,
        /// The names there are.
        known: Vec<String>,
    },
}

fn list_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

impl MapContents {
    /// Reads contents from JSON text.
    ///
    /// # Errors
    /// [`MapsJsonError::Syntax`], which names map, entry, line and column.
    pub fn parse(text: &[u8]) -> Result<MapContents, MapsJsonError> {
        let at = At::default();
        let mut json = serde_json::Deserializer::from_slice(text);
        let maps = json.deserialize_map(MapsVisitor { at: &at });
        let contents = maps.and_then(|maps| json.end().map(|()| MapContents { maps }));
        contents.map_err(|error| MapsJsonError::Syntax { position: at.position(), error })
    }

    /// Prints the contents as `bpftool -j` would: one line, bytes as `"0x2a"`.
    pub fn to_json(&self) -> String {
        let mut text = String::from("{");
        separated(&mut text, &self.maps, |text, (name, entries)| {
            print_string(text, name);
            text.push_str(":[");
            separated(text, entries, print_entry);
            text.push(']');
        });
        text.push('}');
        text
    }

    /// Checks that every map exists and every entry fits it: sizes of key and value, and the kind of value.
    ///
    /// # Errors
    /// [`MapsJsonError::UnknownMap`] or [`MapsJsonError::Misfit`] for the first entry that does not fit.
    pub fn check(&self, specs: &[MapSpec]) -> Result<(), MapsJsonError> {
        for (name, entries) in &self.maps {
            let Some(spec) = specs.iter().find(|s| s.name == *name) else {
                let known = specs.iter().map(|s| s.name.clone()).collect();
                return Err(MapsJsonError::UnknownMap { map: name.clone(), known });
            };
            for (index, entry) in entries.iter().enumerate() {
                check_entry(entry, spec).map_err(|why| MapsJsonError::Misfit {
                    position: Position { map: Some(name.clone()), entry: Some(index) },
                    why,
                })?;
            }
        }
        Ok(())
    }
}

fn check_entry(entry: &Entry, spec: &MapSpec) -> Result<(), String> {
    let size = |what: &str, has: usize, wants: u32| match u32::try_from(has) {
        Ok(has) if has == wants => Ok(()),
        _ => Err(format!("the {what} has {has} bytes, the map's have {wants}")),
    };
    size("key", entry.key.len(), spec.key_size)?;
    let wanted = match spec.map_type {
        OF_PROGRAMS => "`prog` with the name of a program",
        t if OF_MAPS.contains(&t) => "`inner` with the name of a map",
        t if PER_CPU.contains(&t) => "`values`, one per CPU",
        _ => "`value`",
    };
    match &entry.value {
        Value::Program(_) if wanted.starts_with("`prog") => Ok(()),
        Value::Map(_) if wanted.starts_with("`inner") => Ok(()),
        Value::Bytes(bytes) if wanted == "`value`" => size("value", bytes.len(), spec.value_size),
        Value::PerCpu(values) if wanted.starts_with("`values`") => {
            values.iter().try_for_each(|(_, bytes)| size("value of a CPU", bytes.len(), spec.value_size))
        }
        _ => Err(format!("entries of this map need {wanted}")),
    }
}

fn separated<T>(text: &mut String, items: impl IntoIterator<Item = T>, print: impl Fn(&mut String, T)) {
    for (index, item) in items.into_iter().enumerate() {
        if index != 0 {
            text.push(',');
        }
        print(text, item);
    }
}

fn print_entry(text: &mut String, entry: &Entry) {
    text.push_str("{\"key\":");
    print_bytes(text, &entry.key);
    match &entry.value {
        Value::Bytes(bytes) => {
            text.push_str(",\"value\":");
            print_bytes(text, bytes);
        }
        Value::PerCpu(values) => {
            text.push_str(",\"values\":[");
            separated(text, values, |text, (cpu, bytes)| {
                text.push_str(&format!("{{\"cpu\":{cpu},\"value\":"));
                print_bytes(text, bytes);
                text.push('}');
            });
            text.push(']');
        }
        Value::Program(name) => {
            text.push_str(",\"prog\":");
            print_string(text, name);
        }
        Value::Map(name) => {
            text.push_str(",\"inner\":");
            print_string(text, name);
        }
    }
    text.push('}');
}

fn print_bytes(text: &mut String, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    text.push('[');
    separated(text, bytes, |text, &byte| {
        text.push_str("\"0x");
        text.push(char::from(HEX[usize::from(byte >> 4)]));
        text.push(char::from(HEX[usize::from(byte & 15)]));
        text.push('"');
    });
    text.push(']');
}

fn print_string(text: &mut String, string: &str) {
    text.push_str(&serde_json::Value::from(string).to_string());
}

/// Where the reader is, for errors.
#[derive(Default)]
struct At {
    map: Cell<Option<String>>,
    entry: Cell<Option<usize>>,
}

impl At {
    fn position(&self) -> Position {
        Position { map: self.map.take(), entry: self.entry.take() }
    }
}

struct MapsVisitor<'a> {
    at: &'a At,
}

impl<'de> Visitor<'de> for MapsVisitor<'_> {
    type Value = BTreeMap<String, Vec<Entry>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an array of entries under each map's name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut maps = BTreeMap::new();
        while let Some(name) = access.next_key::<String>()? {
            self.at.map.set(Some(name.clone()));
            if maps.contains_key(&name) {
                return Err(A::Error::custom("is there twice"));
            }
            let entries = access.next_value_seed(Entries { at: self.at })?;
            self.at.entry.set(None);
            self.at.map.set(None);
            maps.insert(name, entries);
        }
        Ok(maps)
    }
}

/// Reads the entries of one map.
struct Entries<'a> {
    at: &'a At,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = Vec<Entry>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = Vec<Entry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        loop {
            self.at.entry.set(Some(entries.len()));
            match access.next_element::<RawEntry>()? {
                Some(raw) => entries.push(raw.entry().map_err(A::Error::custom)?),
                None => return Ok(entries),
            }
        }
    }
}

/// An entry as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    key: Vec<Byte>,
    value: Option<Vec<Byte>>,
    values: Option<Vec<CpuValue>>,
    prog: Option<String>,
    inner: Option<String>,
    #[serde(rename = "formatted")]
    _formatted: Option<IgnoredAny>,
}

/// The value of one CPU as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CpuValue {
    cpu: u32,
    value: Vec<Byte>,
}

impl RawEntry {
    fn entry(self) -> Result<Entry, &'static str> {
        let candidates = [
            self.value.map(|value| Value::Bytes(bytes(value))),
            self.values
                .map(|values| Value::PerCpu(values.into_iter().map(|v| (v.cpu, bytes(v.value))).collect())),
            self.prog.map(Value::Program),
            self.inner.map(Value::Map),
        ];
        let mut given = candidates.into_iter().flatten();
        let value = given.next().ok_or("has none of `value`, `values`, `prog` and `inner`")?;
        if given.next().is_some() {
            return Err("has more than one of `value`, `values`, `prog` and `inner`");
        }
        if let Value::PerCpu(values) = &value
            && !values.is_sorted_by(|a, b| a.0 < b.0)
        {
            return Err("lists CPUs in `values` twice or out of order");
        }
        Ok(Entry { key: bytes(self.key), value })
    }
}

/// One byte, written `"0x2a"`.
struct Byte(u8);

fn bytes(list: Vec<Byte>) -> Vec<u8> {
    list.into_iter().map(|byte| byte.0).collect()
}

impl<'de> Deserialize<'de> for Byte {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_str(ByteVisitor)
    }
}

struct ByteVisitor;

impl Visitor<'_> for ByteVisitor {
    type Value = Byte;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte like \"0x2a\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Byte, E> {
        let digits = text.strip_prefix("0x").filter(|digits| (1..=2).contains(&digits.len()));
        let all_hex = |digits: &&str| digits.bytes().all(|b| b.is_ascii_hexdigit());
        let byte = digits.filter(all_hex).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        byte.map(Byte).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}
