//! Large tables: they are built whole or refused within bounds, and answer as the definition says. Times are
//! printed (`--nocapture`), not judged.

mod common;

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use common::{Runner, check_bounds, entry, full_length, parts, prefix, probe_program};
use runnel_ir::TableKind;
use runnel_tables::{
    Budget, Candidates, Contents, Entry, Refusal, Representation, RowId, SiteFacts, candidates,
};

/// A sequence of numbers that is the same in every run: a counter, scrambled.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        let mixed = self.0.wrapping_mul(0xd134_2543_de82_ef95);
        (mixed ^ mixed >> 29).wrapping_mul(0xaf25_1af3_b0f0_25b5).rotate_left(32)
    }
}

fn build(what: &str, contents: &Contents, facts: &SiteFacts, budget: Budget) -> Candidates {
    let start = Instant::now();
    let found = candidates(contents, facts, budget).unwrap();
    println!("{what}: {} entries in {:?}", contents.entries.len(), start.elapsed());
    for c in &found.candidates {
        println!(
            "  {} {:.1} ns {} bytes: {}",
            c.representation.name(),
            c.ns,
            c.bytes,
            c.representation.why()
        );
    }
    found
}

fn routes(count: usize, key_size: u32, hops: u32, length: impl Fn(u64) -> u32) -> Contents {
    let mut numbers = Numbers(1);
    let mut seen = HashSet::new();
    let mut entries: Vec<Entry> = Vec::new();
    while entries.len() < count {
        let n = numbers.next();
        let bytes: Vec<u8> =
            (0..2).flat_map(|_| numbers.next().to_be_bytes()).take(key_size as usize - 4).collect();
        let length = length(n);
        // Longer prefixes cluster, as they do in the Internet's table.
        let mut address = bytes;
        address[0] = address[0] % 200 + 1;
        address[1] %= 100;
        let key = prefix(length, &address);
        if seen.insert((length, masked(&address, length))) {
            entries.push(entry(&key, &((n >> 20) as u32 % hops).to_le_bytes()));
        }
    }
    Contents { kind: TableKind::Prefix, key_size, value_size: 4, max_entries: count as u32, entries }
}

fn masked(address: &[u8], length: u32) -> u128 {
    let mut bytes = [0; 16];
    bytes[..address.len()].copy_from_slice(address);
    u128::from_be_bytes(bytes) & u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// The value that the longest prefix gives: one hash table a length, from the longest down.
fn longest_match<'c>(tables: &[HashMap<u128, &'c [u8]>], address: &[u8]) -> Option<&'c [u8]> {
    let lengths = (0..tables.len() as u32).rev();
    lengths.filter_map(|n| tables[n as usize].get(&masked(address, n))).next().copied()
}

fn check_routes(contents: &Contents, found: &Candidates) {
    let bits = (contents.key_size - 4) * 8;
    let mut tables = vec![HashMap::new(); bits as usize + 1];
    for e in &contents.entries {
        let length = u32::from_le_bytes(e.key[..4].try_into().unwrap());
        tables[length as usize].insert(masked(&e.key[4..], length), &*e.value);
    }
    let facts = full_length(contents);
    let program = probe_program(&found.candidates[0].representation, &facts, &parts(contents.key_size, 2));
    check_bounds(&program);
    let mut runner = Runner::new(&program);
    let mut numbers = Numbers(2);
    for i in 0..20_000usize {
        let mut address = contents.entries[i * 7919 % contents.entries.len()].key[4..].to_vec();
        // Some as they are, some near, some far.
        let at = numbers.next() as usize % address.len();
        address[at] ^= if i % 3 == 0 { 0 } else { numbers.next() as u8 };
        let key = prefix(bits, &address);
        let row = found.candidates[0].representation.lookup(&key);
        let says = (row != RowId::MISS).then(|| &*found.rows.rows[row.0 as usize]);
        assert_eq!(says, longest_match(&tables, &address), "{address:?}");
        assert_eq!(runner.run(&key), u64::from(row.0));
    }
}

#[test]
fn six_hundred_thousand_routes() {
    // The Internet's table: more than half of the prefixes have 24 bits, few have more.
    let length = |n: u64| match n % 100 {
        0 => 25 + (n >> 8) as u32 % 8,
        1..60 => 24,
        _ => 17 + (n >> 8) as u32 % 7,
    };
    let contents = routes(600_000, 8, 64, length);
    let found = build("IPv4", &contents, &full_length(&contents), Budget::default());
    assert!(matches!(found.candidates[0].representation, Representation::Levels(_)));
    check_routes(&contents, &found);
}

