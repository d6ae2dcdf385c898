//! The functions of the ready-made host.

use expect_test::{Expect, expect};
use runnel_interp::{Called, Ended, xdp::Event};
use runnel_ir::{EntityRef, Table};

use crate::Bench;

const DECLARATIONS: &str = "table t0 \"ports\" opaque key 4 value 4 entries 4
    slot s0 16
    callee c0 \"bpf_ktime_get_ns\" number 5 args 0 varies
    callee c1 \"get_prandom_u32\" number 7 args 0 varies
    callee c2 \"get_smp_processor_id\" number 8 args 0 varies
    callee c3 \"redirect\" number 23 args 2 external
    callee c4 \"redirect_map\" number 51 args 3 external
    callee c5 \"xdp_adjust_head\" number 44 args 2 moves_packet
    callee c6 \"xdp_adjust_tail\" number 65 args 2 moves_packet
    callee c7 \"csum_diff\" number 28 args 5 reads_memory
    callee c8 \"frobnicate\" number 999 args 1
    block0(v0):";

fn bench(body: &str) -> Bench {
    Bench::with_cpus(&format!("{DECLARATIONS}\n{body}\nreturn v99"), 2)
}

fn check(body: &str, packet: &[u8], expected: &Expect) {
    expected.assert_eq(&bench(body).ended(packet));
}

#[test]
fn what_varies_is_pinned() {
    check("v99 = call c0()", &[], &expect!["Verdict(1000000000)"]);
    check("v99 = call c1()", &[], &expect!["Verdict(2654435769)"]);
    let mut second = bench("v99 = call c2()");
    assert_eq!(second.ended(&[]), "Verdict(0)");
    second.state.machine.tables.set_cpu(1).unwrap();
    assert_eq!(second.ended(&[]), "Verdict(1)");
    expect!["there is no CPU 2; the tables were made for 2"]
        .assert_eq(&second.state.machine.tables.set_cpu(2).unwrap_err().to_string());
}

#[test]
fn fields_of_the_context_are_found_by_offset_and_size() {
    check("v99 = ctx_load.32 v0+12", &[], &expect!["Verdict(1)"]);
    check("v99 = ctx_load.32 v0+16", &[], &expect!["Verdict(0)"]);
    check(
        "v99 = ctx_load.64 v0+12",
        &[],
        &expect!["block0, inst0: the context has no field of 8 bytes at offset 12"],
    );
    check(
        "v1 = ctx_load.32 v0\nv2 = ctx_load.32 v0+4\nv99 = sub.64 v2, v1",
        &[0; 30],
        &expect!["Verdict(30)"],
    );
    check(
        "v1 = ctx_load.32 v0\nv2 = ctx_load.32 v0+8\nv99 = sub.64 v2, v1",
        &[0; 30],
        &expect!["Verdict(0)"],
    );
}

#[test]
fn a_redirection_goes_where_the_table_says_or_gives_the_flags_verdict() {
    let to = |index: u64, flags: u64| {
        let mut b = bench(&format!(
            "v1 = table_ref t0\nv2 = const {index}\nv3 = const {flags}\nv99 = call c4(v1, v2, v3)"
        ));
        b.state.host.xdp.opaque.entry(Table::new(0)).or_default().indices.insert(3);
        let ended = b.ended(&[]);
        (ended, b.state.host.xdp.events)
    };
    let event = Event::RedirectMap { table: Table::new(0), index: 3, flags: 2 };
    assert_eq!(to(3, 2), ("Verdict(4)".into(), vec![event]));
    assert_eq!(to(1, 2), ("Verdict(2)".into(), vec![]));
    assert_eq!(to(1, 0), ("Verdict(0)".into(), vec![]));
    // Bits of the index beyond 32 do not count, and unknown flags are an error.
    assert_eq!(to(0x1_0000_0003, 2), ("Verdict(4)".into(), vec![event]));
    assert_eq!(to(3, 8), ("Verdict(0)".into(), vec![]));
    let mut plain = bench("v1 = const 9\nv2 = const 0\nv99 = call c3(v1, v2)");
    assert_eq!(plain.ended(&[]), "Verdict(4)");
    assert_eq!(plain.state.host.xdp.events, [Event::Redirect { ifindex: 9 }]);
    check("v1 = const 9\nv99 = call c3(v1, v1)", &[], &expect!["Verdict(0)"]);
    check(
        "v1 = const 9\nv99 = call c4(v1, v1, v1)",
        &[],
        &expect!["block0, inst1: argument 0 of the callee must be a table"],
    );
}

