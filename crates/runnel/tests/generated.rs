//! Random programs in the kernel: as they are, cleaned up, lifted again, and specialized, packet by packet.
//!
//! The interpreter and the kernel must agree on what each program does, and the kernel's verifier must take it: the
//! generator writes nothing that the verifier cannot follow, so that a refusal is a mistake of the passes or of the
//! lowering. A specialized program may be refused, which costs speed only; how many are is printed.
//!
//! `RUNNEL_SEEDS=n` tries n programs instead of the usual number, `RUNNEL_SEED=k` one.

mod generated_support;

use std::collections::BTreeMap;

use generated_support::{Loaded, Seen, complaint, program_of, run, same_packet, same_tables, try_all};
use runnel::xdp::candidate::CandidateError;
use runnel::xdp::faults::{Base, lose_store, skip_guard};
use runnel::xdp::pin_helpers::Pinned;
use runnel::xdp::reference::{Reference, Run};
use runnel::xdp::version::{Plan, Version, VersionError};
use runnel_ir::{BinaryOp, Builder, Program as Ir, Terminator, Width};
use runnel_kernel::cpu::OneCpu;
use runnel_kernel::test_run::TestRunner;
use runnel_passes::clean_up;
use runnel_testkit::programs::{Generated, Inputs, seeds};

/// Nothing that the generated programs call varies.
const PINNED: Pinned = Pinned { time: 0, random: 0, cpu: 0 };

#[test]
fn the_kernel_runs_programs_as_the_interpreter_does() {
    let cpu = OneCpu::bind().expect("staying on one CPU");
    let (mut tried, mut lifted) = (0, 0);
    try_all("the_kernel_runs_programs_as_the_interpreter_does", seeds(400), |seed| {
        let Generated { program, inputs } = program_of(seed);
        let mut clean = program.clone();
        clean_up(&mut clean);
        let mut levels = || {
            let entries = &inputs.entries;
            let at = |level: &'static str| move |why| format!("{level}: {why}");
            let as_it_is = Loaded::new(&program, entries).map_err(at(AS_IT_IS))?;
            let cleaned_up = Loaded::new(&clean, entries).map_err(at(CLEANED_UP))?;
            let again = as_it_is.lifted(&program, entries).map_err(at(LIFTED))?;
            tried += 1;
            lifted += u64::from(again.is_some());
            let mut levels = vec![(AS_IT_IS, as_it_is), (CLEANED_UP, cleaned_up)];
            levels.extend(again.map(|again| (LIFTED, again)));
            compare(&program, &inputs, &levels, cpu.number())
        };
        levels().map_err(|why: String| format!("{why}\n{program}----\n{clean}"))
    });
    println!("the lifter took {lifted} of {tried} programs");
    assert!(tried == 1 || lifted * 3 > tried, "most programs can be lifted again: {lifted} of {tried}");
}

/// What programs are run as.
const AS_IT_IS: &str = "as it is";
const CLEANED_UP: &str = "cleaned up";
const LIFTED: &str = "lifted again and cleaned up";

