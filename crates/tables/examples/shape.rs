//! Prints how a routing table would be represented, how large that is, and how long building it took.
//!
//! `shape FILE [HOPS]`: the file has lines `prefix,next hop` with a heading: IPv4 or IPv6 prefixes, any text as next
//! hop, which is numbered in order of appearance. With HOPS, each route gets one of so many next hops instead, by
//! a hash of its prefix.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use runnel_ir::TableKind;
use runnel_tables::{Budget, Contents, Entry, SiteFacts, candidates, choose};

/// FNV-1a.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |h, byte| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A prefix as a key.
fn key(prefix: &str) -> Result<Box<[u8]>, Box<dyn Error>> {
    let (address, length) = prefix.split_once('/').ok_or("no slash")?;
    let length: u32 = length.parse()?;
    let address = match address.parse()? {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    Ok(length.to_le_bytes().into_iter().chain(address).collect())
}

fn contents(text: &str, spread: Option<u32>) -> Result<Contents, Box<dyn Error>> {
    let mut hops = HashMap::new();
    let mut entries = Vec::new();
    for (i, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty()) {
        let (prefix, hop) = line.split_once(',').ok_or_else(|| format!("line {}: no comma", i + 1))?;
        let key = key(prefix).map_err(|e| format!("line {}: {e}: `{prefix}`", i + 1))?;
        let next = hops.len() as u32;
        let hop = match spread {
            Some(count) => hash(prefix) % count,
            None => *hops.entry(hop).or_insert(next),
        };
        entries.push(Entry { key, value: hop.to_le_bytes().into() });
    }
    let key_size = entries.first().ok_or("the file has no routes")?.key.len() as u32;
    let max_entries = entries.len() as u32;
    Ok(Contents { kind: TableKind::Prefix, key_size, value_size: 4, max_entries, entries })
}

/// The shortest of some runs: what the work itself takes.
fn shortest<R>(runs: u32, mut f: impl FnMut() -> R) -> Duration {
    let run = |_| {
        let start = Instant::now();
        std::hint::black_box(f());
        start.elapsed()
    };
    (0..runs).map(run).min().unwrap_or_default()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: shape FILE [HOPS]")?;
    let spread = args.next().map(|n| n.parse::<NonZeroU32>()).transpose()?;
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let contents = contents(&text, spread.map(NonZeroU32::get))?;
    let bits = (contents.key_size - 4) * 8;
    let facts = SiteFacts { fixed: bits.to_le_bytes().map(Some).to_vec(), values_written: false };
    let budget = Budget::default();
    let choice = choose(&contents, &facts, budget)?;
    println!(
        "{} prefixes; {} rows of {} bytes",
        contents.entries.len(),
        choice.rows.padded(),
        choice.rows.stride
    );
    for way in &choice.considered {
        let ns = way.ns.map_or(String::new(), |ns| format!("{ns:.1} ns"));
        let bytes = way.bytes.map_or(String::new(), |bytes| format!("{bytes} bytes"));
        println!("{:18} {ns:>10} {bytes:>15}  {}", way.name, way.why);
    }
    for candidate in candidates(&contents, &facts, budget)?.candidates {
        for object in candidate.representation.data("table") {
            println!("{} {}: {} bytes", candidate.representation.name(), object.name, object.bytes.len());
        }
    }
    println!("built in {:?}", shortest(10, || choose(&contents, &facts, budget)));
    Ok(())
}
