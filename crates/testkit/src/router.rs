//! Packets that reach every branch of the router (`nf/router/router.bpf.c`), for given contents of its tables.
//!
//! What a packet meets is described in two parts. A [`Place`] is what the tables say about its destination; the
//! places that the tables have are looked up in them. The arrays of branches say what the packet itself looks
//! like, and what becomes of it there. [`every_branch`] multiplies the two, and names what the tables leave
//! out of reach.
//!
//! The verdicts are those that the router's description asks for. They are no substitute for a model of the
//! router: they say nothing of the bytes that it rewrites.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use router_ctl::layout::DropReason;
use router_ctl::{Mac, Neighbour, Port, RouteKey, RouteValue, Tables};

use crate::packet::{self, Fault, Frame, IPV4_HEADER, PacketError, Tag, ipv4_offset};

/// Longest packet made here, in bytes of IP: frames beyond one page cannot be given to a test run.
const LONGEST: u16 = 3000;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes up to the kernel's stack, unchanged (`XDP_PASS`).
    Pass,
    /// Is dropped and counted (`XDP_DROP`).
    Drop(DropReason),
    /// Is rewritten, but its port's slot holds no device (`XDP_ABORTED`).
    Aborted,
    /// Is rewritten and sent back (`XDP_TX`).
    Tx,
    /// Is rewritten and sent by another device (`XDP_REDIRECT`).
    Redirect,
}

/// A packet and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The branch that it reaches, different for each case: the place, a slash, the packet.
    pub name: String,
    /// The frame.
    pub packet: Vec<u8>,
    /// What the router does with it.
    pub verdict: Verdict,
}

/// Packets for every branch that some tables have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseSet {
    /// The packets.
    pub cases: Vec<Case>,
    /// Names of branches that no packet can reach with these tables, or none that was found.
    pub unreached: Vec<String>,
}

/// What the tables say about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// An address of the router.
    Local,
    /// No route leads there.
    NoRoute,
    /// The route's port is not there.
    PortMissing,
    /// The route's port is down.
    PortDown,
    /// The next hop is no neighbour.
    NeighbourMissing,
    /// The next hop is a neighbour whose address is not known.
    NeighbourIncomplete,
    /// All is there but the device to send by.
    NoDevice,
    /// All is there.
    Forward {
        /// Back to where the packet came from.
        same_dev: bool,
        /// Into a VLAN.
        tagged: bool,
        /// The destination is the next hop.
        direct: bool,
    },
}

impl Place {
    /// All places.
    pub const ALL: [Self; 15] = [
        Self::Local,
        Self::NoRoute,
        Self::PortMissing,
        Self::PortDown,
        Self::NeighbourMissing,
        Self::NeighbourIncomplete,
        Self::NoDevice,
        Self::forward(false, false, false),
        Self::forward(false, false, true),
        Self::forward(false, true, false),
        Self::forward(false, true, true),
        Self::forward(true, false, false),
        Self::forward(true, false, true),
        Self::forward(true, true, false),
        Self::forward(true, true, true),
    ];

    const fn forward(same_dev: bool, tagged: bool, direct: bool) -> Self {
        Self::Forward { same_dev, tagged, direct }
    }

    fn is_forward(self) -> bool {
        matches!(self, Self::Forward { .. })
    }

    /// What becomes of a sound packet that is bound there.
    fn verdict(self) -> Verdict {
        match self {
            Self::Forward { same_dev: true, .. } => Verdict::Tx,
            Self::Forward { same_dev: false, .. } => Verdict::Redirect,
            Self::NoDevice => Verdict::Aborted,
            _ => Verdict::Pass,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Local => "local".into(),
            Self::NoRoute => "no_route".into(),
            Self::PortMissing => "port_missing".into(),
            Self::PortDown => "port_down".into(),
            Self::NeighbourMissing => "neighbour_missing".into(),
            Self::NeighbourIncomplete => "neighbour_incomplete".into(),
            Self::NoDevice => "no_device".into(),
            Self::Forward { same_dev, tagged, direct } => {
                let way = if same_dev { "tx" } else { "redirect" };
                let tag = if tagged { "_vlan" } else { "" };
                let hop = if direct { "_direct" } else { "" };
                format!("{way}{tag}{hop}")
            }
        }
    }
}

