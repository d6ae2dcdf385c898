//! The probes that representations write, as text.

mod common;

use common::{Parts, Source, code, entry, full_length, prefix, probe_program};
use expect_test::{Expect, expect};
use runnel_ir::{Size, TableKind};
use runnel_tables::{Budget, Contents, Entry, SiteFacts, candidates};

fn table(kind: TableKind, key_size: u32, entries: Vec<Entry>) -> Contents {
    let value_size = entries.first().map_or(4, |e| e.value.len()) as u32;
    Contents { kind, key_size, value_size, max_entries: entries.len() as u32, entries }
}

/// Checks the probe of the representation called `name`.
fn check(contents: &Contents, facts: &SiteFacts, sizes: &[Size], name: &str, expected: &Expect) {
    let found = candidates(contents, facts, Budget::default()).unwrap();
    let names: Vec<_> = found.candidates.iter().map(|c| c.representation.name()).collect();
    let chosen = found.candidates.iter().find(|c| c.representation.name() == name);
    let chosen = chosen.unwrap_or_else(|| panic!("{name} applies: {names:?} {:?}", found.refused));
    let parts: Parts = sizes.iter().map(|&size| (size, Source::Narrow)).collect();
    let why = chosen.representation.why();
    expected.assert_eq(&format!("; {why}\n{}", code(&probe_program(&chosen.representation, facts, &parts))));
}

fn route(length: u32, address: [u8; 4], hop: u8) -> Entry {
    entry(&prefix(length, &address), &[hop, 0, 0, 0])
}

#[test]
fn an_empty_table_always_misses() {
    let contents = table(TableKind::Exact, 4, Vec::new());
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4],
        "empty",
        &expect![[r#"
        ; no lookup can find an entry
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = const 0
          jump block1(v2)
        block1(v3):
          return v3
        }
    "#]],
    );
}

#[test]
fn an_array_with_one_value_is_a_bounds_check() {
    let entries = (0..4u32).map(|i| entry(&i.to_le_bytes(), &[9; 4])).collect();
    let contents = table(TableKind::Index, 4, entries);
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4],
        "direct index",
        &expect![[r#"
        ; 4 keys; keys lie between 0 and 3; all have the same row
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = const 4
          branch.ult.32 v1, v2, block2, block3
        block1(v3):
          return v3
        block2:
          v4 = const 1
          jump block1(v4)
        block3:
          v5 = const 0
          jump block1(v5)
        }
    "#]],
    );
}

#[test]
fn an_array_of_distinct_values_needs_no_ids() {
    let entries = (0..4u32).map(|i| entry(&i.to_le_bytes(), &i.to_le_bytes())).collect();
    let contents = table(TableKind::Index, 4, entries);
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4],
        "direct index",
        &expect![[r#"
        ; 4 keys; keys lie between 0 and 3; rows follow the key
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = const 4
          branch.ult.32 v1, v2, block2, block3
        block1(v3):
          return v3
        block2:
          v4 = const 1
          v5 = add.64 v1, v4
          jump block1(v5)
        block3:
          v6 = const 0
          jump block1(v6)
        }
    "#]],
    );
}

#[test]
fn dense_keys_in_network_byte_order_are_reversed() {
    let entries = (0..200u32).map(|i| entry(&(i * 3 + 8000).to_be_bytes(), &[i as u8 % 3])).collect();
    let contents = table(TableKind::Exact, 4, entries);
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4],
        "direct index",
        &expect![[r#"
        ; 200 keys; keys lie between 8000 and 8597, bytes reversed; array of 1024 row ids of 8 bits
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = bswap32 v1
          v3 = const 0x1f40
          v4 = sub.32 v2, v3
          v5 = const 0x256
          branch.ult.32 v4, v5, block2, block3
        block1(v6):
          return v6
        block2:
          v7 = const 0x3ff
          v8 = and.32 v4, v7
          v9 = data_addr d0
          v10 = add.64 v9, v8
          v11 = load.8 v10
          jump block1(v11)
        block3:
          v12 = const 0
          jump block1(v12)
        }
    "#]],
    );
}

