//! Comparisons with the keys themselves: a chain for a few, a balanced tree for some more.
//!
//! Exact keys are split by comparing one word at a time, and compared in full at the end. Prefixes are tried
//! from the longest to the shortest. The row ids are constants in the code; leaves of equal outcome are one block,
//! because the verifier walks what follows once for each constant that it can tell apart.

use runnel_ir::{Block, Builder, Cond, Data, Key, Target, Value};
use smallvec::SmallVec;

use super::{Probe, Refusal, count_of, jump_to_row};
use crate::cost;
use crate::keyparts::{WordValues, Words, cover, emit_mask, values_of};
use crate::prepare::{Matching, Prefix, prefix_key, prefix_key_masks};
use crate::rows::RowId;

/// Most entries of an exact tree: each is code of its own, and code has to be verified and cached.
const MAX_ENTRIES: usize = 16;
/// Most entries that are compared one after the other.
const MAX_CHAIN: usize = 4;
/// Most words of a key in a tree.
const MAX_WORDS: usize = 2;
/// Most prefixes, not counting a default route.
const MAX_PREFIXES: usize = 8;

/// The bits `mask` of a word are `value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Check {
    word: usize,
    mask: u64,
    value: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    /// The outcome.
    Row(RowId),
    /// All checks hold: this row.
    Test { checks: SmallVec<[Check; 2]>, row: RowId, other: Box<Node> },
    /// Whether a word is below the pivot.
    Split { word: usize, pivot: u64, below: Box<Node>, rest: Box<Node> },
}

/// A decision tree over the words of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct CompareTree {
    words: Words,
    root: Node,
    entries: usize,
    always_hits: bool,
    ns: f64,
    prefixes: bool,
}

type Item = (WordValues, RowId);

impl CompareTree {
    /// A chain or tree of exact comparisons.
    pub(crate) fn exact(matching: &Matching) -> Result<CompareTree, Refusal> {
        let (words, entries) = (&matching.words, matching.items.len());
        if entries > MAX_ENTRIES {
            return Err(Refusal::TooManyEntries { entries, limit: MAX_ENTRIES });
        }
        if words.len() > MAX_WORDS {
            return Err(Refusal::KeyTooLong { bytes: words.len() * 8, limit: MAX_WORDS * 8 });
        }
        let otherwise = matching.otherwise;
        let mut items: Vec<&Item> = matching.items.iter().collect();
        items.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let root = if entries <= MAX_CHAIN {
            chain(words, &items, otherwise)
        } else {
            balanced(words, items, otherwise)
        };
        let checks = words.len() as f64 * cost::BRANCH;
        let tests = if entries <= MAX_CHAIN { (entries as f64 + 1.0) / 2.0 } else { 1.0 };
        let ns = cost::words(words.len()) + decisions(entries) + tests * checks;
        let always_hits = otherwise != RowId::MISS;
        Ok(CompareTree { words: words.clone(), root, entries, always_hits, ns, prefixes: false })
    }

    /// A chain of masked comparisons, the longest prefix first.
    pub(crate) fn prefixes(key_size: u32, prefixes: &[Prefix]) -> Result<CompareTree, Refusal> {
        let (default, longer): (Vec<&Prefix>, Vec<&Prefix>) = prefixes.iter().partition(|p| p.length == 0);
        let entries = longer.len();
        if entries > MAX_PREFIXES {
            return Err(Refusal::TooManyEntries { entries, limit: MAX_PREFIXES });
        }
        let longest = longer.iter().map(|p| p.length).max().unwrap_or(0);
        let words = cover(&prefix_key_masks(key_size, longest));
        let otherwise = default.first().map_or(RowId::MISS, |p| p.row);
        let mut order = longer;
        order.sort_by_key(|p| p.length);
        let root = order.iter().fold(Node::Row(otherwise), |other, p| {
            let masks = values_of(&words, &prefix_key_masks(key_size, p.length));
            let values = values_of(&words, &prefix_key(key_size, p.address));
            let checks = masks.iter().zip(values).enumerate();
            let checks = checks.filter(|(_, (mask, _))| **mask != 0);
            let checks = checks.map(|(word, (&mask, value))| Check { word, mask, value }).collect();
            Node::Test { checks, row: p.row, other: Box::new(other) }
        });
        let tests = (entries as f64 + 1.0) / 2.0;
        let ns = cost::words(words.len())
            + decisions(entries)
            + tests * words.len() as f64 * (cost::BRANCH + cost::OPERATION);
        let always_hits = otherwise != RowId::MISS;
        Ok(CompareTree { words, root, entries, always_hits, ns, prefixes: true })
    }
}

/// What mispredictions cost in choosing between so many.
fn decisions(entries: usize) -> f64 {
    (entries as f64).max(1.0).log2() * cost::DECISION
}

/// Tests one item after the other.
fn chain(words: &Words, items: &[&Item], otherwise: RowId) -> Node {
    items.iter().rev().fold(Node::Row(otherwise), |other, (values, row)| {
        let checks = words.iter().zip(values).enumerate();
        let checks = checks.map(|(word, (w, &value))| Check { word, mask: w.mask, value }).collect();
        Node::Test { checks, row: *row, other: Box::new(other) }
    })
}

