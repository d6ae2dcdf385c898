//! Changes of a running router's routes and neighbours, as routing daemons make them: routes that come, change
//! and go, neighbours that move, vanish and come back, in bursts.
//!
//! [`Churn`] draws the changes and keeps book of what the tables hold by then; [`run`] paces and applies
//! them. It relies on being the only writer of these tables. It deliberately knows neither the kernel nor
//! the clock: both are given to [`run`], so that tests need neither.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::layout::{MAX_ROUTES, Mac, MapData, Neighbour, RouteKey, RouteValue, map};

/// What a change does with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The key was not there.
    Add,
    /// The key was there, with another value.
    Change,
    /// The key was there and goes.
    Withdraw,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "add",
            Self::Change => "change",
            Self::Withdraw => "withdraw",
        })
    }
}

/// The entry that a change is about. The value of a withdrawn one is the one it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An entry of `routes`.
    Route(RouteKey, RouteValue),
    /// An entry of `neighbours`.
    Neighbour(Ipv4Addr, Neighbour),
}

impl Entry {
    /// The name of its map.
    pub fn map(&self) -> &'static str {
        match self {
            Self::Route(..) => map::ROUTES,
            Self::Neighbour(..) => map::NEIGHBOURS,
        }
    }

    /// Its key as the map holds it.
    pub fn key(&self) -> Vec<u8> {
        match self {
            Self::Route(key, _) => key.to_bytes(),
            Self::Neighbour(addr, _) => addr.to_bytes(),
        }
    }

    /// Its value as the map holds it.
    pub fn value(&self) -> Vec<u8> {
        match self {
            Self::Route(_, route) => route.to_bytes(),
            Self::Neighbour(_, neighbour) => neighbour.to_bytes(),
        }
    }
}

impl fmt::Display for Entry {
    /// As columns of the log: map, key, value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(key, route) => write!(f, "{},{key},{route}", self.map()),
            Self::Neighbour(addr, neighbour) => write!(f, "{},{addr},lladdr {}", self.map(), neighbour.mac),
        }
    }
}

/// One change of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is done.
    pub action: Action,
    /// With what.
    pub entry: Entry,
}

/// The entries of a table that are there, and those that were and may come back.
#[derive(Debug)]
struct Pool<K, V> {
    present: Vec<(K, V)>,
    absent: Vec<(K, V)>,
}

impl<K: Copy, V: Copy> Pool<K, V> {
    fn new(present: Vec<(K, V)>) -> Self {
        Self { present, absent: Vec::new() }
    }

    /// Any entry that is there. The pool is never empty: see [`withdraw`](Self::withdraw).
    fn any(&mut self, rng: &mut SmallRng) -> &mut (K, V) {
        let index = rng.random_range(0..self.present.len());
        &mut self.present[index]
    }

    /// Takes an entry out, unless it is the last one.
    fn withdraw(&mut self, rng: &mut SmallRng) -> Option<(K, V)> {
        if self.present.len() < 2 {
            return None;
        }
        let entry = self.present.swap_remove(rng.random_range(0..self.present.len()));
        self.absent.push(entry);
        Some(entry)
    }

    /// Puts back an entry that was taken out.
    fn bring_back(&mut self, rng: &mut SmallRng) -> Option<(K, V)> {
        if self.absent.is_empty() {
            return None;
        }
        let entry = self.absent.swap_remove(rng.random_range(0..self.absent.len()));
        self.present.push(entry);
        Some(entry)
    }
}

/// What to try next: half of the changes change a value, a quarter each add and withdraw, so that a table stays
/// about as large as it was.
fn wish(rng: &mut SmallRng) -> Action {
    match rng.random_range(0..4) {
        0 => Action::Add,
        1 => Action::Withdraw,
        _ => Action::Change,
    }
}

/// Draws changes, each of which is possible after the ones before it.
#[derive(Debug)]
pub struct Churn {
    rng: SmallRng,
    /// Share of the changes that are about neighbours, 0 to 1.
    neighbour_share: f64,
    routes: Pool<RouteKey, RouteValue>,
    /// The keys of `routes`, of those that are there and of those that were.
    known: HashSet<RouteKey>,
    neighbours: Pool<Ipv4Addr, Neighbour>,
    /// Where routes lead: what there was at the beginning, each once.
    hops: Vec<RouteValue>,
}

/// Why there is nothing to churn.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the router has no routes to change; load some first")]
pub struct NothingToChange;

