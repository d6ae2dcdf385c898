//! `runnel run`: load, attach, specialize for as long as it runs; Ctrl-C detaches.
//!
//! What it says goes to standard output: for people a few lines a cycle, for machines one JSON object a line.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use runnel_engine::controller::{Controller, Cycle, Outcome, Policy, Step};
use runnel_engine::specialize::TableReport;
use runnel_kernel::{link, netns, probe};
use serde_json::{Value, json};

use super::{contents, stop_flag};
use crate::cli::{Mode, RunArgs};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::xdp::maps::{self, Devices};
use crate::xdp::session::Session;
use crate::xdp::setup::{SessionError, Setup};

/// How long packets are timed before and after a swap.
const BURST: Duration = Duration::from_millis(20);
/// Pause between looks at the epoch.
const TICK: Duration = Duration::from_millis(2);
/// How often a line about the traffic is due, and a look at whether the program is still attached.
const STATUS: Duration = Duration::from_secs(2);
/// After how long the original is timed anew, when it runs because tables change: traffic changes too.
const RETIMED: Duration = Duration::from_secs(5);

/// Set to `off`, the environment variable with this name keeps the watcher from moving the epoch. Then stale contents
/// are used, on purpose: it is how a checker shows that it would notice.
const BUMP: &str = "RUNNEL_WATCHER_BUMP";

/// Runs the command until it is interrupted (SIGINT, SIGTERM, SIGHUP), then takes everything down.
///
/// # Errors
/// What kept it from starting or going on; the hook keeps a correct program.
pub fn execute(args: &RunArgs, output: &Output) -> Result<()> {
    let stop = stop_flag()?;
    if let Some(name) = &args.netns {
        netns::enter(name).map_err(|e| Failure::from(e).advise("`ip netns list` shows the names"))?;
    }
    require_btf()?;
    let contents = args.maps.as_deref().map(contents::read).transpose()?;
    let setup = Setup {
        object: args.object.clone(),
        program: args.prog.clone(),
        device: args.dev.clone(),
        mode: match args.mode {
            Mode::Native => link::Mode::Native,
            Mode::Generic => link::Mode::Generic,
        },
        state_dir: args.state_dir.clone(),
        bump: std::env::var_os(BUMP).is_none_or(|v| v != "off"),
    };
    let session = Session::start(&setup, |loaded| match &contents {
        Some(contents) => maps::fill(loaded, contents, Devices::AsGiven),
        None => Ok(()),
    })?;
    let say = Say { output };
    let mut driver = Driver {
        session,
        controller: Controller::new(Policy::default()),
        say,
        original_ns: None,
        original_timed: Instant::now(),
    };
    let outcome = driver.say.started(&driver.session).and_then(|()| driver.until(&stop));
    let fallbacks = driver.session.fallbacks_in_all();
    let stopped = driver.session.stop();
    outcome?;
    stopped?;
    driver.say.stopped(fallbacks)
}

/// The watcher finds a map from a descriptor by the kernel's own types.
fn require_btf() -> Result<()> {
    if !matches!(probe::kernel_types(), probe::Answer::No(_)) {
        return Ok(());
    }
    Err(Failure::new("this kernel tells nothing of its types (there is no /sys/kernel/btf/vmlinux)")
        .advise("use a kernel built with CONFIG_DEBUG_INFO_BTF, as those of all large distributions are"))
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        let advice = match error {
            SessionError::Kernel(e) => return e.into(),
            SessionError::WhichProgram { .. } => "name one with `--prog`",
            SessionError::Busy { .. } => {
                "stop the other one first; for an interface of the same name in another network namespace, give another \
                 `--state-dir`"
            }
            SessionError::Foreign { .. } => {
                "remove the directory if it is left over; if it belongs to an interface of the same name in another \
                 network namespace, give another `--state-dir`"
            }
            SessionError::OtherMode { .. } => "give the other `--mode`, or remove the pins to detach it",
            SessionError::Io { .. } => {
                "give a `--state-dir` on a BPF file system (`mount -t bpf`), or one to be made"
            }
            SessionError::Lift { .. } => {
                "attach it without Runnel, for example with `xdp-loader`; `runnel inspect` shows what is supported"
            }
            SessionError::Fill(_) => "see `bpftool -j map dump` for the form of the file given with `--maps`",
            _ => return Failure::new(error.to_string()),
        };
        Failure::new(error.to_string()).advise(advice)
    }
}

