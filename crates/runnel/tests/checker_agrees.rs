//! Without a fault, original and optimized program do the same, and the interpreter agrees with both.

mod checker_support;

use checker_support::{Object, Pair, contents};
use runnel::xdp::check::{Finished, Interpreted};
use runnel_testkit::router::{every_branch, sample_tables};

#[test]
fn the_router_agrees_with_itself_on_every_branch() {
    let tables = sample_tables(1);
    let set = every_branch(&tables).unwrap();
    let packets: Vec<Vec<u8>> = set.cases.into_iter().map(|case| case.packet).collect();
    let pair = Pair::new(&Object::router(), "router", &contents(&tables));
    let version = pair.version(|_| ());
    let Finished { report, original, specialized } = pair.compare(&version, |_| (), &packets);
    assert!(report.agrees(), "{report}");
    assert_eq!(report.packets, packets.len() as u64);
    assert_eq!(report.interpreted, [(); 2].map(|()| Interpreted::All(report.packets)));
    assert!(original.is_some() && specialized.is_some());
}
