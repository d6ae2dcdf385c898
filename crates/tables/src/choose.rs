//! Which representations a table can have at a site, and which of them is best.
//!
//! The table as it is always competes: where nothing is predicted to be faster, it stays.

use runnel_ir::TableKind;

use crate::contents::{Contents, ContentsError, SiteFacts};
use crate::cost;
use crate::prepare::{Matching, Prepared, single_length};
use crate::representation::{
    CompareTree, Constant, DirectIndex, LevelIndex, PerfectHash, Refusal, Representation, within,
};
use crate::rows::{RowId, Rows};

/// How much a representation may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Memory of one table's objects, rows included, in bytes.
    pub memory_bytes: u64,
}

impl Default for Budget {
    /// 64 MiB: creating and filling so much takes the kernel about 50 ms.
    fn default() -> Budget {
        Budget { memory_bytes: 64 << 20 }
    }
}

/// A representation that applies.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The representation.
    pub representation: Representation,
    /// Predicted time of a lookup with the first access to its row, in nanoseconds.
    pub ns: f64,
    /// Size of its objects and the rows in bytes.
    pub bytes: u64,
}

/// All that apply, and why the others do not.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidates {
    /// The values, by the row ids that all candidates give.
    pub rows: Rows,
    /// Those that apply, the fastest first.
    pub candidates: Vec<Candidate>,
    /// Those that do not, by name.
    pub refused: Vec<(&'static str, Refusal)>,
    /// Predicted time of a lookup in the table as it is, in nanoseconds.
    pub original_ns: f64,
}

/// One way that was thought of, for people.
#[derive(Clone, PartialEq, Debug)]
pub struct Considered {
    /// What it is called.
    pub name: &'static str,
    /// Predicted time of a lookup in nanoseconds, if it applies.
    pub ns: Option<f64>,
    /// Size in bytes, if it applies.
    pub bytes: Option<u64>,
    /// What it consists of, and why it was chosen or was not.
    pub why: String,
}

/// The best way to look up in a table at a site.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The representation; none where the table's own lookup should stay.
    pub representation: Option<Representation>,
    /// The values. They depend on the contents alone, so that all sites of a table share them.
    pub rows: Rows,
    /// Predicted time of a lookup, as chosen, in nanoseconds.
    pub ns: f64,
    /// Everything that was considered, the choice first.
    pub considered: Vec<Considered>,
}

const ORIGINAL: &str = "original";
const CONSTANT: &str = "constant";
const COMPARE: &str = "compare tree";
const DIRECT: &str = "direct index";
const HASH: &str = "perfect hash";
const LEVELS: &str = "multi-level index";

