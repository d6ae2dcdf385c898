//! The facts about a program, as rows for machines; `text` prints the same ones for people.
//!
//! The program is lifted and cleaned up just as it is before it is specialized, so that what is said of its accesses is
//! what the specializer goes by.

use runnel_analysis::{EscapeKind, LookupSite, PointerUses, Site, TableAccess, TableAccesses, Use, Verdict};
use runnel_bpf::btf::{self, TypeId};
use runnel_bpf::lift::{LiftError, lift};
use runnel_bpf::maps_json::MapContents;
use runnel_bpf::object::{MapDef, Object, Program};
use runnel_bpf::spec::ProgramSpec;
use runnel_ir::{EntityRef, Inst, InstData, Program as Ir, Table};
use runnel_kernel::object::program_type_name;
use runnel_passes::clean_up;
use serde::Serialize;

use super::outlook;

/// A program.
#[derive(Debug, Serialize)]
pub struct ProgramRow {
    /// Name of its function.
    pub program: String,
    /// Type, by the name of its section.
    #[serde(rename = "type")]
    pub kind: String,
    /// Section.
    pub section: String,
    /// Whether loaders load it unless told otherwise.
    pub autoload: bool,
    /// Instruction slots with its subprograms; none if it cannot be linked.
    pub instructions: Option<usize>,
    /// Places where the loader is to put in what only the running kernel knows.
    pub core_relocations: usize,
    /// Whether it can be lifted to the IR, and so be specialized.
    pub lifts: bool,
    /// Why not.
    pub refused: Option<Refused>,
    /// Its tables, in the order of their first use.
    pub tables: Vec<TableRow>,
}

/// Why a program cannot be lifted.
#[derive(Debug, Serialize)]
pub struct Refused {
    /// The reason.
    pub reason: String,
    /// The place, where it is one.
    pub at: Option<Place>,
}

/// A place in a program.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// Instruction slot in the program.
    pub instruction: u32,
    /// The line of source that it comes from, if the object says.
    pub source: Option<Source>,
}

/// A line of source.
#[derive(Clone, Debug, Serialize)]
pub struct Source {
    /// File, as the compiler was given it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Its text, without indentation.
    pub text: String,
}

/// A field of a key or a value.
#[derive(Clone, Debug, Serialize)]
pub struct FieldRow {
    /// Name.
    pub name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// A table.
#[derive(Debug, Serialize)]
pub struct TableRow {
    /// Name of the map.
    pub table: String,
    /// Type of the map.
    #[serde(rename = "type")]
    pub kind: String,
    /// Key size in bytes.
    pub key_size: u32,
    /// Fields of the key; empty if it is a plain number or nothing is known of it.
    pub key_fields: Vec<FieldRow>,
    /// Value size in bytes.
    pub value_size: u32,
    /// Fields of the value.
    pub value_fields: Vec<FieldRow>,
    /// Capacity in entries.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: Vec<String>,
    /// Whether the program leaves the table as it is; nothing if the program cannot be lifted.
    pub read_only: Option<bool>,
    /// Why the program counts as changing the table.
    pub written_because: Option<String>,
    /// Where it does.
    pub written_at: Option<Place>,
    /// Every place where the program uses it.
    pub sites: Vec<SiteRow>,
    /// What the specializer could do with it.
    pub outlook: Option<String>,
    /// Entries given for it.
    pub entries: Option<usize>,
    /// What the specializer does with it for the entries given, in the order of its lookups.
    pub specialized: Vec<SpecializedRow>,
}

/// A use of a table.
#[derive(Debug, Serialize)]
pub struct SiteRow {
    /// `lookup`, `address`, `call`, `update` or `delete`.
    pub access: &'static str,
    /// For calls, the helper that the table is handed to.
    pub helper: Option<String>,
    /// Where.
    pub at: Option<Place>,
    /// What is read of the value found.
    pub reads: Vec<AccessRow>,
    /// What is written to it.
    pub writes: Vec<AccessRow>,
    /// What else becomes of its address.
    pub otherwise: Vec<&'static str>,
}

/// Bytes of a value that are accessed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccessRow {
    /// The fields that they belong to; empty if the object does not say.
    pub fields: Vec<String>,
    /// Offset in the value; nothing if it is not one constant.
    pub offset: Option<i64>,
    /// Size in bytes.
    pub size: u32,
}

/// What became of one lookup.
#[derive(Debug, Serialize)]
pub struct SpecializedRow {
    /// Where the lookup stood.
    pub at: Option<Place>,
    /// What stands there.
    pub form: String,
    /// Why.
    pub why: String,
    /// Predicted time of the lookup in nanoseconds.
    pub predicted_ns: Option<f64>,
    /// Whether the guard is checked again before it.
    pub rechecked: bool,
}

