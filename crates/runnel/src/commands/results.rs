//! What replays and benchmarks tell: rows for machines, and the same in a few lines for people.

use std::time::Duration;

use runnel_bpf::disasm;
use runnel_interp::Reached;
use serde::Serialize;

use crate::failure::Result;
use crate::output::{Align, Output, TextTable};
use crate::xdp::check::{Finished, Interpreted, Report, verdict_name};
use crate::xdp::measure::{Measurement, Timed};
use crate::xdp::reach::Reach;
use crate::xdp::reference::Reference;
use crate::xdp::trial::{Times, Trial, TrialError};

use super::run::{table_json, table_text};

/// One variant of one program on one trace.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The program.
    pub program: String,
    /// Where the contents of its tables come from.
    pub table: Option<String>,
    /// Locality of the trace, where it was generated.
    pub locality: Option<&'static str>,
    /// `original` or `runnel`.
    pub variant: &'static str,
    /// Median over slices, replay included.
    pub ns_per_packet: f64,
    /// A quarter of the slices were faster.
    pub ns_p25: f64,
    /// A quarter of the slices were slower.
    pub ns_p75: f64,
    /// What the replay itself costs.
    pub replay_ns: f64,
    /// Against the original, replay cost included.
    pub speedup: f64,
    /// Against the original, without the replay's cost.
    pub speedup_net: f64,
    /// How far the original was from itself, relatively.
    pub aa_error: f64,
    /// Share of the packets that ran optimized code.
    pub optimized_share: f64,
    /// Packets compared.
    pub packets_compared: u64,
    /// Packets and entries of maps that differed.
    pub differences: u64,
    /// Share of the directions of the original's branches that packets took.
    pub branches_reached: f64,
    /// Share of the entries of specialized tables that lookups found.
    pub entries_reached: f64,
    /// Analysis and compilation.
    pub compile_ms: Option<f64>,
    /// Reading the tables.
    pub read_ms: Option<f64>,
    /// Creating and filling the version's memory.
    pub fill_ms: Option<f64>,
    /// Verification by the kernel, and its translation to machine code.
    pub verify_ms: Option<f64>,
    /// Replacing the program on a hook.
    pub swap_ms: Option<f64>,
    /// Memory of the version's data.
    pub memory_bytes: u64,
    /// Instructions of the program as loaded.
    pub insns: usize,
    /// IR instructions executed per packet, without those that become operands; where they were counted.
    pub insns_executed: Option<f64>,
    /// What became of the tables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<serde_json::Value>,
}

/// What a trial came to on one trace.
pub struct Outcome<'a> {
    /// The program's name.
    pub program: &'a str,
    /// Where the contents of its tables come from.
    pub table: Option<String>,
    /// Locality of the trace, where it was generated.
    pub locality: Option<&'static str>,
    /// The comparison.
    pub finished: &'a Finished,
    /// What it reached.
    pub reach: &'a Reach,
    /// The timing.
    pub measurement: &'a Measurement,
}

fn ms(duration: Duration) -> f64 {
    round(duration.as_secs_f64() * 1e3)
}

/// To a thousandth: more digits would only pretend.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The rows of a trial on one trace: the original, and what Runnel makes of it.
///
/// # Errors
/// None that can happen: the trial's program is loaded.
pub fn rows(trial: &Trial, outcome: &Outcome<'_>) -> std::result::Result<[Row; 2], TrialError> {
    let Outcome { finished, reach, measurement, .. } = outcome;
    let executed = |r: &Option<Reference>| r.as_ref().map(|r| round(r.instructions_per_packet()));
    let row = |variant, timed: Timed| Row {
        program: outcome.program.into(),
        table: outcome.table.clone(),
        locality: outcome.locality,
        variant,
        ns_per_packet: round(timed.median),
        ns_p25: round(timed.p25),
        ns_p75: round(timed.p75),
        replay_ns: round(measurement.replay.median),
        speedup: 1.0,
        speedup_net: 1.0,
        aa_error: (measurement.aa_error() * 1e5).round() / 1e5,
        optimized_share: 0.0,
        packets_compared: finished.report.packets,
        differences: finished.report.total(),
        branches_reached: round(reach.branches.share()),
        entries_reached: round(reach.entries().share()),
        compile_ms: None,
        read_ms: None,
        fill_ms: None,
        verify_ms: None,
        swap_ms: None,
        memory_bytes: 0,
        insns: 0,
        insns_executed: None,
        tables: Vec::new(),
    };
    let original = Row {
        insns: trial.original()?.insns.len(),
        insns_executed: executed(&finished.original),
        ..row("original", measurement.original)
    };
    let (times, candidate) = (trial.times(), &trial.version().candidate);
    let runnel = Row {
        speedup: round(measurement.speedup()),
        speedup_net: round(measurement.speedup_net()),
        optimized_share: (measurement.optimized_share * 1e5).round() / 1e5,
        compile_ms: Some(ms(times.compile())),
        read_ms: Some(ms(times.read)),
        fill_ms: Some(ms(times.fill)),
        verify_ms: Some(ms(times.verify)),
        swap_ms: Some(ms(times.swap)),
        memory_bytes: candidate.memory_bytes,
        insns: candidate.spec.insns.len(),
        insns_executed: executed(&finished.specialized),
        tables: trial.tables().iter().map(table_json).collect(),
        ..row("runnel", measurement.optimized)
    };
    Ok([original, runnel])
}

