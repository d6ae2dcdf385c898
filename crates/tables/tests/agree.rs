//! Every representation of a table, its model and its emitted probe agree with the definition of the table, for
//! contents and keys drawn at random and close to each other.

mod common;

use common::{check, entry, full_length, prefix};
use proptest::collection::vec;
use proptest::prelude::*;
use runnel_ir::TableKind;
use runnel_tables::{Contents, SiteFacts};

/// Keys near to `key`: itself, each single bit flipped, and its neighbours as a number in both byte orders.
fn near(key: &[u8]) -> Vec<Vec<u8>> {
    let flipped = (0..key.len() * 8).map(|bit| {
        let mut key = key.to_vec();
        key[bit / 8] ^= 1 << (bit % 8);
        key
    });
    // Adds or subtracts 1 at the last byte and carries towards the first.
    let step = |key: &[u8], up: bool| {
        let mut key = key.to_vec();
        for byte in key.iter_mut().rev() {
            *byte = if up { byte.wrapping_add(1) } else { byte.wrapping_sub(1) };
            if *byte != if up { 0 } else { 255 } {
                break;
            }
        }
        key
    };
    let reversed = |key: &[u8]| key.iter().rev().copied().collect::<Vec<u8>>();
    let mut keys: Vec<Vec<u8>> = flipped.collect();
    for up in [true, false] {
        keys.push(step(key, up));
        keys.push(reversed(&step(&reversed(key), up)));
    }
    keys.push(key.to_vec());
    keys
}

/// Bytes that often are alike, so that keys collide in some of their words.
fn byte() -> impl Strategy<Value = u8> + Clone {
    prop_oneof![3 => Just(0u8), 2 => 0..4u8, 1 => any::<u8>(), 1 => Just(255u8)]
}

fn exact() -> impl Strategy<Value = (Contents, SiteFacts, Vec<Vec<u8>>)> {
    let sizes = prop_oneof![1..=8usize, 1..=40usize];
    (sizes, 1..9u8, 0..60usize, any::<bool>()).prop_flat_map(|(size, values, count, pad)| {
        let key = vec(byte(), size);
        let entries = vec((key.clone(), 0..values), 0..=count);
        let fixed = vec(prop_oneof![3 => Just(false), 1 => Just(pad)], size);
        (entries, fixed, vec(key, 1..20), any::<prop::sample::Index>()).prop_map(
            move |(entries, fixed, mut keys, pick)| {
                let template =
                    if entries.is_empty() { keys[0].clone() } else { pick.get(&entries).0.clone() };
                let fixed: Vec<Option<u8>> =
                    fixed.iter().zip(&template).map(|(&f, &b)| f.then_some(b)).collect();
                for (key, _) in &entries {
                    keys.extend(near(key));
                }
                for key in &mut keys {
                    key.iter_mut().zip(&fixed).for_each(|(b, f)| *b = f.unwrap_or(*b));
                }
                let entries = entries.iter().map(|(k, v)| entry(k, &[*v, 7, 7])).collect();
                let contents = Contents {
                    kind: TableKind::Exact,
                    key_size: size as u32,
                    value_size: 3,
                    max_entries: 1024,
                    entries,
                };
                (contents, SiteFacts { fixed, values_written: false }, keys)
            },
        )
    })
}

fn index() -> impl Strategy<Value = (Contents, Vec<Vec<u8>>)> {
    let count = prop_oneof![1..5usize, 1..700usize];
    (count, 1..300u16).prop_flat_map(|(count, values)| vec(0..values, count)).prop_map(|values| {
        let max_entries = values.len() as u32;
        let index = |i: u32| i.to_le_bytes().to_vec();
        let mut keys: Vec<Vec<u8>> = (0..max_entries + 3).map(index).collect();
        keys.extend([u32::MAX, 1 << 31, 1 << 16, max_entries << 8].map(index));
        // Tables are read in no particular order.
        let mut entries: Vec<_> =
            values.iter().enumerate().map(|(i, v)| entry(&index(i as u32), &v.to_le_bytes())).collect();
        entries.reverse();
        (Contents { kind: TableKind::Index, key_size: 4, value_size: 2, max_entries, entries }, keys)
    })
}

