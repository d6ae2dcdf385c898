//! A program's facts as text for people.

use std::path::Path;

use super::rows::{AccessRow, FieldRow, Place, ProgramRow, SiteRow, Source, SpecializedRow, TableRow};
use crate::failure::Result;
use crate::output::Output;

/// Prints everything about a program.
pub fn print(output: &Output, row: &ProgramRow) -> Result<()> {
    let size = row.instructions.map_or_else(|| "not linked".to_owned(), |n| format!("{n} instructions"));
    let heading = format!("program {}", row.program);
    output.text(format_args!(
        "{} ({}, section {}, {size})",
        output.heading(&heading),
        row.kind,
        row.section
    ))?;
    if !row.autoload {
        output.text("  is loaded only when asked for by name")?;
    }
    if row.core_relocations > 0 {
        let n = row.core_relocations;
        output.text(format_args!("  {n} CO-RE relocations: their instructions are shown as compiled"))?;
    }
    match &row.refused {
        Some(refused) => {
            let at = refused.at.as_ref().map(|at| format!("at {}: ", single(at))).unwrap_or_default();
            output.text(format_args!("  is left as it is: {at}{}", refused.reason))?;
        }
        None => output.text("  can be specialized")?,
    }
    row.tables.iter().try_for_each(|table| print_table(output, table))
}

fn print_table(output: &Output, table: &TableRow) -> Result<()> {
    let flags = if table.flags.is_empty() { String::new() } else { format!(", {}", table.flags.join(" ")) };
    let key = sized("key", table.key_size, &table.key_fields);
    let value = sized("value", table.value_size, &table.value_fields);
    output.text("")?;
    output.text(format_args!("  {} ({})", output.heading(&format!("table {}", table.table)), table.kind))?;
    output.text(format_args!("    {key}, {value}, at most {} entries{flags}", table.max_entries))?;
    if let Some(read_only) = table.read_only {
        output.text(format_args!("    {}", verdict(table, read_only)))?;
    }
    print_sites(output, &table.sites)?;
    if let Some(outlook) = &table.outlook {
        output.text(format_args!("    {outlook}"))?;
    }
    if let Some(entries) = table.entries {
        output.text(format_args!("    for the {entries} entries given:"))?;
    }
    table.specialized.iter().try_for_each(|site| output.text(format_args!("      {}", specialized(site))))
}

fn verdict(table: &TableRow, read_only: bool) -> String {
    let why = match (&table.written_because, &table.written_at) {
        _ if read_only => return "read-only for the program: nothing in it changes the table".into(),
        (Some(why), Some(at)) => format!("{why}, at {}", single(at)),
        (Some(why), None) => why.clone(),
        (None, _) => String::new(),
    };
    format!("read-write for the program: {why}")
}

/// Prints sites; those that differ in nothing but the instruction, as one: inlining makes several of one line.
fn print_sites(output: &Output, sites: &[SiteRow]) -> Result<()> {
    let mut groups: Vec<(&SiteRow, Vec<u32>)> = Vec::new();
    for site in sites {
        let at = site.at.as_ref().map(|at| at.instruction);
        match groups.iter_mut().find(|(first, _)| alike(first, site)) {
            Some((_, places)) => places.extend(at),
            None => groups.push((site, at.into_iter().collect())),
        }
    }
    groups.iter().try_for_each(|(site, places)| print_site(output, site, places))
}

fn alike(a: &SiteRow, b: &SiteRow) -> bool {
    let line = |site: &SiteRow| site.at.as_ref()?.source.as_ref().map(|s| (s.file.clone(), s.line));
    (a.access, &a.helper, &a.reads, &a.writes, &a.otherwise)
        == (b.access, &b.helper, &b.reads, &b.writes, &b.otherwise)
        && line(a).is_some()
        && line(a) == line(b)
}

fn print_site(output: &Output, site: &SiteRow, places: &[u32]) -> Result<()> {
    let helper = site.helper.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
    let source = site.at.as_ref().and_then(|at| at.source.as_ref());
    let at = if places.is_empty() { String::new() } else { format!(" at {}", place(places, source)) };
    output.text(format_args!("    {}{helper}{at}", site.access))?;
    for (what, accesses) in [("reads", &site.reads), ("writes", &site.writes)] {
        if !accesses.is_empty() {
            let names: Vec<String> = accesses.iter().map(accessed).collect();
            output.text(format_args!("      {what} {}", unique(names).join(", ")))?;
        }
    }
    if !site.otherwise.is_empty() {
        output.text(format_args!("      {}", site.otherwise.join(", ")))?;
    }
    let is_lookup = site.access == "lookup";
    if is_lookup && site.reads.is_empty() && site.writes.is_empty() && site.otherwise.is_empty() {
        output.text("      only asks whether there is an entry")?;
    }
    Ok(())
}

fn specialized(site: &SpecializedRow) -> String {
    let at = site.at.as_ref().map(single).unwrap_or_default();
    let ns = site.predicted_ns.map(|ns| format!(", {ns:.1} ns predicted")).unwrap_or_default();
    let guard = if site.rechecked { ", behind another check of the guard" } else { "" };
    format!("{at}: {} ({}){ns}{guard}", site.form, site.why)
}

/// `key 8 bytes (prefixlen 4, addr 4)`.
fn sized(what: &str, size: u32, fields: &[FieldRow]) -> String {
    let unit = if size == 1 { "byte" } else { "bytes" };
    if fields.is_empty() {
        return format!("{what} {size} {unit}");
    }
    let fields: Vec<String> = fields.iter().map(|f| format!("{} {}", f.name, f.size)).collect();
    format!("{what} {size} {unit} ({})", fields.join(", "))
}

fn accessed(access: &AccessRow) -> String {
    match (&access.fields[..], access.offset) {
        ([], Some(0)) => format!("{} bytes", access.size),
        ([], Some(offset)) => format!("{} bytes at {offset}", access.size),
        ([], None) => format!("{} bytes somewhere", access.size),
        (names, _) => names.join("+"),
    }
}

/// Without repetitions: a field that is read in parts is one field.
fn unique(mut names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// `instruction 12 (router.bpf.c:31: if (x))`.
fn place(instructions: &[u32], source: Option<&Source>) -> String {
    let numbers: Vec<String> = instructions.iter().map(u32::to_string).collect();
    let noun = if numbers.len() == 1 { "instruction" } else { "instructions" };
    let source = source.map(|s| format!(" ({}:{}: {})", shown(s), s.line, s.text)).unwrap_or_default();
    format!("{noun} {}{source}", numbers.join(", "))
}

fn single(at: &Place) -> String {
    place(&[at.instruction], at.source.as_ref())
}

/// The file as seen from here.
fn shown(source: &Source) -> &str {
    let here = std::env::current_dir().ok();
    let relative = here.and_then(|here| Path::new(&source.file).strip_prefix(here).ok()?.to_str());
    relative.unwrap_or(&source.file)
}
