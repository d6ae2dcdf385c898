//! Readers of the files that describe the router's tables: CSV with a header line, plain or gzip-compressed
//! (told apart by their first bytes). Columns may come in any order; `#` begins a comment line.
//!
//! | file | columns (optional ones in brackets) |
//! |---|---|
//! | routes | `prefix`, `next_hop`, \[`port`: default 0\]; others are ignored |
//! | neighbours | `address`, `mac`, \[`state`: `reachable` (default) or `incomplete`\] |
//! | ports | `port`, `mac`, \[`tx_index`: default the port's number\], \[`vlan_id`: default 0, untagged\], \[`mtu`: default 1500\], \[`flags`: words of `up` (default), `down`, `same-dev`\], \[`ifindex`\] |
//! | local addresses | `address` |
//!
//! Every error names the file and, where there is one, the line. Work and memory are bounded: a table takes
//! no more rows than its map has room for, and a file no more than [`MAX_FILE_BYTES`] once unpacked.
//! Nothing is taken twice: a repeated key is an error, because which of the two is meant cannot be told.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::bufread::MultiGzDecoder;
use ipnet::Ipv4Net;

use crate::layout::{
    MAX_LOCAL_ADDRS, MAX_NEIGHBOURS, MAX_PORTS, MAX_ROUTES, Mac, Neighbour, Port, RouteKey, RouteValue,
};

/// Longest file that is read, unpacked: twice a full routes table.
pub const MAX_FILE_BYTES: u64 = 64 << 20;

/// MTU of a port whose line gives none, in bytes.
pub const DEFAULT_MTU: u16 = 1500;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The file cannot be opened or read, or is not valid gzip.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The header line lacks a column.
    #[error("{}:1: there is no column `{column}`; the header line reads `{header}`", path.display())]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The column that is needed.
        column: &'static str,
        /// The header line.
        header: String,
    },
    /// The header line names a column that this kind of file does not have.
    #[error("{}:1: column `{column}` is not known; columns are {known}", path.display())]
    UnknownColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Those that are known.
        known: String,
    },
    /// A line is wrong.
    #[error("{}:{line}: {error}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong with it.
        error: LineError,
    },
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It has more or fewer fields than the header.
    #[error("{found} fields where the header has {expected}")]
    Fields {
        /// The header's number.
        expected: u64,
        /// The line's.
        found: u64,
    },
    /// It is not UTF-8.
    #[error("not UTF-8 text")]
    Encoding,
    /// A field's text is not what its column holds.
    #[error("{column} `{text}`: {reason}")]
    Field {
        /// The column.
        column: &'static str,
        /// The text.
        text: String,
        /// Why not.
        reason: String,
    },
    /// Its key was there before.
    #[error("{key} is on line {first} already")]
    Duplicate {
        /// The key's text.
        key: String,
        /// The line that has it.
        first: u64,
    },
    /// The map is full.
    #[error("more than {max} entries, which is all that the map `{map}` holds")]
    TooMany {
        /// The map's name.
        map: &'static str,
        /// Its size.
        max: usize,
    },
}

/// Why a text is not a prefix.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// It does not have the form of one.
    #[error("not an IPv4 prefix; write it as 10.1.0.0/16")]
    Syntax,
    /// Bits are set beyond its length.
    #[error("bits are set beyond the prefix length; {0} may be meant")]
    HostBits(Ipv4Net),
}

/// Reads a prefix such as `10.1.0.0/16`; the length is needed, and the bits beyond it must be zero.
pub fn prefix(text: &str) -> Result<Ipv4Net, PrefixError> {
    let prefix = Ipv4Net::from_str(text).map_err(|_| PrefixError::Syntax)?;
    if prefix.trunc() == prefix { Ok(prefix) } else { Err(PrefixError::HostBits(prefix.trunc())) }
}

/// An opened file, or any other reader with a name for it.
pub struct Source {
    name: PathBuf,
    reader: Box<dyn Read>,
}

impl Source {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, ParseError> {
        let file = File::open(path).map_err(|source| ParseError::Io { path: path.into(), source })?;
        Self::new(path, file)
    }

