//! `runnel bench router`: the router of `nf/router` with a backbone's table, at three localities of traffic.
//!
//! The table is that of a Stanford backbone router where `RUNNEL_DATA` says where the data sets are, else a generated
//! one of the same size. Every prefix leads to one of 16 next hops by one of 4 ports, chosen by a hash of its text.
//! The router has a few addresses of its own, as routers have.
//!
//! Packets that reach every branch are compared beside the traffic, twice: those that these tables have, and those of
//! small tables in which nothing is missing. Only the traffic is timed.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;
use router_ctl::{Port, RouteValue, Tables, layout, parse};
use runnel_bpf::maps_json::{Entry, MapContents, Value};
use runnel_testkit::packet::Frame;
use runnel_testkit::router::{every_branch, sample_tables};
use runnel_testkit::routes;
use runnel_testkit::trace::{Locality, Model, TraceSpec, trace};

use super::super::replay::{TOLD, differs, failure};
use super::super::results::{
    LEGEND, Outcome, Row, print_comparison, print_reach, print_version, rows, timing, timings,
};
use super::{plot, router_object};
use crate::cli::RouterArgs;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::xdp::check::Finished;
use crate::xdp::maps::{Source, StandIn};
use crate::xdp::reference::Reference;
use crate::xdp::trial::Trial;

/// The program.
const PROGRAM: &str = "router";
/// Prefixes of the generated table: as many as the backbone router has.
const ROUTES: usize = 2_592;
/// Next hops and ports.
const NEXT_HOPS: u32 = 16;
const PORTS: u32 = 4;
/// A port of the small tables, beyond those of the sample.
const UNCOUNTED: u32 = 6;
/// UDP payload that makes the shortest frame, in bytes.
const PAYLOAD: usize = 18;
/// Seed of all that is random.
const SEED: u64 = 1;

/// The table and where it comes from.
struct Input {
    name: &'static str,
    prefixes: Vec<Ipv4Net>,
    tables: Tables,
}

/// Runs the experiment.
///
/// # Errors
/// What keeps it from running, and any difference.
pub fn run(args: &RouterArgs, output: &Output) -> Result<()> {
    let object = router_object(args.suite.object.as_deref())?;
    let input = input()?;
    let devices = StandIn::new().map_err(|e| failure(e.into()))?;
    let small = sampled(&object, &devices)?;
    let contents = contents(&input.tables);
    let source = Source { object: &object, program: PROGRAM, contents: &contents, devices: &devices };
    let trial = Trial::prepare(source).map_err(failure)?;
    output.text(output.heading(&format!("router, {} ({} routes)", input.name, input.tables.routes.len())))?;
    print_version(output, &trial)?;

    let cases = cases(&input.tables)?;
    let mut compared = Vec::new();
    for locality in Locality::ALL {
        let traffic = traffic(&input, locality, args.packets)?;
        let finished = trial.compare(cases.iter().chain(&traffic), TOLD).map_err(failure)?;
        output.text(format_args!("locality {}", locality.name()))?;
        print_comparison(output, &finished.report)?;
        let runs: Vec<&Reference> = finished.original.iter().chain(&small.original).collect();
        let reach = trial.reach(&runs).map_err(failure)?;
        print_reach(output, &reach)?;
        compared.push((locality, traffic, finished, reach));
    }

    let mut all: Vec<Row> = Vec::new();
    let mut table = timings("locality");
    for (locality, traffic, finished, reach) in &compared {
        let measurement = trial.measure(traffic, args.packets as u64).map_err(failure)?;
        timing(&mut table, locality.name(), &measurement);
        let outcome = Outcome {
            program: PROGRAM,
            table: Some(input.name.into()),
            locality: Some(locality.name()),
            finished,
            reach,
            measurement: &measurement,
        };
        all.extend(rows(&trial, &outcome).map_err(failure)?);
    }
    output.text(table)?;
    output.text(LEGEND)?;
    output.report(&all)?;
    if let Some(dir) = &args.plot {
        plot::localities(dir, "router", &all)?;
    }
    let everything = compared.iter().map(|(_, _, finished, _)| finished).chain([&small]);
    match everything.map(|finished| finished.report.total()).sum() {
        0 => Ok(()),
        differences => Err(differs(PROGRAM, differences)),
    }
}

/// The comparison on small tables that have every branch.
fn sampled(object: &Path, devices: &StandIn) -> Result<Finished> {
    let mut tables = sample_tables(devices.ifindex());
    let mut packets = cases(&tables)?;
    // A port beyond the end of the counters, which the sample does without.
    if let Some(&(_, port)) = tables.ports.first() {
        tables.ports.push((UNCOUNTED, Port { tx_index: layout::MAX_PORTS as u32, ..port }));
        let prefix = Ipv4Net::new_assert(Ipv4Addr::new(20, 6, 0, 0), 16);
        let next_hop = Ipv4Addr::new(192, 168, 1, 1);
        tables.routes.push((prefix.into(), RouteValue { next_hop, port: UNCOUNTED }));
        let frame = Frame::to(Ipv4Addr::new(20, 6, 0, 1)).build();
        packets.push(frame.map_err(|e| Failure::new("cannot make a packet").because(e))?);
    }
    let contents = contents(&tables);
    let source = Source { object, program: PROGRAM, contents: &contents, devices };
    let trial = Trial::prepare(source).map_err(failure)?;
    trial.compare(&packets, TOLD).map_err(failure)
}

fn input() -> Result<Input> {
    let data = std::env::var_os("RUNNEL_DATA").map(|dir| PathBuf::from(dir).join("routes/stanford-yozb.csv"));
    let (name, prefixes) = match data {
        Some(path) => {
            let read = parse::Source::open(&path).and_then(parse::prefixes);
            let failed =
                |e| Failure::new(format!("cannot read the routes in `{}`", path.display())).because(e);
            ("stanford-yozb", read.map_err(failed)?)
        }
        None => {
            let made = routes::generate(ROUTES, SEED);
            ("generated", made.map_err(|e| Failure::new("cannot generate routes").because(e))?)
        }
    };
    let made = Tables::spread(&prefixes, NEXT_HOPS, PORTS);
    let mut tables = made.map_err(|e| Failure::new("cannot make the router's tables").because(e))?;
    tables.local_addrs = (0..PORTS as u8)
        .flat_map(|port| [Ipv4Addr::new(192, 168, 10 + port, 1), Ipv4Addr::new(192, 168, 10 + port, 255)])
        .collect();
    Ok(Input { name, prefixes, tables })
}

fn contents(tables: &Tables) -> MapContents {
    let entry = |(key, value)| Entry { key, value: Value::Bytes(value) };
    let map = |(name, entries): (&str, Vec<_>)| (name.to_owned(), entries.into_iter().map(entry).collect());
    MapContents { maps: tables.entries().into_iter().map(map).collect() }
}

fn cases(tables: &Tables) -> Result<Vec<Vec<u8>>> {
    let set = every_branch(tables);
    let set = set.map_err(|e| Failure::new("cannot make packets for every branch").because(e))?;
    Ok(set.cases.into_iter().map(|case| case.packet).collect())
}

fn traffic(input: &Input, locality: Locality, packets: usize) -> Result<Vec<Vec<u8>>> {
    let spec = TraceSpec { packets, model: Model::Pareto(locality), payload: PAYLOAD, seed: SEED };
    trace(&input.prefixes, &spec).map_err(|e| Failure::new("cannot make the traffic").because(e))
}