/// Prints what became of the tables, and what the making of the version cost.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_version(output: &Output, trial: &Trial) -> Result<()> {
    for table in trial.tables() {
        output.text(format_args!("  {}", table_text(table)))?;
    }
    let Times { read, lift, specialize, lower, fill, verify, swap } = trial.times();
    let candidate = &trial.version().candidate;
    tracing::debug!("specialized IR:\n{}", trial.version().specialized.program.compact());
    tracing::debug!("its code:\n{}", disasm::program(&candidate.spec));
    output.text(format_args!(
        "  tables read in {} ms; analysed and compiled in {} ms (lifted {}, specialized {}, code generated {})",
        ms(read),
        ms(lift + specialize + lower),
        ms(lift),
        ms(specialize),
        ms(lower)
    ))?;
    output.text(format_args!(
        "  memory filled in {} ms, verified in {} ms, swapped in {} ms; {} instructions, {} walked through by the \
         verifier, {} KiB of data",
        ms(fill),
        ms(verify),
        ms(swap),
        candidate.spec.insns.len(),
        candidate.load.verified_insns,
        candidate.memory_bytes.div_ceil(1024)
    ))
}

/// Prints what a comparison found.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_comparison(output: &Output, report: &Report) -> Result<()> {
    let verdicts: Vec<String> =
        report.verdicts.iter().map(|(v, n)| format!("{n} {}", verdict_name(*v))).collect();
    let verdicts = verdicts.join(", ");
    if report.agrees() {
        output.text(format_args!(
            "  {} packets compared ({verdicts}): no verdict, byte, redirection or map entry differs",
            report.packets
        ))?;
    } else {
        output.text(format_args!(
            "  {} packets compared ({verdicts}): {} DIFFER, and {} entries of maps",
            report.packets, report.differences, report.map_differences
        ))?;
        output.text(report.to_string().trim_end())?;
    }
    let names = ["the lifted original", "the specialized IR"];
    for (name, interpreted) in names.into_iter().zip(&report.interpreted) {
        match interpreted {
            Interpreted::All(_) => {}
            Interpreted::Not(why) => {
                output.text(format_args!("  {name} was not interpreted beside them: {why}"))?;
            }
        }
    }
    Ok(())
}

/// Prints what was reached.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_reach(output: &Output, reach: &Reach) -> Result<()> {
    let of = |Reached { reached, total }: Reached| format!("{reached} of {total}");
    let (branches, entries) = (of(reach.branches), of(reach.entries()));
    output.text(format_args!(
        "  reached: {branches} directions of branches, {entries} entries of specialized tables"
    ))?;
    for unreached in &reach.unreached {
        let place = unreached.insn.map_or(String::new(), |pc| format!("{pc}: "));
        let direction = if unreached.taken { "holds" } else { "fails" };
        let why = unreached.impossible.map_or(String::new(), |why| format!(" (cannot happen: {why})"));
        output.text(format_args!("    not reached: {place}{} {direction}{why}", unreached.text))?;
    }
    Ok(())
}

/// A table of measurements for people; [`timing`] gives its rows.
pub fn timings(first: &'static str) -> TextTable {
    TextTable::new([
        (first, Align::Left),
        ("variant", Align::Left),
        ("ns/packet", Align::Right),
        ("p25", Align::Right),
        ("p75", Align::Right),
        ("net", Align::Right),
        ("times as fast", Align::Right),
        ("net", Align::Right),
        ("optimized", Align::Right),
    ])
    .indented(2)
}

/// What the words in [`timings`] mean, for people.
pub const LEGEND: &str = "  net: without what the replay costs, which is the row `nothing`, a program that returns at once; `original again`: \
                          the same program measured twice";

/// Adds the rows of a measurement.
pub fn timing(table: &mut TextTable, name: &str, measurement: &Measurement) {
    let ns = |v: f64| format!("{v:.1}");
    let row = |variant: &str, timed: Timed, more: [String; 3]| {
        let net = ns(timed.median - measurement.replay.median);
        let cells =
            [name.to_owned(), variant.to_owned(), ns(timed.median), ns(timed.p25), ns(timed.p75), net];
        cells.into_iter().chain(more)
    };
    let none = [(); 3].map(|()| String::new());
    table.row(row("original", measurement.original, none.clone()));
    let again = format!("{:.3}", measurement.original.median / measurement.again.median);
    table.row(row("original again", measurement.again, [again, String::new(), String::new()]));
    let gain = [
        format!("{:.2}", measurement.speedup()),
        format!("{:.2}", measurement.speedup_net()),
        format!("{:.2} %", measurement.optimized_share * 100.0),
    ];
    table.row(row("runnel", measurement.optimized, gain));
    let replay = measurement.replay;
    let cells = [name.to_owned(), "nothing".into(), ns(replay.median), ns(replay.p25), ns(replay.p75)];
    table.row(cells.into_iter().chain(none));
}
