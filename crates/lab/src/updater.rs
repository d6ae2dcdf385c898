//! The process that changes the tables, by plain `bpf(2)` calls as any control plane's.
//!
//! It works in periods: a burst of changes, then quiet that single moves interrupt at random moments, so that some
//! come while a version for the last change is being made, some when it is in place, and the first of a burst
//! always meets a version that has to give way at once. Every change is reported with its times ([`crate::update`]).
//!
//! It runs apart from the process that checks: [`Order::command`] starts it, [`run`] is what it does.

use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use router_ctl::layout::map::{NEIGHBOURS, ROUTES};
use router_ctl::{MapData, Neighbour, RouteKey, RouteValue};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::plan::Plan;
use crate::scene::{Scene, SceneSpec};
use crate::sys::{self, PinnedMap};
use crate::update::{Change, Report, Update};

/// Burst and quiet together.
const PERIOD: Duration = Duration::from_millis(1000);
/// How long a burst takes.
const BURST: Duration = Duration::from_millis(200);
/// Times between single moves in the quiet: most are long enough for a new version to be made and used, some so
/// short that they come while it is being made.
const LONG_GAP: [Duration; 2] = [Duration::from_millis(250), Duration::from_millis(450)];
const SHORT_GAP: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(60)];
/// Share of the short ones.
const SHORT_GAPS: f64 = 0.3;
/// Gaps that are shorter, in ns, are left out: sleeping would take longer.
const SHORTEST_SLEEP: u64 = 20_000;
/// Pauses from this length on, in ns, are told of beforehand.
const LONG_PAUSE: u64 = 2_000_000;
/// Reports that may wait before they are sent.
const WAITING: usize = 64;

/// What the updater is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Directory where the router's maps are pinned under their names.
    pub maps: PathBuf,
    /// What they hold when it begins.
    pub scene: SceneSpec,
    /// For how long.
    pub seconds: u64,
    /// Changes per second, on average at least.
    pub rate: u32,
}

impl Order {
    /// The order as an argument of a command line.
    pub fn to_argument(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| LabError::io("writing the updater's order", e))
    }

    /// Reads it back.
    pub fn from_argument(text: &str) -> Result<Order> {
        serde_json::from_str(text).map_err(|e| LabError::io("reading the updater's order", e))
    }
}

