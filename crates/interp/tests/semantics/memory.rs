//! Loads, stores, and every way to get them wrong.

use expect_test::{Expect, expect};
use runnel_interp::{Ended, Uninitialised, place};

use crate::{Bench, verdict};

fn check(text: &str, packet: &[u8], expected: &Expect) {
    expected.assert_eq(&Bench::new(text).ended(packet));
}

#[test]
fn bytes_are_loaded_and_stored_in_the_machines_order() {
    let mut bench = Bench::new(
        "slot s0 16\nblock0(v0):
         v1 = ctx_load.32 v0
         v2 = slot_addr s0+8
         v3 = load.32 v1+2
         store.32 v2-4, v3
         v4 = load.16 v2-3
         store.8 v1, v4
         v5 = const 0x1111111111111111
         store.16 v1+6, v5
         return v4",
    );
    let packet = [0, 1, 2, 3, 4, 5, 6, 7];
    let Ended::Verdict(verdict) = bench.run(&packet).unwrap().ended else { panic!("no verdict") };
    assert_eq!(verdict, u16::from_ne_bytes([3, 4]).into());
    let low = if cfg!(target_endian = "little") { 3 } else { 4 };
    assert_eq!(bench.state.machine.packet.bytes(), [low, 1, 2, 3, 4, 5, 0x11, 0x11]);
}

#[test]
fn an_atomic_addition_wraps_at_its_size() {
    let mut bench = Bench::new(
        "table t0 \"t\" index key 4 value 16 entries 1\nblock0(v0):
         v1 = table_value t0+8
         v2 = const 0xfffffffffffffffe
         atomic_add.32 v1, v2
         atomic_add.32 v1, v2
         v3 = load.64 v1
         return v3",
    );
    assert_eq!(bench.run(&[]).unwrap().ended, Ended::Verdict(0xffff_fffc));
}

/// How programs that differ in one place end, one line each.
fn check_each(program: impl Fn(&str) -> String, packet: &[u8], holes: &[&str], expected: &Expect) {
    let line = |hole: &&str| format!("{hole}: {}\n", Bench::new(&program(hole)).ended(packet));
    expected.assert_eq(&holes.iter().map(line).collect::<String>());
}

