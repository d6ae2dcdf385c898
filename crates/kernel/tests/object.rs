//! Object files against the real kernel. Needs root for loading, not for opening.

mod common;

use std::os::fd::AsFd;
use std::path::Path;

use common::{XDP, compile};
use runnel_bpf::insn;
use runnel_kernel::Error;
use runnel_kernel::object::{Object, ObjectError};
use runnel_kernel::program::Program;

const TWO_PROGRAMS: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __type(key, __u32); __type(value, __u64); __uint(max_entries, 8); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __type(key, __u32); __type(value, __u64); __uint(max_entries, 4); } unused SEC(".maps");
const volatile __u32 verdict = 1;
__u64 count;

static __noinline __u64 look(__u32 key) { __u64 *v = bpf_map_lookup_elem(&table, &key); return v ? *v : 0; }

SEC("xdp") int first(struct xdp_md *ctx) { __sync_fetch_and_add(&count, 1); return look(ctx->rx_queue_index) ? 3 : verdict; }
SEC("tc") int second(struct __sk_buff *skb) { return 0; }
SEC("xdp") int refused(struct xdp_md *ctx) { return *(__u32 *)(long)ctx->data; }
"#;

fn open() -> (common::Compiled, Object) {
    let compiled = compile("two_programs", TWO_PROGRAMS);
    let object = Object::open(&compiled.path()).expect("opening");
    (compiled, object)
}

#[test]
fn programs_are_listed_with_section_and_type() {
    let (_compiled, object) = open();
    let listed: Vec<_> = object.programs().into_iter().map(|p| (p.name, p.section, p.prog_type)).collect();
    let expected = [("first", "xdp", XDP), ("refused", "xdp", XDP), ("second", "tc", 3)];
    assert_eq!(listed, expected.map(|(n, s, t)| (n.to_owned(), s.to_owned(), t)));
}

#[test]
fn a_selected_program_comes_back_in_canonical_form_and_loads_again_from_it() {
    let (_compiled, mut object) = open();
    object.select(&["first"]).expect("selecting");
    let loaded = object.load().expect("loading");
    assert_eq!(loaded.programs().keys().collect::<Vec<_>>(), ["first"]);
    let first = loaded.program("first").expect("it was selected");
    let spec = &first.spec;
    assert_eq!((spec.section.as_str(), spec.license.as_str(), spec.prog_type), ("xdp", "GPL", XDP));
    let names: Vec<_> = spec.maps.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["two_prog.bss", "two_prog.rodata", "table"], "in order of first use");
    assert!(loaded.maps().contains_key("unused"));
    let sources: Vec<u8> = spec.insns.iter().filter(|i| i.is_ld_imm64()).map(|i| i.src()).collect();
    assert!(
        sources.iter().all(|s| [insn::PSEUDO_MAP_IDX, insn::PSEUDO_MAP_IDX_VALUE].contains(s)),
        "{sources:?}"
    );
    assert!(spec.insns.iter().any(|i| i.code == insn::JMP | insn::CALL && i.src() == insn::PSEUDO_CALL));

    let maps = loaded.maps_of(spec).expect("all are there");
    let fds: Vec<_> = maps.iter().map(|m| m.as_fd()).collect();
    let (again, _) = Program::load(spec, &fds).expect("loading from canonical form");
    let size = |p: &Program| p.info().map(|i| (i.xlated_bytes, i.verified_insns)).expect("info");
    assert_eq!(size(&first.program), size(&again), "the kernel sees the same instructions");
    for program in [&first.program, &again] {
        assert_eq!(program.test_run(&[0; 64], &[], 1, 0).expect("running").retval, 1);
    }
    loaded
        .map("table")
        .expect("a map")
        .update(&[0; 4], &[1; 8], runnel_kernel::map::UpdateMode::Any)
        .expect("updating");
    assert_eq!(again.test_run(&[0; 64], &[], 1, 0).expect("running").retval, 3, "it uses the same map");
}