/// Halves the items until one is left. Recursive, over at most [`MAX_ENTRIES`] items.
fn balanced(words: &Words, mut items: Vec<&Item>, otherwise: RowId) -> Node {
    // The cut nearest to the middle, of any word: cuts exist as long as two keys differ.
    let cuts = (0..words.len())
        .flat_map(|word| items.iter().map(move |item| item.0[word]).map(move |pivot| (word, pivot)));
    let sized = cuts.map(|(word, pivot)| {
        let below = items.iter().filter(|item| item.0[word] < pivot).count();
        (below.abs_diff(items.len() / 2), word, pivot, below)
    });
    match sized.filter(|cut| cut.3 > 0).min() {
        Some((_, word, pivot, _)) if items.len() > 1 => {
            let rest = items.extract_if(.., |item| item.0[word] >= pivot).collect();
            Node::Split {
                word,
                pivot,
                below: Box::new(balanced(words, items, otherwise)),
                rest: Box::new(balanced(words, rest, otherwise)),
            }
        }
        _ => chain(words, &items, otherwise),
    }
}

/// Writes the nodes of a tree, each into a block of its own.
struct Writer<'b, 'p, 't> {
    b: &'b mut Builder<'p>,
    words: &'t Words,
    values: SmallVec<[Value; 4]>,
    pending: Vec<(&'t Node, Block)>,
    leaves: Vec<(RowId, Block)>,
}

impl<'t> Writer<'_, '_, 't> {
    /// The block that gives `row`.
    fn leaf(&mut self, row: RowId) -> Target {
        let known = self.leaves.iter().find(|(r, _)| *r == row).map(|(_, block)| *block);
        let block = known.unwrap_or_else(|| {
            let block = self.b.create_block();
            self.leaves.push((row, block));
            block
        });
        Target::to(block)
    }

    /// The block of `node`, to be written later.
    fn block(&mut self, node: &'t Node) -> Target {
        if let Node::Row(row) = node {
            return self.leaf(*row);
        }
        let block = self.b.create_block();
        self.pending.push((node, block));
        Target::to(block)
    }

    /// Writes `node` at the end of the current block.
    fn node(&mut self, node: &'t Node, done: Block) {
        match node {
            Node::Row(row) => jump_to_row(self.b, done, *row),
            Node::Test { checks, row, other } => {
                let leaf = self.leaf(*row);
                let other = self.block(other);
                self.checks(checks, &leaf, &other);
            }
            Node::Split { word, pivot, below, rest } => {
                let (below, rest) = (self.block(below), self.block(rest));
                let pivot = self.b.iconst(*pivot);
                let width = self.words[*word].width();
                self.b.branch(Cond::Ult, width, self.values[*word], pivot, below, rest);
            }
        }
    }

    fn checks(&mut self, checks: &[Check], then: &Target, other: &Target) {
        for (i, check) in checks.iter().enumerate() {
            let word = self.words[check.word];
            let found = match self.values[check.word] {
                value if check.mask == word.mask => value,
                value => emit_mask(self.b, value, check.mask),
            };
            let value = self.b.iconst(check.value);
            let more = i + 1 < checks.len();
            let next = if more { Target::to(self.b.create_block()) } else { then.clone() };
            let block = next.block;
            self.b.branch(Cond::Eq, word.width(), found, value, next, other.clone());
            if more {
                self.b.switch_to(block);
            }
        }
    }
}

impl Probe for CompareTree {
    fn lookup(&self, key: &[u8]) -> RowId {
        let values = values_of(&self.words, key);
        let mut node = &self.root;
        loop {
            node = match node {
                Node::Row(row) => return *row,
                Node::Test { checks, row, other } => {
                    if checks.iter().all(|c| values[c.word] & c.mask == c.value) {
                        return *row;
                    }
                    other
                }
                Node::Split { word, pivot, below, rest } => {
                    if values[*word] < *pivot {
                        below
                    } else {
                        rest
                    }
                }
            };
        }
    }

    fn always_hits(&self) -> bool {
        self.always_hits
    }

    fn objects(&self) -> Vec<(&'static str, &[u8])> {
        Vec::new()
    }

    fn emit(&self, b: &mut Builder<'_>, _: &[Data], key: &Key, done: Block) {
        let values = self.words.iter().map(|w| w.emit(b, key)).collect();
        let mut writer = Writer { b, words: &self.words, values, pending: Vec::new(), leaves: Vec::new() };
        writer.node(&self.root, done);
        while let Some((node, block)) = writer.pending.pop() {
            writer.b.switch_to(block);
            writer.node(node, done);
        }
        for (row, block) in writer.leaves {
            writer.b.switch_to(block);
            jump_to_row(writer.b, done, row);
        }
    }

    fn probe_ns(&self) -> f64 {
        self.ns
    }

    fn name(&self) -> &'static str {
        if self.entries <= MAX_CHAIN || self.prefixes { "compare chain" } else { "compare tree" }
    }

    fn why(&self) -> String {
        if self.prefixes {
            format!("{}, compared in the code, longest first", count_of(self.entries, "prefix"))
        } else {
            format!("{}, compared in the code", count_of(self.entries, "key"))
        }
    }
}
