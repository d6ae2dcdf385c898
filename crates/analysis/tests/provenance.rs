//! What values point into, which slots escape, and which accesses may touch the same bytes.

use expect_test::{Expect, expect};
use runnel_analysis::{Memory, Provenance};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Inst, InstData, Program, parse_program, verify};

const DECLARATIONS: &str = r#"
  table t0 "t" exact key 4 value 16 entries 8
  data d0 "rows" const stride 24 = 000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
  data d1 "flat" const = 0001020304050607
  data d2 "live" live = 0000000000000000
  slot s0 16
  slot s1 16
  callee c0 "fills" number 1 args 1 reads_memory writes_memory
  callee c1 "time" number 2 args 0 varies
"#;

fn program(body: &str) -> Program {
    let program = parse_program(&format!("program \"p\" {{{DECLARATIONS}{body}}}")).unwrap();
    verify(&program).unwrap();
    program
}

/// Prints the provenance of every value.
fn check_provenance(body: &str, expected: &Expect) {
    let program = program(body);
    let memory = Memory::new(&program, &Cfg::new(&program));
    let mut text = String::new();
    for value in program.values.keys() {
        let found = match memory.provenances().of(value) {
            Provenance::Pointer(p) => {
                format!("{:?} {:?}{}", p.object, p.offset, if p.nullable { " or null" } else { "" })
            }
            other => format!("{other:?}"),
        };
        text += &format!("{value} {found}\n");
    }
    for slot in program.slots.keys().filter(|&s| memory.escapes().escapes(s)) {
        text += &format!("{slot} escapes\n");
    }
    expected.assert_eq(&text);
}

