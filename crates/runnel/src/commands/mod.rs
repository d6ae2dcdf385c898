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

use crate::cli::{Cli, Command};
use crate::failure::Result;
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
