//! Judges what became of packets: could the original program have shown that, given what was in the tables?
//!
//! It relies on `router.bpf.c` reading the tables in this order: the route, then the port, then the neighbour; and
//! on ports not changing. It shares no code with the program, and knows nothing of how it is run.
//!
//! # The rule
//!
//! A packet's program ran between `started` and `ended`. An outcome is right if there are moments *t₁ ≤ t₂* in
//! between, so that it follows from the route that the table may have given at *t₁* and the neighbour that it may
//! have given at *t₂*. "May have" because an update took effect at some moment between its own beginning and end. So
//! a packet that started after an update returned must not show the state before; and one that shows a new
//! route must not miss a neighbour that was there before the route was.
//!
//! A longest-prefix match is not one read but one for each prefix that the destination has: the walk down the trie
//! can meet an update halfway, and then finds what the table never held at any single moment. So each prefix
//! may be found, or found missing, at a moment of its own; *t₁* is the latest of the earliest ones. This is as much
//! as the original can show, and no more is allowed to the optimized.
//!
//! # Races of the kernel's hash table
//!
//! A preallocated hash table (the neighbours) gives the memory of a replaced or deleted entry to the next one at once,
//! without waiting for readers (`free_htab_elem` in `kernel/bpf/hashtab.c`). A reader that was stopped between finding
//! an entry and reading its value, by an interrupt or by the host, then reads another neighbour's. And one that walks
//! a bucket while an entry in it is replaced can miss both the old and the new. The original shows these too;
//! they are told apart from right outcomes and counted ([`Verdict::KernelRace`]), never passed over in silence.
//!
//! # Clocks
//!
//! `bpf_ktime_get_ns` reads the fast timekeeper, which may differ from `CLOCK_MONOTONIC` by the correction of one
//! tick's drift (`ktime_get_mono_fast_ns` in `kernel/time/timekeeping.c`): nanoseconds. [`SLACK`] is far above.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use router_ctl::{Mac, RouteValue, Tables};

use crate::history::{History, Version, Visible};
use crate::traffic::{Fate, Packet};
use crate::update::{Change, Update};

/// By how much times of packets and of updates may disagree, in ns.
pub const SLACK: u64 = 100;
/// How soon after an update's return a packet must start to count as close behind it, in ns.
pub const CLOSE: u64 = 50_000;

/// What the checker says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The original could have shown that.
    Right,
    /// It could, but only by a race inside the kernel's hash table.
    KernelRace,
    /// It could not.
    Wrong,
    /// The packet was not seen again, which the router never does to a sound packet.
    Lost,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets judged.
    pub packets: u64,
    /// Of these, handed to the stack: no route or no neighbour.
    pub passed: u64,
    /// Outcomes that the original could not show.
    pub wrong: u64,
    /// Outcomes that need a race inside the kernel's hash table.
    pub kernel_races: u64,
    /// Packets that were not seen again.
    pub lost: u64,
    /// Packets that started within [`CLOSE`] after an update returned.
    pub close: u64,
    /// Of these, packets whose own route or neighbour that update was about.
    pub close_and_concerned: u64,
    /// Updates told.
    pub updates: u64,
}

/// Judges packets in the order in which they were sent, by updates in the order in which they were made.
#[derive(Debug)]
pub struct Checker {
    destinations: Vec<Destination>,
    routes: Vec<(Ipv4Net, History<RouteValue>)>,
    route_of: HashMap<Ipv4Net, usize>,
    neighbours: HashMap<Ipv4Addr, History<Mac>>,
    /// Writes to neighbours that may still matter to a reader, oldest first.
    recent: VecDeque<Version<Mac>>,
    /// When the last updates returned, oldest first.
    returned: VecDeque<u64>,
    ports: HashMap<u32, Mac>,
    /// No packet from now on has read anything before this time.
    begin: u64,
    tally: Tally,
}

/// A destination that packets are sent to.
#[derive(Debug)]
struct Destination {
    addr: Ipv4Addr,
    /// Indices into `routes` of the prefixes that it has, longest first.
    prefixes: Vec<usize>,
}

/// What a packet showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sent { port: Mac, neighbour: Mac },
    Passed,
}

/// An interval of time, both ends included.
#[derive(Clone, Copy, Debug)]
struct During {
    from: u64,
    to: u64,
}

