//! A small world for the checker: one destination, three prefixes that it has, three neighbours, two ports.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use router_ctl::layout::Neighbour;
use router_ctl::{Mac, RouteKey, RouteValue, Tables};
use runnel_lab::checker::{Checker, Verdict};
use runnel_lab::traffic::{Fate, Packet};
use runnel_lab::update::{Change, Update};

/// One unit of time in these tests, in ns: well above the slack of clocks.
pub const UNIT: u64 = 1000;

pub const DESTINATION: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 1);

/// The destination's prefixes, longest first.
pub fn prefix(i: usize) -> Ipv4Net {
    Ipv4Net::new(DESTINATION, [24, 16, 8][i]).unwrap().trunc()
}

pub fn hop(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 1, 1 + i as u8)
}

/// Address number `version` of neighbour `i`.
pub fn mac(i: usize, version: u8) -> Mac {
    Mac([2, i as u8, version, version, i as u8, version])
}

pub fn port_mac(port: u32) -> Mac {
    let [a, b, c, d] = port.to_be_bytes();
    Mac([2, 1, a, b, c, d])
}

pub fn via(hop_index: usize, port: u32) -> RouteValue {
    RouteValue { next_hop: hop(hop_index), port }
}

/// What the tables hold at first.
pub fn tables(routes: [Option<RouteValue>; 3], neighbours: [Option<u8>; 3]) -> Tables {
    let mut tables = Tables::default();
    tables.make_ports(2).unwrap();
    for (i, value) in routes.into_iter().enumerate() {
        tables.routes.extend(value.map(|value| (RouteKey::from(prefix(i)), value)));
    }
    for (i, version) in neighbours.into_iter().enumerate() {
        let reachable = |version| (hop(i), Neighbour::reachable(mac(i, version)));
        tables.neighbours.extend(version.map(reachable));
    }
    tables
}

pub fn checker(routes: [Option<RouteValue>; 3], neighbours: [Option<u8>; 3]) -> Checker {
    Checker::new(&tables(routes, neighbours), &[DESTINATION])
}

pub fn update(begun: u64, ended: u64, change: Change) -> Update {
    Update { begun: begun * UNIT, ended: ended * UNIT, change }
}

pub fn packet(started: u64, ended: u64, fate: Fate) -> Packet {
    Packet { sequence: 0, frame: 0, started: started * UNIT, ended: ended * UNIT, fate }
}

/// Sent by a port to a neighbour.
pub fn sent(port: u32, to: Mac) -> Fate {
    Fate::Forwarded { destination: to.0, source: port_mac(port).0 }
}

/// The verdict on a packet after some updates.
pub fn judge(mut checker: Checker, updates: &[Update], packet: &Packet) -> Verdict {
    updates.iter().for_each(|update| checker.update(update));
    checker.judge(packet)
}
