//! Properties: map contents survive printing and reading, errors point at the entry that is wrong, and every
//! instruction has a text.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use runnel_bpf::disasm;
use runnel_bpf::insn::Insn;
use runnel_bpf::maps_json::{Entry, MapContents, MapsJsonError, Value};
use runnel_bpf::spec::{MapSpec, ProgramSpec};

fn value() -> impl Strategy<Value = Value> {
    let bytes = || vec(any::<u8>(), 0..20);
    let per_cpu = vec(bytes(), 0..5).prop_map(|values| Value::PerCpu((0..).zip(values).collect()));
    prop_oneof![
        bytes().prop_map(Value::Bytes),
        per_cpu,
        any::<String>().prop_map(Value::Program),
        any::<String>().prop_map(Value::Map),
    ]
}

fn contents() -> impl Strategy<Value = MapContents> {
    let entry = (vec(any::<u8>(), 0..20), value()).prop_map(|(key, value)| Entry { key, value });
    btree_map(any::<String>(), vec(entry, 0..6), 0..4).prop_map(|maps| MapContents { maps })
}

fn insn() -> impl Strategy<Value = Insn> {
    let fields = (any::<u8>(), any::<u8>(), any::<i16>(), any::<i32>());
    // Offsets and immediates that mean something are rare among all there are.
    let off = prop_oneof![any::<i16>(), Just(0), Just(1), Just(8), Just(16), Just(32)];
    let imm = prop_oneof![any::<i32>(), 0..=16i32, Just(0xe1), Just(0xf1), Just(0x100), Just(0x110)];
    (fields, off, imm).prop_map(|((code, regs, ..), off, imm)| Insn { code, regs, off, imm })
}

proptest! {
    #[test]
    fn map_contents_survive_printing_and_reading(contents in contents()) {
        let text = contents.to_json();
        prop_assert!(!text.contains('\n'));
        prop_assert_eq!(MapContents::parse(text.as_bytes()).expect("its own output"), contents);
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = MapContents::parse(text.as_bytes());
    }

    #[test]
    fn every_instruction_has_a_text(insn in insn(), second in proptest::option::of(insn())) {
        let text = disasm::instruction(insn, second);
        prop_assert!(!text.is_empty() && !text.contains('\n'));
    }

    #[test]
    fn every_program_has_a_line_per_instruction(insns in vec(insn(), 0..40)) {
        let map = MapSpec { name: "m".into(), map_type: 1, key_size: 1, value_size: 1, max_entries: 1, flags: 0 };
        let spec = ProgramSpec {
            name: "p".into(),
            section: String::new(),
            prog_type: 0,
            expected_attach_type: 0,
            flags: 0,
            license: String::new(),
            insns,
            maps: vec![map],
        };
        let text = disasm::program(&spec);
        let mut pc = 0;
        for line in text.lines() {
            let starts_with_its_slot = line.starts_with(&format!("{pc}: "));
            prop_assert!(starts_with_its_slot, "{} does not start with {}", line, pc);
            pc += disasm::slots(spec.insns[pc], spec.insns.get(pc + 1).copied());
        }
        prop_assert_eq!(pc, spec.insns.len());
    }
}