#[test]
fn an_access_beyond_an_object_is_a_fault() {
    check_each(
        |access| format!("block0(v0):\nv1 = ctx_load.32 v0\nv2 = {access}\nreturn v2"),
        &[0; 4],
        &["load.16 v1+2", "load.16 v1+3", "load.8 v1-1"],
        &expect![[r#"
            load.16 v1+2: Verdict(0)
            load.16 v1+3: block0, inst1: an access of 2 at offset 3 is not inside of the packet, which has 4 bytes
            load.8 v1-1: block0, inst1: an access of 1 at offset -1 is not inside of the packet, which has 4 bytes
        "#]],
    );
    check_each(
        |access| {
            format!(
                "slot s0 8\nslot s1 12\nblock0(v0):\nv1 = slot_addr s1\n{access}\nv2 = const 0\nreturn v2"
            )
        },
        &[],
        &["store.32 v1+8, v0", "store.32 v1+12, v0", "store.64 v1-8, v0"],
        &expect![[r#"
            store.32 v1+8, v0: Verdict(0)
            store.32 v1+12, v0: block0, inst1: an access of 4 at offset 12 is not inside of slot s1, which has 12 bytes
            store.64 v1-8, v0: block0, inst1: an access of 8 at offset -8 is not inside of slot s1, which has 12 bytes
        "#]],
    );
    check_each(
        |access| {
            format!(
                "table t0 \"t\" index key 4 value 12 entries 2\nblock0(v0):
                 v1 = const 0\nv2 = lookup t0 [0:32 v1]\nv3 = {access}\nreturn v3"
            )
        },
        &[],
        &["load.32 v2+8", "load.64 v2+8", "load.8 v2+12", "load.8 v2+16", "load.8 v2+32", "load.8 v2-1"],
        &expect![[r#"
            load.32 v2+8: Verdict(0)
            load.64 v2+8: block0, inst2: an access of 8 at offset 8 is not inside of the value of an entry of table t0, which has 12 bytes
            load.8 v2+12: block0, inst2: an access of 1 at offset 12 is not inside of the value of an entry of table t0, which has 12 bytes
            load.8 v2+16: block0, inst2: an access of 1 at offset 16 is not inside of the value of an entry of table t0, which has 12 bytes
            load.8 v2+32: block0, inst2: an access of 1 at offset 32 is not inside of the memory of table t0, which has 32 bytes
            load.8 v2-1: block0, inst2: an access of 1 at offset -1 is not inside of the memory of table t0, which has 32 bytes
        "#]],
    );
    check_each(
        |access| {
            format!(
                "data d0 \"d\" const = 01020304\nblock0(v0):\nv1 = data_addr d0+2\n{access}\nv3 = const 0\nreturn v3"
            )
        },
        &[],
        &["v2 = load.16 v1", "v2 = load.32 v1", "store.8 v1, v0"],
        &expect![[r#"
            v2 = load.16 v1: Verdict(0)
            v2 = load.32 v1: block0, inst1: an access of 4 at offset 2 is not inside of data d0, which has 4 bytes
            store.8 v1, v0: block0, inst1: data d0 is constant and is stored to
        "#]],
    );
}

#[test]
fn what_is_no_address_is_a_fault() {
    check(
        "block0(v0):\nv1 = load.8 v0\nreturn v1",
        &[],
        &expect!["block0, inst0: 0x1000000000000000 is the address of no object"],
    );
    check(
        "block0(v0):\nv1 = const 0\nv2 = load.8 v1+4\nreturn v2",
        &[],
        &expect!["block0, inst1: 0x4 is the address of no object"],
    );
    check(
        "block0(v0):\nv1 = const 0xffffffffffffffff\nv2 = load.64 v1\nreturn v2",
        &[],
        &expect!["block0, inst1: 0xffffffffffffffff is the address of no object"],
    );
    check(
        "table t0 \"t\" opaque key 4 value 4 entries 1\nblock0(v0):\nv1 = table_ref t0\nv2 = load.8 v1\nreturn v2",
        &[],
        &expect!["block0, inst1: 0x6000000000000000 is the address of no object"],
    );
    check(
        "table t0 \"t\" exact key 4 value 4 entries 1\nblock0(v0):\nv1 = table_value t0\nreturn v1",
        &[],
        &expect![
            "block0, inst0: the value of table t0 has no address: only a table of one entry found by index has one"
        ],
    );
}

#[test]
fn a_stack_byte_is_stored_before_it_is_read() {
    let text = "slot s0 8\nblock0(v0):\nv1 = slot_addr s0\nstore.16 v1, v1\nv2 = load.32 v1\nreturn v2";
    check(text, &[], &expect!["block0, inst2: byte 2 of slot s0 is read before anything is stored there"]);
    let mut lenient = Bench::new(text);
    lenient.state.machine.image.uninitialised = Uninitialised::ReadsZero;
    assert!(matches!(lenient.run(&[]).unwrap().ended, Ended::Verdict(0..=0xffff)));
    // What one run stored is gone in the next.
    let mut twice = Bench::new(
        "slot s0 8\nblock0(v0):
         v1 = slot_addr s0\nv2 = ctx_load.32 v0\nv3 = load.8 v2\nv4 = const 0
         branch.eq.64 v3, v4, block2, block1\nblock1:\nstore.64 v1, v3\njump block2\nblock2:
         v5 = load.64 v1\nreturn v5",
    );
    assert_eq!(twice.ended(&[7]), "Verdict(7)");
    expect!["block2, inst5: byte 0 of slot s0 is read before anything is stored there"]
        .assert_eq(&twice.ended(&[0]));
}

#[test]
fn objects_lie_apart_in_the_flat_memory() {
    let ends = "slot s0 12\nslot s1 8\ndata d0 \"d\" const = 00\ndata d1 \"e\" const = 00\n
                table t0 \"t\" index key 4 value 8 entries 1\ntable t1 \"u\" index key 4 value 8 entries 1\n";
    let of = |what: &str| {
        let mut bench = Bench::new(&format!("{ends}block0(v0):\nv1 = {what}\nreturn v1"));
        let Ended::Verdict(address) = bench.run(&[0; 64]).unwrap().ended else { panic!("no verdict") };
        place(address)
    };
    assert_eq!(of("slot_addr s1") - of("slot_addr s0"), 16);
    assert_eq!(of("data_addr d1") - of("data_addr d0"), 64);
    assert_eq!(of("table_value t1") - of("table_value t0"), 4096);
    let all =
        ["slot_addr s0", "slot_addr s1", "data_addr d0", "data_addr d1", "table_value t0", "ctx_load.32 v0"];
    let places: std::collections::BTreeSet<u64> = all.iter().map(|what| of(what)).collect();
    assert_eq!(places.len(), all.len());
}

#[test]
fn sizes_that_make_no_sense_are_refused_before_anything_is_allocated() {
    let refused = |text: &str| {
        let program =
            runnel_ir::parse_program(&format!("program \"p\" {{\n{text}\nblock0(v0):\nreturn v0\n}}"))
                .unwrap();
        let tables = runnel_interp::Tables::new(&program, 4).map(|_| ());
        tables.and_then(|()| runnel_interp::Compiled::new(&program).map(|_| ())).unwrap_err().to_string()
    };
    expect!["the stack frame would take 8000000000 bytes; the interpreter provides up to 1048576"]
        .assert_eq(&refused("slot s0 4000000000\nslot s1 4000000000"));
    expect!["the values of table `t` would take 16000000256000000000 bytes; the interpreter provides up to 2147483648"].assert_eq(&refused("table t0 \"t\" index key 4 value 4000000000 entries 4000000000"));
    expect!["table `t`: keys of index tables have four bytes"]
        .assert_eq(&refused("table t0 \"t\" index key 8 value 4 entries 1"));
    expect!["table `t`: keys of prefix tables are four bytes of length and 1 to 256 of address"]
        .assert_eq(&refused("table t0 \"t\" prefix key 4 value 4 entries 1"));
    expect!["table `t`: values must have at least one byte"]
        .assert_eq(&refused("table t0 \"t\" exact key 4 value 0 entries 1"));
    assert_eq!(verdict("v99 = const 3"), "Verdict(3)");
}
