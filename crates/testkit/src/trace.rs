//! Traces: packets to addresses of a routes table, with a chosen locality.
//!
//! A trace is made of headers, each with an address drawn from a prefix that is drawn from the table, all
//! prefixes alike and all addresses of a prefix alike. Two models say how often and when a header comes:
//!
//! * [`Model::Pareto`], that of the ClassBench trace generator (Taylor and Turner, ClassBench, section on trace
//!   generation), which the experiments of Morpheus use with *a* = 1: each drawn header comes
//!   ceil(*b* / *u*^(1/*a*)) times in a row, *u* uniform in (0, 1].
//! * [`Model::Zipf`]: a fixed set of flows, the *k*-th of which comes with a frequency of 1/*k*^*s*, independently
//!   of what came before.
//!
//! Prefixes are taken as they are: a table with a default route, or with a route for multicast, gives
//! packets to all sorts of addresses. It deliberately keeps the trace in memory, as replays need it there.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::packet::{Frame, PacketError};

/// The parameter *a* of [`Model::Pareto`].
const PARETO_A: f64 = 1.0;

/// Most flows of [`Model::Zipf`].
pub const MAX_FLOWS: usize = 1 << 24;

/// How much a packet's header depends on the one before it: the parameter *b* of [`Model::Pareto`], with the
/// values of the published experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Locality {
    /// *b* = 0: each header comes once.
    None,
    /// *b* = 0.0001: one header in ten thousand comes more than once.
    Low,
    /// *b* = 1: a header comes some ten times on average, and one in a thousand more than a thousand times.
    High,
}

impl Locality {
    /// All of them, in rising order.
    pub const ALL: [Self; 3] = [Self::None, Self::Low, Self::High];

    /// The parameter *b*.
    pub fn b(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Low => 0.0001,
            Self::High => 1.0,
        }
    }

    /// The word for it in results: `none`, `low` or `high`.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::High => "high",
        }
    }
}

/// How often, and when, a header comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// Headers come in rows of their own.
    Pareto(Locality),
    /// A set of flows of different weight.
    Zipf {
        /// The number of flows, 1 to [`MAX_FLOWS`].
        flows: usize,
        /// The exponent *s*; 0 makes all flows alike, 1 is the classic. Not negative.
        exponent: f64,
    },
}

/// What trace to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceSpec {
    /// The number of packets.
    pub packets: usize,
    /// Their order.
    pub model: Model,
    /// UDP payload of each, in bytes.
    pub payload: usize,
    /// The same seed makes the same trace.
    pub seed: u64,
}

/// Why a trace cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// There is nothing to draw from.
    #[error("the routes table is empty; a trace needs prefixes to draw addresses from")]
    NoPrefixes,
    /// The number of flows is out of range.
    #[error("{0} flows; there can be 1 to {MAX_FLOWS}")]
    Flows(usize),
    /// The exponent is negative or not a number.
    #[error("a Zipf exponent of {0}; it has to be a number that is not negative")]
    Exponent(f64),
    /// The packets cannot be put together.
    #[error(transparent)]
    Packet(#[from] PacketError),
}

/// What distinguishes the packets of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Source address, in 198.18.0.0/15 (RFC 2544).
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// UDP source and destination port.
    pub ports: (u16, u16),
}

/// Makes a trace: `spec.packets` frames.
pub fn trace(prefixes: &[Ipv4Net], spec: &TraceSpec) -> Result<Vec<Vec<u8>>, TraceError> {
    let mut frames: Vec<Vec<u8>> = Vec::with_capacity(spec.packets);
    let mut last = None;
    for header in headers(prefixes, spec)? {
        let frame = match frames.last() {
            Some(frame) if last == Some(header) => frame.clone(),
            _ => Frame {
                source: header.source,
                ports: header.ports,
                payload: spec.payload,
                ..Frame::to(header.destination)
            }
            .build()?,
        };
        frames.push(frame);
        last = Some(header);
    }
    Ok(frames)
}