/// A destination of which a [`Place`] is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub destination: Ipv4Addr,
    /// Whether its port is in a VLAN.
    pub tagged: bool,
    /// MTU of its port, in bytes; 0 if there is none.
    pub mtu: u16,
}

/// Makes a kind of packet out of a plain one.
type Shape = fn(Frame) -> Frame;

/// Kinds of packets that are sound, and forwarded wherever a packet can be.
const SOUND: [(&str, Shape); 6] = [
    ("plain", |frame| frame),
    ("ttl_2", |frame| Frame { ttl: 2, ..frame }),
    ("ttl_255", |frame| Frame { ttl: 255, ..frame }),
    ("empty", |frame| Frame { payload: 0, padded: false, ..frame }),
    ("odd_and_padded", |frame| Frame { payload: 3, ..frame }),
    ("priority", |frame| Frame { vlan: frame.vlan.map(|tag| Tag { priority: 7, ..tag }), ..frame }),
];

/// Kinds of packets that are not forwarded, wherever they are bound.
const SPECIAL: [(&str, Shape, Verdict); 20] = [
    ("ttl_0", |frame| Frame { ttl: 0, ..frame }, Verdict::Pass),
    ("ttl_1", |frame| Frame { ttl: 1, ..frame }, Verdict::Pass),
    ("options", |frame| Frame { options: vec![1; 4], ..frame }, Verdict::Pass),
    ("most_options", |frame| Frame { options: vec![1; 40], ..frame }, Verdict::Pass),
    ("to_ethernet_broadcast", |frame| Frame { macs: (frame.macs.0, [0xff; 6]), ..frame }, Verdict::Pass),
    (
        "to_ethernet_group",
        |frame| Frame { macs: (frame.macs.0, [1, 0, 0x5e, 0, 0, 1]), ..frame },
        Verdict::Pass,
    ),
    ("other_tag", other_tag, Verdict::Pass),
    ("to_multicast", |frame| to(frame, [224, 0, 0, 1]), Verdict::Pass),
    ("to_last_multicast", |frame| to(frame, [239, 255, 255, 255]), Verdict::Pass),
    ("to_broadcast", |frame| from(to(frame, [255; 4]), [0; 4]), Verdict::Pass),
    ("to_this_network", |frame| to(frame, [0, 1, 2, 3]), Verdict::Drop(DropReason::Martian)),
    ("to_loopback", |frame| to(frame, [127, 0, 0, 1]), Verdict::Drop(DropReason::Martian)),
    ("to_class_e", |frame| to(frame, [240, 0, 0, 1]), Verdict::Drop(DropReason::Martian)),
    ("to_last_class_e", |frame| to(frame, [255, 255, 255, 254]), Verdict::Drop(DropReason::Martian)),
    ("from_this_network", |frame| from(frame, [0; 4]), Verdict::Drop(DropReason::Martian)),
    ("from_loopback", |frame| from(frame, [127, 1, 2, 3]), Verdict::Drop(DropReason::Martian)),
    ("from_multicast", |frame| from(frame, [224, 0, 0, 5]), Verdict::Drop(DropReason::Martian)),
    ("from_last_multicast", |frame| from(frame, [239, 0, 0, 5]), Verdict::Drop(DropReason::Martian)),
    ("from_class_e", |frame| from(frame, [250, 1, 1, 1]), Verdict::Drop(DropReason::Martian)),
    ("from_broadcast", |frame| from(frame, [255; 4]), Verdict::Drop(DropReason::Martian)),
];

fn to(frame: Frame, destination: [u8; 4]) -> Frame {
    Frame { destination: destination.into(), ..frame }
}

fn from(frame: Frame, source: [u8; 4]) -> Frame {
    Frame { source: source.into(), ..frame }
}

/// Tagged where the port is not, and the other way round.
fn other_tag(frame: Frame) -> Frame {
    let vlan = if frame.vlan.is_none() { Some(TAG) } else { None };
    Frame { vlan, ..frame }
}