struct Driver<'a> {
    session: Session,
    controller: Controller,
    say: Say<'a>,
    /// Cost of a packet in the original, as last timed, and when that was.
    original_ns: Option<f64>,
    original_timed: Instant,
}

impl Driver<'_> {
    fn until(&mut self, stop: &AtomicBool) -> Result<()> {
        self.time_original()?;
        let (mut last, mut looked) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            if looked.elapsed() >= STATUS {
                self.session.expect_attached()?;
                looked = Instant::now();
            }
            match self.controller.step(&mut self.session)? {
                Step::Cycled(cycle) => {
                    let installed = matches!(cycle.outcome, Outcome::Installed(_));
                    let after = if installed { self.ns()? } else { None };
                    self.say.cycle(&cycle, self.original_ns, after, self.session.fallbacks_in_all())?;
                    last = Instant::now();
                }
                Step::Current if last.elapsed() >= STATUS => {
                    let now = self.session.time(BURST)?;
                    self.say.status(now, self.original_ns, self.session.fallbacks())?;
                    last = Instant::now();
                }
                // Before there is a version, and while there is none that fits, it is the original that runs.
                Step::Waiting if self.original_ns.is_none() || self.original_timed.elapsed() >= RETIMED => {
                    self.time_original()?;
                }
                Step::Current | Step::Waiting => std::thread::sleep(TICK),
            }
        }
        Ok(())
    }

    fn time_original(&mut self) -> Result<()> {
        self.original_ns = self.ns()?.or(self.original_ns);
        self.original_timed = Instant::now();
        Ok(())
    }

    fn ns(&self) -> Result<Option<f64>> {
        Ok(self.session.time(BURST)?.map(|(ns, _)| ns))
    }
}

/// Says what happens, to people or to machines.
struct Say<'a> {
    output: &'a Output,
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Say<'_> {
    fn started(&self, session: &Session) -> Result<()> {
        let (program, dir, took_over) = (session.program_name(), session.dir().display(), session.took_over);
        if took_over {
            self.output.text("took hook and maps over from a runnel that was killed\n")?;
        }
        self.output.text(format_args!(
            "{program} is attached; its maps are pinned in {dir}/maps; Ctrl-C detaches it\n"
        ))?;
        let dir = dir.to_string();
        self.output
            .event(&json!({"event": "started", "program": program, "state_dir": dir, "took_over": took_over}))
    }

    fn stopped(&self, fallbacks: u64) -> Result<()> {
        self.output.text("detached; nothing is left behind\n")?;
        self.output.event(&json!({"event": "stopped", "fallbacks_in_all": fallbacks}))
    }

    fn status(&self, now: Option<(f64, u64)>, original: Option<f64>, fallbacks: u64) -> Result<()> {
        if let Some((ns, packets)) = now {
            let rate = packets as f64 / BURST.as_secs_f64() / 1e6;
            let against = original.map_or(String::new(), |o| format!(", the original took {o:.0}"));
            self.output.text(format_args!(
                "{ns:.0} ns/packet at {rate:.2} Mpps{against}; {fallbacks} packets by the original since the swap\n"
            ))?;
        }
        let (ns, packets) = now.unzip();
        self.output.event(&json!({"event": "status", "ns_per_packet": ns, "packets_timed": packets,
            "original_ns_per_packet": original, "fallbacks": fallbacks}))
    }

    fn cycle(&self, cycle: &Cycle, before: Option<f64>, after: Option<f64>, fallbacks: u64) -> Result<()> {
        self.output.text(cycle_text(cycle, before, after))?;
        let mut event = cycle_json(cycle, before, after);
        event["fallbacks_in_all"] = fallbacks.into();
        self.output.event(&event)
    }
}

