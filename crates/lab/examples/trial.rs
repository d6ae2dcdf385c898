#![allow(missing_docs)]
use runnel_lab::{sys::*, testbed::*, traffic::*};
use runnel_kernel::{object::Object, link::*, map::*};
use router_ctl::{Tables};
use std::{sync::Arc, path::Path, time::*};
fn main() {
    let batch: u32 = std::env::args().nth(1).unwrap().parse().unwrap();
    let cpus = Cpus::choose().unwrap();
    stay_on_cpu(cpus.control).unwrap();
    let tb = Arc::new(Testbed::new().unwrap());
    let obj = Object::open(Path::new(&std::env::args().nth(2).unwrap())).unwrap().load().unwrap();
    let prefixes = runnel_testkit::routes::generate(2500, 1).unwrap();
    let tables = Tables::spread(&prefixes, 16, 16).unwrap();
    for (name, entries) in tables.entries() { let m = obj.map(name).unwrap(); for (k,v) in entries { m.update(&k,&v,UpdateMode::Any).unwrap(); } }
    let _l = tb.attach_router(&obj.program("router").unwrap().program).unwrap();
    let frames: Vec<[u8;64]> = prefixes.iter().map(|p| { let mut f = runnel_testkit::packet::Frame::to(std::net::Ipv4Addr::from(u32::from(p.addr()) | 1 | (if p.prefix_len()==0 {0x20000000} else {0}))); f.payload = 22; f.build().unwrap().try_into().unwrap() }).collect();
    let n = frames.len() as u16;
    let spec = TrafficSpec { frames, patterns: vec![(0..n).collect()], batch, cpu: cpus.traffic };
    let mut t = Traffic::attach(&tb, &spec).unwrap();
    t.start();
    let begin = Instant::now();
    let (mut fwd, mut passed, mut lost, mut widths) = (0u64,0u64,0u64,vec![]);
    let mut cpu = 0f64;
    let mut done = false;
    loop {
        if begin.elapsed() > Duration::from_secs(3) && !done { t.stop().unwrap(); done = true; }
        let i = Instant::now();
        let got = t.read(usize::MAX, |p| { match p.fate { Fate::Forwarded{..} => {fwd+=1; widths.push((p.ended-p.started) as u32)}, Fate::Passed => passed+=1, Fate::Lost => lost+=1 } });
        cpu += i.elapsed().as_secs_f64();
        if done && got == 0 { break }
        std::thread::sleep(Duration::from_millis(10));
    }
    widths.sort();
    println!("batch {batch}: {:?} fwd {fwd} passed {passed} lost {lost} rate {:.0}/s reading {:.1} ns/packet width median {} p99 {} max {}", t.counters(), (fwd+passed) as f64/3.0, cpu*1e9/(fwd+passed) as f64, widths[widths.len()/2], widths[widths.len()*99/100], widths[widths.len()-1]);
}
