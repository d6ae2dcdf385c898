//! Tables against models that are as plain as can be.

use std::collections::BTreeMap;

use expect_test::expect;
use proptest::prelude::*;
use runnel_interp::{Ended, Tables, errno};
use runnel_ir::{EntityRef, Program, Table, parse_program};

use crate::Bench;

fn t0() -> Table {
    Table::new(0)
}

fn program(table: &str) -> Program {
    parse_program(&format!("program \"p\" {{\ntable t0 \"t\" {table}\nblock0(v0):\nreturn v0\n}}")).unwrap()
}

/// Something done to a table.
#[derive(Clone, Debug)]
enum Step {
    Lookup(Vec<u8>),
    Update(Vec<u8>, u16, u64),
    Delete(Vec<u8>),
    Add(Vec<u8>),
}

fn steps(key: impl Strategy<Value = Vec<u8>> + Clone + 'static) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        key.clone().prop_map(Step::Lookup),
        (key.clone(), any::<u16>(), 0_u64..4).prop_map(|(k, v, f)| Step::Update(k, v, f)),
        key.clone().prop_map(Step::Delete),
        key.prop_map(Step::Add),
    ];
    proptest::collection::vec(step, 0..200)
}

/// What a model of a table has to say.
trait Model {
    fn find(&self, key: &[u8]) -> Option<Vec<u8>>;
    fn canonical(&self, key: &[u8]) -> Result<Vec<u8>, i64>;
    fn entries(&mut self) -> &mut BTreeMap<Vec<u8>, u16>;
    fn full(&self) -> i64;
}

/// Runs steps on a table and its model, and compares all that can be seen of them.
fn compare(tables: &mut Tables, model: &mut impl Model, capacity: usize, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Lookup(key) => {
                let expected = model.find(&key).map(|k| model.entries()[&k]);
                assert_eq!(value_at(tables, &key), expected, "{key:?}");
            }
            Step::Add(key) => {
                // A write through the pointer persists.
                let address = tables.lookup(t0(), &key).unwrap();
                let found = model.find(&key);
                assert_eq!(address != 0, found.is_some());
                if let Some(k) = found {
                    let value = model.entries().get_mut(&k).unwrap();
                    *value = value.wrapping_add(1);
                    write_at(tables, address, *value);
                }
            }
            Step::Update(key, value, flags) => {
                let result = tables.update(t0(), &key, &value.to_ne_bytes(), flags).unwrap();
                let full = model.full();
                let expected = match (flags, model.canonical(&key)) {
                    (3.., _) => -errno::EINVAL,
                    (_, Err(errno)) => -errno,
                    (flags, Ok(key)) => {
                        let entries = model.entries();
                        match (entries.contains_key(&key), flags) {
                            (true, 1) => -errno::EEXIST,
                            (false, 2) => -errno::ENOENT,
                            (false, _) if entries.len() == capacity => -full,
                            _ => {
                                entries.insert(key, value);
                                0
                            }
                        }
                    }
                };
                assert_eq!(result, expected, "{key:?} {flags}");
            }
            Step::Delete(key) => {
                let expected = match model.canonical(&key) {
                    Err(errno) => -errno,
                    Ok(key) => model.entries().remove(&key).map_or(-errno::ENOENT, |_| 0),
                };
                assert_eq!(tables.delete(t0(), &key).unwrap(), expected);
            }
        }
    }
    let held: Vec<(Vec<u8>, Vec<u8>)> =
        tables.contents()[0].entries.iter().map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
    let expected: Vec<_> =
        model.entries().iter().map(|(k, v)| (k.clone(), v.to_ne_bytes().to_vec())).collect();
    assert_eq!(held, expected);
}

fn value_at(tables: &mut Tables, key: &[u8]) -> Option<u16> {
    let address = tables.lookup(t0(), key).unwrap();
    let value = tables.get(t0(), key).unwrap().map(|v| u16::from_ne_bytes([v[0], v[1]]));
    assert_eq!(address != 0, value.is_some());
    value
}

fn write_at(tables: &mut Tables, address: u64, value: u16) {
    let image = runnel_interp::Compiled::new(&program("opaque key 1 value 1 entries 1")).unwrap().image();
    let mut machine = runnel_interp::Machine::new(tables.clone(), image);
    machine.store(runnel_ir::Size::B2, address, value.into()).unwrap();
    *tables = machine.tables;
}

struct Hash(BTreeMap<Vec<u8>, u16>);

impl Model for Hash {
    fn find(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.0.contains_key(key).then(|| key.to_vec())
    }
    fn canonical(&self, key: &[u8]) -> Result<Vec<u8>, i64> {
        Ok(key.to_vec())
    }
    fn entries(&mut self) -> &mut BTreeMap<Vec<u8>, u16> {
        &mut self.0
    }
    fn full(&self) -> i64 {
        errno::E2BIG
    }
}

