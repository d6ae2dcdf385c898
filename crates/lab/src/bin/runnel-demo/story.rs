//! What happens in the demo, in its order.
//!
//! The costs of a packet are the kernel's own program statistics, switched on for short bursts. The original's is
//! taken right after an update, while it runs because no version fits, so that both figures are for the same traffic.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use router_ctl::Mac;
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::cpu::OneCpu;
use runnel_lab::checker::Checker;
use runnel_lab::consistency::traffic_spec;
use runnel_lab::device::{Device, DeviceSpec, Event};
use runnel_lab::observer::Observer;
use runnel_lab::plan::Plan;
use runnel_lab::scene::{Pattern, Reroute, Scene, SceneSpec};
use runnel_lab::sys::{self, Cpus};
use runnel_lab::testbed::Testbed;
use runnel_lab::traffic::{Fate, Traffic};
use runnel_lab::update::{Change, Update};
use runnel_lab::updater::Tables;
use runnel_lab::{LabError, Result};
use serde_json::Value;

use crate::screen::Screen;

const SCENE: SceneSpec = SceneSpec { routes: 2500, seed: 11 };
/// Pause between looks at what has come.
const TICK: Duration = Duration::from_millis(5);
/// How long packets are timed.
const TIMED: Duration = Duration::from_millis(20);
/// How often a table is changed so that no version is made: more often than `runnel run` takes for rest.
const REFRESHED: Duration = Duration::from_millis(4);
/// How often the original may be timed in vain, since a version was made all the same.
const ATTEMPTS: usize = 5;
/// How long a pattern of traffic is watched once a version for it is there.
const WATCHED: Duration = Duration::from_millis(4000);
/// How long to wait for a new version; on a busy machine one takes seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Updates of the storm.
const STORM: usize = 1000;

/// Tells the whole story; whether it ended well, with no packet wrong or lost.
///
/// Errors: what kept it from being told.
pub fn tell(runnel: &Path, object: &Path, stop: &AtomicBool, screen: &Screen) -> Result<bool> {
    if !object.is_file() {
        return Err(LabError::Missing { what: "router object (`make nf` compiles it)", path: object.into() });
    }
    let cpus = Cpus::choose()?;
    let _here = OneCpu::bind_to(cpus.control)?;
    let scene = Scene::new(SCENE)?;
    screen.heading("An XDP router, as clang compiled it");
    let testbed = Arc::new(Testbed::new()?);
    let bpffs = PrivateBpffs::new()?;
    let spec = DeviceSpec {
        runnel: runnel.into(),
        object: object.into(),
        tables: Some(scene.tables.clone()),
        state_dir: bpffs.path().join("state"),
        bump: true,
    };
    let mut traffic = Traffic::attach(&testbed, &traffic_spec(&scene, cpus))?;
    let device = Device::start(&testbed, &spec)?;
    traffic.start();
    let mut story = Story {
        tables: Tables::open(&device.maps_dir())?,
        observer: Observer::new(Checker::new(&scene.tables, &scene.destinations), traffic),
        device,
        scene,
        stop,
        screen,
        installed: Vec::new(),
        costs: Vec::new(),
        refreshes: 0,
        unspecialized: 0,
    };
    story.introduce(cpus)?;
    for pattern in Pattern::ALL {
        story.watch_pattern(pattern)?;
    }
    story.change_a_route()?;
    story.weather_a_storm()?;
    story.end()
}

struct Story<'a> {
    device: Device,
    observer: Observer,
    tables: Tables,
    scene: Scene,
    stop: &'a AtomicBool,
    screen: &'a Screen,
    /// The versions that were put on the hook, as `runnel run` told.
    installed: Vec<Event>,
    /// Cost of a packet in the original and in a version, for each pattern.
    costs: Vec<(f64, f64)>,
    refreshes: u16,
    /// Packets that were made before there was a version.
    unspecialized: u64,
}

