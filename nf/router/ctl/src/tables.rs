//! What the router's tables hold, as a whole: made from files or made up, and turned into the entries of
//! each map, or into the JSON that replays read.
//!
//! It deliberately does not look for contradictions, such as a route by a port that is not there: the
//! router has an answer to each of them, and tests want to see it.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::layout::{MAX_PORTS, Mac, MapData, Neighbour, Port, RouteKey, RouteValue, map};
use crate::parse::DEFAULT_MTU;

/// Most next hops that [`Tables::spread`] makes up: the hosts of 192.168.1.0/24 from .1 to .254.
pub const MAX_NEXT_HOPS: u32 = 254;

/// The contents of the router's tables, in no particular order, each key once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Entries of `routes`.
    pub routes: Vec<(RouteKey, RouteValue)>,
    /// Entries of `ports`, by port number.
    pub ports: Vec<(u32, Port)>,
    /// Entries of `neighbours`.
    pub neighbours: Vec<(Ipv4Addr, Neighbour)>,
    /// Keys of `local_addrs`.
    pub local_addrs: Vec<Ipv4Addr>,
    /// Entries of `tx_ports`: slot and interface index.
    pub tx_ports: Vec<(u32, u32)>,
}

/// The entries of one map: its name, and key and value bytes as the map holds them.
pub type MapEntries = (&'static str, Vec<(Vec<u8>, Vec<u8>)>);

/// What [`Tables`] cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablesError {
    /// There is no such number of next hops.
    #[error("{0} next hops cannot be made up; there can be 1 to {MAX_NEXT_HOPS}")]
    NextHops(u32),
    /// There is no such number of ports.
    #[error("{0} ports cannot be made up; there can be 1 to {MAX_PORTS}")]
    Ports(u32),
    /// Routes are to be spread over ports of which there are none.
    #[error("there are no ports to spread the next hops over; give at least one")]
    NoPorts,
}

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 2).
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Tables {
    /// Tables that forward to every prefix: `ports` ports that send back to where packets come from, and
    /// `next_hops` reachable neighbours, over which the prefixes are spread as by
    /// [`spread_routes`](Self::spread_routes).
    pub fn spread(prefixes: &[Ipv4Net], next_hops: u32, ports: u32) -> Result<Self, TablesError> {
        let mut tables = Self::default();
        tables.make_ports(ports)?;
        tables.spread_routes(prefixes, next_hops)?;
        tables.make_neighbours();
        Ok(tables)
    }

    /// Makes up ports 0 to `count` - 1: up, untagged, MTU 1500, [`Port::SAME_DEV`].
    pub fn make_ports(&mut self, count: u32) -> Result<(), TablesError> {
        if count == 0 || count as usize > MAX_PORTS {
            return Err(TablesError::Ports(count));
        }
        let port = |id: u32| {
            let [a, b, c, d] = id.to_be_bytes();
            let mac = Mac([0x02, 0x01, a, b, c, d]);
            Port { tx_index: id, mac, vlan_id: 0, mtu: DEFAULT_MTU, flags: Port::UP | Port::SAME_DEV }
        };
        self.ports = (0..count).map(|id| (id, port(id))).collect();
        Ok(())
    }

    /// Routes for `prefixes`, spread over `next_hops` next hops: that of a prefix is number *k* = FNV-1a of
    /// its text (such as `10.1.0.0/16`) modulo `next_hops`, that is 192.168.1.(*k* + 1), by the *k*-th of the
    /// ports, counted around and from 0.
    pub fn spread_routes(&mut self, prefixes: &[Ipv4Net], next_hops: u32) -> Result<(), TablesError> {
        if next_hops == 0 || next_hops > MAX_NEXT_HOPS {
            return Err(TablesError::NextHops(next_hops));
        }
        if self.ports.is_empty() {
            return Err(TablesError::NoPorts);
        }
        let first = u32::from(Ipv4Addr::new(192, 168, 1, 1));
        let hops: Vec<RouteValue> = (0..next_hops)
            .zip(self.ports.iter().cycle())
            .map(|(k, (port, _))| RouteValue { next_hop: Ipv4Addr::from(first + k), port: *port })
            .collect();
        let hop = |key: RouteKey| hops[(fnv1a(key.to_string().as_bytes()) % u64::from(next_hops)) as usize];
        self.routes =
            prefixes.iter().map(|prefix| RouteKey::from(*prefix)).map(|key| (key, hop(key))).collect();
        Ok(())
    }

    /// Adds a reachable neighbour for each next hop of a route that has none. Its Ethernet address is 02:00
    /// and then the four bytes of its IPv4 address.
    pub fn make_neighbours(&mut self) {
        let mut known: HashSet<Ipv4Addr> = self.neighbours.iter().map(|(addr, _)| *addr).collect();
        for (_, route) in &self.routes {
            if !route.next_hop.is_unspecified() && known.insert(route.next_hop) {
                let [a, b, c, d] = route.next_hop.octets();
                let mac = Mac([0x02, 0x00, a, b, c, d]);
                self.neighbours.push((route.next_hop, Neighbour::reachable(mac)));
            }
        }
    }

    /// The entries of every map that is not empty. Maps come in an order in which a running router can be
    /// filled: ports and neighbours before the routes that lead there.
    pub fn entries(&self) -> Vec<MapEntries> {
        let locals: Vec<(Ipv4Addr, u32)> = self.local_addrs.iter().map(|addr| (*addr, 1)).collect();
        let mut maps = vec![
            (map::LOCAL_ADDRS, bytes(&locals)),
            (map::TX_PORTS, bytes(&self.tx_ports)),
            (map::PORTS, bytes(&self.ports)),
            (map::NEIGHBOURS, bytes(&self.neighbours)),
            (map::ROUTES, bytes(&self.routes)),
        ];
        maps.retain(|(_, entries)| !entries.is_empty());
        maps
    }

    /// Writes the entries as JSON, `{"map": [{"key": ["0x20", …], "value": ["0x01", …]}, …], …}`: the arrays
    /// that `bpftool -j map dump` prints, each under its map's name.
    pub fn write_json(&self, writer: impl Write) -> io::Result<()> {
        serde_json::to_writer(writer, &JsonMaps(&self.entries())).map_err(io::Error::from)
    }
}