/// Prefixes of 16 bits, compared bit by bit.
struct Trie(BTreeMap<Vec<u8>, u16>);

fn length(key: &[u8]) -> u32 {
    u32::from_ne_bytes(key[..4].try_into().unwrap())
}

fn bit(key: &[u8], index: u32) -> bool {
    key[4 + index as usize / 8] >> (7 - index % 8) & 1 == 1
}

impl Model for Trie {
    fn find(&self, key: &[u8]) -> Option<Vec<u8>> {
        if length(key) > 16 {
            return None;
        }
        let matches = |entry: &&Vec<u8>| {
            length(entry) <= length(key) && (0..length(entry)).all(|i| bit(entry, i) == bit(key, i))
        };
        self.0.keys().filter(matches).max_by_key(|entry| length(entry)).cloned()
    }
    fn canonical(&self, key: &[u8]) -> Result<Vec<u8>, i64> {
        if length(key) > 16 {
            return Err(errno::EINVAL);
        }
        let mut cut = key[..4].to_vec();
        cut.extend([0, 0]);
        for i in (0..length(key)).filter(|&i| bit(key, i)) {
            cut[4 + i as usize / 8] |= 1 << (7 - i % 8);
        }
        Ok(cut)
    }
    fn entries(&mut self) -> &mut BTreeMap<Vec<u8>, u16> {
        &mut self.0
    }
    fn full(&self) -> i64 {
        errno::ENOSPC
    }
}

