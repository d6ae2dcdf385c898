//! `router-ctl`, the control program of the XDP router: fills its tables and changes them while it runs.
//!
//! This file turns the command line into calls of the library and of [`kernel`], and errors into messages:
//! status 0 on success, 1 on failure, 2 on wrong usage. It deliberately neither loads nor attaches a program.

mod cli;
mod kernel;
mod show;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use libbpf_rs::MapFlags;
use nix::net::if_::if_nametoindex;
use nix::time::{ClockId, clock_gettime};
use router_ctl::churn::{self, Action, Churn, Clock, Pace};
use router_ctl::layout::map;
use router_ctl::parse::{self, Source};
use router_ctl::{Neighbour, Port, RouteKey, Tables};

use cli::{
    ChurnArgs, Cli, Command, LocalCommand, NeighCommand, PortArgs, PortCommand, TableFiles, WrongUsage,
};
use kernel::Maps;

/// Whatever went wrong; only its message is of interest here.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if is_broken_pipe(failure.as_ref()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("router-ctl: {failure}");
            if failure.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether the reader of our output has gone, as `head` does once it has seen enough.
fn is_broken_pipe(failure: &(dyn std::error::Error + 'static)) -> bool {
    failure.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn run(cli: Cli) -> Result<(), Failure> {
    let maps = Maps::new(cli.maps, cli.ids);
    match cli.command {
        Command::Load(files) => {
            for (name, entries) in &read_tables(&files)?.entries() {
                maps.open(name)?.fill(entries)?;
            }
        }
        Command::DumpJson(files) => {
            let mut out = BufWriter::new(io::stdout().lock());
            read_tables(&files)?.write_json(&mut out)?;
            writeln!(out)?;
            out.flush()?;
        }
        Command::Add(route) => {
            let (key, value) = route.entry()?;
            maps.open(map::ROUTES)?.update(&key, &value, MapFlags::NO_EXIST)?;
        }
        Command::Change(route) => {
            let (key, value) = route.entry()?;
            maps.open(map::ROUTES)?.update(&key, &value, MapFlags::EXIST)?;
        }
        Command::Del { prefix } => maps.open(map::ROUTES)?.delete(&RouteKey::from(prefix))?,
        Command::Neigh(NeighCommand::Add { address, mac, incomplete }) => {
            let state = if incomplete { Neighbour::INCOMPLETE } else { Neighbour::REACHABLE };
            maps.open(map::NEIGHBOURS)?.update(&address, &Neighbour { mac, state }, MapFlags::ANY)?;
        }
        Command::Neigh(NeighCommand::Del { address }) => maps.open(map::NEIGHBOURS)?.delete(&address)?,
        Command::Port(PortCommand::Add(port)) => add_port(&maps, &port)?,
        Command::Port(PortCommand::Del { id }) => maps.open(map::PORTS)?.delete(&id)?,
        Command::Local(LocalCommand::Add { address }) => {
            maps.open(map::LOCAL_ADDRS)?.update(&address, &1u32, MapFlags::ANY)?;
        }
        Command::Local(LocalCommand::Del { address }) => maps.open(map::LOCAL_ADDRS)?.delete(&address)?,
        Command::Show { json } => show::show(&maps, json)?,
        Command::Churn(args) => churn_tables(&maps, &args)?,
    }
    Ok(())
}

/// Reads the files, and makes up what `--next-hops` asks for.
fn read_tables(files: &TableFiles) -> Result<Tables, Failure> {
    fn read<T>(
        path: Option<&Path>,
        parse: impl Fn(Source) -> Result<T, parse::ParseError>,
    ) -> Result<Option<T>, parse::ParseError> {
        path.map(|path| Source::open(path).and_then(&parse)).transpose()
    }

    let mut tables = Tables::default();
    if let Some(file) = read(files.ports.as_deref(), parse::ports)? {
        (tables.ports, tables.tx_ports) = (file.ports, file.tx_ports);
    }
    tables.neighbours = read(files.neighbours.as_deref(), parse::neighbours)?.unwrap_or_default();
    tables.local_addrs = read(files.local.as_deref(), parse::local_addrs)?.unwrap_or_default();
    match files.next_hops {
        None => {
            tables.routes = read(files.routes.as_deref(), parse::routes).map_err(hint)?.unwrap_or_default();
        }
        Some(next_hops) => {
            let prefixes = read(files.routes.as_deref(), parse::prefixes)?.unwrap_or_default();
            if files.ports.is_none() {
                tables.make_ports(files.port_count)?;
            }
            tables.spread_routes(&prefixes, next_hops)?;
            if files.neighbours.is_none() {
                tables.make_neighbours();
            }
        }
    }
    Ok(tables)
}

/// Tables of the Internet name origins where ours have next hops.
fn hint(error: parse::ParseError) -> Failure {
    match error {
        parse::ParseError::MissingColumn { column: "next_hop", .. } => {
            format!("{error}; --next-hops N makes next hops up").into()
        }
        _ => error.into(),
    }
}

fn add_port(maps: &Maps, args: &PortArgs) -> Result<(), Failure> {
    let mut flags = if args.down { 0 } else { Port::UP };
    if args.same_dev {
        flags |= Port::SAME_DEV;
    }
    let tx_index = match args.tx_index {
        Some(slot) => slot,
        None => parse::tx_index(&args.id.to_string())
            .map_err(|reason| WrongUsage(format!("port {}: {reason}; give --tx-index", args.id)))?,
    };
    let ifindex = match &args.dev {
        Some(dev) => Some(if_nametoindex(dev.as_str()).map_err(|e| format!("interface `{dev}`: {e}"))?),
        None => args.ifindex,
    };
    // The way out first, so that the port never leads nowhere.
    if let Some(ifindex) = ifindex {
        maps.open(map::TX_PORTS)?.update(&tx_index, &ifindex, MapFlags::ANY)?;
    }
    let port = Port { tx_index, mac: args.mac, vlan_id: args.vlan, mtu: args.mtu, flags };
    maps.open(map::PORTS)?.update(&args.id, &port, MapFlags::ANY)?;
    Ok(())
}

/// The clock that the kernel's `bpf_ktime_get_ns` shows, too.
struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&mut self) -> u64 {
        // CLOCK_MONOTONIC is always there and never negative.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep_until(&mut self, ns: u64) {
        thread::sleep(Duration::from_nanos(ns.saturating_sub(self.now_ns())));
    }
}

