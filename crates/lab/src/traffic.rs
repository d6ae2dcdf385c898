//! Traffic without pause, and what became of every packet of it.
//!
//! [`Traffic`] makes frames in the kernel (`src/bpf/traffic.bpf.c`) that leave by the tester's interface, meet the
//! program on the router's interface, and come back or go up to the router's stack. Each packet has a record:
//! when it was made, when and how it was seen again. [`Traffic::read`] hands the records out in the order of the
//! packets, each exactly once; the generator waits rather than overwrite one that was not read.
//!
//! A time of beginning is taken before the frame leaves and a time of ending after the router is done with it, so
//! the router's program ran somewhere in between. The batch size decides how wide that is: frames wait for
//! the rest of their batch.
//!
//! Nothing here knows what the router should do.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use runnel_kernel::cpu::OneCpu;
use runnel_kernel::link::XdpLink;
use runnel_kernel::map::Mapping;
use runnel_kernel::netns::ParkedVeth;
use runnel_kernel::object::{LoadedObject, Object};
use runnel_kernel::program::Program;

use crate::error::{LabError, Result};
use crate::sys::{self, MAX_BATCH};
use crate::testbed::Testbed;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/traffic.bpf.o"));

/// Bytes of every frame.
pub const FRAME: usize = 64;
/// Offset of the payload that the generator writes in a frame, in bytes: after Ethernet, IPv4 and UDP headers.
pub const PAYLOAD: usize = 42;
/// Bytes of the payload that the generator writes: a mark and the sequence number.
pub const PAYLOAD_BYTES: usize = 16;
/// Most different frames.
pub const MAX_FRAMES: usize = 8192;
/// Most patterns.
pub const MAX_PATTERNS: usize = 4;
/// Packets after which a pattern begins anew.
pub const PATTERN_PERIOD: usize = 16384;

const RECORDS: u64 = 1 << 21;
/// How many packets later a packet that was not seen again counts as lost. Packets that are handed to the stack
/// are seen a little later than those that come back; never by more than a few NAPI polls (64 packets each).
const PATIENCE: u64 = 1 << 16;
/// Frames per system call: a few milliseconds, after which the CPU passes a quiescent state for RCU, on which
/// swaps of programs wait.
const FRAMES_PER_CALL: u32 = 2048;
/// How long the last packets may be on their way.
const DRAIN: Duration = Duration::from_millis(500);

/// Offsets in `struct record`.
mod record {
    pub const BYTES: usize = 40;
    pub const STARTED: usize = 8;
    pub const ENDED: usize = 16;
    pub const MACS: usize = 24;
    pub const FORWARDED: u16 = 1;
}

/// Offsets in `struct control`.
mod control {
    pub const MADE: usize = 0;
    pub const THROTTLED: usize = 8;
    pub const READ: usize = 64;
    pub const PATTERN: usize = 72;
    pub const MAGIC: usize = 80;
    pub const STRANGE: usize = 128;
}

/// What to send.
#[derive(Clone, Debug)]
pub struct TrafficSpec {
    /// The frames, at most [`MAX_FRAMES`]. Bytes [`PAYLOAD`] to `PAYLOAD + PAYLOAD_BYTES` are written over.
    pub frames: Vec<[u8; FRAME]>,
    /// At most [`MAX_PATTERNS`] patterns: indices of frames, followed in turn, repeated up to [`PATTERN_PERIOD`]
    /// and cut there.
    pub patterns: Vec<Vec<u16>>,
    /// Frames that are made before they leave together, 1 to 256. Smaller is slower, and pins the moment at which
    /// the router saw a packet down more narrowly.
    pub batch: u32,
    /// The CPU on which everything runs.
    pub cpu: usize,
}

/// How a packet was seen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It came back from the router with these Ethernet addresses.
    Forwarded {
        /// Destination.
        destination: [u8; 6],
        /// Source.
        source: [u8; 6],
    },
    /// The router handed it to its stack.
    Passed,
    /// It was not seen again.
    Lost,
}

