//! Sessions on a real interface: they specialize, follow their tables, refuse what is not safe, and leave nothing
//! behind. Needs root.

mod support;

use runnel::xdp::session::Session;
use runnel::xdp::setup::{SessionError, Setup};
use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;
use runnel_engine::controller::{Controller, Cycle, Outcome, Policy, Step, Target};
use runnel_engine::specialize::{Request, specialize};
use runnel_ir::{InstData, Size};
use runnel_kernel::link::XdpLink;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::program::Program;
use runnel_tables::Budget;
use std::os::fd::AsFd;
use support::{Lab, fill, forward, next_cycle};

fn tables() -> router_ctl::Tables {
    let prefixes: Vec<ipnet::Ipv4Net> =
        ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"].map(|p| p.parse().unwrap()).to_vec();
    router_ctl::Tables::spread(&prefixes, 8, 2).unwrap()
}

fn assert_installed(cycle: &Cycle) {
    assert!(matches!(cycle.outcome, Outcome::Installed(_)), "{cycle:?}");
}

fn left(cycle: &Cycle, table: &str) -> Option<String> {
    cycle.tables.iter().find(|t| t.name == table).unwrap_or_else(|| panic!("no table {table}")).left.clone()
}

#[test]
fn a_session_follows_its_tables_and_leaves_nothing() {
    let lab = Lab::new();
    let (setup, tables) = (lab.setup(lab.router()), tables());
    let routes_of =
        |tables: &router_ctl::Tables| tables.entries().into_iter().find(|(n, _)| *n == "routes").unwrap().1;
    let run = || {
        let mut session = Session::start(&setup, fill(&tables)).unwrap();
        let mut controller = Controller::new(Policy::default());
        assert_installed(&next_cycle(&mut controller, &mut session));
        let before = forward(&lab.hooked(), "10.1.2.3");
        assert_eq!(session.fallbacks(), 0);

        // Another next hop for one prefix: from the update on it is the new one, by whichever program.
        let routes = Map::from_pin(&lab.pins().join("maps/routes")).unwrap();
        let (key, value) = routes_of(&tables)[2].clone();
        let other = routes_of(&tables)[0].1.clone();
        assert_ne!(value, other);
        routes.update(&key, &other, UpdateMode::Any).unwrap();
        let changed = forward(&lab.hooked(), "10.1.2.3");
        assert_ne!(changed, before);
        assert_eq!(session.fallbacks(), 1);
        assert_installed(&next_cycle(&mut controller, &mut session));
        assert_eq!(forward(&lab.hooked(), "10.1.2.3"), changed);
        assert_eq!(session.fallbacks(), 0);

        // A withdrawn route: the covering one takes over.
        assert!(routes.delete(&key).unwrap());
        let covered = forward(&lab.hooked(), "10.1.2.3");
        assert_installed(&next_cycle(&mut controller, &mut session));
        assert_eq!(forward(&lab.hooked(), "10.1.2.3"), covered);
        assert!(matches!(controller.step(&mut session).unwrap(), Step::Current));

        let link = XdpLink::from_pin(&lab.pins().join("link")).unwrap();
        session.stop().unwrap();
        assert!(!lab.pins().exists());
        assert_eq!(link.info().unwrap().ifindex, 0);
    };
    lab.under_test.run(run).unwrap();
}

#[test]
fn a_device_with_a_dot_in_its_name_has_a_directory() {
    let lab = Lab::new();
    let _vlan = lab.under_test.veth("eth0.100", &lab.under_test, "peer").unwrap();
    let setup = Setup { device: "eth0.100".into(), ..lab.setup(lab.router()) };
    let run = || {
        let session = Session::start(&setup, |_| Ok(())).unwrap();
        assert_eq!(session.dir(), setup.state_dir.join("eth0:100"));
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
    assert!(!setup.state_dir.exists());
}

#[test]
fn when_the_tail_call_fails_the_original_runs_in_line() {
    let lab = Lab::new();
    let (setup, tables) = (lab.setup(lab.router()), tables());
    let run = || {
        let mut session = Session::start(&setup, fill(&tables)).unwrap();
        assert_installed(&next_cycle(&mut Controller::new(Policy::default()), &mut session));
        let before = forward(&lab.hooked(), "10.1.2.3");
        let array = Map::from_pin(&lab.pins().join("fallback")).unwrap();
        assert!(array.delete(&0u32.to_ne_bytes()).unwrap());
        let neighbours = Map::from_pin(&lab.pins().join("maps/neighbours")).unwrap();
        // Any write makes the version stale.
        let (key, value) = neighbours.read_all().unwrap().remove(0);
        neighbours.update(&key, &value, UpdateMode::Any).unwrap();
        assert_eq!(forward(&lab.hooked(), "10.1.2.3"), before);
        assert_eq!(session.fallbacks(), 1);
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
}

const UNSAFE_TABLES: &str = r#"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 4); __uint(map_flags, BPF_F_MMAPABLE);
         __type(key, __u32); __type(value, __u64); } mapped SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4);
         __type(key, __u32); __type(value, __u32); } shared SEC(".maps");
