//! The command line of `router-ctl`. Parsing acts on nothing.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use ipnet::Ipv4Net;
use router_ctl::layout::MAX_PORTS;
use router_ctl::parse::{self, DEFAULT_MTU};
use router_ctl::tables::MAX_NEXT_HOPS;
use router_ctl::{Mac, RouteKey, RouteValue};

/// Fills the tables of the XDP router and changes them while it runs.
#[derive(Debug, Parser)]
#[command(name = "router-ctl", version, about)]
pub struct Cli {
    /// Directory on a BPF file system that has the router's maps pinned by their names.
    #[arg(long, global = true, value_name = "DIR")]
    pub maps: Option<PathBuf>,

    /// A map by its id; repeat it for each map that is needed. Goes before --maps.
    #[arg(long = "id", global = true, value_name = "NAME=ID", value_parser = map_id)]
    pub ids: Vec<(String, u32)>,

    #[command(subcommand)]
    pub command: Command,
}

fn map_id(text: &str) -> Result<(String, u32), String> {
    let (name, id) = text.split_once('=').ok_or("write it as routes=17")?;
    Ok((name.into(), id.parse().map_err(|_| format!("`{id}` is not a map id"))?))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fill the tables from files; entries that are there already are replaced, others are left.
    Load(TableFiles),
    /// Print what `load` would write, as JSON: per map name what `bpftool -j map dump` prints.
    DumpJson(TableFiles),
    /// Add a route: PREFIX via NEXT_HOP [dev PORT], or PREFIX dev PORT if directly connected.
    Add(Route),
    /// Change a route that is there.
    Change(Route),
    /// Withdraw a route.
    Del {
        #[arg(value_parser = parse::prefix)]
        prefix: Ipv4Net,
    },
    /// Add (or replace) and delete neighbours.
    #[command(subcommand)]
    Neigh(NeighCommand),
    /// Add (or replace) and delete ports.
    #[command(subcommand)]
    Port(PortCommand),
    /// Add and delete the router's own addresses.
    #[command(subcommand)]
    Local(LocalCommand),
    /// Print the tables and the counters; those of per-CPU maps summed up.
    Show {
        /// As JSON.
        #[arg(long, short)]
        json: bool,
    },
    /// Add, change and withdraw routes and neighbours in bursts, and log every change.
    Churn(ChurnArgs),
}

#[derive(Debug, Args)]
pub struct TableFiles {
    /// CSV file, plain or gzip, with columns `prefix`, `next_hop` and perhaps `port`.
    #[arg(long, value_name = "FILE")]
    pub routes: Option<PathBuf>,

    /// CSV file with columns `address`, `mac` and perhaps `state`.
    #[arg(long, value_name = "FILE")]
    pub neighbours: Option<PathBuf>,

    /// CSV file with columns `port`, `mac` and perhaps `tx_index`, `vlan_id`, `mtu`, `flags`, `ifindex`.
    #[arg(long, value_name = "FILE")]
    pub ports: Option<PathBuf>,

    /// CSV file with the column `address`.
    #[arg(long, value_name = "FILE")]
    pub local: Option<PathBuf>,

    /// Spread the routes over N next hops, 192.168.1.1 onwards, by a hash of their prefix, and the next hops over
    /// the ports, whatever the file says. Ports and neighbours for which no file is given are made up.
    #[arg(long, value_name = "N", requires = "routes",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_NEXT_HOPS)))]
    pub next_hops: Option<u32>,

    /// How many ports to make up. They send packets back to where they come from.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "next_hops", conflicts_with = "ports",
          value_parser = clap::value_parser!(u32).range(1..=MAX_PORTS as i64))]
    pub port_count: u32,
}

/// The command line parses, but means nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUsage(pub String);

#[derive(Debug, Args)]
pub struct Route {
    #[arg(value_parser = parse::prefix)]
    prefix: Ipv4Net,
    /// `via NEXT_HOP`, `dev PORT`, or both in either order; the port is 0 if none is given.
    #[arg(value_names = ["via|dev", "NEXT_HOP|PORT"], num_args = 2..=4, required = true)]
    way: Vec<String>,
}

