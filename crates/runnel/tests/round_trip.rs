//! Lifted and lowered again without any transformation: the kernel takes the program, and it does the same.

mod checker_support;

use checker_support::programs::{
    CALLING, MOVING, REDIRECTING, VARYING, calling, moving, object, redirecting, varying,
};
use checker_support::{Object, Pair, contents};
use router_ctl::Tables;
use runnel::xdp::check::Finished;
use runnel_bpf::maps_json::MapContents;
use runnel_testkit::packet::Frame;
use runnel_testkit::router::{every_branch, sample_tables};
use runnel_testkit::trace::{Locality, Model, TraceSpec, trace};

fn survives(object: &Object, program: &str, contents: &MapContents, packets: &[Vec<u8>]) -> Finished {
    let pair = Pair::new(object, program, contents);
    let finished = pair.compare_round_trip(packets);
    assert!(finished.report.agrees(), "{program}:\n{}", finished.report);
    finished
}

#[test]
fn the_router_survives_on_every_branch() {
    let tables = sample_tables(1);
    let packets: Vec<Vec<u8>> =
        every_branch(&tables).unwrap().cases.into_iter().map(|case| case.packet).collect();
    let finished = survives(&Object::router(), "router", &contents(&tables), &packets);
    assert_eq!(finished.report.verdicts.len(), 5, "every verdict: {:?}", finished.report.verdicts);
}

#[test]
fn the_router_survives_traffic() {
    let prefixes = runnel_testkit::routes::generate(500, 1).unwrap();
    let tables = Tables::spread(&prefixes, 16, 4).unwrap();
    let spec = TraceSpec { packets: 5000, model: Model::Pareto(Locality::None), payload: 18, seed: 1 };
    let packets = trace(&prefixes, &spec).unwrap();
    let finished = survives(&Object::router(), "router", &contents(&tables), &packets);
    assert!(finished.report.verdicts[&3] > 4000, "{:?}", finished.report.verdicts);
}

#[test]
fn programs_of_other_kinds_survive() {
    let frame = |i: usize| Frame { ttl: i as u8, payload: i % 300, ..Frame::to([10, 0, 0, i as u8].into()) };
    let packets: Vec<Vec<u8>> = (0..500).map(|i| frame(i).build().unwrap()).collect();
    survives(&object(VARYING), "varying", &varying(), &packets);
    survives(&object(MOVING), "moving", &moving(), &packets);
    survives(&object(REDIRECTING), "redirecting", &redirecting(), &packets);
    survives(&object(CALLING), "calling", &calling(), &packets);
}
