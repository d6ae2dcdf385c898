//! `runnel bench`: the experiments, each with its own inputs, printed and drawn.

mod plot;
mod router;

use crate::cli::{BenchArgs, Suite};
use crate::failure::Result;
use crate::output::Output;

/// Runs a suite.
///
/// # Errors
/// What keeps it from running, and any difference between programs that have to be equal.
pub fn execute(args: &BenchArgs, output: &Output) -> Result<()> {
    match args.suite {
        Suite::Router => router::run(args, output),
    }
}
