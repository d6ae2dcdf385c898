//! The commands: each takes its arguments as they were parsed, and prints through [`Output`].
//!
//! Each reads its input, has the libraries do the work, and tells what came out. What a program means or a kernel does
//! is not known here.

pub mod bench;
pub mod completions;
pub mod contents;
pub mod inspect;
pub mod man;
pub mod replay;
pub mod results;
pub mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Runs the command that was asked for.
///
/// # Errors
/// What keeps the command from doing what it is for.
pub fn execute(cli: &Cli) -> Result<()> {
    match &cli.command {
        Command::Run(args) => run::execute(args, &Output::new(cli.global, args.json.destination())),
        Command::Inspect(args) => inspect::execute(args, &Output::new(cli.global, args.json.destination())),
        Command::Replay(args) => replay::execute(args, &Output::new(cli.global, args.json.json.clone())),
        Command::Bench(suite) => bench::execute(suite, cli.global),
        Command::Completions(args) => completions::execute(args),
        Command::Man(args) => man::execute(args),
    }
}

/// A flag that is set once the command is asked to stop, by Ctrl-C or a signal like it. For one call a process.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed))
        .map_err(|e| Failure::new("cannot listen for the signal to stop").because(e))?;
    Ok(stop)
}
