//! Facts that depend on paths: which loads still hold, and which values bound accesses and loops.

use expect_test::{Expect, expect};
use runnel_analysis::{Available, Extents, Facts, Knowledge, Memory, PossibleBits, Provenances, Uses};
use runnel_ir::cfg::Cfg;
use runnel_ir::{EntityRef, Program, Value, parse_program, verify};

const DECLARATIONS: &str = r#"
  table t0 "t" exact key 4 value 16 entries 8
  slot s0 16
  callee c0 "moves" number 1 args 1 moves_packet
  callee c1 "sized" number 2 args 2 reads_memory
"#;

fn program(body: &str) -> Program {
    let program = parse_program(&format!("program \"p\" {{{DECLARATIONS}{body}}}")).unwrap();
    verify(&program).unwrap();
    program
}

/// Prints the facts that hold at the start of each block.
fn check_available(body: &str, kind: Facts, expected: &Expect) {
    let program = program(body);
    let cfg = Cfg::new(&program);
    let memory = Memory::new(&program, &cfg);
    let available = Available::new(&program, &cfg, &memory, kind);
    let mut text = String::new();
    for &block in &program.layout {
        let facts: Vec<String> =
            available.at_entry(block).facts().map(|(i, _)| program.insts[i].data.to_string()).collect();
        text += &format!("{block}: {}\n", facts.join("; "));
    }
    expected.assert_eq(&text);
}

#[test]
fn a_fact_holds_where_it_was_established_on_every_path_and_nothing_ended_it() {
    let body = "block0(v0):
       v1 = ctx_load.32 v0
       v2 = load.8 v1
       v3 = load.8 v1+1
       store.8 v1+9, v2
       branch.eq.64 v2, v3, block1, block2
     block1:
       store.8 v1+1, v2
       jump block3
     block2:
       v4 = load.8 v1+2
       jump block3
     block3:
       v5 = call c0(v0)
       branch.eq.64 v5, v2, block3, block4
     block4:
       return v2
    ";
    check_available(
        body,
        Facts::LoadsBetweenCalls,
        &expect![[r#"
            block0: 
            block1: ctx_load.32 v0; load.8 v1; load.8 v1+1
            block2: ctx_load.32 v0; load.8 v1; load.8 v1+1
            block3: 
            block4: 
        "#]],
    );
    check_available(
        body,
        Facts::Stores,
        &expect![[r#"
            block0: 
            block1: store.8 v1+9, v2
            block2: store.8 v1+9, v2
            block3: 
            block4: 
        "#]],
    );
}

#[test]
fn distances_arguments_and_loop_bounds_are_extents_with_what_they_come_from() {
    let program = program(
        "block0(v0):
           v1 = ctx_load.32 v0
           v2 = load.8 v1
           v3 = load.8 v1+1
           v4 = load.8 v1+2
           v5 = load.8 v1+3
           v6 = const 1
           v7 = add.64 v2, v6
           v8 = slot_addr s0
           v9 = add.64 v8, v7
           v10 = load.8 v9
           v11 = call c1(v8, v3)
           jump block1(v4)
         block1(v12):
           v13 = sub.64 v12, v6
           branch.ugt.64 v13, v6, block1(v13), block2
         block2:
           branch.eq.64 v5, v10, block3, block4
         block3:
           return v10
         block4:
           return v6
        ",
    );
    let cfg = Cfg::new(&program);
    let extents = Extents::new(&program, &cfg, &Provenances::new(&program, &cfg));
    let found: Vec<String> =
        program.values.keys().filter(|&v| extents.contains(v)).map(|v| v.to_string()).collect();
    expect!["v2 v3 v4 v6 v7 v8 v12 v13"].assert_eq(&found.join(" "));
}

#[test]
fn bits_are_followed_round_loops_and_checkers_know_fewer_of_them() {
    let program = program(
        "block0(v0):
           v1 = ctx_load.32 v0
           v2 = load.16 v1
           v3 = bswap16 v2
           v4 = const 2
           v5 = udiv.64 v2, v4
           jump block1(v4)
         block1(v6):
           v7 = shl.32 v6, v4
           v8 = or.64 v7, v2
           branch.eq.64 v8, v2, block1(v7), block2
         block2:
           return v8
        ",
    );
    let cfg = Cfg::new(&program);
    let known = PossibleBits::new(&program, &cfg, Knowledge::True);
    let verifiable = PossibleBits::new(&program, &cfg, Knowledge::Verifiable);
    let of = |bits: &PossibleBits, v| format!("{:x}", bits.of(Value::new(v)));
    let all: Vec<String> = (1..9).map(|v| format!("v{v} {} {}", of(&known, v), of(&verifiable, v))).collect();
    expect![[r#"
        v1 ffffffffffffffff ffffffffffffffff
        v2 ffff ffff
        v3 ffff ffffffffffffffff
        v4 2 2
        v5 ffff ffffffffffffffff
        v6 aaaaaaaa aaaaaaaa
        v7 aaaaaaa8 aaaaaaa8
        v8 aaaaffff aaaaffff"#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn an_operand_used_twice_counts_twice() {
    let program = program(
        "block0(v0):\n v1 = add.64 v0, v0\n branch.eq.64 v1, v0, block1(v1), block1(v0)\nblock1(v2):\n return v2\n",
    );
    let uses = Uses::new(&program);
    let counts: Vec<usize> = (0..3).map(|v| uses.count(Value::new(v))).collect();
    assert_eq!(counts, [4, 2, 1]);
}
