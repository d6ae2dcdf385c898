//! What commands print: text for people, JSON for machines, and the facts about the host that go with results.
//!
//! Everything goes through [`Output`], so that a reader that went away (`runnel … | head`) is an ordinary failure
//! that unwinds and cleans up, rather than a signal or a panic. Nothing here knows what a result means.
//! Errors do not go here but to [`crate::failure`].

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::cli::{ColorWhen, Global};
use crate::failure::Failure;

/// The commit that this was built from, or `unknown`.
pub const COMMIT: &str = env!("RUNNEL_COMMIT");

/// Where JSON goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To standard output, and the text for people nowhere.
    Stdout,
    /// Into a file.
    File(PathBuf),
}

impl From<OsString> for Destination {
    fn from(text: OsString) -> Destination {
        if text == "-" { Destination::Stdout } else { Destination::File(text.into()) }
    }
}

/// Where a command's output goes.
#[derive(Clone, Debug)]
pub struct Output {
    json: Option<Destination>,
    color: bool,
}

impl Output {
    /// Output as the flags ask for. `json`: where the JSON goes, if any is wanted.
    pub fn new(global: Global, json: Option<Destination>) -> Output {
        Output { json, color: wants_color(global.color, &io::stdout()) }
    }

    /// Whether text for people is wanted on standard output.
    pub fn is_text(&self) -> bool {
        self.json != Some(Destination::Stdout)
    }

    /// Whether JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// Prints text for people, unless only JSON is wanted. It ends with a newline of its own.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn text(&self, text: impl fmt::Display) -> Result<(), Failure> {
        if self.is_text() { print(format_args!("{text}\n")) } else { Ok(()) }
    }

    /// `text` as a heading.
    pub fn heading<'a>(&self, text: &'a str) -> Heading<'a> {
        Heading { text, color: self.color }
    }

    /// Writes the document for machines, if one is wanted: host, kernel, commit and a row for each result.
    ///
    /// # Errors
    /// The destination cannot be written.
    pub fn report<T: Serialize>(&self, rows: &[T]) -> Result<(), Failure> {
        let Some(destination) = &self.json else { return Ok(()) };
        let report = Report::new(rows);
        let mut json = serde_json::to_string_pretty(&report)
            .map_err(|e| Failure::new("cannot write the results as JSON").because(e))?;
        json.push('\n');
        match destination {
            Destination::Stdout => print(json),
            Destination::File(path) => std::fs::write(path, json).map_err(|e| {
                Failure::new(format!("cannot write the results to `{}`", path.display())).because(e)
            }),
        }
    }

    /// Writes one value for machines as a line of its own, at once, if JSON is wanted on standard output: for
    /// commands that report as they go.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn event<T: Serialize>(&self, event: &T) -> Result<(), Failure> {
        if self.is_text() {
            return Ok(());
        }
        let line = serde_json::to_string(event)
            .map_err(|e| Failure::new("cannot write an event as JSON").because(e))?;
        print(format_args!("{line}\n"))
    }
}

/// A heading, in bold where colours are wanted.
pub struct Heading<'a> {
    text: &'a str,
    color: bool,
}

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.color { write!(f, "\x1b[1m{}\x1b[0m", self.text) } else { f.write_str(self.text) }
    }
}

/// Whether to use colours on a stream.
pub fn wants_color(when: ColorWhen, stream: &impl IsTerminal) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    }
}

/// Prints on standard output, at once.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    // Buffered apart from the standard stream's own line buffer: one system call, not one per line.
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    write!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::stdout)
}

/// Writes a file.
///
/// # Errors
/// The file cannot be made or written.
pub fn write_file(
    path: &std::path::Path,
    body: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        body(&mut out)?;
        out.flush()
    };
    write().map_err(|e| Failure::new(format!("cannot write `{}`", path.display())).because(e))
}

