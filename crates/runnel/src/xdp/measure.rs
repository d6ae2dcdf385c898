//! What a packet costs in the original and in the optimized program, both replayed in the kernel.
//!
//! Variants take turns over the same stretch of the trace, a few thousand packets each, in an order that rotates:
//! what the machine does meanwhile, and who finds the trace in the cache, happens to all of them alike. Each slice of
//! a few hundred packets is timed by itself, and the median over all slices counts, because shared machines lose
//! whole milliseconds at a time. The original runs twice in each round: how far it is from itself is how far any
//! two figures may be apart by chance.
//!
//! The programs are those that a hook would run, not the copies that are compared.

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;
use runnel_kernel::cpu::OneCpu;
use runnel_kernel::error::{Error as KernelError, LoadError};
use runnel_kernel::program::Program;
use runnel_kernel::replay::Replayer;
use thiserror::Error;

use super::candidate::Candidate;

/// Packets of one turn.
const TURN: u64 = 16_384;
/// Rounds before the first that counts: caches fill, and the clock of the CPU comes up.
const WARM_UP: u64 = 2;
/// `XDP_DROP`.
const DROP: i32 = 1;

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The kernel says no.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The program that does nothing cannot be loaded.
    #[error("the program that does nothing was refused: {}", .0.reason())]
    Refused(Box<LoadError>),
}

/// Nanoseconds per packet over many slices, the replay's own included.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Timed {
    /// The slice in the middle.
    pub median: f64,
    /// A quarter of the slices were faster.
    pub p25: f64,
    /// A quarter of the slices were slower.
    pub p75: f64,
}

impl Timed {
    /// Of slices in any order; zero if there are none.
    pub fn of(mut slices: Vec<f64>) -> Timed {
        slices.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (slices.len().saturating_sub(1) as f64 * share).round() as usize;
            slices.get(index).copied().unwrap_or(0.0)
        };
        Timed { median: at(0.5), p25: at(0.25), p75: at(0.75) }
    }
}

/// What was measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measurement {
    /// The original.
    pub original: Timed,
    /// The original once more.
    pub again: Timed,
    /// The optimized program.
    pub optimized: Timed,
    /// A program that does nothing: what the replay costs.
    pub replay: Timed,
    /// Packets that each of them was given.
    pub packets: u64,
    /// Share of the optimized program's packets that it did not hand to the original.
    pub optimized_share: f64,
}

impl Measurement {
    /// How far the original is from itself, relatively.
    pub fn aa_error(&self) -> f64 {
        (self.again.median / self.original.median - 1.0).abs()
    }

    /// How many times as fast the optimized program is, the replay's cost on both sides.
    pub fn speedup(&self) -> f64 {
        self.original.median / self.optimized.median
    }

    /// How many times as fast the optimized program is without the replay's cost.
    pub fn speedup_net(&self) -> f64 {
        let net = |timed: Timed| (timed.median - self.replay.median).max(0.1);
        net(self.original) / net(self.optimized)
    }
}

/// Replays a trace to the original and to the version made of it, at least `packets` packets to each.
///
/// # Errors
/// [`MeasureError`]; for packets too long or too short to be replayed, the kernel crate's.
pub fn measure(
    trace: &[Vec<u8>],
    like: &ProgramSpec,
    original: &Program,
    candidate: &Candidate,
    packets: u64,
) -> Result<Measurement, MeasureError> {
    let _cpu = OneCpu::bind()?;
    let replayer = Replayer::new(trace, like)?;
    let nothing = nothing(like)?;
    let variants = [original, &candidate.program, original, &nothing];
    let mut slices: [Vec<f64>; 4] = Default::default();
    let (mut given, mut handed_on) = (0, 0);
    for round in 0..WARM_UP + packets.div_ceil(TURN).max(1) {
        let first = (round * TURN % trace.len() as u64) as usize;
        for turn in 0..variants.len() {
            let variant = (turn + round as usize) % variants.len();
            let before = candidate.fallbacks();
            let times = replayer.run_from(variants[variant], first, TURN)?;
            if round >= WARM_UP {
                slices[variant].extend(times);
            }
            if variant == 1 {
                given += TURN;
                handed_on += candidate.fallbacks() - before;
            }
        }
    }
    let [original, optimized, again, replay] = slices.map(Timed::of);
    let optimized_share = 1.0 - handed_on as f64 / given as f64;
    Ok(Measurement { original, again, optimized, replay, packets: given, optimized_share })
}

/// A program of the same kind that returns at once.
fn nothing(like: &ProgramSpec) -> Result<Program, MeasureError> {
    let insns = vec![
        Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, DROP),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ];
    let spec = ProgramSpec { name: "runnel_nothing".into(), insns, maps: Vec::new(), ..like.clone() };
    let (program, _) = Program::load(&spec, &[]).map_err(|e| MeasureError::Refused(Box::new(e)))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_its_quarters() {
        let timed = Timed::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(timed, Timed { median: 3.0, p25: 2.0, p75: 4.0 });
        assert_eq!(Timed::of(vec![]), Timed::default());
    }

    #[test]
    fn speedups_are_ratios_of_medians() {
        let timed = |median| Timed { median, ..Timed::default() };
        let m = Measurement {
            original: timed(200.0),
            again: timed(202.0),
            optimized: timed(50.0),
            replay: timed(25.0),
            ..Measurement::default()
        };
        assert_eq!((m.speedup(), m.speedup_net()), (4.0, 7.0));
        assert!((m.aa_error() - 0.01).abs() < 1e-9);
    }
}
