//! The router lifted and lowered again, without any transformation: the kernel takes it and it does the same.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use runnel_bpf::lift::lift;
use runnel_bpf::lower::{Layout, lower};
use runnel_kernel::map::UpdateMode;
use runnel_kernel::object::{LoadedObject, Object};
use runnel_kernel::program::Program;
use runnel_kernel::test_run::TestRunner;

fn compile(dir: &Path) -> std::path::PathBuf {
    let out = dir.join("router.bpf.o");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../nf/router/router.bpf.c");
    let status = Command::new("clang-19")
        .args(["-O2", "-g", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-c", source, "-o"])
        .arg(&out)
        .status()
        .unwrap();
    assert!(status.success());
    out
}

fn filled(path: &Path, tables: &router_ctl::Tables) -> LoadedObject {
    let loaded = Object::open(path).unwrap().load().unwrap();
    for (map, entries) in tables.entries() {
        let map = loaded.map(map).unwrap();
        for (key, value) in entries {
            map.update(&key, &value, UpdateMode::Any).unwrap();
        }
    }
    loaded
}

#[test]
fn the_router_survives_lifting_and_lowering() {
    let dir = tempfile::tempdir().unwrap();
    let object = compile(dir.path());
    let prefixes = runnel_testkit::routes::generate(500, 1).unwrap();
    let tables = router_ctl::Tables::spread(&prefixes, 16, 4).unwrap();
    let original = filled(&object, &tables);
    let other = filled(&object, &tables);
    let spec = &original.program("router").unwrap().spec;
    let program = lift(spec).unwrap();
    runnel_ir::verify(&program).unwrap();
    println!("{program}");
    let lowered = lower(&program, &Layout::default()).unwrap();
    let mut new = spec.clone();
    new.insns = lowered.insns;
    println!("{}", runnel_bpf::disasm::program(&new));
    let maps = other.maps_of(spec).unwrap();
    let fds: Vec<_> = maps.iter().map(|m| m.as_fd()).collect();
    let (candidate, stats) = match Program::load(&new, &fds) {
        Ok(loaded) => loaded,
        Err(e) => panic!("{e}\n{}", e.log),
    };
    println!("{stats:?} {} -> {}", spec.insns.len(), new.insns.len());
    let spec = runnel_testkit::trace::TraceSpec {
        packets: 5000,
        model: runnel_testkit::trace::Model::Pareto(runnel_testkit::trace::Locality::None),
        payload: 18,
        seed: 1,
    };
    let trace = runnel_testkit::trace::trace(&prefixes, &spec).unwrap();
    let mut a = TestRunner::new(&original.program("router").unwrap().program);
    let mut b = TestRunner::new(&candidate);
    let mut verdicts = std::collections::BTreeMap::new();
    for packet in &trace {
        let a = a.run(packet, &[]).unwrap();
        let b = b.run(packet, &[]).unwrap();
        *verdicts.entry(a.retval).or_insert(0) += 1;
        assert_eq!((a.retval, a.data), (b.retval, b.data));
    }
    println!("{verdicts:?}");
}