/// Everything about a program. `contents`: what the tables hold, if it was given.
pub fn of(object: &Object, program: &Program, contents: Option<&MapContents>) -> ProgramRow {
    let mut row = ProgramRow {
        program: program.name.clone(),
        kind: String::new(),
        section: program.section.clone(),
        autoload: program.autoload,
        instructions: None,
        core_relocations: object.core_relocations(program).len(),
        lifts: false,
        refused: None,
        tables: program.maps.iter().map(|&map| table(object, &object.maps[map])).collect(),
    };
    match &program.spec {
        Err(refusal) => {
            row.kind =
                program_type_name(runnel_bpf::object::hook::hook_of_section(&program.section).prog_type);
            row.refused = Some(Refused { reason: refusal.to_string(), at: None });
        }
        Ok(spec) => {
            row.kind = program_type_name(spec.prog_type);
            row.instructions = Some(spec.insns.len());
            let facts = Facts { object, program };
            match lift(spec) {
                Ok(ir) => {
                    row.lifts = true;
                    facts.describe(&mut row, spec, &ir, contents);
                }
                Err(LiftError { pc, reason }) => {
                    row.refused =
                        Some(Refused { reason: reason.to_string(), at: facts.place(Some(pc as u32)) });
                }
            }
        }
    }
    row
}

fn table(object: &Object, map: &MapDef) -> TableRow {
    let fields = |ty: Option<TypeId>| -> Vec<FieldRow> {
        let (Some(btf), Some(ty)) = (&object.btf, ty) else { return Vec::new() };
        let row = |f: btf::Field| FieldRow { name: f.name, offset: f.offset, size: f.size };
        btf.fields(ty).into_iter().map(row).collect()
    };
    TableRow {
        table: map.spec.name.clone(),
        kind: map_type_name(map.spec.map_type),
        key_size: map.spec.key_size,
        key_fields: fields(map.key_type),
        value_size: map.spec.value_size,
        value_fields: fields(map.value_type),
        max_entries: map.spec.max_entries,
        flags: flag_names(map.spec.flags),
        read_only: None,
        written_because: None,
        written_at: None,
        sites: Vec::new(),
        outlook: None,
        entries: None,
        specialized: Vec::new(),
    }
}

/// Where the facts come from.
struct Facts<'a> {
    object: &'a Object,
    program: &'a Program,
}

impl Facts<'_> {
    fn describe(&self, row: &mut ProgramRow, spec: &ProgramSpec, ir: &Ir, contents: Option<&MapContents>) {
        let mut clean = ir.clone();
        clean_up(&mut clean);
        let accesses = TableAccesses::new(&clean);
        for (index, table) in row.tables.iter_mut().enumerate() {
            let access = accesses.of(Table::new(index));
            self.sites(table, &clean, access);
            if let Verdict::ReadWrite { reason, at } = access.verdict {
                table.written_because = Some(reason.to_string());
                table.written_at = self.place_of(&clean, at);
            }
            table.read_only = Some(access.is_read_only());
            table.outlook = Some(outlook::of(&spec.maps[index], &clean, Table::new(index), access));
        }
        if let Some(contents) = contents {
            let place = |origin| self.place(origin);
            outlook::specialize(ir, spec, contents, &mut row.tables, place);
        }
    }

    fn sites(&self, table: &mut TableRow, ir: &Ir, access: &TableAccess) {
        let kinds = [("lookup", &access.lookups), ("address", &access.direct), ("call", &access.calls)];
        let mut found: Vec<(Option<u32>, SiteRow)> = Vec::new();
        for (kind, sites) in kinds {
            for LookupSite { inst, uses, .. } in sites {
                self.add(&mut found, ir, (kind, *inst), Some((uses, &table.value_fields)));
            }
        }
        for (kind, insts) in [("update", &access.updates), ("delete", &access.deletes)] {
            for &inst in insts {
                self.add(&mut found, ir, (kind, inst), None);
            }
        }
        found.sort_by_key(|(origin, _)| *origin);
        table.sites = found.into_iter().map(|(_, site)| site).collect();
    }

    /// Adds a site; if clean-up made several of one, they are told as the one that the source has.
    fn add(
        &self,
        found: &mut Vec<(Option<u32>, SiteRow)>,
        ir: &Ir,
        (access, inst): (&'static str, Inst),
        uses: Option<(&PointerUses, &[FieldRow])>,
    ) {
        let node = &ir.insts[inst];
        let helper = match node.data {
            InstData::Call { callee, .. } => Some(ir.callees[callee].name.clone()),
            _ => None,
        };
        let twin =
            found.iter().position(|(o, site)| *o == node.origin && o.is_some() && site.access == access);
        let index = twin.unwrap_or_else(|| {
            let (reads, writes, otherwise) = Default::default();
            let at = self.place(node.origin);
            found.push((node.origin, SiteRow { access, helper, at, reads, writes, otherwise }));
            found.len() - 1
        });
        let (site, Some((uses, fields))) = (&mut found[index].1, uses) else { return };
        merge(&mut site.reads, uses.reads.keys().map(|field| accessed(*field, fields)));
        merge(&mut site.writes, uses.writes.keys().map(|field| accessed(*field, fields)));
        // What a helper returns need not be an address at all.
        if site.helper.is_none() {
            merge(&mut site.otherwise, uses.escapes.iter().map(|escape| otherwise(escape.kind)));
        }
    }

    fn place_of(&self, ir: &Ir, at: Use) -> Option<Place> {
        let origin = |inst: Inst| ir.insts[inst].origin;
        match at.site {
            Site::Inst(inst) => self.place(origin(inst)),
            Site::Terminator => self.place(ir.blocks[at.block].insts.iter().rev().find_map(|&i| origin(i))),
        }
    }

    fn place(&self, origin: Option<u32>) -> Option<Place> {
        let instruction = origin?;
        let line = self.object.source_line(self.program, instruction as usize);
        let source =
            line.map(|l| Source { file: l.file.to_owned(), line: l.line, text: l.text.trim().to_owned() });
        Some(Place { instruction, source })
    }
}

