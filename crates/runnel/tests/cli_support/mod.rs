//! Running the real binary, and objects to run it on.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary under test.
pub const RUNNEL: &str = env!("CARGO_BIN_EXE_runnel");

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders below the root").to_owned()
}

/// What became of a command.
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8 output");
    let status = status.code().unwrap_or_else(|| panic!("{command:?} was ended by a signal: {status}"));
    Ran { status, out: text(stdout), err: text(stderr) }
}

/// Runs the binary, without colours or variables of the caller that change what it prints.
pub fn runnel<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ran {
    finish(Command::new(RUNNEL).args(arguments).current_dir(root()))
}

/// Compiles an eBPF object from C source.
pub fn compile(source: &Path, object: &Path) {
    let clang = std::env::var("RUNNEL_CLANG").ok();
    let found = ["clang-19", "clang"].into_iter().find(|c| Command::new(c).arg("--version").output().is_ok());
    let clang = clang
        .as_deref()
        .or(found)
        .expect("clang, which compiles the eBPF programs; `make setup` installs it");
    let ran = finish(
        Command::new(clang)
            .args(["-O2", "-g", "-target", "bpf"])
            .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .args(["-c".as_ref(), source.as_os_str(), "-o".as_ref(), object.as_os_str()])
            .current_dir(root()),
    );
    assert_eq!(ran.status, 0, "{clang} does not compile {}: {}", source.display(), ran.err);
}

/// The router, compiled into `dir`.
pub fn router(dir: &Path) -> PathBuf {
    let object = dir.join("router.bpf.o");
    compile(Path::new("nf/router/router.bpf.c"), &object);
    object
}

/// A small object of C source, compiled into `dir`.
pub fn snippet(dir: &Path, name: &str, body: &str) -> PathBuf {
    let (source, object) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.o")));
    let head =
        "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";
    std::fs::write(&source, format!("{head}{body}")).expect("writing the source");
    compile(&source, &object);
    object
}
