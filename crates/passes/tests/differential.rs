//! Random programs behave as before after each pass, alone and all together: same verdicts, packets, events, live
//! data and table contents. `RUNNEL_SEEDS=n` runs n programs for each pass instead of the usual number,
//! `RUNNEL_SEED=k` one.

use std::convert::Infallible;

use runnel_interp::xdp::{Event, XdpHost};
use runnel_interp::{Compiled, Contents, Counters, Ended, Machine, State, Tables};
use runnel_ir::{DataKind, Program, verify};
use runnel_passes::{Fuel, clean_up_with};
use runnel_testkit::programs::compilers::rewrite_some;
use runnel_testkit::programs::{Config, Generated, Inputs, generate, seeds};

/// Everything that a sequence of runs lets others see.
#[derive(PartialEq, Eq, Debug)]
struct Observed {
    /// Of each run: how it ended, the packet, what was done outside.
    runs: Vec<(Ended, Vec<u8>, Vec<Event>)>,
    tables: Vec<Contents>,
    live: Vec<Vec<u8>>,
    steps: u64,
}

fn observe(program: &Program, inputs: &Inputs) -> Observed {
    let compiled = Compiled::new(program).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let mut tables = Tables::new(program, 2).unwrap();
    for entry in &inputs.entries {
        tables.put(entry.table, &entry.key, &entry.value).unwrap();
    }
    let mut host = XdpHost::new(program);
    for &(table, index) in &inputs.indices {
        host.xdp.opaque.entry(table).or_default().indices.insert(index);
    }
    let mut state = State::new(Machine::new(tables, compiled.image()), host);
    let mut counters = Counters::new(&compiled);
    let mut observed = Observed { runs: Vec::new(), tables: Vec::new(), live: Vec::new(), steps: 0 };
    for packet in &inputs.packets {
        state.machine.packet.set(packet).unwrap();
        state.host.xdp.begin_packet();
        let outcome =
            compiled.run(&mut state, &mut counters).unwrap_or_else(|fault| panic!("{fault}\n{program}"));
        observed.steps += outcome.steps;
        let events = state.host.xdp.events.clone();
        observed.runs.push((outcome.ended, state.machine.packet.bytes().to_vec(), events));
    }
    observed.tables = state.machine.tables.contents();
    let live = program.data.iter().filter(|(_, data)| data.kind == DataKind::Live);
    observed.live = live.filter_map(|(d, _)| Some(state.machine.image.data(d)?.to_vec())).collect();
    observed
}

/// The program of a seed, and what it runs on.
fn generated(seed: u64) -> Generated {
    let config = Config::default().sized(8 + (seed / 5 % 5) as u32 * 16);
    let mut generated = generate(seed, &config);
    rewrite_some(seed, &mut generated.program);
    if seed % 5 == 4 {
        // Only then are some of the bytes that are copied constants.
        runnel_passes::fold_constants(&mut generated.program);
    }
    generated
}

/// Runs `pass` on random programs; says how many of them it changed.
fn check(name: &str, pass: impl Fn(&mut Program) -> bool) {
    let mut changed = 0;
    let seeds = seeds(600);
    for seed in seeds.clone() {
        let generated = generated(seed);
        let before = observe(&generated.program, &generated.inputs);
        let mut program = generated.program.clone();
        changed += u64::from(pass(&mut program));
        verify(&program).unwrap_or_else(|e| panic!("seed {seed}, {name}: {e}\n{program}"));
        let after = observe(&program, &generated.inputs);
        let same = (&after.runs, &after.tables, &after.live) == (&before.runs, &before.tables, &before.live);
        assert!(same, "seed {seed}: {name} changed what the program does\n{}\n{program}", generated.program);
    }
    let count = seeds.count();
    assert!(changed > 0 || count == 1, "{name} changed none of {count} programs");
    println!("{name} changed {changed} of {count} programs");
}

macro_rules! differential {
    ($($pass:ident)*) => {$(
        #[test]
        fn $pass() {
            check(stringify!($pass), runnel_passes::$pass);
        }
    )*};
}

differential! {
    eliminate_dead_code
    eliminate_dead_stores
    fold_addresses
    fold_constants
    forward_loads
    merge_loads
    merge_stores
    number_values
    simplify_algebra
    simplify_cfg
    thread_jumps
}

/// The first run of a pass after which the program behaves differently.
fn culprit(program: &Program, inputs: &Inputs, before: &Observed) -> Option<(u64, &'static str)> {
    let mut remaining = 0;
    loop {
        let mut candidate = program.clone();
        let mut fuel = Fuel { remaining };
        let mut last = None;
        let done: Result<(), Infallible> = clean_up_with(&mut candidate, &mut fuel, |pass, _| {
            last = Some(pass);
            Ok(())
        });
        let Ok(()) = done;
        if observe(&candidate, inputs).runs != before.runs {
            return Some((remaining, last?));
        }
        if fuel.remaining > 0 {
            return None;
        }
        remaining += 1;
    }
}

#[test]
fn clean_up() {
    let (mut steps_before, mut steps_after) = (0, 0);
    let seeds = seeds(300);
    for seed in seeds.clone() {
        let generated = generated(seed);
        let before = observe(&generated.program, &generated.inputs);
        let mut program = generated.program.clone();
        runnel_passes::clean_up_checked(&mut program).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let after = observe(&program, &generated.inputs);
        if (&after.runs, &after.tables, &after.live) != (&before.runs, &before.tables, &before.live) {
            let culprit = culprit(&generated.program, &generated.inputs, &before);
            panic!(
                "seed {seed}: behaves differently, first after {culprit:?}\n{}\n{program}",
                generated.program
            );
        }
        let again = {
            let mut again = program.clone();
            runnel_passes::clean_up(&mut again);
            again.size()
        };
        assert!(again <= program.size() + program.size() / 2, "seed {seed}: grows again and again");
        steps_before += before.steps;
        steps_after += after.steps;
    }
    println!("steps: {steps_before} before, {steps_after} after");
    assert!(steps_after < steps_before || seeds.count() == 1);
}