fn bytes<K: MapData, V: MapData>(entries: &[(K, V)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    entries.iter().map(|(key, value)| (key.to_bytes(), value.to_bytes())).collect()
}

// Serialized as they are written, because a tree of JSON values would be a hundred times their size.

struct JsonMaps<'a>(&'a [MapEntries]);

impl Serialize for JsonMaps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut maps = serializer.serialize_map(Some(self.0.len()))?;
        for (name, entries) in self.0 {
            maps.serialize_entry(name, &JsonEntries(entries))?;
        }
        maps.end()
    }
}

struct JsonEntries<'a>(&'a [(Vec<u8>, Vec<u8>)]);

impl Serialize for JsonEntries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entries = serializer.serialize_seq(Some(self.0.len()))?;
        for entry in self.0 {
            entries.serialize_element(&JsonEntry(entry))?;
        }
        entries.end()
    }
}

struct JsonEntry<'a>(&'a (Vec<u8>, Vec<u8>));

impl Serialize for JsonEntry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (key, value) = self.0;
        let mut entry = serializer.serialize_map(Some(2))?;
        entry.serialize_entry("key", &JsonBytes(key))?;
        entry.serialize_entry("value", &JsonBytes(value))?;
        entry.end()
    }
}

struct JsonBytes<'a>(&'a [u8]);

impl Serialize for JsonBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|byte| format!("{byte:#04x}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn fnv1a_matches_the_published_vectors() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn routes_are_spread_by_the_hash_of_their_text() {
        let prefixes = [net("10.0.0.0/8"), net("10.1.0.0/16"), net("0.0.0.0/0")];
        let tables = Tables::spread(&prefixes, 16, 3).unwrap();
        for (prefix, (key, route)) in prefixes.iter().zip(&tables.routes) {
            let k = (fnv1a(prefix.to_string().as_bytes()) % 16) as u8;
            assert_eq!(key.prefix(), *prefix);
            assert_eq!(route.next_hop, Ipv4Addr::new(192, 168, 1, k + 1));
            assert_eq!(route.port, u32::from(k) % 3);
        }
    }

    #[test]
    fn every_made_up_route_can_be_forwarded() {
        let prefixes: Vec<Ipv4Net> =
            (0..=255).map(|i| Ipv4Net::new_assert([10, i, 0, 0].into(), 16)).collect();
        let tables = Tables::spread(&prefixes, MAX_NEXT_HOPS, 256).unwrap();
        for (_, route) in &tables.routes {
            assert!(tables.ports.iter().any(|(id, port)| *id == route.port && port.is_up()));
            assert!(tables.neighbours.iter().any(|(addr, n)| *addr == route.next_hop && n.is_reachable()));
        }
        let addrs: HashSet<_> = tables.neighbours.iter().map(|(addr, _)| addr).collect();
        assert_eq!(addrs.len(), tables.neighbours.len(), "each neighbour once");
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert_eq!(Tables::spread(&[], 0, 1), Err(TablesError::NextHops(0)));
        assert_eq!(Tables::spread(&[], 255, 1), Err(TablesError::NextHops(255)));
        assert_eq!(Tables::spread(&[], 1, 0), Err(TablesError::Ports(0)));
        assert_eq!(Tables::spread(&[], 1, 257), Err(TablesError::Ports(257)));
        assert_eq!(Tables::default().spread_routes(&[], 1), Err(TablesError::NoPorts));
    }

    #[test]
    fn entries_are_bytes_and_routes_come_last() {
        let mut tables = Tables::spread(&[net("10.0.0.0/8")], 1, 1).unwrap();
        tables.local_addrs.push(Ipv4Addr::new(192, 168, 1, 254));
        let entries = tables.entries();
        let names: Vec<_> = entries.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, [map::LOCAL_ADDRS, map::PORTS, map::NEIGHBOURS, map::ROUTES]);
        let (key, value) = &entries[3].1[0];
        assert_eq!(RouteKey::from_bytes(key), Some(tables.routes[0].0));
        assert_eq!(RouteValue::from_bytes(value), Some(tables.routes[0].1));
    }

    #[test]
    fn json_is_what_bpftool_prints() {
        let mut tables = Tables::default();
        tables.routes.push((
            net("10.0.0.0/8").into(),
            RouteValue { next_hop: Ipv4Addr::new(192, 168, 1, 1), port: u32::from_ne_bytes([2, 0, 0, 0]) },
        ));
        let mut json = Vec::new();
        tables.write_json(&mut json).unwrap();
        let length = u32::from(8u8).to_ne_bytes().map(|b| format!("{b:#04x}"));
        let expected = serde_json::json!({"routes": [{
            "key": [length[0], length[1], length[2], length[3], "0x0a", "0x00", "0x00", "0x00"],
            "value": ["0xc0", "0xa8", "0x01", "0x01", "0x02", "0x00", "0x00", "0x00"],
        }]});
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&json).unwrap(), expected);
    }
}
