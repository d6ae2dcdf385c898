//! `runnel replay`: a program against its specialized version on a trace of packets, first for equality, then for time.
//!
//! Nothing is attached to any interface of this machine. A difference is a failure.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::cli::ReplayArgs;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::xdp::candidate::CandidateError;
use crate::xdp::check::CheckError;
use crate::xdp::maps::{MapsError, Source, StandIn};
use crate::xdp::measure::MeasureError;
use crate::xdp::trial::{Trial, TrialError};
use crate::xdp::version::VersionError;

use super::contents;
use super::results::{LEGEND, Outcome, print_comparison, print_reach, print_version, rows, timing, timings};

/// Packets that each variant is timed on, unless the trace is longer.
const TIMED: u64 = 500_000;
/// Differences that are told in full.
pub const TOLD: usize = 5;

/// Replays a trace.
///
/// # Errors
/// What keeps it from being replayed, and any difference between the programs.
pub fn execute(args: &ReplayArgs, output: &Output) -> Result<()> {
    let contents = args.maps.as_deref().map(contents::read).transpose()?.unwrap_or_default();
    let trace = read_trace(&args.trace)?;
    let devices = StandIn::new().map_err(|e| failure(e.into()))?;
    let source = Source { object: &args.object, program: &args.prog, contents: &contents, devices: &devices };
    let trial = Trial::prepare(source).map_err(failure)?;
    let original = trial.original().map_err(failure)?;
    output.text(format_args!("{}: {} instructions", args.prog, original.insns.len()))?;
    print_version(output, &trial)?;

    let finished = trial.compare(&trace, TOLD).map_err(failure)?;
    print_comparison(output, &finished.report)?;
    let runs: Vec<_> = finished.original.iter().collect();
    let reach = trial.reach(&runs).map_err(failure)?;
    print_reach(output, &reach)?;

    let measurement = trial.measure(&trace, TIMED.max(trace.len() as u64)).map_err(failure)?;
    let mut table = timings("trace");
    timing(&mut table, &file_name(&args.trace), &measurement);
    output.text(table)?;
    output.text(LEGEND)?;
    let outcome = Outcome {
        program: &args.prog,
        table: args.maps.as_deref().map(file_name),
        locality: None,
        finished: &finished,
        reach: &reach,
        measurement: &measurement,
    };
    output.report(&rows(&trial, &outcome).map_err(failure)?)?;
    match finished.report.total() {
        0 => Ok(()),
        n => Err(differs(&args.prog, n)),
    }
}

/// The failure that a difference is.
pub fn differs(program: &str, differences: u64) -> Failure {
    Failure::new(format!(
        "the optimized `{program}` does not do what the original does: {differences} differences"
    ))
    .advise(
        "do not run it; report this with the object, the contents of its maps and the packets shown above",
    )
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn read_trace(path: &Path) -> Result<Vec<Vec<u8>>> {
    let failure = || Failure::new(format!("cannot read the packets in `{}`", path.display()));
    let file = File::open(path).map_err(|e| failure().because(e))?;
    let packets =
        runnel_testkit::pcap::read(std::io::BufReader::new(file)).map_err(|e| failure().because(e))?;
    if packets.is_empty() {
        return Err(failure().because("it holds none").advise("give a capture with at least one packet"));
    }
    Ok(packets)
}

/// What keeps a trial from being made, for people.
pub fn failure(error: TrialError) -> Failure {
    match error {
        TrialError::Kernel(e)
        | TrialError::Maps(MapsError::Kernel(e))
        | TrialError::Version(VersionError::Kernel(e) | VersionError::Maps(MapsError::Kernel(e)))
        | TrialError::Check(CheckError::Kernel(e) | CheckError::Maps(MapsError::Kernel(e)))
        | TrialError::Measure(MeasureError::Kernel(e)) => e.into(),
        TrialError::Version(VersionError::Candidate(CandidateError::Refused(refused))) => {
            let log = keep_log(&refused.log);
            let failure = Failure::new("the kernel's verifier refuses the specialized program")
                .because(refused.reason().to_owned())
                .advise(
                    "nothing was replayed and the original is fine; report this with the object and the log",
                );
            match log {
                Some(path) => failure.advise(format!("read the whole log in {}", path.display())),
                None => failure,
            }
        }
        other => Failure::new("the program cannot be replayed").because(other),
    }
}

/// Keeps a verifier log where a person can read it.
fn keep_log(log: &str) -> Option<PathBuf> {
    let path = std::env::temp_dir().join(format!("runnel-verifier-{}.log", std::process::id()));
    std::fs::write(&path, log).ok().map(|()| path)
}