/// EtherTypes that are not for an IPv4 router; two of them are tags, the second one after a first.
const FOREIGN: [(&str, u16); 5] =
    [("arp", 0x0806), ("ipv6", 0x86dd), ("length", 0x002e), ("service_tag", 0x88a8), ("two_tags", 0x8100)];

const TAG: Tag = Tag { id: 7, priority: 0 };

/// Makes packets for every branch that `tables` have.
pub fn every_branch(tables: &Tables) -> Result<CaseSet, PacketError> {
    let targets = Survey::new(tables).targets();
    let mut set = CaseSet::default();
    for place in Place::ALL {
        let Some(target) = targets.get(&place) else {
            set.unreached.push(place.name());
            continue;
        };
        for (name, shape) in SOUND {
            set.push(place, name, shape(frame_to(*target)).build()?, place.verdict());
        }
        if place.is_forward() {
            forwarded(&mut set, place, *target)?;
        }
    }
    match Place::ALL.iter().find_map(|place| targets.get(place).filter(|_| place.is_forward())) {
        Some(target) => broken(&mut set, *target)?,
        None => set.unreached.push("broken".into()),
    }
    if let Some(target) = targets.get(&Place::Local) {
        let frame = from(frame_to(*target), [127, 0, 0, 1]);
        set.push(Place::Local, "from_loopback", frame.build()?, Verdict::Drop(DropReason::Martian));
    }
    Ok(set)
}

/// A plain frame to a target, tagged if its port is.
fn frame_to(target: Target) -> Frame {
    Frame { vlan: target.tagged.then_some(TAG), ..Frame::to(target.destination) }
}

impl CaseSet {
    fn push(&mut self, place: Place, name: &str, packet: Vec<u8>, verdict: Verdict) {
        self.cases.push(Case { name: format!("{}/{name}", place.name()), packet, verdict });
    }
}

/// What can happen to a packet where all tables agree to forward it.
fn forwarded(set: &mut CaseSet, place: Place, target: Target) -> Result<(), PacketError> {
    for (name, shape, verdict) in SPECIAL {
        set.push(place, name, shape(frame_to(target)).build()?, verdict);
    }
    if target.mtu < LONGEST {
        let with_length = |length: u16| frame_to(target).with_total_length(length.into()).build();
        set.push(place, "mtu_met", with_length(target.mtu)?, place.verdict());
        set.push(place, "mtu_exceeded", with_length(target.mtu + 1)?, Verdict::Pass);
    } else {
        set.unreached.push(format!("{}/mtu_exceeded", place.name()));
    }
    Ok(())
}