impl Story<'_> {
    fn introduce(&mut self, cpus: Cpus) -> Result<()> {
        let line = |text: &str| self.screen.line(text);
        line(&format!(
            "  two network namespaces and a veth pair; {} routes, {} neighbours, {} ports",
            self.scene.tables.routes.len(),
            self.scene.tables.neighbours.len(),
            self.scene.tables.ports.len()
        ));
        line(&format!(
            "  packets are made, routed and collected on CPU {}, everything else runs on CPU {}",
            cpus.traffic, cpus.control
        ));
        line("  each packet carries a time stamp; each is compared with what the tables held at that time");
        self.await_version(0)?;
        self.unspecialized = self.observer.traffic().counters().made;
        self.screen.heading("Runnel reads the tables and puts a version for them on the hook");
        match self.installed.first() {
            Some(event) => {
                tables_text(&event.body).iter().for_each(|text| self.screen.line(&format!("  {text}")));
                self.screen.line(&format!("  {}", effort_text(event)));
                Ok(())
            }
            None if self.is_over() => Ok(()),
            None => {
                let problem = format!("put no version on the hook within {} s", PATIENCE.as_secs());
                Err(self.device.process().error(problem))
            }
        }
    }

    /// Lets time pass: packets are judged, events are heard. Ends early when the user has had enough.
    fn watch(&mut self, duration: Duration, mut until: impl FnMut(&Self) -> bool) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < duration && !self.is_over() && !until(self) {
            self.look()?;
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        while let Some(event) = self.device.event()? {
            if event.is_installed() {
                self.installed.push(event);
            }
        }
        // Only this thread makes updates, and it makes none now.
        self.observer.judge(sys::monotonic_ns(), |_, _| {})
    }

    /// Packets that went to the original, as of the last installation.
    fn fallbacks(&self) -> u64 {
        self.installed.last().and_then(Event::fallbacks).unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for a version that was installed after `time`.
    fn await_version(&mut self, time: u64) -> Result<()> {
        self.watch(PATIENCE, |story| story.installed.last().is_some_and(|event| event.at > time))
    }

    fn make(&mut self, change: Change) -> Result<Update> {
        let update = self.tables.make(change)?;
        self.observer.update(&update);
        Ok(update)
    }

    /// Changes a neighbour's address, so that the original runs until the next version is there.
    fn refresh_a_neighbour(&mut self) -> Result<Update> {
        self.refreshes += 1;
        let addr = self.scene.tables.neighbours[0].0;
        let [high, low] = self.refreshes.to_be_bytes();
        self.make(Change::Neighbour(addr, Some(Mac([0x02, 0xfe, 0, 0, high, low]))))
    }

    /// Cost of a packet in the original, which runs as long as a table keeps changing. The version that is on the
    /// hook sends them there, which costs little.
    fn time_original(&mut self) -> Result<Option<f64>> {
        for _ in 0..ATTEMPTS {
            self.refresh_a_neighbour()?;
            let timing = self.device.time_packets()?;
            let begin = Instant::now();
            while begin.elapsed() < TIMED {
                std::thread::sleep(REFRESHED);
                self.refresh_a_neighbour()?;
            }
            if let Some(cost) = timing.end()? {
                return Ok(Some(cost));
            }
        }
        Ok(None)
    }

    /// Cost of a packet in the version on the hook.
    fn time_version(&self) -> Result<Option<f64>> {
        let timing = self.device.time_packets()?;
        std::thread::sleep(TIMED);
        timing.end()
    }

    fn watch_pattern(&mut self, pattern: Pattern) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        self.screen.heading(&format!("Traffic: {}", describe(pattern)));
        self.observer.traffic().set_pattern(pattern as usize);
        self.watch(Duration::from_millis(300), |_| false)?;
        let original = self.time_original()?;
        let update = self.refresh_a_neighbour()?;
        self.await_version(update.ended)?;
        let begin = Instant::now();
        let mut versions = Vec::new();
        while begin.elapsed() < WATCHED && !self.is_over() {
            let made = self.observer.traffic().counters().made;
            let since = Instant::now();
            self.watch(Duration::from_millis(950), |_| false)?;
            let rate =
                (self.observer.traffic().counters().made - made) as f64 / since.elapsed().as_secs_f64();
            let version = self.time_version()?;
            versions.extend(version);
            self.screen.timed(&status_text(rate, original, version, self.observer.tally().wrong));
        }
        versions.sort_by(f64::total_cmp);
        if let (Some(original), Some(version)) = (original, versions.get(versions.len() / 2)) {
            self.costs.push((original, *version));
        }
        Ok(())
    }

    /// A route changes while its packets flow: which packet is the first to take the new one?
    fn change_a_route(&mut self) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        self.screen.heading("A route changes while packets flow");
        self.observer.traffic().set_pattern(Pattern::Hot as usize);
        self.watch(Duration::from_millis(300), |_| false)?;
        let Some(Reroute { frame, change, to }) = self.scene.reroute() else { return Ok(()) };
        let before = self.fallbacks();
        let update = self.make(change)?;
        let (mut stale, mut first) = (0u64, None);
        let destination = self.scene.destinations[usize::from(frame)];
        let deadline = Instant::now() + Duration::from_millis(20);
        while Instant::now() < deadline {
            self.observer.judge(sys::monotonic_ns(), |packet, _| {
                if packet.frame != frame || packet.started <= update.ended {
                    return;
                }
                match packet.fate {
                    Fate::Forwarded { destination, .. } if destination == to.0 => {
                        first.get_or_insert(packet.started - update.ended);
                    }
                    _ => stale += 1,
                }
            })?;
        }
        self.screen.timed(&format!("control plane: {}", change_text(&change)));
        if let Some(first) = first {
            self.screen.timed(&format!(
                "the first packet to {destination} after the update returned came {:.1} µs later; packets by the old \
                 route from then on: {stale}",
                first as f64 / 1e3
            ));
        }
        self.await_version(update.ended)?;
        if let Some(event) = self.installed.last().filter(|event| event.at > update.ended) {
            self.screen.timed(&format!(
                "the original took {} packets, then, {:.0} ms after the update, a new version went in",
                self.fallbacks() - before,
                (event.at - update.ended) as f64 / 1e6
            ));
        }
        Ok(())
    }

    /// A thousand updates in about a second, as when a peer of a router goes away.
    fn weather_a_storm(&mut self) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        self.screen.heading(&format!("{STORM} routes and neighbours come, go and change within a second"));
        let mut plan = Plan::new(&self.scene.tables, &self.scene.hot, SCENE.seed);
        let before = self.observer.tally();
        let mut made = 0;
        let mut last = 0;
        while made < STORM && !self.is_over() {
            for change in plan.draw() {
                last = self.make(change)?.ended;
                made += 1;
            }
            if made % 20 == 0 {
                self.look()?;
            }
            std::thread::sleep(Duration::from_micros(700));
        }
        self.look()?;
        let tally = self.observer.tally();
        self.screen.timed(&format!(
            "{made} updates; {} packets judged meanwhile, {} of them within 50 µs after an update; wrong: {}",
            tally.packets - before.packets,
            tally.close - before.close,
            tally.wrong
        ));
        self.await_version(last)?;
        if self.installed.last().is_some_and(|event| event.at > last) {
            self.screen.timed("quiet again, and a new version is in place");
        }
        self.watch(Duration::from_millis(500), |_| false)
    }

    fn end(mut self) -> Result<bool> {
        self.observer.traffic().stop()?;
        self.look()?;
        let tally = self.observer.tally();
        let fallbacks = self.device.stop()?;
        let interrupted = self.is_over();
        self.screen.heading(if interrupted { "Interrupted" } else { "In the end" });
        let made = self.observer.traffic().counters().made.max(1);
        let optimized = 100.0 * (1.0 - (self.unspecialized + fallbacks) as f64 / made as f64);
        self.screen
            .line(&format!("  packets   {}, {optimized:.0} % of them in optimized code", tally.packets));
        self.screen.line(&format!(
            "  updates   {}, versions swapped in: {}",
            tally.updates,
            self.installed.len()
        ));
        for (pattern, (original, version)) in Pattern::ALL.iter().zip(&self.costs) {
            let speed = original / version;
            self.screen.line(&format!(
                "  {:<9} {original:.0} ns a packet in the original, {version:.0} optimized: {speed:.1} times as fast",
                pattern.name()
            ));
        }
        self.screen.line(&self.screen.bold(&format!("  wrong     {}, lost: {}", tally.wrong, tally.lost)));
        self.observer.explanations().iter().for_each(|text| self.screen.line(text));
        Ok(tally.wrong == 0 && tally.lost == 0 && !interrupted)
    }
}