impl Churn {
    /// Begins with what the tables hold now. The same `seed` draws the same changes. `neighbour_share` is
    /// brought into 0 to 1, and is 0 where there are no neighbours.
    pub fn new(
        routes: Vec<(RouteKey, RouteValue)>,
        neighbours: Vec<(Ipv4Addr, Neighbour)>,
        neighbour_share: f64,
        seed: u64,
    ) -> Result<Self, NothingToChange> {
        if routes.is_empty() {
            return Err(NothingToChange);
        }
        let mut seen = HashSet::new();
        Ok(Self {
            rng: SmallRng::seed_from_u64(seed),
            // Compared rather than clamped, which would let NaN through.
            neighbour_share: if neighbour_share > 0.0 && !neighbours.is_empty() {
                neighbour_share.min(1.0)
            } else {
                0.0
            },
            hops: routes.iter().map(|(_, hop)| *hop).filter(|hop| seen.insert(*hop)).collect(),
            known: routes.iter().map(|(key, _)| *key).collect(),
            routes: Pool::new(routes),
            neighbours: Pool::new(neighbours),
        })
    }

    /// The routes that the table holds after all changes drawn so far.
    pub fn routes(&self) -> &[(RouteKey, RouteValue)] {
        &self.routes.present
    }

    /// The neighbours that the table holds after all changes drawn so far.
    pub fn neighbours(&self) -> &[(Ipv4Addr, Neighbour)] {
        &self.neighbours.present
    }

    /// Draws the next change.
    pub fn draw(&mut self) -> Change {
        let wish = wish(&mut self.rng);
        if self.rng.random_bool(self.neighbour_share) {
            self.draw_neighbour(wish)
        } else {
            self.draw_route(wish)
        }
    }

    fn draw_route(&mut self, wish: Action) -> Change {
        let drawn = match wish {
            Action::Add => self.add_route(),
            Action::Withdraw => self.routes.withdraw(&mut self.rng),
            Action::Change => None,
        };
        // Where the wish cannot be had, a value can always be changed.
        let (action, (key, route)) = match drawn {
            Some(entry) => (wish, entry),
            None => (Action::Change, self.change_route()),
        };
        Change { action, entry: Entry::Route(key, route) }
    }

    /// Half of the time a route that was there comes back; otherwise one comes that never was.
    fn add_route(&mut self) -> Option<(RouteKey, RouteValue)> {
        if self.routes.present.len() >= MAX_ROUTES {
            return None;
        }
        let fresh = if self.rng.random_bool(0.5) { self.fresh_route() } else { None };
        fresh.or_else(|| self.routes.bring_back(&mut self.rng))
    }

    /// A longer prefix within one that is there; `None` where the draw was known already.
    fn fresh_route(&mut self) -> Option<(RouteKey, RouteValue)> {
        let parent = self.routes.any(&mut self.rng).0.prefix();
        if parent.prefix_len() == 32 || self.known.len() >= 2 * MAX_ROUTES {
            return None;
        }
        let length = self.rng.random_range(parent.prefix_len() + 1..=32);
        let host = self.rng.random::<u32>() & u32::from(parent.hostmask());
        let addr = Ipv4Addr::from(u32::from(parent.network()) | host);
        let key = RouteKey::from(Ipv4Net::new(addr, length).ok()?);
        let hop = self.hops[self.rng.random_range(0..self.hops.len())];
        self.known.insert(key).then(|| {
            self.routes.present.push((key, hop));
            (key, hop)
        })
    }

    /// Leads a route elsewhere. Where there is but one next hop, it becomes directly connected, and then not so
    /// again: a change is always one.
    fn change_route(&mut self) -> (RouteKey, RouteValue) {
        let start = self.rng.random_range(0..self.hops.len());
        let route = self.routes.any(&mut self.rng);
        let other = self.hops[start..].iter().chain(&self.hops[..start]).find(|hop| **hop != route.1);
        route.1 = other.copied().unwrap_or(RouteValue { next_hop: Ipv4Addr::UNSPECIFIED, ..route.1 });
        *route
    }

    fn draw_neighbour(&mut self, wish: Action) -> Change {
        let drawn = match wish {
            Action::Add => self.neighbours.bring_back(&mut self.rng),
            Action::Withdraw => self.neighbours.withdraw(&mut self.rng),
            Action::Change => None,
        };
        let (action, (addr, neighbour)) = match drawn {
            Some(entry) => (wish, entry),
            None => (Action::Change, self.change_neighbour()),
        };
        Change { action, entry: Entry::Neighbour(addr, neighbour) }
    }

