//! `runnel bench`: the experiments, each with its own inputs, printed and drawn.

mod consistency;
mod plot;
mod router;

use std::path::{Path, PathBuf};

use crate::cli::{Global, JsonFile, Suite};
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Where `make nf` leaves the router's object.
const OBJECT: &str = "target/nf/router.bpf.o";

/// Runs a suite.
///
/// # Errors
/// What keeps it from running, and any difference between programs that have to be equal.
pub fn execute(suite: &Suite, global: Global) -> Result<()> {
    let output = |json: &JsonFile| Output::new(global, json.json.clone());
    match suite {
        Suite::Router(args) => router::run(args, &output(&args.suite.json)),
        Suite::Consistency(args) => consistency::run(args, &output(&args.suite.json)),
        Suite::Updater { order } => consistency::update(order),
    }
}

/// The router's object: the one that was named, else the one that `make nf` leaves.
fn router_object(named: Option<&Path>) -> Result<PathBuf> {
    let object = named.unwrap_or(Path::new(OBJECT));
    if object.exists() {
        return Ok(object.to_owned());
    }
    Err(Failure::new(format!("there is no router at `{}`", object.display()))
        .advise("compile it with `make nf`, or name another object with `--object`"))
}
