//! The pipeline as a whole: fuel, errors, and that the same program always comes out the same.

use runnel_ir::{Program, parse_program, verify};
use runnel_passes::{Fuel, clean_up, clean_up_checked, clean_up_with};
use runnel_testkit::programs::{Config, generate};

/// Runs the pipeline with some fuel; gives the program and the passes that changed it.
fn with_fuel(program: &Program, remaining: u64) -> (Program, Vec<&'static str>) {
    let mut program = program.clone();
    let mut fuel = Fuel { remaining };
    let mut passes = Vec::new();
    let done: Result<(), ()> = clean_up_with(&mut program, &mut fuel, |pass, _| {
        passes.push(pass);
        Ok(())
    });
    done.unwrap();
    assert_eq!(fuel.remaining, remaining - passes.len() as u64);
    (program, passes)
}

#[test]
fn each_unit_of_fuel_buys_one_change() {
    let generated = generate(7, &Config::default());
    let (cleaned, all) = with_fuel(&generated.program, u64::MAX);
    assert!(all.len() > 4, "{all:?}");
    assert_eq!(with_fuel(&generated.program, 0).0.to_string(), generated.program.to_string());
    for units in 1..=all.len() {
        let (program, passes) = with_fuel(&generated.program, units as u64);
        verify(&program).unwrap();
        assert_eq!(passes, all[..units]);
    }
    assert_eq!(with_fuel(&generated.program, all.len() as u64).0.to_string(), cleaned.to_string());
}

#[test]
fn the_same_program_always_comes_out_the_same() {
    for seed in 0..20 {
        let program = generate(seed, &Config::default()).program;
        let (mut first, mut second) = (program.clone(), program);
        clean_up(&mut first);
        clean_up_checked(&mut second).unwrap();
        assert_eq!(first.to_string(), second.to_string(), "seed {seed}");
    }
}

#[test]
fn a_program_that_was_wrong_before_is_no_fault_of_a_pass() {
    let mut program = parse_program("program \"p\" {\nblock0(v0):\n return v1\n}").unwrap();
    let error = clean_up_checked(&mut program).unwrap_err();
    assert_eq!((error.pass, error.run), ("input", 0));
}
