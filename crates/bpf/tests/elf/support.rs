//! Compiling the snippets in `c/`, and small things that several tests use.

use std::path::{Path, PathBuf};
use std::process::Command;

use runnel_bpf::object::{Object, Program, Refusal};
use runnel_bpf::spec::ProgramSpec;

/// All snippets that compile to objects, with extra arguments.
pub const SNIPPETS: &[(&str, &[&str])] = &[
    ("maps.c", &[]),
    ("calls.c", &[]),
    ("externs.c", &[]),
    ("core.c", &[]),
    ("legacy.c", &[]),
    ("legacy.c", &["-DEXTRA"]),
    ("hooks.c", &[]),
    ("same_section.s", &[]),
    ("odd.s", &[]),
    ("instructions.s", &[]),
    (ROUTER, &[]),
];

/// The project's own router, seen from the snippets.
pub const ROUTER: &str = "../../../../../nf/router/router.bpf.c";

/// Path of a snippet.
pub fn snippet(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/elf/c").join(name)
}

/// Compiles a snippet.
pub fn compile(name: &str, args: &[&str]) -> Vec<u8> {
    compile_file(&snippet(name), args)
}

/// Compiles assembly text.
pub fn assemble(text: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("generated.s");
    std::fs::write(&path, text).expect("writing the generated assembly");
    compile_file(&path, &[])
}

fn compile_file(source: &Path, args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let out = dir.path().join("out.o");
    let mut command = Command::new(clang());
    command.args(["-O2", "-g", "-target", "bpf", "-mcpu=v4", "-I/usr/include/x86_64-linux-gnu"]);
    command.args(["-Wno-unused-command-line-argument", "-c"]).args(args).arg(source).arg("-o").arg(&out);
    run(&mut command);
    std::fs::read(&out).expect("the compiler's output")
}

/// What `llvm-objdump` says about an object.
pub fn objdump(object: &[u8]) -> String {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("object.o");
    std::fs::write(&path, object).expect("writing the object");
    let mut command = Command::new(find("RUNNEL_OBJDUMP", &["llvm-objdump-19", "llvm-objdump"]));
    command.args(["-drt", "--no-print-imm-hex", "--no-show-raw-insn", "--mcpu=v4"]).arg(&path);
    run(&mut command)
}

fn clang() -> PathBuf {
    find("RUNNEL_CLANG", &["clang-19", "clang"])
}

/// The program that an environment variable names, else the first of `names` in the path.
fn find(variable: &str, names: &[&str]) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = names
        .iter()
        .find_map(|name| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()));
    found.unwrap_or_else(|| panic!("none of {names:?} is installed; install one or name it in {variable}"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8 output")
}

/// A snippet as an object.
pub fn object(name: &str, args: &[&str]) -> Object {
    Object::parse_named(&compile(name, args), "snippet").expect("the snippet is a good object")
}

/// A program that has to be there.
pub fn program<'a>(object: &'a Object, name: &str) -> &'a Program {
    object.program(name).unwrap_or_else(|| panic!("no program {name}"))
}

/// A program that has to be usable.
pub fn spec<'a>(object: &'a Object, name: &str) -> &'a ProgramSpec {
    program(object, name).spec.as_ref().unwrap_or_else(|refusal| panic!("{name}: {refusal}"))
}

/// The reason for refusing a program that has to be refused.
pub fn refusal<'a>(object: &'a Object, name: &str) -> &'a Refusal {
    match &program(object, name).spec {
        Err(refusal) => refusal,
        Ok(_) => panic!("{name} was not refused"),
    }
}

/// A small deterministic generator of random numbers (SplitMix64).
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
