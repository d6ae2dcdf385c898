//! One specialized version of a program, for given contents of its tables.
//!
//! The steps, in order:
//!
//! 1. `guard` puts one check in front of everything: is the epoch still the one that the contents belong to? If it is
//!    not, the original runs.
//! 2. Each lookup in a table whose contents are known is replaced, one after the other in program order, with a
//!    clean-up before each whose key depends on an earlier one (`slice`), so that what that one makes constant is
//!    seen. A lookup whose key consists of
//!    fields of a row found before is answered beforehand, for every row (`compose`); any other gets the probe
//!    of the representation that `runnel-tables` chooses (`probe`).
//! 3. Where the program may have read an original table between the guard and a specialized lookup, the guard is
//!    checked again before that lookup, and the original lookup stands by (`recheck`): else the program could
//!    see a new value there and then an old one here, which the original never shows.
//!
//! What the result assumes is returned as data ([`Specialized::assumptions`]); whoever installs it must make sure
//! that the epoch moves before any assumption fails.

mod compose;
mod guard;
mod probe;
mod recheck;
mod slice;

use std::collections::{HashMap, HashSet};

use runnel_analysis::TableAccesses;
use runnel_ir::{Block, Data, DataKind, Inst, InstData, Key, Program, SecondaryMap, Table, TableKind, Value};
use runnel_passes::clean_up;
use runnel_tables::{Budget, Contents, ContentsError, Representation, Rows, SiteFacts, choose};
use thiserror::Error;

/// What the specializer may know of a table.
#[derive(Clone, Debug)]
pub enum TableState {
    /// What it holds, as of the epoch.
    Known(Contents),
    /// It stays as it is, for this reason.
    Left(String),
}

/// What to specialize for.
pub struct Request<'a> {
    /// The program, lifted and cleaned up.
    pub program: &'a Program,
    /// What is known of each table; a table without state stays as it is.
    pub tables: &'a SecondaryMap<Table, Option<TableState>>,
    /// The epoch that the contents belong to.
    pub epoch: u64,
    /// Limits.
    pub budget: Budget,
}

/// Something that must stay true while a specialized program may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assumption {
    /// The table's contents do not change.
    Unchanged(Table),
}

/// What became of one lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteReport {
    /// Where in the plugin's input the lookup stood.
    pub origin: Option<u32>,
    /// What stands there now.
    pub form: String,
    /// Why.
    pub why: String,
    /// Predicted time of the lookup in nanoseconds, where there is a prediction.
    pub predicted_ns: Option<f64>,
    /// Whether the guard is checked again before it.
    pub rechecked: bool,
}

/// What became of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableReport {
    /// The table.
    pub table: Table,
    /// Its name.
    pub name: String,
    /// How it finds entries.
    pub kind: TableKind,
    /// How many entries it holds, if it was read.
    pub entries: Option<usize>,
    /// Why it was left alone, if it was.
    pub left: Option<String>,
    /// Its lookups, in program order.
    pub sites: Vec<SiteReport>,
}

/// A specialized program.
#[derive(Debug)]
pub struct Specialized {
    /// The program, with the guard in front.
    pub program: Program,
    /// The live data object of eight bytes that stands for the epoch.
    pub epoch: Data,
    /// The live data object of eight bytes that counts packets handed to the original.
    pub fallbacks: Data,
    /// The table that each table of `program` really is: extra ones stand for lookups that stay as they were.
    pub table_of: Vec<Table>,
    /// What became of each table of the original program.
    pub tables: Vec<TableReport>,
    /// What must stay true.
    pub assumptions: Vec<Assumption>,
}

impl Specialized {
    /// Size in bytes of the constant data that the program addresses.
    pub fn memory_bytes(&self) -> u64 {
        let constant = self.program.data.values().filter(|d| d.kind == DataKind::Const);
        constant.map(|d| d.bytes.len() as u64).sum()
    }

    /// Whether anything was specialized at all.
    pub fn is_worthwhile(&self) -> bool {
        !self.assumptions.is_empty()
    }
}

