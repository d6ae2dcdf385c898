//! How long specializing the router takes, without any kernel: `cargo run --release
//! --example specialize_time -- target/nf/router.bpf.o [RUNS]`; no runs prints the result instead.

use std::time::{Duration, Instant};

use runnel_bpf::lift::lift;
use runnel_bpf::object::Object;
use runnel_engine::specialize::{Request, TableState, specialize};
use runnel_ir::{SecondaryMap, Table, TableKind};
use runnel_tables::{Budget, Contents, Entry};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("give the router's object")?;
    let runs: u32 = args.next().map_or(Ok(20), |n| n.parse())?;
    let object = Object::parse(&std::fs::read(path)?)?;
    let program = object.program("router").ok_or("the object has no program `router`")?;
    let mut ir = lift(program.spec.as_ref().map_err(|e| e.to_string())?)?;
    runnel_passes::clean_up(&mut ir);
    let prefixes = runnel_testkit::routes::generate(2592, 1)?;
    let filled = router_ctl::Tables::spread(&prefixes, 16, 4)?.entries();
    let mut tables: SecondaryMap<Table, Option<TableState>> = SecondaryMap::new();
    for (table, data) in ir.tables.iter().filter(|(_, t)| !t.per_cpu && t.kind != TableKind::Opaque) {
        let entries =
            filled.iter().find(|(name, _)| *name == data.name).map_or(Vec::new(), |(_, e)| e.clone());
        let entries = entries.into_iter().map(|(k, v)| Entry { key: k.into(), value: v.into() }).collect();
        tables[table] = Some(TableState::Known(Contents {
            kind: data.kind,
            key_size: data.key_size,
            value_size: data.value_size,
            max_entries: data.max_entries,
            entries,
        }));
    }
    if runs == 0 {
        let request = Request { program: &ir, tables: &tables, epoch: 1, budget: Budget::default() };
        println!("{}", specialize(&request)?.program);
        return Ok(());
    }
    let mut best = Duration::MAX;
    for _ in 0..runs {
        let started = Instant::now();
        let request = Request { program: &ir, tables: &tables, epoch: 1, budget: Budget::default() };
        let version = specialize(&request)?;
        best = best.min(started.elapsed());
        assert!(version.is_worthwhile());
    }
    println!("best of {runs}: {:.3} ms", best.as_secs_f64() * 1e3);
    Ok(())
}