#[test]
fn a_byte_indexes_without_a_check() {
    let entries = [1u8, 6, 17].map(|p| entry(&[p], &[p])).to_vec();
    let contents = table(TableKind::Exact, 1, entries);
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B1],
        "direct index",
        &expect![[r#"
        ; 3 keys; every possible key has a place; array of 256 row ids of 8 bits
        program "probe" {
        block0(v0):
          v1 = ctx_load.8 v0
          v2 = data_addr d0
          v3 = add.64 v2, v1
          v4 = load.8 v3
          jump block1(v4)
        block1(v5):
          return v5
        }
    "#]],
    );
}

#[test]
fn a_few_keys_are_compared_in_turn() {
    let entries = [[1, 2, 3, 4, 0, 80], [5, 6, 7, 8, 0, 80], [1, 2, 3, 4, 1, 187]];
    let contents = table(TableKind::Exact, 6, entries.map(|k| entry(&k, &[k[0]])).to_vec());
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4, Size::B2],
        "compare chain",
        &expect![[r#"
            ; 3 keys, compared in the code
            program "probe" {
            block0(v0):
              v1 = ctx_load.32 v0
              v2 = ctx_load.16 v0+4
              v3 = const 0x20
              v4 = shl.64 v2, v3
              v5 = or.64 v1, v4
              v6 = const 0x500004030201
              branch.eq.64 v5, v6, block2, block3
            block1(v7):
              return v7
            block2:
              v8 = const 1
              jump block1(v8)
            block3:
              v9 = const 0x500008070605
              branch.eq.64 v5, v9, block4, block5
            block4:
              v10 = const 2
              jump block1(v10)
            block5:
              v11 = const 0xbb0104030201
              branch.eq.64 v5, v11, block2, block6
            block6:
              v12 = const 0
              jump block1(v12)
            }
        "#]],
    );
}

#[test]
fn some_more_keys_make_a_tree() {
    let entries = (0..6u16).map(|i| entry(&(i * 1000).to_le_bytes(), &[i as u8 % 2])).collect();
    let contents = table(TableKind::Exact, 2, entries);
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B2],
        "compare tree",
        &expect![[r#"
            ; 6 keys, compared in the code
            program "probe" {
            block0(v0):
              v1 = ctx_load.16 v0
              v2 = const 0xbb8
              branch.ult.32 v1, v2, block2, block3
            block1(v3):
              return v3
            block2:
              v4 = const 0x3e8
              branch.ult.32 v1, v4, block11, block12
            block3:
              v5 = const 0xfa0
              branch.ult.32 v1, v5, block4, block5
            block4:
              v6 = const 0xbb8
              branch.eq.32 v1, v6, block8, block9
            block5:
              v7 = const 0x1388
              branch.ult.32 v1, v7, block6, block7
            block6:
              v8 = const 0xfa0
              branch.eq.32 v1, v8, block10, block9
            block7:
              v9 = const 0x1388
              branch.eq.32 v1, v9, block8, block9
            block8:
              v10 = const 2
              jump block1(v10)
            block9:
              v11 = const 0
              jump block1(v11)
            block10:
              v12 = const 1
              jump block1(v12)
            block11:
              v13 = const 0
              branch.eq.32 v1, v13, block10, block9
            block12:
              v14 = const 0x7d0
              branch.ult.32 v1, v14, block13, block14
            block13:
              v15 = const 0x3e8
              branch.eq.32 v1, v15, block8, block9
            block14:
              v16 = const 0x7d0
              branch.eq.32 v1, v16, block10, block9
            }
        "#]],
    );
}