impl Route {
    /// The entry of `routes`.
    pub fn entry(&self) -> Result<(RouteKey, RouteValue), WrongUsage> {
        let (mut next_hop, mut port) = (None, None);
        for pair in self.way.chunks(2) {
            let place_is_free = match pair {
                [word, text] if word == "via" => {
                    let addr =
                        text.parse().map_err(|_| WrongUsage(format!("`{text}` is not an IPv4 address")))?;
                    next_hop.replace(addr).is_none()
                }
                [word, text] if word == "dev" => {
                    let id =
                        text.parse().map_err(|_| WrongUsage(format!("`{text}` is not a port number")))?;
                    port.replace(id).is_none()
                }
                _ => false,
            };
            if !place_is_free {
                let way = self.way.join(" ");
                return Err(WrongUsage(format!("`{way}`: write it as `via 192.168.1.1 dev 2`")));
            }
        }
        let next_hop = next_hop.unwrap_or(Ipv4Addr::UNSPECIFIED);
        Ok((self.prefix.into(), RouteValue { next_hop, port: port.unwrap_or(0) }))
    }
}

#[derive(Debug, Subcommand)]
pub enum NeighCommand {
    /// Add a neighbour, or replace it.
    Add {
        address: Ipv4Addr,
        mac: Mac,
        /// Its Ethernet address is being resolved: packets for it go to the kernel's stack.
        #[arg(long)]
        incomplete: bool,
    },
    /// Delete a neighbour.
    Del { address: Ipv4Addr },
}

#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// Add a port, or replace it.
    Add(PortArgs),
    /// Delete a port. Its slot of `tx_ports` stays, for other ports (VLANs) may use it.
    Del { id: u32 },
}

#[derive(Debug, Args)]
pub struct PortArgs {
    /// Its number, by which routes name it.
    pub id: u32,

    /// Source address of the frames that leave by it.
    #[arg(long)]
    pub mac: Mac,

    /// Slot of the device map and of the counters [default: its number].
    #[arg(long, value_name = "SLOT", value_parser = parse::tx_index)]
    pub tx_index: Option<u32>,

    /// The network device to send by.
    #[arg(long, value_name = "NAME", conflicts_with = "ifindex")]
    pub dev: Option<String>,

    /// The network device to send by, by its index.
    #[arg(long, value_name = "INDEX")]
    pub ifindex: Option<u32>,

    /// VLAN of the frames that leave by it; 0: untagged.
    #[arg(long, default_value_t = 0, value_parser = parse::vlan_id)]
    pub vlan: u16,

    /// Longest IP packet, in bytes.
    #[arg(long, default_value_t = DEFAULT_MTU)]
    pub mtu: u16,

    /// Nothing leaves by it.
    #[arg(long)]
    pub down: bool,

    /// It is the device that packets come in by.
    #[arg(long)]
    pub same_dev: bool,
}

#[derive(Debug, Subcommand)]
pub enum LocalCommand {
    /// Add an address.
    Add { address: Ipv4Addr },
    /// Delete an address.
    Del { address: Ipv4Addr },
}

#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Changes per second, over all.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: u32,

    /// Changes made at once; the pauses between bursts keep the rate.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub burst: u32,

    /// How long, in seconds.
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub seconds: Duration,

    /// Share of the changes that are about neighbours, 0 to 1.
    #[arg(long, default_value_t = 0.1, value_parser = share)]
    pub neighbour_share: f64,

    /// The same seed makes the same changes to the same tables.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Where to log every change, as CSV with the times (CLOCK_MONOTONIC) before and after it.
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or("not a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn route(words: &str) -> Result<(RouteKey, RouteValue), String> {
        let words = ["router-ctl", "add", "10.0.0.0/8"].into_iter().chain(words.split(' '));
        let cli = Cli::try_parse_from(words).map_err(|e| e.to_string())?;
        let Command::Add(route) = cli.command else { panic!("{cli:?}") };
        route.entry().map_err(|e| e.to_string())
    }

    #[test]
    fn routes_are_written_as_for_ip_route() {
        let key = RouteKey::from("10.0.0.0/8".parse::<Ipv4Net>().unwrap());
        let value = |next_hop: [u8; 4], port| RouteValue { next_hop: next_hop.into(), port };
        assert_eq!(route("via 1.2.3.4"), Ok((key, value([1, 2, 3, 4], 0))));
        assert_eq!(route("via 1.2.3.4 dev 2"), Ok((key, value([1, 2, 3, 4], 2))));
        assert_eq!(route("dev 2 via 1.2.3.4"), Ok((key, value([1, 2, 3, 4], 2))));
        assert_eq!(route("dev 2"), Ok((key, value([0; 4], 2))));
        for bad in ["via", "via x", "dev eth0", "dev 1 dev 2", "via 1.2.3.4 dev", "to 1.2.3.4"] {
            assert!(route(bad).is_err(), "{bad}");
        }
    }
}
