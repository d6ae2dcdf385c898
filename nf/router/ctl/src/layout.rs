//! Keys and values of the router's maps, as `router.h` lays them out.
//!
//! Addresses are in network byte order, all other numbers in the host's. Everything is written out byte by
//! byte rather than through `repr(C)`, so that no padding and no unsafe code comes in between.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;

/// Names of the router's maps.
pub mod map {
    /// Longest-prefix match, [`RouteKey`](super::RouteKey) to [`RouteValue`](super::RouteValue).
    pub const ROUTES: &str = "routes";
    /// Hash, port id to [`Port`](super::Port).
    pub const PORTS: &str = "ports";
    /// Hash, IPv4 address to [`Neighbour`](super::Neighbour).
    pub const NEIGHBOURS: &str = "neighbours";
    /// Hash, IPv4 address to a `u32` that is not looked at.
    pub const LOCAL_ADDRS: &str = "local_addrs";
    /// Devmap, slot to interface index.
    pub const TX_PORTS: &str = "tx_ports";
    /// Per-CPU array, slot to [`TxCounter`](super::TxCounter).
    pub const TX_COUNTERS: &str = "tx_counters";
    /// Per-CPU array, [`DropReason`](super::DropReason) to a `u64` count of packets.
    pub const DROP_COUNTERS: &str = "drop_counters";
}

/// Most entries of `routes`.
pub const MAX_ROUTES: usize = 1 << 20;
/// Most entries of `neighbours`.
pub const MAX_NEIGHBOURS: usize = 16384;
/// Most entries of `local_addrs`.
pub const MAX_LOCAL_ADDRS: usize = 1024;
/// Most entries of `ports`; also the number of slots of `tx_ports` and `tx_counters`.
pub const MAX_PORTS: usize = 256;

/// A key or a value that a map of the router holds.
pub trait MapData: Sized {
    /// Its size in the map, in bytes.
    const SIZE: usize;

    /// The [`SIZE`](Self::SIZE) bytes that the map holds.
    fn to_bytes(&self) -> Vec<u8>;

    /// Reads it back; `None` if the size differs or the bytes mean nothing.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// Takes the first `N` bytes off `bytes`.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk::<N>()?;
    *bytes = tail;
    Some(*head)
}

/// `value`, if nothing of `rest` is left over.
fn complete<T>(value: T, rest: &[u8]) -> Option<T> {
    rest.is_empty().then_some(value)
}

impl MapData for u32 {
    const SIZE: usize = 4;

    fn to_bytes(&self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_ne_bytes(bytes.try_into().ok()?))
    }
}

impl MapData for u64 {
    const SIZE: usize = 8;

    fn to_bytes(&self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_ne_bytes(bytes.try_into().ok()?))
    }
}

impl MapData for Ipv4Addr {
    const SIZE: usize = 4;

    fn to_bytes(&self) -> Vec<u8> {
        self.octets().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self::from(<[u8; 4]>::try_from(bytes).ok()?))
    }
}

/// Key of `routes`: a prefix. Bits beyond its length are always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteKey(Ipv4Net);

impl RouteKey {
    /// The prefix.
    pub fn prefix(self) -> Ipv4Net {
        self.0
    }
}

impl From<Ipv4Net> for RouteKey {
    /// Clears the bits beyond the prefix length.
    fn from(prefix: Ipv4Net) -> Self {
        Self(prefix.trunc())
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl MapData for RouteKey {
    const SIZE: usize = 8;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = u32::from(self.0.prefix_len()).to_bytes();
        bytes.extend(self.0.addr().octets());
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let length = u32::from_ne_bytes(take(&mut bytes)?);
        let addr = Ipv4Addr::from(take::<4>(&mut bytes)?);
        let prefix = Ipv4Net::new(addr, u8::try_from(length).ok()?).ok()?;
        complete(prefix.into(), bytes)
    }
}

/// Value of `routes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteValue {
    /// Where to send the packet next; [`Ipv4Addr::UNSPECIFIED`] if the network is directly connected, in which
    /// case the next hop is the packet's own destination.
    pub next_hop: Ipv4Addr,
    /// Key of `ports`.
    pub port: u32,
}

