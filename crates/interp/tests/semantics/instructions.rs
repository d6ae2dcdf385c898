//! Arithmetic, control flow and the edges between blocks.

use std::fmt::Write;

use expect_test::expect;
use runnel_interp::{Compiled, Ended, Machine, NoHost, State, Tables, run};
use runnel_ir::{BinaryOp, Cond, UnaryOp, Width};

use crate::{Bench, verdict};

/// Operands at which operations differ from each other.
const PAIRS: [(u64, u64); 5] =
    [(7, 3), (0xffff_ffff_ffff_fff9, 2), (0x1_8000_0000, 0xffff_ffff_ffff_ffff), (5, 0), (1, 0x21)];

#[test]
fn every_operation_on_two_operands_gives_what_its_definition_says() {
    let mut table = String::new();
    for &op in BinaryOp::ALL {
        for width in [Width::W32, Width::W64] {
            write!(table, "{:8}", format!("{op}.{width}")).unwrap();
            for (a, b) in PAIRS {
                let body = format!("v1 = const {a:#x}\nv2 = const {b:#x}\nv99 = {op}.{width} v1, v2");
                let text = verdict(&body);
                let value: u64 = text[8..text.len() - 1].parse().unwrap();
                write!(table, " {value:#x}").unwrap();
            }
            table.push('\n');
        }
    }
    expect![[r#"
        add.32   0xa 0xfffffffb 0x7fffffff 0x5 0x22
        add.64   0xa 0xfffffffffffffffb 0x17fffffff 0x5 0x22
        sub.32   0x4 0xfffffff7 0x80000001 0x5 0xffffffe0
        sub.64   0x4 0xfffffffffffffff7 0x180000001 0x5 0xffffffffffffffe0
        mul.32   0x15 0xfffffff2 0x80000000 0x0 0x21
        mul.64   0x15 0xfffffffffffffff2 0xfffffffe80000000 0x0 0x21
        udiv.32  0x2 0x7ffffffc 0x0 0x0 0x0
        udiv.64  0x2 0x7ffffffffffffffc 0x0 0x0 0x0
        urem.32  0x1 0x1 0x80000000 0x5 0x1
        urem.64  0x1 0x1 0x180000000 0x5 0x1
        sdiv.32  0x2 0xfffffffd 0x80000000 0x0 0x0
        sdiv.64  0x2 0xfffffffffffffffd 0xfffffffe80000000 0x0 0x0
        srem.32  0x1 0xffffffff 0x0 0x5 0x1
        srem.64  0x1 0xffffffffffffffff 0x0 0x5 0x1
        and.32   0x3 0x0 0x80000000 0x0 0x1
        and.64   0x3 0x0 0x180000000 0x0 0x1
        or.32    0x7 0xfffffffb 0xffffffff 0x5 0x21
        or.64    0x7 0xfffffffffffffffb 0xffffffffffffffff 0x5 0x21
        xor.32   0x4 0xfffffffb 0x7fffffff 0x5 0x20
        xor.64   0x4 0xfffffffffffffffb 0xfffffffe7fffffff 0x5 0x20
        shl.32   0x38 0xffffffe4 0x0 0x5 0x2
        shl.64   0x38 0xffffffffffffffe4 0x0 0x5 0x200000000
        lshr.32  0x0 0x3ffffffe 0x1 0x5 0x0
        lshr.64  0x0 0x3ffffffffffffffe 0x0 0x5 0x0
        ashr.32  0x0 0xfffffffe 0xffffffff 0x5 0x0
        ashr.64  0x0 0xfffffffffffffffe 0x0 0x5 0x0
    "#]]
    .assert_eq(&table);
}

#[test]
fn every_operation_on_one_operand_gives_what_its_definition_says() {
    let mut table = String::new();
    for &op in UnaryOp::ALL {
        let text = verdict(&format!("v1 = const 0xf1e2d3c4b5a69788\nv99 = {op} v1"));
        let value: u64 = text[8..text.len() - 1].parse().unwrap();
        writeln!(table, "{op} {value:#x}").unwrap();
    }
    expect![[r#"
        bswap16 0x8897
        bswap32 0x8897a6b5
        bswap64 0x8897a6b5c4d3e2f1
        zext32 0xb5a69788
        sext8 0xffffffffffffff88
        sext16 0xffffffffffff9788
        sext32 0xffffffffb5a69788
    "#]]
    .assert_eq(&table);
}

#[test]
fn every_condition_chooses_its_branch() {
    let mut table = String::new();
    for &cond in Cond::ALL {
        for width in [Width::W32, Width::W64] {
            write!(table, "{:8}", format!("{cond}.{width}")).unwrap();
            for (a, b) in [(1_u64, 2_u64), (2, 2), (0x1_0000_0002, 2), (u64::MAX, 1), (0x8000_0000, 1)] {
                let text = Bench::new(&format!(
                    "block0(v0):\nv1 = const {a:#x}\nv2 = const {b:#x}\nbranch.{cond}.{width} v1, v2, block1, block2
                     block1:\nv3 = const 1\nreturn v3\nblock2:\nv4 = const 0\nreturn v4"
                ))
                .ended(&[]);
                table.push_str(if text == "Verdict(1)" { " y" } else { " n" });
            }
            table.push('\n');
        }
    }
    expect![[r#"
        eq.32    n y y n n
        eq.64    n y n n n
        ne.32    y n n y y
        ne.64    y n y y y
        ult.32   y n n n n
        ult.64   y n n n n
        ule.32   y y y n n
        ule.64   y y n n n
        ugt.32   n n n y y
        ugt.64   n n y y y
        uge.32   n y y y y
        uge.64   n y y y y
        slt.32   y n n y y
        slt.64   y n n y n
        sle.32   y y y y y
        sle.64   y y n y n
        sgt.32   n n n n n
        sgt.64   n n y n y
        sge.32   n y y n n
        sge.64   n y y n y
        any.32   n y y y n
        any.64   n y y y n
        none.32  y n n n y
        none.64  y n n n y
    "#]]
    .assert_eq(&table);
}

#[test]
fn block_parameters_are_handed_over_all_at_once() {
    // Three values rotate; doing the moves one after another would lose one.
    let mut bench = Bench::new(
        "block0(v0):
         v1 = const 1
         v2 = const 2
         v3 = const 3
         v4 = const 0
         jump block1(v1, v2, v3, v4)
         block1(v5, v6, v7, v8):
         v9 = const 1
         v10 = add.64 v8, v9
         v11 = const 4
         branch.ult.64 v8, v11, block1(v6, v7, v5, v10), block2(v7, v6)
         block2(v12, v13):
         v14 = const 8
         v15 = shl.64 v12, v14
         v16 = or.64 v15, v13
         return v16",
    );
    // Four rotations of (1, 2, 3) are one: (2, 3, 1).
    assert_eq!(bench.run(&[]).unwrap().ended, Ended::Verdict(0x103));
}

#[test]
fn a_program_that_does_not_end_runs_out_of_fuel() {
    let mut bench = Bench::new("block0(v0):\njump block1\nblock1:\njump block1");
    bench.state.fuel = 100;
    expect!["block1: the program ran for more than 100 steps"].assert_eq(&bench.ended(&[]));
}

#[test]
fn a_deopt_is_told_apart_from_a_verdict_and_says_whether_anything_was_written() {
    let mut clean = Bench::new("slot s0 8\nblock0(v0):\nv1 = slot_addr s0\nstore.64 v1, v1\ndeopt v0");
    let outcome = clean.run(&[]).unwrap();
    assert_eq!((outcome.ended, outcome.wrote, outcome.steps), (Ended::Deopt, false, 3));
    let mut dirty = Bench::new("block0(v0):\nv1 = ctx_load.32 v0\nstore.8 v1, v1\ndeopt v0");
    assert!(dirty.run(&[1]).unwrap().wrote);
}

#[test]
fn a_program_that_gives_up_is_followed_by_the_one_it_falls_back_to() {
    let tables = "table t0 \"t\" index key 4 value 8 entries 1\n";
    let mut quick =
        Bench::new(&format!("{tables}data d0 \"d\" live = 0100000000000000\nblock0(v0):\ndeopt v0"));
    let original = Bench::new(&format!(
        "{tables}data d0 \"d\" live = 0500000000000000\nblock0(v0):
         v1 = data_addr d0
         v2 = load.64 v1
         v3 = table_value t0
         atomic_add.64 v3, v2
         v4 = load.64 v3
         return v4"
    ));
    let (mut counters, mut image) = (original.counters.clone(), original.state.machine.image.clone());
    for expected in [5, 10] {
        let outcome = runnel_interp::run_or_fall_back(
            (&quick.compiled, &mut quick.counters),
            (&original.compiled, &mut counters, &mut image),
            &mut quick.state,
        )
        .unwrap();
        assert_eq!(outcome.ended, Ended::Verdict(expected));
        assert_eq!((outcome.steps, outcome.wrote), (7, true));
    }
    assert_eq!((quick.counters.runs, counters.runs), (2, 2));
    let d0 = runnel_ir::EntityRef::new(0);
    assert_eq!(quick.state.machine.image.data(d0).unwrap()[0], 1);
}

#[test]
fn a_program_can_be_run_once_without_being_made_ready() {
    let once = |text: &str| {
        let program =
            runnel_ir::parse_program(&format!("program \"p\" {{\nblock0(v0):\n{text}\n}}")).unwrap();
        let empty = runnel_ir::parse_program("program \"e\" {\nblock0(v0):\nreturn v0\n}").unwrap();
        let image = Compiled::new(&empty).unwrap().image();
        let mut state = State::new(Machine::new(Tables::new(&empty, 1).unwrap(), image), NoHost);
        match run(&program, &mut state) {
            Ok(outcome) => format!("{:?} after {} steps", outcome.ended, outcome.steps),
            Err(error) => error.to_string(),
        }
    };
    let all =
        ["v1 = const 5\nreturn v1", "return v1", "v1 = ctx_load.32 v0+4\nreturn v1"].map(once).join("\n");
    expect![[r#"
        Verdict(5) after 2 steps
        the program is not well-formed: block0: `return v1` uses v1, which is not defined on every path there
        block0, inst0: the context has no field of 4 bytes at offset 4"#]]
    .assert_eq(&all);
}
