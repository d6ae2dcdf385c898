//! Prints what the replayer itself costs per packet, by packet length, twice interleaved (so that the second
//! column tells how far to trust the first), and how long one empty replay takes. Needs root.

use std::time::Instant;

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;
use runnel_kernel::program::Program;
use runnel_kernel::replay::Replayer;
use runnel_kernel::stats::summarize;

fn main() -> runnel_kernel::Result<()> {
    let nothing = ProgramSpec {
        name: "nothing".into(),
        section: String::new(),
        prog_type: 6,
        expected_attach_type: 0,
        flags: 0,
        license: "GPL".into(),
        insns: vec![
            Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 1),
            Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
        ],
        maps: vec![],
    };
    let (program, _) = Program::load(&nothing, &[])?;
    println!("{:>6} {:>10} {:>10} {:>14} {:>14}", "bytes", "a ns", "b ns", "p25..p75", "one call µs");
    for len in [60, 64, 128, 512, 1514] {
        let replayer = Replayer::new(&vec![vec![7; len]; 4096], &nothing)?;
        let mut slices = [Vec::new(), Vec::new()];
        for round in 0..20 {
            slices[round % 2].extend(replayer.run(&program, 50_000)?);
        }
        let [a, b] = slices.map(|s| summarize(&s).expect("slices"));
        let started = Instant::now();
        replayer.run(&program, 1)?;
        let call = started.elapsed().as_micros();
        println!(
            "{len:>6} {:>10.1} {:>10.1} {:>14} {call:>14}",
            a.median,
            b.median,
            format!("{:.1}..{:.1}", a.p25, a.p75)
        );
    }
    Ok(())
}
