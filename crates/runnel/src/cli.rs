//! The command line: every command, argument and flag, declared once.
//!
//! Help, man pages and shell completions all come from these declarations. Parsing does nothing but parse: no file
//! is opened and no kernel asked before a command runs. A command appears here once it is built, not before.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::output::Destination;

/// Where `run` keeps what must outlive it, unless told otherwise.
pub const STATE_DIR: &str = "/sys/fs/bpf/runnel";

const EXIT_STATUS: &str = "Exit status: 0 success, 1 failure, 2 wrong usage. Errors go to standard error, with their cause and what to do.";

const EVERYWHERE: &str = "Options of every command";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "runnel",
    version,
    about = "A run-time compiler for eBPF packet programs",
    long_about = "Takes an unmodified eBPF object, recompiles its program for what the tables hold, and swaps the \
                  result in. Whenever a table changes, the original program takes over at once, until the next \
                  version is ready.",
    after_help = EXIT_STATUS,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Global {
    /// Tell on standard error what is being done; twice for details
    #[arg(short, long, action = clap::ArgAction::Count, global = true, help_heading = EVERYWHERE)]
    pub verbose: u8,
    /// When to use colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", global = true, help_heading = EVERYWHERE)]
    pub color: ColorWhen,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Attach an XDP program and keep it specialized for what its tables hold
    #[command(
        long_about = "Load an object, attach its XDP program to an interface, and keep a version on the hook \
                            that is specialized for what the tables hold, until interrupted. Ctrl-C detaches it. \
                            If this process is killed, the hook keeps a correct program."
    )]
    Run(RunArgs),
    /// Show a program's tables, how it uses them, and what could be done with them
    #[command(
        long_about = "Show, for each program of an object: its tables, every place where it uses them, \
                            whether it may change them and why, and what the specializer could do with them. \
                            Needs no privilege and no kernel."
    )]
    Inspect(InspectArgs),
    /// Run a trace through a program and through its specialized version: same outcome, and how much faster
    #[command(
        long_about = "Specialize a program for the contents of its maps, run every packet of a trace through the \
                            original and through the specialized version, compare verdicts, bytes, redirections and \
                            at the end the maps, then time both in the kernel. Attaches nothing to any interface. Any \
                            difference is a failure."
    )]
    Replay(ReplayArgs),
    /// Run an experiment
    #[command(subcommand)]
    Bench(Suite),
    /// Print the completion script of a shell
    #[command(long_about = "Print the completion script of a shell on standard output, for example: runnel \
                            completions bash > /etc/bash_completion.d/runnel")]
    Completions(CompletionsArgs),
    /// Write the man pages into a directory
    Man(ManArgs),
}

/// `--json` of commands that print one thing.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct JsonSwitch {
    /// Print JSON instead of text
    #[arg(short, long)]
    pub json: bool,
}

impl JsonSwitch {
    /// Where the JSON goes, if any is wanted.
    pub fn destination(self) -> Option<Destination> {
        self.json.then_some(Destination::Stdout)
    }
}

/// `--json` of commands that measure: the text for people can be had beside it.
#[derive(Clone, Debug, Default, Args)]
pub struct JsonFile {
    /// Write the results as JSON to FILE; to standard output, in place of the text, with `-` or without FILE
    #[arg(short, long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", value_hint = ValueHint::FilePath)]
    pub json: Option<Destination>,
}

/// Arguments of `runnel run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// eBPF object with the program, as clang wrote it
    #[arg(value_name = "OBJ", value_hint = ValueHint::FilePath)]
    pub object: PathBuf,
    /// Network interface to attach the program to
    #[arg(long, value_name = "IF")]
    pub dev: String,
    /// Program to run, by the name of its function; needed if the object has several XDP programs
    #[arg(long, value_name = "PROG")]
    pub prog: Option<String>,
    /// Where on the receive path the program runs
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Contents to fill the maps with before anything is attached, as `bpftool -j map dump` prints them, one array
    /// under each map's name
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub maps: Option<PathBuf>,
    /// Directory on a BPF file system for what must outlive this process; it is made if it is not there, and removed
    /// once nothing is in it
    #[arg(long, value_name = "DIR", default_value = STATE_DIR, value_hint = ValueHint::DirPath)]
    pub state_dir: PathBuf,
    /// Network namespace that the interface is in, as `ip netns` names it; this process's own by default
    #[arg(long, value_name = "NAME")]
    pub netns: Option<String>,
    /// Machine-readable output.
    #[command(flatten)]
    pub json: JsonSwitch,
}

