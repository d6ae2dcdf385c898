//! The command line itself: exit status, help, man pages, completions, and output that nobody reads.

mod cli_support;

use std::fs::File;
use std::process::{Command, Stdio};

use cli_support::{RUNNEL, finish, runnel};

/// The commands that the help lists, apart from `help` itself.
fn commands() -> Vec<String> {
    let help = runnel(["-h"]).out;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    list.take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn wrong_usage_is_2_with_the_message_on_standard_error() {
    let cases: [&[&str]; 6] = [
        &[],
        &["inspect"],
        &["inspect", "a.o", "b.o"],
        &["inspect", "--no-such-flag", "a.o"],
        &["no-such-command"],
        &["completions", "no-such-shell"],
    ];
    for arguments in cases {
        let ran = runnel(arguments);
        assert_eq!((ran.status, ran.out.as_str()), (2, ""), "{arguments:?}");
        let says = ran.err.contains("Usage: runnel") || ran.err.contains("possible values");
        assert!(says, "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let version = runnel(["--version"]);
    assert_eq!(
        (version.status, version.out.as_str()),
        (0, concat!("runnel ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    for command in commands() {
        let help = runnel([command.as_str(), "--help"]);
        assert_eq!((help.status, help.err.as_str()), (0, ""), "{command}");
        assert!(help.out.contains("Usage: runnel"), "{command}: {}", help.out);
    }
}

#[test]
fn every_command_has_a_man_page_and_every_flag_is_in_the_completion() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man");
    let ran = runnel(["man".as_ref(), pages.as_os_str()]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let completion = runnel(["completions", "bash"]).out;
    for command in commands() {
        let page = std::fs::read_to_string(pages.join(format!("runnel-{command}.1"))).unwrap();
        let help = runnel([command.as_str(), "--help"]).out;
        let flags = help.split_whitespace().filter(|word| word.starts_with("--"));
        for flag in flags.map(|flag| flag.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())) {
            assert!(page.replace('\\', "").contains(flag), "{flag} of {command} is not in its man page");
            assert!(completion.contains(flag), "{flag} of {command} is not in the completion");
        }
    }
}

#[test]
fn the_completion_of_every_shell_is_printed() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = runnel(["completions", shell]);
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{shell}");
        assert!(ran.out.contains("inspect"), "{shell}");
    }
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    for arguments in [&["completions", "bash"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = finish(Command::new(RUNNEL).args(arguments).stdout(writer).stderr(Stdio::piped()));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{arguments:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = finish(Command::new(RUNNEL).args(["completions", "bash"]).stdout(full).stderr(Stdio::piped()));
    assert_eq!(ran.status, 1);
    assert!(
        ran.err.starts_with("error: cannot write to standard output\n  why: No space left"),
        "{}",
        ran.err
    );
}

#[test]
fn colours_are_used_only_when_wanted() {
    let error = |when| runnel(["--color", when, "inspect", "/nonexistent"]).err;
    assert!(error("always").contains("\x1b["));
    assert!(!error("never").contains('\x1b'));
    assert!(!error("auto").contains('\x1b'), "a pipe is no terminal");
}
