//! The checker against a model that tries every moment for every update and every read.

use std::collections::HashSet;

use proptest::prelude::*;
use router_ctl::{Mac, RouteValue};
use runnel_lab::checker::Verdict;
use runnel_lab::traffic::{Fate, Packet};
use runnel_lab::update::{Change, Update};

use crate::world::{checker, hop, judge, mac, packet, prefix, sent, update, via};

/// A case: what the tables hold at first, updates in whole units of time, and a packet's interval.
#[derive(Clone, Debug)]
struct Case {
    routes: [Option<RouteValue>; 3],
    neighbours: [Option<u8>; 3],
    updates: Vec<Move>,
    started: u64,
    ended: u64,
}

#[derive(Clone, Copy, Debug)]
struct Move {
    begun: u64,
    ended: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Route(usize, Option<RouteValue>),
    Neighbour(usize, Option<u8>),
}

impl Move {
    fn update(&self) -> Update {
        let change = match self.what {
            What::Route(i, value) => Change::Route(prefix(i), value),
            What::Neighbour(i, version) => Change::Neighbour(hop(i), version.map(|v| mac(i, v))),
        };
        update(self.begun, self.ended, change)
    }
}

fn route() -> impl Strategy<Value = Option<RouteValue>> {
    proptest::option::of((0..3usize, 0..2u32).prop_map(|(i, port)| via(i, port)))
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        (0..3usize, route()).prop_map(|(i, value)| What::Route(i, value)),
        (0..3usize, proptest::option::of(1..4u8)).prop_map(|(i, version)| What::Neighbour(i, version)),
    ]
}

/// Updates with short gaps, one after the other, beginning at time 3.
fn moves(count: usize) -> impl Strategy<Value = Vec<Move>> {
    proptest::collection::vec((1..4u64, 0..3u64, what()), 0..=count).prop_map(|steps| {
        let mut at = 2;
        let step = |(gap, length, what)| {
            let begun = at + gap;
            at = begun + length;
            Move { begun, ended: at, what }
        };
        steps.into_iter().map(step).collect()
    })
}

fn case() -> impl Strategy<Value = Case> {
    let routes = [route(), route(), route()];
    let neighbours = [(); 3].map(|()| proptest::option::of(Just(0u8)));
    (routes, neighbours, moves(3), 1..14u64, 0..5u64).prop_map(
        |(routes, neighbours, updates, started, length)| Case {
            routes,
            neighbours,
            updates,
            started,
            ended: started + length,
        },
    )
}

/// Values of one entry in their order, each with the moment from which it holds.
type Timeline<V> = Vec<(u64, Option<V>)>;

/// What a read at `time` may give: at the moment of an update, either value.
fn read<V: Copy>(timeline: &Timeline<V>, time: u64) -> impl Iterator<Item = Option<V>> + '_ {
    timeline.iter().enumerate().filter_map(move |(i, (from, value))| {
        let until = timeline.get(i + 1).map_or(u64::MAX, |next| next.0);
        (*from <= time && time <= until).then_some(*value)
    })
}

/// All outcomes that the original can show, by trying every moment of every update and every read.
fn possible(case: &Case) -> HashSet<Option<(u32, Mac)>> {
    let mut outcomes = HashSet::new();
    let mut taken: Vec<u64> = case.updates.iter().map(|m| m.begun).collect();
    loop {
        let mut routes: [Timeline<RouteValue>; 3] = case.routes.map(|value| vec![(0, value)]);
        let mut neighbours: [Timeline<Mac>; 3] =
            std::array::from_fn(|i| vec![(0, case.neighbours[i].map(|v| mac(i, v)))]);
        for (step, at) in case.updates.iter().zip(&taken) {
            match step.what {
                What::Route(i, value) => routes[i].push((*at, value)),
                What::Neighbour(i, version) => neighbours[i].push((*at, version.map(|v| mac(i, v)))),
            }
        }
        walk(case, &routes, &neighbours, 0, case.started, &mut outcomes);
        // The next combination of moments.
        let Some(next) = (0..taken.len()).find(|&i| taken[i] < case.updates[i].ended) else {
            return outcomes;
        };
        taken[next] += 1;
        (0..next).for_each(|i| taken[i] = case.updates[i].begun);
    }
}

/// Looks at prefix `i` at every moment, then, if it is missing, at the shorter ones; `after` is the latest look so far.
fn walk(
    case: &Case,
    routes: &[Timeline<RouteValue>; 3],
    neighbours: &[Timeline<Mac>; 3],
    i: usize,
    after: u64,
    outcomes: &mut HashSet<Option<(u32, Mac)>>,
) {
    if i == routes.len() {
        outcomes.insert(None);
        return;
    }
    for looked in case.started..=case.ended {
        for found in read(&routes[i], looked) {
            let after = after.max(looked);
            let Some(value) = found else {
                walk(case, routes, neighbours, i + 1, after, outcomes);
                continue;
            };
            let hop_index = (0..3).find(|&i| hop(i) == value.next_hop).unwrap();
            for asked in after..=case.ended {
                outcomes
                    .extend(read(&neighbours[hop_index], asked).map(|mac| mac.map(|mac| (value.port, mac))));
            }
        }
    }
}

fn all_outcomes() -> impl Iterator<Item = Option<(u32, Mac)>> {
    let macs = (0..3).flat_map(|i| (0..4).map(move |version| mac(i, version)));
    macs.flat_map(|mac| [Some((0, mac)), Some((1, mac))]).chain([None])
}

fn fate(outcome: Option<(u32, Mac)>) -> Fate {
    outcome.map_or(Fate::Passed, |(port, mac)| sent(port, mac))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn right_is_what_some_interleaving_shows(case in case()) {
        let possible = possible(&case);
        let updates: Vec<Update> = case.updates.iter().map(Move::update).collect();
        for outcome in all_outcomes() {
            let packet = packet(case.started, case.ended, fate(outcome));
            let verdict = judge(checker(case.routes, case.neighbours), &updates, &packet);
            prop_assert_eq!(verdict == Verdict::Right, possible.contains(&outcome), "{:?}: {:?}", outcome, verdict);
        }
    }

    #[test]
    fn what_is_forgotten_would_not_have_mattered(
        case in case(),
        updates in moves(40),
        packets in proptest::collection::vec((0..4u64, 0..8u64, 0..25usize), 1..80),
    ) {
        let updates: Vec<Update> = updates.iter().map(Move::update).collect();
        let outcomes: Vec<_> = all_outcomes().collect();
        let mut started = 0;
        let packets: Vec<Packet> = packets.into_iter().map(|(gap, length, outcome)| {
            started += gap;
            packet(started, started + length, fate(outcomes[outcome]))
        }).collect();
        // One checker sees all packets, and hears of updates as late as it may.
        let mut long_lived = checker(case.routes, case.neighbours);
        let mut told = 0;
        for packet in &packets {
            while told < updates.len() && updates[told].begun <= packet.ended + crate::world::UNIT {
                long_lived.update(&updates[told]);
                told += 1;
            }
            let fresh = judge(checker(case.routes, case.neighbours), &updates, packet);
            prop_assert_eq!(long_lived.judge(packet), fresh, "{:?}", packet);
        }
    }
}