/// The headers of the packets of a trace, in their order.
pub fn headers(prefixes: &[Ipv4Net], spec: &TraceSpec) -> Result<Vec<Header>, TraceError> {
    if prefixes.is_empty() {
        return Err(TraceError::NoPrefixes);
    }
    let mut rng = SmallRng::seed_from_u64(spec.seed);
    match spec.model {
        Model::Pareto(locality) => Ok(pareto(prefixes, locality, spec.packets, &mut rng)),
        Model::Zipf { flows, exponent } => zipf(prefixes, flows, exponent, spec.packets, &mut rng),
    }
}

fn pareto(prefixes: &[Ipv4Net], locality: Locality, packets: usize, rng: &mut SmallRng) -> Vec<Header> {
    let mut headers = Vec::with_capacity(packets);
    while headers.len() < packets {
        let header = draw_header(prefixes, rng);
        // 1 - [0, 1) is (0, 1].
        let row = repeats(locality.b(), 1.0 - rng.random::<f64>());
        let end = headers.len().saturating_add(row).min(packets);
        headers.resize(end, header);
    }
    headers
}

/// How many times in a row a header comes, for a uniform `u` in (0, 1]; at least once.
fn repeats(b: f64, u: f64) -> usize {
    // The conversion saturates.
    ((b / u.powf(1.0 / PARETO_A)).ceil() as usize).max(1)
}

fn zipf(
    prefixes: &[Ipv4Net],
    flows: usize,
    exponent: f64,
    packets: usize,
    rng: &mut SmallRng,
) -> Result<Vec<Header>, TraceError> {
    if flows == 0 || flows > MAX_FLOWS {
        return Err(TraceError::Flows(flows));
    }
    if !exponent.is_finite() || exponent < 0.0 {
        return Err(TraceError::Exponent(exponent));
    }
    let set: Vec<Header> = (0..flows).map(|_| draw_header(prefixes, rng)).collect();
    let weights = (1..=flows).map(|rank| (rank as f64).powf(-exponent));
    let ranks = WeightedIndex::new(weights).map_err(|_| TraceError::Exponent(exponent))?;
    Ok((0..packets).map(|_| set[ranks.sample(rng)]).collect())
}

fn draw_header(prefixes: &[Ipv4Net], rng: &mut SmallRng) -> Header {
    let prefix = prefixes[rng.random_range(0..prefixes.len())];
    Header {
        source: address_within(SOURCES, rng),
        destination: address_within(prefix, rng),
        ports: (rng.random_range(1024..=u16::MAX), rng.random_range(1..1024)),
    }
}

const SOURCES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15);

