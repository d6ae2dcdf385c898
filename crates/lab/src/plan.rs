//! Which changes to make: those that a consistency scheme gets wrong if it gets anything wrong.
//!
//! A [`Plan`] draws moves of one or two changes. Beside routes that change, vanish, come back and are overridden by
//! longer ones, and neighbours that move, there are the two orders in which a route and its neighbour can come and go:
//! the neighbour first (no packet may be without one), and the route first (packets go to the stack meanwhile).
//!
//! Values tell their writers apart, so that a checker can see which one a packet met: a neighbour never has the
//! same address twice, and a route's port goes round all ports before it comes again.
//!
//! It relies on being the only one who changes the tables. It knows neither kernel nor clock.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use router_ctl::{Mac, Neighbour, RouteKey, RouteValue, Tables};

use crate::error::Result;
use crate::update::Change;

/// Next hops that most routes lead to.
const HOPS: u32 = 16;
/// Of these, how many may be away at a time.
const MOST_AWAY: usize = 2;
/// Neighbours that come and go with routes.
const GUESTS: u8 = 16;
/// Ports: a prime, so that port and next hop of a route do not go round together.
const PORTS: u32 = 61;
/// Share of the changes that concern the destinations that packets are sent to most.
const HOT_SHARE: f64 = 0.8;

/// Tables for a lab: the prefixes spread over next hops and ports.
///
/// # Errors
/// None for any prefixes.
pub fn tables(prefixes: &[Ipv4Net]) -> Result<Tables> {
    let mut tables = Tables::default();
    tables.make_ports(PORTS)?;
    tables.spread_routes(prefixes, HOPS)?;
    for k in 0..HOPS {
        tables.neighbours.push((hop(k), Neighbour::reachable(mac(k as u8, 0))));
    }
    Ok(tables)
}

fn hop(k: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(192, 168, 1, 1)) + k)
}

fn guest(k: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 2, k + 1)
}

/// Address number `version` of neighbour `k`.
fn mac(k: u8, version: u32) -> Mac {
    let [a, b, c, d] = version.to_be_bytes();
    Mac([0x02, k, a, b, c, d])
}

/// Draws changes, each of which is possible after the ones before.
#[derive(Debug)]
pub struct Plan {
    rng: SmallRng,
    routes: Vec<Route>,
    /// The first of `routes` are those of the hot destinations.
    hot: usize,
    /// For each hot destination, whether it has a route of its own.
    hosts: Vec<(Ipv4Net, Option<RouteValue>)>,
    /// Whether the neighbours of [`HOPS`] are there.
    present: Vec<bool>,
    /// The routes that lead to guests, by guest.
    guests: Vec<Option<usize>>,
    port: u32,
    version: u32,
}

#[derive(Debug)]
struct Route {
    prefix: Ipv4Net,
    value: RouteValue,
    present: bool,
    /// Whether it leads to a guest: then it is left alone until the guest goes.
    taken: bool,
}

impl Plan {
    /// A plan for tables as [`tables`] gives them. The same seed makes the same changes.
    ///
    /// `hot` are destinations that packets are sent to most; the routes that they have now are changed most.
    pub fn new(tables: &Tables, hot: &[Ipv4Addr], seed: u64) -> Plan {
        // One that is sent to twice as much may be named twice.
        let hosts: BTreeSet<Ipv4Net> = hot.iter().map(|addr| Ipv4Net::from(*addr)).collect();
        let hosts: Vec<_> = hosts.into_iter().map(|prefix| (prefix, None)).collect();
        let longest = |addr: &Ipv4Addr| {
            let of = tables.routes.iter().filter(|(key, _)| key.prefix().contains(addr));
            of.max_by_key(|(key, _)| key.prefix().prefix_len()).map(|(key, _)| *key)
        };
        let mut first: Vec<RouteKey> = hot.iter().filter_map(longest).collect();
        first.sort();
        first.dedup();
        let route = |(key, value): &(RouteKey, RouteValue)| Route {
            prefix: key.prefix(),
            value: *value,
            present: true,
            taken: false,
        };
        // A destination's own route, should there be one already, is for `hosts` to change.
        let is_host = |key: &RouteKey| hosts.iter().any(|(prefix, _)| *prefix == key.prefix());
        let mut routes: Vec<_> = tables.routes.iter().filter(|(key, _)| !is_host(key)).collect();
        routes.sort_by_key(|(key, _)| first.binary_search(key).is_err());
        let hot = routes.iter().filter(|(key, _)| first.binary_search(key).is_ok()).count();
        Plan {
            rng: SmallRng::seed_from_u64(seed),
            routes: routes.into_iter().map(route).collect(),
            hot,
            hosts,
            present: vec![true; HOPS as usize],
            guests: vec![None; usize::from(GUESTS)],
            port: 0,
            version: 0,
        }
    }

