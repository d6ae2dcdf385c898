//! How programs treat their tables.

use expect_test::{Expect, expect};
use runnel_analysis::{Field, PointerUses, TableAccesses, Verdict};
use runnel_ir::{parse_program, verify};

const DECLARATIONS: &str = r#"
  table t0 "t" exact key 4 value 16 entries 8
  slot s0 16
  callee c0 "reads" number 1 args 1 reads_memory
  callee c1 "fills" number 2 args 1 reads_memory writes_memory
  callee c2 "looks_up" number 3 args 1 reads_tables
  callee c3 "unknown" number 4 args 1 writes_tables external
"#;

fn fields<'a>(fields: impl Iterator<Item = &'a Field>) -> String {
    fields
        .map(|f| match f.offset {
            Some(o) => format!(" {}..{}", o, o + i64::from(f.size)),
            None => format!(" ?+{}", f.size),
        })
        .collect()
}

fn show(uses: &PointerUses) -> String {
    let mut text = String::new();
    if !uses.reads.is_empty() {
        text += &format!(" reads{}", fields(uses.reads.keys()));
    }
    if !uses.writes.is_empty() {
        text += &format!(" writes{}", fields(uses.writes.keys()));
    }
    for escape in &uses.escapes {
        text += &format!(" {:?} in {}", escape.kind, escape.at.block);
    }
    text
}

fn check(body: &str, expected: &Expect) {
    let program = parse_program(&format!("program \"p\" {{{DECLARATIONS}{body}}}")).unwrap();
    verify(&program).unwrap();
    let accesses = TableAccesses::new(&program);
    let mut text = String::new();
    for table in program.tables.keys() {
        let access = accesses.of(table);
        text += &match access.verdict {
            Verdict::ReadOnly => format!("{table} read-only\n"),
            Verdict::ReadWrite { reason, at } => format!("{table} {reason:?} in {}\n", at.block),
        };
        for site in access.sites() {
            text += &format!("  {}:{}\n", program.insts[site.inst].data, show(&site.uses));
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn fields_are_found_through_arithmetic_and_parameters() {
    check(
        "block0(v0):
           v1 = const 0
           v2 = lookup t0 [0:32 v1]
           branch.eq.64 v2, v1, block1(v1), block2
         block1(v3):
           return v3
         block2:
           v4 = load.32 v2
           v5 = const 8
           v6 = add.64 v2, v5
           jump block3(v6)
         block3(v7):
           v8 = load.16 v7+2
           branch.eq.64 v8, v4, block1(v4), block1(v8)
        ",
        &expect![[r#"
            t0 read-only
              lookup t0 [0:32 v1]: reads 0..4 10..12
        "#]],
    );
}

#[test]
fn an_address_that_moves_in_a_loop_reads_it_knows_not_what() {
    check(
        "block0(v0):
           v1 = const 1
           v2 = lookup t0 [0:32 v1]
           jump block1(v2)
         block1(v3):
           v4 = load.8 v3
           v5 = add.64 v3, v1
           branch.eq.64 v4, v1, block1(v5), block2
         block2:
           return v4
        ",
        &expect![[r#"
            t0 read-only
              lookup t0 [0:32 v1]: reads ?+1
        "#]],
    );
}

#[test]
fn a_store_through_a_merged_address_writes_the_table() {
    check(
        "block0(v0):
           v1 = const 0
           v2 = lookup t0 [0:32 v1]
           v3 = slot_addr s0
           branch.eq.64 v2, v1, block1(v3), block1(v2)
         block1(v4):
           atomic_add.64 v4+8, v1
           return v1
        ",
        &expect![[r#"
            t0 ValueWritten in block1
              lookup t0 [0:32 v1]: reads 8..16 writes 8..16
        "#]],
    );
}

#[test]
fn callees_that_write_no_memory_may_have_the_address() {
    check(
        "block0(v0):
           v1 = const 0
           v2 = lookup t0 [0:32 v1]
           v3 = call c0(v2)
           return v3
        ",
        &expect![[r#"
            t0 read-only
              lookup t0 [0:32 v1]: LentToCallee in block0
        "#]],
    );
    check(
        "block0(v0):
           v1 = const 0
           v2 = lookup t0 [0:32 v1]
           v3 = call c1(v2)
           return v3
        ",
        &expect![[r#"
            t0 ValueGivenToCallee in block0
              lookup t0 [0:32 v1]: GivenToCallee in block0
        "#]],
    );
}

#[test]
fn a_stored_address_can_be_written_through_later() {
    check(
        "block0(v0):
           v1 = const 0
           v2 = lookup t0 [0:32 v1]
           v3 = slot_addr s0
           store.64 v3, v2
           return v1
        ",
        &expect![[r#"
            t0 ValueEscapes in block0
              lookup t0 [0:32 v1]: Stored in block0
        "#]],
    );
}

#[test]
fn the_result_of_a_callee_that_knows_the_table_is_followed() {
    check(
        "block0(v0):
           v1 = table_ref t0
           v2 = call c2(v1)
           v3 = const 0
           branch.eq.64 v2, v3, block1, block2
         block1:
           return v3
         block2:
           v4 = load.64 v2+8
           return v4
        ",
        &expect![[r#"
            t0 read-only
              call c2(v1): reads 8..16
        "#]],
    );
    check(
        "block0(v0):
           v1 = table_ref t0
           v2 = call c2(v1)
           store.64 v2, v2
           return v1
        ",
        &expect![[r#"
            t0 ValueWritten in block0
              call c2(v1): writes 0..8 Stored in block0
        "#]],
    );
}

#[test]
fn a_callee_that_may_write_tables_writes_those_it_is_handed() {
    check(
        "block0(v0):
           v1 = table_ref t0
           jump block1(v1)
         block1(v2):
           v3 = call c3(v2)
           return v3
        ",
        &expect![[r#"
            t0 TableGivenToCallee in block1
              call c3(v2): Returned in block1
        "#]],
    );
}

#[test]
fn an_update_reads_the_value_that_it_copies() {
    check(
        "block0(v0):
           v1 = const 0
           v2 = table_value t0
           v3 = update t0 [0:32 v1], v2, v1
           return v3
        ",
        &expect![[r#"
            t0 Updated in block0
              table_value t0: reads 0..16
        "#]],
    );
}