    /// Takes a reader, unpacking gzip; `name` is for messages.
    pub fn new(name: &Path, reader: impl Read + 'static) -> Result<Self, ParseError> {
        let mut reader = BufReader::new(reader);
        let start = reader.fill_buf().map_err(|source| ParseError::Io { path: name.into(), source })?;
        let packed = start.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn Read> =
            if packed { Box::new(MultiGzDecoder::new(reader)) } else { Box::new(reader) };
        Ok(Self { name: name.into(), reader: Box::new(Bounded { reader, left: MAX_FILE_BYTES }) })
    }
}

/// A reader that fails, rather than ends, where a file is too long.
struct Bounded {
    reader: Box<dyn Read>,
    left: u64,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::other(format!(
                "longer than {MAX_FILE_BYTES} bytes, which no table of the router fills"
            ))
        })?;
        Ok(read)
    }
}

/// The columns of a kind of file.
struct Columns {
    required: &'static [&'static str],
    optional: &'static [&'static str],
    /// Whether columns of other names are ignored.
    others: bool,
}

impl Columns {
    fn all(&self) -> impl Iterator<Item = &'static str> {
        self.required.iter().chain(self.optional).copied()
    }
}

/// One line of a file.
struct Row<'a> {
    record: &'a csv::StringRecord,
    places: &'a HashMap<&'static str, usize>,
    line: u64,
}

impl Row<'_> {
    /// The text of an optional column; `None` if it is empty or absent.
    fn text(&self, column: &str) -> Option<&str> {
        let place = self.places.get(column)?;
        self.record.get(*place).filter(|text| !text.is_empty())
    }

    /// Reads a column with `parse`; an absent or empty one gives `default` if there is one.
    fn field<T, E: ToString>(
        &self,
        column: &'static str,
        default: Option<T>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, LineError> {
        let error = |text: &str, reason| LineError::Field { column, text: text.into(), reason };
        match (self.text(column), default) {
            (Some(text), _) => parse(text).map_err(|e| error(text, e.to_string())),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(error("", "is needed".into())),
        }
    }

    fn address(&self, column: &'static str) -> Result<Ipv4Addr, LineError> {
        self.field(column, None, |text| text.parse().map_err(|_| "not an IPv4 address"))
    }
}

/// Calls `each` on every line.
fn rows(
    source: Source,
    columns: &Columns,
    mut each: impl FnMut(&Row<'_>) -> Result<(), LineError>,
) -> Result<(), ParseError> {
    let Source { name, reader } = source;
    // Without quotes, a stray one cannot swallow the rest of the file.
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).quoting(false).comment(Some(b'#')).from_reader(reader);

    let header = reader.headers().map_err(|e| csv_error(&name, e))?.clone();
    let places = place_columns(&name, columns, &header)?;

    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|e| csv_error(&name, e))? {
        let line = record.position().map_or(0, csv::Position::line);
        let row = Row { record: &record, places: &places, line };
        each(&row).map_err(|error| ParseError::Line { path: name.clone(), line, error })?;
    }
    Ok(())
}

fn place_columns(
    name: &Path,
    columns: &Columns,
    header: &csv::StringRecord,
) -> Result<HashMap<&'static str, usize>, ParseError> {
    let mut places = HashMap::new();
    for (place, column) in header.iter().enumerate() {
        match columns.all().find(|known| *known == column) {
            Some(known) => drop(places.insert(known, place)),
            None if columns.others => {}
            None => {
                let known = columns.all().collect::<Vec<_>>().join(", ");
                return Err(ParseError::UnknownColumn { path: name.into(), column: column.into(), known });
            }
        }
    }
    match columns.required.iter().find(|column| !places.contains_key(*column)) {
        None => Ok(places),
        Some(column) => {
            let header = header.iter().collect::<Vec<_>>().join(",");
            Err(ParseError::MissingColumn { path: name.into(), column, header })
        }
    }
}

