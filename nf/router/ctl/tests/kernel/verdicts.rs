//! The router, as the kernel runs it, against a model of it written here from its description: verdict, bytes of
//! the frame, and counters. The model shares no code with the program, nor with the generator of the
//! packets; checksums are computed anew rather than incrementally, and routes are found by looking at all of them.

use std::net::Ipv4Addr;

use crate::harness::{LOOPBACK, Outcome, Router, isolated};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use router_ctl::layout::DropReason;
use router_ctl::{Tables, TxCounter};
use runnel_testkit::router::{Verdict, every_branch, sample_tables};
use runnel_testkit::trace::{Locality, Model, TraceSpec, trace};
use runnel_testkit::{packet, routes};

const XDP_ABORTED: u32 = 0;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// What should become of `frame`.
fn model(tables: &Tables, frame: &[u8]) -> Outcome {
    match decide(tables, frame) {
        Decision::Pass => Outcome { verdict: XDP_PASS, frame: frame.into(), sent: vec![], dropped: vec![] },
        Decision::Drop(reason) => Outcome {
            verdict: XDP_DROP,
            frame: frame.into(),
            sent: vec![],
            dropped: vec![(reason as u32, 1)],
        },
        Decision::Send { slot, same_dev, frame } => {
            let redirected =
                if tables.tx_ports.iter().any(|(s, _)| *s == slot) { XDP_REDIRECT } else { XDP_ABORTED };
            let counted = TxCounter { packets: 1, bytes: frame.len() as u64 };
            Outcome {
                verdict: if same_dev { XDP_TX } else { redirected },
                frame,
                sent: vec![(slot, counted)],
                dropped: vec![],
            }
        }
    }
}

enum Decision {
    Pass,
    Drop(DropReason),
    Send { slot: u32, same_dev: bool, frame: Vec<u8> },
}

fn be16(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The checksum of a header whose own checksum field is zero.
fn checksum(header: &[u8]) -> [u8; 2] {
    let mut sum: usize = header.chunks(2).map(be16).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// `header` with its checksum right.
fn with_checksum(mut header: Vec<u8>) -> Vec<u8> {
    header[10..12].fill(0);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum);
    header
}

/// Whether the checksum is right. 0x0000 and 0xffff are the same number in ones' complement.
fn checksum_is_right(header: &[u8]) -> bool {
    let right = with_checksum(header.into());
    let zero = |header: &[u8]| matches!(header[10..12], [0, 0] | [0xff, 0xff]);
    right == header || (zero(&right) && zero(header))
}

fn decide(tables: &Tables, frame: &[u8]) -> Decision {
    use Decision::{Drop, Pass};

    let tagged = be16(&frame[12..]) == 0x8100;
    let l3 = if tagged { 18 } else { 14 };
    if frame.len() < l3 {
        return Drop(DropReason::Truncated);
    }
    if be16(&frame[l3 - 2..]) != 0x0800 || frame[0] % 2 == 1 {
        return Pass;
    }

    let packet = &frame[l3..];
    if packet.len() < 20 {
        return Drop(DropReason::Truncated);
    }
    let (header, length) = (usize::from(packet[0] % 16) * 4, be16(&packet[2..]));
    if packet[0] / 16 != 4 {
        return Drop(DropReason::Version);
    }
    if header < 20 || header > packet.len() {
        return Drop(DropReason::HeaderLength);
    }
    if length < header || length > packet.len() {
        return Drop(DropReason::TotalLength);
    }
    if !checksum_is_right(&packet[..header]) {
        return Drop(DropReason::Checksum);
    }
    if header > 20 {
        return Pass;
    }

    let addr = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let (source, destination) = (addr(12), addr(16));
    if destination.is_multicast() || destination.is_broadcast() {
        return Pass;
    }
    let never = |addr: Ipv4Addr| matches!(addr.octets()[0], 0 | 127 | 240..);
    if never(destination) || never(source) || source.is_multicast() {
        return Drop(DropReason::Martian);
    }
    if tables.local_addrs.contains(&destination) || packet[8] < 2 {
        return Pass;
    }

    let matching = tables.routes.iter().filter(|(key, _)| key.prefix().contains(&destination));
    let Some((_, route)) = matching.max_by_key(|(key, _)| key.prefix().prefix_len()) else { return Pass };
    let Some((_, port)) = tables.ports.iter().find(|(id, _)| *id == route.port) else { return Pass };
    let next_hop = if route.next_hop == Ipv4Addr::new(0, 0, 0, 0) { destination } else { route.next_hop };
    let neighbour = tables.neighbours.iter().find(|(addr, n)| *addr == next_hop && n.state == 1);
    let fits = port.flags & 1 == 1 && length <= usize::from(port.mtu) && tagged == (port.vlan_id > 0);
    let (true, Some((_, neighbour))) = (fits, neighbour) else { return Pass };

    let mut out = [&neighbour.mac.0[..], &port.mac.0, &frame[12..14]].concat();
    if tagged {
        let priority = frame[14] & 0xf0;
        out.extend([priority | (port.vlan_id >> 8) as u8, port.vlan_id as u8, frame[16], frame[17]]);
    }
    let mut header = packet[..20].to_vec();
    header[8] -= 1;
    out.extend(with_checksum(header));
    out.extend(&packet[20..]);
    Decision::Send { slot: port.tx_index, same_dev: port.flags & 2 == 2, frame: out }
}

fn number(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Pass => XDP_PASS,
        Verdict::Drop(_) => XDP_DROP,
        Verdict::Aborted => XDP_ABORTED,
        Verdict::Tx => XDP_TX,
        Verdict::Redirect => XDP_REDIRECT,
    }
}

