//! Words of keys: the emitted value equals the bytes, and takes no more instructions than it has to.

mod common;

use common::{Parts, Runner, Source, code, key_of, parts};
use expect_test::{Expect, expect};
use proptest::prelude::*;
use runnel_ir::{Builder, Program, Size, Terminator, verify};
use runnel_tables::{SiteFacts, Word};

/// A program that returns a word of the key in its context.
fn word_program(word: Word, facts: &SiteFacts, parts: &Parts) -> Program {
    let mut program = Program::new("word");
    let entry = program.new_block();
    program.layout = vec![entry];
    program.append_param(entry);
    let key = key_of(&mut program, entry, facts, parts);
    let value = word.emit(&mut Builder::at(&mut program, entry), &key);
    program.blocks[entry].terminator = Terminator::Return(value);
    program
}

fn mask() -> impl Strategy<Value = u64> {
    let byte = prop_oneof![Just(0u8), Just(0xff), any::<u8>()];
    prop_oneof![
        (0..=8u32).prop_map(|n| Word::bytes(0, n).mask),
        [
            byte.clone(),
            byte.clone(),
            byte.clone(),
            byte.clone(),
            byte.clone(),
            byte.clone(),
            byte.clone(),
            byte
        ]
        .prop_map(u64::from_le_bytes)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_word_is_the_bytes_of_the_key(
        key in proptest::collection::vec(any::<u8>(), 1..32),
        offset in 0..32u32,
        mask in mask(),
        seed: u64,
        fixed: u32,
    ) {
        let word = Word { offset, mask };
        let fixed = key.iter().enumerate().map(|(i, &b)| (fixed >> i & 1 == 1).then_some(b)).collect();
        let facts = SiteFacts { fixed, values_written: false };
        let program = word_program(word, &facts, &parts(key.len() as u32, seed));
        verify(&program).unwrap();
        prop_assert_eq!(Runner::new(&program).run(&key), word.of(&key));
    }
}

fn check(word: Word, parts: &[(Size, Source)], expected: &Expect) {
    expected.assert_eq(&code(&word_program(word, &SiteFacts::default(), &parts.to_vec())));
}

#[test]
fn a_part_that_is_the_word_is_taken_as_it_is() {
    check(
        Word::bytes(4, 8),
        &[(Size::B4, Source::Narrow), (Size::B4, Source::Narrow)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = ctx_load.32 v0+4
          return v2
        }
    "#]],
    );
    check(
        Word::bytes(0, 8),
        &[(Size::B8, Source::Narrow)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.64 v0
          return v1
        }
    "#]],
    );
}

#[test]
fn what_stands_above_a_part_is_masked_only_where_it_would_show() {
    // The garbage above the first part would lie over the second; that above the second is shifted out.
    check(
        Word::bytes(0, 8),
        &[(Size::B4, Source::Wide), (Size::B4, Source::Wide)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.64 v0
          v2 = ctx_load.64 v0+4
          v3 = zext32 v1
          v4 = const 0x20
          v5 = shl.64 v2, v4
          v6 = or.64 v3, v5
          return v6
        }
    "#]],
    );
    check(
        Word::bytes(0, 4),
        &[(Size::B4, Source::Wide)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.64 v0
          v2 = zext32 v1
          return v2
        }
    "#]],
    );
}

#[test]
fn part_of_a_part_is_shifted_down() {
    check(
        Word::bytes(3, 4),
        &[(Size::B4, Source::Narrow)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.32 v0
          v2 = const 0x18
          v3 = lshr.32 v1, v2
          return v3
        }
    "#]],
    );
    check(
        Word::bytes(2, 3),
        &[(Size::B4, Source::Wide)],
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.64 v0
          v2 = const 0x10
          v3 = lshr.32 v1, v2
          v4 = const 0xff
          v5 = and.32 v3, v4
          return v5
        }
    "#]],
    );
}

#[test]
fn a_mac_address_in_three_parts() {
    let parts = [(Size::B2, Source::Narrow); 3];
    check(
        Word::bytes(0, 6),
        &parts,
        &expect![[r#"
        program "word" {
        block0(v0):
          v1 = ctx_load.16 v0
          v2 = ctx_load.16 v0+2
          v3 = ctx_load.16 v0+4
          v4 = const 0x10
          v5 = shl.64 v2, v4
          v6 = or.64 v1, v5
          v7 = const 0x20
          v8 = shl.64 v3, v7
          v9 = or.64 v6, v8
          return v9
        }
    "#]],
    );
}
