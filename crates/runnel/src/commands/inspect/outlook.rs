//! What the specializer could do with a table, and what it does for given contents.
//!
//! Without contents only the choices can be told, and what rules a table out. Times are told only where the cost
//! model has seen the contents: all of them depend on how much the table holds.

use std::collections::BTreeMap;

use runnel_analysis::TableAccess;
use runnel_bpf::maps_json::{MapContents, Value};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_engine::specialize::{Request, TableState, specialize as specialize_for};
use runnel_ir::{EntityRef, InstData, Program as Ir, SecondaryMap, Table, TableData, TableKind};
use runnel_passes::clean_up;
use runnel_tables::{Budget, Contents, Entry, SiteFacts};

use super::rows::{Place, SpecializedRow, TableRow};

/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// How the outlook of a table begins that is not specialized.
const STAYS: &str = "stays as it is: ";

/// What could be done with a table that is used like this.
pub fn of(spec: &MapSpec, ir: &Ir, table: Table, access: &TableAccess) -> String {
    if let Some(why) = ruled_out(spec, &ir.tables[table], access) {
        return format!("{STAYS}{why}");
    }
    let (data, choices) = (&ir.tables[table], choices(ir, table, access));
    let mut text = format!("can become {choices}, whichever is predicted to be fastest for what it holds");
    if spec.flags & MMAPABLE != 0 {
        text.push_str("; only once it is frozen, since user space may write to its memory");
    }
    if data.kind == TableKind::Exact {
        text.push_str(
            "; where the key is taken from an entry of another table, the lookup is answered beforehand",
        );
    }
    text
}

/// Why nothing can be done with a table, whatever it holds.
fn ruled_out(spec: &MapSpec, data: &TableData, access: &TableAccess) -> Option<&'static str> {
    if data.kind == TableKind::Opaque {
        Some(match spec.map_type {
            // DEVMAP, DEVMAP_HASH, SOCKMAP, SOCKHASH, XSKMAP, PROG_ARRAY
            14 | 25 | 15 | 18 | 17 | 3 => "only helpers use it, and the kernel itself may change it",
            _ => "only helpers use it",
        })
    } else if data.per_cpu {
        Some("each CPU has values of its own")
    } else if data.keeps_recency {
        Some("lookups decide which entry it evicts next")
    } else if !access.is_read_only() {
        Some("the program changes it")
    } else if access.lookups.is_empty() && !access.direct.is_empty() {
        Some("its value is addressed directly, so that there is no lookup to save")
    } else if access.lookups.is_empty() {
        Some("the program never looks anything up in it")
    } else {
        None
    }
}

/// The representations of `runnel-tables` that a table of this kind can have.
fn choices(ir: &Ir, table: Table, access: &TableAccess) -> &'static str {
    match ir.tables[table].kind {
        TableKind::Prefix if !access.lookups.iter().all(|site| asks_for_longest(ir, site.inst)) => {
            "a constant (if it is empty), and stays as it is otherwise, because the prefix length of a lookup is not \
             known to be the full one"
        }
        TableKind::Prefix => {
            "a constant, comparisons in the code, a hash (if its prefixes have one length) or a multi-level index"
        }
        TableKind::Exact | TableKind::Index => {
            "a constant, comparisons in the code, an array indexed by the key or a perfect hash"
        }
        TableKind::Opaque => "nothing",
    }
}

/// Whether a lookup in a prefix table asks for prefixes of any length.
fn asks_for_longest(ir: &Ir, inst: runnel_ir::Inst) -> bool {
    let InstData::Lookup { table, key } = &ir.insts[inst].data else { return false };
    let facts = SiteFacts::of_key(ir, key);
    let full = ir.tables[*table].key_size.saturating_sub(4).saturating_mul(8);
    full.to_le_bytes().iter().enumerate().all(|(i, &byte)| facts.byte(i) == Some(byte))
}

/// Specializes the program for these contents and writes down what became of each table.
pub fn specialize(
    ir: &Ir,
    spec: &ProgramSpec,
    contents: &MapContents,
    rows: &mut [TableRow],
    place: impl Fn(Option<u32>) -> Option<Place>,
) {
    let mut tables: SecondaryMap<Table, Option<TableState>> = SecondaryMap::new();
    for (index, map) in spec.maps.iter().enumerate() {
        let table = Table::new(index);
        tables[table] = Some(state(map, &ir.tables[table], contents));
    }
    let mut clean = ir.clone();
    clean_up(&mut clean);
    let request = Request { program: &clean, tables: &tables, epoch: 0, budget: Budget::default() };
    let specialized = match specialize_for(&request) {
        Ok(specialized) => specialized,
        Err(error) => {
            rows.iter_mut().for_each(|row| row.outlook = Some(format!("{STAYS}{error}")));
            return;
        }
    };
    for report in specialized.tables {
        let Some(row) = rows.get_mut(report.table.index()) else { continue };
        row.entries = report.entries;
        let is_open = row.outlook.as_ref().is_some_and(|outlook| !outlook.starts_with(STAYS));
        if let Some(why) = report.left.filter(|_| is_open) {
            row.outlook = Some(format!("{STAYS}{why}"));
        }
        let site = |site: runnel_engine::specialize::SiteReport| SpecializedRow {
            at: place(site.origin),
            form: site.form,
            why: site.why,
            predicted_ns: site.predicted_ns,
            rechecked: site.rechecked,
        };
        row.specialized = report.sites.into_iter().map(site).collect();
    }
}

/// What is known of a table whose contents were given, or not: then it is taken to be empty.
fn state(map: &MapSpec, data: &TableData, given: &MapContents) -> TableState {
    if data.kind == TableKind::Opaque || data.per_cpu || data.keeps_recency {
        return TableState::Left("it is of a kind that is never specialized".into());
    }
    let mut entries: BTreeMap<Box<[u8]>, Box<[u8]>> = BTreeMap::new();
    if data.kind == TableKind::Index {
        let bytes = u64::from(map.max_entries).saturating_mul(u64::from(map.value_size).saturating_add(4));
        if bytes > Budget::default().memory_bytes {
            return TableState::Left(format!("its {bytes} bytes are more than a version may take"));
        }
        // An array has every entry; those that are not given are zero.
        let zero = || vec![0; map.value_size as usize].into();
        entries.extend((0..map.max_entries).map(|i| (i.to_ne_bytes().into(), zero())));
    }
    let entry = |e: &runnel_bpf::maps_json::Entry| match &e.value {
        Value::Bytes(value) => Some((e.key.clone().into(), value.clone().into())),
        Value::PerCpu(_) | Value::Program(_) | Value::Map(_) => None,
    };
    entries.extend(given.maps.get(&map.name).into_iter().flatten().filter_map(entry));
    TableState::Known(Contents {
        kind: data.kind,
        key_size: data.key_size,
        value_size: data.value_size,
        max_entries: data.max_entries,
        entries: entries.into_iter().map(|(key, value)| Entry { key, value }).collect(),
    })
}