fn csv_error(name: &Path, error: csv::Error) -> ParseError {
    let line = error.position().map_or(1, csv::Position::line);
    let path = name.to_path_buf();
    match error.into_kind() {
        csv::ErrorKind::Io(source) => ParseError::Io { path, source },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ParseError::Line { path, line, error: LineError::Fields { expected: expected_len, found: len } }
        }
        csv::ErrorKind::Utf8 { .. } => ParseError::Line { path, line, error: LineError::Encoding },
        // Kinds of seeking, serde and writing, none of which is done here.
        other => ParseError::Io { path, source: io::Error::other(format!("{other:?}")) },
    }
}

/// Entries in the order of the file, each key once, and no more than a map takes.
struct Unique<K, V> {
    map: &'static str,
    max: usize,
    lines: HashMap<K, u64>,
    entries: Vec<(K, V)>,
}

impl<K: Hash + Eq + Copy + ToString, V> Unique<K, V> {
    fn new(map: &'static str, max: usize) -> Self {
        Self { map, max, lines: HashMap::new(), entries: Vec::new() }
    }

    fn push(&mut self, line: u64, key: K, value: V) -> Result<(), LineError> {
        if self.entries.len() == self.max {
            return Err(LineError::TooMany { map: self.map, max: self.max });
        }
        if let Some(&first) = self.lines.get(&key) {
            return Err(LineError::Duplicate { key: key.to_string(), first });
        }
        self.lines.insert(key, line);
        self.entries.push((key, value));
        Ok(())
    }
}

fn route_key(row: &Row<'_>) -> Result<RouteKey, LineError> {
    row.field("prefix", None, prefix).map(RouteKey::from)
}

/// Reads routes. `0.0.0.0` as next hop stands for a directly connected network.
pub fn routes(source: Source) -> Result<Vec<(RouteKey, RouteValue)>, ParseError> {
    const COLUMNS: Columns = Columns { required: &["prefix", "next_hop"], optional: &["port"], others: true };
    let mut routes = Unique::new("routes", MAX_ROUTES);
    rows(source, &COLUMNS, |row| {
        let next_hop = row.address("next_hop")?;
        let port = row.field("port", Some(0), str::parse)?;
        routes.push(row.line, route_key(row)?, RouteValue { next_hop, port })
    })?;
    Ok(routes.entries)
}

/// Reads the prefixes of a routes file and ignores where they lead; it need not have a column `next_hop`.
pub fn prefixes(source: Source) -> Result<Vec<Ipv4Net>, ParseError> {
    const COLUMNS: Columns = Columns { required: &["prefix"], optional: &[], others: true };
    let mut prefixes = Unique::new("routes", MAX_ROUTES);
    rows(source, &COLUMNS, |row| prefixes.push(row.line, route_key(row)?, ()))?;
    Ok(prefixes.entries.into_iter().map(|(key, ())| key.prefix()).collect())
}

/// Reads neighbours.
pub fn neighbours(source: Source) -> Result<Vec<(Ipv4Addr, Neighbour)>, ParseError> {
    const COLUMNS: Columns = Columns { required: &["address", "mac"], optional: &["state"], others: false };
    let mut neighbours = Unique::new("neighbours", MAX_NEIGHBOURS);
    rows(source, &COLUMNS, |row| {
        let mac = row.field("mac", None, str::parse::<Mac>)?;
        let state = row.field("state", Some(Neighbour::REACHABLE), neighbour_state)?;
        neighbours.push(row.line, row.address("address")?, Neighbour { mac, state })
    })?;
    Ok(neighbours.entries)
}

fn neighbour_state(text: &str) -> Result<u16, &'static str> {
    match text {
        "reachable" => Ok(Neighbour::REACHABLE),
        "incomplete" => Ok(Neighbour::INCOMPLETE),
        _ => Err("neither `reachable` nor `incomplete`"),
    }
}

/// What a ports file gives.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PortsFile {
    /// Port number and port.
    pub ports: Vec<(u32, Port)>,
    /// Slot of the devmap and interface index, for the ports that have one.
    pub tx_ports: Vec<(u32, u32)>,
}

