//! Every packet through both programs: same verdict, same bytes, same redirection; at the end, the same maps.
//!
//! The original runs on one [`Instance`], the optimized program on another, each in the kernel and rewritten as
//! [`super::pin_helpers`] says. Beside them the IR interpreter runs the lifted original, and the specialized IR, as
//! long as it can take them: where the optimized program is wrong, that tells whether the lifter, the specializer or
//! the lowering is; and a lifter that misunderstood a program in a way that the kernel's run does not show is caught.
//!
//! Bytes are compared whatever the verdict, also of packets that are dropped: a stricter condition than anybody could
//! observe, and one that the optimizer keeps.

mod report;
mod subject;

use runnel_bpf::rewrite::RewriteError;
use runnel_ir::{Data, Program as Ir, Table};
use runnel_kernel::cpu::OneCpu;
use runnel_kernel::error::{Error as KernelError, LoadError};
use runnel_kernel::test_run::TestRunner;
use thiserror::Error;

pub use report::{Difference, Interpreted, Parties, Report, Seen, verdict_name};
pub use subject::Subject;

use super::maps::{Instance, MapsError};
use super::pin_helpers::Pinned;
use super::reference::{Reference, ReferenceError, Run};
use super::version::Version;

/// The kernel runs programs on packets from this length on (`ETH_HLEN`).
const SHORTEST: usize = 14;

/// Why a comparison could not be made. That programs differ is no error.
#[derive(Debug, Error)]
pub enum CheckError {
    /// The kernel says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A copy cannot be loaded.
    #[error("the verifier refuses the copy of a program that was made to be compared: {}", .0.reason())]
    Refused(Box<LoadError>),
    /// A copy cannot be made.
    #[error("a program cannot be rewritten to be compared: {0}")]
    Rewrite(#[from] RewriteError),
    /// The maps cannot be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A packet is too short to be run.
    #[error(
        "packet {packet} has {length} bytes; the kernel runs programs on packets of {SHORTEST} bytes and more"
    )]
    Short {
        /// Its number, from 0.
        packet: u64,
        /// Its length.
        length: usize,
    },
    /// The kernel does not run a packet.
    #[error("packet {packet}: {source}")]
    Packet {
        /// Its number, from 0.
        packet: u64,
        /// Why not.
        source: KernelError,
    },
}

