//! What can go wrong on the bench itself. What the device under test does wrong is a finding, not an error.

use std::io;
use std::path::PathBuf;

use router_ctl::TablesError;
use thiserror::Error;

/// What the operations of this crate return.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

/// Why the bench could not do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The kernel, or a command that configures it, refused.
    #[error(transparent)]
    Kernel(#[from] runnel_kernel::Error),
    /// A system call that the bench makes itself failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// The traffic asked for does not fit the generator.
    #[error("the generator cannot be set up: {0}")]
    Traffic(String),
    /// The router's tables cannot be made up.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// A child process did not do what was expected of it.
    #[error("{what} {problem}{}", said(stderr))]
    Child {
        /// Which process.
        what: String,
        /// What it did or did not do.
        problem: String,
        /// The end of what it wrote on standard error.
        stderr: String,
    },
    /// A file that should be there is not.
    #[error("there is no {what} at {}", path.display())]
    Missing {
        /// What it should be.
        what: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The updater's report cannot be understood.
    #[error("the updater reported `{line}`: {problem}")]
    Report {
        /// The line.
        line: String,
        /// What is wrong with it.
        problem: String,
    },
}

fn said(stderr: &str) -> String {
    let text = stderr.trim();
    if text.is_empty() { String::new() } else { format!("; it said: {text}") }
}

impl LabError {
    pub(crate) fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { doing: doing.into(), source: source.into() }
    }
}