    /// The next changes, which belong together: to be made one right after the other. At least one.
    pub fn draw(&mut self) -> Vec<Change> {
        loop {
            let drawn = match self.rng.random_range(0..100) {
                0..35 => self.change_route(),
                35..50 => self.withdraw_or_restore_route(),
                50..60 => self.change_host(),
                60..72 => self.move_neighbour(),
                72..80 => self.remove_or_restore_neighbour(),
                _ => self.guest_comes_or_goes(),
            };
            if !drawn.is_empty() {
                return drawn;
            }
        }
    }

    fn any_route(&mut self) -> Option<usize> {
        let hot = self.rng.random_bool(HOT_SHARE) && self.hot > 0;
        let end = if hot { self.hot } else { self.routes.len() };
        (end > 0).then(|| self.rng.random_range(0..end)).filter(|i| !self.routes[*i].taken)
    }

    fn fresh_value(&mut self) -> RouteValue {
        let k = self.rng.random_range(0..HOPS);
        self.value_to(hop(k))
    }

    fn value_to(&mut self, next_hop: Ipv4Addr) -> RouteValue {
        self.port = (self.port + 1) % PORTS;
        RouteValue { next_hop, port: self.port }
    }

    fn fresh_mac(&mut self, k: u8) -> Mac {
        self.version += 1;
        mac(k, self.version)
    }

    fn change_route(&mut self) -> Vec<Change> {
        let Some(index) = self.any_route().filter(|i| self.routes[*i].present) else { return vec![] };
        let value = self.fresh_value();
        self.routes[index].value = value;
        vec![Change::Route(self.routes[index].prefix, Some(value))]
    }

    fn withdraw_or_restore_route(&mut self) -> Vec<Change> {
        let Some(index) = self.any_route() else { return vec![] };
        let route = &mut self.routes[index];
        route.present = !route.present;
        vec![Change::Route(route.prefix, route.present.then_some(route.value))]
    }

    /// Gives a hot destination a route of its own, or takes it away.
    fn change_host(&mut self) -> Vec<Change> {
        if self.hosts.is_empty() {
            return vec![];
        }
        let index = self.rng.random_range(0..self.hosts.len());
        let value = if self.hosts[index].1.is_some() { None } else { Some(self.fresh_value()) };
        self.hosts[index].1 = value;
        vec![Change::Route(self.hosts[index].0, value)]
    }

    fn move_neighbour(&mut self) -> Vec<Change> {
        let k = self.rng.random_range(0..HOPS);
        if !self.present[k as usize] {
            return vec![];
        }
        vec![Change::Neighbour(hop(k), Some(self.fresh_mac(k as u8)))]
    }

    /// Few are away at a time, or most packets would go to the stack.
    fn remove_or_restore_neighbour(&mut self) -> Vec<Change> {
        let k = self.rng.random_range(0..HOPS);
        let away = self.present.iter().filter(|there| !**there).count();
        let there = &mut self.present[k as usize];
        if *there && away >= MOST_AWAY {
            return vec![];
        }
        *there = !*there;
        let mac = there.then(|| self.fresh_mac(k as u8));
        vec![Change::Neighbour(hop(k), mac)]
    }

