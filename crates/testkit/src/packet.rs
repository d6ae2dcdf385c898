//! Ethernet frames with an IPv4 packet in them: sound ones, and ones broken in exactly one chosen way.
//!
//! Sound frames are put together by the `etherparse` crate, checksums included. A [`Fault`] changes bytes
//! afterwards and corrects the header checksum where the checksum is not what is to be broken, so that a
//! program that drops the frame does so for the reason that is tested.

use std::net::Ipv4Addr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv4Options, PacketBuilder, SingleVlanHeader, VlanHeader, VlanId,
    VlanPcp,
};

/// Length of an Ethernet header, in bytes.
pub const ETHERNET_HEADER: usize = 14;
/// Length of an IPv4 header without options, in bytes.
pub const IPV4_HEADER: usize = 20;
/// Length of a UDP header, in bytes.
pub const UDP_HEADER: usize = 8;
/// Length of the shortest Ethernet frame without its frame check sequence, in bytes (IEEE 802.3, 4A.4.2).
pub const MIN_FRAME: usize = 60;

const VLAN_TAG: usize = 4;
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// A UDP packet to be made. The fields are its parts; [`build`](Self::build) puts them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Source and destination address of the frame.
    pub macs: ([u8; 6], [u8; 6]),
    /// The 802.1Q tag, if there is one.
    pub vlan: Option<Tag>,
    /// Source address of the packet.
    pub source: Ipv4Addr,
    /// Destination address of the packet.
    pub destination: Ipv4Addr,
    /// Its time to live.
    pub ttl: u8,
    /// Its IP options: 0 to 40 bytes, a multiple of 4.
    pub options: Vec<u8>,
    /// UDP source and destination port.
    pub ports: (u16, u16),
    /// Length of the UDP payload, in bytes.
    pub payload: usize,
    /// Whether zeros follow the packet up to [`MIN_FRAME`], as on a wire.
    pub padded: bool,
}

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// VLAN, 0 to 4095.
    pub id: u16,
    /// Priority code point, 0 to 7.
    pub priority: u8,
}

/// Why a frame cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// IP options have 0 to 40 bytes, by fours.
    #[error("{0} bytes of IP options; there can be 0 to 40, in multiples of 4")]
    Options(usize),
    /// A VLAN has 12 bits and its priority 3.
    #[error("VLAN {} with priority {}; they go up to 4095 and 7", .0.id, .0.priority)]
    Tag(Tag),
    /// An IPv4 packet has at most 65,535 bytes.
    #[error("{0} bytes of payload do not fit into an IPv4 packet")]
    Payload(usize),
}

impl Frame {
    /// A packet with 18 bytes of payload, which makes the shortest frame; untagged, TTL 64, from the benchmarking
    /// network 198.18.0.0/15 (RFC 2544).
    pub fn to(destination: Ipv4Addr) -> Self {
        Self {
            macs: ([0x02, 0, 0, 0, 0, 0x0a], [0x02, 0, 0, 0, 0, 0x0b]),
            vlan: None,
            source: Ipv4Addr::new(198, 18, 0, 1),
            destination,
            ttl: 64,
            options: Vec::new(),
            ports: (40_000, 9),
            payload: MIN_FRAME - ETHERNET_HEADER - IPV4_HEADER - UDP_HEADER,
            padded: true,
        }
    }

    /// The same with `payload` chosen so that the IP packet has this length, in bytes. Lengths that
    /// leave no room for the headers give an empty payload.
    pub fn with_total_length(mut self, length: usize) -> Self {
        self.payload = length.saturating_sub(IPV4_HEADER + self.options.len() + UDP_HEADER);
        self
    }

    /// Puts the frame together, checksums and all.
    pub fn build(&self) -> Result<Vec<u8>, PacketError> {
        let options =
            Ipv4Options::try_from(&self.options[..]).map_err(|_| PacketError::Options(self.options.len()))?;
        let headers = IPV4_HEADER + self.options.len() + UDP_HEADER;
        if self.payload > usize::from(u16::MAX) - headers {
            return Err(PacketError::Payload(self.payload));
        }
        // The builder sets lengths, protocol and checksums.
        let mut ip =
            Ipv4Header::new(0, self.ttl, IpNumber::UDP, self.source.octets(), self.destination.octets())
                .map_err(|_| PacketError::Payload(self.payload))?;
        ip.options = options;

        let ethernet = PacketBuilder::ethernet2(self.macs.0, self.macs.1);
        let ip = IpHeaders::Ipv4(ip, Default::default());
        let packet = match self.vlan {
            None => ethernet.ip(ip),
            Some(tag) => ethernet.vlan(VlanHeader::Single(tag.header()?)).ip(ip),
        };
        let packet = packet.udp(self.ports.0, self.ports.1);
        let payload: Vec<u8> = (0..self.payload).map(|i| i as u8).collect();
        let mut frame = Vec::with_capacity(packet.size(payload.len()).max(MIN_FRAME));
        packet.write(&mut frame, &payload).map_err(|_| PacketError::Payload(self.payload))?;
        if self.padded && frame.len() < MIN_FRAME {
            frame.resize(MIN_FRAME, 0);
        }
        Ok(frame)
    }
}

