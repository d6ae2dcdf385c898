//! Lines for people: with a little colour on a terminal, plain elsewhere. Nothing is ever erased.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Where the story is told.
pub struct Screen {
    color: bool,
    begin: Instant,
}

impl Screen {
    pub fn new() -> Screen {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Screen { color, begin: Instant::now() }
    }

    /// Something new happens.
    pub fn heading(&self, text: &str) {
        self.line(&format!("\n{}", self.bold(text)));
    }

    /// A line, with the time since the beginning.
    pub fn timed(&self, text: &str) {
        let at = format!("{:5.1} s", self.begin.elapsed().as_secs_f64());
        self.line(&format!("{}  {text}", self.dim(&at)));
    }

    /// A line.
    pub fn line(&self, text: &str) {
        // A reader that went away is no reason to leave the machine as it is now: the story is told to its end.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }

    pub fn bold(&self, text: &str) -> String {
        self.wrapped("1", text)
    }

    fn dim(&self, text: &str) -> String {
        self.wrapped("2", text)
    }

    fn wrapped(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
