//! Replaying a packet trace to a program inside the kernel, and timing it.
//!
//! The kernel's test run with a repeat count feeds a program the packet that it has just modified. The replayer
//! (`src/bpf/replay.bpf.c`) runs in its place, restores bounds and bytes of the next packet of the trace, and
//! tail-calls the program under test. It is kept attached to a parked veth, as a test run of a program that is
//! attached nowhere first waits 16 ms for RCU.
//!
//! Times are taken per slice of packets, because shared machines lose time in gaps of milliseconds that no
//! counter shows: the median over slices is the figure. Comparing variants fairly (interleaving them, measuring
//! the original against itself) is the caller's business.
//!
//! A program under test must be replaceable by tail call from the replayer: same program type, expected attach
//! type and fragment support; so a replayer is made for one kind of program. Its tail call counts as one of 33.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::spec::ProgramSpec;

use crate::error::{Error, Result};
use crate::link::XdpLink;
use crate::map::{Map, Mapping};
use crate::netns::ParkedVeth;
use crate::object::Object;
use crate::program::Program;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/replay.bpf.o"));

/// Packets in a slice, unless chosen otherwise.
pub const SLICE_PACKETS: u64 = 256;
/// Shortest packet that the kernel's XDP lets be: an Ethernet header.
pub const PACKET_MIN: usize = 14;
/// Longest packet: what a page holds beside head room (256) and tail room (320), `bpf_prog_test_run_xdp`.
pub const PACKET_MAX: usize = 4096 - 256 - 320;

/// Mirrors of the program's constants and layouts.
const BYTES_SLACK: usize = 4096;
const SLICES_MAX: u64 = 65_536;
mod control {
    pub const BASE: usize = 0;
    pub const RUNS: usize = 8;
    pub const NEXT: usize = 16;
    pub const FAULTS: usize = 24;
}

/// A trace in the kernel, ready to be replayed to programs of one kind.
#[derive(Debug)]
pub struct Replayer {
    replay: Program,
    under_test: Map,
    control: Mapping,
    stamps: Mapping,
    trace_len: usize,
    kind: ProgramSpec,
    slice_shift: u32,
    /// Held during a run: the control words are one set.
    running: Mutex<()>,
    _link: XdpLink,
    _parked: ParkedVeth,
}

impl Replayer {
    /// Puts a trace into the kernel, for programs of the same kind (type, expected attach type, flags) as `like`.
    ///
    /// Errors: `Usage` for an empty trace, a packet shorter than [`PACKET_MIN`] or longer than [`PACKET_MAX`], a
    /// trace of 2 GiB or more, or programs that are not XDP.
    pub fn new(trace: &[Vec<u8>], like: &ProgramSpec) -> Result<Replayer> {
        Self::with_slices(trace, like, SLICE_PACKETS)
    }

    /// [`Replayer::new`] with another number of packets per slice, a power of two.
    pub fn with_slices(trace: &[Vec<u8>], like: &ProgramSpec, slice_packets: u64) -> Result<Replayer> {
        let refused = |problem: String| Error::usage("preparing a replay", problem);
        if like.prog_type != libbpf_sys::BPF_PROG_TYPE_XDP {
            return Err(refused(format!("program `{}` is no XDP program", like.name)));
        }
        if !slice_packets.is_power_of_two() {
            return Err(refused(format!("slices of {slice_packets} packets, not a power of two")));
        }
        let layout = Layout::of(trace).map_err(refused)?;
        let slice_shift = slice_packets.trailing_zeros();
        let config = [layout.header_mask(), layout.byte_mask(), trace.len() as u32, slice_shift];
        let mut object = Object::open_bytes(Path::new("replay.bpf.o"), OBJECT)?;
        object.set_program_kind("replay", like.flags, like.expected_attach_type)?;
        object.set_initial(".rodata.config", &config.map(u32::to_ne_bytes).concat())?;
        object.set_value_size("headers", layout.headers_size())?;
        object.set_value_size("bytes", layout.bytes_size())?;
        let loaded = object.load()?;
        layout.fill(trace, &loaded.map("headers")?.mmap(true)?, &loaded.map("bytes")?.mmap(true)?);
        let replay = loaded.program("replay")?.program.try_clone()?;
        let parked = ParkedVeth::new()?;
        Ok(Replayer {
            under_test: loaded.map("under_test")?.try_clone()?,
            control: loaded.map(".bss.control")?.mmap(true)?,
            stamps: loaded.map(".bss.stamps")?.mmap(true)?,
            trace_len: trace.len(),
            kind: like.clone(),
            slice_shift,
            running: Mutex::new(()),
            _link: parked.park(0, &replay)?,
            _parked: parked,
            replay,
        })
    }

    /// Packets in a slice.
    pub fn slice_packets(&self) -> u64 {
        1 << self.slice_shift
    }

    /// Replays `packets` packets from the beginning of the trace (over again when it ends) and gives the
    /// nanoseconds per packet of each slice, replay included. `packets` is rounded up to whole slices.
    pub fn run(&self, under_test: &Program, packets: u64) -> Result<Vec<f64>> {
        self.run_from(under_test, 0, packets)
    }