/// Frames that are no IPv4, or IPv4 that is broken; with and without a tag, and with options.
fn broken(set: &mut CaseSet, target: Target) -> Result<(), PacketError> {
    for (kind, vlan, options) in [
        ("untagged", None, 0),
        ("tagged", Some(TAG), 0),
        ("options", None, 8),
        ("tagged_options", Some(TAG), 40),
    ] {
        let frame = Frame { vlan, options: vec![1; options], ..Frame::to(target.destination) };
        let mut push = |name: String, packet: Vec<u8>, verdict| {
            set.cases.push(Case { name: format!("{kind}/{name}"), packet, verdict });
        };
        // Without padding, so that what is missing cannot be taken from there.
        let sound = Frame { padded: false, ..frame }.build()?;
        for fault in packet::faults(&sound) {
            let mut packet = sound.clone();
            fault.apply(&mut packet);
            push(format!("{fault:?}"), packet, Verdict::Drop(reason(fault, &sound)));
        }
        let ip = ipv4_offset(&sound).unwrap_or_default();
        for option in 0..options {
            let mut packet = sound.clone();
            packet[ip + IPV4_HEADER + option] ^= 0x40;
            push(format!("option_byte_{option}"), packet, Verdict::Drop(DropReason::Checksum));
        }
        for (name, ethertype) in FOREIGN {
            // An untagged frame becomes one with a single tag of which the rest may be anything.
            if vlan.is_none() && name == "two_tags" {
                continue;
            }
            let mut packet = sound.clone();
            packet[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
            push(name.into(), packet, Verdict::Pass);
        }
    }
    Ok(())
}

/// Why the router drops a sound frame that was broken in this way.
fn reason(fault: Fault, sound: &[u8]) -> DropReason {
    match fault {
        Fault::Version(_) => DropReason::Version,
        Fault::HeaderLength(_) => DropReason::HeaderLength,
        Fault::TotalLength(_) => DropReason::TotalLength,
        Fault::Checksum(_) => DropReason::Checksum,
        Fault::Truncated(length) => {
            let ip = ipv4_offset(sound).unwrap_or_default();
            let header = usize::from(sound.get(ip).map_or(0, |byte| byte & 0x0f)) * 4;
            match length {
                _ if length < ip + IPV4_HEADER => DropReason::Truncated,
                _ if length < ip + header => DropReason::HeaderLength,
                _ => DropReason::TotalLength,
            }
        }
    }
}

/// The tables, indexed.
struct Survey<'a> {
    tables: &'a Tables,
    routes: HashMap<RouteKey, RouteValue>,
    /// The prefix lengths that there are, longest first.
    lengths: Vec<u8>,
    ports: HashMap<u32, Port>,
    neighbours: HashMap<Ipv4Addr, Neighbour>,
    locals: HashSet<Ipv4Addr>,
    slots: HashSet<u32>,
}