fn describe(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Uniform => "all destinations alike",
        Pattern::Hot => "a few hot destinations",
        Pattern::Zipf => "few destinations often, many rarely (Zipf)",
    }
}

fn status_text(rate: f64, original: Option<f64>, version: Option<f64>, wrong: u64) -> String {
    let ns = |cost: Option<f64>| cost.map_or("     -".to_owned(), |ns| format!("{ns:4.0} ns"));
    let speed = original.zip(version).map_or(String::new(), |(o, v)| format!(", {:.1} times as fast", o / v));
    format!("{:.2} Mpps   original {}, now {}{speed}   wrong: {wrong}", rate / 1e6, ns(original), ns(version))
}

/// What became of each table, a line each.
fn tables_text(cycle: &Value) -> Vec<String> {
    let text = |table: &Value| {
        let name = table["table"].as_str().unwrap_or_default();
        let entries = table["entries"].as_u64().map_or(String::new(), |n| format!("{n} entries"));
        let sites = table["sites"].as_array().map(Vec::as_slice).unwrap_or_default();
        let forms: Vec<&str> = sites.iter().filter_map(|site| site["form"].as_str()).collect();
        let became = match table["left"].as_str() {
            Some(why) => format!("stays: {why}"),
            None if forms.is_empty() => "not looked up any more".to_owned(),
            None => forms.join(", "),
        };
        format!("{name:<14} {entries:>13}  {became}")
    };
    cycle["tables"].as_array().map(Vec::as_slice).unwrap_or_default().iter().map(text).collect()
}

fn effort_text(cycle: &Event) -> String {
    let ms = |field| cycle.number(field).unwrap_or_default();
    format!(
        "read in {:.1} ms, compiled in {:.1} ms, verified in {:.1} ms, swapped in {:.1} ms",
        ms("read_ms"),
        ms("compile_ms"),
        ms("verify_ms"),
        ms("swap_ms")
    )
}

fn change_text(change: &Change) -> String {
    match change {
        Change::Route(prefix, Some(to)) => format!("{prefix} now via {}", to.next_hop),
        Change::Route(prefix, None) => format!("{prefix} withdrawn"),
        Change::Neighbour(addr, Some(mac)) => format!("{addr} now at {mac}"),
        Change::Neighbour(addr, None) => format!("{addr} gone"),
    }
}
