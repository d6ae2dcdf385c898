//! The maps of an object: those that its author declared (`.maps` with BTF, or the old `maps` section), and the
//! global data sections, which become array maps of one entry.
//!
//! It relies on [`super::elf`] for checked sections and symbols and on [`crate::btf`] for the declarations. A map
//! that cannot be understood is refused by name and does not keep the others from being used. Numbers stay as
//! declared: what depends on the host (a ring buffer's page size, the number of CPUs) is the loader's.
//!
//! Source of the rules: `parse_btf_map_def`, `internal_map_name` and `map_is_mmapable` of libbpf 1.x.

use std::collections::HashMap;

use ::object::elf::{SHT_NOBITS, SHT_PROGBITS, STT_OBJECT};
use thiserror::Error;

use super::elf::{Elf, Home, Section};
use crate::btf::{Btf, Kind, Member, TypeId, read_u32};
use crate::spec::MapSpec;

/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PROG_ARRAY`.
const PROG_ARRAY: u32 = 3;
/// `BPF_MAP_TYPE_ARRAY_OF_MAPS` and `BPF_MAP_TYPE_HASH_OF_MAPS`.
const OF_MAPS: [u32; 2] = [12, 13];
/// `BPF_F_RDONLY_PROG`.
const F_RDONLY_PROG: u32 = 1 << 7;
/// `BPF_F_MMAPABLE`.
const F_MMAPABLE: u32 = 1 << 10;
/// `BPF_OBJ_NAME_LEN` without the final NUL.
const KERNEL_NAME: usize = 15;
/// Size of libbpf's `struct bpf_map_def` of old.
const LEGACY_DEF: usize = 20;

/// Why a map cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapRefusal {
    /// The object has no BTF, without which `.maps` says nothing.
    #[error("the object has no BTF to describe it; compile with -g")]
    NoBtf,
    /// BTF does not mention the variable.
    #[error("BTF has no entry for it in `.maps`")]
    NotInBtf,
    /// The declaration is not a struct, or one of its fields is wrong.
    #[error("field `{field}` of its declaration: {why}")]
    Declaration {
        /// Name of the field; empty for the struct itself.
        field: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An entry of the old `maps` section with more than the five simple numbers.
    #[error("its entry in the old section `maps` {why}; declare it in `.maps` instead")]
    Legacy {
        /// What is wrong with it.
        why: &'static str,
    },
    /// An initial value of a map of maps or programs names nothing usable.
    #[error("initial value {slot} {why}")]
    Slot {
        /// Index in `values`.
        slot: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A data section is larger than a map's value can be.
    #[error("its {size} bytes are more than an array map's value can hold")]
    TooLarge {
        /// Size in bytes.
        size: u64,
    },
}

/// A map that cannot be used; programs that refer to it are refused as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedMap {
    /// Name of the map, or of the data section.
    pub name: String,
    /// Why.
    pub reason: MapRefusal,
}

/// What a slot of a map of maps or of programs holds from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotValue {
    /// The map of that name.
    Map(String),
    /// The program of that name.
    Program(String),
}

/// The contents that a data section starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitialData {
    /// As many zeros as the value is long.
    Zeros,
    /// These bytes, as many as the value is long.
    Bytes(Vec<u8>),
}

/// A map as the object declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// What the kernel is asked for. Data sections are named as libbpf names them.
    pub spec: MapSpec,
    /// The section: `.maps`, `maps`, or the data section itself.
    pub section: String,
    /// NUMA node, where one is asked for.
    pub numa_node: Option<u32>,
    /// `map_extra` of the declaration, 0 if it has none.
    pub map_extra: u64,
    /// Whether it is to be pinned, and shared, under its name (`LIBBPF_PIN_BY_NAME`).
    pub pin_by_name: bool,
    /// Type of the key in the object's BTF.
    pub key_type: Option<TypeId>,
    /// Type of the value in the object's BTF; for data sections the data section.
    pub value_type: Option<TypeId>,
    /// For maps of maps, the declaration that inner maps follow.
    pub inner: Option<Box<MapDef>>,
    /// Values that slots of a map of maps or programs have from the start.
    pub slots: Vec<(u32, SlotValue)>,
    /// For data sections, the contents.
    pub initial: Option<InitialData>,
}

/// All maps of an object, and how relocations find them.
#[derive(Default)]
pub struct MapTable {
    /// Usable maps: declared ones first, then data sections.
    pub maps: Vec<MapDef>,
    /// Maps that cannot be used.
    pub refused: Vec<RefusedMap>,
    /// Index of the usable (`Ok`) or refused (`Err`) map that is declared at an offset of a section.
    pub declared: HashMap<(usize, u64), Result<usize, usize>>,
    /// Index of the usable or refused map that a data section became.
    pub data: HashMap<usize, Result<usize, usize>>,
}

impl MapTable {
    /// Collects the maps of an object. `object_name` prefixes the names of data sections.
    pub fn collect(elf: &Elf<'_>, btf: Option<&Btf>, object_name: &str) -> MapTable {
        let mut table = MapTable::default();
        if let Some((index, _)) = elf.section(".maps") {
            for candidate in btf_maps(elf, btf, index) {
                let place = table.add(candidate.name, candidate.def.map(|(def, _)| def));
                table.declared.insert((index, candidate.start), place);
            }
        }
        if let Some((index, section)) = elf.section("maps") {
            table.add_legacy(elf, index, section);
        }
        let types = data_section_types(btf);
        for (index, section) in elf.sections.iter().enumerate().filter(|(_, s)| is_data(s)) {
            let place = table.add(section.name.to_owned(), data_map(section, &types, object_name));
            table.data.insert(index, place);
        }
        table
    }

    fn add(&mut self, name: String, def: Result<MapDef, MapRefusal>) -> Result<usize, usize> {
        match def {
            Ok(def) => {
                self.maps.push(def);
                Ok(self.maps.len() - 1)
            }
            Err(reason) => {
                self.refused.push(RefusedMap { name, reason });
                Err(self.refused.len() - 1)
            }
        }
    }

    fn add_legacy(&mut self, elf: &Elf<'_>, index: usize, section: &Section<'_>) {
        let entries: Vec<_> =
            elf.symbols.iter().filter(|s| s.home == Home::Section(index) && !s.name.is_empty()).collect();
        let entry_size = section.data.len().checked_div(entries.len()).unwrap_or(0);
        for symbol in &entries {
            let start = usize::try_from(symbol.value).unwrap_or(usize::MAX);
            let entry = section.data.get(start..start.saturating_add(entry_size)).unwrap_or(&[]);
            let place = self.add(symbol.name.to_owned(), legacy_map(symbol.name, entry));
            self.declared.insert((index, symbol.value), place);
        }
    }
}

/// A declaration in `.maps`, and the offset of its initial values if it can have any.
struct Candidate {
    name: String,
    start: u64,
    size: u64,
    def: Result<(MapDef, Option<u32>), MapRefusal>,
}

fn btf_maps(elf: &Elf<'_>, btf: Option<&Btf>, section: usize) -> Vec<Candidate> {
    let mut types = HashMap::new();
    if let Some(btf) = btf {
        let vars = btf.data_section(".maps").map_or(&[][..], |id| btf.section_vars(id));
        types.extend(vars.iter().map(|var| (btf.name(var.ty), var.ty)));
    }
    let is_map = |s: &&super::elf::Symbol<'_>| s.home == Home::Section(section) && s.kind == STT_OBJECT;
    let mut candidates: Vec<_> = elf
        .symbols
        .iter()
        .filter(is_map)
        .map(|symbol| {
            let def = match (btf, types.get(symbol.name)) {
                (None, _) => Err(MapRefusal::NoBtf),
                (Some(_), None) => Err(MapRefusal::NotInBtf),
                (Some(btf), Some(&var)) => declared_map(btf, symbol.name, var, false),
            };
            Candidate { name: symbol.name.to_owned(), start: symbol.value, size: symbol.size, def }
        })
        .collect();
    candidates.sort_by_key(|c| c.start);
    add_slots(elf, section, &mut candidates);
    candidates
}

/// Reads the initial values of maps of maps and of programs: relocations of `.maps` itself.
fn add_slots(elf: &Elf<'_>, section: usize, candidates: &mut [Candidate]) {
    for relocation in &elf.relocations[section] {
        let owner = candidates.partition_point(|c| c.start <= relocation.offset);
        let Some(candidate) = owner.checked_sub(1).map(|i| &mut candidates[i]) else { continue };
        let inside = relocation.offset - candidate.start;
        let Ok((def, values)) = &mut candidate.def else { continue };
        let symbol = &elf.symbols[relocation.symbol];
        let slot = slot_at(inside, candidate.size, *values).and_then(|slot| {
            let refuse = |why| MapRefusal::Slot { slot: slot.into(), why };
            let name = symbol.name.to_owned();
            if name.is_empty() {
                Err(refuse("refers to something without a name; make it global"))
            } else if def.spec.map_type == PROG_ARRAY {
                Ok((slot, SlotValue::Program(name)))
            } else if symbol.home == Home::Section(section) {
                Ok((slot, SlotValue::Map(name)))
            } else {
                Err(refuse("is not a map of `.maps`"))
            }
        });
        match slot {
            Ok(slot) => def.slots.push(slot),
            Err(reason) => candidate.def = Err(reason),
        }
    }
}

/// The slot that a relocation `inside` bytes into a declaration fills.
fn slot_at(inside: u64, size: u64, values: Option<u32>) -> Result<u32, MapRefusal> {
    let offset = values.and_then(|start| inside.checked_sub(start.into()));
    let Some(offset) = offset.filter(|offset| inside < size && offset % 8 == 0) else {
        let why = "a relocation lies outside the initial values";
        return Err(MapRefusal::Declaration { field: "values".into(), why });
    };
    u32::try_from(offset / 8).map_err(|_| MapRefusal::Slot { slot: offset / 8, why: "is out of range" })
}

/// Reads one declaration of `.maps`; with it comes the offset of `values` in the struct, if it has the field.
fn declared_map(
    btf: &Btf,
    name: &str,
    ty: TypeId,
    is_inner: bool,
) -> Result<(MapDef, Option<u32>), MapRefusal> {
    let refuse = |field: &str, why| MapRefusal::Declaration { field: field.to_owned(), why };
    let ty = match btf.ty(ty).map(|t| &t.kind) {
        Some(Kind::Var { ty, .. }) => *ty,
        _ => ty,
    };
    let Some(Kind::Struct { members, .. }) = btf.resolve(ty).map(|(_, t)| &t.kind) else {
        return Err(refuse("", "it is not a struct"));
    };
    let mut def = empty_def(name, ".maps");
    let mut seen: Vec<&str> = Vec::new();
    let mut values = None;
    for member in members {
        let field = btf.string(member.name).unwrap_or("");
        if seen.contains(&field) {
            return Err(refuse(field, "is there twice"));
        }
        seen.push(field);
        // Unknown fields end the walk, which also bounds it.
        if field == "values" {
            values = Some(member);
        } else {
            read_field(btf, field, member, &mut def).map_err(|why| refuse(field, why))?;
        }
    }
    if def.spec.map_type == 0 {
        return Err(refuse("type", "is missing"));
    }
    if is_inner && (def.pin_by_name || values.is_some()) {
        return Err(refuse("values", "an inner map can neither be pinned nor hold maps itself"));
    }
    if let Some(values) = values {
        read_values(btf, values, &mut def)?;
    }
    Ok((def, values.map(|m| m.bit_offset / 8)))
}

fn read_field(btf: &Btf, field: &str, member: &Member, def: &mut MapDef) -> Result<(), &'static str> {
    match field {
        "type" => def.spec.map_type = uint(btf, member)?,
        "max_entries" => def.spec.max_entries = uint(btf, member)?,
        "map_flags" => def.spec.flags = uint(btf, member)?,
        "numa_node" => def.numa_node = Some(uint(btf, member)?),
        "map_extra" => def.map_extra = ulong(btf, member)?,
        "key_size" => set_size(&mut def.spec.key_size, uint(btf, member)?)?,
        "value_size" => set_size(&mut def.spec.value_size, uint(btf, member)?)?,
        "key" => {
            let (ty, size) = pointee(btf, member)?;
            set_size(&mut def.spec.key_size, size)?;
            def.key_type = Some(ty);
        }
        "value" => {
            let (ty, size) = pointee(btf, member)?;
            set_size(&mut def.spec.value_size, size)?;
            def.value_type = Some(ty);
        }
        "pinning" => {
            def.pin_by_name = match uint(btf, member)? {
                0 => false,
                1 => true,
                _ => return Err("is neither LIBBPF_PIN_NONE nor LIBBPF_PIN_BY_NAME"),
            }
        }
        _ => return Err("is not a field of map declarations"),
    }
    Ok(())
}

/// `values` of a map of maps or of programs: `T *values[]`.
fn read_values(btf: &Btf, member: &Member, def: &mut MapDef) -> Result<(), MapRefusal> {
    let refuse = |why| MapRefusal::Declaration { field: "values".into(), why };
    let of_maps = OF_MAPS.contains(&def.spec.map_type);
    if !of_maps && def.spec.map_type != PROG_ARRAY {
        return Err(refuse("only maps of maps and program arrays have it"));
    }
    let target = match btf.resolve(member.ty).map(|(_, t)| &t.kind) {
        Some(Kind::Array { element, count: 0 }) => match btf.resolve(*element).map(|(_, t)| &t.kind) {
            Some(Kind::Ptr(target)) => *target,
            _ => return Err(refuse("is not an array of pointers")),
        },
        _ => return Err(refuse("is not an array of unspecified length")),
    };
    set_size(&mut def.spec.value_size, 4).map_err(|_| refuse("needs a value size of 4"))?;
    if of_maps {
        let (inner, _) = declared_map(btf, &format!("{}.inner", def.spec.name), target, true)?;
        def.inner = Some(Box::new(inner));
    }
    Ok(())
}

/// `int (*field)[N]` stands for the number N.
fn uint(btf: &Btf, member: &Member) -> Result<u32, &'static str> {
    const WHY: &str = "is not a number written with __uint()";
    let Some(Kind::Ptr(target)) = btf.resolve(member.ty).map(|(_, t)| &t.kind) else { return Err(WHY) };
    match btf.resolve(*target).map(|(_, t)| &t.kind) {
        Some(Kind::Array { count, .. }) => Ok(*count),
        _ => Err(WHY),
    }
}

/// An enumeration of one enumerator stands for its value, for numbers beyond 32 bits.
fn ulong(btf: &Btf, member: &Member) -> Result<u64, &'static str> {
    match btf.resolve(member.ty).map(|(_, t)| &t.kind) {
        Some(Kind::Enum { values, .. }) if values.len() == 1 => Ok(values[0] as u64),
        _ => uint(btf, member).map(u64::from),
    }
}

/// The type that a member points to, and its size.
fn pointee(btf: &Btf, member: &Member) -> Result<(TypeId, u32), &'static str> {
    let Some(Kind::Ptr(target)) = btf.resolve(member.ty).map(|(_, t)| &t.kind) else {
        return Err("is not a type written with __type()");
    };
    Ok((*target, btf.size_of(*target).ok_or("is a type without a size")?))
}

fn set_size(size: &mut u32, to: u32) -> Result<(), &'static str> {
    if *size != 0 && *size != to {
        return Err("contradicts the size given before");
    }
    *size = to;
    Ok(())
}

fn legacy_map(name: &str, entry: &[u8]) -> Result<MapDef, MapRefusal> {
    let refuse = |why| Err(MapRefusal::Legacy { why });
    if entry.len() < LEGACY_DEF {
        return refuse("is shorter than the 20 bytes of struct bpf_map_def");
    }
    if entry[LEGACY_DEF..].iter().any(|&b| b != 0) {
        return refuse("says more than type, sizes, capacity and flags");
    }
    let field = |index: usize| read_u32(entry, 4 * index).unwrap_or(0);
    let mut def = empty_def(name, "maps");
    def.spec = MapSpec {
        name: name.to_owned(),
        map_type: field(0),
        key_size: field(1),
        value_size: field(2),
        max_entries: field(3),
        flags: field(4),
    };
    Ok(def)
}

fn empty_def(name: &str, section: &str) -> MapDef {
    MapDef {
        spec: MapSpec {
            name: name.to_owned(),
            map_type: 0,
            key_size: 0,
            value_size: 0,
            max_entries: 0,
            flags: 0,
        },
        section: section.to_owned(),
        numa_node: None,
        map_extra: 0,
        pin_by_name: false,
        key_type: None,
        value_type: None,
        inner: None,
        slots: Vec::new(),
        initial: None,
    }
}

/// Whether a section becomes a map; empty ones do not.
fn is_data(section: &Section<'_>) -> bool {
    let of = |stem: &str| section.name.strip_prefix(stem).is_some_and(|r| r.is_empty() || r.starts_with('.'));
    let kind_fits = match section.kind {
        SHT_PROGBITS => !section.is_code() && (of(".rodata") || of(".data")),
        SHT_NOBITS => of(".bss"),
        _ => false,
    };
    kind_fits && section.size != 0
}

/// Data sections of the BTF by name, and whether any of their variables is visible to other files.
fn data_section_types(btf: Option<&Btf>) -> HashMap<&str, (TypeId, bool)> {
    let Some(btf) = btf else { return HashMap::new() };
    let is_global = |ty| matches!(btf.ty(ty).map(|t| &t.kind), Some(Kind::Var { is_static: false, .. }));
    btf.data_sections()
        .map(|(id, name)| (name, (id, btf.section_vars(id).iter().any(|var| is_global(var.ty)))))
        .collect()
}

fn data_map(
    section: &Section<'_>,
    types: &HashMap<&str, (TypeId, bool)>,
    object_name: &str,
) -> Result<MapDef, MapRefusal> {
    let size = i32::try_from(section.size).map_err(|_| MapRefusal::TooLarge { size: section.size })?;
    let ty = types.get(section.name);
    let read_only = if section.name.starts_with(".rodata") { F_RDONLY_PROG } else { 0 };
    // A section of nothing but static variables is nobody's business outside, so it is not mapped.
    let mapped = if ty.is_some_and(|&(_, any_global)| any_global) { F_MMAPABLE } else { 0 };
    let mut def = empty_def(&data_map_name(object_name, section.name), section.name);
    def.spec.map_type = ARRAY;
    def.spec.key_size = 4;
    def.spec.value_size = size.unsigned_abs();
    def.spec.max_entries = 1;
    def.spec.flags = read_only | mapped;
    def.value_type = ty.map(|&(id, _)| id);
    def.initial = Some(match section.kind {
        SHT_NOBITS => InitialData::Zeros,
        _ => InitialData::Bytes(section.data.to_vec()),
    });
    Ok(def)
}

/// The name that libbpf gives the map of a data section: the object's name, cut so that 15 bytes hold it and at
/// least 7 bytes of section name; sections with a second dot go by their own name, cut to 15 bytes.
fn data_map_name(object_name: &str, section: &str) -> String {
    let suffix = section.len().clamp(7, KERNEL_NAME);
    let is_custom = section[1..].contains('.');
    let prefix = if is_custom { 0 } else { KERNEL_NAME - suffix };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' };
    object_name.chars().take(prefix).chain(section.chars().take(suffix)).map(allowed).collect()
}