/// Why a program could not be specialized.
#[derive(Debug, Error)]
pub enum SpecializeError {
    /// A snapshot holds what its table cannot hold.
    #[error("the snapshot of table `{table}` is not possible: {source}")]
    Contents {
        /// The table.
        table: String,
        /// What is wrong.
        source: ContentsError,
    },
}

/// A lookup on its way to being replaced.
#[derive(Clone)]
struct Site {
    block: Block,
    index: usize,
    inst: Inst,
    table: Table,
    key: Key,
    result: Value,
    origin: Option<u32>,
}

/// Lookups beyond this many stay as they are: jump threading may multiply them.
const MAX_SITES: usize = 256;

/// Specializes a program.
///
/// # Errors
/// Contents that contradict their table.
pub fn specialize(request: &Request<'_>) -> Result<Specialized, SpecializeError> {
    let mut work = Work::new(request);
    for _ in 0..MAX_SITES {
        let Some(site) = work.next_site() else { break };
        // What an earlier lookup has become matters to this one: let constants and rows come through first.
        if slice::reaches(&work.program, site.key.iter().map(|part| part.value), &work.fresh) {
            work.clean_up();
            continue;
        }
        work.site(&site)?;
    }
    while let Some(site) = work.next_site() {
        work.leave(&site);
    }
    work.clean_up();
    Ok(work.finish())
}

/// Everything about the version in the making.
struct Work<'a> {
    request: &'a Request<'a>,
    program: Program,
    guard: guard::Guard,
    reports: SecondaryMap<Table, Option<TableReport>>,
    /// The stand-in of a table, whose lookups stay.
    original: HashMap<Table, Table>,
    table_of: Vec<Table>,
    rows: HashMap<Table, Data>,
    objects: Vec<(Table, Representation, Vec<Data>)>,
    depends: Vec<Table>,
    /// Results of lookups replaced since the last clean-up.
    fresh: HashSet<Value>,
}