    /// [`Replayer::run`] from packet `first` of the trace (modulo its length).
    ///
    /// Errors: `EINVAL` when the program cannot be tail-called by this replayer; `EINTR` when a signal came in
    /// between; `Usage` for more packets than there are slices for (65,535 slices).
    pub fn run_from(&self, under_test: &Program, first: usize, packets: u64) -> Result<Vec<f64>> {
        let slices = packets.div_ceil(self.slice_packets()).max(1);
        let doing = || format!("replaying {packets} packets to program id {}", under_test.id());
        if slices >= SLICES_MAX {
            return Err(Error::usage(doing(), format!("more than {} slices", SLICES_MAX - 1)));
        }
        // One run more, for the time stamp that ends the last slice.
        let runs = slices * self.slice_packets() + 1;
        let repeat = i32::try_from(runs).map_err(|_| Error::usage(doing(), "too many packets"))?;
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.under_test.update_fd(&[0; 4], under_test.as_fd())?;
        for word in [control::BASE, control::RUNS, control::FAULTS] {
            self.control.store_u64(word, 0);
        }
        self.control.store_u64(control::NEXT, (first % self.trace_len) as u64);
        self.replay.test_run(&[0; PACKET_MIN], &[], repeat as u32, 0)?;
        let (done, faults) = (self.control.load_u64(control::RUNS), self.control.load_u64(control::FAULTS));
        if done != runs || faults != 0 {
            let problem = format!("{done} of {runs} runs were made, {faults} could not restore the packet");
            return Err(Error::usage(doing(), problem));
        }
        let stamps: Vec<u64> = (0..=slices as usize).map(|i| self.stamps.load_u64(i * 8)).collect();
        let per_packet = |w: &[u64]| w[1].saturating_sub(w[0]) as f64 / self.slice_packets() as f64;
        Ok(stamps.windows(2).map(per_packet).collect())
    }

    /// What the replay itself costs: the slices of a program of the same kind that returns at once.
    pub fn overhead(&self, packets: u64) -> Result<Vec<f64>> {
        let nothing = ProgramSpec {
            name: "replay_nothing".into(),
            insns: vec![
                Insn::new(insn::ALU64 | insn::MOV | insn::K, 0, 0, 0, 1),
                Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
            ],
            maps: Vec::new(),
            ..self.kind.clone()
        };
        let (nothing, _) = Program::load(&nothing, &[])?;
        self.run(&nothing, packets)
    }
}

/// Where the packets stand in the two maps.
struct Layout {
    headers: usize,
    bytes: usize,
}

impl Layout {
    fn of(trace: &[Vec<u8>]) -> std::result::Result<Layout, String> {
        if trace.is_empty() {
            return Err("the trace is empty".to_owned());
        }
        if let Some((i, packet)) =
            trace.iter().enumerate().find(|(_, p)| !(PACKET_MIN..=PACKET_MAX).contains(&p.len()))
        {
            let len = packet.len();
            return Err(format!("packet {i} has {len} bytes; {PACKET_MIN} to {PACKET_MAX} can be replayed"));
        }
        let total: usize = trace.iter().map(|p| place(p.len())).sum();
        // A program may address array values up to 2^29 bytes by variable offset.
        if total > 1 << 28 || trace.len() > 1 << 25 {
            let problem = format!("{} packets of {total} bytes together; at most 2^25 and 2^28", trace.len());
            return Err(problem);
        }
        Ok(Layout { headers: trace.len().next_power_of_two(), bytes: total.next_power_of_two() })
    }

    fn header_mask(&self) -> u32 {
        self.headers as u32 - 1
    }

    fn byte_mask(&self) -> u32 {
        self.bytes as u32 - 1
    }

    fn headers_size(&self) -> u32 {
        self.headers as u32 * 8
    }

    fn bytes_size(&self) -> u32 {
        (self.bytes + BYTES_SLACK) as u32
    }

    fn fill(&self, trace: &[Vec<u8>], headers: &Mapping, bytes: &Mapping) {
        let mut offset = 0;
        for (i, packet) in trace.iter().enumerate() {
            headers.store_u32(i * 8, offset as u32);
            headers.store_u32(i * 8 + 4, packet.len() as u32);
            bytes.write(offset, packet);
            offset += place(packet.len());
        }
    }
}

/// Bytes that a packet takes up: whole cache lines, as packets in a ring do.
fn place(len: usize) -> usize {
    len.next_multiple_of(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_that_cannot_be_replayed_are_refused_with_the_packet() {
        let refusal = |trace: &[Vec<u8>]| Layout::of(trace).err().expect("it cannot be replayed");
        assert!(refusal(&[]).contains("empty"));
        assert!(refusal(&[vec![0; 64], vec![0; 13]]).contains("packet 1 has 13 bytes"));
        assert!(refusal(&[vec![0; PACKET_MAX + 1]]).contains("packet 0"));
        assert!(Layout::of(&[vec![0; PACKET_MAX], vec![0; PACKET_MIN]]).is_ok());
    }

    #[test]
    fn tables_are_powers_of_two_with_room_for_the_longest_packet_at_the_end() {
        let layout = Layout::of(&vec![vec![0; 100]; 5]).expect("a good trace");
        assert_eq!((layout.header_mask(), layout.byte_mask()), (7, 1023));
        assert_eq!((layout.headers_size(), layout.bytes_size()), (64, 1024 + 4096));
    }
}