#[test]
fn the_format_is_bpftool_s() {
    let text = r#"{"n":[{"key":["0x00"],"values":[{"cpu":0,"value":["0x0a"]},{"cpu":1,"value":["0xff"]}]}],"routes":[{"key":["0x20","0x0"],"value":["0x01"],"formatted":{"key":{"len":32},"value":1}}]}"#;
    let contents = MapContents::parse(text.as_bytes()).expect("good text");
    let per_cpu = Value::PerCpu(vec![(0, vec![10]), (1, vec![255])]);
    assert_eq!(contents.maps["n"], [Entry { key: vec![0], value: per_cpu }]);
    assert_eq!(contents.maps["routes"], [Entry { key: vec![32, 0], value: Value::Bytes(vec![1]) }]);
    let printed =
        text.replace(r#","formatted":{"key":{"len":32},"value":1}"#, "").replace("\"0x0\"", "\"0x00\"");
    assert_eq!(contents.to_json(), printed);
}

#[track_caller]
fn check_error(text: &str, expected: &str) {
    let error = MapContents::parse(text.as_bytes()).expect_err("bad text").to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn errors_name_map_entry_and_what_is_wrong() {
    let good = r#"{"key":["0x00"],"value":["0x01"]}"#;
    check_error(
        &format!(r#"{{"a":[],"routes":[{good},{{"key":["0x00"],"value":["0x100"]}}]}}"#),
        "map `routes`, entry 1: invalid value: string \"0x100\", expected a byte like \"0x2a\" at line 1",
    );
    check_error(r#"{"m":[{"key":["12"],"value":[]}]}"#, "map `m`, entry 0: invalid value: string \"12\"");
    check_error(r#"{"m":[{"key":["0x+1"],"value":[]}]}"#, "map `m`, entry 0: invalid value");
    check_error(r#"{"m":[{"value":["0x01"]}]}"#, "map `m`, entry 0: missing field `key`");
    check_error(r#"{"m":[{"key":["0x01"]}]}"#, "map `m`, entry 0: has none of `value`, `values`");
    check_error(
        r#"{"m":[{"key":[],"value":[],"prog":"p"}]}"#,
        "map `m`, entry 0: has more than one of `value`",
    );
    check_error(r#"{"m":[{"key":[],"valeu":[]}]}"#, "map `m`, entry 0: unknown field `valeu`");
    check_error(
        r#"{"m":[{"key":[],"values":[{"cpu":1,"value":[]},{"cpu":1,"value":[]}]}]}"#,
        "map `m`, entry 0: lists CPUs in `values` twice or out of order",
    );
    check_error(r#"{"m":[],"m":[]}"#, "map `m`: is there twice");
    check_error(r#"{"m":{}}"#, "map `m`: invalid type: map, expected an array of entries");
    check_error("[]", "map contents: invalid type: sequence, expected an object with an array");
    check_error("{} x", "map contents: trailing characters");
}

#[test]
fn entries_are_checked_against_their_maps() {
    let spec = |name: &str, map_type| MapSpec {
        name: name.into(),
        map_type,
        key_size: 2,
        value_size: 1,
        max_entries: 4,
        flags: 0,
    };
    let specs = [spec("hash", 1), spec("percpu", 5), spec("programs", 3), spec("maps", 13)];
    let check = |text: &str| {
        let contents = MapContents::parse(text.as_bytes()).expect("good text");
        contents.check(&specs).map_err(|error: MapsJsonError| error.to_string())
    };
    let key = r#""key":["0x01","0x02"]"#;
    let good = format!(
        r#"{{"hash":[{{{key},"value":["0x01"]}}],"percpu":[{{{key},"values":[{{"cpu":0,"value":["0x01"]}}]}}],
            "programs":[{{{key},"prog":"p"}}],"maps":[{{{key},"inner":"m"}}]}}"#
    );
    assert_eq!(check(&good), Ok(()));
    let bad = |text: String, expected: &str| assert_eq!(check(&text), Err(expected.to_owned()));
    bad(
        format!(r#"{{"hash":[{{{key},"value":["0x01"]}},{{"key":["0x01"],"value":["0x01"]}}]}}"#),
        "map `hash`, entry 1: the key has 1 bytes, the map's have 2",
    );
    bad(
        format!(r#"{{"hash":[{{{key},"value":[]}}]}}"#),
        "map `hash`, entry 0: the value has 0 bytes, the map's have 1",
    );
    bad(
        format!(r#"{{"percpu":[{{{key},"value":["0x01"]}}]}}"#),
        "map `percpu`, entry 0: entries of this map need `values`, one per CPU",
    );
    bad(
        r#"{"hsah":[]}"#.to_owned(),
        "map `hsah`: the object has no map of that name; it has `hash`, `percpu`, `programs`, `maps`",
    );
}