impl<'a> Work<'a> {
    fn new(request: &'a Request<'a>) -> Work<'a> {
        let mut program = request.program.clone();
        let accesses = TableAccesses::new(&program);
        let mut reports: SecondaryMap<Table, Option<TableReport>> = SecondaryMap::new();
        let mut table_of = Vec::new();
        for (table, data) in &program.tables {
            table_of.push(table);
            let written = match &accesses.of(table).verdict {
                runnel_analysis::Verdict::ReadOnly => None,
                runnel_analysis::Verdict::ReadWrite { reason, .. } => Some(reason.to_string()),
            };
            let state = request.tables[table].as_ref();
            let (entries, left) = match (written, state) {
                (_, Some(TableState::Left(why))) => (None, Some(why.clone())),
                (Some(why), _) => (None, Some(why)),
                (None, None) => (None, Some("it was not read".to_string())),
                (None, Some(TableState::Known(contents))) => (Some(contents.entries.len()), None),
            };
            let name = data.name.clone();
            reports[table] =
                Some(TableReport { table, name, kind: data.kind, entries, left, sites: Vec::new() });
        }
        let guard = guard::insert(&mut program, request.epoch);
        Work {
            request,
            program,
            guard,
            reports,
            original: HashMap::new(),
            table_of,
            rows: HashMap::new(),
            objects: Vec::new(),
            depends: Vec::new(),
            fresh: HashSet::new(),
        }
    }

    fn clean_up(&mut self) {
        clean_up(&mut self.program);
        self.fresh.clear();
    }

    fn contents(&self, table: Table) -> Option<&'a Contents> {
        let report = self.reports[table].as_ref()?;
        match &self.request.tables[table] {
            Some(TableState::Known(contents)) if report.left.is_none() => Some(contents),
            _ => None,
        }
    }

    /// The first lookup of a table with known contents.
    fn next_site(&self) -> Option<Site> {
        for &block in &self.program.layout {
            for (index, &inst) in self.program.blocks[block].insts.iter().enumerate() {
                let node = &self.program.insts[inst];
                if let (InstData::Lookup { table, key }, Some(result)) = (&node.data, node.result)
                    && self.contents(*table).is_some()
                {
                    let (table, key, origin) = (*table, key.clone(), node.origin);
                    return Some(Site { block, index, inst, table, key, result, origin });
                }
            }
        }
        None
    }

    fn site(&mut self, site: &Site) -> Result<(), SpecializeError> {
        let Some(contents) = self.contents(site.table) else {
            self.leave(site);
            return Ok(());
        };
        let rechecked = recheck::is_needed(&self.program, &self.guard, site);
        // Behind a recheck the result may be the original's: fields of it are not rows.
        if !rechecked
            && let Some(composed) = compose::plan(&self.program, &site.key, contents, self.request.budget)
        {
            let form = composed.describe();
            self.fresh.insert(compose::apply(&mut self.program, site, composed));
            self.replaced(site, "precomputed".into(), form, None, false);
            return Ok(());
        }
        let facts = SiteFacts::of_key(&self.program, &site.key);
        let choice = choose(contents, &facts, self.request.budget).map_err(|source| {
            let table = self.program.tables[site.table].name.clone();
            SpecializeError::Contents { table, source }
        })?;
        let considered = choice.considered.first();
        let why = considered.map(|c| c.why.clone()).unwrap_or_default();
        let Some(representation) = choice.representation else {
            self.report(site, "original".into(), why, Some(choice.ns), false);
            self.leave(site);
            return Ok(());
        };
        let rows = self.rows_object(site.table, &choice.rows);
        let objects = self.objects(site.table, &representation);
        let standby = rechecked.then(|| self.stand_in(site.table));
        let plan = probe::Probe {
            representation: &representation,
            objects: &objects,
            rows: &choice.rows,
            data: rows,
        };
        self.fresh.insert(probe::apply(&mut self.program, &self.guard, site, &plan, standby));
        let name = representation.name().to_string();
        self.replaced(site, name, why, Some(choice.ns), rechecked);
        Ok(())
    }

    fn replaced(&mut self, site: &Site, form: String, why: String, ns: Option<f64>, rechecked: bool) {
        if !self.depends.contains(&site.table) {
            self.depends.push(site.table);
        }
        self.report(site, form, why, ns, rechecked);
    }

    fn report(&mut self, site: &Site, form: String, why: String, predicted_ns: Option<f64>, rechecked: bool) {
        if let Some(report) = &mut self.reports[site.table] {
            report.sites.push(SiteReport { origin: site.origin, form, why, predicted_ns, rechecked });
        }
    }

    /// Makes a lookup one that stays.
    fn leave(&mut self, site: &Site) {
        let original = self.stand_in(site.table);
        if let InstData::Lookup { table, .. } = &mut self.program.insts[site.inst].data {
            *table = original;
        }
    }

    fn stand_in(&mut self, table: Table) -> Table {
        if let Some(&known) = self.original.get(&table) {
            return known;
        }
        let mut data = self.program.tables[table].clone();
        data.name.push_str(" (original)");
        let made = self.program.tables.push(data);
        self.table_of.push(table);
        self.original.insert(table, made);
        made
    }

    fn rows_object(&mut self, table: Table, rows: &Rows) -> Data {
        if let Some(&known) = self.rows.get(&table) {
            return known;
        }
        let name = format!("{}.rows", self.program.tables[table].name);
        let made = self.program.data.push(rows.object(name));
        self.rows.insert(table, made);
        made
    }

    fn objects(&mut self, table: Table, representation: &Representation) -> Vec<Data> {
        let known = self.objects.iter().find(|(t, r, _)| *t == table && r == representation);
        if let Some((_, _, data)) = known {
            return data.clone();
        }
        let count = self.objects.iter().filter(|(t, ..)| *t == table).count();
        let mut name = self.program.tables[table].name.clone();
        if count > 0 {
            name.push_str(&format!("#{count}"));
        }
        let data = representation.install(&mut self.program, &name);
        self.objects.push((table, representation.clone(), data.clone()));
        data
    }

    fn finish(self) -> Specialized {
        Specialized {
            epoch: self.guard.epoch_data,
            fallbacks: self.guard.fallbacks,
            table_of: self.table_of,
            tables: self.request.program.tables.keys().filter_map(|t| self.reports[t].clone()).collect(),
            assumptions: self.depends.into_iter().map(Assumption::Unchanged).collect(),
            program: self.program,
        }
    }
}
