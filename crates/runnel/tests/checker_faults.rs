//! The checker is checked: every seeded fault is noticed, by the symptom that it must have, and nothing is noticed where
//! there is none.

mod checker_support;

use std::fmt;

use checker_support::{Object, Pair, contents};
use router_ctl::Tables;
use router_ctl::layout::{MapData, RouteKey, RouteValue, map};
use runnel::xdp::check::{Finished, Parties, Report};
use runnel::xdp::faults::{self, Base};
use runnel::xdp::version::Plan;
use runnel_bpf::insn::Insn;
use runnel_engine::specialize::Specialized;
use runnel_kernel::map::UpdateMode;
use runnel_testkit::packet::Frame;
use runnel_testkit::router::{every_branch, sample_tables};

/// Offsets in the Ethernet header and in the IPv4 header.
const DESTINATION_MAC: i32 = 0;
const SOURCE_MAC: i32 = 6;
const TTL: i32 = 8;
const CHECKSUM: i32 = 10;

/// By what a fault is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Symptom {
    Verdict,
    /// This byte of a packet, among others or alone.
    Byte(usize),
    Redirection,
    Map(&'static str),
}

impl Symptom {
    fn shows(self, report: &Report) -> bool {
        let mut packets = report.first.iter().filter(|d| d.parties == Parties::Kernel);
        match self {
            Symptom::Verdict => packets.any(|d| d.left.verdict != d.right.verdict),
            Symptom::Byte(at) => packets.any(|d| {
                d.left.verdict == d.right.verdict && d.left.packet.get(at) != d.right.packet.get(at)
            }),
            Symptom::Redirection => packets.any(|d| {
                d.left.verdict == d.right.verdict
                    && d.left.packet == d.right.packet
                    && d.left.destination != d.right.destination
            }),
            Symptom::Map(name) => report.first_maps.iter().any(|d| d.map == name),
        }
    }
}

/// Where a fault is seeded.
enum Seed {
    /// In the contents that the version is made for.
    Plan(fn(&mut Plan) -> bool),
    /// In the specialized IR and its data.
    Ir(fn(&mut Specialized) -> bool),
    /// In the bytecode.
    Code(fn(&mut Vec<Insn>) -> bool),
}

struct Fault {
    name: &'static str,
    seed: Seed,
    symptom: Symptom,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

fn key(prefix: &str) -> Vec<u8> {
    RouteKey::from(prefix.parse::<ipnet::Ipv4Net>().unwrap()).to_bytes()
}

/// The entry of a prefix in what a version is made for.
fn route<'p>(plan: &'p mut Plan, prefix: &str) -> &'p mut runnel_tables::Entry {
    let routes = faults::contents(plan, map::ROUTES).unwrap();
    routes.entries.iter_mut().find(|e| *e.key == key(prefix)).unwrap()
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "stale entry: a route's next hop is that of before a change",
        seed: Seed::Plan(|plan| {
            let stale = RouteValue { next_hop: [30, 1, 0, 77].into(), port: 1 };
            route(plan, "20.1.0.0/16").value = stale.to_bytes().into();
            true
        }),
        symptom: Symptom::Byte(2),
    },
    Fault {
        name: "missed entry: a neighbour was not read",
        seed: Seed::Plan(|plan| {
            let neighbours = faults::contents(plan, map::NEIGHBOURS).unwrap();
            let before = neighbours.entries.len();
            neighbours.entries.retain(|e| *e.key != [192, 168, 1, 1]);
            neighbours.entries.len() < before
        }),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "entry of another table: an address is taken for a local one",
        seed: Seed::Plan(|plan| {
            let locals = faults::contents(plan, map::LOCAL_ADDRS).unwrap();
            let extra = runnel_tables::Entry { key: [20, 1, 0, 1].into(), value: [1, 0, 0, 0].into() };
            locals.entries.push(extra);
            true
        }),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "off-by-one prefix: a /17 became a /18",
        seed: Seed::Plan(|plan| {
            let mut longer = key("20.0.128.0/17");
            longer[..4].copy_from_slice(&18u32.to_ne_bytes());
            route(plan, "20.0.128.0/17").key = longer.into();
            true
        }),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "wrong constant: the TTL is compared with 1 instead of 2",
        seed: Seed::Ir(|made| faults::change_compared(&mut made.program, 2, 1)),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "lost store: a byte of the destination's Ethernet address",
        seed: Seed::Ir(|made| faults::lose_store(&mut made.program, Base::Packet, DESTINATION_MAC + 4)),
        symptom: Symptom::Byte(4),
    },
    Fault {
        name: "swapped Ethernet addresses",
        seed: Seed::Ir(|made| faults::swap_stores(&mut made.program, DESTINATION_MAC, SOURCE_MAC, 6)),
        symptom: Symptom::Byte(1),
    },
    Fault {
        name: "TTL not decremented",
        seed: Seed::Ir(|made| faults::lose_store(&mut made.program, Base::Header, TTL)),
        symptom: Symptom::Byte(14 + TTL as usize),
    },
    Fault {
        name: "checksum off by one",
        seed: Seed::Ir(|made| faults::disturb_store(&mut made.program, Base::Header, CHECKSUM, 1)),
        symptom: Symptom::Byte(14 + CHECKSUM as usize),
    },
    Fault {
        name: "counter not incremented",
        seed: Seed::Ir(|made| faults::lose_store(&mut made.program, Base::Table, 8)),
        symptom: Symptom::Map(map::TX_COUNTERS),
    },
    Fault {
        name: "redirected to another slot",
        seed: Seed::Ir(|made| faults::change_argument(&mut made.program, "redirect_map", 1, 1)),
        symptom: Symptom::Redirection,
    },
    Fault {
        name: "redirected with other flags",
        seed: Seed::Ir(|made| faults::change_argument(&mut made.program, "redirect_map", 2, 2)),
        symptom: Symptom::Redirection,
    },
    Fault {
        name: "truncated key comparison: only half of an address is compared",
        seed: Seed::Ir(|made| {
            let address = u32::from_le_bytes([20, 0, 0, 254]);
            faults::truncate_comparison(&mut made.program, address.into(), 0xffff)
        }),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "wrong outcome of a miss: there is a route to everywhere",
        seed: Seed::Ir(|made| {
            faults::change_data(made, map::ROUTES, |bytes| {
                bytes.chunks_exact_mut(2).filter(|leaf| **leaf == [0, 0]).for_each(|leaf| leaf[0] = 1);
                true
            })
        }),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "wrong port: packets are counted for another one",
        seed: Seed::Ir(|made| {
            faults::change_data(made, "ports.joined", |bytes| {
                bytes.chunks_exact_mut(16).for_each(|row| row[0] ^= 1);
                true
            })
        }),
        symptom: Symptom::Map(map::TX_COUNTERS),
    },
    Fault {
        name: "lost byte swap",
        seed: Seed::Code(|code| faults::lose_byte_swap(code)),
        symptom: Symptom::Verdict,
    },
    Fault {
        name: "blurred comparison: the shortest header is too short",
        seed: Seed::Code(|code| faults::blur_comparison(code, 20)),
        symptom: Symptom::Verdict,
    },
];

