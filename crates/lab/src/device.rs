//! The device under test: `runnel run` on the router's interface, as a process of its own.
//!
//! Everything it shows to others is used here as others would: its events, one JSON object a line; its pins, under
//! the state directory; its exit status.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use runnel_kernel::link::XdpLink;
use runnel_kernel::program::{Program, ProgramInfo, StatsGuard, enable_stats};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::child::ChildProcess;
use crate::error::{LabError, Result};
use crate::sys;
use crate::testbed::{ROUTER_DEV, Testbed};

/// Longest wait for an event. On a machine that is busy building, a cycle can take seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The environment variable that turns the watcher's bump off.
const BUMP: &str = "RUNNEL_WATCHER_BUMP";

/// How to start `runnel run`.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// The `runnel` binary.
    pub runnel: PathBuf,
    /// The object to run.
    pub object: PathBuf,
    /// What its maps hold when it is attached.
    pub tables: Option<router_ctl::Tables>,
    /// The state directory, on a BPF file system.
    pub state_dir: PathBuf,
    /// Whether the watcher bumps epochs. Off, stale versions stay in use: for showing that a checker notices.
    pub bump: bool,
}

/// Something that `runnel run` told.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it arrived here, `CLOCK_MONOTONIC` in ns.
    pub at: u64,
    /// The JSON object.
    pub body: Value,
}

impl Event {
    /// Its kind: `started`, `cycle`, `status`, `stopped`.
    pub fn kind(&self) -> &str {
        self.body["event"].as_str().unwrap_or_default()
    }

    /// Whether it tells that a version was put on the hook.
    pub fn is_installed(&self) -> bool {
        self.kind() == "cycle" && self.body["outcome"] == "installed"
    }

    /// Packets that versions had handed to the original by then.
    pub fn fallbacks(&self) -> Option<u64> {
        self.body["fallbacks_in_all"].as_u64()
    }

    /// A number in it.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.body[field].as_f64()
    }
}

/// A running `runnel run`. On drop it is interrupted, which makes it take everything down.
#[derive(Debug)]
pub struct Device {
    process: ChildProcess,
    events: Receiver<Event>,
    pins: PathBuf,
    took_over: bool,
}

impl Device {
    /// Starts it on the router's interface and waits until the program is attached.
    pub fn start(testbed: &Testbed, spec: &DeviceSpec) -> Result<Device> {
        let mut command = testbed.router_command(&spec.runnel);
        command.arg("run").arg(&spec.object).args(["--dev", ROUTER_DEV, "--json", "--state-dir"]);
        command.arg(&spec.state_dir).env_remove(BUMP);
        let contents = spec.tables.as_ref().map(write_contents).transpose()?;
        if let Some(file) = &contents {
            command.arg("--maps").arg(file.path());
        }
        if !spec.bump {
            command.env(BUMP, "off");
        }
        let (send, events) = channel();
        let process = ChildProcess::start("`runnel run`", command, move |line| {
            if let Ok(body) = serde_json::from_str(line) {
                // When nobody listens any more, nobody misses it.
                let _ = send.send(Event { at: sys::monotonic_ns(), body });
            }
        })?;
        let pins = spec.state_dir.join(ROUTER_DEV);
        let mut device = Device { process, events, pins, took_over: false };
        let started = device.wait_for("the program to be attached", |e| e.kind() == "started")?;
        device.took_over = started.body["took_over"] == true;
        Ok(device)
    }

    /// The process.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// Whether it says that it took the hook over from one that was killed.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// Where it pins everything.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// Where it pins the program's link.
    pub fn link_pin(&self) -> PathBuf {
        self.pins.join("link")
    }

    /// Where it pins the original's maps, under their names.
    pub fn maps_dir(&self) -> PathBuf {
        self.pins.join("maps")
    }

    /// The next event that has come, if any.
    ///
    /// Errors: it has ended though nobody asked it to.
    pub fn event(&mut self) -> Result<Option<Event>> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.ended_early()),
        }
    }

    /// Waits for an event of some kind; the ones before are passed over. `what` names it in errors.
    pub fn wait_for(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> bool) -> Result<Event> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) if wanted(&event) => return Ok(event),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self
                        .process
                        .error(format!("let {} s pass; awaited was {what}", PATIENCE.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended_early()),
            }
        }
    }

    /// Waits for a version that was made for a table of this many entries.
    pub fn wait_for_version(&mut self, table: &str, entries: usize) -> Result<Event> {
        self.wait_for("a version for the full tables", |event| {
            let tables = event.body["tables"].as_array().map(Vec::as_slice).unwrap_or_default();
            let full = |t: &Value| t["table"] == table && t["entries"].as_u64() == Some(entries as u64);
            event.is_installed() && tables.iter().any(full)
        })
    }

    fn ended_early(&mut self) -> LabError {
        match self.process.wait(Duration::from_secs(5)) {
            Ok(()) => self.process.error("ended though nobody asked it to"),
            Err(error) => error,
        }
    }

    /// Interrupts it as Ctrl-C does, and waits for its clean end; how many packets its versions handed to the original.
    pub fn stop(&mut self) -> Result<u64> {
        self.process.signal(Signal::SIGINT);
        self.process.wait(PATIENCE)?;
        let last = self.events.try_iter().last().and_then(|event| event.fallbacks());
        last.ok_or_else(|| self.process.error("did not tell how many packets went to the original"))
    }

    /// Begins to time packets in whatever runs on the hook.
    pub fn time_packets(&self) -> Result<Timing> {
        let link = XdpLink::from_pin(&self.link_pin())?;
        let program = Program::from_id(link.info()?.program_id)?;
        let stats = enable_stats()?;
        Ok(Timing { before: program.info()?, program, link, _stats: stats })
    }
}

/// Packets being timed, by the kernel's statistics, which are on meanwhile.
#[derive(Debug)]
pub struct Timing {
    link: XdpLink,
    program: Program,
    before: ProgramInfo,
    _stats: StatsGuard,
}

impl Timing {
    /// Cost of a packet since the beginning, in ns; nothing if no packet came, or another program took over meanwhile.
    pub fn end(self) -> Result<Option<f64>> {
        let after = self.program.info()?;
        let runs = after.run_cnt - self.before.run_cnt;
        let same = self.link.info()?.program_id == self.program.id();
        Ok((same && runs > 0).then(|| (after.run_time_ns - self.before.run_time_ns) as f64 / runs as f64))
    }
}

/// The tables in a file for `--maps`.
fn write_contents(tables: &router_ctl::Tables) -> Result<NamedTempFile> {
    let write = || -> std::io::Result<NamedTempFile> {
        let file = NamedTempFile::new()?;
        tables.write_json(BufWriter::new(&file))?;
        Ok(file)
    };
    write().map_err(|e| LabError::io("writing the tables to a file", e))
}

/// The path of a binary that was built beside the one that runs.
///
/// Errors: there is none.
pub fn sibling_binary(name: &'static str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|e| LabError::io("asking for this program's own path", e))?;
    let path = own.parent().unwrap_or(Path::new(".")).join(name);
    if path.is_file() { Ok(path) } else { Err(LabError::Missing { what: name, path }) }
}
