//! A program and its specialized version, made ready to be compared and timed: what `replay` and `bench` have in
//! common.
//!
//! What is timed is what was compared, on the same maps; so every comparison comes before the first measurement, which
//! lets the two sets of maps run apart.

use std::time::Duration;

use runnel_bpf::spec::ProgramSpec;
use runnel_engine::specialize::TableReport;
use runnel_ir::Table;
use runnel_kernel::error::Error as KernelError;
use thiserror::Error;

use super::check::{Check, CheckError, Finished, Subject, ThirdParty};
use super::maps::{Instance, MapsError, Snapshot, Source};
use super::measure::{MeasureError, Measurement, measure};
use super::reach::Reach;
use super::reference::Reference;
use super::version::{Plan, Version, VersionError, time_swap};

/// Why a trial could not be made. That programs differ is no error.
#[derive(Debug, Error)]
pub enum TrialError {
    /// The object cannot be loaded or its maps not be filled or read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// There is no specialized version.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// The programs cannot be compared.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// They cannot be timed.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// The kernel says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// How long the making of a version took, step by step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Reading the tables.
    pub read: Duration,
    /// Lifting the program.
    pub lift: Duration,
    /// Analysis and transformation.
    pub specialize: Duration,
    /// Code generation.
    pub lower: Duration,
    /// Creating and filling the memory of its data.
    pub fill: Duration,
    /// The kernel's load command: verification and translation to machine code.
    pub verify: Duration,
    /// Putting it in the original's place on a hook.
    pub swap: Duration,
}

impl Times {
    /// Analysis and compilation: all that happens to the program in this process.
    pub fn compile(&self) -> Duration {
        self.lift + self.specialize + self.lower
    }
}

/// A program and its version, each on maps of its own.
pub struct Trial {
    originals: Instance,
    optimized: Instance,
    subjects: [Subject; 2],
    plan: Plan,
    version: Version,
    contents: Snapshot,
    times: Times,
}

impl Trial {
    /// Loads the object twice, specializes its program for the contents of its maps, and loads that.
    ///
    /// # Errors
    /// [`TrialError`]; nothing is left behind.
    pub fn prepare(source: Source<'_>) -> Result<Trial, TrialError> {
        let (originals, optimized) = (Instance::load(source)?, Instance::load(source)?);
        let plan = Plan::new(&optimized)?;
        let (specialized, specialize) = plan.specialize()?;
        let version = Version::build(&optimized, specialized)?;
        let swap = time_swap(&optimized.original()?.program, &version.candidate.program)?;
        let subjects = [Subject::original(&originals)?, Subject::version(&optimized, &version)?];
        let candidate = &version.candidate;
        let times = Times {
            read: plan.read,
            lift: plan.lift,
            specialize,
            lower: candidate.lower_time,
            fill: candidate.data_time,
            verify: candidate.load.load_time,
            swap,
        };
        let contents = optimized.snapshot()?;
        Ok(Trial { originals, optimized, subjects, plan, version, contents, times })
    }

    /// What became of the tables.
    pub fn tables(&self) -> &[TableReport] {
        &self.version.specialized.tables
    }

    /// The version.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// How long its making took.
    pub fn times(&self) -> Times {
        self.times
    }

    /// The original as it came out of the object.
    ///
    /// # Errors
    /// None that can happen: it is loaded.
    pub fn original(&self) -> Result<&ProgramSpec, TrialError> {
        Ok(&self.optimized.original()?.spec)
    }

    /// Runs both programs, and the interpreter, on packets; then compares the maps. The first `limit` differences are
    /// kept.
    ///
    /// # Errors
    /// What keeps the programs from being compared.
    pub fn compare<'p>(
        &self,
        packets: impl IntoIterator<Item = &'p Vec<u8>>,
        limit: usize,
    ) -> Result<Finished, TrialError> {
        let third = ThirdParty { original: &self.plan.ir, version: Some(&self.version) };
        let [original, optimized] = &self.subjects;
        let mut check = Check::new((&self.originals, original), (&self.optimized, optimized), third, limit)?;
        for packet in packets {
            check.packet(packet)?;
        }
        Ok(check.finish()?)
    }

    /// What interpreted runs of the lifted original reached together, the first of which was this trial's.
    ///
    /// # Errors
    /// None that can happen: the original is loaded.
    pub fn reach(&self, runs: &[&Reference]) -> Result<Reach, TrialError> {
        let known = |report: &&TableReport| report.left.is_none() && report.entries.is_some();
        let tables: Vec<Table> = self.tables().iter().filter(known).map(|report| report.table).collect();
        Ok(Reach::new(&self.plan.ir, self.original()?, runs, &tables, &self.contents))
    }

    /// Times both programs on a trace. Comparisons come before: this lets the maps run apart.
    ///
    /// # Errors
    /// What keeps the trace from being replayed.
    pub fn measure(&self, trace: &[Vec<u8>], packets: u64) -> Result<Measurement, TrialError> {
        let original = self.optimized.original()?;
        Ok(measure(trace, &original.spec, &original.program, &self.version.candidate, packets)?)
    }
}
