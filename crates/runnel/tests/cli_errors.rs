//! What goes wrong is told in one form: what, why, and what to do; on standard error, with status 1, without a panic.

mod cli_support;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use cli_support::{RUNNEL, Ran, finish, router, runnel, snippet};

/// Asserts that a command failed in the ordinary form; gives the message.
fn failed(ran: &Ran) -> &str {
    assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{}", ran.err);
    assert!(ran.err.starts_with("error: "), "{}", ran.err);
    let advises =
        ran.err.contains("\n  do:  ") || ran.err.contains("; give ") || ran.err.contains("compile with");
    assert!(advises, "it says nothing of what to do: {}", ran.err);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    &ran.err
}

/// What every command that takes an object says of an object that it cannot take.
fn both(object: &Path, more: &[&str]) -> [Ran; 2] {
    let with = |first: &[&str]| {
        let arguments = first.iter().map(|s| s.as_ref()).chain([object.as_os_str()]);
        runnel(arguments.chain(more.iter().map(|s| s.as_ref())))
    };
    [with(&["inspect"]), with(&["run", "--dev", "lo", "--state-dir", "/sys/fs/bpf/runnel-not-reached"])]
}

fn tc_program(dir: &Path) -> PathBuf {
    snippet(
        dir,
        "two",
        "SEC(\"tc\") int shape(struct __sk_buff *skb) { return 0; }\n\
                         SEC(\"xdp\") int pass(struct xdp_md *ctx) { return XDP_PASS; }\n",
    )
}

#[test]
fn no_such_object() {
    for ran in both("/nonexistent/x.o".as_ref(), &[]) {
        let message = failed(&ran);
        assert!(
            message.contains("/nonexistent/x.o") && message.to_lowercase().contains("no such file"),
            "{message}"
        );
    }
}

#[test]
fn a_directory_is_no_object() {
    let dir = tempfile::tempdir().unwrap();
    for ran in both(dir.path(), &[]) {
        assert!(failed(&ran).contains(&dir.path().display().to_string()));
    }
}

#[test]
fn not_an_elf_file() {
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("notes.txt");
    std::fs::write(&object, "remember the milk\n").unwrap();
    for ran in both(&object, &[]) {
        let message = failed(&ran);
        assert!(message.contains("notes.txt") && message.contains("not an ELF file"), "{message}");
    }
}

#[test]
fn an_empty_file_is_no_object() {
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("empty.o");
    std::fs::write(&object, "").unwrap();
    for ran in both(&object, &[]) {
        failed(&ran);
    }
}

#[test]
fn an_elf_file_for_another_machine() {
    for ran in both(RUNNEL.as_ref(), &[]) {
        let message = failed(&ran);
        assert!(message.contains("BPF") && message.contains("clang"), "{message}");
    }
}

#[test]
fn an_object_that_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let bytes = std::fs::read(&object).unwrap();
    std::fs::write(&object, &bytes[..bytes.len() / 2]).unwrap();
    for ran in both(&object, &[]) {
        failed(&ran);
    }
}

#[test]
fn no_such_program_and_those_there_are() {
    let dir = tempfile::tempdir().unwrap();
    for ran in both(&tc_program(dir.path()), &["--prog", "paß"]) {
        let message = failed(&ran);
        assert!(
            message.contains("`paß`") && message.contains("shape") && message.contains("pass"),
            "{message}"
        );
    }
}

#[test]
fn a_program_of_the_wrong_type() {
    let dir = tempfile::tempdir().unwrap();
    let [_, ran] = both(&tc_program(dir.path()), &["--prog", "shape"]);
    let message = failed(&ran);
    assert!(
        message.contains("`shape`") && message.contains("sched_cls") && message.contains("xdp"),
        "{message}"
    );
}