fn merge<T: PartialEq>(into: &mut Vec<T>, new: impl Iterator<Item = T>) {
    for item in new {
        if !into.contains(&item) {
            into.push(item);
        }
    }
}

fn accessed(bytes: runnel_analysis::Field, fields: &[FieldRow]) -> AccessRow {
    let names = bytes.offset.map_or_else(Vec::new, |offset| {
        let end = offset.saturating_add(i64::from(bytes.size));
        let touched = |f: &&FieldRow| {
            i64::from(f.offset) < end && offset < i64::from(f.offset).saturating_add(i64::from(f.size))
        };
        fields.iter().filter(touched).map(|f| f.name.clone()).collect()
    });
    AccessRow { fields: names, offset: bytes.offset, size: bytes.size }
}

fn otherwise(kind: EscapeKind) -> &'static str {
    match kind {
        EscapeKind::LentToCallee => "handed to a helper that reads it",
        EscapeKind::GivenToCallee => "handed to a helper that may write to it",
        EscapeKind::Stored => "its address is stored",
        EscapeKind::UsedAsKey => "its address is part of a key",
        EscapeKind::Compared => "its address is compared",
        EscapeKind::Computed => "its address is computed with",
        EscapeKind::Returned => "its address is returned",
    }
}

/// Names of `enum bpf_map_type` as bpftool prints them, by number.
const MAP_TYPES: [&str; 34] = [
    "unspec",
    "hash",
    "array",
    "prog_array",
    "perf_event_array",
    "percpu_hash",
    "percpu_array",
    "stack_trace",
    "cgroup_array",
    "lru_hash",
    "lru_percpu_hash",
    "lpm_trie",
    "array_of_maps",
    "hash_of_maps",
    "devmap",
    "sockmap",
    "cpumap",
    "xskmap",
    "sockhash",
    "cgroup_storage",
    "reuseport_sockarray",
    "percpu_cgroup_storage",
    "queue",
    "stack",
    "sk_storage",
    "devmap_hash",
    "struct_ops",
    "ringbuf",
    "inode_storage",
    "task_storage",
    "bloom_filter",
    "user_ringbuf",
    "cgrp_storage",
    "arena",
];

fn map_type_name(map_type: u32) -> String {
    MAP_TYPES.get(map_type as usize).map_or_else(|| format!("type {map_type}"), |name| (*name).to_owned())
}

/// Names of the `BPF_F_*` flags of map creation (`include/uapi/linux/bpf.h`), by bit.
const MAP_FLAGS: [(u32, &str); 14] = [
    (0, "no_prealloc"),
    (1, "no_common_lru"),
    (2, "numa_node"),
    (3, "rdonly"),
    (4, "wronly"),
    (5, "stack_build_id"),
    (6, "zero_seed"),
    (7, "rdonly_prog"),
    (8, "wronly_prog"),
    (9, "clone"),
    (10, "mmapable"),
    (11, "preserve_elems"),
    (12, "inner_map"),
    (13, "link"),
];

fn flag_names(flags: u32) -> Vec<String> {
    let known = MAP_FLAGS.iter().filter(|(bit, _)| flags & 1 << bit != 0).map(|(_, name)| (*name).to_owned());
    let rest = MAP_FLAGS.iter().fold(flags, |rest, (bit, _)| rest & !(1 << bit));
    known.chain((rest != 0).then(|| format!("{rest:#x}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_named_for_every_field_that_they_touch() {
        let field = |name: &str, offset, size| FieldRow { name: name.into(), offset, size };
        let fields = [field("mac", 0, 6), field("state", 6, 2)];
        let names = |offset, size| accessed(runnel_analysis::Field { offset, size }, &fields).fields;
        assert_eq!(names(Some(4), 2), ["mac"]);
        assert_eq!(names(Some(4), 4), ["mac", "state"]);
        assert_eq!(names(Some(8), 4), Vec::<String>::new());
        assert_eq!(names(None, 4), Vec::<String>::new());
    }

    #[test]
    fn unknown_flags_and_types_are_shown_by_number() {
        assert_eq!(flag_names(1 | 1 << 10), ["no_prealloc", "mmapable"]);
        assert_eq!(flag_names(1 << 20), ["0x100000"]);
        assert_eq!(map_type_name(11), "lpm_trie");
        assert_eq!(map_type_name(99), "type 99");
    }
}