impl fmt::Display for RouteValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.next_hop.is_unspecified() {
            write!(f, "via {} ", self.next_hop)?;
        }
        write!(f, "dev {}", self.port)
    }
}

impl MapData for RouteValue {
    const SIZE: usize = 8;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.next_hop.to_bytes();
        bytes.extend(self.port.to_ne_bytes());
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let next_hop = Ipv4Addr::from(take::<4>(&mut bytes)?);
        let port = u32::from_ne_bytes(take(&mut bytes)?);
        complete(Self { next_hop, port }, bytes)
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six pairs of hexadecimal digits with colons between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address; write it as 02:00:5e:10:00:01")]
pub struct NotAMac;

impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *octet = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or(NotAMac)?;
        }
        if parts.next().is_some() {
            return Err(NotAMac);
        }
        Ok(Self(octets))
    }
}

/// Value of `ports`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// Slot of `tx_ports` and of `tx_counters`, below [`MAX_PORTS`].
    pub tx_index: u32,
    /// Source address of the frames that leave here.
    pub mac: Mac,
    /// VLAN of the frames that leave here, 1 to 4094; 0: untagged.
    pub vlan_id: u16,
    /// Longest IP packet, in bytes.
    pub mtu: u16,
    /// [`UP`](Self::UP) and [`SAME_DEV`](Self::SAME_DEV).
    pub flags: u16,
}

impl Port {
    /// Packets may leave here.
    pub const UP: u16 = 1 << 0;
    /// The port is the device that packets come in by: they are sent back (`XDP_TX`), not redirected.
    pub const SAME_DEV: u16 = 1 << 1;

    /// Whether [`UP`](Self::UP) is set.
    pub fn is_up(self) -> bool {
        self.flags & Self::UP != 0
    }

    /// Whether [`SAME_DEV`](Self::SAME_DEV) is set.
    pub fn is_same_dev(self) -> bool {
        self.flags & Self::SAME_DEV != 0
    }
}

impl MapData for Port {
    const SIZE: usize = 16;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.tx_index.to_bytes();
        bytes.extend(self.mac.0);
        for half in [self.vlan_id, self.mtu, self.flags] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let port = Self {
            tx_index: u32::from_ne_bytes(take(&mut bytes)?),
            mac: Mac(take(&mut bytes)?),
            vlan_id: u16::from_ne_bytes(take(&mut bytes)?),
            mtu: u16::from_ne_bytes(take(&mut bytes)?),
            flags: u16::from_ne_bytes(take(&mut bytes)?),
        };
        complete(port, bytes)
    }
}

/// Value of `neighbours`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Where frames for it are sent.
    pub mac: Mac,
    /// [`REACHABLE`](Self::REACHABLE), or anything else if its address is not known (yet).
    pub state: u16,
}

impl Neighbour {
    /// Its address is being resolved.
    pub const INCOMPLETE: u16 = 0;
    /// Its address is known.
    pub const REACHABLE: u16 = 1;

    /// A neighbour whose address is known.
    pub fn reachable(mac: Mac) -> Self {
        Self { mac, state: Self::REACHABLE }
    }

    /// Whether the router sends to it.
    pub fn is_reachable(self) -> bool {
        self.state == Self::REACHABLE
    }
}

impl MapData for Neighbour {
    const SIZE: usize = 8;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.mac.0.to_vec();
        bytes.extend(self.state.to_ne_bytes());
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mac = Mac(take(&mut bytes)?);
        let state = u16::from_ne_bytes(take(&mut bytes)?);
        complete(Self { mac, state }, bytes)
    }
}

/// Value of `tx_counters`, on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounter {
    /// Packets sent by the port.
    pub packets: u64,
    /// Their frames' bytes, without the frame check sequence.
    pub bytes: u64,
}