/// Changes the tables as ordered, and reports to `out`. Ends when it is done, or when nobody listens any more.
pub fn run(order: &Order, out: impl Write) -> Result<()> {
    let scene = Scene::new(order.scene)?;
    let mut updater = Updater {
        plan: Plan::new(&scene.tables, &scene.hot, order.scene.seed),
        tables: Tables::open(&order.maps)?,
        reporter: Reporter { out: BufWriter::with_capacity(1 << 16, out), waiting: 0 },
        rng: SmallRng::seed_from_u64(order.scene.seed),
        made: 0,
    };
    match updater.run(order) {
        Err(Stop::Deaf) => Ok(()),
        Err(Stop::Failed(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// The maps that are changed.
#[derive(Debug)]
pub struct Tables {
    routes: PinnedMap,
    neighbours: PinnedMap,
}

impl Tables {
    /// Opens the maps pinned in a directory.
    pub fn open(dir: &Path) -> Result<Tables> {
        Ok(Tables {
            routes: open::<RouteKey, RouteValue>(&dir.join(ROUTES))?,
            neighbours: open::<Ipv4Addr, Neighbour>(&dir.join(NEIGHBOURS))?,
        })
    }

    /// Makes a change by one system call, and tells when.
    ///
    /// Errors: what the kernel says; an entry to be withdrawn is not there, so somebody else changes the tables.
    pub fn make(&self, change: Change) -> Result<Update> {
        let map = match change {
            Change::Route(..) => &self.routes,
            Change::Neighbour(..) => &self.neighbours,
        };
        let (key, value) = change.bytes();
        let begun = sys::monotonic_ns();
        let outcome = match &value {
            Some(value) => map.update(&key, value),
            None => map.delete(&key),
        };
        let ended = sys::monotonic_ns();
        outcome.map_err(|e| LabError::io(format!("making {change:?}"), e))?;
        Ok(Update { begun, ended, change })
    }
}

fn open<K: MapData, V: MapData>(path: &Path) -> Result<PinnedMap> {
    PinnedMap::open(path, K::SIZE, V::SIZE)
        .map_err(|e| LabError::io(format!("opening the map pinned at {}", path.display()), e))
}

struct Updater<W: Write> {
    plan: Plan,
    tables: Tables,
    reporter: Reporter<W>,
    rng: SmallRng,
    made: u64,
}

/// Why it ended before it was done.
enum Stop {
    Deaf,
    Failed(LabError),
}

impl From<LabError> for Stop {
    fn from(error: LabError) -> Stop {
        Stop::Failed(error)
    }
}

impl<W: Write> Updater<W> {
    fn run(&mut self, order: &Order) -> std::result::Result<(), Stop> {
        let begin = sys::monotonic_ns();
        let end = begin + order.seconds * 1_000_000_000;
        let period = PERIOD.as_nanos() as u64;
        for next in (begin..end).step_by(PERIOD.as_nanos() as usize).map(|start| start + period) {
            let due = (next - begin) * u64::from(order.rate) / 1_000_000_000;
            self.burst(due.saturating_sub(self.made))?;
            self.single_moves_until(next.min(end))?;
        }
        self.reporter.tell(&Report::QuietUntil(u64::MAX))?;
        self.reporter.flush()
    }

    fn burst(&mut self, changes: u64) -> std::result::Result<(), Stop> {
        let until = self.made + changes;
        let longest_gap = 2 * BURST.as_nanos() as u64 / changes.max(1);
        let mut at = sys::monotonic_ns();
        while self.made < until {
            at = (at + self.rng.random_range(0..=longest_gap)).max(sys::monotonic_ns());
            self.pause_until(at)?;
            self.make_move()?;
        }
        Ok(())
    }

    fn single_moves_until(&mut self, end: u64) -> std::result::Result<(), Stop> {
        loop {
            let gap = if self.rng.random_bool(SHORT_GAPS) { SHORT_GAP } else { LONG_GAP };
            let [shortest, longest] = gap.map(|d| d.as_nanos() as u64);
            let at = sys::monotonic_ns() + self.rng.random_range(shortest..longest);
            if at >= end {
                return self.pause_until(end);
            }
            self.pause_until(at)?;
            self.make_move()?;
        }
    }

    /// Sleeps, after having told so if it is worth it.
    fn pause_until(&mut self, time: u64) -> std::result::Result<(), Stop> {
        let pause = time.saturating_sub(sys::monotonic_ns());
        let promise = pause >= LONG_PAUSE || self.reporter.waiting >= WAITING;
        if promise {
            self.reporter.tell(&Report::QuietUntil(time))?;
            self.reporter.flush()?;
        }
        if promise || pause > SHORTEST_SLEEP {
            sys::sleep_until(time);
        }
        Ok(())
    }

    fn make_move(&mut self) -> std::result::Result<(), Stop> {
        for change in self.plan.draw() {
            let update = self.tables.make(change)?;
            self.made += 1;
            self.reporter.tell(&Report::Update(update))?;
        }
        Ok(())
    }
}

struct Reporter<W: Write> {
    out: BufWriter<W>,
    waiting: usize,
}

impl<W: Write> Reporter<W> {
    fn tell(&mut self, report: &Report) -> std::result::Result<(), Stop> {
        self.waiting += 1;
        writeln!(self.out, "{report}").map_err(deaf)
    }

    fn flush(&mut self) -> std::result::Result<(), Stop> {
        self.waiting = 0;
        self.out.flush().map_err(deaf)
    }
}

fn deaf(error: io::Error) -> Stop {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Stop::Deaf
    } else {
        Stop::Failed(LabError::io("reporting", error))
    }
}
