//! Runs each pass on the programs in `tests/golden/<pass>/`. A file holds a program, a line `----`, and what the
//! pass makes of it; it is named for the property that it shows. With `UPDATE_EXPECT=1` in the environment the second
//! part is written anew.

use std::path::{Path, PathBuf};

use runnel_ir::{Program, parse_program, verify};

type Pass = fn(&mut Program) -> bool;

const SEPARATOR: &str = "----\n";

fn golden_files(pass: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(pass);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} holds no program", folder.display());
    files
}

/// Runs a pass on the text of a program and gives the text of the result.
fn run(pass: Pass, input: &str) -> String {
    let mut program = parse_program(input).unwrap_or_else(|e| panic!("input: {e}"));
    verify(&program).unwrap_or_else(|e| panic!("input: {e}"));
    let before = program.to_string();
    let changed = pass(&mut program);
    let after = program.to_string();
    verify(&program).unwrap_or_else(|e| panic!("output: {e}\n{after}"));
    assert!(changed || before == after, "the pass changed the program and says that it did not:\n{after}");
    // Loops over a pass end only if it tells when nothing is left to do.
    for _ in 0..8 {
        if !pass(&mut program) {
            return after;
        }
        verify(&program).unwrap_or_else(|e| panic!("run again: {e}\n{program}"));
    }
    panic!("the pass finds something to change for ever:\n{program}")
}

fn check(name: &str, pass: Pass) {
    let bless = std::env::var_os("UPDATE_EXPECT").is_some_and(|v| v == "1");
    let mut wrong = Vec::new();
    for file in golden_files(name) {
        let text = std::fs::read_to_string(&file).unwrap();
        let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
        println!("{}", file.display());
        let found = run(pass, input);
        if bless {
            std::fs::write(&file, format!("{input}{SEPARATOR}{found}")).unwrap();
        } else if found != expected {
            wrong.push(format!("{}:\n{found}", file.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "these came out differently (UPDATE_EXPECT=1 accepts them):\n{}",
        wrong.join("\n")
    );
}

macro_rules! golden {
    ($($pass:ident)*) => {$(
        #[test]
        fn $pass() {
            check(stringify!($pass), runnel_passes::$pass);
        }
    )*};
}

golden! {
    eliminate_dead_code
    eliminate_dead_stores
    fold_addresses
    fold_constants
    forward_loads
    merge_loads
    merge_stores
    number_values
    simplify_algebra
    simplify_cfg
    thread_jumps
}

/// All passes together; every one of them is verified.
#[test]
fn clean_up() {
    fn pass(program: &mut Program) -> bool {
        let before = program.to_string();
        runnel_passes::clean_up_checked(program).unwrap();
        before != program.to_string()
    }
    check("clean_up", pass);
}
