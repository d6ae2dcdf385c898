//! What a lab run starts from: tables, destinations, frames and patterns of traffic, all made from a seed.
//!
//! Two processes with the same settings make the same scene, so that nothing of it has to be handed over.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use router_ctl::{Mac, RouteValue, Tables};
use runnel_testkit::packet::{ETHERNET_HEADER, Frame, IPV4_HEADER, UDP_HEADER};
use runnel_testkit::routes;
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result};
use crate::plan;
use crate::testbed::{ROUTER_MAC, TESTER_MAC};
use crate::traffic::{FRAME, MAX_FRAMES, PATTERN_PERIOD};
use crate::update::Change;

/// Destinations that the hot pattern sends to.
const HOT: usize = 32;

/// How large a scene is, and its seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SceneSpec {
    /// Routes, 1 to 8192.
    pub routes: usize,
    /// Decides everything else.
    pub seed: u64,
}

/// Patterns of traffic, by their place in [`Scene::patterns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All destinations alike.
    Uniform,
    /// A few destinations.
    Hot,
    /// All destinations, the *n*-th with a weight of 1/*n*.
    Zipf,
}

impl Pattern {
    /// All of them, in the order of their places.
    pub const ALL: [Pattern; 3] = [Pattern::Uniform, Pattern::Hot, Pattern::Zipf];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Uniform => "uniform",
            Pattern::Hot => "hot set",
            Pattern::Zipf => "Zipf",
        }
    }
}

/// What a lab run starts from.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What the router's tables hold at first.
    pub tables: Tables,
    /// One destination within each prefix.
    pub destinations: Vec<Ipv4Addr>,
    /// Those of the hot pattern.
    pub hot: Vec<Ipv4Addr>,
    /// A frame to each destination.
    pub frames: Vec<[u8; FRAME]>,
    /// Indices of frames, for each [`Pattern`].
    pub patterns: Vec<Vec<u16>>,
}

/// A change that sends the packets of a frame to another neighbour.
#[derive(Clone, Copy, Debug)]
pub struct Reroute {
    /// The frame, one of the hot pattern's.
    pub frame: u16,
    /// The change of the frame's route.
    pub change: Change,
    /// Address of the neighbour that the packets go to from then on.
    pub to: Mac,
}

impl Scene {
    /// Makes a scene. Errors: sizes that cannot be.
    pub fn new(spec: SceneSpec) -> Result<Scene> {
        if spec.routes == 0 || spec.routes > MAX_FRAMES {
            return Err(LabError::Traffic(format!("{} routes; there can be 1 to {MAX_FRAMES}", spec.routes)));
        }
        let mut rng = SmallRng::seed_from_u64(spec.seed);
        let prefixes =
            routes::generate(spec.routes, spec.seed).map_err(|e| LabError::Traffic(e.to_string()))?;
        let destinations: Vec<Ipv4Addr> = prefixes.iter().map(|p| address_within(*p, &mut rng)).collect();
        let frames = destinations.iter().map(|addr| frame(*addr)).collect::<Result<_>>()?;
        let any = |rng: &mut SmallRng| rng.random_range(0..destinations.len()) as u16;
        let hot: Vec<u16> = (0..HOT).map(|_| any(&mut rng)).collect();
        let uniform = (0..PATTERN_PERIOD).map(|_| any(&mut rng)).collect();
        let weights = (1..=destinations.len()).map(|rank| 1.0 / rank as f64);
        let ranks = WeightedIndex::new(weights).map_err(|e| LabError::Traffic(e.to_string()))?;
        let order: Vec<u16> = (0..destinations.len()).map(|_| any(&mut rng)).collect();
        let zipf = (0..PATTERN_PERIOD).map(|_| order[ranks.sample(&mut rng)]).collect();
        Ok(Scene {
            tables: plan::tables(&prefixes)?,
            hot: hot.iter().map(|i| destinations[usize::from(*i)]).collect(),
            destinations,
            frames,
            patterns: vec![uniform, hot, zipf],
        })
    }

    /// Leads the packets to a hot destination to another neighbour, never to the first one; nothing if there is no
    /// other.
    pub fn reroute(&self) -> Option<Reroute> {
        let addr = *self.hot.first()?;
        let frame = self.destinations.iter().position(|d| *d == addr)? as u16;
        let routes = self.tables.routes.iter().filter(|(key, _)| key.prefix().contains(&addr));
        let (key, route) = routes.max_by_key(|(key, _)| key.prefix().prefix_len())?;
        let mut others = self.tables.neighbours.iter().skip(1);
        let (next_hop, neighbour) = others.find(|(next_hop, _)| *next_hop != route.next_hop)?;
        let value = RouteValue { next_hop: *next_hop, port: route.port };
        Some(Reroute { frame, change: Change::Route(key.prefix(), Some(value)), to: neighbour.mac })
    }
}

/// A unicast address of the prefix that routers forward to, if it has any; all alike.
fn address_within(prefix: Ipv4Net, rng: &mut SmallRng) -> Ipv4Addr {
    let draw = |rng: &mut SmallRng| {
        Ipv4Addr::from(u32::from(prefix.network()) | rng.random::<u32>() & u32::from(prefix.hostmask()))
    };
    // Only the default route has addresses of another kind, a sixth of them.
    let is_forwarded = |addr: &Ipv4Addr| !matches!(addr.octets()[0], 0 | 127 | 224..);
    let mut addrs = std::iter::repeat_with(|| draw(rng)).take(100);
    addrs.find(is_forwarded).unwrap_or(prefix.network())
}

fn frame(destination: Ipv4Addr) -> Result<[u8; FRAME]> {
    let spec = Frame {
        macs: (TESTER_MAC, ROUTER_MAC),
        payload: FRAME - ETHERNET_HEADER - IPV4_HEADER - UDP_HEADER,
        ..Frame::to(destination)
    };
    let bytes = spec.build().map_err(|e| LabError::Traffic(e.to_string()))?;
    let mut frame: [u8; FRAME] =
        bytes.try_into().map_err(|_| LabError::Traffic(format!("a frame has not {FRAME} bytes")))?;
    // No UDP checksum: the generator writes into the payload.
    let checksum = ETHERNET_HEADER + IPV4_HEADER + 6;
    frame[checksum..checksum + 2].fill(0);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_within_their_prefixes_and_patterns_name_frames() {
        let scene = Scene::new(SceneSpec { routes: 500, seed: 4 }).unwrap();
        assert_eq!((scene.destinations.len(), scene.frames.len()), (500, 500));
        for ((key, _), addr) in scene.tables.routes.iter().zip(&scene.destinations) {
            assert!(key.prefix().contains(addr) && !matches!(addr.octets()[0], 0 | 127 | 224..));
        }
        assert_eq!(scene.patterns.len(), Pattern::ALL.len());
        assert!(scene.patterns.iter().flatten().all(|i| *i < 500));
        assert_eq!(scene.hot.len(), HOT);
    }

    #[test]
    fn the_spec_decides() {
        let spec = SceneSpec { routes: 100, seed: 4 };
        assert_eq!(Scene::new(spec).unwrap().frames, Scene::new(spec).unwrap().frames);
        assert!(Scene::new(SceneSpec { routes: 0, ..spec }).is_err());
        assert!(Scene::new(SceneSpec { routes: MAX_FRAMES + 1, ..spec }).is_err());
    }
}