/// Runs the interpreter and all levels on the packets.
fn compare(program: &Ir, inputs: &Inputs, levels: &[(&'static str, Loaded)], cpu: u32) -> Result<(), String> {
    let before = levels[0].1.tables();
    let mut reference = Reference::new(program, &[], &[], &before, cpu).expect("interpreting");
    let mut runners: Vec<TestRunner<'_>> =
        levels.iter().map(|(_, level)| TestRunner::new(&level.original.program)).collect();
    for (number, packet) in inputs.packets.iter().enumerate() {
        let verdict = match reference.run(packet, PINNED) {
            Ok(Run::Verdict(verdict)) => verdict,
            other => return Err(format!("packet {number}: the interpreter stopped: {other:?}")),
        };
        let interpreted = Seen { verdict, packet: reference.packet().into() };
        for ((name, _), runner) in levels.iter().zip(&mut runners) {
            let seen = run(runner, packet);
            same_packet(["interpreted", name], [&interpreted, &seen], number, packet)?;
        }
    }
    let names: Vec<String> = program.tables.values().map(|table| table.name.clone()).collect();
    let tables = levels[0].1.tables();
    let differ = reference.tables_that_differ(&names, &tables);
    if !differ.is_empty() {
        return Err(format!("the interpreter leaves other contents than the kernel in {differ:?}"));
    }
    for (name, level) in levels {
        same_tables([AS_IT_IS, name], [&tables, &level.tables()])?;
        if !level.data_is_intact() {
            return Err(format!("{name}: it wrote to its data"));
        }
    }
    Ok(())
}

/// Leaves out a store.
fn lose(program: &mut Ir, base: Base) -> bool {
    (0..64).any(|offset| lose_store(program, base, offset))
}

/// Makes a mistake in a program; says whether it found a place for it.
type Fault = dyn Fn(&mut Ir) -> bool;

/// Returns another verdict than the program would.
fn change_verdicts(program: &mut Ir) -> bool {
    for block in program.layout.clone() {
        if let Terminator::Return(verdict) = program.blocks[block].terminator {
            let mut at = Builder::at(program, block);
            let wrong = at.binary_imm(BinaryOp::Xor, Width::W64, verdict, 1);
            at.ret(wrong);
        }
    }
    true
}

#[test]
fn what_goes_wrong_is_noticed() {
    let cpu = OneCpu::bind().expect("staying on one CPU");
    let faults: [(&str, &Fault); 3] = [
        ("verdict", &change_verdicts),
        ("verdict", &|program| lose(program, Base::Packet)),
        ("entries differ", &|program| lose(program, Base::Table)),
    ];
    for (symptom, spoil) in faults {
        let noticed = (0..100).any(|seed| {
            let Generated { program, inputs } = program_of(seed);
            let mut wrong = program.clone();
            if !spoil(&mut wrong) {
                return false;
            }
            let load = |program| Loaded::new(program, &inputs.entries);
            let (Ok(right), Ok(wrong)) = (load(&program), load(&wrong)) else { return false };
            let levels = [(AS_IT_IS, right), ("wrong", wrong)];
            compare(&program, &inputs, &levels, cpu.number()).is_err_and(|why| why.contains(symptom))
        });
        assert!(noticed, "nobody noticed a wrong {symptom}");
    }
}

#[test]
fn a_version_without_a_guard_is_noticed() {
    let _cpu = OneCpu::bind().expect("staying on one CPU");
    let noticed = (0..100).any(|seed| {
        let Generated { program, inputs } = program_of(seed);
        let load = || Loaded::new(&program, &inputs.entries).expect("loading");
        let (original, optimized) = (load(), load());
        let plan = Plan::of_ir(program.clone(), &optimized.maps()).expect("reading tables");
        let (mut specialized, _) = plan.specialize().expect("specializing");
        if !specialized.is_worthwhile() || !skip_guard(&mut specialized) {
            return false;
        }
        let version =
            Version::build_on(&optimized.original, &optimized.maps(), specialized).expect("building");
        stays_the_same(&inputs, &original, &optimized, &version).is_err_and(|why| why.contains("expired"))
    });
    assert!(noticed, "nobody noticed that stale contents were used");
}

#[test]
fn specialized_programs_do_what_the_originals_do() {
    let _cpu = OneCpu::bind().expect("staying on one CPU");
    let (mut worthwhile, mut tried) = (0_u64, 0_u64);
    let mut refused: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    try_all("specialized_programs_do_what_the_originals_do", seeds(300), |seed| {
        let Generated { program, inputs } = program_of(seed);
        let load = || Loaded::new(&program, &inputs.entries).map_err(|why| format!("{why}\n{program}"));
        let (original, optimized) = (load()?, load()?);
        let maps = optimized.maps();
        // By turns as it was generated, with constant data, and as the lifter sees it, if it does, with a map in their place.
        let lifted = if seed % 2 == 0 { None } else { Plan::of(&optimized.original.spec, &maps).ok() };
        let plan =
            lifted.map_or_else(|| Plan::of_ir(program.clone(), &maps), Ok).map_err(|e| e.to_string())?;
        let (specialized, _) = plan.specialize().map_err(|e| format!("{e}\n{}", plan.ir))?;
        tried += 1;
        worthwhile += u64::from(specialized.is_worthwhile());
        let text = format!("{}\n{}", plan.ir, specialized.program);
        let version = match Version::build_on(&optimized.original, &maps, specialized) {
            Ok(version) => version,
            Err(VersionError::Candidate(CandidateError::Refused(error))) => {
                if std::env::var_os("RUNNEL_SEED").is_some() {
                    println!("{}\n{text}", complaint(&error));
                }
                refused.entry(error.reason().to_owned()).or_default().push(seed);
                return Ok(());
            }
            Err(e) => return Err(format!("{e}\n{text}")),
        };
        stays_the_same(&inputs, &original, &optimized, &version).map_err(|why| format!("{why}\n{text}"))
    });
    let share = refused.values().map(Vec::len).sum::<usize>() as f64 * 100.0 / tried as f64;
    println!(
        "{worthwhile} of {tried} programs had tables to specialize; the verifier refuses {share:.1} % of all"
    );
    for (reason, seeds) in &refused {
        println!("{} times: {reason}: seeds {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    assert!(
        tried == 1 || worthwhile * 4 > tried,
        "{worthwhile} of {tried} programs had tables to specialize"
    );
    assert!(
        tried == 1 || share < MOST_REFUSED,
        "the verifier refuses {share:.1} % of the specialized programs"
    );
}

/// Per cent of specialized programs that the verifier may refuse. On Linux 6.18 it is none.
const MOST_REFUSED: f64 = 5.0;

/// Compares a version with the original while its epoch holds, and after it has passed and the tables have changed.
fn stays_the_same(
    inputs: &Inputs,
    original: &Loaded,
    optimized: &Loaded,
    version: &Version,
) -> Result<(), String> {
    let mut runners = [&original.original.program, &version.candidate.program].map(TestRunner::new);
    let mut all = |names: [&str; 2]| -> Result<(), String> {
        for (number, packet) in inputs.packets.iter().enumerate() {
            let [a, b] = &mut runners;
            let (a, b) = (run(a, packet), run(b, packet));
            same_packet(names, [&a, &b], number, packet)?;
        }
        same_tables(names, [&original.tables(), &optimized.tables()])
    };
    all(["original", "specialized"])?;
    if version.candidate.fallbacks() != 0 {
        return Err("it fell back although its epoch holds".into());
    }
    version.expire();
    original.change(&inputs.entries);
    optimized.change(&inputs.entries);
    all(["original", "expired"])?;
    let (fallbacks, packets) = (version.candidate.fallbacks(), inputs.packets.len() as u64);
    if fallbacks != packets {
        return Err(format!("{fallbacks} of {packets} packets fell back after its epoch"));
    }
    Ok(())
}