#[test]
fn a_campus_router() {
    let contents = routes(2_600, 8, 64, |n| if n % 5 < 3 { 32 } else { 8 + (n >> 8) as u32 % 22 });
    let found = build("campus", &contents, &full_length(&contents), Budget::default());
    check_routes(&contents, &found);
}

#[test]
fn more_next_hops_than_16_bits_hold() {
    let contents = routes(60_000, 8, 50_000, |n| 17 + (n >> 8) as u32 % 8);
    let found = build("next hops", &contents, &full_length(&contents), Budget::default());
    assert!(found.rows.rows.len() > 1 << 15);
    assert!(found.candidates[0].representation.why().contains("entries of 32 bits"));
    check_routes(&contents, &found);
}

#[test]
fn a_hundred_thousand_keys_of_16_bytes() {
    let mut numbers = Numbers(3);
    let mut keys = HashSet::new();
    while keys.len() < 100_000 {
        // Flows between few hosts: addresses in two /16s, ports, padding.
        let (a, b) = (numbers.next(), numbers.next());
        let mut key = [10, 1, a as u8, (a >> 8) as u8, 10, 2, 0, (a >> 16) as u8, 0, 80, 0, 0, 6, 0, 0, 0];
        key[10..12].copy_from_slice(&(b as u16).to_be_bytes());
        keys.insert(key);
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable();
    let entries = keys.iter().enumerate().map(|(i, k)| entry(k, &(i as u64).to_le_bytes())).collect();
    let contents =
        Contents { kind: TableKind::Exact, key_size: 16, value_size: 8, max_entries: 1 << 17, entries };
    let found = build("flows", &contents, &SiteFacts::default(), Budget::default());
    let [candidate] = found.candidates.as_slice() else { panic!("only the hash applies") };
    assert!(matches!(candidate.representation, Representation::Hash(_)));
    let program = probe_program(&candidate.representation, &SiteFacts::default(), &parts(16, 3));
    check_bounds(&program);
    let mut runner = Runner::new(&program);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(candidate.representation.lookup(key), RowId(i as u32 + 1));
        let mut other = *key;
        other[i % 16] ^= 1 << (i % 8);
        let row = keys.binary_search(&other).map_or(0, |at| at as u32 + 1);
        assert_eq!(candidate.representation.lookup(&other), RowId(row));
        if i % 50 == 0 {
            assert_eq!(runner.run(key), i as u64 + 1);
            assert_eq!(runner.run(&other), u64::from(row));
        }
    }
}

#[test]
fn what_exceeds_the_budget_is_refused_early() {
    let contents = routes(200_000, 20, 64, |_| 128);
    let found = build("hosts", &contents, &full_length(&contents), Budget { memory_bytes: 32 << 20 });
    let levels = found.refused.iter().find(|(name, _)| *name == "multi-level index");
    assert!(matches!(levels, Some((_, Refusal::TooLarge { .. }))), "{levels:?}");
    let [candidate] = found.candidates.as_slice() else { panic!("one length: exact matching applies") };
    assert!(matches!(candidate.representation, Representation::Hash(_)));
    check_routes(&contents, &found);

    let none = build("nothing", &contents, &full_length(&contents), Budget { memory_bytes: 1 << 20 });
    assert!(none.candidates.is_empty());
}

#[test]
fn an_array_of_a_million_entries() {
    let entries = (0..1_000_000u32)
        .map(|i| entry(&i.to_le_bytes(), &(i % 1000 * (i % 1000) % 7).to_le_bytes()))
        .collect();
    let contents =
        Contents { kind: TableKind::Index, key_size: 4, value_size: 4, max_entries: 1_000_000, entries };
    let found = build("array", &contents, &SiteFacts::default(), Budget::default());
    let representation = &found.candidates[0].representation;
    assert_eq!(found.rows.rows.len(), 5, "squares modulo 7 have four values");
    for i in (0..1_000_000u32).step_by(997) {
        let row = representation.lookup(&i.to_le_bytes());
        assert_eq!(*found.rows.rows[row.0 as usize], (i % 1000 * (i % 1000) % 7).to_le_bytes());
    }
    assert_eq!(representation.lookup(&1_000_000u32.to_le_bytes()), RowId::MISS);
}
