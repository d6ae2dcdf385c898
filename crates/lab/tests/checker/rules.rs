//! Each kind of violation, next to the legal outcome that is most like it.

use Change::{Neighbour, Route};
use Verdict::{KernelRace, Lost, Right, Wrong};
use runnel_lab::checker::{CLOSE, SLACK, Verdict};
use runnel_lab::traffic::Fate::{self, Passed};
use runnel_lab::traffic::Packet;
use runnel_lab::update::{Change, Update};

use crate::world::{UNIT, checker, judge, mac, packet, prefix, sent, tables, update, via};

/// Routes: /16 by neighbour 0, /8 by neighbour 1. Neighbours 0 and 1 are there, 2 is not.
fn verdict(updates: &[Update], started: u64, ended: u64, fate: Fate) -> Verdict {
    let routes = [None, Some(via(0, 0)), Some(via(1, 1))];
    judge(checker(routes, [Some(0), Some(0), None]), updates, &packet(started, ended, fate))
}

#[test]
fn without_updates_there_is_one_outcome() {
    assert_eq!(verdict(&[], 10, 20, sent(0, mac(0, 0))), Right);
    for other in [Passed, sent(1, mac(0, 0)), sent(0, mac(1, 0)), sent(0, mac(0, 1)), sent(1, mac(1, 0))] {
        assert_eq!(verdict(&[], 10, 20, other), Wrong, "{other:?}");
    }
    assert_eq!(verdict(&[], 10, 20, Fate::Lost), Lost);
}

#[test]
fn a_route_is_the_old_one_until_its_update_began_and_the_new_one_from_its_return() {
    let change = [update(10, 12, Route(prefix(1), Some(via(1, 0))))];
    let (old, new) = (sent(0, mac(0, 0)), sent(0, mac(1, 0)));
    for (started, ended, old_is, new_is) in [
        (5, 9, Right, Wrong),
        (5, 11, Right, Right),
        (11, 11, Right, Right),
        (11, 20, Right, Right),
        (13, 20, Wrong, Right),
    ] {
        assert_eq!(verdict(&change, started, ended, old), old_is, "old, {started} to {ended}");
        assert_eq!(verdict(&change, started, ended, new), new_is, "new, {started} to {ended}");
    }
}

#[test]
fn a_packet_that_starts_just_after_the_return_must_see_the_new_route() {
    let change = [update(10, 12, Route(prefix(1), Some(via(1, 0))))];
    let mut late = packet(12, 13, sent(0, mac(0, 0)));
    late.started = 12 * UNIT + SLACK + 1;
    let routes = [None, Some(via(0, 0)), None];
    let judge = |packet: &Packet| judge(checker(routes, [Some(0), Some(0), None]), &change, packet);
    assert_eq!(judge(&late), Wrong);
    late.started = 12 * UNIT + SLACK;
    assert_eq!(judge(&late), Right, "clocks may differ by so much");
}

#[test]
fn a_withdrawn_route_gives_way_to_the_one_that_covers_it() {
    let withdrawn = [update(10, 12, Route(prefix(1), None))];
    assert_eq!(verdict(&withdrawn, 13, 14, sent(1, mac(1, 0))), Right);
    assert_eq!(verdict(&withdrawn, 13, 14, sent(0, mac(0, 0))), Wrong);
    assert_eq!(verdict(&withdrawn, 13, 14, Passed), Wrong, "there is a route");
    let both = [withdrawn[0], update(20, 22, Route(prefix(2), None))];
    assert_eq!(verdict(&both, 23, 24, Passed), Right);
    assert_eq!(verdict(&both, 23, 24, sent(1, mac(1, 0))), Wrong);
}

#[test]
fn an_added_longer_prefix_takes_over() {
    let added = [update(10, 12, Route(prefix(0), Some(via(1, 0))))];
    assert_eq!(verdict(&added, 13, 14, sent(0, mac(1, 0))), Right);
    assert_eq!(verdict(&added, 13, 14, sent(0, mac(0, 0))), Wrong);
    assert_eq!(verdict(&added, 11, 14, sent(0, mac(0, 0))), Right);
}

#[test]
fn a_neighbour_that_was_there_before_the_route_is_never_missed() {
    let neighbour_first = [
        update(10, 12, Neighbour(crate::world::hop(2), Some(mac(2, 0)))),
        update(13, 15, Route(prefix(1), Some(via(2, 1)))),
    ];
    for (started, ended) in [(5, 20), (11, 20), (14, 20), (16, 20)] {
        assert_eq!(verdict(&neighbour_first, started, ended, Passed), Wrong, "{started} to {ended}");
        assert_eq!(
            verdict(&neighbour_first, started, ended, sent(1, mac(2, 0))),
            Right,
            "{started} to {ended}"
        );
    }
    assert_eq!(verdict(&neighbour_first, 5, 12, sent(1, mac(2, 0))), Wrong, "the route had not begun");
    assert_eq!(verdict(&neighbour_first, 16, 20, sent(0, mac(0, 0))), Wrong);
}

#[test]
fn a_route_that_comes_before_its_neighbour_leads_to_the_stack_meanwhile() {
    let route_first = [
        update(10, 12, Route(prefix(1), Some(via(2, 1)))),
        update(13, 15, Neighbour(crate::world::hop(2), Some(mac(2, 0)))),
    ];
    assert_eq!(verdict(&route_first, 5, 11, Passed), Right);
    assert_eq!(verdict(&route_first, 13, 14, Passed), Right);
    assert_eq!(verdict(&route_first, 13, 14, sent(1, mac(2, 0))), Right);
    assert_eq!(verdict(&route_first, 16, 20, Passed), Wrong);
    assert_eq!(verdict(&route_first, 5, 9, Passed), Wrong);
}

