//! The consistency experiment: does any packet show a state of the tables that the original could not have shown?
//!
//! `runnel run` keeps the router specialized; packets flow without pause on one CPU; on another, a process changes
//! routes and neighbours. The checker compares each packet with what the tables may have held while its program
//! ran ([`crate::checker`]). Packets are judged while the experiment runs, as soon as it is known which updates
//! had begun before they ended.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::cpu::OneCpu;
use serde::Serialize;

use crate::checker::{Checker, Tally};
use crate::child::ChildProcess;
use crate::device::{Device, DeviceSpec};
use crate::error::Result;
use crate::observer::Observer;
use crate::scene::{Pattern, Scene, SceneSpec};
use crate::sys::Cpus;
use crate::testbed::Testbed;
use crate::traffic::{Traffic, TrafficSpec};
use crate::update::Report;
use crate::updater::Order;

/// Frames that leave together. The time between a packet's stamp and its program is what a batch takes: a few
/// microseconds at most with four.
const BATCH: u32 = 4;
/// Pause between looks at what has come.
const TICK: Duration = Duration::from_millis(5);
/// How long each pattern of traffic is kept.
const PATTERN_TIME: Duration = Duration::from_millis(1700);
/// How long after its time the updater may still be at work.
const UPDATER_PATIENCE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `runnel` binary.
    pub runnel: PathBuf,
    /// The router's object.
    pub object: PathBuf,
    /// The tables and the traffic.
    pub scene: SceneSpec,
    /// How long updates are made.
    pub seconds: u64,
    /// Updates per second, on average at least.
    pub rate: u32,
    /// Whether the watcher bumps epochs.
    pub bump: bool,
    /// The program, with its first arguments, that carries out an updater's [`Order`] given as the next argument
    /// ([`crate::updater::run`], reporting on standard output).
    pub updater: (PathBuf, Vec<String>),
}

/// What came out: one row of results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The program under test.
    pub program: String,
    /// How long updates were made.
    pub seconds: f64,
    /// Packets, each of them judged.
    pub packets: u64,
    /// Changes of routes and neighbours.
    pub updates: u64,
    /// Versions that were put on the hook meanwhile.
    pub swaps: u64,
    /// Faults injected on purpose: 1 if the watcher's bump was off.
    pub faults: u64,
    /// Outcomes that the original could not have shown.
    pub wrong_outcomes: u64,
    /// Packets that were not seen again.
    pub lost_packets: u64,
    /// Share of the packets that ran optimized code.
    pub optimized_share: f64,
    /// Packets that started within 50 µs after an update returned.
    pub packets_within_50us: u64,
    /// Of these, those whose own route or neighbour the update was about.
    pub concerned_within_50us: u64,
    /// Outcomes that the original can show only by a race inside the kernel's hash table.
    pub kernel_races: u64,
    /// Packets handed to the stack, for want of a route or a neighbour.
    pub passed_packets: u64,
    /// Times that the generator had to wait for the checker.
    pub throttled: u64,
    /// The first wrong packets, and what the tables held for them.
    pub explanations: Vec<String>,
}

