//! What the tests of the checker share: the router compiled, its tables as contents of maps, pairs of instances.
//!
//! Every test here needs root and fails with the kernel's error without it.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod programs;

use std::path::PathBuf;

use router_ctl::Tables;
use runnel::xdp::check::{Check, CheckError, Finished, Subject, ThirdParty};
use runnel::xdp::maps::{Instance, Source, StandIn};
use runnel::xdp::version::{Plan, Version};
use runnel_bpf::insn::Insn;
use runnel_bpf::lower::{Layout, lower};
use runnel_bpf::maps_json::{Entry, MapContents, Value};
use runnel_bpfcc::Compiler;
use runnel_engine::specialize::Specialized;

/// A C source of this repository compiled to a BPF object, removed with this value.
pub struct Object {
    dir: tempfile::TempDir,
}

impl Object {
    /// The router.
    pub fn router() -> Object {
        Self::of(concat!(env!("CARGO_MANIFEST_DIR"), "/../../nf/router/router.bpf.c"))
    }

    /// Any source, by its path.
    pub fn of(source: &str) -> Object {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let object = dir.path().join("program.bpf.o");
        Compiler::find()
            .and_then(|compiler| compiler.compile(source.as_ref(), &object))
            .unwrap_or_else(|e| panic!("{e}"));
        Object { dir }
    }

    /// Source text.
    pub fn of_text(text: &str) -> Object {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("program.bpf.c");
        std::fs::write(&path, text).expect("writing the source");
        Self::of(path.to_str().expect("temporary paths are text"))
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("program.bpf.o")
    }
}

/// Tables of the router as contents of its maps.
pub fn contents(tables: &Tables) -> MapContents {
    let entry = |(key, value)| Entry { key, value: Value::Bytes(value) };
    let map = |(name, entries): (&str, Vec<_>)| (name.to_owned(), entries.into_iter().map(entry).collect());
    MapContents { maps: tables.entries().into_iter().map(map).collect() }
}

/// An object on two sets of maps with the same contents.
pub struct Pair {
    pub a: Instance,
    pub b: Instance,
    pub plan: Plan,
    _device: StandIn,
}

impl Pair {
    pub fn new(object: &Object, program: &str, contents: &MapContents) -> Pair {
        let device = StandIn::new().expect("a stand-in device");
        let path = object.path();
        let source = Source { object: &path, program, contents, devices: &device };
        let instance = || Instance::load(source).unwrap_or_else(|e| panic!("{e}"));
        let (a, b) = (instance(), instance());
        let plan = Plan::new(&b).unwrap_or_else(|e| panic!("{e}"));
        Pair { a, b, plan, _device: device }
    }

    /// Specializes, and lets `edit` change the result before it is built.
    pub fn version(&self, edit: impl FnOnce(&mut Specialized)) -> Version {
        let (mut specialized, _) = self.plan.specialize().expect("specializing");
        edit(&mut specialized);
        build(&self.b, specialized)
    }

    /// Compares the original with itself.
    pub fn compare_originals(&self, packets: &[Vec<u8>]) -> Finished {
        let subject = |instance| Subject::original(instance).unwrap_or_else(|e| panic!("{e}"));
        self.run(&subject(&self.a), &subject(&self.b), None, packets)
    }

    /// Compares the original with what lifting and lowering make of it.
    pub fn compare_round_trip(&self, packets: &[Vec<u8>]) -> Finished {
        let lowered = lower(&self.plan.ir, &Layout::default()).unwrap_or_else(|e| panic!("{e}"));
        let original = Subject::original(&self.a).unwrap_or_else(|e| panic!("{e}"));
        let copy = match Subject::original_edited(&self.b, |insns| *insns = lowered.insns) {
            Ok(copy) => copy,
            Err(CheckError::Refused(refused)) => panic!("{refused}\n{}", refused.log),
            Err(e) => panic!("{e}"),
        };
        self.run(&original, &copy, None, packets)
    }

    /// Compares a version, of which the bytecode was changed by `edit`, on these packets.
    pub fn compare(
        &self,
        version: &Version,
        edit: impl FnOnce(&mut Vec<Insn>),
        packets: &[Vec<u8>],
    ) -> Finished {
        let original = Subject::original(&self.a).unwrap_or_else(|e| panic!("{e}"));
        let optimized = Subject::version_edited(&self.b, version, edit).unwrap_or_else(|e| panic!("{e}"));
        self.run(&original, &optimized, Some(version), packets)
    }

    fn run(&self, a: &Subject, b: &Subject, version: Option<&Version>, packets: &[Vec<u8>]) -> Finished {
        let third = ThirdParty { original: &self.plan.ir, version };
        let mut check =
            Check::new((&self.a, a), (&self.b, b), third, usize::MAX).unwrap_or_else(|e| panic!("{e}"));
        for packet in packets {
            check.packet(packet).unwrap_or_else(|e| panic!("{e}"));
        }
        check.finish().unwrap_or_else(|e| panic!("{e}"))
    }
}

fn build(instance: &Instance, specialized: Specialized) -> Version {
    match Version::build(instance, specialized) {
        Ok(version) => version,
        Err(runnel::xdp::version::VersionError::Candidate(
            runnel::xdp::candidate::CandidateError::Refused(refused),
        )) => panic!("{refused}\n{}", refused.log),
        Err(e) => panic!("{e}"),
    }
}