impl Checker {
    /// A checker for packets to `destinations` (a packet's frame is an index into them), while the tables held
    /// `tables` at first.
    pub fn new(tables: &Tables, destinations: &[Ipv4Addr]) -> Self {
        let reachable = |n: &router_ctl::Neighbour| n.is_reachable().then_some(n.mac);
        let neighbours = tables.neighbours.iter().map(|(a, n)| (*a, History::new(reachable(n)))).collect();
        let mut checker = Self {
            destinations: destinations.iter().map(|&addr| Destination { addr, prefixes: vec![] }).collect(),
            routes: Vec::new(),
            route_of: HashMap::new(),
            neighbours,
            recent: VecDeque::new(),
            returned: VecDeque::new(),
            ports: tables.ports.iter().filter(|(_, p)| p.is_up()).map(|(id, p)| (*id, p.mac)).collect(),
            begin: 0,
            tally: Tally::default(),
        };
        for (key, route) in &tables.routes {
            checker.add_prefix(key.prefix(), Some(*route));
        }
        checker
    }

    /// What was counted so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Takes note of an update. They are told in their order, each before any packet that ended after it began is
    /// judged.
    pub fn update(&mut self, update: &Update) {
        let &Update { begun, ended, change } = update;
        self.tally.updates += 1;
        self.returned.push_back(ended);
        match change {
            Change::Route(prefix, value) => {
                let index = match self.route_of.get(&prefix) {
                    Some(index) => *index,
                    None => self.add_prefix(prefix, None),
                };
                self.routes[index].1.push(value, begun, ended);
            }
            Change::Neighbour(addr, value) => {
                let history = self.neighbours.entry(addr).or_insert_with(|| History::new(None));
                history.forget_before(self.begin);
                history.push(value, begun, ended);
                self.recent.push_back(Version { value, begun, ended });
            }
        }
    }

    fn add_prefix(&mut self, prefix: Ipv4Net, value: Option<RouteValue>) -> usize {
        let index = self.routes.len();
        self.routes.push((prefix, History::new(value)));
        self.route_of.insert(prefix, index);
        for destination in &mut self.destinations {
            if prefix.contains(&destination.addr) {
                let length = |i: &usize| self.routes[*i].0.prefix_len();
                let at = destination.prefixes.partition_point(|i| length(i) > prefix.prefix_len());
                destination.prefixes.insert(at, index);
            }
        }
        index
    }

    /// Judges a packet. Packets come in the order in which they started.
    pub fn judge(&mut self, packet: &Packet) -> Verdict {
        self.tally.packets += 1;
        self.count_close(packet);
        let from = packet.started.saturating_sub(SLACK);
        self.begin = self.begin.max(from);
        self.forget(packet.frame);
        let outcome = match packet.fate {
            Fate::Lost => {
                self.tally.lost += 1;
                return Verdict::Lost;
            }
            Fate::Passed => {
                self.tally.passed += 1;
                Outcome::Passed
            }
            Fate::Forwarded { destination, source } => {
                Outcome::Sent { port: Mac(source), neighbour: Mac(destination) }
            }
        };
        let during = During { from, to: packet.ended.saturating_add(SLACK) };
        let destination = &self.destinations[usize::from(packet.frame)];
        if self.is_possible(destination, during, outcome, Self::shows) {
            Verdict::Right
        } else if self.is_possible(destination, during, outcome, Self::shows_by_race) {
            self.tally.kernel_races += 1;
            Verdict::KernelRace
        } else {
            self.tally.wrong += 1;
            Verdict::Wrong
        }
    }