impl Outcome {
    /// Packets per second.
    pub fn packet_rate(&self) -> f64 {
        self.packets as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Updates per second.
    pub fn update_rate(&self) -> f64 {
        self.updates as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// Runs the experiment; ends early, with what there is by then, when `stop` is set. `progress` is called about once
/// a second.
///
/// Errors: what keeps it from being run to its end. Wrong packets are a result, not an error.
pub fn run(settings: &Settings, stop: &AtomicBool, mut progress: impl FnMut(&Tally)) -> Result<Outcome> {
    let cpus = Cpus::choose()?;
    let _here = OneCpu::bind_to(cpus.control)?;
    let scene = Scene::new(settings.scene)?;
    let testbed = Arc::new(Testbed::new()?);
    let bpffs = PrivateBpffs::new()?;
    let spec = DeviceSpec {
        runnel: settings.runnel.clone(),
        object: settings.object.clone(),
        tables: Some(scene.tables.clone()),
        state_dir: bpffs.path().join("state"),
        bump: settings.bump,
    };
    let mut device = Device::start(&testbed, &spec)?;
    let mut traffic = Traffic::attach(&testbed, &traffic_spec(&scene, cpus))?;
    device.wait_for_version("routes", scene.tables.routes.len())?;
    traffic.start();
    let (updater, reports) = start_updater(settings, &device)?;
    let mut experiment = Experiment {
        observer: Observer::new(Checker::new(&scene.tables, &scene.destinations), traffic),
        device,
        updater,
        reports,
        quiet_until: 0,
        swaps: 0,
        fallbacks: 0,
    };
    let seconds = experiment.observe(stop, &mut progress)?;
    experiment.finish()?;
    Ok(experiment.outcome(settings, seconds))
}

/// All patterns of a scene, on the CPU for traffic.
pub fn traffic_spec(scene: &Scene, cpus: Cpus) -> TrafficSpec {
    TrafficSpec {
        frames: scene.frames.clone(),
        patterns: scene.patterns.clone(),
        batch: BATCH,
        cpu: cpus.traffic,
    }
}

fn start_updater(settings: &Settings, device: &Device) -> Result<(ChildProcess, Receiver<Result<Report>>)> {
    let (scene, seconds, rate) = (settings.scene, settings.seconds, settings.rate);
    let order = Order { maps: device.maps_dir(), scene, seconds, rate };
    let (program, arguments) = &settings.updater;
    let mut command = Command::new(program);
    command.args(arguments).arg(order.to_argument()?);
    let (send, reports) = channel();
    let updater = ChildProcess::start("the updater", command, move |line| {
        // When nobody listens any more, nobody misses it.
        let _ = send.send(line.parse());
    })?;
    Ok((updater, reports))
}

struct Experiment {
    observer: Observer,
    device: Device,
    updater: ChildProcess,
    reports: Receiver<Result<Report>>,
    /// No update that the checker does not know begins before this time.
    quiet_until: u64,
    swaps: u64,
    /// Packets that versions handed to the original, known in the end.
    fallbacks: u64,
}

impl Experiment {
    /// Judges until the updater is done, or `stop` is set; for how long, in seconds.
    fn observe(&mut self, stop: &AtomicBool, progress: &mut impl FnMut(&Tally)) -> Result<f64> {
        let begin = Instant::now();
        let mut told = begin;
        while !stop.load(Ordering::Relaxed) && self.hear_updater()? {
            self.observer.traffic().set_pattern(pattern_at(begin.elapsed()));
            self.hear_device()?;
            self.observer.judge(self.quiet_until, |_, _| {})?;
            if told.elapsed() > Duration::from_secs(1) {
                told = Instant::now();
                progress(&self.observer.tally());
            }
            std::thread::sleep(TICK);
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Takes note of the updates reported; false once there will be no more.
    fn hear_updater(&mut self) -> Result<bool> {
        loop {
            match self.reports.try_recv() {
                Ok(report) => self.note(report?),
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => {
                    self.updater.wait(UPDATER_PATIENCE)?;
                    return Ok(false);
                }
            }
        }
    }

    fn note(&mut self, report: Report) {
        match report {
            Report::Update(update) => self.observer.update(&update),
            Report::QuietUntil(time) => self.quiet_until = time,
        }
    }

    fn hear_device(&mut self) -> Result<()> {
        while let Some(event) = self.device.event()? {
            self.swaps += u64::from(event.is_installed());
        }
        Ok(())
    }

    /// Ends the updater and the traffic, judges what is left, and takes the program down.
    fn finish(&mut self) -> Result<()> {
        if self.updater.ended()?.is_none() {
            // It was stopped early. What it did not report any more is not known, so what packets met after its
            // last promise is not judged.
            self.updater.kill()?;
            while let Ok(report) = self.reports.try_recv() {
                self.note(report?);
            }
        }
        self.observer.traffic().stop()?;
        self.hear_device()?;
        self.observer.judge(self.quiet_until, |_, _| {})?;
        self.fallbacks = self.device.stop()?;
        Ok(())
    }

    fn outcome(mut self, settings: &Settings, seconds: f64) -> Outcome {
        let (tally, counters) = (self.observer.tally(), self.observer.traffic().counters());
        let fallbacks = self.fallbacks as f64 / counters.made.max(1) as f64;
        Outcome {
            program: "router".into(),
            seconds,
            packets: tally.packets,
            updates: tally.updates,
            swaps: self.swaps,
            faults: u64::from(!settings.bump),
            wrong_outcomes: tally.wrong,
            lost_packets: tally.lost,
            optimized_share: (1.0 - fallbacks).max(0.0),
            packets_within_50us: tally.close,
            concerned_within_50us: tally.close_and_concerned,
            kernel_races: tally.kernel_races,
            passed_packets: tally.passed,
            throttled: counters.throttled,
            explanations: self.observer.explanations().to_vec(),
        }
    }
}

/// Patterns take turns.
fn pattern_at(elapsed: Duration) -> usize {
    (elapsed.as_millis() / PATTERN_TIME.as_millis()) as usize % Pattern::ALL.len()
}
