//! Prints what the watcher costs: nanoseconds per call, without it and with it, for an unrelated system call, a
//! lookup, and updates of an unwatched and of a watched map. Median over slices, the two interleaved. Needs root.

use std::time::Instant;

use runnel_bpf::spec::MapSpec;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::watcher::Watcher;

const CALLS: u32 = 2_000;
const SLICES: usize = 101;

fn main() -> runnel_kernel::Result<()> {
    let spec = MapSpec {
        name: "cost".into(),
        map_type: 1,
        key_size: 16,
        value_size: 8,
        max_entries: 4096,
        flags: 0,
    };
    let (watched, unwatched) = (Map::create(&spec)?, Map::create(&spec)?);
    let (key, value) = ([1u8; 16], [2u8; 8]);
    let mut out = [0u8; 8];
    println!("{:<20} {:>10} {:>10}", "ns per call", "without", "with");
    report("getppid", &watched, || {
        nix::unistd::getppid();
        Ok(())
    })?;
    report("lookup", &watched, || watched.lookup_into(&key, &mut out).map(drop))?;
    report("update, unwatched", &watched, || unwatched.update(&key, &value, UpdateMode::Any))?;
    report("update, watched", &watched, || watched.update(&key, &value, UpdateMode::Any))
}

fn report(
    name: &str,
    watched: &Map,
    mut call: impl FnMut() -> runnel_kernel::Result<()>,
) -> runnel_kernel::Result<()> {
    let mut slice = || -> runnel_kernel::Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..SLICES {
            let started = Instant::now();
            for _ in 0..CALLS {
                call()?;
            }
            times.push(started.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
        Ok(times)
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        without.extend(slice()?);
        let watcher = Watcher::install(None)?;
        watcher.watch(watched.id(), 0)?;
        with.extend(slice()?);
    }
    println!("{name:<20} {:>10.0} {:>10.0}", median(&mut without), median(&mut with));
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