fn packets(tables: &Tables) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> =
        every_branch(tables).unwrap().cases.into_iter().map(|case| case.packet).collect();
    // What prefixes of other lengths and keys that agree in part would match.
    for address in
        [[20, 0, 128, 1], [20, 0, 192, 1], [20, 0, 255, 9], [20, 1, 0, 1], [20, 0, 0, 1], [99, 9, 9, 9]]
    {
        packets.push(Frame::to(address.into()).build().unwrap());
    }
    packets
}

/// Compares a version with one fault on every branch, and gives what was found.
fn seeded(object: &Object, tables: &Tables, fault: &Fault) -> Report {
    let mut pair = Pair::new(object, "router", &contents(tables));
    let mut placed = true;
    if let Seed::Plan(seed) = fault.seed {
        placed &= seed(&mut pair.plan);
    }
    let version = pair.version(|made| {
        if let Seed::Ir(seed) = fault.seed {
            placed &= seed(made);
        }
    });
    let mut in_code = true;
    let edit = |code: &mut Vec<Insn>| {
        if let Seed::Code(seed) = fault.seed {
            in_code = seed(code);
        }
    };
    let Finished { report, .. } = pair.compare(&version, edit, &packets(tables));
    assert!(placed && in_code, "{fault}: the program has no place for it any more; choose another");
    report
}

#[test]
fn every_seeded_fault_is_noticed() {
    let (object, tables) = (Object::router(), sample_tables(1));
    let none = Fault { name: "none", seed: Seed::Ir(|_| true), symptom: Symptom::Verdict };
    let report = seeded(&object, &tables, &none);
    assert!(report.agrees(), "without a fault there is nothing to notice:\n{report}");
    let mut unnoticed = Vec::new();
    for fault in FAULTS {
        let report = seeded(&object, &tables, fault);
        println!("{fault}: {} packets, {} entries of maps", report.differences, report.map_differences);
        if report.agrees() || !fault.symptom.shows(&report) {
            let found: String = report.to_string().chars().take(1000).collect();
            unnoticed.push(format!("{fault}: expected {:?}, found:\n{found}", fault.symptom));
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
    assert!(FAULTS.len() >= 10);
}

/// Changes a route under a version, and compares afterwards.
fn changed_under(guarded: bool) -> Report {
    let tables = sample_tables(1);
    let pair = Pair::new(&Object::router(), "router", &contents(&tables));
    let version = pair.version(|made| assert!(guarded || faults::skip_guard(made)));
    let packets = packets(&tables);
    let before = pair.compare(&version, |_| (), &packets).report;
    assert!(before.agrees(), "while nothing has changed there is nothing to notice:\n{before}");
    version.expire();
    let new = RouteValue { next_hop: [192, 168, 1, 1].into(), port: 2 };
    for instance in [&pair.a, &pair.b] {
        let maps = instance.maps().unwrap();
        let routes = maps.iter().find(|m| m.spec().name == map::ROUTES).unwrap();
        routes.update(&key("20.0.0.0/16"), &new.to_bytes(), UpdateMode::Exist).unwrap();
    }
    pair.compare(&version, |_| (), &packets).report
}

#[test]
fn a_skipped_guard_is_noticed_once_an_entry_has_changed() {
    let report = changed_under(false);
    assert!(Symptom::Verdict.shows(&report), "{report}");
}

#[test]
fn behind_its_guard_a_version_follows_a_change() {
    let report = changed_under(true);
    assert!(report.agrees(), "{report}");
}
