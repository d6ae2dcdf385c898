//! Prints the router's tables and counters, for people or as JSON.

use std::io::{self, BufWriter, Write};
use std::net::Ipv4Addr;

use router_ctl::layout::{DropReason, map};
use router_ctl::{Neighbour, Port, RouteKey, RouteValue, TxCounter};
use serde::Serialize;

use crate::Failure;
use crate::kernel::{KernelError, Maps};

#[derive(Serialize)]
struct RouteRow {
    prefix: String,
    /// None: directly connected.
    next_hop: Option<Ipv4Addr>,
    port: u32,
}

#[derive(Serialize)]
struct PortRow {
    port: u32,
    tx_index: u32,
    /// The network device at `tx_index`.
    ifindex: Option<u32>,
    mac: String,
    /// None: untagged.
    vlan_id: Option<u16>,
    mtu: u16,
    up: bool,
    same_dev: bool,
}

#[derive(Serialize)]
struct NeighbourRow {
    address: Ipv4Addr,
    mac: String,
    reachable: bool,
}

#[derive(Serialize)]
struct TxRow {
    tx_index: u32,
    packets: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct DropRow {
    reason: &'static str,
    packets: u64,
}

/// What there is to show. Maps that are not given show as empty.
#[derive(Serialize)]
struct Shown {
    routes: Vec<RouteRow>,
    ports: Vec<PortRow>,
    neighbours: Vec<NeighbourRow>,
    local_addrs: Vec<Ipv4Addr>,
    tx_counters: Vec<TxRow>,
    drop_counters: Vec<DropRow>,
}

/// Prints all tables, sorted by their keys. Counters that are zero are left out.
pub fn show(maps: &Maps, json: bool) -> Result<(), Failure> {
    let shown = read(maps)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if json {
        serde_json::to_writer(&mut out, &shown).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&shown, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

/// The entries of a map in the order of their keys; none if the map is not there.
fn sorted<K: router_ctl::MapData + Ord, V: router_ctl::MapData>(
    maps: &Maps,
    name: &'static str,
) -> Result<Vec<(K, V)>, KernelError> {
    let mut entries = maps.open_if_there(name)?.map_or(Ok(Vec::new()), |map| map.dump::<K, V>())?;
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(entries)
}

fn read(maps: &Maps) -> Result<Shown, KernelError> {
    let devices: Vec<(u32, u32)> = sorted(maps, map::TX_PORTS)?;
    Ok(Shown {
        routes: sorted(maps, map::ROUTES)?.into_iter().map(route_row).collect(),
        ports: sorted(maps, map::PORTS)?.into_iter().map(|entry| port_row(entry, &devices)).collect(),
        neighbours: sorted(maps, map::NEIGHBOURS)?.into_iter().map(neighbour_row).collect(),
        local_addrs: sorted::<Ipv4Addr, u32>(maps, map::LOCAL_ADDRS)?
            .into_iter()
            .map(|(addr, _)| addr)
            .collect(),
        tx_counters: tx_rows(maps)?,
        drop_counters: drop_rows(maps)?,
    })
}

fn route_row((key, route): (RouteKey, RouteValue)) -> RouteRow {
    let next_hop = Some(route.next_hop).filter(|addr| !addr.is_unspecified());
    RouteRow { prefix: key.to_string(), next_hop, port: route.port }
}

fn port_row((id, port): (u32, Port), devices: &[(u32, u32)]) -> PortRow {
    PortRow {
        port: id,
        tx_index: port.tx_index,
        ifindex: devices.iter().find(|(slot, _)| *slot == port.tx_index).map(|(_, ifindex)| *ifindex),
        mac: port.mac.to_string(),
        vlan_id: Some(port.vlan_id).filter(|id| *id != 0),
        mtu: port.mtu,
        up: port.is_up(),
        same_dev: port.is_same_dev(),
    }
}

fn neighbour_row((address, neighbour): (Ipv4Addr, Neighbour)) -> NeighbourRow {
    NeighbourRow { address, mac: neighbour.mac.to_string(), reachable: neighbour.is_reachable() }
}

fn tx_rows(maps: &Maps) -> Result<Vec<TxRow>, KernelError> {
    let Some(map) = maps.open_if_there(map::TX_COUNTERS)? else { return Ok(Vec::new()) };
    let sum = |(tx_index, cpus): (u32, Vec<TxCounter>)| TxRow {
        tx_index,
        packets: cpus.iter().map(|cpu| cpu.packets).sum(),
        bytes: cpus.iter().map(|cpu| cpu.bytes).sum(),
    };
    Ok(map.dump_percpu()?.into_iter().map(sum).filter(|row| row.packets != 0).collect())
}

fn drop_rows(maps: &Maps) -> Result<Vec<DropRow>, KernelError> {
    let Some(map) = maps.open_if_there(map::DROP_COUNTERS)? else { return Ok(Vec::new()) };
    let sum = |(index, cpus): (u32, Vec<u64>)| {
        let reason = DropReason::ALL.get(index as usize).map_or("unknown", |reason| reason.name());
        DropRow { reason, packets: cpus.iter().sum() }
    };
    Ok(map.dump_percpu()?.into_iter().map(sum).filter(|row| row.packets != 0).collect())
}

fn print(shown: &Shown, out: &mut impl Write) -> io::Result<()> {
    for RouteRow { prefix, next_hop, port } in &shown.routes {
        let via = next_hop.map_or(String::new(), |addr| format!("via {addr} "));
        writeln!(out, "route {prefix} {via}dev {port}")?;
    }
    for row in &shown.ports {
        write!(out, "port {} slot {} lladdr {} mtu {}", row.port, row.tx_index, row.mac, row.mtu)?;
        if let Some(ifindex) = row.ifindex {
            write!(out, " ifindex {ifindex}")?;
        }
        if let Some(vlan_id) = row.vlan_id {
            write!(out, " vlan {vlan_id}")?;
        }
        let state = if row.up { "up" } else { "down" };
        writeln!(out, " {state}{}", if row.same_dev { " same-dev" } else { "" })?;
    }
    for row in &shown.neighbours {
        let state = if row.reachable { "reachable" } else { "incomplete" };
        writeln!(out, "neigh {} lladdr {} {state}", row.address, row.mac)?;
    }
    for addr in &shown.local_addrs {
        writeln!(out, "local {addr}")?;
    }
    for row in &shown.tx_counters {
        writeln!(out, "sent slot {}: {} packets, {} bytes", row.tx_index, row.packets, row.bytes)?;
    }
    for row in &shown.drop_counters {
        writeln!(out, "dropped {}: {} packets", row.reason, row.packets)?;
    }
    Ok(())
}