/// Reads ports.
pub fn ports(source: Source) -> Result<PortsFile, ParseError> {
    const COLUMNS: Columns = Columns {
        required: &["port", "mac"],
        optional: &["tx_index", "vlan_id", "mtu", "flags", "ifindex"],
        others: false,
    };
    let mut ports = Unique::new("ports", MAX_PORTS);
    let mut tx_ports = Vec::new();
    rows(source, &COLUMNS, |row| {
        let id = row.field("port", None, str::parse::<u32>)?;
        let slot = if row.text("tx_index").is_some() { "tx_index" } else { "port" };
        let port = Port {
            tx_index: row.field(slot, None, tx_index)?,
            mac: row.field("mac", None, str::parse::<Mac>)?,
            vlan_id: row.field("vlan_id", Some(0), vlan_id)?,
            mtu: row.field("mtu", Some(DEFAULT_MTU), str::parse)?,
            flags: row.field("flags", Some(Port::UP), port_flags)?,
        };
        if row.text("ifindex").is_some() {
            tx_ports.push((port.tx_index, row.field("ifindex", None, str::parse)?));
        }
        ports.push(row.line, id, port)
    })?;
    Ok(PortsFile { ports: ports.entries, tx_ports })
}

/// Reads a slot of `tx_ports`.
pub fn tx_index(text: &str) -> Result<u32, String> {
    let slot = text.parse::<u32>().ok().filter(|slot| (*slot as usize) < MAX_PORTS);
    slot.ok_or_else(|| format!("not a slot; they are 0 to {}", MAX_PORTS - 1))
}

/// Reads a VLAN, 0 for none.
pub fn vlan_id(text: &str) -> Result<u16, &'static str> {
    let id = text.parse::<u16>().ok().filter(|id| *id <= 4094);
    id.ok_or("not a VLAN; they are 1 to 4094, and 0 for none")
}

fn port_flags(text: &str) -> Result<u16, &'static str> {
    let mut flags = Port::UP;
    for word in text.split_whitespace() {
        match word {
            "up" => flags |= Port::UP,
            "down" => flags &= !Port::UP,
            "same-dev" => flags |= Port::SAME_DEV,
            _ => return Err("not words of `up`, `down`, `same-dev`"),
        }
    }
    Ok(flags)
}

