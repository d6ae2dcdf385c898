//! The text form reads back as itself, and what is wrong with it or with the program is said plainly.

use expect_test::{Expect, expect};
use runnel_ir::{parse_program, verify};

const COUNTER: &str = r#"program "counter" {
  table t0 "hits" exact key 6 value 8 entries 1024
  table t1 "cpu" index key 4 value 16 entries 2 per_cpu
  data d0 "rows" const stride 2 = 0001feff
  data d1 "epoch" live = 0000000000000000
  slot s0 16
  callee c0 "ktime_get_ns" number 5 args 0 varies
block0(v0):
  v1 = ctx_load.32 v0
  v2 = ctx_load.32 v0+4
  v3 = const 0xe
  v4 = add.64 v1, v3 @2
  branch.ugt.64 v4, v2, block3(v3), block1
block1:
  v5 = load.16 v1+12
  v6 = bswap16 v5
  v7 = lookup t0 [0:32 v6, 4:16 v5] @7
  v8 = const 0
  branch.eq.64 v7, v8, block3(v8), block2
block2:
  v9 = data_addr d0+2
  v10 = load.8 v9-1
  v11 = slot_addr s0
  store.64 v11+8, v10
  atomic_add.64 v7, v10
  v12 = call c0()
  v13 = update t0 [0:32 v6, 4:16 v5], v11, v8
  v14 = delete t0 [0:32 v6, 4:16 v5]
  jump block3(v14)
block3(v15):
  return v15
}
"#;

#[test]
fn a_printed_program_reads_back_as_itself() {
    let program = parse_program(COUNTER).unwrap();
    verify(&program).unwrap();
    assert_eq!(program.to_string(), COUNTER);
    assert_eq!(program.compact().to_string(), COUNTER);
}

#[test]
fn compacting_drops_what_the_layout_does_not_name() {
    let mut program = parse_program(COUNTER).unwrap();
    let block = program.layout[2];
    program.blocks[block].insts.truncate(3);
    let v8 = runnel_ir::EntityRef::new(8);
    program.blocks[block].terminator =
        runnel_ir::Terminator::Jump(runnel_ir::Target::with(program.layout[3], [v8]));
    let compact = program.compact();
    verify(&compact).unwrap();
    assert_eq!(compact.insts.len(), 11);
    assert_eq!(compact.values.len(), 13);
}

fn check(text: &str, expected: Expect) {
    let message = match parse_program(text) {
        Err(e) => e.to_string(),
        Ok(program) => verify(&program).map_or_else(|e| e.to_string(), |()| "valid".into()),
    };
    expected.assert_eq(&message);
}

fn body(lines: &str) -> String {
    format!(
        "program \"p\" {{\n table t0 \"t\" exact key 8 value 4 entries 1\n slot s0 8\nblock0(v0):\n{lines}\n}}"
    )
}

#[test]
fn text_that_is_no_program_is_refused_with_its_line() {
    check("", expect!["line 0: the text ends before the program does (`}` is missing)"]);
    check("program x {", expect!["line 1: expected a quoted name, found `x`"]);
    check(&body("return v0 v0"), expect!["line 5: expected the end of the line, found `v0`"]);
    check(&body("v1 = frob v0\nreturn v0"), expect!["line 5: `frob` is no operation"]);
    check(
        &body("v1 = load.7 v0\nreturn v0"),
        expect!["line 5: `7` is no access size; there are 8, 16, 32 and 64"],
    );
    check(&body("const 1\nreturn v0"), expect!["line 5: `const` gives a value: write `v1 = …`"]);
    check(&body("v0 = const 1\nreturn v0"), expect!["line 5: v0 is defined twice"]);
    check(&body("v1 = const 1"), expect!["line 6: the last block has no terminator"]);
    check(&body("v9999999 = const 1"), expect!["line 5: expected `v` and a number, found `v9999999`"]);
    check(
        &body("v1 = const 99999999999999999999"),
        expect!["line 5: expected a number, found `99999999999999999999`"],
    );
}

#[test]
fn programs_that_are_not_well_formed_are_refused_with_their_block() {
    check(
        &body("return v1"),
        expect!["block0: `return v1` uses v1, which is not defined on every path there"],
    );
    check(&body("jump block0"), expect!["block0: jumps to the entry"]);
    check(
        &body("jump block1(v0)\nblock1:\nreturn v0"),
        expect!["block0: hands 1 values to block1, which takes 0"],
    );
    check(&body("jump block7"), expect!["block0: jumps to block7, which is not in the layout"]);
    check(
        &body("v1 = lookup t0 [0:32 v0]\nreturn v1"),
        expect!["block0: `lookup t0 [0:32 v0]`: the key has 4 bytes, the table's 8"],
    );
    check(
        &body("v1 = lookup t0 [0:32 v0, 2:32 v0]\nreturn v1"),
        expect!["block0: `lookup t0 [0:32 v0, 2:32 v0]`: the key's parts leave or repeat byte 2"],
    );
    check(&body("v1 = slot_addr s0+9\nreturn v1"), expect!["block0: `slot_addr s0+9`: s0 has only 8 bytes"]);
    check(&body("v1 = call c0()\nreturn v1"), expect!["block0: `call c0()`: c0 is not declared"]);
    check(
        &body("branch.eq.64 v0, v0, block1, block2\nblock1:\nv1 = const 1\njump block2\nblock2:\nreturn v1"),
        expect!["block2: `return v1` uses v1, which is not defined on every path there"],
    );
}
