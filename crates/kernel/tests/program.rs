//! Programs, test runs, links and namespaces against the real kernel. Needs root.

mod common;

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use common::{
    ARRAY, ARRAY_OF_MAPS, HASH, HASH_OF_MAPS, MMAPABLE, SCHED_CLS, XDP, map_spec, program, returns,
};
use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::holders::{Holders, Survey};
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::program::{Program, all_programs, enable_stats};
use runnel_kernel::test_run::TestRunner;

fn holders_of(map_id: u32) -> Holders {
    Survey::take().expect("listing").holders_of(map_id)
}

/// Adds one to the 64-bit counter at byte 8 of the first map's value, addressed directly; returns 2.
fn counter() -> ProgramSpec {
    let insns = vec![
        Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX_VALUE, 0, 0),
        Insn::new(0, 0, 0, 0, 8),
        Insn::new(insn::ALU64 | insn::MOV | insn::K, 2, 0, 0, 1),
        Insn::new(insn::STX | insn::ATOMIC | insn::DW, 1, 2, 0, 0),
        Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 2),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ];
    program(XDP, insns, vec![map_spec("counts", ARRAY, 4, 16, 1, MMAPABLE)])
}

fn load(spec: &ProgramSpec) -> (Program, Vec<Map>) {
    let maps: Vec<Map> = spec.maps.iter().map(|m| Map::create(m).expect("creating")).collect();
    let fds: Vec<_> = maps.iter().map(AsFd::as_fd).collect();
    let (program, _) = Program::load(spec, &fds).expect("loading");
    (program, maps)
}

#[test]
fn canonical_map_references_load_and_run() {
    let (program, maps) = load(&counter());
    let run = program.test_run(&[0; 64], &[], 5, 0).expect("running");
    assert_eq!((run.retval, run.data_out.len()), (2, 64));
    assert_eq!(maps[0].mmap(false).expect("mapping").load_u64(8), 5);
    let info = program.info().expect("info");
    assert_eq!((info.map_ids, info.prog_type, info.name.as_str()), (vec![maps[0].id()], XDP, "test"));
    assert!(info.xlated_bytes > 0 && info.jited_bytes > 0 && info.gpl_compatible);
}

#[test]
fn a_load_reports_what_verification_cost() {
    let (_, stats) = Program::load(&returns(XDP, 1), &[]).expect("loading");
    assert_eq!(stats.verified_insns, 2);
    assert!(stats.load_time >= stats.verify_time);
    assert!(stats.log_tail.contains("processed 2 insns"), "{}", stats.log_tail);
}

#[test]
fn a_refusal_carries_the_whole_log_and_names_the_reason() {
    let mut spec = returns(XDP, 1);
    spec.insns.remove(0);
    let error = Program::load(&spec, &[]).expect_err("r0 is not set");
    assert_eq!(error.reason(), "R0 !read_ok");
    assert!(error.log.contains("(95) exit"), "{}", error.log);
    assert!(!error.is_permission());
}

#[test]
fn a_refusal_with_a_log_of_megabytes_is_kept_whole() {
    // Two loads' worth of straight-line code, then a mistake: level 1 prints every instruction of the path.
    let mut insns = vec![Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 0)];
    insns.extend((0..60_000).map(|i| Insn::new(insn::ALU64 | insn::XOR | insn::K, 0, 0, 0, i)));
    insns.push(Insn::new(insn::ALU64 | insn::MOV | insn::X, 0, 9, 0, 0));
    insns.push(Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0));
    let error = Program::load(&program(XDP, insns, vec![]), &[]).expect_err("r9 is not set");
    assert_eq!(error.reason(), "R9 !read_ok");
    assert!(error.log.len() > 1 << 20, "{} bytes", error.log.len());
    assert!(error.log.starts_with("0: ") || error.log.contains("\n0: "), "{}", &error.log[..200]);
}

#[test]
fn missing_map_descriptors_are_reported_before_the_kernel_is_asked() {
    let error = Program::load(&counter(), &[]).expect_err("one map is needed");
    assert!(error.reason().contains("refers to 1 maps"), "{error}");
}

