//! What lookups are predicted to cost, in nanoseconds: all constants of the model in one place.
//!
//! The figures were measured on a 2.5 GHz Cascade Lake virtual machine with Linux 6.18, where not said otherwise.
//! They are predictions, to be replaced by what a host measures of itself; only their ratios matter here. Each
//! prediction covers finding the row and the first access to it.
//!
//! Every load is counted at the latency of a dependent load from memory of the object's size. That is pessimistic:
//! the lookups of one packet overlap with the next one's, and traffic prefers some entries. It is so for the
//! original tables too, and what is compared is what counts.

use runnel_ir::TableKind;

/// One simple operation: a cycle at 2.5 GHz.
pub(crate) const OPERATION: f64 = 0.4;
/// One multiplication: three cycles.
pub(crate) const MULTIPLICATION: f64 = 1.2;
/// A branch with its comparison, predicted.
pub(crate) const BRANCH: f64 = 1.0;
/// What one halving of the entries costs in a decision between them: a misprediction costs 5, and about every
/// third goes wrong under mixed traffic.
pub(crate) const DECISION: f64 = 1.5;

/// Latency of a dependent load by the size of the memory it may touch: measured, except for the first line, which
/// is the first-level cache's latency of five cycles.
const LOADS: [(f64, f64); 6] = [
    (4096.0, 2.0),
    (32.0 * 1024.0, 4.3),
    (1024.0 * 1024.0, 11.0),
    (4096.0 * 1024.0, 28.0),
    (16384.0 * 1024.0, 102.0),
    (65536.0 * 1024.0, 113.0),
];

/// Lookup in a kernel hash table apart from the memory that it touches: 28 to 31 were measured with 4,096 entries.
const HASH_TABLE: f64 = 20.0;
/// Bytes of a hash table's entry besides key and value (`struct htab_elem`).
const HASH_ENTRY: u64 = 48;
/// Lookup in a kernel array, which is inlined: 1.0 to 1.9 measured.
const ARRAY: f64 = 2.0;
/// Lookup in a kernel LPM trie apart from the nodes that it visits.
const TRIE: f64 = 10.0;
/// Bytes of a trie's node besides address and value (`struct lpm_trie_node`, and the allocator's rounding).
const TRIE_NODE: u64 = 48;

/// A load from an object of `bytes` bytes: between the measured sizes, linear in the logarithm of the size.
pub(crate) fn load(bytes: u64) -> f64 {
    let bytes = bytes as f64;
    let Some(above) = LOADS.iter().position(|(size, _)| bytes <= *size) else {
        return LOADS[LOADS.len() - 1].1;
    };
    if above == 0 {
        return LOADS[0].1;
    }
    let ((s0, t0), (s1, t1)) = (LOADS[above - 1], LOADS[above]);
    t0 + (t1 - t0) * (bytes / s0).ln() / (s1 / s0).ln()
}

/// The address of an entry in an object, and the load of it.
pub(crate) fn indexed_load(bytes: u64) -> f64 {
    2.0 * OPERATION + load(bytes)
}

/// Making `count` words from the parts of a key.
pub(crate) fn words(count: usize) -> f64 {
    count as f64 * 2.0 * OPERATION
}

/// A lookup in the table as it is: with so many entries, and sizes of key and value in bytes.
pub(crate) fn original(kind: TableKind, entries: usize, key_size: u32, value_size: u32) -> f64 {
    let entries = entries as u64;
    let round = |size: u32| u64::from(size).next_multiple_of(8);
    match kind {
        TableKind::Exact => HASH_TABLE + load(entries * (HASH_ENTRY + round(key_size) + round(value_size))),
        TableKind::Index => ARRAY + load(entries * round(value_size)),
        TableKind::Prefix => {
            // A trie has about one branching node for each prefix, and a path of about log2 of them.
            let memory = 2 * entries * (TRIE_NODE + round(key_size.saturating_add(value_size)));
            TRIE + (entries as f64).max(1.0).log2() * load(memory)
        }
        TableKind::Opaque => f64::INFINITY,
    }
}