/// A comparison under way.
pub struct Check<'a> {
    instances: [&'a Instance; 2],
    subjects: [&'a Subject; 2],
    runners: [TestRunner<'a>; 2],
    third: [Third; 2],
    cpu: OneCpu,
    limit: usize,
    report: Report,
}

/// A comparison that has ended.
pub struct Finished {
    /// What it found.
    pub report: Report,
    /// The interpreter of the lifted original, with all that it counted, if it ran to the end.
    pub original: Option<Reference>,
    /// That of the specialized IR.
    pub specialized: Option<Reference>,
}

/// The interpreter beside one of the programs, or why there is none (any more).
enum Third {
    Runs(Box<Reference>),
    Absent(String),
}

/// What the interpreter runs beside the programs.
#[derive(Clone, Copy)]
pub struct ThirdParty<'a> {
    /// The lifted original.
    pub original: &'a Ir,
    /// The specialized version; where it is not given, it is not interpreted.
    pub version: Option<&'a Version>,
}

impl<'a> Check<'a> {
    /// Begins a comparison of the original on one instance with the optimized program on another. The first `limit`
    /// differences are kept.
    ///
    /// # Errors
    /// The instances cannot be read.
    pub fn new(
        (original, a): (&'a Instance, &'a Subject),
        (optimized, b): (&'a Instance, &'a Subject),
        third: ThirdParty<'_>,
        limit: usize,
    ) -> Result<Check<'a>, CheckError> {
        let cpu = OneCpu::bind()?;
        let contents = original.snapshot()?;
        let reference = |ir: &Ir, table_of: &[Table], live: &[(Data, u64)]| {
            Third::of(Reference::new(ir, table_of, live, &contents, cpu.number()))
        };
        let first = reference(third.original, &[], &[]);
        let second = match third.version {
            None => Third::Absent("it was not asked for".into()),
            Some(version) => {
                let made = &version.specialized;
                let live = [(made.epoch, version.epoch()), (made.fallbacks, 0)];
                reference(&made.program, &made.table_of, &live)
            }
        };
        Ok(Check {
            instances: [original, optimized],
            subjects: [a, b],
            runners: [a, b].map(|subject| TestRunner::new(subject.program())),
            third: [first, second],
            cpu,
            limit,
            report: Report::default(),
        })
    }

    /// Runs both programs on a packet. Says whether they agreed.
    ///
    /// # Errors
    /// The packet cannot be run.
    pub fn packet(&mut self, packet: &[u8]) -> Result<bool, CheckError> {
        let number = self.report.packets;
        if packet.len() < SHORTEST {
            return Err(CheckError::Short { packet: number, length: packet.len() });
        }
        let pinned = self.pinned(number);
        let context = context(packet.len());
        let [a, b] = &mut self.runners;
        let [of_a, of_b] = self.subjects;
        let failed = |source| CheckError::Packet { packet: number, source };
        let original = of_a.run(a, packet, &context, pinned).map_err(failed)?;
        let optimized = of_b.run(b, packet, &context, pinned).map_err(failed)?;
        self.report.packets += 1;
        *self.report.verdicts.entry(original.verdict).or_default() += 1;
        let mut found = Vec::new();
        if original != optimized {
            found.push((Parties::Kernel, original.clone(), optimized.clone()));
        }
        let [lifted, specialized] = &mut self.third;
        for (third, seen, parties) in
            [(lifted, &original, Parties::Lifted), (specialized, &optimized, Parties::Specialized)]
        {
            if let Some(other) = third.disagrees(packet, pinned, seen) {
                found.push((parties, seen.clone(), other));
            }
        }
        let agreed = found.is_empty();
        self.report.differences += u64::from(!agreed);
        for (parties, left, right) in found {
            if self.report.first.len() < self.limit {
                let (left, right) = (left.keep(), right.keep());
                self.report.first.push(Difference {
                    packet: number,
                    input: packet.into(),
                    parties,
                    left,
                    right,
                });
            }
        }
        Ok(agreed)
    }

    /// Compares the maps, and ends the comparison.
    ///
    /// # Errors
    /// The maps cannot be read.
    pub fn finish(self) -> Result<Finished, CheckError> {
        let mut report = self.report;
        let [original, optimized] = self.instances;
        let (left, right) = (original.snapshot()?, optimized.snapshot()?);
        (report.map_differences, report.first_maps) = left.differences(&right, self.limit);
        let [first, second] = self.third;
        if let Third::Runs(reference) = &first {
            let names: Vec<String> = original.original()?.spec.maps.iter().map(|m| m.name.clone()).collect();
            report.interpreted_maps = reference.tables_that_differ(&names, &left);
        }
        report.interpreted = [first.outcome(report.packets), second.outcome(report.packets)];
        Ok(Finished { report, original: first.reference(), specialized: second.reference() })
    }

    /// What helpers give for a packet: different from one packet to the next, the same whenever it is asked for.
    fn pinned(&self, number: u64) -> Pinned {
        // The multiplier of Knuth's MMIX generator; any odd number would scatter the bits.
        let random = (number.wrapping_mul(6_364_136_223_846_793_005) >> 32) as u32;
        Pinned { time: 1_000_000_000 + 1000 * number, random, cpu: self.cpu.number() }
    }
}

/// `struct xdp_md` for a packet without metadata, on the default interface.
fn context(length: usize) -> [u8; 24] {
    let mut context = [0; 24];
    context[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
    context
}

impl Third {
    fn of(made: Result<Reference, ReferenceError>) -> Third {
        match made {
            Ok(reference) => Third::Runs(Box::new(reference)),
            Err(why) => Third::Absent(why.to_string()),
        }
    }

    /// What the interpreter makes of a packet, if that is not what the kernel's run came to.
    fn disagrees<'s>(&'s mut self, packet: &[u8], pinned: Pinned, kernel: &Seen<'_>) -> Option<Seen<'s>> {
        let Third::Runs(reference) = self else { return None };
        let run = reference.run(packet, pinned);
        let verdict = match run {
            Ok(Run::Verdict(verdict)) => verdict,
            // Another program goes on; its changes to tables would be missed from here on.
            Ok(Run::Left) => {
                *self = Third::Absent("the program leaves by tail calls".into());
                return None;
            }
            Ok(Run::Deopt) => {
                *self = Third::Absent("the version gave up in favour of the original".into());
                return None;
            }
            Err(error) => {
                *self = Third::Absent(format!("it stopped: {error}"));
                return Some(Seen::fault(error.to_string()));
            }
        };
        let Third::Runs(reference) = self else { return None };
        let destination = reference.destination(verdict);
        let agree = verdict == kernel.verdict
            && *reference.packet() == *kernel.packet
            && report::same_destination(destination, kernel.destination);
        if agree { None } else { Some(Seen::interpreted(verdict, reference.packet(), destination)) }
    }

    fn reference(self) -> Option<Reference> {
        match self {
            Third::Runs(reference) => Some(*reference),
            Third::Absent(_) => None,
        }
    }

    fn outcome(&self, packets: u64) -> Interpreted {
        match self {
            Third::Runs(_) => Interpreted::All(packets),
            Third::Absent(why) => Interpreted::Not(why.clone()),
        }
    }
}