#[test]
fn a_runner_gives_each_packet_its_own_run() {
    let (program, _maps) = load(&counter());
    let mut runner = TestRunner::new(&program);
    for i in 0..300u32 {
        let packet = [i as u8; 60];
        let outcome = runner.run(&packet, &[]).expect("running");
        assert_eq!((outcome.retval, outcome.data), (2, &packet[..]));
    }
}

#[test]
fn a_context_goes_in_and_comes_out() {
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex. The program
    // puts four bytes of metadata in front; the context tells where the data now begin.
    let program_with_meta = program(
        XDP,
        vec![
            Insn::new(insn::ALU64 | insn::MOV | insn::K, 2, 0, 0, -4),
            Insn::new(insn::JMP | insn::CALL, 0, 0, 0, 54),
            Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 1),
            Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
        ],
        vec![],
    );
    let (program, _) = Program::load(&program_with_meta, &[]).expect("loading");
    let ctx: Vec<u8> = [0u32, 64, 0, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
    let run = program.test_run(&[9; 64], &ctx, 1, 0).expect("running");
    let field = |i: usize| u32::from_ne_bytes(run.ctx_out[i * 4..][..4].try_into().expect("four bytes"));
    assert_eq!((field(0), field(1), field(2)), (4, 68, 0));
}

#[test]
fn too_short_a_packet_is_an_error_not_a_run() {
    let (program, _) = Program::load(&returns(XDP, 2), &[]).expect("loading");
    assert!(program.test_run(&[0; 5], &[], 1, 0).unwrap_err().to_string().contains("5 bytes"));
}

#[test]
fn statistics_count_only_while_the_guard_lives() {
    let (program, _) = Program::load(&returns(SCHED_CLS, 0), &[]).expect("loading");
    let guard = enable_stats().expect("statistics");
    program.test_run(&[0; 64], &[], 10, 0).expect("running");
    let counted = program.info().expect("info");
    drop(guard);
    assert!(counted.run_cnt >= 10 && counted.run_time_ns > 0);
}

#[test]
fn holders_are_the_programs_that_name_the_map() {
    let (with, maps) = load(&counter());
    let (without, _) = Program::load(&returns(XDP, 1), &[]).expect("loading");
    let holders: Vec<u32> = holders_of(maps[0].id()).programs.iter().map(|p| p.id).collect();
    assert_eq!(holders, [with.id()]);
    let all: Vec<u32> = all_programs().expect("listing").iter().map(|p| p.id).collect();
    assert!(all.contains(&with.id()) && all.contains(&without.id()));
    let other = Map::create(&map_spec("other", HASH, 4, 4, 1, 0)).expect("creating");
    assert_eq!(holders_of(other.id()), Holders::default());
}

#[test]
fn a_program_is_found_again_by_id_and_pin() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    let (program, _) = Program::load(&returns(XDP, 1), &[]).expect("loading");
    let pin = bpffs.path().join("program");
    program.pin(&pin).expect("pinning");
    assert_eq!(Program::from_pin(&pin).expect("by pin").id(), program.id());
    assert_eq!(
        Program::from_id(program.id()).expect("by id").info().expect("info"),
        program.info().expect("info")
    );
    assert_eq!(Program::from_id(u32::MAX).unwrap_err().errno().map(|e| e.0), Some(libc::ENOENT));
}

#[test]
fn two_programs_of_equal_code_share_their_tag() {
    let tag = |value| Program::load(&returns(XDP, value), &[]).expect("loading").0.info().expect("info").tag;
    assert_eq!(tag(1), tag(1));
    assert_ne!(tag(1), tag(2));
}

#[test]
fn map_values_written_by_user_space_reach_the_program() {
    let (program, maps) = load(&counter());
    maps[0].update(&[0; 4], &[0xff; 16], UpdateMode::Any).expect("updating");
    program.test_run(&[0; 64], &[], 1, 0).expect("running");
    let value = maps[0].lookup(&[0; 4]).expect("looking up").expect("an array entry");
    assert_eq!(value, [[0xff; 8], [0; 8]].concat());
}