/// An address of a prefix, all alike.
pub(crate) fn address_within(prefix: Ipv4Net, rng: &mut SmallRng) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(prefix.network()) | rng.random::<u32>() & u32::from(prefix.hostmask()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use etherparse::SlicedPacket;

    use super::*;

    fn prefixes() -> Vec<Ipv4Net> {
        (0..100u8).map(|i| Ipv4Net::new_assert([60, i, 0, 0].into(), 16 + i % 17).trunc()).collect()
    }

    fn spec(packets: usize, model: Model) -> TraceSpec {
        TraceSpec { packets, model, payload: 18, seed: 5 }
    }

    /// The lengths of the rows of equal headers.
    fn rows(locality: Locality, packets: usize) -> Vec<usize> {
        let headers = headers(&prefixes(), &spec(packets, Model::Pareto(locality))).unwrap();
        assert_eq!(headers.len(), packets);
        headers.chunk_by(|a, b| a == b).map(<[Header]>::len).collect()
    }

    #[test]
    fn repeats_follow_the_formula() {
        assert_eq!(repeats(0.0, 0.5), 1, "b = 0 means once");
        assert_eq!(repeats(1.0, 1.0), 1);
        assert_eq!(repeats(1.0, 0.5), 2);
        assert_eq!(repeats(1.0, 0.3), 4);
        assert_eq!(repeats(0.0001, 1.0), 1);
        assert_eq!(repeats(0.0001, 0.00005), 2);
        assert_eq!(repeats(1.0, f64::MIN_POSITIVE), usize::MAX, "saturates");
    }

    #[test]
    fn without_locality_every_header_comes_once() {
        assert!(rows(Locality::None, 50_000).iter().all(|row| *row == 1));
    }

    #[test]
    fn low_locality_repeats_one_header_in_ten_thousand() {
        let rows = rows(Locality::Low, 1_000_000);
        let repeated = rows.iter().filter(|row| **row > 1).count();
        // Expected: 100, standard deviation 10.
        assert!((50..150).contains(&repeated), "{repeated}");
    }

    #[test]
    fn high_locality_is_a_pareto_distribution() {
        let rows = rows(Locality::High, 2_000_000);
        let share = |n: usize| rows.iter().filter(|row| **row > n).count() as f64 / rows.len() as f64;
        // P(ceil(1/u) > n) = P(u < 1/n) = 1/n.
        for n in [2, 4, 10, 50] {
            let expected = 1.0 / n as f64;
            assert!((share(n) - expected).abs() < 0.1 * expected, "{n}: {}", share(n));
        }
    }

    #[test]
    fn prefixes_and_addresses_are_drawn_uniformly() {
        let prefixes =
            [Ipv4Net::new_assert([60, 0, 0, 0].into(), 8), Ipv4Net::new_assert([70, 0, 0, 1].into(), 32)];
        let headers = headers(&prefixes, &spec(100_000, Model::Pareto(Locality::None))).unwrap();
        let host = headers.iter().filter(|h| h.destination == prefixes[1].addr()).count();
        assert!((48_500..51_500).contains(&host), "half of the packets, whatever a prefix's size: {host}");
        let mut quarters = [0; 4];
        for header in headers.iter().filter(|h| prefixes[0].contains(&h.destination)) {
            quarters[usize::from(header.destination.octets()[1] >> 6)] += 1;
        }
        assert!(quarters.iter().all(|q| (11_500..13_500).contains(q)), "{quarters:?}");
    }

    #[test]
    fn zipf_flows_have_the_weight_of_their_rank() {
        let model = Model::Zipf { flows: 100, exponent: 1.0 };
        let headers = headers(&prefixes(), &spec(200_000, model)).unwrap();
        let mut counts: HashMap<Header, f64> = HashMap::new();
        headers.iter().for_each(|header| *counts.entry(*header).or_default() += 1.0);
        assert!(counts.len() <= 100);
        let mut counts: Vec<f64> = counts.into_values().collect();
        counts.sort_by(|a, b| b.total_cmp(a));
        let harmonic: f64 = (1..=100).map(|k| 1.0 / f64::from(k)).sum();
        for rank in [1, 2, 3, 10] {
            let expected = 200_000.0 / harmonic / rank as f64;
            assert!((counts[rank - 1] - expected).abs() < 0.1 * expected, "{rank}: {}", counts[rank - 1]);
        }
    }

    #[test]
    fn frames_carry_their_headers() {
        let prefixes = prefixes();
        for model in [Model::Pareto(Locality::High), Model::Zipf { flows: 10, exponent: 0.5 }] {
            let spec = spec(500, model);
            let headers = headers(&prefixes, &spec).unwrap();
            let frames = trace(&prefixes, &spec).unwrap();
            assert_eq!(frames.len(), 500);
            for (frame, header) in frames.iter().zip(headers) {
                let parsed = SlicedPacket::from_ethernet(frame).unwrap();
                let Some(etherparse::NetSlice::Ipv4(ip)) = parsed.net else { panic!("not IPv4") };
                assert_eq!(ip.header().destination_addr(), header.destination);
                assert_eq!(ip.header().source_addr(), header.source);
                assert!(prefixes.iter().any(|prefix| prefix.contains(&header.destination)));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let pareto = spec(1, Model::Pareto(Locality::None));
        assert_eq!(headers(&[], &pareto), Err(TraceError::NoPrefixes));
        assert_eq!(headers(&prefixes(), &TraceSpec { packets: 0, ..pareto }), Ok(vec![]));
        let zipf = |flows, exponent| headers(&prefixes(), &spec(1, Model::Zipf { flows, exponent }));
        assert_eq!(zipf(0, 1.0), Err(TraceError::Flows(0)));
        assert_eq!(zipf(1, -1.0), Err(TraceError::Exponent(-1.0)));
        assert!(matches!(zipf(1, f64::NAN), Err(TraceError::Exponent(_))));
        let long = TraceSpec { payload: 70_000, ..pareto };
        assert!(matches!(trace(&prefixes(), &long), Err(TraceError::Packet(_))));
    }
}
