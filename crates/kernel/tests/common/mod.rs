//! What the tests against the real kernel share: compiling C to objects, small programs, unique names.
//!
//! Every test here needs root and fails with the kernel's error without it.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_bpfcc::Compiler;
use runnel_kernel::map::Map;

/// `BPF_PROG_TYPE_XDP`.
pub const XDP: u32 = 6;
/// `BPF_PROG_TYPE_SCHED_CLS`.
pub const SCHED_CLS: u32 = 3;
/// `BPF_MAP_TYPE_*`.
pub const HASH: u32 = 1;
pub const ARRAY: u32 = 2;
pub const PROG_ARRAY: u32 = 3;
pub const PERCPU_HASH: u32 = 5;
pub const PERCPU_ARRAY: u32 = 6;
pub const LRU_HASH: u32 = 9;
pub const LPM_TRIE: u32 = 11;
pub const ARRAY_OF_MAPS: u32 = 12;
pub const HASH_OF_MAPS: u32 = 13;
pub const QUEUE: u32 = 22;
pub const RINGBUF: u32 = 27;
/// `BPF_F_*`.
pub const NO_PREALLOC: u32 = 1;
pub const MMAPABLE: u32 = 1 << 10;

/// A name that no other test uses, short enough for an interface.
pub fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{:x}x{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A C source compiled to a BPF object, removed with this value.
pub struct Compiled {
    dir: tempfile::TempDir,
    stem: String,
}

impl Compiled {
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(format!("{}.o", self.stem))
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Compiles C, with the usual headers included for it.
pub fn compile(stem: &str, source: &str) -> Compiled {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let compiled = Compiled { dir, stem: stem.to_owned() };
    let head =
        "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";
    let compiler = Compiler::find().expect("a compiler").include(env!("RUNNEL_BUILD_BPF_INCLUDE"));
    compiler
        .option("-mcpu=v3")
        .compile_text(&format!("{head}{source}"), &compiled.path())
        .unwrap_or_else(|e| panic!("{e}"));
    compiled
}

pub fn map_spec(
    name: &str,
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> MapSpec {
    MapSpec { name: name.to_owned(), map_type, key_size, value_size, max_entries, flags }
}

/// `r0 = value; exit`.
pub fn returns(prog_type: u32, value: i32) -> ProgramSpec {
    program(
        prog_type,
        vec![
            Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, value),
            Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
        ],
        vec![],
    )
}

/// A program that refers to a map and does nothing with it.
pub fn holder(map: &Map) -> ProgramSpec {
    let mut insns = vec![
        Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX, 0, 0),
        Insn::new(0, 0, 0, 0, 0),
    ];
    let end = returns(XDP, 2);
    insns.extend(end.insns);
    program(XDP, insns, vec![map.spec().clone()])
}

pub fn program(prog_type: u32, insns: Vec<Insn>, maps: Vec<MapSpec>) -> ProgramSpec {
    ProgramSpec {
        name: "test".to_owned(),
        section: String::new(),
        prog_type,
        expected_attach_type: 0,
        flags: 0,
        license: "GPL".to_owned(),
        insns,
        maps,
    }
}