    fn change_neighbour(&mut self) -> (Ipv4Addr, Neighbour) {
        let mut octets: [u8; 6] = self.rng.random();
        // Locally administered, and of one station.
        octets[0] = (octets[0] & 0xfc) | 0x02;
        let neighbour = self.neighbours.any(&mut self.rng);
        // Even where the draw is the address that it has.
        octets[5] ^= u8::from(neighbour.1.mac == Mac(octets));
        neighbour.1.mac = Mac(octets);
        *neighbour
    }
}

/// How fast changes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Changes per second, over all. At least 1.
    pub rate: u32,
    /// Changes made at once, without a pause between. At least 1.
    pub burst: u32,
    /// When to stop, from the beginning.
    pub duration: Duration,
}

impl Pace {
    /// From the beginning of one burst to that of the next.
    fn interval_ns(self) -> u64 {
        u64::from(self.burst.max(1)) * 1_000_000_000 / u64::from(self.rate.max(1))
    }
}

/// The time that [`run`] goes by.
pub trait Clock {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&mut self) -> u64;

    /// Returns when [`now_ns`](Self::now_ns) is at least `ns`.
    fn sleep_until(&mut self, ns: u64);
}

/// Why churning stopped before its time.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E: std::error::Error + 'static> {
    /// A change failed.
    #[error("cannot {} {}: {source}; is another program changing the tables?", change.action, change.entry)]
    Apply {
        /// The change.
        change: Change,
        /// Why.
        source: E,
    },
    /// The log cannot be written.
    #[error("cannot write the log: {0}")]
    Log(#[source] io::Error),
}

/// What [`run`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Changes made.
    pub changes: u64,
    /// Bursts that began later than they should have by more than the time between two.
    pub late_bursts: u64,
}

/// The first line of the log.
pub const LOG_HEADER: &str = "begun_ns,ended_ns,action,map,key,value";