#[test]
fn initial_contents_can_be_set_before_loading() {
    let (_compiled, mut object) = open();
    object.select(&["first"]).expect("selecting");
    object.set_initial("two_prog.rodata", &2u32.to_ne_bytes()).expect("setting");
    let loaded = object.load().expect("loading");
    assert!(loaded.map("two_prog.rodata").expect("a map").is_frozen().expect("fdinfo"));
    let program = &loaded.program("first").expect("it was selected").program;
    assert_eq!(program.test_run(&[0; 64], &[], 1, 0).expect("running").retval, 2);
}

#[test]
fn attach_type_and_flags_are_kept() {
    let (_compiled, mut object) = open();
    object.select(&["first"]).expect("selecting");
    object.set_program_kind("first", 1 << 5, 0).expect("setting");
    let loaded = object.load().expect("loading");
    let spec = &loaded.program("first").expect("it was selected").spec;
    assert_eq!((spec.flags, spec.expected_attach_type), (1 << 5, 0));
}

#[test]
fn a_refused_program_gives_the_verifier_log() {
    let (_compiled, mut object) = open();
    object.select(&["refused"]).expect("selecting");
    let Err(Error::Load(error)) = object.load() else { panic!("the verifier refuses it") };
    assert_eq!(error.program, "refused");
    assert!(error.reason().contains("outside of the packet"), "{}", error.reason());
}

#[test]
fn each_way_to_give_the_wrong_file_has_its_own_error() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name);
    let error = |path: &Path| match Object::open(path) {
        Err(Error::Object(e)) => e,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error(&path("nothere.o")), ObjectError::NotFound { .. }));
    assert!(matches!(error(dir.path()), ObjectError::Unreadable { .. }));
    std::fs::write(path("text.o"), "int main;").expect("writing");
    assert!(matches!(error(&path("text.o")), ObjectError::NotElf { .. }));
    std::fs::write(path("cut.o"), b"\x7fELF\x02\x01\x01").expect("writing");
    assert!(matches!(error(&path("cut.o")), ObjectError::NotBpf { .. }));
    let own = std::env::current_exe().expect("this test");
    assert!(error(&own).to_string().contains("not a BPF object"), "{}", error(&own));
}

#[test]
fn a_damaged_object_is_an_error_at_every_length() {
    let compiled = compile("damaged", TWO_PROGRAMS);
    let bytes = std::fs::read(compiled.path()).expect("reading");
    for length in (0..bytes.len()).step_by(97) {
        assert!(Object::open_bytes(Path::new("damaged.o"), &bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn unknown_names_are_answered_with_those_there_are() {
    let (_compiled, mut object) = open();
    let error = object.select(&["thrid"]).unwrap_err().to_string();
    assert!(error.contains("first, refused, second"), "{error}");
    let error = object.expect_type("second", XDP).unwrap_err().to_string();
    assert!(error.contains("sched_cls") && error.contains("xdp"), "{error}");
    let error = object.set_value_size("tabel", 8).unwrap_err().to_string();
    assert!(error.contains("table, unused"), "{error}");
}

#[test]
fn static_program_arrays_are_filled_when_their_programs_are_selected() {
    let source = r#"
SEC("xdp") int leaf(struct xdp_md *ctx) { return 3; }
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __type(key, __u32);
  __array(values, int (struct xdp_md *)); } jumps SEC(".maps") = { .values = { [0] = (void *)&leaf } };
SEC("xdp") int root(struct xdp_md *ctx) { bpf_tail_call_static(ctx, &jumps, 0); return 1; }
"#;
    let compiled = compile("jumps", source);
    let loaded = Object::open(&compiled.path()).expect("opening").load().expect("loading");
    let root = &loaded.program("root").expect("all are loaded").program;
    assert_eq!(root.test_run(&[0; 64], &[], 1, 0).expect("running").retval, 3);
    let mut object = Object::open(&compiled.path()).expect("opening");
    object.select(&["root"]).expect("selecting");
    let error = object.load().unwrap_err().to_string();
    assert!(error.contains("jumps"), "{error}");
}