#[test]
fn the_neighbour_is_read_after_the_route() {
    // The neighbour goes, then the route changes to it: nobody can read the new route and then the old neighbour.
    let updates = [
        update(10, 12, Neighbour(crate::world::hop(1), None)),
        update(13, 15, Route(prefix(1), Some(via(1, 0)))),
    ];
    assert_eq!(verdict(&updates, 5, 20, sent(0, mac(1, 0))), Wrong);
    assert_eq!(verdict(&updates, 5, 20, Passed), Right);
    // In the other order one can.
    let updates = [
        update(10, 12, Route(prefix(1), Some(via(1, 0)))),
        update(13, 15, Neighbour(crate::world::hop(1), None)),
    ];
    assert_eq!(verdict(&updates, 5, 20, sent(0, mac(1, 0))), Right);
}

#[test]
fn a_neighbour_that_moved_has_its_new_address() {
    let moved = [update(10, 12, Neighbour(crate::world::hop(0), Some(mac(0, 1))))];
    assert_eq!(verdict(&moved, 5, 9, sent(0, mac(0, 1))), Wrong);
    assert_eq!(verdict(&moved, 5, 11, sent(0, mac(0, 0))), Right);
    assert_eq!(verdict(&moved, 5, 11, sent(0, mac(0, 1))), Right);
    assert_eq!(verdict(&moved, 13, 20, sent(0, mac(0, 0))), Wrong);
}

#[test]
fn a_walk_down_the_trie_can_find_what_the_table_never_held() {
    // The longer prefix goes after the shorter one has changed. A walk that passed the shorter one before and the
    // longer one after finds the old shorter one, though at no moment it was the longest.
    let routes = [Some(via(1, 1)), Some(via(0, 0)), None];
    let updates = [update(10, 12, Route(prefix(1), Some(via(0, 1)))), update(13, 15, Route(prefix(0), None))];
    let verdict = |started, ended, fate| {
        judge(checker(routes, [Some(0), Some(0), None]), &updates, &packet(started, ended, fate))
    };
    assert_eq!(verdict(5, 20, sent(0, mac(0, 0))), Right);
    assert_eq!(verdict(5, 9, sent(0, mac(0, 0))), Wrong);
    assert_eq!(verdict(13, 20, sent(0, mac(0, 0))), Wrong);
}

#[test]
fn memory_of_a_replaced_neighbour_may_be_another_ones_by_the_time_it_is_read() {
    let moved = update(10, 12, Neighbour(crate::world::hop(0), Some(mac(0, 1))));
    let reused = update(13, 15, Neighbour(crate::world::hop(1), Some(mac(1, 1))));
    let both = [moved, reused];
    assert_eq!(verdict(&both, 5, 20, sent(0, mac(1, 1))), KernelRace);
    assert_eq!(verdict(&[reused], 5, 20, sent(0, mac(1, 1))), Wrong, "nothing was freed before");
    assert_eq!(verdict(&both, 13, 20, sent(0, mac(1, 1))), Wrong, "freed before the packet started");
    assert_eq!(verdict(&both, 5, 11, sent(0, mac(1, 1))), Wrong, "reused after the packet ended");
    let mut torn = mac(0, 0);
    torn.0[2..4].copy_from_slice(&mac(1, 1).0[2..4]);
    assert_eq!(verdict(&both, 5, 20, sent(0, torn)), KernelRace, "half read before, half after");
    torn.0[2] ^= 0x40;
    assert_eq!(verdict(&both, 5, 20, sent(0, torn)), Wrong);
}

#[test]
fn a_walk_through_a_bucket_can_miss_an_entry_while_it_is_replaced() {
    let moved = [update(10, 12, Neighbour(crate::world::hop(0), Some(mac(0, 1))))];
    assert_eq!(verdict(&moved, 5, 20, Passed), KernelRace);
    assert_eq!(verdict(&moved, 13, 20, Passed), Wrong);
    assert_eq!(verdict(&moved, 5, 9, Passed), Wrong);
}

#[test]
fn a_directly_connected_route_leads_to_the_destination_itself() {
    let connected = router_ctl::RouteValue { next_hop: std::net::Ipv4Addr::UNSPECIFIED, port: 0 };
    let mut tables = tables([None, Some(connected), None], [None; 3]);
    let itself = router_ctl::Neighbour::reachable(mac(9, 0));
    let judge = |tables: &router_ctl::Tables, fate| {
        let checker = runnel_lab::checker::Checker::new(tables, &[crate::world::DESTINATION]);
        crate::world::judge(checker, &[], &packet(1, 2, fate))
    };
    assert_eq!(judge(&tables, Passed), Right);
    tables.neighbours.push((crate::world::DESTINATION, itself));
    assert_eq!(judge(&tables, Passed), Wrong);
    assert_eq!(judge(&tables, sent(0, mac(9, 0))), Right);
}

#[test]
fn packets_close_behind_updates_are_counted() {
    let mut checker = checker([None, Some(via(0, 0)), None], [Some(0), Some(0), None]);
    checker.update(&update(10, 12, Route(prefix(1), Some(via(1, 0)))));
    checker.update(&update(1000, 1001, Neighbour(crate::world::hop(0), Some(mac(0, 1)))));
    let close = CLOSE / UNIT;
    let fate = sent(0, mac(1, 0));
    for started in [11, 12, 12 + close, 13 + close, 1001, 1001 + close, 1002 + close] {
        checker.judge(&packet(started, started + 1, fate));
    }
    let tally = checker.tally();
    assert_eq!((tally.packets, tally.updates, tally.close), (7, 2, 4));
    assert_eq!(tally.close_and_concerned, 2, "neighbour 0 is not this packet's any more");
}