/// An address as a number, and how many bytes it has, as bytes.
fn address(number: u128, bytes: usize) -> Vec<u8> {
    number.to_be_bytes()[..bytes].to_vec()
}

fn prefixes() -> impl Strategy<Value = (Contents, Vec<Vec<u8>>)> {
    let sizes = prop_oneof![Just(4usize), Just(16usize), 1..=16usize];
    (sizes, 1..5u8, 0..40usize, 0..4u8).prop_flat_map(|(bytes, values, count, style)| {
        let bits = bytes as u32 * 8;
        let length = match style {
            // One length, with and without a default route; few lengths; any.
            0 => prop_oneof![Just(bits * 2 / 3)].boxed(),
            1 => prop_oneof![9 => Just(bits / 2), 1 => Just(0)].boxed(),
            2 => prop_oneof![Just(bits), Just(bits / 2), Just(bits / 4)].boxed(),
            _ => (0..=bits).boxed(),
        };
        let entries = vec((length, vec(byte(), bytes), 0..values), 0..=count);
        (entries, vec(vec(byte(), bytes), 1..20)).prop_map(move |(entries, others)| {
            let mut keys: Vec<Vec<u8>> = others.iter().map(|a| prefix(bits, a)).collect();
            for (length, a, _) in &entries {
                let mut first = [0; 16];
                first[..bytes].copy_from_slice(a);
                let beyond = u128::MAX.checked_shr(*length).unwrap_or(0);
                let first = u128::from_be_bytes(first) & !beyond;
                let unit = 1u128 << (128 - bits);
                let last = first | beyond;
                for number in [first, last, first.wrapping_sub(unit), last.wrapping_add(unit)] {
                    keys.push(prefix(bits, &address(number, bytes)));
                }
                keys.push(prefix(bits, a));
            }
            let entries = entries.iter().map(|(n, a, v)| entry(&prefix(*n, a), &[*v])).collect();
            let key_size = bytes as u32 + 4;
            let contents =
                Contents { kind: TableKind::Prefix, key_size, value_size: 1, max_entries: 1000, entries };
            (contents, keys)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn exact_match_tables((contents, facts, keys) in exact(), seed: u64) {
        check(&contents, &facts, seed, &keys);
    }

    #[test]
    fn index_tables((contents, keys) in index(), seed: u64) {
        check(&contents, &SiteFacts::default(), seed, &keys);
    }

    #[test]
    fn prefix_tables((contents, keys) in prefixes(), seed: u64) {
        check(&contents, &full_length(&contents), seed, &keys);
    }

    #[test]
    fn equal_contents_in_another_order_give_equal_results((contents, facts, _) in exact()) {
        let mut other = contents.clone();
        other.entries.sort_by(|a, b| a.key.cmp(&b.key));
        let budget = runnel_tables::Budget::default();
        prop_assert_eq!(
            runnel_tables::candidates(&contents, &facts, budget),
            runnel_tables::candidates(&other, &facts, budget)
        );
    }
}

/// Every representation occurs in what the properties above draw: what never applies is never tested.
#[test]
fn the_properties_reach_every_representation() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut count = std::collections::BTreeMap::new();
    for _ in 0..300 {
        let (a, facts, _) = exact().new_tree(&mut runner).unwrap().current();
        let (b, _) = index().new_tree(&mut runner).unwrap().current();
        let (c, _) = prefixes().new_tree(&mut runner).unwrap().current();
        let c_facts = full_length(&c);
        for (contents, facts) in [(a, facts), (b, SiteFacts::default()), (c, c_facts)] {
            let found = runnel_tables::candidates(&contents, &facts, Default::default()).unwrap();
            for candidate in found.candidates {
                *count.entry((contents.kind.to_string(), candidate.representation.name())).or_insert(0) += 1;
            }
        }
    }
    for kind in ["exact", "prefix"] {
        for name in ["empty", "constant", "compare chain", "compare tree", "direct index", "perfect hash"] {
            assert!(count.contains_key(&(kind.to_string(), name)), "{kind} {name}: {count:?}");
        }
    }
    assert!(count.contains_key(&("prefix".into(), "multi-level index")), "{count:?}");
    assert!(count.contains_key(&("index".into(), "direct index")), "{count:?}");
}