fn cycle_json(cycle: &Cycle, before: Option<f64>, after: Option<f64>) -> Value {
    let mut event = json!({
        "event": "cycle",
        "cycle": cycle.number,
        "epoch": cycle.epoch,
        "read_ms": ms(cycle.read),
        "specialize_ms": ms(cycle.specialize),
        "tables": cycle.tables.iter().map(table_json).collect::<Vec<_>>(),
    });
    match &cycle.outcome {
        Outcome::Installed(i) => {
            event["outcome"] = "installed".into();
            event["compile_ms"] = ms(cycle.specialize + i.lower).into();
            event["fill_ms"] = ms(i.fill).into();
            event["verify_ms"] = ms(i.verify).into();
            event["swap_ms"] = ms(i.swap).into();
            event["insns"] = i.insns.into();
            event["verified_insns"] = i.verified_insns.into();
            event["memory_bytes"] = i.memory_bytes.into();
            event["ns_before"] = before.into();
            event["ns_after"] = after.into();
        }
        Outcome::Nothing => event["outcome"] = "nothing".into(),
        Outcome::Failed(why) => {
            event["outcome"] = "failed".into();
            event["why"] = why.as_str().into();
        }
    }
    event
}

/// One table as a JSON object, as `run` and `replay` print it.
pub fn table_json(table: &TableReport) -> Value {
    let sites: Vec<Value> = table
        .sites
        .iter()
        .map(|s| {
            json!({"insn": s.origin, "form": s.form, "why": s.why, "predicted_ns": s.predicted_ns,
                "rechecked": s.rechecked})
        })
        .collect();
    json!({"table": table.name, "kind": table.kind.to_string(), "entries": table.entries, "left": table.left,
        "sites": sites})
}

/// What became of a table, in one line for people.
pub fn table_text(table: &TableReport) -> String {
    let entries = table.entries.map_or(String::new(), |n| format!(", {n} entries"));
    let became = match (&table.left, &table.sites[..]) {
        (Some(why), _) => format!("left as it is: {why}"),
        (None, []) => "no lookup of it is left".to_string(),
        (None, sites) => {
            let one = |s: &runnel_engine::specialize::SiteReport| {
                let recheck = if s.rechecked { ", guard checked again" } else { "" };
                format!("{} ({}{recheck})", s.form, s.why)
            };
            sites.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    };
    format!("{} ({}{entries}): {became}", table.name, table.kind)
}

fn cycle_text(cycle: &Cycle, before: Option<f64>, after: Option<f64>) -> String {
    let mut lines = vec![format!("cycle {}: tables read in {:.2} ms", cycle.number, ms(cycle.read))];
    lines.extend(cycle.tables.iter().map(|table| format!("  {}", table_text(table))));
    match &cycle.outcome {
        Outcome::Installed(i) => {
            lines.push(format!(
                "  compiled in {:.2} ms, filled in {:.2} ms, verified in {:.2} ms, swapped in {:.2} ms; {} \
                 instructions, {} KiB of data",
                ms(cycle.specialize + i.lower),
                ms(i.fill),
                ms(i.verify),
                ms(i.swap),
                i.insns,
                i.memory_bytes.div_ceil(1024)
            ));
            lines.push(match (before, after) {
                (Some(before), Some(after)) => {
                    format!(
                        "  {before:.0} ns/packet before, {after:.0} after: {:.2} times as fast",
                        before / after
                    )
                }
                _ => "  no packets to time".to_string(),
            });
        }
        Outcome::Nothing => lines.push("  nothing to specialize: the original stays".to_string()),
        Outcome::Failed(why) => lines.push(format!("  no new version, what runs stays: {why}")),
    }
    lines.join("\n") + "\n"
}
