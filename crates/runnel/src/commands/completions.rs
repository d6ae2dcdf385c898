//! `runnel completions`: the completion script of a shell, from the declarations of the command line.

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::failure::Result;
use crate::output::print;

/// Prints the script.
///
/// # Errors
/// Standard output cannot be written.
pub fn execute(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "runnel", &mut script);
    print(String::from_utf8_lossy(&script))
}