impl Tag {
    fn header(self) -> Result<SingleVlanHeader, PacketError> {
        Ok(SingleVlanHeader {
            pcp: VlanPcp::try_new(self.priority).map_err(|_| PacketError::Tag(self))?,
            drop_eligible_indicator: false,
            vlan_id: VlanId::try_new(self.id).map_err(|_| PacketError::Tag(self))?,
            // The builder sets it.
            ether_type: etherparse::EtherType::IPV4,
        })
    }
}

/// Where the IPv4 header of a frame begins, or would; `None` if the frame is too short for it to.
pub fn ipv4_offset(frame: &[u8]) -> Option<usize> {
    let tagged = frame.get(12..ETHERNET_HEADER)? == ETHERTYPE_VLAN;
    let offset = ETHERNET_HEADER + if tagged { VLAN_TAG } else { 0 };
    (offset <= frame.len()).then_some(offset)
}

/// One way for a frame to be broken. Frames that are too short to be broken in that way stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Ends after this many bytes.
    Truncated(usize),
    /// The version field says this, 0 to 15.
    Version(u8),
    /// The header length field says this, 0 to 15, in words of 4 bytes.
    HeaderLength(u8),
    /// The total length field says this, in bytes.
    TotalLength(u16),
    /// These bits of the header checksum are flipped.
    Checksum(u16),
}

impl Fault {
    /// Breaks a frame in this way.
    pub fn apply(self, frame: &mut Vec<u8>) {
        let Some(ip) = ipv4_offset(frame) else { return };
        let Some(header) = frame.get_mut(ip..ip + IPV4_HEADER) else { return };
        match self {
            Self::Truncated(length) => return frame.truncate(length),
            Self::Version(version) => header[0] = (version << 4) | (header[0] & 0x0f),
            Self::HeaderLength(words) => header[0] = (header[0] & 0xf0) | (words & 0x0f),
            Self::TotalLength(length) => header[2..4].copy_from_slice(&length.to_be_bytes()),
            Self::Checksum(bits) => {
                let sum = u16::from_be_bytes([header[10], header[11]]) ^ bits;
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                return;
            }
        }
        correct_checksum(&mut frame[ip..]);
    }
}

/// Sets the checksum of an IPv4 header right. `packet` begins with the header, of which at least the fixed
/// part must be there; of a header longer than `packet`, what is there counts.
fn correct_checksum(packet: &mut [u8]) {
    let length = (usize::from(packet[0] & 0x0f) * 4).max(IPV4_HEADER).min(packet.len());
    packet[10..12].fill(0);
    let sum = Sum16BitWords::new().add_slice(&packet[..length]).ones_complement();
    // etherparse sums in the host's byte order.
    packet[10..12].copy_from_slice(&sum.to_ne_bytes());
}

