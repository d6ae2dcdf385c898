//! What lookups are predicted to cost, in nanoseconds: all constants of the model in one place.
//!
//! The figures were measured on a 2.5 GHz Cascade Lake virtual machine with Linux 6.18, where not said otherwise.
//! They are predictions, to be replaced by what a host measures of itself; only their ratios matter here. Each
//! prediction covers finding the row and the first access to it.
//!
//! A load counts halfway between two measured figures: the latency of a load whose address the load before it gave,
//! and the time of one among independent loads. Within a lookup loads wait for each other, but the processor
//! begins the next packet's meanwhile. The mean fits a hand-written trial on a router: 200 to 227 ns a packet as
//! compiled, 51 to 65 with its tables in array memory, 32 of each for the replay.

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

/// A random load by the size in bytes of the memory that it may touch: dependent, and independent. Measured, except
/// for the first line, which is the first-level cache's latency of five cycles, and half a cycle.
const LOADS: [(u64, f64, f64); 6] = [
    (4 << 10, 2.0, 0.2),
    (32 << 10, 4.3, 1.3),
    (1 << 20, 11.0, 1.7),
    (4 << 20, 28.0, 2.3),
    (16 << 20, 102.0, 8.0),
    (64 << 20, 113.0, 13.0),
];

/// Lookup in a kernel hash table apart from the memory that it touches: 28 to 31 were measured with 4,096 entries
/// of 16-byte keys.
const HASH_TABLE: f64 = 20.0;
/// Bytes of a hash table's bucket, of which there are as many as entries or more (`struct bucket`).
const HASH_BUCKET: u64 = 16;
/// Entries of a bucket that are looked at until the right one is found, on average.
const HASH_CHAIN: f64 = 1.25;
/// Bytes of a hash table's entry besides key and value (`struct htab_elem`).
const HASH_ENTRY: u64 = 48;
/// Lookup in a kernel array, which is inlined: 1.0 to 1.9 measured.
const ARRAY: f64 = 2.0;
/// Lookup in a kernel LPM trie apart from the nodes that it visits: 88 to 100 were measured with 2,592 routes.
const TRIE: f64 = 10.0;
/// Comparing the address with one node's.
const TRIE_VISIT: f64 = 3.0;
/// Bytes of a trie's node besides address and value (`struct lpm_trie_node`, and the allocator's rounding).
const TRIE_NODE: u64 = 48;

/// A load from an object of `bytes` bytes: between the measured sizes, linear in the logarithm of the size.
pub(crate) fn load(bytes: u64) -> f64 {
    let mean = |i: usize| (LOADS[i].1 + LOADS[i].2) / 2.0;
    match LOADS.iter().position(|(size, ..)| bytes <= *size) {
        None => mean(LOADS.len() - 1),
        Some(0) => mean(0),
        Some(above) => {
            let (low, high) = (LOADS[above - 1].0 as f64, LOADS[above].0 as f64);
            let share = (bytes as f64 / low).ln() / (high / low).ln();
            mean(above - 1) + (mean(above) - mean(above - 1)) * share
        }
    }
}

/// The address of an entry in an object, and the load of it.
pub(crate) fn indexed_load(bytes: u64) -> f64 {
    2.0 * OPERATION + load(bytes)
}

/// The first access to a row, of which only some bytes differ between rows: the others are constants in the code.
pub(crate) fn row_access(rows_bytes: u64, varying: f64) -> f64 {
    indexed_load(rows_bytes) * varying
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
        TableKind::Exact => {
            let buckets = load(entries.next_power_of_two() * HASH_BUCKET);
            let elements = load(entries * (HASH_ENTRY + round(key_size) + round(value_size)));
            HASH_TABLE + buckets + HASH_CHAIN * elements
        }
        TableKind::Index => ARRAY + load(entries * round(value_size)),
        TableKind::Prefix => {
            // A trie has about one branching node for each prefix, and a path of about log2 of them.
            let memory = 2 * entries * (TRIE_NODE + round(key_size.saturating_add(value_size)));
            TRIE + (entries as f64).max(1.0).log2() * (TRIE_VISIT + load(memory))
        }
        TableKind::Opaque => f64::INFINITY,
    }
}
