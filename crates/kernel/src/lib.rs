//! The only crate that speaks to the kernel: maps, programs, object files, links, network namespaces, the
//! consistency watcher and the replayer that measures.
//!
//! It knows nothing of the IR, of specialization or of plans. From `runnel-bpf` it takes the encoding of an
//! instruction and the canonical form of programs and maps, nothing else. Everything here returns typed errors
//! ([`error::Error`]); nothing retries without a bound.

pub mod bpffs;
pub mod cpu;
pub mod error;
pub mod holders;
pub mod link;
pub mod map;
pub mod netns;
pub mod object;
pub mod probe;
pub mod program;
pub mod replay;
pub mod stats;
mod sys;
pub mod test_run;
pub mod watcher;

pub use error::{Errno, Error, LoadError, Result};
pub use sys::possible_cpus;