#[test]
fn the_packet_grows_and_shrinks_within_the_kernels_bounds() {
    let head = |delta: i32| bench(&format!("v1 = const {:#x}\nv99 = call c5(v0, v1)", delta as u32));
    let tail = |delta: i32| bench(&format!("v1 = const {:#x}\nv99 = call c6(v0, v1)", delta as u32));
    let packet: Vec<u8> = (1..=20).collect();
    let after = |mut b: Bench| {
        let ended = b.ended(&packet);
        (ended, b.state.machine.packet.bytes().to_vec())
    };
    let einval = format!("Verdict({})", -22_i64 as u64);
    assert_eq!(after(head(6)), ("Verdict(0)".into(), (7..=20).collect()));
    assert_eq!(after(head(7)), (einval.clone(), packet.clone()));
    assert_eq!(after(head(-216)).0, "Verdict(0)");
    assert_eq!(after(head(-217)).0, einval);
    let mut grown = vec![0; 2];
    grown.extend(&packet);
    assert_eq!(after(head(-2)), ("Verdict(0)".into(), grown));
    assert_eq!(after(tail(-6)), ("Verdict(0)".into(), (1..=14).collect()));
    assert_eq!(after(tail(-7)), (einval.clone(), packet.clone()));
    let mut grown = packet.clone();
    grown.extend([0, 0, 0]);
    assert_eq!(after(tail(3)), ("Verdict(0)".into(), grown));
    assert_eq!(after(tail(3500)).0, "Verdict(0)");
    assert_eq!(after(tail(3501)).0, einval);
}

#[test]
fn a_pointer_from_before_a_move_is_stale() {
    check(
        "v1 = ctx_load.32 v0\nv2 = const 2\nv3 = call c5(v0, v2)\nv99 = load.8 v1+4",
        &[0; 20],
        &expect!["block0, inst3: the packet was moved or resized since the pointer into it was read"],
    );
    // A move that was refused invalidates nothing.
    check(
        "v1 = ctx_load.32 v0\nv2 = const 9\nv3 = call c5(v0, v2)\nv99 = load.8 v1+4",
        &[5; 20],
        &expect!["Verdict(5)"],
    );
}

#[test]
fn checksums_are_those_of_rfc_1071() {
    // The bytes of RFC 1071, section 3: their sum is ddf2, in network order.
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    let diff = |from: usize, to: usize, seed: u64| {
        let mut b = bench(&format!(
            "v1 = ctx_load.32 v0\nv2 = const {from}\nv3 = const {to}\nv4 = const {seed}
             v99 = call c7(v1, v2, v1, v3, v4)"
        ));
        match b.run(&bytes).unwrap().ended {
            Ended::Verdict(v) => v,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(diff(0, 8, 0), u16::from_be_bytes([0xdd, 0xf2]).to_be().into());
    assert_eq!(diff(0, 0, 0x1_2345), 0x2346);
    // Taking out what was added gives the seed back.
    let added = diff(0, 8, 0x1234);
    assert_eq!(diff(8, 0, added), 0x1234);
    // Removing and adding the same changes nothing.
    assert_eq!(diff(8, 8, 0x1234), 0x1234);
    assert_eq!(diff(3, 0, 0) as i64, -22);
}

#[test]
fn unknown_callees_are_faults_until_the_host_is_given_a_function() {
    check(
        "v99 = call c8(v0)",
        &[],
        &expect![
            "block0, inst0: callee `frobnicate` (number 999) is not known to the host; give the host a function for it"
        ],
    );
    let mut b = bench("v1 = const 20\nv99 = call c8(v1)");
    b.state.host.set_function(999, Box::new(|_, args, _| Ok(Called::Value(args[0] + 1))));
    assert_eq!(b.ended(&[]), "Verdict(21)");
}
