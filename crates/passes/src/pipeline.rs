//! The order of the passes.
//!
//! Straightened control flow first. Then rounds, until one changes nothing:
//!
//! 1. `fold_constants` finds constants and dead edges; `simplify_cfg` drops the latter.
//! 2. `simplify_algebra` and `fold_addresses` bring equal things to one form, so that
//! 3. `number_values` finds them, `forward_loads` what memory only carried, and `merge_loads` what was read in pieces.
//! 4. `eliminate_dead_stores` and `eliminate_dead_code` drop what is not needed any more, which leaves the values
//!    that are only copied, and blocks small enough for
//! 5. `merge_stores`, which the same form of addresses on both sides shows the neighbours to, and
//! 6. `thread_jumps`, behind which `simplify_cfg` straightens again.
//!
//! Rounds are bounded: each pass only ever goes down (fewer or simpler instructions), except `thread_jumps`, whose
//! growth is bounded in itself. A program that uses up its rounds is correct, only perhaps not as small as it could
//! be.
//!
//! To find a pass at fault, run with less and less [`Fuel`]: the last unit of it that makes the difference belongs
//! to the pass that [`clean_up_with`] names then.

use std::convert::Infallible;

use runnel_ir::{Program, VerifyError, verify};
use thiserror::Error;

use crate::{
    eliminate_dead_code, eliminate_dead_stores, fold_addresses, fold_constants, forward_loads, merge_loads,
    merge_stores, number_values, simplify_algebra, simplify_cfg, thread_jumps,
};

/// The most rounds.
const MAX_ROUNDS: usize = 8;

/// A pass: changes the program and says whether it did.
type Pass = fn(&mut Program) -> bool;

macro_rules! passes {
    ($($pass:ident),* $(,)?) => { &[$((stringify!($pass), $pass as Pass)),*] };
}

/// One round, each pass with its name.
const ROUND: &[(&str, Pass)] = passes![
    fold_constants,
    simplify_cfg,
    simplify_algebra,
    fold_addresses,
    number_values,
    forward_loads,
    merge_loads,
    eliminate_dead_stores,
    eliminate_dead_code,
    merge_stores,
    thread_jumps,
    simplify_cfg,
];

/// How many times passes may still change the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fuel {
    /// Units left; each run of a pass that changes the program takes one.
    pub remaining: u64,
}

impl Fuel {
    /// Enough for everything.
    pub const UNLIMITED: Fuel = Fuel { remaining: u64::MAX };
}

/// A pass that left a program which is not well-formed: a mistake of that pass's.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("pass `{pass}` (run {run}) left a program that is not well-formed: {error}")]
pub struct PassError {
    /// The pass.
    pub pass: &'static str,
    /// How many runs of passes had changed the program, this one included: one less fuel avoids it.
    pub run: u64,
    /// What is wrong.
    pub error: VerifyError,
}

/// Simplifies `program` for good, without assuming anything about tables or traffic.
pub fn clean_up(program: &mut Program) {
    let mut fuel = Fuel::UNLIMITED;
    let done: Result<(), Infallible> = clean_up_with(program, &mut fuel, |_, _| Ok(()));
    let Ok(()) = done;
}

/// As [`clean_up`], verifying the program after each pass.
///
/// # Errors
/// The first pass that left a program which is not well-formed, or `"input"` if it was not to begin with.
pub fn clean_up_checked(program: &mut Program) -> Result<(), PassError> {
    let mut run = 0;
    verify(program).map_err(|error| PassError { pass: "input", run, error })?;
    let mut fuel = Fuel::UNLIMITED;
    clean_up_with(program, &mut fuel, |pass, program| {
        run += 1;
        verify(program).map_err(|error| PassError { pass, run, error })
    })
}

/// As [`clean_up`], within the given fuel, calling `after` with the name of each pass that changed the program.
///
/// # Errors
/// The first error of `after`'s, which ends the run.
pub fn clean_up_with<E>(
    program: &mut Program,
    fuel: &mut Fuel,
    mut after: impl FnMut(&'static str, &Program) -> Result<(), E>,
) -> Result<(), E> {
    let mut run = |name, pass: Pass, program: &mut Program| {
        if fuel.remaining == 0 || !pass(program) {
            return Ok(false);
        }
        fuel.remaining -= 1;
        after(name, program).map(|()| true)
    };
    run("simplify_cfg", simplify_cfg, program)?;
    for _ in 0..MAX_ROUNDS {
        let mut changed = false;
        for &(name, pass) in ROUND {
            changed |= run(name, pass, program)?;
        }
        if !changed {
            break;
        }
    }
    Ok(())
}
