//! A session on a real interface: it specializes, follows its tables, and leaves nothing behind. Needs root.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use runnel::xdp::session::{Session, Setup};
use runnel_engine::controller::{Controller, Cycle, Outcome, Policy, Step};
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::link::Mode;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::netns::Netns;
use runnel_kernel::object::LoadedObject;
use runnel_kernel::program::Program;
use runnel_kernel::test_run::TestRunner;
use runnel_testkit::packet::Frame;

fn router(dir: &std::path::Path) -> PathBuf {
    let out = dir.join("router.bpf.o");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../nf/router/router.bpf.c");
    let clang = std::env::var("RUNNEL_CLANG").unwrap_or_else(|_| "clang-19".into());
    let status = Command::new(clang)
        .args(["-O2", "-g", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-c", source, "-o"])
        .arg(&out)
        .status()
        .expect("clang runs");
    assert!(status.success());
    out
}

fn fill(tables: &router_ctl::Tables) -> impl FnOnce(&LoadedObject) -> Result<(), runnel::xdp::maps::MapsError> + '_ {
    |loaded| {
        for (map, entries) in tables.entries() {
            let map = loaded.map(map)?;
            for (key, value) in entries {
                map.update(&key, &value, UpdateMode::Any)?;
            }
        }
        Ok(())
    }
}

/// Steps until a cycle has run.
fn next_cycle(controller: &mut Controller, session: &mut Session) -> Cycle {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        match controller.step(session).expect("the session is alive") {
            Step::Cycled(cycle) => return *cycle,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no cycle within 20 s");
}

/// Destination address of what the program on the hook makes of a packet to `to`.
fn next_mac(link: u32, to: &str) -> [u8; 6] {
    let program = Program::from_id(link).unwrap();
    let packet = Frame::to(to.parse().unwrap()).build().unwrap();
    let mut runner = TestRunner::new(&program);
    let outcome = runner.run(&packet, &[]).unwrap();
    outcome.data[..6].try_into().unwrap()
}

#[test]
fn a_session_follows_its_tables_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let bpffs = PrivateBpffs::new().unwrap();
    let (tester, under_test) = (Netns::new().unwrap(), Netns::new().unwrap());
    let _veth = under_test.veth("r0", &tester, "t0").unwrap();
    let prefixes: Vec<ipnet::Ipv4Net> = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"].map(|p| p.parse().unwrap()).to_vec();
    let tables = router_ctl::Tables::spread(&prefixes, 8, 2).unwrap();
    let state_dir = bpffs.path().join("state");
    let setup = Setup {
        object,
        program: None,
        device: "r0".into(),
        mode: Mode::Native,
        state_dir: state_dir.clone(),
        bump: true,
    };
    under_test
        .run(|| {
            let mut session = Session::start(&setup, fill(&tables)).unwrap();
            let mut controller = Controller::new(Policy::default());
            let first = next_cycle(&mut controller, &mut session);
            assert!(matches!(first.outcome, Outcome::Installed(_)), "{first:?}");
            println!("{first:?}");
            let pins = state_dir.join("r0");
            let link = runnel_kernel::link::XdpLink::from_pin(&pins.join("link")).unwrap();
            let before = next_mac(link.info().unwrap().program_id, "10.1.2.3");
            assert_eq!(session.fallbacks(), 0);

            // Another next hop for one prefix: from the update on, it is the new one, by whichever program.
            let routes = Map::from_pin(&pins.join("maps/routes")).unwrap();
            let (key, value) = tables.entries().iter().find(|(n, _)| *n == "routes").unwrap().1[2].clone();
            let other = tables.entries().iter().find(|(n, _)| *n == "routes").unwrap().1[0].1.clone();
            assert_ne!(value, other);
            routes.update(&key, &other, UpdateMode::Any).unwrap();
            let stale = next_mac(link.info().unwrap().program_id, "10.1.2.3");
            assert_ne!(stale, before);
            assert_eq!(session.fallbacks(), 1);
            let second = next_cycle(&mut controller, &mut session);
            assert!(matches!(second.outcome, Outcome::Installed(_)), "{second:?}");
            assert_eq!(next_mac(link.info().unwrap().program_id, "10.1.2.3"), stale);
            assert_eq!(session.fallbacks(), 0);

            // A withdrawn route: the covering one takes over, or none.
            assert!(routes.delete(&key).unwrap());
            let covered = next_mac(link.info().unwrap().program_id, "10.1.2.3");
            let third = next_cycle(&mut controller, &mut session);
            assert!(matches!(third.outcome, Outcome::Installed(_)), "{third:?}");
            assert_eq!(next_mac(link.info().unwrap().program_id, "10.1.2.3"), covered);
            assert!(matches!(controller.step(&mut session).unwrap(), Step::Current));

            // Nothing is left of it.
            drop(routes);
            session.stop().unwrap();
            assert!(!pins.exists());
            assert_eq!(link.info().unwrap().ifindex, 0);
        })
        .unwrap();
}