/// Every way to break `frame` that any program which checks IPv4 headers is to notice: truncated at each length
/// that leaves an Ethernet header and cuts into the packet, and each header field wrong on both sides of
/// where it is right. `frame` is a sound one; with padding, fewer lengths are wrong. A frame that is too
/// short for an IPv4 header has none.
pub fn faults(frame: &[u8]) -> Vec<Fault> {
    let Some(ip) = ipv4_offset(frame) else { return Vec::new() };
    let Some(header) = frame.get(ip..ip + IPV4_HEADER) else { return Vec::new() };
    let header_length = u16::from(header[0] & 0x0f) * 4;
    let total_length = u16::from_be_bytes([header[2], header[3]]);
    let available = u16::try_from(frame.len() - ip).unwrap_or(u16::MAX);
    let end = ip + usize::from(total_length);

    let mut faults: Vec<Fault> = (ETHERNET_HEADER..end.min(frame.len())).map(Fault::Truncated).collect();
    faults.extend([0, 3, 5, 6, 15].map(Fault::Version));
    // Too short, or too long if the frame is short enough for that.
    let wrong = |words: &u8| *words < 5 || u16::from(*words) * 4 > available;
    faults.extend((0..16).filter(wrong).map(Fault::HeaderLength));
    let wrong = |length: &u16| *length < header_length || *length > available;
    let lengths = [0, 1, header_length.saturating_sub(1), available.saturating_add(1), u16::MAX];
    faults.extend(lengths.into_iter().filter(wrong).map(Fault::TotalLength));
    faults.extend([0x0001, 0x0100, 0x8000, 0xfffe].map(Fault::Checksum));
    faults
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TransportSlice, VlanSlice};

    use super::*;

    const DESTINATION: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);

    fn frame() -> Frame {
        Frame::to(DESTINATION)
    }

    /// Parses a frame with etherparse and checks both checksums.
    fn check(bytes: &[u8], frame: &Frame) {
        let parsed = SlicedPacket::from_ethernet(bytes).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = &parsed.net else { panic!("not IPv4") };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(Ipv4Addr::from(header.source), frame.source);
        assert_eq!(Ipv4Addr::from(header.destination), frame.destination);
        assert_eq!(header.time_to_live, frame.ttl);
        assert_eq!(header.options.as_slice(), frame.options);
        assert_eq!(usize::from(header.total_len), 28 + frame.options.len() + frame.payload);

        let Some(TransportSlice::Udp(udp)) = &parsed.transport else { panic!("not UDP") };
        let udp_header = udp.to_header();
        assert_eq!((udp.source_port(), udp.destination_port()), frame.ports);
        assert_eq!(udp.payload().len(), frame.payload);
        assert_eq!(udp.checksum(), udp_header.calc_checksum_ipv4(&header, udp.payload()).unwrap());

        let tag = parsed.vlan().map(|vlan| match vlan {
            VlanSlice::SingleVlan(tag) => {
                Tag { id: tag.vlan_identifier().value(), priority: tag.priority_code_point().value() }
            }
            VlanSlice::DoubleVlan(_) => panic!("two tags"),
        });
        assert_eq!(tag, frame.vlan);
    }

    #[test]
    fn frames_parse_back_with_right_checksums() {
        let tag = Some(Tag { id: 4094, priority: 5 });
        for vlan in [None, tag] {
            for options in [vec![], vec![1; 4], vec![1; 40]] {
                for payload in [0, 1, 18, 1400] {
                    for padded in [false, true] {
                        let frame = Frame { vlan, options: options.clone(), payload, padded, ..frame() };
                        let bytes = frame.build().unwrap();
                        check(&bytes, &frame);
                        assert!(!padded || bytes.len() >= MIN_FRAME);
                    }
                }
            }
        }
    }

    #[test]
    fn the_default_frame_is_the_shortest() {
        assert_eq!(frame().build().unwrap().len(), MIN_FRAME);
        assert_eq!(frame().with_total_length(1500).build().unwrap().len(), 1514);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let options = Frame { options: vec![1; 5], ..frame() };
        assert_eq!(options.build(), Err(PacketError::Options(5)));
        let options = Frame { options: vec![1; 44], ..frame() };
        assert_eq!(options.build(), Err(PacketError::Options(44)));
        let tag = Tag { id: 4096, priority: 0 };
        assert_eq!(Frame { vlan: Some(tag), ..frame() }.build(), Err(PacketError::Tag(tag)));
        let longest = Frame { payload: 65_507, ..frame() };
        assert_eq!(longest.build().unwrap().len(), 65_549);
        assert_eq!(Frame { payload: 65_508, ..longest }.build(), Err(PacketError::Payload(65_508)));
    }

    /// The header checksum over what the header length field says, 0xffff if right.
    fn sum(packet: &[u8]) -> u16 {
        let length = (usize::from(packet[0] & 0x0f) * 4).clamp(IPV4_HEADER, packet.len());
        let words = packet[..length].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum = words.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn a_fault_breaks_one_thing_only() {
        for vlan in [None, Some(Tag { id: 7, priority: 0 })] {
            let sound = Frame { vlan, ..frame() }.build().unwrap();
            let ip = ipv4_offset(&sound).unwrap();
            let broken = |fault: Fault| {
                let mut bytes = sound.clone();
                fault.apply(&mut bytes);
                assert_ne!(bytes, sound, "{fault:?}");
                bytes
            };
            for fault in faults(&sound) {
                let bytes = broken(fault);
                match fault {
                    Fault::Truncated(length) => assert_eq!(bytes, sound[..length]),
                    Fault::Checksum(_) => assert_ne!(sum(&bytes[ip..]), 0xffff),
                    _ => assert_eq!(sum(&bytes[ip..]), 0xffff, "{fault:?}"),
                }
            }
            assert_eq!(broken(Fault::Version(6))[ip] >> 4, 6);
            assert_eq!(broken(Fault::HeaderLength(15))[ip] & 0xf, 15);
            assert_eq!(broken(Fault::TotalLength(999))[ip + 2..ip + 4], 999u16.to_be_bytes());
        }
    }

    #[test]
    fn faults_leave_what_is_too_short_alone() {
        for length in 0..34 {
            let mut bytes = frame().build().unwrap();
            bytes.truncate(length);
            let before = bytes.clone();
            assert_eq!(faults(&bytes), []);
            Fault::Version(5).apply(&mut bytes);
            assert_eq!(bytes, before);
        }
    }
}