/// Where on the receive path an XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// In the driver, before the kernel makes a socket buffer
    #[default]
    Native,
    /// In the network stack: on every interface, but slower
    Generic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        })
    }
}

/// Arguments of `runnel inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// eBPF object, as clang wrote it
    #[arg(value_name = "OBJ", value_hint = ValueHint::FilePath)]
    pub object: PathBuf,
    /// Program to show, by the name of its function; all of them by default
    #[arg(long, value_name = "PROG")]
    pub prog: Option<String>,
    /// Contents of the maps, as `bpftool -j map dump` prints them, one array under each map's name: shows what the
    /// specializer does for them, with predicted times; maps that are not named are taken to be empty
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub maps: Option<PathBuf>,
    /// Machine-readable output.
    #[command(flatten)]
    pub json: JsonSwitch,
}

/// Arguments of `runnel replay`.
#[derive(Clone, Debug, Args)]
pub struct ReplayArgs {
    /// eBPF object with the program, as clang wrote it
    #[arg(value_name = "OBJ", value_hint = ValueHint::FilePath)]
    pub object: PathBuf,
    /// Program to replay the trace on, by the name of its function
    #[arg(long, value_name = "PROG")]
    pub prog: String,
    /// Packets, as a pcap file
    #[arg(long, value_name = "PCAP", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Contents of the maps, as `bpftool -j map dump` prints them, one array under each map's name
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub maps: Option<PathBuf>,
    /// Machine-readable output.
    #[command(flatten)]
    pub json: JsonFile,
}

/// What every experiment takes.
#[derive(Clone, Debug, Default, Args)]
pub struct SuiteArgs {
    /// eBPF object of the network function; by default the one that `make nf` leaves in target/nf
    #[arg(long, value_name = "OBJ", value_hint = ValueHint::FilePath)]
    pub object: Option<PathBuf>,
    /// Machine-readable output.
    #[command(flatten)]
    pub json: JsonFile,
}

/// Arguments of `runnel bench router`.
#[derive(Clone, Debug, Args)]
pub struct RouterArgs {
    /// What every experiment takes.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Packets of each locality, all of which are compared and timed
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = packets)]
    pub packets: usize,
    /// Directory to draw plots into
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub plot: Option<PathBuf>,
}

/// A number of packets that can be replayed: the kernel's traces end at 2^25.
fn packets(text: &str) -> Result<usize, String> {
    match text.replace('_', "").parse() {
        Ok(n @ 1..=4_000_000) => Ok(n),
        _ => Err("give a number from 1 to 4000000".into()),
    }
}

/// Experiments.
#[derive(Clone, Debug, Subcommand)]
pub enum Suite {
    /// The router: original against optimized, at three localities of traffic
    Router(RouterArgs),
    /// Another process changes the router's tables while packets flow: does any packet show a state that the original
    /// could not have shown?
    Consistency(ConsistencyArgs),
    /// Be the process that changes the tables
    #[command(hide = true)]
    Updater {
        /// What to do, as the experiment says it
        order: String,
    },
}

/// Arguments of `runnel bench consistency`.
#[derive(Clone, Debug, Args)]
pub struct ConsistencyArgs {
    /// What every experiment takes.
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// For how many seconds tables are changed
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Decides which tables, packets and changes are drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Keep the watcher from moving the epoch, and succeed only if wrong packets are found, to show that the checker
    /// would notice
    #[arg(long)]
    pub without_bump: bool,
}

/// Arguments of `runnel completions`.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

/// Arguments of `runnel man`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Directory to write to; it is made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: PathBuf,
}