    /// A neighbour comes with a route to it, or goes with it; each in both orders.
    fn guest_comes_or_goes(&mut self) -> Vec<Change> {
        let k = self.rng.random_range(0..GUESTS);
        let at = usize::from(k);
        let mut changes = match self.guests[at].take() {
            None => {
                let Some(index) = self.any_route().filter(|i| self.routes[*i].present) else { return vec![] };
                self.guests[at] = Some(index);
                self.routes[index].taken = true;
                let (mac, value) = (self.fresh_mac(HOPS as u8 + k), self.value_to(guest(k)));
                vec![
                    Change::Neighbour(guest(k), Some(mac)),
                    Change::Route(self.routes[index].prefix, Some(value)),
                ]
            }
            Some(index) => {
                let value = self.fresh_value();
                let route = &mut self.routes[index];
                (route.taken, route.value) = (false, value);
                vec![Change::Neighbour(guest(k), None), Change::Route(route.prefix, Some(value))]
            }
        };
        if self.rng.random_bool(0.5) {
            changes.reverse();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn prefixes() -> Vec<Ipv4Net> {
        (0..50u8).map(|i| Ipv4Net::new_assert([60, i, 0, 0].into(), 16)).collect()
    }

    #[test]
    fn changes_change_something_and_values_tell_their_writers() {
        let tables = tables(&prefixes()).unwrap();
        // Some of them twice, as they are drawn.
        let hot: Vec<Ipv4Addr> = (0..12u8).map(|i| Ipv4Addr::new(60, i % 8, 0, 1)).collect();
        let mut plan = Plan::new(&tables, &hot, 3);
        let mut held: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for (_, entries) in tables.entries().into_iter().filter(|(n, _)| ["routes", "neighbours"].contains(n))
        {
            held.extend(entries);
        }
        let mut macs = std::collections::HashSet::new();
        let (mut pairs, mut neighbour_first) = (0, 0);
        for _ in 0..20_000 {
            let changes = plan.draw();
            assert!((1..=2).contains(&changes.len()));
            pairs += changes.len() - 1;
            neighbour_first += usize::from(changes.len() == 2 && matches!(changes[0], Change::Neighbour(..)));
            for change in changes {
                if let Change::Neighbour(_, Some(mac)) = change {
                    assert!(macs.insert(mac), "an address comes once");
                }
                let (key, value) = change.bytes();
                let before = match value.clone() {
                    Some(value) => held.insert(key, value),
                    None => held.remove(&key),
                };
                assert_ne!(before, value, "{change:?} changes nothing");
            }
        }
        assert!(pairs > 2_000 && neighbour_first * 3 > pairs && neighbour_first * 3 < 2 * pairs);
    }

    #[test]
    fn most_changes_concern_the_hot_destinations() {
        let tables = tables(&prefixes()).unwrap();
        let hot = [Ipv4Addr::new(60, 7, 0, 1)];
        let mut plan = Plan::new(&tables, &hot, 3);
        let changes: Vec<Change> = (0..1000).flat_map(|_| plan.draw()).collect();
        let mut concerned = 0;
        let mut others = 0;
        for change in prefixes_of(&changes) {
            *(if change.contains(&hot[0]) { &mut concerned } else { &mut others }) += 1;
        }
        assert!(concerned > others, "{concerned} to {others}");
    }

    fn prefixes_of(changes: &[Change]) -> impl Iterator<Item = Ipv4Net> {
        changes.iter().filter_map(|change| match change {
            Change::Route(prefix, _) => Some(*prefix),
            Change::Neighbour(..) => None,
        })
    }

    #[test]
    fn without_routes_or_hot_destinations_there_are_still_changes() {
        let mut plan = Plan::new(&tables(&[]).unwrap(), &[], 1);
        assert!((0..100).all(|_| matches!(plan.draw()[0], Change::Neighbour(..))));
    }
}