/// Prints, for every pair of accesses, whether they may alias.
fn check_aliases(body: &str, expected: &Expect) {
    let program = program(body);
    let memory = Memory::new(&program, &Cfg::new(&program));
    let accesses: Vec<Inst> = program.insts.keys().filter(|&i| memory.access(i).is_some()).collect();
    let mut text = String::new();
    for (i, &a) in accesses.iter().enumerate() {
        for &b in &accesses[i + 1..] {
            let (Some(x), Some(y)) = (memory.access(a), memory.access(b)) else { continue };
            let found = if memory.may_alias(&x, &y) { "may touch" } else { "never touches" };
            text += &format!("{} {found} {}\n", program.insts[a].data, program.insts[b].data);
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn arithmetic_on_a_pointer_stays_in_its_object() {
    check_provenance(
        "block0(v0):
           v1 = ctx_load.32 v0
           v2 = const 14
           v3 = add.64 v1, v2
           v4 = load.8 v1+14
           v5 = add.64 v3, v4
           v6 = slot_addr s0+4
           v7 = add.64 v6, v2
           v8 = sub.64 v6, v2
           v9 = add.64 v6, v4
           v10 = ctx_load.32 v0+4
           v11 = sub.64 v10, v1
           v12 = lookup t0 [0:32 v4]
           v13 = table_value t0+8
           v14 = add.64 v13, v2
           v15 = add.32 v6, v2
           return v4
        ",
        &expect![[r#"
            v0 Context Exact(0)
            v1 Packet Any or null
            v2 Scalar
            v3 Packet Any or null
            v4 Scalar
            v5 Packet Any or null
            v6 Slot(s0) Exact(4)
            v7 Slot(s0) Exact(18)
            v8 Slot(s0) Exact(-10)
            v9 Slot(s0) Any
            v10 Packet Any or null
            v11 Scalar
            v12 Table(t0) Exact(0) or null
            v13 Table(t0) Exact(8)
            v14 Table(t0) Exact(22)
            v15 Scalar
            s0 escapes
        "#]],
    );
}

#[test]
fn the_constant_within_a_row_is_known_although_the_row_is_not() {
    check_provenance(
        "block0(v0):
           v1 = ctx_load.32 v0
           v2 = load.8 v1
           v3 = const 24
           v4 = mul.64 v2, v3
           v5 = data_addr d0+4
           v6 = add.64 v5, v4
           v7 = const 8
           v8 = add.64 v6, v7
           v9 = add.64 v4, v7
           v10 = data_addr d0
           v11 = add.64 v9, v10
           v12 = add.64 v10, v2
           v13 = data_addr d1
           v14 = add.64 v13, v2
           branch.eq.64 v2, v3, block1(v5, v5), block1(v6, v10)
         block1(v15, v16):
           return v4
        ",
        &expect![[r#"
            v0 Context Exact(0)
            v1 Packet Any or null
            v2 Scalar
            v3 Scalar
            v4 Scalar
            v5 Data(d0) Exact(4)
            v6 Data(d0) Row(4)
            v7 Scalar
            v8 Data(d0) Row(12)
            v9 Scalar
            v10 Data(d0) Exact(0)
            v11 Data(d0) Row(8)
            v12 Data(d0) Any
            v13 Data(d1) Exact(0)
            v14 Data(d1) Any
            v15 Data(d0) Row(4)
            v16 Data(d0) Any
        "#]],
    );
}

#[test]
fn parameters_join_what_is_handed_over() {
    check_provenance(
        "block0(v0):
           v1 = const 0
           v2 = slot_addr s0
           v3 = slot_addr s1
           v4 = slot_addr s0+8
           v5 = ctx_load.32 v0
           branch.eq.64 v5, v1, block1(v1, v2, v2, v5), block1(v2, v4, v3, v1)
         block1(v6, v7, v8, v9):
           return v1
        ",
        &expect![[r#"
            v0 Context Exact(0)
            v1 Null
            v2 Slot(s0) Exact(0)
            v3 Slot(s1) Exact(0)
            v4 Slot(s0) Exact(8)
            v5 Packet Any or null
            v6 Slot(s0) Exact(0) or null
            v7 Slot(s0) Any
            v8 Unknown
            v9 Packet Any or null
            s0 escapes
            s1 escapes
        "#]],
    );
}

#[test]
fn a_pointer_that_moves_in_a_loop_is_somewhere_in_its_object() {
    check_provenance(
        "block0(v0):
           v1 = slot_addr s0
           v2 = const 4
           jump block1(v1)
         block1(v3):
           v4 = add.64 v3, v2
           v5 = load.8 v4
           branch.eq.64 v5, v2, block1(v4), block2
         block2:
           return v5
        ",
        &expect![[r#"
            v0 Context Exact(0)
            v1 Slot(s0) Exact(0)
            v2 Scalar
            v3 Slot(s0) Any
            v4 Slot(s0) Any
            v5 Scalar
        "#]],
    );
}

#[test]
fn only_what_leaves_escapes() {
    check_provenance(
        "block0(v0):
           v1 = slot_addr s0
           v2 = const 0
           store.64 v1, v2
           v3 = load.64 v1
           v4 = update t0 [0:32 v3], v1, v2
           v5 = slot_addr s1+8
           v6 = call c0(v5)
           return v4
        ",
        &expect![[r#"
            v0 Context Exact(0)
            v1 Slot(s0) Exact(0)
            v2 Null
            v3 Unknown
            v4 Scalar
            v5 Slot(s1) Exact(8)
            v6 Unknown
            s1 escapes
        "#]],
    );
}

#[test]
fn distinct_objects_and_distinct_bytes_never_alias() {
    check_aliases(
        "block0(v0):
           v1 = ctx_load.32 v0
           v2 = load.8 v1
           v3 = add.64 v1, v2
           v4 = load.16 v3
           v5 = load.16 v3+2
           v6 = slot_addr s0
           v7 = load.32 v6+4
           v8 = slot_addr s0+8
           v9 = load.8 v8-1
           return v2
        ",
        &expect![[r#"
            ctx_load.32 v0 never touches load.8 v1
            ctx_load.32 v0 never touches load.16 v3
            ctx_load.32 v0 never touches load.16 v3+2
            ctx_load.32 v0 never touches load.32 v6+4
            ctx_load.32 v0 never touches load.8 v8-1
            load.8 v1 may touch load.16 v3
            load.8 v1 may touch load.16 v3+2
            load.8 v1 never touches load.32 v6+4
            load.8 v1 never touches load.8 v8-1
            load.16 v3 never touches load.16 v3+2
            load.16 v3 never touches load.32 v6+4
            load.16 v3 never touches load.8 v8-1
            load.16 v3+2 never touches load.32 v6+4
            load.16 v3+2 never touches load.8 v8-1
            load.32 v6+4 may touch load.8 v8-1
        "#]],
    );
}

#[test]
fn an_unknown_pointer_may_reach_only_what_escaped() {
    check_aliases(
        "block0(v0):
           v1 = slot_addr s0
           v2 = slot_addr s1
           v3 = call c0(v2)
           v4 = load.8 v3
           v5 = load.8 v1
           v6 = load.8 v2
           v7 = lookup t0 [0:32 v4]
           v8 = load.32 v7
           v9 = lookup t0 [0:32 v5]
           v10 = load.32 v9+4
           v11 = load.32 v9
           return v4
        ",
        &expect![[r#"
            load.8 v3 never touches load.8 v1
            load.8 v3 may touch load.8 v2
            load.8 v3 may touch load.32 v7
            load.8 v3 may touch load.32 v9+4
            load.8 v3 may touch load.32 v9
            load.8 v1 never touches load.8 v2
            load.8 v1 never touches load.32 v7
            load.8 v1 never touches load.32 v9+4
            load.8 v1 never touches load.32 v9
            load.8 v2 never touches load.32 v7
            load.8 v2 never touches load.32 v9+4
            load.8 v2 never touches load.32 v9
            load.32 v7 never touches load.32 v9+4
            load.32 v7 may touch load.32 v9
            load.32 v9+4 never touches load.32 v9
        "#]],
    );
}

#[test]
fn calls_change_escaped_slots_only_and_nothing_changes_constants() {
    let program = program(
        "block0(v0):
           v1 = slot_addr s0
           v2 = load.8 v1
           v3 = slot_addr s1
           v4 = load.8 v3
           v5 = data_addr d1
           v6 = load.8 v5
           v7 = ctx_load.32 v0
           v8 = load.8 v7
           v9 = call c0(v3)
           v10 = call c1()
           return v2
        ",
    );
    let memory = Memory::new(&program, &Cfg::new(&program));
    let mut text = String::new();
    for (inst, node) in &program.insts {
        let Some(at) = memory.access(inst) else { continue };
        for (call, other) in program.insts.iter().filter(|(_, n)| matches!(n.data, InstData::Call { .. })) {
            if memory.may_change(call, &at) {
                text += &format!("{} may change what {} reads\n", other.data, node.data);
            }
        }
    }
    expect![[r#"
        call c0(v3) may change what load.8 v3 reads
        call c0(v3) may change what ctx_load.32 v0 reads
        call c0(v3) may change what load.8 v7 reads
    "#]]
    .assert_eq(&text);
}