/// Reads the router's own addresses.
pub fn local_addrs(source: Source) -> Result<Vec<Ipv4Addr>, ParseError> {
    const COLUMNS: Columns = Columns { required: &["address"], optional: &[], others: false };
    let mut addrs = Unique::new("local_addrs", MAX_LOCAL_ADDRS);
    rows(source, &COLUMNS, |row| addrs.push(row.line, row.address("address")?, ()))?;
    Ok(addrs.entries.into_iter().map(|(addr, ())| addr).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use rand::rngs::SmallRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn source(text: impl AsRef<[u8]>) -> Source {
        Source::new(Path::new("t.csv"), Cursor::new(text.as_ref().to_vec())).unwrap()
    }

    /// The message of what must fail.
    fn message<T>(result: Result<T, ParseError>) -> String {
        result.err().expect("an error").to_string()
    }

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    const STANFORD_LIKE: &str = "prefix,next_hop\n0.0.0.0/0,192.168.1.1\n10.0.0.0/8,192.168.1.2\n";
    const BGP_LIKE: &str = "prefix,origin_as\n1.0.0.0/24,15169\n1.0.4.0/24,56203\n";

    #[test]
    fn reads_routes_with_next_hops() {
        let routes = routes(source(STANFORD_LIKE)).unwrap();
        let value = |last| RouteValue { next_hop: Ipv4Addr::new(192, 168, 1, last), port: 0 };
        assert_eq!(routes, [(net("0.0.0.0/0").into(), value(1)), (net("10.0.0.0/8").into(), value(2))]);
    }

    #[test]
    fn reads_a_port_column_wherever_it_stands() {
        let routes = routes(source("port,prefix,next_hop\n7,10.0.0.0/8,0.0.0.0\n")).unwrap();
        assert_eq!(routes[0].1, RouteValue { next_hop: Ipv4Addr::UNSPECIFIED, port: 7 });
    }

    #[test]
    fn reads_prefixes_of_files_without_next_hops() {
        assert_eq!(prefixes(source(BGP_LIKE)).unwrap(), [net("1.0.0.0/24"), net("1.0.4.0/24")]);
        assert_eq!(
            message(routes(source(BGP_LIKE))),
            "t.csv:1: there is no column `next_hop`; the header line reads `prefix,origin_as`"
        );
    }

    #[test]
    fn gzip_is_known_by_its_first_bytes() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(BGP_LIKE.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(prefixes(source(&packed)).unwrap().len(), 2);
        let cut = &packed[..packed.len() - 5];
        assert!(message(prefixes(source(cut))).starts_with("t.csv: "));
    }

    #[test]
    fn comments_blanks_and_crlf_are_fine() {
        let text = "prefix , next_hop\r\n# a comment\r\n\r\n 10.0.0.0/8 , 192.168.1.1 \r\n";
        assert_eq!(routes(source(text)).unwrap().len(), 1);
    }

    #[test]
    fn bad_lines_are_named() {
        let with = |line: &str| message(routes(source(format!("{STANFORD_LIKE}{line}\n"))));
        assert_eq!(with("10.1.0.0/16"), "t.csv:4: 1 fields where the header has 2");
        assert_eq!(
            with("10.1.0.0,192.168.1.1"),
            "t.csv:4: prefix `10.1.0.0`: not an IPv4 prefix; write it as 10.1.0.0/16"
        );
        assert_eq!(
            with("10.1.0.0/33,192.168.1.1"),
            "t.csv:4: prefix `10.1.0.0/33`: not an IPv4 prefix; write it as 10.1.0.0/16"
        );
        assert_eq!(
            with("10.1.2.0/16,192.168.1.1"),
            "t.csv:4: prefix `10.1.2.0/16`: bits are set beyond the prefix length; 10.1.0.0/16 may be meant"
        );
        assert_eq!(with("10.1.0.0/16,15169"), "t.csv:4: next_hop `15169`: not an IPv4 address");
        assert_eq!(with("10.1.0.0/16,"), "t.csv:4: next_hop ``: is needed");
        assert_eq!(with("10.0.0.0/8,192.168.1.1"), "t.csv:4: 10.0.0.0/8 is on line 3 already");
        let not_text = [STANFORD_LIKE.as_bytes(), b"\xff,1.1.1.1\n"].concat();
        assert_eq!(message(routes(source(not_text))), "t.csv:4: not UTF-8 text");
    }

    #[test]
    fn a_stray_quote_is_an_error_of_its_line() {
        let text = format!("{STANFORD_LIKE}\"10.1.0.0/16,1.1.1.1\n10.2.0.0/16,1.1.1.1\n");
        assert!(message(routes(source(text))).starts_with("t.csv:4: prefix `\"10.1.0.0/16`"));
    }

    #[test]
    fn empty_files_lack_their_header() {
        assert!(message(routes(source(""))).contains("there is no column `prefix`"));
        assert_eq!(routes(source("prefix,next_hop\n")).unwrap(), []);
    }

    #[test]
    fn missing_files_are_named() {
        let error = Source::open(Path::new("/nonexistent/routes.csv")).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/routes.csv: No such file"), "{error}");
    }

    #[test]
    fn reads_neighbours() {
        let text = "address,mac,state\n10.0.0.1,02:00:00:00:00:01,\n10.0.0.2,02:00:00:00:00:02,incomplete\n";
        let entries = neighbours(source(text)).unwrap();
        assert_eq!(entries[0], (Ipv4Addr::new(10, 0, 0, 1), Neighbour::reachable(Mac([2, 0, 0, 0, 0, 1]))));
        assert_eq!(entries[1].1.state, Neighbour::INCOMPLETE);
        assert_eq!(
            message(neighbours(source("address,mac\n10.0.0.1,02:00\n"))),
            "t.csv:2: mac `02:00`: not an Ethernet address; write it as 02:00:5e:10:00:01"
        );
        assert_eq!(
            message(neighbours(source("address,mac,stale\n"))),
            "t.csv:1: column `stale` is not known; columns are address, mac, state"
        );
    }

    #[test]
    fn reads_ports() {
        let text = "port,mac,tx_index,vlan_id,mtu,flags,ifindex\n\
                    0,02:00:00:00:00:01,,,,,\n\
                    1,02:00:00:00:00:02,9,100,9000,up same-dev,4\n\
                    2,02:00:00:00:00:03,,,,down,\n";
        let file = ports(source(text)).unwrap();
        let port = |tx_index, mac, vlan_id, mtu, flags| Port {
            tx_index,
            mac: Mac([2, 0, 0, 0, 0, mac]),
            vlan_id,
            mtu,
            flags,
        };
        assert_eq!(
            file.ports,
            [
                (0, port(0, 1, 0, 1500, Port::UP)),
                (1, port(9, 2, 100, 9000, Port::UP | Port::SAME_DEV)),
                (2, port(2, 3, 0, 1500, 0))
            ]
        );
        assert_eq!(file.tx_ports, [(9, 4)]);
    }

    #[test]
    fn bad_ports_are_named() {
        let with = |line: &str| {
            message(ports(source(format!("port,mac,tx_index,vlan_id,flags\n{line}\n"))))
                .replace("t.csv:2: ", "")
        };
        let mac = "02:00:00:00:00:01";
        assert_eq!(with(&format!("0,{mac},256,,")), "tx_index `256`: not a slot; they are 0 to 255");
        assert_eq!(with(&format!("256,{mac},,,")), "port `256`: not a slot; they are 0 to 255");
        assert_eq!(
            with(&format!("0,{mac},,4095,")),
            "vlan_id `4095`: not a VLAN; they are 1 to 4094, and 0 for none"
        );
        assert_eq!(
            with(&format!("0,{mac},,,sideways")),
            "flags `sideways`: not words of `up`, `down`, `same-dev`"
        );
        assert_eq!(with(&format!("x,{mac},,,")), "port `x`: invalid digit found in string");
    }

    #[test]
    fn tables_are_bounded_by_their_maps() {
        let mut text = String::from("address\n");
        for i in 0..=u32::try_from(MAX_LOCAL_ADDRS).unwrap() {
            text += &format!("{}\n", Ipv4Addr::from(0x0a00_0000 + i));
        }
        assert_eq!(
            message(local_addrs(source(text))),
            "t.csv:1026: more than 1024 entries, which is all that the map `local_addrs` holds"
        );
    }

    #[test]
    fn no_text_is_too_odd() {
        let mut rng = SmallRng::seed_from_u64(1);
        let ports =
            "port,mac,tx_index,vlan_id,mtu,flags,ifindex\n1,02:00:00:00:00:02,9,100,9000,up same-dev,4\n";
        let mut read = 0;
        for _ in 0..5000 {
            for text in [STANFORD_LIKE, ports, "address,mac,state\n10.0.0.1,02:00:00:00:00:01,incomplete\n"] {
                let mut bytes = text.as_bytes().to_vec();
                for _ in 0..rng.random_range(1..4) {
                    let at = rng.random_range(0..bytes.len());
                    match rng.random_range(0..3) {
                        0 => bytes[at] = rng.random(),
                        1 => drop(bytes.remove(at)),
                        _ => bytes.insert(at, *b",\n\"#\r/".choose(&mut rng).unwrap()),
                    }
                }
                let source = || source(&bytes);
                read += usize::from(routes(source()).is_ok());
                read += usize::from(super::ports(source()).is_ok());
                read += usize::from(neighbours(source()).is_ok());
            }
        }
        assert!(read > 100, "most of the damage should not be to the header: {read}");
    }

    #[test]
    fn an_endless_file_ends() {
        let endless = Source::new(Path::new("zeros"), io::repeat(b'0')).unwrap();
        assert!(message(routes(endless)).contains("longer than"));
    }
}