type Attempt = (&'static str, Result<Representation, Refusal>);
type Attempts = Vec<Attempt>;

/// Builds every representation that applies to `contents` at a site.
///
/// # Errors
/// Contents that no table of that kind can have.
pub fn candidates(
    contents: &Contents,
    facts: &SiteFacts,
    budget: Budget,
) -> Result<Candidates, ContentsError> {
    contents.check()?;
    let original_ns =
        cost::original(contents.kind, contents.entries.len(), contents.key_size, contents.value_size);
    let (rows, attempts) = match Prepared::new(contents) {
        Ok(prepared) => {
            let attempts = attempts(&prepared, facts, budget.memory_bytes);
            (prepared.rows, attempts)
        }
        Err(refusal) => (Rows { stride: 8, rows: vec![Box::default()] }, vec![("any", Err(refusal))]),
    };
    let access = cost::row_access(rows.memory_bytes(), rows.varying());
    let mut made = Candidates { candidates: Vec::new(), refused: Vec::new(), original_ns, rows };
    for (name, attempt) in attempts {
        let measured = attempt.and_then(|representation| {
            let bytes = representation.memory_bytes() + made.rows.memory_bytes();
            within(bytes, budget.memory_bytes)?;
            Ok(Candidate { ns: representation.probe_ns() + access, bytes, representation })
        });
        match measured {
            Ok(candidate) => made.candidates.push(candidate),
            Err(refusal) => made.refused.push((name, refusal)),
        }
    }
    // The sort is stable: of equally fast and large ones the simpler, which was tried first, comes first.
    made.candidates.sort_by(|a, b| a.ns.total_cmp(&b.ns).then(a.bytes.cmp(&b.bytes)));
    Ok(made)
}

fn attempts(prepared: &Prepared<'_>, facts: &SiteFacts, budget: u64) -> Attempts {
    let contents = prepared.contents;
    if facts.values_written {
        return vec![("any", Err(Refusal::ValuesWritten))];
    }
    let constant = |row| vec![(CONSTANT, Ok(Representation::Constant(Constant { row })))];
    if let Some(key) = facts.whole_key(contents.key_size) {
        let found = contents.find(&key);
        let row = found.and_then(|e| prepared.keyed.iter().find(|k| *k.key == *e.key));
        return constant(row.map_or(RowId::MISS, |k| k.row));
    }
    if prepared.keyed.is_empty() {
        return constant(RowId::MISS);
    }
    let mut all = vec![(CONSTANT, Err(Refusal::SeveralOutcomes))];
    if contents.kind != TableKind::Prefix {
        let matching = prepared.exact(facts);
        if matching.items.is_empty() {
            return constant(RowId::MISS);
        }
        match contents.kind {
            // Consecutive indices are as dense as can be: nothing else comes close.
            TableKind::Index => all.push(direct(&matching, budget)),
            _ => all.extend(exact_attempts(&matching, budget)),
        }
        return all;
    }
    if !is_full_length(contents, facts) {
        let bits = contents.address_bits();
        return vec![("any", Err(Refusal::QueryLength { bits }))];
    }
    let prefixes = prepared.prefixes();
    let first = prefixes[0];
    // A default route sorts first.
    if first.length == 0 && prefixes.iter().all(|p| p.row == first.row) {
        return constant(first.row);
    }
    all.push((COMPARE, CompareTree::prefixes(contents.key_size, &prefixes).map(Representation::Compare)));
    match single_length(contents.key_size, &prefixes) {
        Ok(matching) => all.extend(exact_attempts(&matching, budget)),
        Err(refusal) => all.push((HASH, Err(refusal))),
    }
    let levels = LevelIndex::new(contents.address_bits(), &prefixes, budget);
    all.push((LEVELS, levels.map(Representation::Levels)));
    all
}

fn exact_attempts(matching: &Matching, budget: u64) -> Attempts {
    vec![
        (COMPARE, CompareTree::exact(matching).map(Representation::Compare)),
        direct(matching, budget),
        (HASH, PerfectHash::new(matching, budget).map(Representation::Hash)),
    ]
}

fn direct(matching: &Matching, budget: u64) -> Attempt {
    (DIRECT, DirectIndex::new(matching, budget).map(Representation::Direct))
}

/// Whether a site always asks for the longest prefix there is.
fn is_full_length(contents: &Contents, facts: &SiteFacts) -> bool {
    let wanted = contents.address_bits().to_le_bytes();
    wanted.iter().enumerate().all(|(i, &byte)| facts.byte(i) == Some(byte))
}

/// Chooses the representation of `contents` that is predicted to be fastest at a site, if any is faster than the
/// table as it is.
///
/// # Errors
/// Contents that no table of that kind can have.
pub fn choose(contents: &Contents, facts: &SiteFacts, budget: Budget) -> Result<Choice, ContentsError> {
    let Candidates { rows, candidates, refused, original_ns } = candidates(contents, facts, budget)?;
    let mut considered: Vec<Considered> = candidates
        .iter()
        .map(|c| Considered {
            name: c.representation.name(),
            ns: Some(c.ns),
            bytes: Some(c.bytes),
            why: c.representation.why(),
        })
        .collect();
    let faster = candidates.iter().take_while(|c| c.ns < original_ns).count();
    let original = Considered {
        name: ORIGINAL,
        ns: Some(original_ns).filter(|ns| ns.is_finite()),
        bytes: Some(0),
        why: "the table as it is".into(),
    };
    considered.insert(faster, original);
    let reasons =
        |(name, refusal): (_, Refusal)| Considered { name, ns: None, bytes: None, why: refusal.to_string() };
    considered.extend(refused.into_iter().map(reasons));
    let winner = candidates.into_iter().next().filter(|_| faster > 0);
    let ns = winner.as_ref().map_or(original_ns, |w| w.ns);
    Ok(Choice { representation: winner.map(|w| w.representation), rows, ns, considered })
}
