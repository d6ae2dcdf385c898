//! Packets and table contents from a small world, so that keys drawn on both sides meet.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::SmallRng;
use runnel_ir::{Program, TableKind};

use super::declarations::{Declared, Keyed};
use super::{Config, Entry, Inputs};

/// Key parts are drawn below this, in programs and in tables.
pub(super) const WORLD: u64 = 4;

/// Attempts to find another key; a table may already have all there are.
const ATTEMPTS: u32 = 4;

/// A byte, most often a small one.
pub(super) fn byte(rng: &mut SmallRng) -> u8 {
    if rng.random_ratio(3, 4) { rng.random_range(0..WORLD as u8) } else { rng.random() }
}

pub(super) fn inputs(rng: &mut SmallRng, config: &Config, program: &Program, declared: &Declared) -> Inputs {
    let mut inputs = Inputs::default();
    for _ in 0..config.packets {
        inputs.packets.push(packet(rng, config));
    }
    for keyed in &declared.keyed {
        entries(rng, program, keyed, &mut inputs.entries);
    }
    if !config.kernel_acceptable {
        for table in [declared.ports, declared.programs] {
            inputs.indices.extend((0..4).filter(|_| rng.random()).map(|index| (table, index)));
        }
    }
    inputs
}

/// Most packets are long enough for most checks. A kernel takes none without a link-layer header.
fn packet(rng: &mut SmallRng, config: &Config) -> Vec<u8> {
    let shortest = if config.kernel_acceptable { 14 } else { 0 };
    let len = if rng.random_ratio(1, 4) { rng.random_range(shortest..60) } else { rng.random_range(60..128) };
    (0..len).map(|_| byte(rng)).collect()
}

fn entries(rng: &mut SmallRng, program: &Program, keyed: &Keyed, out: &mut Vec<Entry>) {
    let data = &program.tables[keyed.table];
    let mut seen = BTreeSet::new();
    // Half of the tables are as full as they get.
    let count = if rng.random() { data.max_entries } else { rng.random_range(0..=data.max_entries) };
    for _ in 0..count {
        let Some(key) = (0..ATTEMPTS)
            .map(|_| key(rng, data.kind, data.max_entries, keyed))
            .find(|key| seen.insert(canonical(data.kind, key)))
        else {
            continue;
        };
        let value = (0..data.value_size).map(|_| byte(rng)).collect();
        out.push(Entry { table: keyed.table, key, value });
    }
}

fn key(rng: &mut SmallRng, kind: TableKind, max_entries: u32, keyed: &Keyed) -> Vec<u8> {
    match kind {
        TableKind::Index => rng.random_range(0..max_entries).to_ne_bytes().into(),
        TableKind::Prefix => {
            let mut key = vec![0; 4];
            for part in &keyed.parts[1..] {
                push_part(rng, part.bytes() as usize, &mut key);
            }
            let bits = (key.len() as u32 - 4) * 8;
            // Lengths at the ends of parts, where keys of the small world differ, and any others.
            let length =
                if rng.random() { rng.random_range(0..=bits) } else { rng.random_range(0..=bits / 8) * 8 };
            key[..4].copy_from_slice(&length.to_ne_bytes());
            key
        }
        TableKind::Exact | TableKind::Opaque => {
            let mut key = Vec::new();
            for part in &keyed.parts {
                push_part(rng, part.bytes() as usize, &mut key);
            }
            key
        }
    }
}

/// Appends a small number of `size` bytes in the machine's order, as a program would store it.
fn push_part(rng: &mut SmallRng, size: usize, key: &mut Vec<u8>) {
    let number: u64 = rng.random_range(0..WORLD);
    let bytes = number.to_ne_bytes();
    key.extend(if cfg!(target_endian = "little") { &bytes[..size] } else { &bytes[8 - size..] });
}

/// The same for keys that are the same entry: prefixes that differ behind their length only.
fn canonical(kind: TableKind, key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    if let (TableKind::Prefix, Some((head, address))) = (kind, key.split_first_chunk_mut::<4>()) {
        let length = u32::from_ne_bytes(*head) as usize;
        for (i, byte) in address.iter_mut().enumerate() {
            let kept = length.saturating_sub(8 * i).min(8) as u32;
            *byte &= !0xff_u8.checked_shr(kept).unwrap_or(0);
        }
    }
    key
}
