//! Compiles this crate's own BPF programs, to be embedded in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match runnel_bpfcc::build_script() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("cargo:error={}", problem.trim().replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}