/// A packet and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Counted from 0 without gaps.
    pub sequence: u64,
    /// Index of its frame.
    pub frame: u16,
    /// `CLOCK_MONOTONIC` in ns before the router's program began.
    pub started: u64,
    /// The same after it ended; of a lost packet, when it was given up.
    pub ended: u64,
    /// What became of it.
    pub fate: Fate,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets made.
    pub made: u64,
    /// Times that no packet was made because the records had not been read yet.
    pub throttled: u64,
    /// Frames that arrived and are none of ours, or a second time.
    pub strange: u64,
}

/// The generator and the collectors, attached to a testbed.
#[derive(Debug)]
pub struct Traffic {
    generator: Option<Generator>,
    engine: Arc<Engine>,
    control: Mapping,
    ring: Mapping,
    next: u64,
    _collect: XdpLink,
    _passed: OwnedFd,
}

/// What the generating thread needs.
#[derive(Debug)]
struct Engine {
    program: Program,
    _parked: XdpLink,
    _place: ParkedVeth,
    testbed: Arc<Testbed>,
    frame: [u8; FRAME],
    batch: u32,
    cpu: usize,
    stop: AtomicBool,
}

type Generator = JoinHandle<Result<()>>;

impl Traffic {
    /// Loads the programs and attaches the collectors; no packet is made before [`Traffic::start`].
    ///
    /// The testbed's tester interface must be free. Errors: a specification that does not fit; what the kernel says.
    pub fn attach(testbed: &Arc<Testbed>, spec: &TrafficSpec) -> Result<Traffic> {
        check(spec)?;
        let object = Object::open_bytes(Path::new("traffic.bpf.o"), OBJECT)?.load()?;
        let control = object.map(".bss.control")?.mmap(true)?;
        control.store_u64(control::MAGIC, magic());
        write_spec(&object, spec)?;
        let ring = object.map("ring")?.mmap(false)?;
        let collect = testbed.attach_tester(&object.program("collect")?.program)?;
        let passed = &object.program("passed")?.program;
        let ifindex = testbed.router_ifindex();
        let passed = testbed
            .router()
            .run(|| sys::attach_tcx_ingress(passed, ifindex))?
            .map_err(|e| LabError::io("attaching to the ingress of the router's interface", e))?;
        let program = object.program("generate")?.program.try_clone()?;
        // Attached somewhere, or each of its runs would wait for RCU.
        let place = ParkedVeth::new()?;
        let engine = Engine {
            _parked: place.park(0, &program)?,
            _place: place,
            program,
            testbed: Arc::clone(testbed),
            frame: spec.frames[0],
            batch: spec.batch,
            cpu: spec.cpu,
            stop: AtomicBool::new(false),
        };
        Ok(Traffic {
            generator: None,
            engine: Arc::new(engine),
            control,
            ring,
            next: 0,
            _collect: collect,
            _passed: passed,
        })
    }

    /// Begins, or goes on, to make packets, by the pattern set.
    pub fn start(&mut self) {
        if self.generator.is_none() {
            self.engine.stop.store(false, Ordering::SeqCst);
            let engine = Arc::clone(&self.engine);
            self.generator =
                Some(std::thread::spawn(move || engine.testbed.tester().run(|| engine.generate())?));
        }
    }

    /// Follows another pattern from the next packet on. There are as many as were given; others count modulo
    /// [`MAX_PATTERNS`], and what was not given sends the first frame only.
    pub fn set_pattern(&self, pattern: usize) {
        self.control.store_u64(control::PATTERN, pattern as u64);
    }

    /// Stops making packets and waits for the last ones; what the generator complained of, if it ended early.
    ///
    /// The remaining records are still to be read.
    pub fn stop(&mut self) -> Result<()> {
        self.engine.stop.store(true, Ordering::SeqCst);
        let Some(generator) = self.generator.take() else { return Ok(()) };
        let outcome = generator.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let until = sys::monotonic_ns() + DRAIN.as_nanos() as u64;
        let last = self.counters().made.checked_sub(1);
        while last.is_some_and(|last| self.word(last, record::ENDED) == 0) && sys::monotonic_ns() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        outcome
    }

    /// Whether the generator has ended by itself: [`Traffic::stop`] tells why.
    pub fn has_failed(&self) -> bool {
        self.generator.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        Counters {
            made: self.control.load_u64(control::MADE),
            throttled: self.control.load_u64(control::THROTTLED),
            strange: self.control.load_u64(control::STRANGE),
        }
    }

