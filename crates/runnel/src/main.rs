//! The binary: parses the command line, runs the command, turns its outcome into an exit status.
//!
//! 0 success, 1 failure, 2 wrong usage. Everything else is in the library.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use runnel::cli::{Cli, Global};
use runnel::commands;
use runnel::output::wants_color;
use tracing::level_filters::LevelFilter;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help and version are messages too. A reader that went away before the end had enough of it.
            let _ = message.print();
            return ExitCode::from(u8::try_from(message.exit_code()).unwrap_or(2));
        }
    };
    start_log(cli.global);
    match commands::execute(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            let mut stderr = io::stderr().lock();
            let color = wants_color(cli.global.color, &stderr);
            // Nobody is left to be told if these fail.
            let _ = writeln!(stderr, "{}", failure.display(color));
            if let Some(detail) = failure.detail().filter(|_| cli.global.verbose > 0) {
                let _ = writeln!(stderr, "{}", detail.trim_end());
            }
            ExitCode::FAILURE
        }
    }
}

/// What the libraries tell of their work goes to standard error, as much as was asked for.
fn start_log(global: Global) {
    let level = match global.verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let color = wants_color(global.color, &io::stderr());
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(color)
        .with_writer(io::stderr)
        .without_time()
        .init();
}
