//! `router-ctl` as it is called: what it writes into the maps of a loaded router, what it prints, and how it
//! fails.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output};

use ipnet::Ipv4Net;
use router_ctl::layout::map;
use router_ctl::{Mac, MapData, Neighbour, Port, RouteKey, RouteValue, Tables};
use runnel_testkit::packet::{Fault, Frame};
use tempfile::TempDir;

use crate::harness::{Bpffs, LOOPBACK, Router, bpffs, isolated};

fn router_ctl(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_router-ctl")).args(args).output().expect("router-ctl runs")
}

/// Standard output of a call that must succeed.
fn succeeds(args: &[&str]) -> String {
    let output = router_ctl(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a call that must end with this status.
fn fails(status: i32, args: &[&str]) -> String {
    let output = router_ctl(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
    assert_eq!(output.stdout, b"", "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A loaded router with its maps pinned, and files to write.
struct Setup {
    router: Router,
    pins: Bpffs,
    files: TempDir,
}

impl Setup {
    fn new() -> Self {
        let (mut router, pins, files) = (Router::load(), bpffs(), TempDir::new().unwrap());
        router.pin_maps(pins.path());
        Self { router, pins, files }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.files.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().into()
    }

    /// Arguments with `--maps` in front.
    fn args<'a>(&'a self, args: &'a [&'a str]) -> Vec<&'a str> {
        [&["--maps", self.pins.path().to_str().unwrap()], args].concat()
    }

    fn succeeds(&self, args: &[&str]) -> String {
        succeeds(&self.args(args))
    }

    fn fails(&self, status: i32, args: &[&str]) -> String {
        fails(status, &self.args(args))
    }

    fn route(&self, prefix: &str) -> Option<RouteValue> {
        self.router.entry(map::ROUTES, &key(prefix)).and_then(|bytes| RouteValue::from_bytes(&bytes))
    }
}

fn key(prefix: &str) -> RouteKey {
    prefix.parse::<Ipv4Net>().unwrap().into()
}

fn value(next_hop: [u8; 4], port: u32) -> Option<RouteValue> {
    Some(RouteValue { next_hop: next_hop.into(), port })
}

const ROUTES: &str =
    "prefix,next_hop\n0.0.0.0/0,192.168.1.1\n10.0.0.0/8,192.168.1.2\n10.1.0.0/16,192.168.1.3\n";

#[test]
fn load_writes_the_entries_of_the_files() {
    isolated(|| {
        let setup = Setup::new();
        let routes = setup.file("routes.csv", ROUTES);
        let ports = setup.file("ports.csv", "port,mac,flags,ifindex\n0,02:00:00:00:00:01,up,1\n");
        let neighbours = setup.file("neighbours.csv", "address,mac\n192.168.1.2,02:00:00:00:00:02\n");
        let local = setup.file("local.csv", "address\n192.168.1.254\n");
        setup.succeeds(&[
            "load",
            "--routes",
            &routes,
            "--ports",
            &ports,
            "--neighbours",
            &neighbours,
            "--local",
            &local,
        ]);

        let port = Port { tx_index: 0, mac: Mac([2, 0, 0, 0, 0, 1]), vlan_id: 0, mtu: 1500, flags: Port::UP };
        let neighbour = Neighbour::reachable(Mac([2, 0, 0, 0, 0, 2]));
        let route =
            |prefix, last| (key(prefix), RouteValue { next_hop: [192, 168, 1, last].into(), port: 0 });
        let tables = Tables {
            routes: vec![route("0.0.0.0/0", 1), route("10.0.0.0/8", 2), route("10.1.0.0/16", 3)],
            ports: vec![(0, port)],
            neighbours: vec![([192, 168, 1, 2].into(), neighbour)],
            local_addrs: vec![[192, 168, 1, 254].into()],
            tx_ports: vec![(0, LOOPBACK)],
        };
        for (name, mut entries) in tables.entries() {
            entries.sort();
            assert_eq!(setup.router.entries(name), entries, "{name}");
        }
    });
}

#[test]
fn load_with_next_hops_makes_a_router_that_forwards() {
    isolated(|| {
        let mut setup = Setup::new();
        // As the full Internet table has it: origins, no next hops.
        let routes = setup.file("routes.csv", "prefix,origin_as\n10.0.0.0/8,15169\n10.1.0.0/16,56203\n");
        setup.succeeds(&["load", "--routes", &routes, "--next-hops", "16", "--port-count", "2"]);
        let expected =
            Tables::spread(&["10.0.0.0/8".parse().unwrap(), "10.1.0.0/16".parse().unwrap()], 16, 2).unwrap();
        for (name, mut entries) in expected.entries() {
            entries.sort();
            assert_eq!(setup.router.entries(name), entries, "{name}");
        }
        let frame = Frame::to(Ipv4Addr::new(10, 1, 2, 3)).build().unwrap();
        assert_eq!(setup.router.run(&frame).verdict, 3, "XDP_TX");
    });
}

#[test]
fn routes_are_added_changed_and_withdrawn() {
    isolated(|| {
        let setup = Setup::new();
        setup.succeeds(&["add", "10.0.0.0/8", "via", "192.168.1.1"]);
        assert_eq!(setup.route("10.0.0.0/8"), value([192, 168, 1, 1], 0));
        assert!(setup.fails(1, &["add", "10.0.0.0/8", "dev", "3"]).contains("routes has that entry already"));
        setup.succeeds(&["change", "10.0.0.0/8", "via", "192.168.1.2", "dev", "3"]);
        assert_eq!(setup.route("10.0.0.0/8"), value([192, 168, 1, 2], 3));
        assert!(setup.fails(1, &["change", "10.0.0.0/9", "dev", "3"]).contains("routes has no such entry"));
        setup.succeeds(&["add", "10.0.0.0/9", "dev", "3"]);
        assert_eq!(setup.route("10.0.0.0/9"), value([0; 4], 3));
        setup.succeeds(&["del", "10.0.0.0/9"]);
        setup.succeeds(&["del", "10.0.0.0/8"]);
        assert!(setup.fails(1, &["del", "10.0.0.0/8"]).contains("routes has no such entry"));
        assert_eq!(setup.router.entries(map::ROUTES), []);
    });
}

#[test]
fn neighbours_ports_and_addresses_are_added_and_deleted() {
    isolated(|| {
        let setup = Setup::new();
        let address = Ipv4Addr::new(192, 168, 1, 1);
        setup.succeeds(&["neigh", "add", "192.168.1.1", "02:00:00:00:00:01"]);
        setup.succeeds(&["neigh", "add", "192.168.1.1", "02:00:00:00:00:02", "--incomplete"]);
        let neighbour = Neighbour { mac: Mac([2, 0, 0, 0, 0, 2]), state: Neighbour::INCOMPLETE };
        assert_eq!(setup.router.entry(map::NEIGHBOURS, &address), Some(neighbour.to_bytes()));
        setup.succeeds(&["neigh", "del", "192.168.1.1"]);
        assert!(setup.fails(1, &["neigh", "del", "192.168.1.1"]).contains("neighbours has no such entry"));

        setup.succeeds(&[
            "port",
            "add",
            "7",
            "--mac",
            "02:00:00:00:00:07",
            "--dev",
            "lo",
            "--vlan",
            "9",
            "--same-dev",
            "--down",
        ]);
        let port =
            Port { tx_index: 7, mac: Mac([2, 0, 0, 0, 0, 7]), vlan_id: 9, mtu: 1500, flags: Port::SAME_DEV };
        assert_eq!(setup.router.entry(map::PORTS, &7u32), Some(port.to_bytes()));
        assert_eq!(setup.router.entry(map::TX_PORTS, &7u32), Some(LOOPBACK.to_bytes()));
        setup.succeeds(&["port", "del", "7"]);
        assert_eq!(setup.router.entries(map::PORTS), []);
        let mac = "02:00:00:00:00:07";
        assert!(
            setup.fails(1, &["port", "add", "7", "--mac", mac, "--dev", "no0"]).contains("interface `no0`")
        );
        assert!(
            setup
                .fails(1, &["port", "add", "7", "--mac", mac, "--ifindex", "99"])
                .contains("no network device")
        );

        setup.succeeds(&["local", "add", "192.168.1.254"]);
        assert_eq!(setup.router.entries(map::LOCAL_ADDRS).len(), 1);
        setup.succeeds(&["local", "del", "192.168.1.254"]);
        assert_eq!(setup.router.entries(map::LOCAL_ADDRS), []);
    });
}

#[test]
fn maps_are_found_by_id_too_and_checked() {
    isolated(|| {
        let setup = Setup::new();
        let id = |name: &str| setup.router.map_id(name);
        let routes = format!("routes={}", id(map::ROUTES));
        succeeds(&["--id", &routes, "add", "10.0.0.0/8", "dev", "1"]);
        assert_eq!(setup.route("10.0.0.0/8"), value([0; 4], 1));
        let wrong = format!("routes={}", id(map::PORTS));
        assert!(fails(1, &["--id", &wrong, "del", "10.0.0.0/8"]).contains("is not the router's `routes`"));
        assert!(
            fails(1, &["--id", "ports=1", "del", "10.0.0.0/8"]).contains("give --maps DIR or --id routes=ID")
        );
        let error = fails(1, &["--maps", "/nonexistent", "del", "10.0.0.0/8"]);
        assert!(error.contains("cannot open the map `routes` at /nonexistent/routes"), "{error}");
    });
}

#[test]
fn show_prints_tables_and_counters() {
    isolated(|| {
        let mut setup = Setup::new();
        assert_eq!(setup.succeeds(&["show"]), "");
        let routes = setup.file("routes.csv", "prefix,next_hop\n10.0.0.0/8,0.0.0.0\n");
        setup.succeeds(&["load", "--routes", &routes, "--next-hops", "1", "--port-count", "1"]);
        setup.succeeds(&["local", "add", "192.168.1.254"]);
        let frame = Frame::to(Ipv4Addr::new(10, 1, 2, 3)).build().unwrap();
        setup.router.run(&frame);
        let mut broken = frame;
        Fault::Checksum(1).apply(&mut broken);
        setup.router.run(&broken);

        assert_eq!(
            setup.succeeds(&["show"]),
            "route 10.0.0.0/8 via 192.168.1.1 dev 0\n\
             port 0 slot 0 lladdr 02:01:00:00:00:00 mtu 1500 up same-dev\n\
             neigh 192.168.1.1 lladdr 02:00:c0:a8:01:01 reachable\n\
             local 192.168.1.254\n\
             sent slot 0: 1 packets, 60 bytes\n\
             dropped checksum: 1 packets\n"
        );
        let json: serde_json::Value = serde_json::from_str(&setup.succeeds(&["show", "--json"])).unwrap();
        assert_eq!(json["routes"][0]["prefix"], "10.0.0.0/8");
        assert_eq!(json["routes"][0]["next_hop"], "192.168.1.1");
        assert_eq!(json["tx_counters"][0]["bytes"], 60);
        assert_eq!(json["drop_counters"][0]["reason"], "checksum");
    });
}

#[test]
fn churn_logs_what_it_did_and_the_table_agrees() {
    isolated(|| {
        let setup = Setup::new();
        let text: String = (0..200).map(|i| format!("10.{i}.0.0/16,x\n")).collect();
        let routes = setup.file("routes.csv", &format!("prefix,y\n{text}"));
        setup.succeeds(&["load", "--routes", &routes, "--next-hops", "8"]);
        let mut expected: std::collections::HashMap<String, String> = show_lines(&setup);

        let log = setup.files.path().join("churn.csv");
        let printed = setup.succeeds(&[
            "churn",
            "--rate",
            "2000",
            "--burst",
            "50",
            "--seconds",
            "0.3",
            "--neighbour-share",
            "0.2",
            "--log",
            log.to_str().unwrap(),
        ]);
        let log = fs::read_to_string(log).unwrap();
        let mut lines = log.lines();
        assert_eq!(lines.next(), Some("begun_ns,ended_ns,action,map,key,value"));
        let mut last = 0;
        let mut changes = 0;
        for line in lines {
            let fields: Vec<&str> = line.split(',').collect();
            let (begun, ended): (u64, u64) = (fields[0].parse().unwrap(), fields[1].parse().unwrap());
            assert!(last <= begun && begun <= ended, "{line}");
            last = ended;
            let key = format!("{} {}", fields[3], fields[4]);
            let old = match fields[2] {
                "withdraw" => expected.remove(&key),
                _ => expected.insert(key, fields[5].into()),
            };
            assert_eq!(old.is_none(), fields[2] == "add", "{line}");
            changes += 1;
        }
        assert!(changes >= 50 && changes % 50 == 0, "{changes}");
        assert!(printed.starts_with(&format!("{changes} changes, ")), "{printed}");
        assert_eq!(show_lines(&setup), expected);
    });
}

/// Routes and neighbours as the log of `churn` writes them: map and key, value.
fn show_lines(setup: &Setup) -> std::collections::HashMap<String, String> {
    let shown = setup.succeeds(&["show"]);
    let entries = shown.lines().filter_map(|line| {
        let (kind, rest) = line.split_once(' ')?;
        let (key, value) = rest.split_once(' ')?;
        match kind {
            "route" => Some((format!("routes {key}"), value.to_string())),
            "neigh" => Some((format!("neighbours {key}"), value.strip_suffix(" reachable")?.to_string())),
            _ => None,
        }
    });
    entries.collect()
}

#[test]
fn dump_json_is_what_load_writes() {
    isolated(|| {
        let setup = Setup::new();
        let routes = setup.file("routes.csv", ROUTES);
        let files = ["--routes", &routes, "--next-hops", "4"];
        setup.succeeds(&[&["load"], &files[..]].concat());
        let json: serde_json::Value =
            serde_json::from_str(&succeeds(&[&["dump-json"], &files[..]].concat())).unwrap();

        let bytes = |value: &serde_json::Value| -> Vec<u8> {
            let digits =
                |byte: &serde_json::Value| byte.as_str().unwrap().trim_start_matches("0x").to_string();
            value.as_array().unwrap().iter().map(|b| u8::from_str_radix(&digits(b), 16).unwrap()).collect()
        };
        let maps = json.as_object().unwrap();
        assert_eq!(maps.len(), 3, "{:?}", maps.keys());
        for (name, entries) in maps {
            let mut entries: Vec<_> =
                entries.as_array().unwrap().iter().map(|e| (bytes(&e["key"]), bytes(&e["value"]))).collect();
            entries.sort();
            assert_eq!(entries, setup.router.entries(name), "{name}");
        }
    });
}

#[test]
fn bad_files_are_named_with_their_line() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("routes.csv");
    fs::write(&path, format!("{ROUTES}10.1.2.3/16,192.168.1.1\n")).unwrap();
    let routes = path.to_str().unwrap();
    let expected = format!(
        "router-ctl: {routes}:5: prefix `10.1.2.3/16`: bits are set beyond the prefix length; 10.1.0.0/16 may be meant\n"
    );
    assert_eq!(fails(1, &["dump-json", "--routes", routes]), expected);
    assert_eq!(fails(1, &["load", "--maps", "/nonexistent", "--routes", routes]), expected);
    fs::write(&path, "prefix,origin_as\n10.0.0.0/8,15169\n").unwrap();
    assert!(fails(1, &["dump-json", "--routes", routes]).ends_with("; --next-hops N makes next hops up\n"));
    let missing = dir.path().join("missing.csv");
    assert!(
        fails(1, &["dump-json", "--ports", missing.to_str().unwrap()]).contains("missing.csv: No such file")
    );
}

#[test]
fn wrong_usage_ends_with_2() {
    let bad: [&[&str]; 14] = [
        &[],
        &["fly"],
        &["add", "10.0.0.0/8"],
        &["add", "10.0.0.0/8", "via"],
        &["add", "10.0.0.0/8", "via", "nowhere"],
        &["add", "10.0.0.1/8", "dev", "1"],
        &["add", "10.0.0.0/8", "dev", "1", "dev", "2"],
        &["load", "--next-hops", "4"],
        &["load", "--routes", "x", "--next-hops", "255"],
        &["load", "--routes", "x", "--port-count", "3"],
        &["--id", "routes", "show"],
        &["port", "add", "300", "--mac", "02:00:00:00:00:01"],
        &["neigh", "add", "192.168.1.1", "02:00"],
        &["churn", "--rate", "0", "--log", "x"],
    ];
    for args in bad {
        assert_ne!(fails(2, args), "", "{args:?}");
    }
    assert!(!Path::new("x").exists());
}