    /// Hands on the packets whose fate is known by now, in their order, until one is refused, which will come
    /// again; how many were taken.
    ///
    /// Stops at a packet that may still be on its way. To be called often enough: there is room for 2 million.
    pub fn read(&mut self, mut take: impl FnMut(&Packet) -> ControlFlow<()>) -> u64 {
        let made = self.control.load_u64(control::MADE);
        let running = self.generator.is_some();
        let begun = self.next;
        while self.next < made {
            let ended = self.word(self.next, record::ENDED);
            let waiting = ended == 0 && running && made - self.next < PATIENCE;
            if waiting || take(&self.packet(self.next, ended)).is_break() {
                break;
            }
            self.next += 1;
        }
        self.control.store_u64(control::READ, self.next);
        self.next - begun
    }

    fn packet(&self, sequence: u64, ended: u64) -> Packet {
        let started = self.word(sequence, record::STARTED);
        let [low, high] = [0, 8].map(|at| self.word(sequence, record::MACS + at).to_ne_bytes());
        let frame = u16::from_ne_bytes([high[4], high[5]]);
        let outcome = u16::from_ne_bytes([high[6], high[7]]);
        let (ended, fate) = match (ended, outcome) {
            (0, _) => (sys::monotonic_ns(), Fate::Lost),
            (ended, record::FORWARDED) => {
                let destination = std::array::from_fn(|i| low[i]);
                let source = [low[6], low[7], high[0], high[1], high[2], high[3]];
                (ended, Fate::Forwarded { destination, source })
            }
            (ended, _) => (ended, Fate::Passed),
        };
        Packet { sequence, frame, started, ended, fate }
    }

    fn word(&self, sequence: u64, at: usize) -> u64 {
        self.ring.load_u64((sequence % RECORDS) as usize * record::BYTES + at)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        // A failure was there to be asked for with `stop`.
        let _ = self.stop();
    }
}

impl Engine {
    fn generate(&self) -> Result<()> {
        let _here = OneCpu::bind_to(self.cpu)?;
        let ifindex = self.testbed.tester_ifindex();
        while !self.stop.load(Ordering::SeqCst) {
            sys::run_live(&self.program, &self.frame, ifindex, FRAMES_PER_CALL, self.batch)
                .map_err(|e| LabError::io("sending frames", e))?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn check(spec: &TrafficSpec) -> Result<()> {
    let frames = spec.frames.len();
    let wrong = |problem: String| Err(LabError::Traffic(problem));
    if frames == 0 || frames > MAX_FRAMES {
        return wrong(format!("{frames} different frames; there can be 1 to {MAX_FRAMES}"));
    }
    if spec.patterns.is_empty() || spec.patterns.len() > MAX_PATTERNS {
        return wrong(format!("{} patterns; there can be 1 to {MAX_PATTERNS}", spec.patterns.len()));
    }
    if spec.patterns.iter().any(|p| p.is_empty() || p.iter().any(|i| usize::from(*i) >= frames)) {
        return wrong(format!("a pattern is empty, or names a frame beyond the {frames} there are"));
    }
    if spec.batch == 0 || spec.batch > MAX_BATCH {
        return wrong(format!("{} frames at a time; there can be 1 to {MAX_BATCH}", spec.batch));
    }
    Ok(())
}

fn write_spec(object: &LoadedObject, spec: &TrafficSpec) -> Result<()> {
    let frames = object.map(".bss.templates")?.mmap(true)?;
    for (i, frame) in spec.frames.iter().enumerate() {
        frames.write(i * FRAME, frame);
    }
    let schedule = object.map(".bss.schedule")?.mmap(true)?;
    for (i, pattern) in spec.patterns.iter().enumerate() {
        let indices: Vec<u8> =
            pattern.iter().cycle().take(PATTERN_PERIOD).flat_map(|index| index.to_ne_bytes()).collect();
        schedule.write(i * PATTERN_PERIOD * 2, &indices);
    }
    Ok(())
}

/// Differs between benches that run at the same time.
fn magic() -> u64 {
    sys::monotonic_ns() << 16 | u64::from(std::process::id() & 0xffff)
}
