//! The demo: a router is specialized while it runs, its routes change, and no packet goes wrong. About 20 s.
//!
//! Everything happens in two network namespaces and a BPF file system that this program makes and removes again, also
//! when it is interrupted or fails. It relies on `runnel` lying beside it and on the router's object.

mod screen;
mod story;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runnel_lab::device::sibling_binary;

use crate::screen::Screen;

const USAGE: &str = "usage: runnel-demo [ROUTER-OBJECT]

Shows a router being specialized under traffic. ROUTER-OBJECT is target/nf/router.bpf.o unless given.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let object = arguments.next().map_or_else(|| PathBuf::from("target/nf/router.bpf.o"), PathBuf::from);
    if arguments.next().is_some() || object.to_string_lossy().starts_with('-') {
        let asked = matches!(object.to_str(), Some("-h" | "--help"));
        if asked {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        eprint!("{USAGE}");
        return ExitCode::from(2);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    if let Err(problem) = ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed)) {
        eprintln!("error: cannot listen for Ctrl-C: {problem}");
        return ExitCode::FAILURE;
    }
    let screen = Screen::new();
    let told = sibling_binary("runnel").and_then(|runnel| story::tell(&runnel, &object, &stop, &screen));
    match told {
        Ok(went_well) => {
            screen.line("  everything that was made is removed again\n");
            if went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
