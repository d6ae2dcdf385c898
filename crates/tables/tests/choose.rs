//! What is chosen, what people are told about it, and which contents are refused.

mod common;

use common::{Parts, Source, check, entry, full_length, key_of, prefix};
use expect_test::{Expect, expect};
use runnel_ir::{DataKind, Program, Size, TableKind};
use runnel_tables::{
    Budget, Contents, ContentsError, Entry, Representation, RowId, Rows, SiteFacts, candidates, choose,
};

fn table(kind: TableKind, key_size: u32, value_size: u32, entries: Vec<Entry>) -> Contents {
    Contents { kind, key_size, value_size, max_entries: entries.len() as u32, entries }
}

/// An exact-match table of so many keys, far apart, each with a value of its own.
fn exact(key_size: u32, count: u64) -> Contents {
    let key = |i: u64| -> Vec<u8> {
        let word = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        word.into_iter().cycle().take(key_size as usize).collect()
    };
    table(TableKind::Exact, key_size, 8, (0..count).map(|i| entry(&key(i), &i.to_le_bytes())).collect())
}

fn index(values: &[u32]) -> Contents {
    let entries = values.iter().enumerate().map(|(i, v)| entry(&(i as u32).to_le_bytes(), &v.to_le_bytes()));
    table(TableKind::Index, 4, 4, entries.collect())
}