#[test]
fn contents_that_do_not_fit_the_maps() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let maps = dir.path().join("maps.json");
    let cases = [
        ("{", "EOF"),
        (r#"{"routes": [{"key": ["0x20"], "value": ["0x01"]}]}"#, "routes"),
        (r#"{"rutes": []}"#, "rutes"),
    ];
    for (text, mentioned) in cases {
        std::fs::write(&maps, text).unwrap();
        let ran = runnel(["inspect".as_ref(), object.as_os_str(), "--maps".as_ref(), maps.as_os_str()]);
        let message = failed(&ran);
        assert!(message.contains(mentioned) && message.contains("maps.json"), "{message}");
    }
}

#[test]
fn a_destination_that_cannot_be_written() {
    let ran = runnel(["man", "/proc/no/such/place"]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("/proc/no/such/place"), "{}", ran.err);
}

/// A state directory of this process alone.
fn state_dir() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("/sys/fs/bpf/runnel-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs `runnel run OBJ …` in network and mount namespaces of its own, after the commands of `setup`.
fn run_alone(setup: &str, object: &Path, arguments: &[&str]) -> (Ran, String) {
    let state = state_dir();
    let script = format!("set -e; {setup}\nexec \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", &script, "sh", RUNNEL, "run"]).arg(object).args(arguments);
    (finish(command.args(["--state-dir", &state])), state)
}

/// Asserts that nothing is left of a run that failed.
fn nothing_left(state: &str) {
    let left: Vec<_> =
        std::fs::read_dir(state).map(|d| d.filter_map(Result::ok).collect()).unwrap_or_default();
    let _ = std::fs::remove_dir(state);
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn no_such_interface() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, state) = run_alone("", &router(dir.path()), &["--dev", "nosuch0"]);
    let message = failed(&ran);
    assert!(message.contains("`nosuch0`") && message.contains("ip link"), "{message}");
    nothing_left(&state);
}

#[test]
fn no_such_network_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let (ran, state) = run_alone("", &object, &["--dev", "lo", "--netns", "no-such-namespace"]);
    let message = failed(&ran);
    assert!(message.contains("no-such-namespace") && message.contains("ip netns"), "{message}");
    nothing_left(&state);
}

#[test]
fn an_interface_without_native_xdp() {
    let dir = tempfile::tempdir().unwrap();
    let (ran, state) = run_alone("ip link set lo up", &router(dir.path()), &["--dev", "lo"]);
    let message = failed(&ran);
    assert!(message.contains("native XDP") && message.contains("--mode generic"), "{message}");
    nothing_left(&state);
}

#[test]
fn a_kernel_without_type_information() {
    let dir = tempfile::tempdir().unwrap();
    let hide = "mount -t tmpfs -o ro none /sys/kernel/btf";
    let (ran, state) = run_alone(hide, &router(dir.path()), &["--dev", "lo"]);
    let message = failed(&ran);
    assert!(
        message.contains("/sys/kernel/btf/vmlinux") && message.contains("CONFIG_DEBUG_INFO_BTF"),
        "{message}"
    );
    nothing_left(&state);
}

#[test]
fn namespaces_that_hide_threads() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    for namespace in ["pid", "time"] {
        let setup = format!("ip link set lo up; set -- unshare --{namespace} --fork --mount-proc \"$@\"");
        let (ran, state) = run_alone(&setup, &object, &["--dev", "lo", "--mode", "generic"]);
        let message = failed(&ran);
        assert!(message.contains(&format!("{namespace} namespace")), "{message}");
        nothing_left(&state);
    }
}

#[test]
fn a_program_that_the_verifier_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let body = "SEC(\"xdp\") int wild(struct xdp_md *ctx) { return *(__u8 *)(long)ctx->data; }\n";
    let object = snippet(dir.path(), "wild", body);
    let (ran, state) = run_alone("ip link set lo up", &object, &["--dev", "lo", "--mode", "generic"]);
    let message = failed(&ran);
    assert!(message.contains("`wild`") && message.contains("verifier refuses it: "), "{message}");
    assert!(!message.contains("processed "), "the whole log, unasked: {message}");
    nothing_left(&state);
    let (ran, state) = run_alone("ip link set lo up", &object, &["--dev", "lo", "--mode", "generic", "-v"]);
    assert!(failed(&ran).contains("processed "), "the whole log, asked for: {}", ran.err);
    nothing_left(&state);
}

/// Runs `runnel` as nobody, without any capability.
fn as_nobody(dir: &Path, arguments: &[&OsStr]) -> Ran {
    let binary = dir.join("runnel");
    std::fs::copy(RUNNEL, &binary).unwrap();
    // Temporary directories are closed to others.
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "--bounding-set", "-all", "--inh-caps=-all"]);
    finish(command.arg(&binary).args(arguments))
}

#[test]
fn no_right_to_load() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let state = state_dir();
    let arguments = ["run".as_ref(), object.as_os_str(), "--dev".as_ref(), "lo".as_ref()];
    let ran = as_nobody(dir.path(), &[&arguments[..], &["--state-dir".as_ref(), state.as_ref()]].concat());
    let message = failed(&ran);
    assert!(message.contains("not permitted"), "{message}");
    assert!(message.contains("run as root") && message.contains("CAP_BPF"), "{message}");
    nothing_left(&state);
}

#[test]
fn inspecting_needs_no_right_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let ran = as_nobody(dir.path(), &["inspect".as_ref(), object.as_os_str()]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
}