/// The document that `--json` gives.
#[derive(Debug, Serialize)]
pub struct Report<'a, T> {
    /// The machine.
    pub host: Host,
    /// Release of the running kernel.
    pub kernel: String,
    /// Commit that this was built from.
    pub commit: &'static str,
    /// One row for each result.
    pub results: &'a [T],
}

impl<'a, T> Report<'a, T> {
    /// The document with these results, and what is known of this host.
    pub fn new(results: &'a [T]) -> Report<'a, T> {
        Report { host: Host::this(), kernel: kernel_release(), commit: COMMIT, results }
    }
}

/// The machine that results were had on. What the system does not say is `unknown`, or 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Model of the first processor.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Main memory in bytes.
    pub memory_bytes: u64,
    /// Name and version of the distribution.
    pub os: String,
}

impl Host {
    /// This machine.
    pub fn this() -> Host {
        Host {
            cpu: field("/proc/cpuinfo", "model name", ':').unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: memory().unwrap_or(0),
            os: field("/etc/os-release", "PRETTY_NAME", '=').unwrap_or_else(unknown),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Release of the running kernel, such as `6.18.44`.
pub fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| unknown(), |s| s.trim().to_owned())
}

fn memory() -> Option<u64> {
    let text = field("/proc/meminfo", "MemTotal", ':')?;
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of the first line `name <separator> value` of a file.
fn field(path: &str, name: &str, separator: char) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(separator)?;
        (key.trim() == name).then_some(value)
    })?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// How a column of a [`TextTable`] is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table of text in aligned columns, two blanks apart.
#[derive(Clone, Debug)]
pub struct TextTable {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl TextTable {
    /// A table with these columns; the names are its first row.
    pub fn new<'a>(columns: impl IntoIterator<Item = (&'a str, Align)>) -> TextTable {
        let (names, columns) = columns.into_iter().map(|(name, align)| (name.to_owned(), align)).unzip();
        TextTable { columns, rows: vec![names], indent: 0 }
    }

    /// A table without a row of names.
    pub fn plain(columns: impl IntoIterator<Item = Align>) -> TextTable {
        TextTable { columns: columns.into_iter().collect(), rows: Vec::new(), indent: 0 }
    }

    /// Sets the table this many blanks in.
    pub fn indented(mut self, by: usize) -> TextTable {
        self.indent = by;
        self
    }

    /// Adds a row. Cells beyond the last column are left out, missing ones are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut row: Vec<String> = cells.into_iter().take(self.columns.len()).map(Into::into).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }
}

impl fmt::Display for TextTable {
    /// Lines without trailing blanks, a newline between them but not after the last.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |cell: &String| cell.chars().count();
        let width = |column: usize| self.rows.iter().map(|row| count(&row[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = " ".repeat(self.indent);
            for ((cell, align), width) in row.iter().zip(&self.columns).zip(&widths) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            let end = if index + 1 < self.rows.len() { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        let mut table =
            TextTable::new([("name", Align::Left), ("entries", Align::Right), ("why", Align::Left)]);
        table.row(["routes", "2592", "read-only"]);
        table.row(["tx", "8"]);
        let expected = "name    entries  why\nroutes     2592  read-only\ntx            8";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_dash_is_standard_output_and_anything_else_a_file() {
        assert_eq!(Destination::from(OsString::from("-")), Destination::Stdout);
        assert_eq!(Destination::from(OsString::from("-x")), Destination::File("-x".into()));
    }

    #[test]
    fn the_document_has_what_readers_of_results_rely_on() {
        let json = serde_json::to_value(Report::new(&[serde_json::json!({"variant": "original"})])).unwrap();
        assert_eq!(json["results"][0]["variant"], "original");
        assert_eq!(json["kernel"], kernel_release());
        assert!(json["host"]["cores"].as_u64().unwrap() > 0);
        assert!(json["host"]["memory_bytes"].as_u64().unwrap() > 1 << 20);
        let commit = json["commit"].as_str().unwrap();
        assert!(commit == "unknown" || commit.len() >= 7, "{commit}");
    }
}
