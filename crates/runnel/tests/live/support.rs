//! What the tests of sessions share: compiling, filling, a lab of two namespaces.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use runnel::xdp::maps::MapsError;
use runnel::xdp::session::Session;
use runnel::xdp::setup::Setup;
use runnel_bpfcc::Compiler;
use runnel_engine::controller::{Controller, Cycle, Step};
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::link::{Mode, XdpLink};
use runnel_kernel::map::UpdateMode;
use runnel_kernel::netns::{Netns, VethPair};
use runnel_kernel::object::LoadedObject;
use runnel_kernel::program::Program;
use runnel_kernel::test_run::TestRunner;
use runnel_testkit::packet::Frame;

/// Two namespaces with a veth pair, a BPF file system and a directory, all removed on drop.
pub struct Lab {
    pub bpffs: PrivateBpffs,
    pub dir: tempfile::TempDir,
    pub under_test: Netns,
    _veth: VethPair,
    _tester: Netns,
}

impl Lab {
    pub fn new() -> Lab {
        let (tester, under_test) = (Netns::new().unwrap(), Netns::new().unwrap());
        let veth = under_test.veth("r0", &tester, "t0").unwrap();
        Lab {
            bpffs: PrivateBpffs::new().unwrap(),
            dir: tempfile::tempdir().unwrap(),
            under_test,
            _veth: veth,
            _tester: tester,
        }
    }

    /// A session's setup for an object on `r0`.
    pub fn setup(&self, object: PathBuf) -> Setup {
        Setup {
            object,
            program: None,
            device: "r0".into(),
            mode: Mode::Native,
            state_dir: self.bpffs.path().join("state"),
            bump: true,
        }
    }

    /// Where the session pins things.
    pub fn pins(&self) -> PathBuf {
        self.bpffs.path().join("state/r0")
    }

    /// The program on the hook.
    pub fn hooked(&self) -> Program {
        let link = XdpLink::from_pin(&self.pins().join("link")).unwrap();
        Program::from_id(link.info().unwrap().program_id).unwrap()
    }

    /// Compiles C, given as text.
    pub fn compile_text(&self, name: &str, text: &str) -> PathBuf {
        let source = self.dir.path().join(format!("{name}.bpf.c"));
        std::fs::write(&source, text).unwrap();
        self.compile(&source)
    }

    /// Compiles the router.
    pub fn router(&self) -> PathBuf {
        self.compile(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../nf/router/router.bpf.c")))
    }

    fn compile(&self, source: &Path) -> PathBuf {
        let out = self.dir.path().join(source.with_extension("o").file_name().unwrap());
        Compiler::find()
            .and_then(|compiler| compiler.compile(source, &out))
            .unwrap_or_else(|e| panic!("{e}"));
        out
    }
}

/// Fills a loaded router.
pub fn fill(tables: &router_ctl::Tables) -> impl FnOnce(&LoadedObject) -> Result<(), MapsError> + '_ {
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
pub fn next_cycle(controller: &mut Controller, session: &mut Session) -> Cycle {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        match controller.step(session).expect("the session is alive") {
            Step::Cycled(cycle) => return *cycle,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("no cycle within 20 s");
}

/// Verdict on a packet to `to`, and its destination address afterwards.
pub fn forward(program: &Program, to: &str) -> (u32, [u8; 6]) {
    let packet = Frame::to(to.parse().unwrap()).build().unwrap();
    let mut runner = TestRunner::new(program);
    let outcome = runner.run(&packet, &[]).unwrap();
    (outcome.retval, outcome.data[..6].try_into().unwrap())
}
