//! What a comparison found, for people and for tests.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::super::maps::{MapDifference, hex};
use super::super::reference::Destination;

/// What one party made of a packet.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The verdict.
    pub verdict: u32,
    /// The packet afterwards, metadata included where the kernel gives it.
    pub packet: Cow<'a, [u8]>,
    /// The context afterwards (`struct xdp_md`); the interpreter gives none.
    pub context: Option<Cow<'a, [u8]>>,
    /// Where the packet goes, if the verdict is to redirect it.
    pub destination: Option<Destination>,
    /// What went wrong, if the party could not finish.
    pub fault: Option<String>,
}

impl<'a> Seen<'a> {
    pub(super) fn kernel(
        verdict: u32,
        packet: &'a [u8],
        context: &'a [u8],
        destination: Option<Destination>,
    ) -> Seen<'a> {
        let context = Some(Cow::Borrowed(context));
        Seen { verdict, packet: Cow::Borrowed(packet), context, destination, fault: None }
    }

    pub(super) fn interpreted(verdict: u32, packet: &'a [u8], destination: Option<Destination>) -> Seen<'a> {
        Seen { verdict, packet: Cow::Borrowed(packet), context: None, destination, fault: None }
    }

    pub(super) fn fault(fault: String) -> Seen<'a> {
        Seen { verdict: 0, packet: Cow::Borrowed(&[]), context: None, destination: None, fault: Some(fault) }
    }

    /// The same with bytes of its own.
    pub(super) fn keep(self) -> Seen<'static> {
        Seen {
            verdict: self.verdict,
            packet: Cow::Owned(self.packet.into_owned()),
            context: self.context.map(|c| Cow::Owned(c.into_owned())),
            destination: self.destination,
            fault: self.fault,
        }
    }
}

/// The fields that both parties have.
impl PartialEq for Seen<'_> {
    fn eq(&self, other: &Self) -> bool {
        let contexts = self.context.as_ref().zip(other.context.as_ref());
        self.verdict == other.verdict
            && self.packet == other.packet
            && contexts.is_none_or(|(a, b)| a == b)
            && same_destination(self.destination, other.destination)
            && self.fault == other.fault
    }
}

/// Whether the kernel would send a packet to the same place. Keys are compared as the 32 bits that slots have.
pub(super) fn same_destination(a: Option<Destination>, b: Option<Destination>) -> bool {
    let slot = |destination| match destination {
        Some(Destination::Map { map, key, flags }) => {
            Some(Destination::Map { map, key: u64::from(key as u32), flags })
        }
        other => other,
    };
    slot(a) == slot(b)
}

/// Who does not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parties {
    /// The original and the optimized program, both in the kernel.
    Kernel,
    /// The original in the kernel, and the lifted original in the interpreter.
    Lifted,
    /// The optimized program in the kernel, and the specialized IR in the interpreter.
    Specialized,
}

impl Parties {
    fn names(self) -> [&'static str; 2] {
        match self {
            Parties::Kernel => ["original", "optimized"],
            Parties::Lifted => ["original", "lifted original (interpreter)"],
            Parties::Specialized => ["optimized", "specialized IR (interpreter)"],
        }
    }
}

/// A packet that two parties do not agree on.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// Number of the packet, from 0.
    pub packet: u64,
    /// The packet as it came.
    pub input: Vec<u8>,
    /// Who does not agree.
    pub parties: Parties,
    /// What the first of them made of it.
    pub left: Seen<'static>,
    /// What the second made of it.
    pub right: Seen<'static>,
}

impl Difference {
    /// What is not the same, for people: one clause each.
    pub fn symptoms(&self) -> Vec<String> {
        let (a, b) = (&self.left, &self.right);
        let mut all = Vec::new();
        if let Some(fault) = a.fault.as_ref().or(b.fault.as_ref()) {
            return vec![format!("fault: {fault}")];
        }
        if a.verdict != b.verdict {
            all.push(format!("verdict {} against {}", verdict_name(a.verdict), verdict_name(b.verdict)));
        }
        if a.packet.len() != b.packet.len() {
            all.push(format!("length {} against {}", a.packet.len(), b.packet.len()));
        }
        let differ = |&i: &usize| a.packet[i] != b.packet[i];
        let places: Vec<usize> = (0..a.packet.len().min(b.packet.len())).filter(differ).collect();
        if let (Some(first), Some(last)) = (places.first(), places.last()) {
            all.push(format!("{} bytes from {first} to {last}", places.len()));
        }
        if a.context.as_ref().zip(b.context.as_ref()).is_some_and(|(a, b)| a != b) {
            all.push("the context".into());
        }
        if !same_destination(a.destination, b.destination) {
            all.push(format!("redirected to {} against {}", place(a.destination), place(b.destination)));
        }
        all
    }
}