fn routes(lengths: impl Iterator<Item = u32>) -> Contents {
    let route = |(i, length): (usize, u32)| {
        let address = (i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes();
        entry(&prefix(length, &address), &[i as u8 % 5])
    };
    table(TableKind::Prefix, 8, 1, lengths.enumerate().map(route).collect())
}

fn considered(contents: &Contents, facts: &SiteFacts, budget: Budget, expected: &Expect) {
    let choice = choose(contents, facts, budget).unwrap();
    let text: Vec<String> = choice
        .considered
        .iter()
        .map(|c| {
            let ns = c.ns.map_or("-".into(), |ns| format!("{ns:.1} ns"));
            let bytes = c.bytes.map_or("-".into(), |bytes| format!("{bytes} bytes"));
            format!("{} {ns} {bytes}: {}\n", c.name, c.why)
        })
        .collect();
    expected.assert_eq(&text.concat());
    let first = &choice.considered[0];
    assert_eq!(choice.representation.as_ref().map_or("original", |r| r.name()), first.name);
    assert_eq!(first.ns.filter(|ns| ns.is_finite()), Some(choice.ns).filter(|ns| ns.is_finite()));
}

#[test]
fn a_hash_table_of_a_few_keys() {
    considered(
        &exact(4, 3),
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            compare chain 5.4 ns 32 bytes: 3 keys, compared in the code
            perfect hash 5.9 ns 64 bytes: 3 keys in 4 slots of 8 bytes
            original 22.5 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
            direct index - -: 3 keys are spread over a range of 704156927
        "#]],
    );
}

#[test]
fn a_hash_table_of_many_keys() {
    considered(
        &exact(16, 5000),
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            perfect hash 16.9 ns 335872 bytes: 5000 keys in 8192 slots of 32 bytes, reached through 2048 multipliers
            original 30.8 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
            compare tree - -: 5000 entries are more than 16
            direct index - -: 16 bytes of the key would be compared, and the limit is 8
        "#]],
    );
}

#[test]
fn a_hash_table_with_long_keys_stays() {
    considered(
        &exact(40, 100),
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            original 23.3 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
            compare tree - -: 100 entries are more than 16
            direct index - -: 40 bytes of the key would be compared, and the limit is 8
            perfect hash - -: 40 bytes of the key would be compared, and the limit is 32
        "#]],
    );
}

#[test]
fn a_configuration_array_of_one_entry() {
    considered(
        &index(&[7]),
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            direct index 2.2 ns 16 bytes: 1 key; keys lie between 0 and 0; all have the same row
            original 3.1 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
        "#]],
    );
}

#[test]
fn a_port_array() {
    considered(
        &index(&[1, 0, 0, 4, 4, 4, 9]),
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            direct index 3.1 ns 64 bytes: 7 keys; keys lie between 0 and 6; rows follow the key
            original 3.1 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
        "#]],
    );
}

#[test]
fn a_routing_table() {
    let contents = routes((0..2000).map(|i| 8 + i % 25));
    considered(
        &contents,
        &full_length(&contents),
        Budget::default(),
        &expect![[r#"
            multi-level index 17.1 ns 1179712 bytes: 2000 prefixes; steps of 16-8-8 bits, 1424 blocks, entries of 16 bits
            original 96.7 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
            compare tree - -: 2000 entries are more than 8
            perfect hash - -: prefixes have 25 lengths other than zero, not one
        "#]],
    );
}

#[test]
fn without_the_full_length_a_routing_table_stays() {
    let contents = routes((0..20).map(|i| 8 + i % 25));
    considered(
        &contents,
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
            original 27.7 ns 0 bytes: the table as it is
            any - -: the prefix length of the query is not known to be the full 32 bits
        "#]],
    );
    let mut facts = full_length(&contents);
    facts.fixed[0] = Some(24);
    assert_eq!(choose(&contents, &facts, Budget::default()).unwrap().representation, None);
}

#[test]
fn written_values_and_opaque_tables_stay() {
    let written = SiteFacts { values_written: true, ..SiteFacts::default() };
    considered(
        &exact(4, 3),
        &written,
        Budget::default(),
        &expect![[r#"
            original 22.5 ns 0 bytes: the table as it is
            any - -: values may be written, and rows are copies of them
        "#]],
    );
    let opaque = table(TableKind::Opaque, 4, 4, Vec::new());
    considered(
        &opaque,
        &SiteFacts::default(),
        Budget::default(),
        &expect![[r#"
        original - 0 bytes: the table as it is
        any - -: only callees know how this table finds an entry
    "#]],
    );
}

#[test]
fn what_exceeds_the_budget_stays() {
    let contents = routes((0..2000).map(|i| 8 + i % 25));
    considered(
        &contents,
        &full_length(&contents),
        Budget { memory_bytes: 100_000 },
        &expect![[r#"
            original 96.7 ns 0 bytes: the table as it is
            constant - -: lookups have more than one outcome
            compare tree - -: 2000 entries are more than 8
            perfect hash - -: prefixes have 25 lengths other than zero, not one
            multi-level index - -: it would take 100001 bytes or more, and the budget is 100000
        "#]],
    );
}

/// The representation, which must be a constant: its row, and the rows.
fn constant(contents: &Contents, facts: &SiteFacts) -> (RowId, Rows) {
    let choice = choose(contents, facts, Budget::default()).unwrap();
    match choice.representation {
        Some(Representation::Constant(c)) => (c.row, choice.rows),
        other => panic!("not a constant: {other:?}"),
    }
}

#[test]
fn one_outcome_is_a_constant() {
    let facts = SiteFacts::default();
    assert_eq!(constant(&exact(4, 0), &facts).0, RowId::MISS);
    // A table of routes that all lead to one place, with a default route.
    let mut contents = routes([0, 8, 16, 24].into_iter());
    contents.entries.iter_mut().for_each(|e| e.value = [3].into());
    let (row, rows) = constant(&contents, &full_length(&contents));
    assert_eq!((row, rows.rows.len()), (RowId(1), 2));
    // Without the default route, addresses may miss.
    contents.entries.remove(0);
    assert!(!matches!(
        choose(&contents, &full_length(&contents), Budget::default()).unwrap().representation,
        Some(Representation::Constant(_))
    ));
}

#[test]
fn a_known_key_is_looked_up_beforehand() {
    let contents = exact(4, 50);
    let known =
        |key: &[u8]| SiteFacts { fixed: key.iter().map(|&b| Some(b)).collect(), values_written: false };
    for e in &contents.entries {
        let (row, rows) = constant(&contents, &known(&e.key));
        assert_eq!(rows.rows[row.0 as usize], e.value);
    }
    assert_eq!(constant(&contents, &known(&[1, 2, 3, 4])).0, RowId::MISS);
    // Of a prefix table, with any length of the query.
    let contents = table(
        TableKind::Prefix,
        8,
        1,
        vec![entry(&prefix(8, &[10, 9, 9, 9]), &[1]), entry(&prefix(24, &[10, 1, 2, 3]), &[2])],
    );
    for (length, hit) in [(32, Some(2)), (24, Some(2)), (23, Some(1)), (8, Some(1)), (7, None), (33, None)] {
        let (row, rows) = constant(&contents, &known(&prefix(length, &[10, 1, 2, 4])));
        let value = (row != RowId::MISS).then(|| rows.rows[row.0 as usize][0]);
        assert_eq!(value, hit, "query of {length} bits");
    }
}

#[test]
fn bytes_known_at_the_site_drop_out_of_table_and_comparison() {
    // Protocol and port: the site always asks for protocol 17.
    let key = |proto: u8, port: u16| [proto, 0, port as u8, (port >> 8) as u8];
    let entries = (0..100u16).map(|i| entry(&key(if i < 97 { 6 } else { 17 }, i), &[i as u8; 4])).collect();
    let contents = table(TableKind::Exact, 4, 4, entries);
    let facts = SiteFacts { fixed: vec![Some(17), Some(0)], values_written: false };
    let keys: Vec<Vec<u8>> = (0..200u16).map(|port| key(17, port).to_vec()).collect();
    let found = check(&contents, &facts, 1, &keys);
    let names: Vec<_> = found.candidates.iter().map(|c| c.representation.name()).collect();
    assert!(names.contains(&"compare chain"), "three entries are left: {names:?}");
    // A protocol that no entry has.
    let none = SiteFacts { fixed: vec![Some(1)], values_written: false };
    assert_eq!(constant(&contents, &none).0, RowId::MISS);
}

#[test]
fn facts_of_a_key_are_its_constants() {
    let mut program = Program::new("p");
    let block = program.new_block();
    program.layout = vec![block];
    program.append_param(block);
    let parts: Parts = [Size::B4, Size::B2, Size::B2].map(|s| (s, Source::Narrow)).to_vec();
    let wanted = vec![None, None, None, None, Some(0x34), Some(0x12)];
    let given = SiteFacts { fixed: wanted.clone(), values_written: false };
    let key = key_of(&mut program, block, &given, &parts);
    let facts = SiteFacts::of_key(&program, &key);
    assert_eq!(facts.fixed, wanted);
    assert!(facts.admits(&[1, 2, 3, 4, 0x34, 0x12, 9, 9]));
    assert!(!facts.admits(&[1, 2, 3, 4, 0x34, 0x13, 9, 9]));
}

#[test]
fn the_last_of_equal_keys_counts() {
    let entries = vec![entry(&[1, 0], &[1]), entry(&[2, 0], &[2]), entry(&[1, 0], &[3])];
    let keys = [vec![1, 0], vec![2, 0], vec![3, 0]];
    check(&table(TableKind::Exact, 2, 1, entries), &SiteFacts::default(), 0, &keys);
    // Prefixes are equal when their bits are, whatever stands behind them.
    let entries = vec![entry(&prefix(12, &[10, 16, 1, 1]), &[1]), entry(&prefix(12, &[10, 31, 2, 2]), &[2])];
    let contents = table(TableKind::Prefix, 8, 1, entries);
    let found = check(&contents, &full_length(&contents), 0, &[prefix(32, &[10, 20, 0, 0])]);
    assert_eq!(found.rows.rows.len(), 2);
}

#[test]
fn rows_are_padded_by_a_valid_one() {
    let contents = table(
        TableKind::Exact,
        1,
        3,
        vec![
            entry(&[1], &[7, 1, 1]),
            entry(&[2], &[7, 2, 2]),
            entry(&[3], &[7, 1, 1]),
            entry(&[4], &[7, 3, 3]),
        ],
    );
    let rows = candidates(&contents, &SiteFacts::default(), Budget::default()).unwrap().rows;
    let object = rows.object("table.rows");
    assert_eq!((object.kind, object.stride, rows.mask(), rows.shift()), (DataKind::Const, 8, 3, 3));
    let expected = [[7, 1, 1], [7, 1, 1], [7, 2, 2], [7, 3, 3]].map(|[a, b, c]| [a, b, c, 0, 0, 0, 0, 0]);
    assert_eq!(object.bytes, expected.concat());
    assert_eq!(rows.memory_bytes(), object.bytes.len() as u64);

    // Five rows make eight: the column that is equal in all entries is so in all rows.
    let entries = (0..4u8).map(|i| entry(&[i], &[9, i])).collect();
    let rows = candidates(&table(TableKind::Exact, 1, 2, entries), &SiteFacts::default(), Budget::default())
        .unwrap()
        .rows;
    let object = rows.object("r");
    assert_eq!(object.bytes.len(), 64);
    assert!(object.bytes.chunks(8).all(|row| row[0] == 9));
}

#[test]
fn impossible_contents_are_refused() {
    let check = |contents: &Contents, expected: ContentsError| {
        assert_eq!(choose(contents, &SiteFacts::default(), Budget::default()).unwrap_err(), expected);
    };
    let mut contents = exact(4, 2);
    contents.entries[1].key = [1, 2, 3].into();
    check(&contents, ContentsError::KeySize { entry: 1, expected: 4, found: 3 });
    let mut contents = exact(4, 2);
    contents.entries[0].value = [0; 9].into();
    check(&contents, ContentsError::ValueSize { entry: 0, expected: 8, found: 9 });
    check(
        &table(TableKind::Index, 8, 4, Vec::new()),
        ContentsError::KindKeySize { kind: TableKind::Index, key_size: 8 },
    );
    check(
        &table(TableKind::Prefix, 4, 4, Vec::new()),
        ContentsError::KindKeySize { kind: TableKind::Prefix, key_size: 4 },
    );
    let contents = table(TableKind::Prefix, 8, 1, vec![entry(&prefix(33, &[0; 4]), &[1])]);
    check(&contents, ContentsError::PrefixLength { entry: 0, length: 33, address_bits: 32 });
    let mut contents = index(&[1, 2, 3]);
    contents.max_entries = 2;
    check(&contents, ContentsError::IndexRange { entry: 2, index: 2, max_entries: 2 });
    contents.max_entries = u32::MAX;
    check(&contents, ContentsError::IndexMissing { index: 3 });
    contents.max_entries = 3;
    contents.entries[0].key = 2u32.to_le_bytes().into();
    check(&contents, ContentsError::IndexMissing { index: 0 });
}

#[test]
fn addresses_longer_than_16_bytes_stay() {
    let contents = table(TableKind::Prefix, 24, 1, vec![entry(&prefix(160, &[1; 20]), &[1])]);
    considered(
        &contents,
        &full_length(&contents),
        Budget::default(),
        &expect![[r#"
        original 10.0 ns 0 bytes: the table as it is
        any - -: 20 bytes of the key would be compared, and the limit is 16
    "#]],
    );
}
