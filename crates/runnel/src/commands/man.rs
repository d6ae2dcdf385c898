//! `runnel man`: the manual pages, one for each command, from the declarations of the command line.

use clap::CommandFactory;

use crate::cli::{Cli, ManArgs};
use crate::failure::{Failure, Result};

/// Writes the pages.
///
/// # Errors
/// The directory or a page cannot be written.
pub fn execute(args: &ManArgs) -> Result<()> {
    let failure = |e| Failure::new(format!("cannot write man pages to `{}`", args.dir.display())).because(e);
    std::fs::create_dir_all(&args.dir).map_err(failure)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).map_err(failure)
}