fn place(destination: Option<Destination>) -> String {
    match destination {
        None => "nowhere".into(),
        Some(Destination::Interface { index, flags }) => format!("interface {index} (flags {flags:#x})"),
        Some(Destination::Map { map, key, flags }) => {
            let map = map.map_or("a map that is not the program's".into(), |m| format!("map {m}"));
            format!("{map}, key {key} (flags {flags:#x})")
        }
    }
}

/// The name of a verdict in `enum xdp_action`.
pub fn verdict_name(verdict: u32) -> String {
    let names = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"];
    names.get(verdict as usize).map_or_else(|| format!("{verdict} (no XDP verdict)"), |n| (*n).to_owned())
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.parties.names();
        writeln!(
            f,
            "packet {}: {} and {} differ: {}",
            self.packet,
            names[0],
            names[1],
            self.symptoms().join("; ")
        )?;
        writeln!(f, "  as it came ({} bytes)", self.input.len())?;
        dump(f, &self.input)?;
        for (name, seen) in names.into_iter().zip([&self.left, &self.right]) {
            writeln!(f, "  {name}: {} ({} bytes)", verdict_name(seen.verdict), seen.packet.len())?;
            dump(f, &seen.packet)?;
        }
        Ok(())
    }
}

/// Bytes by sixteens, each line with its offset. Packets beyond 256 bytes are cut: what comes behind the headers
/// is seldom of interest, and which bytes differ is said before.
fn dump(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const SHOWN: usize = 256;
    for (line, chunk) in bytes.chunks(16).take(SHOWN / 16).enumerate() {
        writeln!(f, "    {:04x}  {}", line * 16, hex(chunk))?;
    }
    if bytes.len() > SHOWN {
        writeln!(f, "    ... {} more", bytes.len() - SHOWN)?;
    }
    Ok(())
}

/// Whether the interpreter took part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Interpreted {
    /// For so many packets, which is all.
    All(u64),
    /// Not, or not to the end, for this reason.
    Not(String),
}

impl Default for Interpreted {
    fn default() -> Self {
        Interpreted::All(0)
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Packets compared.
    pub packets: u64,
    /// Packets that parties did not agree on.
    pub differences: u64,
    /// The first of them.
    pub first: Vec<Difference>,
    /// Entries of maps that differed at the end.
    pub map_differences: u64,
    /// The first of them.
    pub first_maps: Vec<MapDifference>,
    /// Tables that the interpreter left otherwise than the original in the kernel.
    pub interpreted_maps: Vec<String>,
    /// How often the original gave each verdict.
    pub verdicts: BTreeMap<u32, u64>,
    /// Whether the lifted original and the specialized IR were interpreted beside the programs.
    pub interpreted: [Interpreted; 2],
}

impl Report {
    /// Everything that differed, added up.
    pub fn total(&self) -> u64 {
        self.differences + self.map_differences + self.interpreted_maps.len() as u64
    }

    /// Whether nothing differed.
    pub fn agrees(&self) -> bool {
        self.total() == 0
    }
}

impl fmt::Display for Report {
    /// What differed, nothing if nothing did. Ends with a newline if there is anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.first {
            write!(f, "{difference}")?;
        }
        for difference in &self.first_maps {
            writeln!(f, "{difference}")?;
        }
        for table in &self.interpreted_maps {
            writeln!(
                f,
                "map `{table}`: the interpreter of the lifted original leaves other contents than the kernel"
            )?;
        }
        // A packet counts once, however many parties disagreed on it.
        let told: BTreeSet<u64> = self.first.iter().map(|difference| difference.packet).collect();
        let packets = self.differences.saturating_sub(told.len() as u64);
        let entries = self.map_differences.saturating_sub(self.first_maps.len() as u64);
        if packets + entries == 0 {
            return Ok(());
        }
        writeln!(f, "... and {packets} more packets, {entries} more entries of maps")
    }
}