/// Makes changes until the time is up, in bursts at even distances. Bursts that cannot keep up are made late, not
/// left out, so that the changes depend on the seed and not on the machine, except for their number.
///
/// `log` gets [`LOG_HEADER`] and a line for each change, with the clock's time just before `apply` was called
/// and just after it returned; it is flushed after every burst.
pub fn run<E: std::error::Error + 'static>(
    churn: &mut Churn,
    pace: Pace,
    clock: &mut impl Clock,
    mut apply: impl FnMut(&Change) -> Result<(), E>,
    log: &mut impl Write,
) -> Result<Summary, RunError<E>> {
    let mut summary = Summary::default();
    writeln!(log, "{LOG_HEADER}").map_err(RunError::Log)?;

    let begin = clock.now_ns();
    let end = begin.saturating_add(u64::try_from(pace.duration.as_nanos()).unwrap_or(u64::MAX));
    let mut due = begin;
    while due < end && clock.now_ns() < end {
        clock.sleep_until(due);
        summary.late_bursts += u64::from(clock.now_ns() > due.saturating_add(pace.interval_ns()));
        for _ in 0..pace.burst.max(1) {
            let change = churn.draw();
            let begun = clock.now_ns();
            apply(&change).map_err(|source| RunError::Apply { change, source })?;
            let ended = clock.now_ns();
            writeln!(log, "{begun},{ended},{},{}", change.action, change.entry).map_err(RunError::Log)?;
            summary.changes += 1;
        }
        log.flush().map_err(RunError::Log)?;
        due = due.saturating_add(pace.interval_ns());
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use super::*;
    use crate::tables::Tables;

    fn tables(next_hops: u32) -> Tables {
        let prefixes: Vec<Ipv4Net> = (0..64).map(|i| Ipv4Net::new_assert([10, i, 0, 0].into(), 16)).collect();
        Tables::spread(&prefixes, next_hops, 4).unwrap()
    }

    fn churn(tables: &Tables, neighbour_share: f64, seed: u64) -> Churn {
        Churn::new(tables.routes.clone(), tables.neighbours.clone(), neighbour_share, seed).unwrap()
    }

    /// Applies a change as a map does that minds whether the key is there.
    fn apply(map: &mut HashMap<Vec<u8>, Vec<u8>>, change: &Change) {
        let (key, value) = (change.entry.key(), change.entry.value());
        match change.action {
            Action::Add => assert_eq!(map.insert(key, value), None, "added what was there"),
            Action::Change => {
                let old = map.insert(key, value.clone()).expect("changed what was not there");
                assert_ne!(old, value, "a change that changes nothing");
            }
            Action::Withdraw => assert_eq!(map.remove(&key), Some(value), "withdrawn as it was"),
        }
    }

    fn bytes<K: MapData, V: MapData>(entries: &[(K, V)]) -> HashMap<Vec<u8>, Vec<u8>> {
        entries.iter().map(|(key, value)| (key.to_bytes(), value.to_bytes())).collect()
    }

    #[test]
    fn every_change_is_possible_and_the_book_is_right() {
        for next_hops in [1, 16] {
            let tables = tables(next_hops);
            let mut churn = churn(&tables, 0.3, 7);
            let mut routes = bytes(&tables.routes);
            let mut neighbours = bytes(&tables.neighbours);
            let mut counts = HashMap::new();
            for _ in 0..20_000 {
                let change = churn.draw();
                *counts.entry((change.entry.map(), change.action as u8)).or_insert(0) += 1;
                let is_route = matches!(change.entry, Entry::Route(..));
                apply(if is_route { &mut routes } else { &mut neighbours }, &change);
            }
            assert_eq!(routes, bytes(churn.routes()));
            assert_eq!(neighbours, bytes(churn.neighbours()));
            // One neighbour alone never goes, so it never comes either.
            assert_eq!(counts.len(), if next_hops == 1 { 4 } else { 6 }, "{counts:?}");
        }
    }

    #[test]
    fn the_last_entry_stays() {
        let mut tables = tables(1);
        tables.routes.truncate(1);
        let mut churn = churn(&tables, 0.0, 1);
        for _ in 0..1000 {
            churn.draw();
            assert!(!churn.routes().is_empty());
        }
        assert_eq!(Churn::new(vec![], vec![], 0.0, 1).err(), Some(NothingToChange));
    }

    #[test]
    fn shares_beyond_0_to_1_are_clamped() {
        for (share, expected) in [(-1.0, map::ROUTES), (2.0, map::NEIGHBOURS), (f64::NAN, map::ROUTES)] {
            let mut churn = churn(&tables(4), share, 1);
            assert!((0..100).all(|_| churn.draw().entry.map() == expected), "{share}");
        }
    }

    /// Time passes by sleeping, and 1 ns with each look.
    struct Virtual {
        now: u64,
        slept: Vec<u64>,
    }

    impl Clock for Virtual {
        fn now_ns(&mut self) -> u64 {
            self.now += 1;
            self.now
        }

        fn sleep_until(&mut self, ns: u64) {
            self.now = self.now.max(ns);
            self.slept.push(ns);
        }
    }

    #[test]
    fn bursts_come_at_even_distances_and_all_is_logged() {
        let mut churn = churn(&tables(4), 0.5, 3);
        let mut clock = Virtual { now: 0, slept: vec![] };
        let pace = Pace { rate: 1000, burst: 10, duration: Duration::from_millis(95) };
        let (mut applied, mut log) = (Vec::new(), Vec::new());
        let push = |change: &Change| -> Result<(), Infallible> {
            applied.push(*change);
            Ok(())
        };
        let summary = run(&mut churn, pace, &mut clock, push, &mut log).unwrap();

        assert_eq!(summary, Summary { changes: 100, late_bursts: 0 });
        assert!(clock.slept.windows(2).all(|two| two[1] - two[0] == 10_000_000), "{:?}", clock.slept);
        let log = String::from_utf8(log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines[0], LOG_HEADER);
        assert_eq!(lines.len(), 101);
        for (line, change) in lines[1..].iter().zip(&applied) {
            let fields: Vec<_> = line.splitn(3, ',').collect();
            assert!(fields[0].parse::<u64>().unwrap() < fields[1].parse().unwrap());
            assert_eq!(fields[2], format!("{},{}", change.action, change.entry));
        }
    }

    #[test]
    fn a_failed_change_stops_and_is_named() {
        let mut churn = churn(&tables(4), 0.0, 3);
        let pace = Pace { rate: 1, burst: 1, duration: Duration::from_secs(1) };
        let fail = |_: &Change| Err(io::Error::other("no"));
        let error = run(&mut churn, pace, &mut Virtual { now: 0, slept: vec![] }, fail, &mut Vec::new());
        let message = error.unwrap_err().to_string();
        assert!(message.starts_with("cannot ") && message.contains("routes,10."), "{message}");
    }
}
