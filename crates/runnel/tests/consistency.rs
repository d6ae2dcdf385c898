//! `runnel bench consistency`, short: no packet is wrong while tables change, stale contents are noticed, and an
//! interrupt leaves nothing. Needs root.

mod cli_support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use cli_support::{RUNNEL, router, runnel};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Runs the experiment; the exit status and the only result.
fn experiment(more: &[&str]) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let mut arguments = vec!["bench", "consistency", "--json", "--object", object.to_str().unwrap()];
    arguments.extend(more);
    let ran = runnel(arguments);
    let json: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err));
    (ran.status, json["results"][0].clone())
}

#[test]
fn no_packet_is_wrong_while_tables_change() {
    // While others on the machine keep loading programs, it is always the original that runs.
    for _ in 0..5 {
        let (status, result) = experiment(&["--seconds", "5"]);
        let count = |field: &str| result[field].as_u64().unwrap_or_else(|| panic!("no {field} in {result}"));
        assert_eq!((count("wrong_outcomes"), count("lost_packets")), (0, 0), "{result:#}");
        assert!(count("packets") > 0 && count("updates") > 0, "{result:#}");
        assert_eq!((status, count("faults")), (0, 0));
        if result["optimized_share"].as_f64().unwrap() > 0.0 && count("packets_within_50us") > 0 {
            return;
        }
    }
    panic!("no packet ran optimized code close to an update");
}

#[test]
fn without_the_bump_wrong_packets_are_found() {
    let (status, result) = experiment(&["--seconds", "2", "--without-bump"]);
    assert!(result["wrong_outcomes"].as_u64().unwrap() > 0, "{result:#}");
    assert_eq!(result["lost_packets"], 0, "{result:#}");
    assert!(!result["explanations"].as_array().unwrap().is_empty());
    assert_eq!((status, &result["faults"]), (0, &Value::from(1)));
}

#[test]
fn an_interrupt_ends_it_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let mut child = Command::new(RUNNEL)
        .args(["bench", "consistency", "--object"])
        .arg(&object)
        // Its file systems are made in this directory.
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The first line of progress: traffic flows and tables change.
    assert!(lines.next().unwrap().unwrap().contains("packets judged"));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.starts_with("error: interrupted before the time was up"), "{complaint}");
    assert!(rest.iter().any(|line| line.starts_with("wrong")), "{rest:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["router.bpf.o"]);
    assert_eq!(processes_that_name(dir.path()), Vec::<String>::new());
}

/// Command lines with this path in them.
fn processes_that_name(path: &Path) -> Vec<String> {
    let wanted = path.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    // What is no process, or ends in this moment, has none.
    let lines = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(wanted)).map(|line| line.replace('\0', " ")).collect()
}