#[test]
fn an_iterator_made_for_a_map_is_one_of_its_holders() {
    let source = r#"
struct bpf_iter_meta; struct bpf_map; struct bpf_iter__bpf_map_elem {
  union { struct bpf_iter_meta *meta; } __attribute__((aligned(8)));
  union { struct bpf_map *map; } __attribute__((aligned(8)));
  union { void *key; } __attribute__((aligned(8)));
  union { void *value; } __attribute__((aligned(8))); };
SEC("iter/bpf_map_elem") int rewrite(struct bpf_iter__bpf_map_elem *ctx) {
  if (ctx->value) *(__u32 *)ctx->value += 1;
  return 0;
}
"#;
    let compiled = common::compile("iterator", source);
    let object = runnel_kernel::object::Object::open(&compiled.path()).expect("opening");
    let loaded = object.load().expect("loading");
    let program = &loaded.program("rewrite").expect("a program").program;
    let map = Map::create(&map_spec("table", HASH, 4, 4, 8, 0)).expect("creating");
    map.update(&[1; 4], &7u32.to_ne_bytes(), UpdateMode::Any).expect("updating");

    let mut info = libbpf_sys::bpf_iter_link_info::default();
    info.map.map_fd = map.as_fd().as_raw_fd() as u32;
    let opts = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as _,
        iter_info: &mut info,
        iter_info_len: size_of::<libbpf_sys::bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: the options live during the call; the descriptors returned are new and ours.
    let (link, iterator) = unsafe {
        let attach_type = libbpf_sys::BPF_TRACE_ITER;
        let link = libbpf_sys::bpf_link_create(program.as_fd().as_raw_fd(), 0, attach_type, &opts);
        assert!(link >= 0, "{link}");
        let iterator = libbpf_sys::bpf_iter_create(link);
        assert!(iterator >= 0, "{iterator}");
        (OwnedFd::from_raw_fd(link), OwnedFd::from_raw_fd(iterator))
    };
    let holders = holders_of(map.id());
    assert_eq!((holders.programs.len(), holders.iterator_links.len()), (0, 1));
    drop(link);
    let holders = holders_of(map.id());
    assert_eq!(holders.iterator_links.len(), 0);
    assert!(holders.element_iterators.iter().any(|p| p.id == program.id()), "{holders:?}");
    // This is why it matters: reading from it writes to the map, without any bpf(2) call, and without the link.
    std::io::Read::read_to_end(&mut std::fs::File::from(iterator), &mut Vec::new()).expect("reading");
    assert_eq!(map.lookup(&[1; 4]).expect("looking up"), Some(8u32.to_ne_bytes().into()));
}

#[test]
fn a_map_of_maps_holds_its_elements() {
    let map = Map::create(&map_spec("element", HASH, 4, 4, 1, 0)).expect("creating");
    for kind in [ARRAY_OF_MAPS, HASH_OF_MAPS] {
        let outer = Map::create_outer(&map_spec("outer", kind, 4, 4, 4, 0), &map).expect("creating");
        assert!(holders_of(map.id()).outer_maps.is_empty());
        outer.update_fd(&1u32.to_ne_bytes(), map.as_fd()).expect("putting it in");
        assert_eq!(holders_of(map.id()).outer_maps, [outer.id()]);
    }
}

#[test]
fn a_want_of_privilege_is_reported_as_such() {
    let errors = std::thread::spawn(|| {
        // The bare system call changes this thread only.
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
        let map = Map::create(&map_spec("table", HASH, 4, 4, 8, 0)).expect_err("creating").is_permission();
        let load = Program::load(&returns(XDP, 2), &[]).expect_err("loading").is_permission();
        let listing = all_programs().expect_err("listing").is_permission();
        (map, load, listing)
    });
    assert_eq!(errors.join().expect("the thread"), (true, true, true));
}