impl MapData for TxCounter {
    const SIZE: usize = 16;

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.packets.to_bytes();
        bytes.extend(self.bytes.to_ne_bytes());
        bytes
    }

    fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let packets = u64::from_ne_bytes(take(&mut bytes)?);
        let octets = u64::from_ne_bytes(take(&mut bytes)?);
        complete(Self { packets, bytes: octets }, bytes)
    }
}

/// Index of `drop_counters`: why the router dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DropReason {
    /// The frame ends inside of a header.
    Truncated,
    /// The EtherType says IPv4, the packet does not.
    Version,
    /// The header is shorter than 20 bytes, or longer than the frame.
    HeaderLength,
    /// The total length is below the header's, or more than the frame has.
    TotalLength,
    /// The header checksum is wrong.
    Checksum,
    /// An address that must not be seen on the wire.
    Martian,
}

impl DropReason {
    /// All of them, in the order of their indices.
    pub const ALL: [Self; 6] = [
        Self::Truncated,
        Self::Version,
        Self::HeaderLength,
        Self::TotalLength,
        Self::Checksum,
        Self::Martian,
    ];

    /// A word for it, as the control program prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Version => "version",
            Self::HeaderLength => "header_length",
            Self::TotalLength => "total_length",
            Self::Checksum => "checksum",
            Self::Martian => "martian",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: MapData + PartialEq + fmt::Debug>(value: &T) -> Vec<u8> {
        let bytes = value.to_bytes();
        assert_eq!(bytes.len(), T::SIZE);
        assert_eq!(T::from_bytes(&bytes).as_ref(), Some(value));
        assert_eq!(T::from_bytes(&bytes[1..]), None, "too short");
        assert_eq!(T::from_bytes(&[&bytes[..], &[0]].concat()), None, "too long");
        bytes
    }

    #[test]
    fn bytes_are_those_of_router_h() {
        let key = RouteKey::from("10.1.0.0/16".parse::<Ipv4Net>().unwrap());
        assert_eq!(round_trip(&key), [&16u32.to_ne_bytes()[..], &[10, 1, 0, 0]].concat());

        let route = RouteValue { next_hop: Ipv4Addr::new(192, 168, 1, 7), port: 3 };
        assert_eq!(round_trip(&route), [&[192, 168, 1, 7][..], &3u32.to_ne_bytes()].concat());

        let port =
            Port { tx_index: 5, mac: Mac([2, 1, 0, 0, 0, 5]), vlan_id: 100, mtu: 1500, flags: Port::UP };
        let halves = [100u16, 1500, 1].map(u16::to_ne_bytes).concat();
        assert_eq!(round_trip(&port), [&5u32.to_ne_bytes()[..], &[2, 1, 0, 0, 0, 5], &halves].concat());

        let neighbour = Neighbour::reachable(Mac([2, 0, 0, 0, 0, 9]));
        assert_eq!(round_trip(&neighbour), [&[2, 0, 0, 0, 0, 9][..], &1u16.to_ne_bytes()].concat());

        round_trip(&TxCounter { packets: 1, bytes: 60 });
        round_trip(&Ipv4Addr::LOCALHOST);
        round_trip(&7u32);
        round_trip(&7u64);
    }

    #[test]
    fn a_prefix_longer_than_32_bits_is_no_key() {
        assert_eq!(RouteKey::from_bytes(&[&33u32.to_ne_bytes()[..], &[0; 4]].concat()), None);
        assert_eq!(RouteKey::from_bytes(&[&256u32.to_ne_bytes()[..], &[0; 4]].concat()), None);
    }

    #[test]
    fn macs_are_six_pairs_of_digits() {
        assert_eq!("02:00:5e:10:00:fF".parse(), Ok(Mac([2, 0, 0x5e, 0x10, 0, 0xff])));
        assert_eq!(Mac([2, 0, 0x5e, 0x10, 0, 0xff]).to_string(), "02:00:5e:10:00:ff");
        for bad in ["", "02", "02:00:5e:10:00", "02:00:5e:10:00:01:02", "2:0:5e:10:0:1", "+2:00:5e:10:00:01"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(NotAMac), "{bad}");
        }
    }
}
