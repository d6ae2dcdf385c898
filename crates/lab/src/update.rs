//! A change of the router's tables, when it was made, and how one process tells another of it.
//!
//! A line is one report: `R` for a route and `N` for a neighbour, with the times just before the system call and
//! just after it returned, the key, and the value unless the entry was withdrawn; `Q` promises that no change begins
//! before a time. Times are `CLOCK_MONOTONIC` in nanoseconds.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use router_ctl::{Mac, MapData, Neighbour, RouteKey, RouteValue};

use crate::error::LabError;

/// A change of one entry; without a value it is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Of `routes`.
    Route(Ipv4Net, Option<RouteValue>),
    /// Of `neighbours`. What is there is reachable.
    Neighbour(Ipv4Addr, Option<Mac>),
}

impl Change {
    /// Key and value as the map holds them.
    pub fn bytes(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        match self {
            Change::Route(prefix, route) => (RouteKey::from(*prefix).to_bytes(), route.map(|r| r.to_bytes())),
            Change::Neighbour(addr, mac) => {
                (addr.to_bytes(), mac.map(|mac| Neighbour::reachable(mac).to_bytes()))
            }
        }
    }
}

/// A change and when it was made: it took effect at some moment from `begun` to `ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// Just before the system call.
    pub begun: u64,
    /// Just after it returned.
    pub ended: u64,
    /// What was changed.
    pub change: Change,
}

/// What the updater tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A change was made.
    Update(Update),
    /// No change that was not told yet begins before this time; `u64::MAX`: there will be none.
    QuietUntil(u64),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Update { begun, ended, change } = match self {
            Report::QuietUntil(time) => return write!(f, "Q {time}"),
            Report::Update(update) => update,
        };
        match change {
            Change::Route(prefix, Some(to)) => {
                write!(f, "R {begun} {ended} {prefix} {} {}", to.next_hop, to.port)
            }
            Change::Route(prefix, None) => write!(f, "R {begun} {ended} {prefix}"),
            Change::Neighbour(addr, Some(mac)) => write!(f, "N {begun} {ended} {addr} {mac}"),
            Change::Neighbour(addr, None) => write!(f, "N {begun} {ended} {addr}"),
        }
    }
}

impl FromStr for Report {
    type Err = LabError;

    fn from_str(line: &str) -> Result<Report, LabError> {
        let fields: Vec<&str> = line.split(' ').collect();
        parse(&fields).ok_or_else(|| LabError::Report {
            line: line.chars().take(100).collect(),
            problem: "a field is missing, too many, or means nothing".into(),
        })
    }
}

fn parse(fields: &[&str]) -> Option<Report> {
    let change = match fields {
        ["Q", time] => return Some(Report::QuietUntil(time.parse().ok()?)),
        ["R", _, _, prefix, rest @ ..] => Change::Route(
            prefix.parse().ok()?,
            match rest {
                [] => None,
                [next_hop, port] => {
                    Some(RouteValue { next_hop: next_hop.parse().ok()?, port: port.parse().ok()? })
                }
                _ => return None,
            },
        ),
        ["N", _, _, addr, rest @ ..] => Change::Neighbour(
            addr.parse().ok()?,
            match rest {
                [] => None,
                [mac] => Some(mac.parse().ok()?),
                _ => return None,
            },
        ),
        _ => return None,
    };
    let (begun, ended) = (fields[1].parse().ok()?, fields[2].parse().ok()?);
    (begun <= ended).then_some(Report::Update(Update { begun, ended, change }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        let prefix = "10.1.0.0/16".parse().unwrap();
        let route = RouteValue { next_hop: Ipv4Addr::new(192, 168, 1, 7), port: 3 };
        let addr = Ipv4Addr::new(192, 168, 1, 7);
        let changes = [
            Change::Route(prefix, Some(route)),
            Change::Route(prefix, None),
            Change::Neighbour(addr, Some(Mac([2, 0, 0, 0, 1, 0xff]))),
            Change::Neighbour(addr, None),
        ];
        let updates = changes.map(|change| Report::Update(Update { begun: 1, ended: u64::MAX, change }));
        for report in updates.into_iter().chain([Report::QuietUntil(0), Report::QuietUntil(u64::MAX)]) {
            assert_eq!(report.to_string().parse::<Report>().unwrap(), report);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "",
            "Q",
            "Q x",
            "Q 1 2",
            "X 1 2 10.0.0.0/8",
            "R 1 2 10.0.0.0/33",
            "R 1 2 10.0.0.0/8 1.2.3.4",
            "R 2 1 10.0.0.0/8",
            "N 1 2",
            "N 1 2 1.2.3.4 02:00",
        ] {
            assert!(line.parse::<Report>().is_err(), "{line}");
        }
    }
}
