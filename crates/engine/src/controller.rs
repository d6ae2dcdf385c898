//! The loop around a running program: when its tables have changed and come to rest, specialize anew and install.
//!
//! A [`Target`] is what a plugin provides: a program on a hook with an epoch that moves before any of its tables
//! does. The controller decides when to act and never blocks: each [`Controller::step`] does at most one cycle.
//! It needs no luck to be right: a version whose epoch has passed while it was being made runs no packet, since
//! its own guard refuses them all. Waiting for quiet only saves work.

use std::time::{Duration, Instant};

use runnel_ir::{Program, SecondaryMap, Table};
use runnel_tables::Budget;

use crate::specialize::{Request, SpecializeError, Specialized, TableReport, TableState, specialize};

/// A program on a hook, with tables that can be read.
pub trait Target {
    /// What can go wrong with it.
    type Error: std::error::Error;

    /// The epoch now.
    ///
    /// # Errors
    /// What the plugin says.
    fn epoch(&self) -> Result<u64, Self::Error>;

    /// The original, lifted.
    fn program(&self) -> &Program;

    /// The tables' contents as of one epoch, or nothing if writes left no moment to read them.
    ///
    /// # Errors
    /// What the plugin says.
    fn snapshot(&mut self) -> Result<Option<Snapshot>, Self::Error>;

    /// Makes a version and puts it on the hook. When it fails, the hook is as it was.
    ///
    /// # Errors
    /// Why not.
    fn install(&mut self, version: &Specialized) -> Result<Installed, Self::Error>;
}

/// Contents of tables as of one epoch.
#[derive(Debug)]
pub struct Snapshot {
    /// The epoch.
    pub epoch: u64,
    /// What is known of each table.
    pub tables: SecondaryMap<Table, Option<TableState>>,
    /// How long the reading took.
    pub read: Duration,
}

/// What an installation cost and gave.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// Code generation.
    pub lower: Duration,
    /// Creating and filling the version's memory.
    pub fill: Duration,
    /// The kernel's verification and translation.
    pub verify: Duration,
    /// Replacing the program on the hook.
    pub swap: Duration,
    /// Instructions of the version.
    pub insns: usize,
    /// Instructions that the verifier walked through.
    pub verified_insns: u64,
    /// Memory of the version's data in bytes.
    pub memory_bytes: u64,
}

/// When to act.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// How long the tables have to be at rest.
    pub quiet: Duration,
    /// After so long without rest an attempt is made anyway.
    pub patience: Duration,
    /// Longest pause after attempts that came to nothing.
    pub longest_pause: Duration,
    /// Limits of a version.
    pub budget: Budget,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            quiet: Duration::from_millis(10),
            patience: Duration::from_secs(1),
            longest_pause: Duration::from_secs(2),
            budget: Budget::default(),
        }
    }
}

/// One time round: read, specialize, install.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// Which one, from 1.
    pub number: u64,
    /// The epoch that the version is for.
    pub epoch: u64,
    /// Reading the tables.
    pub read: Duration,
    /// Analysis and transformation.
    pub specialize: Duration,
    /// What became of the tables.
    pub tables: Vec<TableReport>,
    /// What the installation cost, or why there was none.
    pub outcome: Outcome,
}

/// How a cycle ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The version is on the hook.
    Installed(Installed),
    /// Nothing could be specialized; the original stays.
    Nothing,
    /// There is no version; what was on the hook stays.
    Failed(String),
}

/// What a step did.
#[derive(Debug)]
pub enum Step {
    /// The version on the hook is the right one.
    Current,
    /// The tables are changing, or a pause is being kept.
    Waiting,
    /// A cycle was run.
    Cycled(Box<Cycle>),
}

/// Decides when to specialize.
#[derive(Debug)]
pub struct Controller {
    policy: Policy,
    /// The epoch for which the last attempt was made, whatever came of it.
    settled: Option<u64>,
    seen: Option<u64>,
    changed_at: Instant,
    stale_since: Option<Instant>,
    pause: Duration,
    not_before: Instant,
    cycles: u64,
}

impl Controller {
    /// A controller that will act at its first step.
    pub fn new(policy: Policy) -> Controller {
        let now = Instant::now();
        Controller {
            policy,
            settled: None,
            seen: None,
            changed_at: now,
            stale_since: None,
            pause: Duration::ZERO,
            not_before: now,
            cycles: 0,
        }
    }

    /// Looks at the epoch and acts if it is time.
    ///
    /// # Errors
    /// What the target says when it cannot be asked any more. What goes wrong with one version is no error: see
    /// [`Outcome::Failed`].
    pub fn step<T: Target>(&mut self, target: &mut T) -> Result<Step, T::Error> {
        let epoch = target.epoch()?;
        if self.settled == Some(epoch) {
            self.stale_since = None;
            return Ok(Step::Current);
        }
        let now = Instant::now();
        let stale_since = *self.stale_since.get_or_insert(now);
        if self.seen.replace(epoch).is_some_and(|before| before != epoch) {
            self.changed_at = now;
        }
        let first = self.settled.is_none();
        let at_rest = first || now - self.changed_at >= self.policy.quiet;
        let impatient = now - stale_since >= self.policy.patience;
        if now < self.not_before || !(at_rest || impatient) {
            return Ok(Step::Waiting);
        }
        let Some(snapshot) = target.snapshot()? else {
            self.back_off();
            return Ok(Step::Waiting);
        };
        let cycle = self.cycle(target, &snapshot);
        self.stale_since = None;
        // A version that was overtaken on its way has cost time and gained nothing.
        if target.epoch()? == snapshot.epoch {
            self.settled = Some(snapshot.epoch);
            self.pause = Duration::ZERO;
        } else {
            self.settled = Some(snapshot.epoch);
            self.back_off();
        }
        Ok(Step::Cycled(Box::new(cycle)))
    }

    fn back_off(&mut self) {
        let shortest = self.policy.quiet.max(Duration::from_millis(1));
        self.pause = (self.pause * 2).clamp(shortest, self.policy.longest_pause);
        self.not_before = Instant::now() + self.pause;
    }

    fn cycle<T: Target>(&mut self, target: &mut T, snapshot: &Snapshot) -> Cycle {
        self.cycles += 1;
        let started = Instant::now();
        let request = Request {
            program: target.program(),
            tables: &snapshot.tables,
            epoch: snapshot.epoch,
            budget: self.policy.budget,
        };
        let version: Result<Specialized, SpecializeError> = specialize(&request);
        let specialize = started.elapsed();
        let (tables, outcome) = match version {
            Err(e) => (Vec::new(), Outcome::Failed(e.to_string())),
            Ok(version) if !version.is_worthwhile() => (version.tables, Outcome::Nothing),
            Ok(version) => {
                let outcome = match target.install(&version) {
                    Ok(installed) => Outcome::Installed(installed),
                    Err(e) => Outcome::Failed(e.to_string()),
                };
                (version.tables, outcome)
            }
        };
        Cycle { number: self.cycles, epoch: snapshot.epoch, read: snapshot.read, specialize, tables, outcome }
    }
}
