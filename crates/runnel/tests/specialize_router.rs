//! scratch
use std::os::fd::AsFd;
use runnel_bpf::lift::lift;
use runnel_engine::specialize::{Request, TableState, specialize};
use runnel_ir::{SecondaryMap, Table, EntityRef};
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::object::Object;
use runnel_kernel::test_run::TestRunner;
use runnel_tables::{Contents, Entry, Budget};
use runnel::xdp::candidate::*;

#[test]
fn scratch() {
    let object = std::path::PathBuf::from("/tmp/lead/router.o");
    let prefixes = runnel_testkit::routes::generate(2592, 1).unwrap();
    let tables = router_ctl::Tables::spread(&prefixes, 16, 4).unwrap();
    let fill = || {
        let loaded = Object::open(&object).unwrap().load().unwrap();
        for (map, entries) in tables.entries() {
            let map = loaded.map(map).unwrap();
            for (key, value) in entries { map.update(&key, &value, UpdateMode::Any).unwrap(); }
        }
        loaded
    };
    let (a, b) = (fill(), fill());
    let orig = b.program("router").unwrap();
    let program = lift(&orig.spec).unwrap();
    let maps = b.maps_of(&orig.spec).unwrap();
    let t0 = std::time::Instant::now();
    let mut states: SecondaryMap<Table, Option<TableState>> = SecondaryMap::new();
    for (i, map) in maps.iter().enumerate() {
        let t = Table::new(i);
        let d = &program.tables[t];
        if d.per_cpu || d.kind == runnel_ir::TableKind::Opaque { continue }
        let entries = map.read_all().unwrap().into_iter().map(|(key, value)| Entry { key, value }).collect();
        states[t] = Some(TableState::Known(Contents { kind: d.kind, key_size: d.key_size, value_size: d.value_size, max_entries: d.max_entries, entries }));
    }
    println!("read {:?}", t0.elapsed());
    let t0 = std::time::Instant::now();
    let epoch = 7u64;
    let s = specialize(&Request { program: &program, tables: &states, epoch, budget: Budget::default() }).unwrap();
    println!("specialize {:?}", t0.elapsed());
    for t in &s.tables { println!("{t:?}"); }
    println!("{}", s.program.to_string().lines().map(|l| if l.len() > 150 { &l[..150] } else { l }).collect::<Vec<_>>().join("\n"));
    let em = Map::create(&runnel_bpf::spec::MapSpec { name: "e".into(), map_type: 2, key_size: 4, value_size: 64, max_entries: 1, flags: 1 << 10 }).unwrap();
    let m = em.mmap(true).unwrap();
    m.store_u64(0, epoch);
    let fb = fallback_array(&orig.program).unwrap();
    let c = match build(&s, Surroundings { original: &orig.spec, maps: &maps, epoch: (&em, 0), fallback: &fb }) {
        Ok(c) => c,
        Err(CandidateError::Refused(e)) => panic!("{}", e.log),
        Err(e) => panic!("{e}"),
    };
    println!("{}", runnel_bpf::disasm::program(&c.spec));
    println!("lower {:?} data {:?} load {:?} mem {}", c.lower_time, c.data_time, c.load, c.memory_bytes);
    let spec = runnel_testkit::trace::TraceSpec { packets: 50000, model: runnel_testkit::trace::Model::Pareto(runnel_testkit::trace::Locality::None), payload: 18, seed: 1 };
    let trace = runnel_testkit::trace::trace(&prefixes, &spec).unwrap();
    let mut ra = TestRunner::new(&a.program("router").unwrap().program);
    let mut rb = TestRunner::new(&c.program);
    for packet in &trace {
        let x = ra.run(packet, &[]).unwrap();
        let y = rb.run(packet, &[]).unwrap();
        assert_eq!((x.retval, x.data), (y.retval, y.data));
    }
    println!("fallbacks {}", c.fallbacks());
    m.store_u64(0, epoch + 1);
    for packet in &trace {
        let x = ra.run(packet, &[]).unwrap();
        let y = rb.run(packet, &[]).unwrap();
        assert_eq!((x.retval, x.data), (y.retval, y.data));
    }
    println!("fallbacks {}", c.fallbacks());
    let _ = em.as_fd();
}