impl<'a> Survey<'a> {
    fn new(tables: &'a Tables) -> Self {
        let mut lengths: Vec<u8> = tables.routes.iter().map(|(key, _)| key.prefix().prefix_len()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self {
            tables,
            routes: tables.routes.iter().copied().collect(),
            lengths,
            ports: tables.ports.iter().copied().collect(),
            neighbours: tables.neighbours.iter().copied().collect(),
            locals: tables.local_addrs.iter().copied().collect(),
            slots: tables.tx_ports.iter().map(|(slot, _)| *slot).collect(),
        }
    }

    /// A target for each place that the tables have.
    fn targets(&self) -> HashMap<Place, Target> {
        let mut found = HashMap::new();
        if let Some(destination) = self.local() {
            found.insert(Place::Local, Target { destination, tagged: false, mtu: 0 });
        }
        // Neighbours on connected networks are the only targets of direct routes.
        for (addr, _) in &self.tables.neighbours {
            if let Some(route) = self.lookup(*addr) {
                self.note(&mut found, route, *addr);
            }
        }
        for (key, route) in &self.tables.routes {
            for addr in addresses(key.prefix()) {
                self.note(&mut found, *route, addr);
            }
        }
        if let Some(destination) = self.unrouted() {
            found.insert(Place::NoRoute, Target { destination, tagged: false, mtu: 0 });
        }
        found
    }

    /// Notes what place a destination is if that is new, and if `route` really is the one that leads there.
    fn note(&self, found: &mut HashMap<Place, Target>, route: RouteValue, destination: Ipv4Addr) {
        // The lookup comes last: it costs most, and most routes lead to places that are known.
        if let Some((place, target)) = self.place(route, destination)
            && !found.contains_key(&place)
            && self.is_plain(destination)
            && self.lookup(destination) == Some(route)
        {
            found.insert(place, target);
        }
    }

    /// An address of the router; one that packets would be forwarded to if it were not, where there is such.
    fn local(&self) -> Option<Ipv4Addr> {
        let mut locals = self.tables.local_addrs.iter().copied().filter(|addr| is_unicast(*addr));
        let would_forward = |addr: &Ipv4Addr| {
            let place = self.lookup(*addr).and_then(|route| self.place(route, *addr));
            place.is_some_and(|(place, target)| place.is_forward() && !target.tagged)
        };
        locals.clone().find(would_forward).or_else(|| locals.next())
    }

    /// An address that no route leads to.
    fn unrouted(&self) -> Option<Ipv4Addr> {
        if self.lengths.last() == Some(&0) {
            return None;
        }
        let anywhere = Ipv4Addr::new(203, 0, 113, 1);
        let gaps = self.tables.routes.iter().flat_map(|(key, _)| beside(key.prefix()));
        [anywhere].into_iter().chain(gaps).find(|addr| self.is_plain(*addr) && self.lookup(*addr).is_none())
    }

    /// An address that the router looks up among its routes.
    fn is_plain(&self, addr: Ipv4Addr) -> bool {
        is_unicast(addr) && !self.locals.contains(&addr)
    }

    /// Longest-prefix match.
    fn lookup(&self, addr: Ipv4Addr) -> Option<RouteValue> {
        let prefixes = self.lengths.iter().filter_map(|length| Ipv4Net::new(addr, *length).ok());
        prefixes.map(RouteKey::from).find_map(|key| self.routes.get(&key)).copied()
    }

    /// What place the destination of a route is. `None` where the port takes no packet as short as those here.
    fn place(&self, route: RouteValue, destination: Ipv4Addr) -> Option<(Place, Target)> {
        let without_port = Target { destination, tagged: false, mtu: 0 };
        let Some(port) = self.ports.get(&route.port) else { return Some((Place::PortMissing, without_port)) };
        if !port.is_up() {
            return Some((Place::PortDown, without_port));
        }
        let direct = route.next_hop.is_unspecified();
        let next_hop = if direct { destination } else { route.next_hop };
        let tagged = port.vlan_id != 0;
        let place = match self.neighbours.get(&next_hop) {
            None => Place::NeighbourMissing,
            Some(neighbour) if !neighbour.is_reachable() => Place::NeighbourIncomplete,
            Some(_) if port.is_same_dev() || self.slots.contains(&port.tx_index) => {
                Place::Forward { same_dev: port.is_same_dev(), tagged, direct }
            }
            Some(_) => Place::NoDevice,
        };
        let shortest = Frame::to(destination).payload + IPV4_HEADER + packet::UDP_HEADER;
        let fits = usize::from(port.mtu) >= shortest;
        fits.then_some((place, Target { destination, tagged, mtu: port.mtu }))
    }
}

/// An address that a packet can be sent to from afar.
fn is_unicast(addr: Ipv4Addr) -> bool {
    !matches!(addr.octets()[0], 0 | 127 | 224..)
}

/// The first, a middle and the last host of a prefix, of which one is likely to be in no longer prefix.
fn addresses(prefix: Ipv4Net) -> [Ipv4Addr; 3] {
    let (first, hosts) = (u32::from(prefix.network()), u32::from(prefix.hostmask()));
    [hosts & 1, hosts / 2, hosts - (hosts & 1)].map(|host| Ipv4Addr::from(first | host))
}

/// The addresses just before and just after a prefix.
fn beside(prefix: Ipv4Net) -> [Ipv4Addr; 2] {
    [u32::from(prefix.network()).wrapping_sub(1), u32::from(prefix.broadcast()).wrapping_add(1)]
        .map(Ipv4Addr::from)
}

/// Small tables that have every place, so that [`every_branch`] leaves nothing out. `ifindex` is the device to
/// redirect to.
pub fn sample_tables(ifindex: u32) -> Tables {
    let port = |id: u32, vlan_id, flags| {
        let mac = Mac([0x02, 0x01, 0, 0, 0, id as u8]);
        (id, Port { tx_index: id + 10, mac, vlan_id, mtu: 1500 - id as u16, flags })
    };
    let ports = vec![
        port(0, 0, Port::UP | Port::SAME_DEV),
        port(1, 0, Port::UP),
        port(2, 100, Port::UP | Port::SAME_DEV),
        port(3, 4094, Port::UP),
        port(4, 0, 0),
        port(5, 0, Port::UP),
    ];
    let neighbour = |addr: [u8; 4], state| (Ipv4Addr::from(addr), Neighbour { mac: mac_of(addr), state });
    let mut neighbours = vec![
        neighbour([192, 168, 1, 1], Neighbour::REACHABLE),
        neighbour([192, 168, 1, 2], Neighbour::INCOMPLETE),
    ];
    let mut routes = Vec::new();
    let mut route = |prefix: [u8; 4], length, next_hop: [u8; 4], port| {
        let key = RouteKey::from(Ipv4Net::new_assert(prefix.into(), length));
        routes.push((key, RouteValue { next_hop: next_hop.into(), port }));
    };
    for (id, _) in &ports {
        let octet = *id as u8;
        route([20, octet, 0, 0], 16, [192, 168, 1, 1], *id);
        route([30, octet, 0, 0], 24, [0; 4], *id);
        neighbours.push(neighbour([30, octet, 0, 77], Neighbour::REACHABLE));
    }
    // Longer prefixes within one another, of which each leads elsewhere.
    route([20, 0, 128, 0], 17, [192, 168, 1, 1], 1);
    route([20, 0, 200, 0], 24, [192, 168, 1, 2], 1);
    route([20, 0, 200, 128], 25, [192, 168, 1, 3], 1);
    route([20, 0, 200, 129], 32, [192, 168, 1, 1], 77);
    Tables {
        routes,
        ports,
        neighbours,
        local_addrs: vec![Ipv4Addr::new(192, 168, 1, 254), Ipv4Addr::new(20, 0, 0, 254)],
        tx_ports: (10..15).map(|slot| (slot, ifindex)).collect(),
    }
}

fn mac_of([a, b, c, d]: [u8; 4]) -> Mac {
    Mac([0x02, 0x00, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(packet: &[u8]) -> Ipv4Addr {
        let ip = ipv4_offset(packet).unwrap();
        <[u8; 4]>::try_from(&packet[ip + 16..ip + 20]).unwrap().into()
    }

    #[test]
    fn the_sample_leaves_no_branch_out() {
        let set = every_branch(&sample_tables(1)).unwrap();
        assert_eq!(set.unreached, [] as [&str; 0]);
        let names: HashSet<_> = set.cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), set.cases.len(), "each name once");
        for verdict in DropReason::ALL.map(Verdict::Drop).into_iter().chain([
            Verdict::Pass,
            Verdict::Aborted,
            Verdict::Tx,
            Verdict::Redirect,
        ]) {
            assert!(set.cases.iter().any(|case| case.verdict == verdict), "{verdict:?}");
        }
    }

    #[test]
    fn places_obey_the_longest_prefix() {
        let tables = sample_tables(1);
        let survey = Survey::new(&tables);
        let port = |addr: [u8; 4]| survey.lookup(addr.into()).map(|route| route.port);
        assert_eq!(port([20, 0, 1, 1]), Some(0));
        assert_eq!(port([20, 0, 129, 1]), Some(1));
        assert_eq!(port([20, 0, 200, 129]), Some(77));
        assert_eq!(port([20, 6, 0, 1]), None);
        let set = every_branch(&tables).unwrap();
        let missing = set.cases.iter().find(|case| case.name == "port_missing/plain").unwrap();
        assert_eq!(destination(&missing.packet), Ipv4Addr::new(20, 0, 200, 129));
    }

    #[test]
    fn tables_without_a_place_say_so() {
        let prefix = Ipv4Net::default();
        let tables = Tables::spread(&[prefix], 1, 1).unwrap();
        let set = every_branch(&tables).unwrap();
        assert!(set.cases.iter().any(|case| case.name == "tx/plain" && case.verdict == Verdict::Tx));
        for name in ["local", "no_route", "port_missing", "redirect", "neighbour_missing"] {
            assert!(set.unreached.iter().any(|unreached| unreached == name), "{name}");
        }
        let set = every_branch(&Tables::default()).unwrap();
        assert!(set.unreached.contains(&"broken".to_string()));
        assert_eq!(set.cases.len(), SOUND.len(), "nothing but packets without a route");
    }

    #[test]
    fn a_full_table_is_surveyed() {
        let prefixes = crate::routes::generate(20_000, 4).unwrap();
        let set = every_branch(&Tables::spread(&prefixes, 16, 4).unwrap()).unwrap();
        assert!(set.cases.iter().any(|case| case.name == "tx/mtu_exceeded"));
    }
}
