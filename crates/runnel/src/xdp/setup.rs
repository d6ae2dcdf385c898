//! What a session is set up with, and what can go wrong with it.

use std::path::PathBuf;

use runnel_bpf::lift::LiftError;
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::link::Mode;
use thiserror::Error;

use super::candidate::CandidateError;
use super::maps::MapsError;

/// What to set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The object file.
    pub object: PathBuf,
    /// The program in it; may be left out where there is only one.
    pub program: Option<String>,
    /// The interface's name.
    pub device: String,
    /// How to attach.
    pub mode: Mode,
    /// Where sessions pin what must outlive them; each in a directory named for its interface.
    pub state_dir: PathBuf,
    /// Whether writes bump the epoch. Off only in the self-test of a checker.
    pub bump: bool,
}

/// Why a session cannot begin or go on.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The kernel or libbpf says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// There is no version of the program.
    #[error(transparent)]
    Candidate(CandidateError),
    /// The kernel's verifier refuses a version.
    #[error("the kernel's verifier refuses the specialized program: {reason} ({log})")]
    Refused {
        /// The useful line of its log.
        reason: String,
        /// Where the whole log is, or why it is not kept.
        log: String,
    },
    /// Several programs, and none named.
    #[error("{} holds several programs: {}; name one", object.display(), names.join(", "))]
    WhichProgram {
        /// The object.
        object: PathBuf,
        /// Its programs.
        names: Vec<String>,
    },
    /// The program cannot be lifted; it is attached nowhere.
    #[error("program `{program}` cannot be specialized: {source}")]
    Lift {
        /// The program.
        program: String,
        /// Why not.
        source: LiftError,
    },
    /// Another session owns the interface.
    #[error("another runnel is at work on {device} (it holds the lock on {})", dir.display())]
    Busy {
        /// The interface.
        device: String,
        /// The locked directory.
        dir: PathBuf,
    },
    /// The state directory cannot be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The maps cannot be filled.
    #[error(transparent)]
    Fill(#[from] MapsError),
    /// The interface is gone, or somebody else detached the program.
    #[error("{device} is gone, or somebody detached the program from it: nothing runs any more")]
    Gone {
        /// The interface.
        device: String,
    },
    /// A killed session's program is attached in another mode than the one wanted.
    #[error("a killed runnel's program is attached to {device} in another mode")]
    OtherMode {
        /// The interface.
        device: String,
    },
    /// Something else is pinned where a session's link belongs.
    #[error("{} is pinned, but not a link on this {device}", path.display())]
    Foreign {
        /// The pin.
        path: PathBuf,
        /// The interface.
        device: String,
    },
}

impl From<CandidateError> for SessionError {
    fn from(error: CandidateError) -> SessionError {
        match error {
            CandidateError::Refused(load) => {
                SessionError::Refused { reason: load.reason().to_string(), log: keep_log(&load.log) }
            }
            CandidateError::Kernel(e) => SessionError::Kernel(e),
            other => SessionError::Candidate(other),
        }
    }
}

/// Writes a verifier's log to a file of its own, and tells where.
fn keep_log(log: &str) -> String {
    let kept =
        tempfile::Builder::new().prefix("runnel-verifier-").suffix(".log").tempfile().and_then(|mut file| {
            std::io::Write::write_all(&mut file, log.as_bytes())?;
            Ok(file.into_temp_path().keep()?)
        });
    match kept {
        Ok(path) => format!("the whole log is in {}", path.display()),
        Err(e) => format!("its log could not be kept: {e}"),
    }
}