fn check_every_branch(tables: &Tables) -> Vec<String> {
    let set = every_branch(tables).unwrap();
    let mut router = Router::load();
    router.fill(tables);
    for case in &set.cases {
        let expected = model(tables, &case.packet);
        assert_eq!(
            expected.verdict,
            number(case.verdict),
            "{}: the model and the description differ",
            case.name
        );
        if let Verdict::Drop(reason) = case.verdict {
            assert_eq!(expected.dropped, [(reason as u32, 1)], "{}: dropped for another reason", case.name);
        }
        assert_eq!(router.run(&case.packet), expected, "{}: {:02x?}", case.name, case.packet);
    }
    set.unreached
}

#[test]
fn every_branch_does_what_the_model_says() {
    isolated(|| assert_eq!(check_every_branch(&sample_tables(LOOPBACK)), [] as [&str; 0]));
}

#[test]
fn empty_tables_pass_everything_up() {
    isolated(|| {
        check_every_branch(&Tables::default());
    });
}

#[test]
fn generated_tables_forward_what_the_model_forwards() {
    isolated(|| {
        let prefixes = routes::generate(3000, 1).unwrap();
        let tables = Tables::spread(&prefixes, 16, 4).unwrap();
        check_every_branch(&tables);
        let mut router = Router::load();
        router.fill(&tables);
        let spec = TraceSpec { packets: 2000, model: Model::Pareto(Locality::None), payload: 18, seed: 2 };
        let mut forwarded = 0;
        for frame in trace(&prefixes, &spec).unwrap() {
            let outcome = router.run(&frame);
            assert_eq!(outcome, model(&tables, &frame), "{frame:02x?}");
            forwarded += usize::from(outcome.verdict == XDP_TX);
        }
        assert!(forwarded > 1900, "{forwarded}");
    });
}

/// Frames of the branches with bytes changed at random, half of them with the checksum right again.
#[test]
fn damaged_packets_are_judged_as_by_the_model() {
    isolated(|| {
        let tables = sample_tables(LOOPBACK);
        let cases = every_branch(&tables).unwrap().cases;
        let mut router = Router::load();
        router.fill(&tables);
        let mut rng = SmallRng::seed_from_u64(3);
        for _ in 0..4000 {
            let mut frame = cases[rng.random_range(0..cases.len())].packet.clone();
            for _ in 0..rng.random_range(1..4) {
                // Headers matter most.
                let at = rng.random_range(0..frame.len().min(64));
                frame[at] = rng.random();
            }
            if rng.random_bool(0.2) {
                frame.truncate(rng.random_range(packet::ETHERNET_HEADER..=frame.len()));
            }
            if rng.random_bool(0.5) {
                correct_checksum(&mut frame);
            }
            assert_eq!(router.run(&frame), model(&tables, &frame), "{frame:02x?}");
        }
    });
}

fn correct_checksum(frame: &mut [u8]) {
    let Some(ip) = packet::ipv4_offset(frame) else { return };
    let length = frame.get(ip).map_or(0, |byte| usize::from(byte % 16) * 4);
    if length >= 20 && ip + length <= frame.len() {
        let header = with_checksum(frame[ip..ip + length].into());
        frame[ip..ip + length].copy_from_slice(&header);
    }
}

/// The checksum that comes out as 0xffff or 0x0000 is where incremental updates go wrong (RFC 1624, 3).
#[test]
fn every_checksum_survives_the_ttl() {
    isolated(|| {
        let tables = sample_tables(LOOPBACK);
        let mut router = Router::load();
        router.fill(&tables);
        let sound = packet::Frame::to(Ipv4Addr::new(20, 0, 0, 1)).build().unwrap();
        // The identification moves the checksum through the values around both ends.
        let right = be16(&sound[24..]);
        for checksum_before in (0..=0x0220).chain(0xfd00..=0xffff) {
            let mut frame = sound.clone();
            let id = (right + 0xffff - checksum_before) % 0xffff;
            frame[18..20].copy_from_slice(&(id as u16).to_be_bytes());
            correct_checksum(&mut frame);
            let outcome = router.run(&frame);
            assert_eq!(outcome.verdict, XDP_TX);
            assert_eq!(outcome, model(&tables, &frame), "{checksum_before:#x}");
        }
    });
}
