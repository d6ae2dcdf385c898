//! `runnel replay` and `runnel bench router` as they are typed: what they print, and how they exit.
//!
//! They load programs, so these tests need root and fail without it.

mod checker_support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use checker_support::Object;
use runnel_testkit::router::{every_branch, sample_tables};
use runnel_testkit::{pcap, routes, trace};
use serde_json::Value;

fn runnel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_runnel"))
        .args(arguments)
        .env_remove("RUNNEL_DATA")
        .output()
        .expect("running runnel")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// The router's object, tables in a file, and a trace that reaches every branch with traffic behind it.
struct Files {
    object: Object,
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files { object: Object::router(), dir: tempfile::tempdir().unwrap() };
        let tables = sample_tables(1);
        let mut packets: Vec<Vec<u8>> =
            every_branch(&tables).unwrap().cases.into_iter().map(|case| case.packet).collect();
        let spec = trace::TraceSpec {
            packets: 2000,
            model: trace::Model::Pareto(trace::Locality::Low),
            payload: 18,
            seed: 3,
        };
        let prefixes = routes::generate(50, 1).unwrap();
        packets.extend(trace::trace(&prefixes, &spec).unwrap());
        tables.write_json(std::fs::File::create(files.path("maps.json")).unwrap()).unwrap();
        pcap::write(std::fs::File::create(files.path("trace.pcap")).unwrap(), &packets).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[test]
fn a_replay_compares_times_and_reports() {
    let files = Files::new();
    let (object, maps, trace) = (files.object.path(), files.path("maps.json"), files.path("trace.pcap"));
    let json = files.path("rows.json");
    let output = runnel(&[
        "replay",
        text(&object),
        "--prog",
        "router",
        "--trace",
        text(&trace),
        "--maps",
        text(&maps),
        "--json",
        text(&json),
    ]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    for told in [
        "routes (prefix, 16 entries)",
        "no verdict, byte, redirection or map entry differs",
        "original again",
    ] {
        assert!(out.contains(told), "`{told}` is missing in\n{out}");
    }
    assert!(!out.contains("was not interpreted"), "{out}");

    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| &r["variant"]).collect::<Vec<_>>(), ["original", "runnel"]);
    for row in rows {
        assert_eq!((&row["program"], &row["table"]), (&"router".into(), &"maps.json".into()));
        assert_eq!(row["differences"], 0);
        assert!(row["packets_compared"].as_u64().unwrap() > 2000);
        for positive in ["ns_per_packet", "ns_p25", "ns_p75", "replay_ns", "speedup", "branches_reached"] {
            assert!(row[positive].as_f64().unwrap() > 0.0, "{positive}: {row}");
        }
    }
    assert!(rows[1]["optimized_share"].as_f64().unwrap() >= 0.99);
    for time in ["compile_ms", "read_ms", "fill_ms", "verify_ms", "swap_ms"] {
        assert!(rows[0][time].is_null() && rows[1][time].as_f64().unwrap() > 0.0, "{time}");
    }
    let tables = rows[1]["tables"].as_array().unwrap();
    assert!(tables.iter().any(|t| t["table"] == "routes" && t["entries"] == 16));
}

#[test]
fn what_cannot_be_replayed_is_told_with_its_cause() {
    let files = Files::new();
    let (object, maps, trace) = (files.object.path(), files.path("maps.json"), files.path("trace.pcap"));
    let fails = |arguments: [&str; 4], told: &[&str]| {
        let [object, program, trace, maps] = arguments;
        let output = runnel(&["replay", object, "--prog", program, "--trace", trace, "--maps", maps]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.starts_with("error: ") && told.iter().all(|t| err.contains(t)), "{told:?} in\n{err}");
    };
    let (o, t, m) = (text(&object), text(&trace), text(&maps));
    fails(["no.o", "router", t, m], &["no.o", "no such file"]);
    fails([o, "other", t, m], &["`other`", "router"]);
    fails([o, "router", "no.pcap", m], &["no.pcap"]);
    fails([o, "router", m, m], &["maps.json", "pcap"]);
    fails([o, "router", t, t], &["trace.pcap", "bpftool"]);
    std::fs::write(files.path("wrong.json"), r#"{"routes": [{"key": ["0x00"], "value": ["0x00"]}]}"#)
        .unwrap();
    fails([o, "router", t, text(&files.path("wrong.json"))], &["routes", "entry 0", "8"]);
    pcap::write(std::fs::File::create(files.path("short.pcap")).unwrap(), &[vec![0; 60], vec![0; 9]])
        .unwrap();
    fails([o, "router", text(&files.path("short.pcap")), m], &["packet 1", "9 bytes"]);
}

#[test]
fn the_router_bench_gives_two_rows_a_locality_and_a_plot() {
    let files = Files::new();
    let (object, plots) = (files.object.path(), files.path("plots"));
    let output = runnel(&[
        "bench",
        "router",
        "--object",
        text(&object),
        "--packets",
        "3000",
        "--plot",
        text(&plots),
        "--json",
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    let seen: Vec<String> = rows.iter().map(|r| format!("{} {}", r["locality"], r["variant"])).collect();
    let wanted = ["none", "low", "high"].map(|l| ["original", "runnel"].map(|v| format!("{l:?} {v:?}")));
    assert_eq!(seen, wanted.concat());
    for row in rows {
        assert_eq!((&row["table"], &row["differences"]), (&"generated".into(), &0.into()), "{row}");
        assert!(row["packets_compared"].as_u64().unwrap() > 3000);
        assert!(row["branches_reached"].as_f64().unwrap() > 0.85, "{row}");
    }
    let svg = std::fs::read_to_string(plots.join("router-ns-per-packet.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("locality high"));
}

#[test]
fn a_missing_router_is_told_with_how_to_make_it() {
    let output = runnel(&["bench", "router", "--object", "no/router.o"]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("no/router.o") && err.contains("make nf"), "{err}");
}