/// Few addresses, many lengths, so that prefixes nest; a few lengths are too long.
fn prefixes() -> impl Strategy<Value = Vec<u8>> + Clone {
    (0_u32..18, 0_u8..8, any::<u8>()).prop_map(|(length, high, low)| {
        let mut key = length.to_ne_bytes().to_vec();
        key.extend([high << 5, low & 0x93]);
        key
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_matching_is_a_map_with_a_capacity(
        steps in steps((0_u8..9, 0_u8..2).prop_map(|(a, b)| vec![a, 0, b]))
    ) {
        let mut tables = Tables::new(&program("exact key 3 value 2 entries 10"), 1).unwrap();
        compare(&mut tables, &mut Hash(BTreeMap::new()), 10, steps);
    }

    #[test]
    fn prefix_matching_finds_the_longest_prefix_that_the_query_admits(steps in steps(prefixes())) {
        let mut tables = Tables::new(&program("prefix key 6 value 2 entries 20"), 1).unwrap();
        compare(&mut tables, &mut Trie(BTreeMap::new()), 20, steps);
    }

    #[test]
    fn a_recency_table_drops_what_was_used_longest_ago(
        steps in proptest::collection::vec((0_u8..8, 0_u8..3), 0..200)
    ) {
        let mut tables = Tables::new(&program("exact key 1 value 2 entries 4 keeps_recency"), 1).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for (key, what) in steps {
            let was = model.iter().position(|&k| k == key).map(|i| model.remove(i)).is_some();
            match what {
                0 => {
                    assert_eq!(tables.update(t0(), &[key], &[0; 2], 0).unwrap(), 0);
                    if model.len() == 4 {
                        model.remove(0);
                    }
                    model.push(key);
                }
                1 => {
                    assert_eq!(tables.lookup(t0(), &[key]).unwrap() != 0, was);
                    model.extend(was.then_some(key));
                }
                _ => assert_eq!(tables.delete(t0(), &[key]).unwrap() == 0, was),
            }
            let held: Vec<u8> = tables.contents()[0].entries.iter().map(|e| e.key[0]).collect();
            let mut expected = model.clone();
            expected.sort_unstable();
            assert_eq!(held, expected);
        }
    }
}

#[test]
fn an_index_table_has_all_its_entries_always() {
    let mut tables = Tables::new(&program("index key 4 value 2 entries 3"), 1).unwrap();
    let key = |i: u32| i.to_ne_bytes();
    assert_eq!(tables.update(t0(), &key(1), &[7, 7], 0), Ok(0));
    assert_eq!(tables.update(t0(), &key(2), &[8, 8], 2), Ok(0));
    assert_eq!(tables.update(t0(), &key(2), &[9, 9], 1), Ok(-errno::EEXIST));
    assert_eq!(tables.update(t0(), &key(3), &[9, 9], 1), Ok(-errno::E2BIG));
    assert_eq!(tables.update(t0(), &key(3), &[9, 9], 3), Ok(-errno::EINVAL));
    assert_eq!(tables.update(t0(), &key(3), &[9, 9], 4), Ok(-errno::E2BIG));
    assert_eq!(tables.update(t0(), &key(2), &[9, 9], 4), Ok(-errno::EINVAL));
    assert_eq!(tables.update(t0(), &key(2), &[9, 9], 5), Ok(-errno::EEXIST));
    assert_eq!(tables.delete(t0(), &key(1)), Ok(-errno::EINVAL));
    assert_eq!(tables.lookup(t0(), &key(3)), Ok(0));
    let values: Vec<_> = tables.contents()[0].entries.iter().map(|e| e.value.to_vec()).collect();
    assert_eq!(values, [[0, 0], [7, 7], [8, 8]]);
}

#[test]
fn each_cpu_sees_its_own_values() {
    for table in ["exact key 4 value 2 entries 2 per_cpu", "index key 4 value 2 entries 2 per_cpu"] {
        let mut tables = Tables::new(&program(table), 2).unwrap();
        let key = 1_u32.to_ne_bytes();
        assert_eq!(tables.update(t0(), &key, &[1, 1], 0), Ok(0));
        tables.set_cpu(1).unwrap();
        let second = tables.lookup(t0(), &key).unwrap();
        assert_eq!(tables.get(t0(), &key).unwrap().unwrap()[..], [1, 1, 0, 0]);
        assert_eq!(tables.update(t0(), &key, &[2, 2], 0), Ok(0));
        assert_eq!(tables.lookup(t0(), &key).unwrap(), second, "overwritten where it is");
        assert_eq!(tables.get(t0(), &key).unwrap().unwrap()[..], [1, 1, 2, 2]);
        tables.put(t0(), &key, &[3, 3]).unwrap();
        assert_eq!(tables.get(t0(), &key).unwrap().unwrap()[..], [3, 3, 3, 3]);
        tables.put(t0(), &key, &[4, 4, 5, 5]).unwrap();
        assert_eq!(tables.get(t0(), &key).unwrap().unwrap()[..], [4, 4, 5, 5]);
        tables.set_cpu(0).unwrap();
        assert_ne!(tables.lookup(t0(), &key).unwrap(), second);
    }
}

#[test]
fn a_pointer_to_a_replaced_value_shows_the_old_value() {
    let mut bench = Bench::new(
        "table t0 \"t\" exact key 4 value 8 entries 1\nslot s0 8\nblock0(v0):
         v1 = const 1
         v2 = slot_addr s0
         store.64 v2, v1
         v3 = const 0
         v4 = update t0 [0:32 v1], v2, v3
         v5 = lookup t0 [0:32 v1]
         v6 = const 9
         store.64 v2, v6
         v7 = update t0 [0:32 v1], v2, v3
         v8 = load.64 v5
         v9 = lookup t0 [0:32 v1]
         v10 = load.64 v9
         v11 = delete t0 [0:32 v1]
         v12 = load.64 v9
         v13 = const 16
         v14 = shl.64 v8, v13
         v15 = or.64 v14, v10
         v16 = shl.64 v15, v13
         v17 = or.64 v16, v12
         return v17",
    );
    assert_eq!(bench.run(&[]).unwrap().ended, Ended::Verdict(0x0001_0009_0009));
}

#[test]
fn slots_are_used_again_without_end() {
    let mut tables = Tables::new(&program("exact key 4 value 8 entries 2"), 1).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..1000_u32 {
        assert_eq!(tables.update(t0(), &7_u32.to_ne_bytes(), &u64::from(i).to_ne_bytes(), 0), Ok(0));
        seen.insert(tables.lookup(t0(), &7_u32.to_ne_bytes()).unwrap());
        assert_eq!(tables.get(t0(), &7_u32.to_ne_bytes()).unwrap().unwrap()[..], u64::from(i).to_ne_bytes());
    }
    assert_eq!(seen.len(), 66);
}

#[test]
fn the_control_plane_is_told_what_it_did_wrong() {
    let mut tables = Tables::new(&program("exact key 4 value 8 entries 1"), 1).unwrap();
    expect!["table `t` takes a key of 4 bytes, not of 3"]
        .assert_eq(&tables.put(t0(), &[0; 3], &[0; 8]).unwrap_err().to_string());
    expect!["table `t` takes a value of 8 bytes, not of 7"]
        .assert_eq(&tables.put(t0(), &[0; 4], &[0; 7]).unwrap_err().to_string());
    tables.put(t0(), &[0; 4], &[0; 8]).unwrap();
    expect!["table `t`: the update failed with error 7 (a number of errno.h)"]
        .assert_eq(&tables.put(t0(), &[1; 4], &[0; 8]).unwrap_err().to_string());
    expect!["table `t`: the deletion failed with error 2 (a number of errno.h)"]
        .assert_eq(&tables.remove(t0(), &[1; 4]).unwrap_err().to_string());
    expect!["there is no table t5"].assert_eq(&tables.get(Table::new(5), &[1; 4]).unwrap_err().to_string());
}