SEC("xdp") int verdict(struct xdp_md *ctx)
{
	__u32 key = 1;
	__u64 *skip = bpf_map_lookup_elem(&mapped, &key);
	__u32 *found;
	if (skip && *skip)
		return XDP_PASS;
	key = ctx->rx_queue_index;
	found = bpf_map_lookup_elem(&shared, &key);
	return found ? *found : XDP_ABORTED;
}
char LICENSE[] SEC("license") = "GPL";
"#;

#[test]
fn tables_that_can_change_unseen_are_left_alone() {
    let lab = Lab::new();
    let setup = lab.setup(lab.compile_text("unsafe", UNSAFE_TABLES));
    let run = || {
        let mut session = Session::start(&setup, |_| Ok(())).unwrap();
        let mut controller = Controller::new(Policy::default());
        let first = next_cycle(&mut controller, &mut session);
        assert_installed(&first);
        assert_eq!(left(&first, "mapped").unwrap(), "user space may write it through memory mappings");
        assert_eq!(left(&first, "shared"), None);

        // Another program that holds the map appears: nobody knows what it will write.
        let shared = Map::from_pin(&lab.pins().join("maps/shared")).unwrap();
        let spec = ProgramSpec {
            name: "intruder".into(),
            section: String::new(),
            prog_type: 6,
            expected_attach_type: 37,
            flags: 0,
            license: "GPL".into(),
            insns: vec![
                Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX, 0, 0),
                Insn::default(),
                Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, 2),
                Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
            ],
            maps: vec![shared.spec().clone()],
        };
        let (intruder, _) = Program::load(&spec, &[shared.as_fd()]).unwrap();
        // This process is the session's own, whose loads the watcher takes for harmless; a write makes it look.
        shared.update(&7u32.to_ne_bytes(), &2u32.to_ne_bytes(), UpdateMode::Any).unwrap();
        let second = next_cycle(&mut controller, &mut session);
        let why = left(&second, "shared").unwrap();
        assert_eq!(why, format!("program `intruder` (id {}) holds it too and may write it", intruder.id()));
        assert!(matches!(second.outcome, Outcome::Nothing), "{second:?}");
        // The version before is stale, so the original runs; nothing wrong can.
        assert_eq!(forward(&lab.hooked(), "10.0.0.1").0, 0);
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
}

#[test]
fn a_version_that_the_verifier_refuses_leaves_the_hook_as_it_was() {
    let lab = Lab::new();
    let (setup, tables) = (lab.setup(lab.router()), tables());
    let run = || {
        let mut session = Session::start(&setup, fill(&tables)).unwrap();
        let hooked = lab.hooked().id();
        let snapshot = session.snapshot().unwrap().unwrap();
        let request = Request {
            program: session.program(),
            tables: &snapshot.tables,
            epoch: snapshot.epoch,
            budget: Budget::default(),
        };
        let mut version = specialize(&request).unwrap();
        // A load far outside of the packet's proven bounds, in the first block behind the guard.
        let program = &mut version.program;
        let body = program.layout[2];
        let load =
            program.blocks[body].insts.iter().copied().find_map(|inst| match program.insts[inst].data {
                InstData::CtxLoad { offset: 0, .. } => program.insts[inst].result,
                _ => None,
            });
        let packet = load.expect("the body reads the packet's start first");
        program.append_inst(
            body,
            InstData::Store { size: Size::B8, ptr: packet, offset: 4000, value: packet },
            None,
        );
        let error = session.install(&version).unwrap_err();
        let SessionError::Refused { reason, log } = &error else { panic!("{error}") };
        assert!(reason.contains("packet"), "{reason}");
        let path = log.strip_prefix("the whole log is in ").expect("the log is kept");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(reason.as_str()) && text.lines().count() > 5);
        std::fs::remove_file(path).unwrap();
        assert_eq!(lab.hooked().id(), hooked);
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
}

#[test]
fn a_start_that_fails_leaves_nothing() {
    let lab = Lab::new();
    let (setup, tables) = (lab.setup(lab.router()), tables());
    let other = Setup { state_dir: lab.bpffs.path().join("other"), ..setup.clone() };
    let run = || {
        let session = Session::start(&setup, fill(&tables)).unwrap();
        let hooked = lab.hooked().id();
        // The hook is taken, by somebody of whom this state directory knows nothing.
        let refused = Session::start(&other, fill(&tables)).unwrap_err();
        assert!(matches!(refused, SessionError::Kernel(_)), "{refused}");
        assert!(!other.state_dir.exists());
        assert_eq!(lab.hooked().id(), hooked);
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
}

#[test]
fn one_interface_has_one_session() {
    let lab = Lab::new();
    let (setup, tables) = (lab.setup(lab.router()), tables());
    let run = || {
        let session = Session::start(&setup, fill(&tables)).unwrap();
        let hooked = lab.hooked().id();
        let second = Session::start(&setup, fill(&tables)).unwrap_err();
        assert!(matches!(second, SessionError::Busy { .. }), "{second}");
        assert_eq!(lab.hooked().id(), hooked);
        session.stop().unwrap();
    };
    lab.under_test.run(run).unwrap();
}