    /// Whether some route that may be found leads to this outcome by a neighbour of which `shows` says so.
    fn is_possible(
        &self,
        destination: &Destination,
        during: During,
        outcome: Outcome,
        shows: fn(&Self, &Visible<'_, Mac>, During, Outcome) -> bool,
    ) -> bool {
        // From when on all longer prefixes can have been found missing.
        let mut missing_from = during.from;
        for &index in &destination.prefixes {
            let mut missing = None;
            for route in self.routes[index].1.during(during.from, during.to) {
                let Some(value) = route.version.value else {
                    missing.get_or_insert(route.from);
                    continue;
                };
                let rest = During { from: missing_from.max(route.from), to: during.to };
                if self.leads_to(value, destination.addr, rest, outcome, shows) {
                    return true;
                }
            }
            match missing {
                Some(from) => missing_from = missing_from.max(from),
                None => return false,
            }
        }
        outcome == Outcome::Passed
    }

    /// Whether a packet that has found this route at the beginning of `during` may show the outcome.
    fn leads_to(
        &self,
        route: RouteValue,
        addr: Ipv4Addr,
        during: During,
        outcome: Outcome,
        shows: fn(&Self, &Visible<'_, Mac>, During, Outcome) -> bool,
    ) -> bool {
        let port = self.ports.get(&route.port);
        if let Outcome::Sent { port: shown, .. } = outcome
            && port != Some(&shown)
        {
            return false;
        }
        let hop = if route.next_hop.is_unspecified() { addr } else { route.next_hop };
        match (port, self.neighbours.get(&hop)) {
            (None, _) | (_, None) => outcome == Outcome::Passed,
            (_, Some(history)) => {
                history.during(during.from, during.to).any(|found| shows(self, &found, during, outcome))
            }
        }
    }

    /// Whether a neighbour that was found as it is leads to the outcome.
    fn shows(&self, found: &Visible<'_, Mac>, _: During, outcome: Outcome) -> bool {
        match (outcome, found.version.value) {
            (Outcome::Passed, value) => value.is_none(),
            (Outcome::Sent { neighbour, .. }, value) => value == Some(neighbour),
        }
    }

    /// Whether a neighbour leads to the outcome if its entry is replaced while it is being looked up, or its memory
    /// reused while it is being read. The program copies the address in halves of 16 bits.
    fn shows_by_race(&self, found: &Visible<'_, Mac>, during: During, outcome: Outcome) -> bool {
        let (Some(mac), Some(successor)) = (found.version.value, found.successor) else { return false };
        if successor.begun > during.to {
            return false;
        }
        let Outcome::Sent { neighbour, .. } = outcome else { return successor.value.is_some() };
        let reusing: Vec<Mac> = self
            .recent
            .iter()
            .filter(|write| write.begun >= successor.ended && write.begun <= during.to)
            .filter_map(|write| write.value)
            .collect();
        let half = |mac: &Mac, i: usize| [mac.0[2 * i], mac.0[2 * i + 1]];
        let explained =
            |i: usize| [&mac].into_iter().chain(&reusing).any(|m| half(m, i) == half(&neighbour, i));
        (0..3).all(explained)
    }

    fn count_close(&mut self, packet: &Packet) {
        while self.returned.get(1).is_some_and(|next| *next <= packet.started) {
            self.returned.pop_front();
        }
        let last = self.returned.front().filter(|ended| **ended <= packet.started);
        if last.is_none_or(|ended| packet.started - ended > CLOSE) {
            return;
        }
        self.tally.close += 1;
        self.tally.close_and_concerned += u64::from(self.concerned(packet));
    }

    /// Whether an update about this packet's own route or neighbour returned shortly before.
    fn concerned(&self, packet: &Packet) -> bool {
        let close = |ended: Option<u64>| ended.is_some_and(|ended| packet.started - ended <= CLOSE);
        let destination = &self.destinations[usize::from(packet.frame)];
        for &index in &destination.prefixes {
            let history = &self.routes[index].1;
            if close(history.updated_before(packet.started)) {
                return true;
            }
            let found = history.during(packet.started, packet.started).find_map(|v| v.version.value);
            if let Some(route) = found {
                let neighbour = self.neighbours.get(&route.next_hop);
                return close(neighbour.and_then(|n| n.updated_before(packet.started)));
            }
        }
        false
    }

    /// Forgets what no packet from now on can have read, of the routes that this frame concerns.
    fn forget(&mut self, frame: u16) {
        for &index in &self.destinations[usize::from(frame)].prefixes {
            self.routes[index].1.forget_before(self.begin);
        }
        while self.recent.front().is_some_and(|write| write.ended < self.begin) {
            self.recent.pop_front();
        }
    }

    /// What the tables held for a packet while it was under way, for people.
    pub fn explain(&self, packet: &Packet) -> String {
        use std::fmt::Write as _;
        let destination = &self.destinations[usize::from(packet.frame)];
        let at = |time: u64| time as i64 - packet.started as i64;
        let mut text = format!("packet {} to {}", packet.sequence, destination.addr);
        let shown = match packet.fate {
            Fate::Forwarded { destination, source } => {
                format!("was sent to {} from {}", Mac(destination), Mac(source))
            }
            Fate::Passed => "was handed to the stack".to_owned(),
            Fate::Lost => "was not seen again".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = write!(text, " {shown}, {} ns after it started; it could find", at(packet.ended));
        let when = |begun: u64, ended: u64| match ended {
            0 => String::new(),
            _ => format!(" (written from {} to {} ns)", at(begun), at(ended)),
        };
        for &index in &destination.prefixes {
            let (prefix, history) = &self.routes[index];
            let mut may_be_missing = false;
            for route in history.during(packet.started, packet.ended) {
                let Version { value, begun, ended } = *route.version;
                let Some(value) = value else {
                    may_be_missing = true;
                    let _ = write!(text, "\n  {prefix} missing{}", when(begun, ended));
                    continue;
                };
                let port = self.ports.get(&value.port).copied().unwrap_or_default();
                let _ = write!(text, "\n  {prefix} via {} from {port}{}", value.next_hop, when(begun, ended));
                let neighbours = self.neighbours.get(&value.next_hop).into_iter();
                for found in neighbours.flat_map(|history| history.during(packet.started, packet.ended)) {
                    let Version { value, begun, ended } = *found.version;
                    let mac = value.map_or("missing".to_owned(), |mac| mac.to_string());
                    let _ = write!(text, "\n    neighbour {mac}{}", when(begun, ended));
                }
            }
            if !may_be_missing {
                break;
            }
        }
        text
    }
}
