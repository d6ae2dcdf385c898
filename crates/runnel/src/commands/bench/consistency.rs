//! `runnel bench consistency`: while packets flow and another process changes the tables, does any packet show a
//! state that the original could not have shown?
//!
//! The experiment itself is the lab's ([`runnel_lab::consistency`]); this starts it, prints what came out and
//! decides whether it is good. The same binary also is the process that changes the tables, by a hidden command.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use runnel_lab::LabError;
use runnel_lab::checker::Tally;
use runnel_lab::consistency::{self, Outcome, Settings};
use runnel_lab::scene::SceneSpec;
use runnel_lab::updater::{self, Order};

use super::super::stop_flag;
use super::router_object;
use crate::cli::ConsistencyArgs;
use crate::failure::{Failure, Result};
use crate::output::{Align, Output, TextTable};

/// Routes, as many as a small backbone router's.
const ROUTES: usize = 2500;
/// Below these a warning is printed: share of packets in optimized code, updates per second, packets within 50 µs.
const ENOUGH_OPTIMIZED: f64 = 0.3;
const ENOUGH_UPDATES: f64 = 1000.0;
const ENOUGH_CLOSE: u64 = 10_000;
/// Updates per second; a little above the thousand that is promised, for the last burst may be cut.
const RATE: u32 = 1100;

/// Runs the experiment.
///
/// # Errors
/// What keeps it from being run; wrong or lost packets; with `--without-bump`, that there are no wrong ones.
pub fn run(args: &ConsistencyArgs, output: &Output) -> Result<()> {
    let settings = settings(args, router_object(args.suite.object.as_deref())?)?;
    let stop = stop_flag()?;
    // Whether a line of progress can be printed is no reason to end the experiment.
    let outcome = consistency::run(&settings, &stop, |tally| drop(output.text(progress(tally))))?;
    output.text(format_args!("\n{}", summary(&outcome)))?;
    for explanation in &outcome.explanations {
        output.text(explanation)?;
    }
    for shortcoming in shortcomings(&outcome) {
        output.text(format_args!("warning: {shortcoming}"))?;
    }
    output.report(std::slice::from_ref(&outcome))?;
    verdict(args, &outcome, stop.load(Ordering::Relaxed))
}

/// Is the process that changes the tables, as the experiment orders.
///
/// # Errors
/// The order is none, or the tables cannot be changed.
pub fn update(order: &str) -> Result<()> {
    let order = Order::from_argument(order)?;
    Ok(updater::run(&order, io::stdout().lock())?)
}

fn settings(args: &ConsistencyArgs, object: PathBuf) -> Result<Settings> {
    let runnel = std::env::current_exe()
        .map_err(|e| Failure::new("cannot find this program's own file").because(e))?;
    let updater = ["bench", "updater"].map(str::to_owned).to_vec();
    Ok(Settings {
        updater: (runnel.clone(), updater),
        runnel,
        object,
        scene: SceneSpec { routes: ROUTES, seed: args.seed },
        seconds: args.seconds,
        rate: RATE,
        bump: !args.without_bump,
    })
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Failure {
        match error {
            LabError::Kernel(e) => e.into(),
            other => Failure::new(other.to_string()),
        }
    }
}

fn progress(tally: &Tally) -> String {
    format!(
        "{} packets judged, {} wrong, {} lost; {} updates, {} packets within 50 µs of one",
        tally.packets, tally.wrong, tally.lost, tally.updates, tally.close
    )
}

fn summary(outcome: &Outcome) -> TextTable {
    let mut table = TextTable::plain([Align::Left, Align::Right, Align::Left]);
    let mut row = |name: &str, value: String, remark: String| table.row([name.to_owned(), value, remark]);
    let rate = |per_second: f64| format!("{per_second:.0} a second");
    row("time", format!("{:.1} s", outcome.seconds), String::new());
    row("packets, each judged", outcome.packets.to_string(), rate(outcome.packet_rate()));
    row("updates", outcome.updates.to_string(), rate(outcome.update_rate()));
    row("versions swapped in", outcome.swaps.to_string(), String::new());
    row("packets in optimized code", format!("{:.1} %", 100.0 * outcome.optimized_share), String::new());
    row("started within 50 µs of an update", outcome.packets_within_50us.to_string(), String::new());
    row("  which concerned them", outcome.concerned_within_50us.to_string(), String::new());
    let races = "the original shows these too, by races of the kernel's hash table".to_owned();
    row("right by a race only", outcome.kernel_races.to_string(), races);
    row("lost", outcome.lost_packets.to_string(), String::new());
    row("wrong", outcome.wrong_outcomes.to_string(), String::new());
    table
}

/// Where the experiment shows less than it is made for. No failure: all of this depends on the machine.
fn shortcomings(outcome: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    if outcome.optimized_share < ENOUGH_OPTIMIZED {
        found.push("too few packets in optimized code to show much".into());
    }
    if outcome.update_rate() < ENOUGH_UPDATES {
        found.push(format!("fewer than {ENOUGH_UPDATES} updates a second"));
    }
    if outcome.packets_within_50us < ENOUGH_CLOSE {
        found.push(format!("fewer than {ENOUGH_CLOSE} packets within 50 µs of an update"));
    }
    found
}

fn verdict(args: &ConsistencyArgs, outcome: &Outcome, stopped: bool) -> Result<()> {
    if args.without_bump {
        return if outcome.wrong_outcomes > 0 {
            Ok(())
        } else {
            Err(Failure::new(
                "no wrong packet was found though the watcher's bump was off: the checker is blind",
            ))
        };
    }
    if outcome.wrong_outcomes > 0 {
        let what = format!("{} packets show what the original could not have shown", outcome.wrong_outcomes);
        return Err(Failure::new(what));
    }
    if outcome.lost_packets > 0 {
        return Err(Failure::new(format!("{} packets were lost", outcome.lost_packets)));
    }
    if stopped {
        return Err(Failure::new("interrupted before the time was up"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::SuiteArgs;

    #[test]
    fn what_shows_too_little_is_warned_of_and_what_is_wrong_fails() {
        let good = Outcome {
            seconds: 60.0,
            updates: 66_000,
            optimized_share: 0.6,
            packets_within_50us: 2_000_000,
            ..Outcome::default()
        };
        let bump = ConsistencyArgs { suite: SuiteArgs::default(), seconds: 60, seed: 1, without_bump: false };
        let blind = ConsistencyArgs { without_bump: true, ..bump.clone() };
        assert!(shortcomings(&good).is_empty());
        assert_eq!(shortcomings(&Outcome::default()).len(), 3);
        assert!(verdict(&bump, &good, false).is_ok());
        assert!(verdict(&bump, &good, true).is_err());
        assert!(verdict(&blind, &good, false).is_err());
        let lossy = Outcome { lost_packets: 1, ..good.clone() };
        assert!(verdict(&bump, &lossy, false).is_err());
        let wrong = Outcome { wrong_outcomes: 1, ..good };
        assert!(verdict(&bump, &wrong, false).is_err());
        assert!(verdict(&blind, &wrong, false).is_ok());
    }
}
