//! Packets that reach every branch of the router are generated, not hoped for.

mod checker_support;

use checker_support::{Object, Pair, contents};
use router_ctl::{Port, RouteKey, RouteValue};
use runnel::xdp::reach::{Impossible, Reach};
use runnel_ir::{EntityRef, Table};
use runnel_testkit::packet::Frame;
use runnel_testkit::router::{every_branch, sample_tables};

#[test]
fn every_branch_that_packets_can_reach_is_reached() {
    let mut tables = sample_tables(1);
    let mut packets: Vec<Vec<u8>> =
        every_branch(&tables).unwrap().cases.into_iter().map(|case| case.packet).collect();
    // A port beyond the end of the counters.
    let (_, port) = tables.ports[0];
    tables.ports.push((6, Port { tx_index: 300, ..port }));
    let route = RouteValue { next_hop: [192, 168, 1, 1].into(), port: 6 };
    tables.routes.push((RouteKey::from("20.6.0.0/16".parse::<ipnet::Ipv4Net>().unwrap()), route));
    packets.push(Frame::to([20, 6, 0, 1].into()).build().unwrap());
    let pair = Pair::new(&Object::router(), "router", &contents(&tables));
    let before = pair.a.snapshot().unwrap();
    let finished = pair.compare(&pair.version(|_| ()), |_| (), &packets);
    let run = finished.original.expect("the interpreter knows all that the router calls");
    let spec = &pair.a.original().unwrap().spec;
    let named = |name: &str| Table::new(spec.maps.iter().position(|m| m.name == name).unwrap());
    let asked = ["routes", "ports", "neighbours", "local_addrs"].map(named);
    let reach = Reach::new(&pair.plan.ir, spec, &[&run], &asked, &before);

    assert_eq!(reach.branches.total - reach.branches.reached, reach.unreached.len() as u64);
    let possible: Vec<String> = reach
        .unreached
        .iter()
        .filter(|u| u.impossible.is_none())
        .map(|u| format!("{:?} {}", u.insn, u.text))
        .collect();
    // What is left of the shape that clang 19 gives the program: a second test for the limited broadcast as source,
    // behind the one for all of class E; and a bound on a loop that ends before it.
    assert!(possible.len() <= 2, "{possible:#?}");
    let because = |why| reach.unreached.iter().any(|u| u.impossible == Some(why));
    assert!(because(Impossible::NoElement) && because(Impossible::NoHeader) && because(Impossible::Behind));

    for table in &reach.tables {
        let of = format!("{}: {} of {}", table.table, table.entries.reached, table.entries.total);
        assert!(table.entries.reached > 0 && table.entries.reached <= table.entries.total, "{of}");
    }
    assert_eq!(
        reach.entries().total,
        (tables.routes.len() + tables.ports.len() + tables.neighbours.len() + 2) as u64
    );
}
