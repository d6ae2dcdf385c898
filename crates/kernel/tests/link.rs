//! XDP links and network namespaces against the real kernel. Needs root.

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{SCHED_CLS, XDP, returns, unique};
use runnel_kernel::Error;
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::link::{LinkError, Mode, XdpLink, ifindex};
use runnel_kernel::netns::{Netns, ParkedVeth};
use runnel_kernel::program::Program;

const DROP: i32 = 1;
const PASS: i32 = 2;

fn xdp(verdict: i32) -> Program {
    Program::load(&returns(XDP, verdict), &[]).expect("loading").0
}

#[test]
fn a_link_attaches_replaces_and_detaches() {
    let netns = Netns::new().expect("a namespace");
    let pair = netns.veth("a", &netns, "b").expect("a pair");
    let (old, new) = (xdp(DROP), xdp(PASS));
    let link = pair.near().attach(&old, Mode::Native).expect("attaching");
    let info = link.info().expect("info");
    assert_eq!((info.program_id, info.ifindex), (old.id(), pair.near().ifindex()));

    link.update(&new, Some(&old)).expect("replacing the expected program");
    assert_eq!(link.info().expect("info").program_id, new.id());
    let error = link.update(&old, Some(&old)).expect_err("it runs the new one");
    assert!(matches!(error, Error::Link(LinkError::NotTheExpectedProgram { .. })), "{error}");
    assert_eq!(link.info().expect("info").program_id, new.id(), "and stays");
    link.update(&old, None).expect("replacing whatever is there");

    let again = XdpLink::from_id(link.id()).expect("by id");
    again.detach().expect("detaching");
    assert_eq!(link.info().expect("info").ifindex, 0);
    assert!(matches!(link.update(&new, None), Err(Error::Link(LinkError::Detached { .. }))));
}

#[test]
fn errors_say_what_to_do() {
    let netns = Netns::new().expect("a namespace");
    let pair = netns.veth("a", &netns, "b").expect("a pair");
    let program = xdp(PASS);
    let no_such = netns.run(|| ifindex("nothere")).expect("running").unwrap_err();
    assert!(matches!(no_such, Error::Link(LinkError::NoSuchInterface { .. })), "{no_such}");
    let no_such = netns.run(|| XdpLink::create(&program, 9999, Mode::Native)).expect("running").unwrap_err();
    assert!(matches!(no_such, Error::Link(LinkError::NoSuchInterface { .. })), "{no_such}");
    // The loopback driver has no XDP of its own.
    let not_native = netns.run(|| XdpLink::create(&program, 1, Mode::Native)).expect("running").unwrap_err();
    assert!(not_native.to_string().contains("--mode generic"), "{not_native}");
    let _generic =
        netns.run(|| XdpLink::create(&program, 1, Mode::Generic)).expect("running").expect("attaching");
    let _first = pair.near().attach(&program, Mode::Native).expect("attaching");
    let busy = pair.near().attach(&program, Mode::Native).unwrap_err();
    assert!(matches!(busy, Error::Link(LinkError::Busy { .. })), "{busy}");
    let wrong = Program::load(&returns(SCHED_CLS, 0), &[]).expect("loading").0;
    assert!(pair.far().attach(&wrong, Mode::Native).is_err());
}

#[test]
fn a_pinned_link_outlives_its_handle_and_an_unpinned_one_does_not() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    let netns = Netns::new().expect("a namespace");
    let pair = netns.veth("a", &netns, "b").expect("a pair");
    let program = xdp(PASS);
    drop(pair.near().attach(&program, Mode::Native).expect("attaching"));
    let link = pair.near().attach(&program, Mode::Native).expect("the hook is empty again");
    let pin = bpffs.path().join("link");
    link.pin(&pin).expect("pinning");
    drop(link);
    let link = XdpLink::from_pin(&pin).expect("by pin");
    assert_eq!(link.info().expect("info").program_id, program.id());
    // A pin of something else is not taken for a link.
    program.pin(&bpffs.path().join("program")).expect("pinning");
    assert!(XdpLink::from_pin(&bpffs.path().join("program")).is_err());
    link.detach().expect("detaching");
}

#[test]
fn a_link_knows_when_its_interface_is_gone() {
    let netns = Netns::new().expect("a namespace");
    let pair = netns.veth("a", &netns, "b").expect("a pair");
    let link = pair.near().attach(&xdp(PASS), Mode::Native).expect("attaching");
    drop(pair);
    assert_eq!(link.info().expect("info").ifindex, 0);
}

#[test]
fn a_drop_program_stops_the_ping_and_a_pass_program_lets_it_through() {
    let (left, right) = (Netns::new().expect("a namespace"), Netns::new().expect("a namespace"));
    let pair = left.veth("left", &right, "right").expect("a pair");
    pair.near().set_mac([2, 0, 0, 0, 0, 1]).expect("a hardware address");
    assert_eq!(pair.near().mac().expect("reading it back"), [2, 0, 0, 0, 0, 1]);
    pair.near().add_address("10.9.0.1/24").expect("an address");
    pair.far().add_address("10.9.0.2/24").expect("an address");
    let talk = || {
        // A UDP datagram each way, by a thread in each namespace.
        left.run(|| {
            let socket = std::net::UdpSocket::bind("10.9.0.1:5000").expect("binding");
            right
                .run(|| {
                    std::net::UdpSocket::bind("10.9.0.2:5001")
                        .expect("binding")
                        .send_to(b"x", "10.9.0.1:5000")
                })
                .expect("running")
                .expect("sending");
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
            socket.recv_from(&mut [0; 8]).is_ok()
        })
        .expect("running")
    };
    // The first datagram may wait for neighbour discovery; try until it works.
    let started = Instant::now();
    while !talk() {
        assert!(started.elapsed() < Duration::from_secs(20), "the pair never carried a packet");
    }
    let link = pair.near().attach(&xdp(DROP), Mode::Native).expect("attaching");
    assert!(!talk(), "everything is dropped");
    link.update(&xdp(PASS), None).expect("replacing");
    assert!(talk(), "everything passes");
}

#[test]
fn named_namespaces_are_known_to_ip_and_vanish_on_drop() {
    let name = unique("runnel");
    let netns = Netns::named(&name).expect("a namespace");
    let path = std::path::Path::new("/run/netns").join(&name);
    assert!(path.exists());
    assert!(netns.command("true").stdout(Stdio::null()).status().expect("running").success());
    assert!(Netns::named(&name).is_err(), "the name is taken");
    assert!(path.exists(), "and the failed attempt leaves it alone");
    drop(netns);
    assert!(!path.exists());
    assert!(Netns::named("a/b").is_err());
}

#[test]
fn what_ip_complains_about_is_in_the_error() {
    let netns = Netns::new().expect("a namespace");
    let error = netns.ip(&["link", "set", "dev", "nothere", "up"]).unwrap_err();
    assert!(error.to_string().contains("nothere"), "{error}");
}

#[test]
fn two_programs_can_be_parked_and_a_third_cannot() {
    let parked = ParkedVeth::new().expect("a parked pair");
    let programs = [xdp(PASS), xdp(DROP)];
    let first = parked.park(0, &programs[0]).expect("parking");
    let _second = parked.park(1, &programs[1]).expect("parking");
    assert!(matches!(parked.park(0, &programs[1]), Err(Error::Link(LinkError::Busy { .. }))));
    assert!(parked.park(2, &programs[1]).is_err());
    // Not by dropping it: whoever lists the links of the machine at that moment holds it a little longer.
    first.detach().expect("detaching");
    parked.park(0, &programs[1]).expect("the place is free again");
}
