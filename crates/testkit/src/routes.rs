//! Route tables as a backbone router has them.
//!
//! The shares of the prefix lengths are those of a full Internet table (RouteViews, November 2015), rounded.
//! As there, about half of the prefixes are more specific ones of shorter prefixes in the table, which is
//! what makes longest-prefix matching hard. Next hops are not generated: `router_ctl::Tables::spread` gives them.

use std::collections::HashSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Most routes that [`generate`] makes. Beyond, the space of the shorter lengths gets crowded, and the result
/// would resemble no real table.
pub const MAX_ROUTES: usize = 1 << 20;

/// Prefix length and its share of a full table, of 100,000.
const SHARES: [(u8, u32); 25] = [
    (8, 3),
    (9, 2),
    (10, 6),
    (11, 16),
    (12, 43),
    (13, 84),
    (14, 171),
    (15, 297),
    (16, 2167),
    (17, 1304),
    (18, 2184),
    (19, 4516),
    (20, 6518),
    (21, 6948),
    (22, 10779),
    (23, 9494),
    (24, 53443),
    (25, 191),
    (26, 162),
    (27, 150),
    (28, 179),
    (29, 296),
    (30, 369),
    (31, 11),
    (32, 667),
];

/// More routes were asked for than can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} routes are too many; ask for at most {MAX_ROUTES}")]
pub struct TooManyRoutes(pub usize);

/// Makes `count` different prefixes, sorted by address and length; the first is the default route.
pub fn generate(count: usize, seed: u64) -> Result<Vec<Ipv4Net>, TooManyRoutes> {
    if count > MAX_ROUTES {
        return Err(TooManyRoutes(count));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut prefixes: Vec<Ipv4Net> = Vec::with_capacity(count);
    let mut seen = HashSet::with_capacity(count);
    // Short ones first, so that each can be a more specific one of those before it.
    let mut lengths = draw_lengths(&mut rng, count - 1);
    lengths.sort_unstable();
    for same_length in lengths.chunk_by(|a, b| a == b) {
        let shorter = prefixes.len();
        let length = same_length[0];
        while prefixes.len() < shorter + same_length.len() {
            let addr = draw_address(&mut rng, &prefixes[..shorter]);
            let prefix = truncated(addr, length);
            if seen.insert(prefix) {
                prefixes.push(prefix);
            }
        }
    }
    prefixes.push(Ipv4Net::default());
    prefixes.sort();
    Ok(prefixes)
}

/// `count` prefix lengths, as often as their shares say.
fn draw_lengths(rng: &mut SmallRng, count: usize) -> Vec<u8> {
    let shares =
        WeightedIndex::new(SHARES.map(|(_, share)| share)).expect("the shares are constants above 0");
    (0..count).map(|_| SHARES[shares.sample(rng)].0).collect()
}

/// An address anywhere in the unicast space or, every other time, within one of the `shorter` prefixes.
fn draw_address(rng: &mut SmallRng, shorter: &[Ipv4Net]) -> Ipv4Addr {
    if !shorter.is_empty() && rng.random_bool(0.5) {
        return crate::trace::address_within(shorter[rng.random_range(0..shorter.len())], rng);
    }
    loop {
        let addr = Ipv4Addr::from(rng.random::<u32>());
        // Not this network, not private, not loopback, not multicast, not reserved.
        if !matches!(addr.octets()[0], 0 | 10 | 127 | 224..) {
            return addr;
        }
    }
}

/// The prefix of this length that `addr` is in.
fn truncated(addr: Ipv4Addr, length: u8) -> Ipv4Net {
    // Lengths come from SHARES, none of which is beyond 32.
    Ipv4Net::new(addr, length).unwrap_or_default().trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_asked_for_and_all_differ() {
        for count in [0, 1, 2, 1000, 20_000] {
            let prefixes = generate(count, 1).unwrap();
            assert_eq!(prefixes.len(), count);
            assert!(prefixes.windows(2).all(|two| two[0] < two[1]), "sorted, each once");
            assert!(prefixes.iter().all(|prefix| prefix.trunc() == *prefix));
        }
        assert_eq!(generate(MAX_ROUTES + 1, 1), Err(TooManyRoutes(MAX_ROUTES + 1)));
    }

    #[test]
    fn lengths_are_those_of_a_backbone() {
        let prefixes = generate(50_000, 2).unwrap();
        assert_eq!(prefixes.iter().filter(|p| p.prefix_len() == 0).count(), 1);
        let share = |lengths: std::ops::RangeInclusive<u8>| {
            let count = prefixes.iter().filter(|p| lengths.contains(&p.prefix_len())).count();
            count as f64 / prefixes.len() as f64
        };
        assert!((0.52..0.55).contains(&share(24..=24)));
        assert!((0.42..0.45).contains(&share(16..=23)));
        assert!((0.004..0.009).contains(&share(32..=32)));
        assert!((0.003..0.010).contains(&share(1..=15)));
    }

    #[test]
    fn many_are_within_others() {
        let prefixes = generate(20_000, 3).unwrap();
        let all: HashSet<_> = prefixes.iter().copied().collect();
        let nested = prefixes
            .iter()
            .filter(|p| (1..p.prefix_len()).any(|length| all.contains(&truncated(p.addr(), length))))
            .count();
        assert!((8_000..16_000).contains(&nested), "{nested}");
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(generate(500, 9), generate(500, 9));
        assert_ne!(generate(500, 9), generate(500, 10));
    }
}