#[test]
fn a_small_perfect_hash_has_one_function_and_leaves_out_what_the_site_knows() {
    let entries = (0..20u32).map(|i| {
        let mut key = [0; 16];
        key[..4].copy_from_slice(&(i * i * 77).to_le_bytes());
        key[4..8].copy_from_slice(&[10, 0, 0, i as u8]);
        key[12] = 6;
        entry(&key, &i.to_le_bytes())
    });
    let contents = table(TableKind::Exact, 16, entries.collect());
    let fixed = (0..16).map(|i| [None, Some(0)][usize::from(i > 12)]).collect();
    let facts = SiteFacts { fixed, values_written: false };
    check(
        &contents,
        &facts,
        &[Size::B4, Size::B4, Size::B4, Size::B4],
        "perfect hash",
        &expect![[r#"
        ; 20 keys in 32 slots of 32 bytes
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = ctx_load.32 v0+4
          v3 = ctx_load.32 v0+8
          v4 = ctx_load.32 v0+12
          v5 = const 0x20
          v6 = shl.64 v2, v5
          v7 = or.64 v1, v6
          v8 = const 0x20
          v9 = shl.64 v4, v8
          v10 = or.64 v3, v9
          v11 = const 0xffffffffff
          v12 = and.64 v10, v11
          v13 = const 0xa6b3a6712afcd38b
          v14 = mul.64 v7, v13
          v15 = const 0x857b0535c58d6b15
          v16 = mul.64 v12, v15
          v17 = add.64 v14, v16
          v18 = const 0x3b
          v19 = lshr.64 v17, v18
          v20 = const 5
          v21 = shl.64 v19, v20
          v22 = data_addr d0
          v23 = add.64 v22, v21
          v24 = load.64 v23
          branch.eq.64 v7, v24, block3, block2
        block1(v25):
          return v25
        block2:
          v26 = const 0
          jump block1(v26)
        block3:
          v27 = load.64 v23+8
          branch.eq.64 v12, v27, block4, block2
        block4:
          v28 = load.32 v23+16
          jump block1(v28)
        }
    "#]],
    );
}

#[test]
fn a_larger_perfect_hash_has_a_multiplier_for_each_bucket() {
    let entries = (0..1000u32).map(|i| entry(&(i * i * 4001).to_le_bytes(), &i.to_le_bytes()));
    let contents = table(TableKind::Exact, 4, entries.collect());
    check(
        &contents,
        &SiteFacts::default(),
        &[Size::B4],
        "perfect hash",
        &expect![[r#"
        ; 1000 keys in 2048 slots of 8 bytes, reached through 256 multipliers
        program "probe" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = const 0xe220a8397b1dcdaf
          v3 = mul.64 v1, v2
          v4 = const 0x38
          v5 = lshr.64 v3, v4
          v6 = const 2
          v7 = shl.64 v5, v6
          v8 = data_addr d1
          v9 = add.64 v8, v7
          v10 = load.32 v9
          v11 = mul.64 v3, v10
          v12 = const 0x35
          v13 = lshr.64 v11, v12
          v14 = const 3
          v15 = shl.64 v13, v14
          v16 = data_addr d0
          v17 = add.64 v16, v15
          v18 = load.32 v17
          branch.eq.32 v1, v18, block3, block2
        block1(v19):
          return v19
        block2:
          v20 = const 0
          jump block1(v20)
        block3:
          v21 = load.32 v17+4
          jump block1(v21)
        }
    "#]],
    );
}

#[test]
fn a_few_prefixes_are_compared_longest_first() {
    let routes = [
        route(0, [0; 4], 1),
        route(8, [10, 0, 0, 0], 2),
        route(12, [172, 16, 0, 0], 3),
        route(32, [10, 1, 1, 1], 4),
    ];
    let contents = table(TableKind::Prefix, 8, routes.to_vec());
    check(
        &contents,
        &full_length(&contents),
        &[Size::B4, Size::B4],
        "compare chain",
        &expect![[r#"
            ; 3 prefixes, compared in the code, longest first
            program "probe" {
            block0(v0):
              v1 = const 0x20
              v2 = ctx_load.32 v0+4
              v3 = const 0x101010a
              branch.eq.32 v2, v3, block2, block3
            block1(v4):
              return v4
            block2:
              v5 = const 3
              jump block1(v5)
            block3:
              v6 = const 0xf0ff
              v7 = and.32 v2, v6
              v8 = const 0x10ac
              branch.eq.32 v7, v8, block4, block5
            block4:
              v9 = const 4
              jump block1(v9)
            block5:
              v10 = const 0xff
              v11 = and.32 v2, v10
              v12 = const 0xa
              branch.eq.32 v11, v12, block6, block7
            block6:
              v13 = const 2
              jump block1(v13)
            block7:
              v14 = const 1
              jump block1(v14)
            }
        "#]],
    );
}

#[test]
fn prefixes_of_one_length_are_hashed_and_a_default_route_is_the_miss() {
    let routes = (0..40).map(|i| route(20, [10, i * 5, 16 * (i % 3), 0], i)).chain([route(0, [0; 4], 9)]);
    let contents = table(TableKind::Prefix, 8, routes.collect());
    check(
        &contents,
        &full_length(&contents),
        &[Size::B4, Size::B4],
        "perfect hash",
        &expect![[r#"
        ; 40 keys in 64 slots of 8 bytes
        program "probe" {
        block0(v0):
          v1 = const 0x20
          v2 = ctx_load.32 v0+4
          v3 = const 0xf0ffff
          v4 = and.32 v2, v3
          v5 = const 0xf88bb8a8724c81ed
          v6 = mul.64 v4, v5
          v7 = const 0x3a
          v8 = lshr.64 v6, v7
          v9 = const 3
          v10 = shl.64 v8, v9
          v11 = data_addr d0
          v12 = add.64 v11, v10
          v13 = load.32 v12
          branch.eq.32 v4, v13, block3, block2
        block1(v14):
          return v14
        block2:
          v15 = const 1
          jump block1(v15)
        block3:
          v16 = load.32 v12+4
          jump block1(v16)
        }
    "#]],
    );
}

#[test]
fn a_routing_table_is_indexed_by_two_bytes_then_one_and_one() {
    let mut routes: Vec<Entry> =
        (0..40).map(|i| route(16 + u32::from(i) % 17, [10, i, i, i], i % 7)).collect();
    routes.push(route(0, [0; 4], 1));
    let contents = table(TableKind::Prefix, 8, routes);
    check(
        &contents,
        &full_length(&contents),
        &[Size::B4, Size::B4],
        "multi-level index",
        &expect![[r#"
        ; 41 prefixes; steps of 16-8-8 bits, 45 blocks, entries of 16 bits
        program "probe" {
        block0(v0):
          v1 = const 0x20
          v2 = ctx_load.32 v0+4
          v3 = const 1
          v4 = shl.64 v2, v3
          v5 = const 0x1fffe
          v6 = and.32 v4, v5
          v7 = data_addr d0
          v8 = add.64 v7, v6
          v9 = load.16 v8
          v10 = const 0x8000
          branch.none.32 v9, v10, block1(v9), block2
        block1(v11):
          return v11
        block2:
          v12 = const 0x3f
          v13 = and.32 v9, v12
          v14 = const 9
          v15 = shl.64 v13, v14
          v16 = const 0xf
          v17 = lshr.32 v2, v16
          v18 = const 0x1fe
          v19 = and.32 v17, v18
          v20 = add.64 v15, v19
          v21 = data_addr d1
          v22 = add.64 v21, v20
          v23 = load.16 v22
          v24 = const 0x8000
          branch.none.32 v23, v24, block1(v23), block3
        block3:
          v25 = const 0x3f
          v26 = and.32 v23, v25
          v27 = const 9
          v28 = shl.64 v26, v27
          v29 = const 0x17
          v30 = lshr.32 v2, v29
          v31 = const 0x1fe
          v32 = and.32 v30, v31
          v33 = add.64 v28, v32
          v34 = data_addr d1
          v35 = add.64 v34, v33
          v36 = load.16 v35
          jump block1(v36)
        }
    "#]],
    );
}
