//! Running the real binary, and objects to run it on.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use runnel_bpfcc::Compiler;

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
    Compiler::find()
        .and_then(|compiler| compiler.compile(&root().join(source), object))
        .unwrap_or_else(|e| panic!("{e}"));
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