fn churn_tables(maps: &Maps, args: &ChurnArgs) -> Result<(), Failure> {
    let (routes, neighbours) = (maps.open(map::ROUTES)?, maps.open(map::NEIGHBOURS)?);
    let mut churn =
        Churn::new(routes.dump()?, neighbours.dump::<Ipv4Addr, _>()?, args.neighbour_share, args.seed)?;
    let mut log = BufWriter::new(
        File::create(&args.log).map_err(|e| format!("cannot write the log {}: {e}", args.log.display()))?,
    );
    let pace = Pace { rate: args.rate, burst: args.burst, duration: args.seconds };
    let apply = |change: &churn::Change| {
        let map = if change.entry.map() == map::ROUTES { &routes } else { &neighbours };
        let (key, value) = (change.entry.key(), change.entry.value());
        match change.action {
            Action::Add => map.update_bytes(&key, &value, MapFlags::NO_EXIST),
            Action::Change => map.update_bytes(&key, &value, MapFlags::EXIST),
            Action::Withdraw => map.delete_bytes(&key),
        }
    };
    let summary = churn::run(&mut churn, pace, &mut Monotonic, apply, &mut log)?;
    writeln!(io::stdout(), "{} changes, {} bursts late", summary.changes, summary.late_bursts)?;
    Ok(())
}
