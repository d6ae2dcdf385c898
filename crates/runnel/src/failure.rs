//! Why a command failed, as people read it: what, where, why, and what to do.
//!
//! The libraries return typed errors; here they become text, and nowhere else. The form is always the same:
//!
//! ```text
//! error: cannot read the object `router.o`
//!   why: No such file or directory (os error 2)
//!   do:  give the path of an object file made with `clang -target bpf -c`
//! ```
//!
//! Advice comes from whoever knows what the user asked for; [`From`] adds it for errors of the kernel that mean
//! the same in every command.

use std::error::Error;
use std::fmt;
use std::io;

use runnel_kernel::error::Error as KernelError;
use runnel_kernel::link::LinkError;
use runnel_kernel::object::ObjectError;

/// What a command returns.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    what: String,
    because: Option<Box<dyn Error + Send + Sync>>,
    advice: Vec<String>,
    closed_pipe: bool,
}

impl Failure {
    /// A failure to do something: a clause that begins in lower case, with names in backticks.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), because: None, advice: Vec::new(), closed_pipe: false }
    }

    /// With the error that caused it.
    #[must_use]
    pub fn because(mut self, error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        self.because = Some(error.into());
        self
    }

    /// With something to do about it: an imperative.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Failure {
        self.advice.push(advice.into());
        self
    }

    /// A failure to write to standard output.
    pub fn stdout(error: io::Error) -> Failure {
        let closed_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Failure { closed_pipe, ..Failure::new("cannot write to standard output").because(error) }
    }

    /// Whether nobody reads the output any more, which is nobody's fault and needs no message.
    pub fn is_closed_pipe(&self) -> bool {
        self.closed_pipe
    }

    /// The failure as it is printed; `color` for terminals.
    pub fn display(&self, color: bool) -> impl fmt::Display + '_ {
        Display { failure: self, color }
    }

    /// The causes, each on its own, without those that the one before has already told.
    fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = self.because.as_deref().map(|e| e as &dyn Error);
        while let Some(error) = next {
            let text = error.to_string();
            if !causes.last().unwrap_or(&self.what).contains(&text) {
                causes.push(text);
            }
            next = error.source();
        }
        causes
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.display(false).fmt(f)
    }
}

struct Display<'a> {
    failure: &'a Failure,
    color: bool,
}

impl fmt::Display for Display<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (red, bold, plain) =
            if self.color { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        write!(f, "{red}error:{plain} {}", indented(&self.failure.what))?;
        for cause in self.failure.causes() {
            write!(f, "\n  {bold}why:{plain} {}", indented(&cause))?;
        }
        for advice in &self.failure.advice {
            write!(f, "\n  {bold}do:{plain}  {}", indented(advice))?;
        }
        Ok(())
    }
}

/// Lines after the first stand under its text.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n       ")
}

const PRIVILEGES: &str = "run as root, or with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_SYS_ADMIN";

impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Failure {
        let advice = advice_for(&error);
        // The message tells what was being done; what caused it, if anything, is its source.
        let mut failure = Failure::new(error.to_string());
        failure.because = cause_of(error);
        failure.advice.extend(advice);
        failure
    }
}

/// The error again as a cause; it repeats the message, so that only what lies behind it is printed.
fn cause_of(error: KernelError) -> Option<Box<dyn Error + Send + Sync>> {
    error.source().is_some().then(|| Box::new(error) as _)
}

fn advice_for(error: &KernelError) -> Option<String> {
    if error.is_permission() {
        return Some(PRIVILEGES.into());
    }
    let advice = match error {
        KernelError::Object(ObjectError::NotFound { .. }) => {
            "give the path of an eBPF object, such as `make nf` leaves in target/nf"
        }
        KernelError::Object(ObjectError::NotElf { .. } | ObjectError::NotBpf { .. }) => {
            "give an object file made with `clang -O2 -g -target bpf -c`"
        }
        KernelError::Object(ObjectError::NoSuchProgram { .. }) => "name one of them with `--prog`",
        KernelError::Object(ObjectError::WrongType { .. }) => {
            "name an XDP program with `--prog`; `runnel inspect` lists the programs of an object with their types"
        }
        KernelError::Link(LinkError::NoSuchInterface { .. }) => {
            "look for its name with `ip link`; if it is in another network namespace, name that with `--netns`"
        }
        KernelError::Link(LinkError::NoNativeXdp { .. }) => {
            "use `--mode generic`, which every interface has and which is slower"
        }
        KernelError::Link(LinkError::Busy { .. }) => {
            "see what is attached with `ip link show` and `bpftool net`, and detach it first"
        }
        _ => return None,
    };
    Some(advice.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_why_and_what_to_do_in_this_order() {
        let failure = Failure::new("cannot read the object `x.o`")
            .because(io::Error::from_raw_os_error(2))
            .advise("give a file that exists");
        let expected = "error: cannot read the object `x.o`\n  why: No such file or directory (os error 2)\n  \
                        do:  give a file that exists";
        assert_eq!(failure.to_string(), expected);
    }

    #[test]
    fn a_cause_that_was_told_already_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("reading it: {source}")]
        struct Outer {
            source: io::Error,
        }
        let failure = Failure::new("cannot go on").because(Outer { source: io::Error::from_raw_os_error(13) });
        assert_eq!(
            failure.to_string(),
            "error: cannot go on\n  why: reading it: Permission denied (os error 13)"
        );
    }

    #[test]
    fn lines_of_a_cause_stand_under_one_another() {
        let failure = Failure::new("refused").because("first\nsecond");
        assert_eq!(failure.to_string(), "error: refused\n  why: first\n       second");
    }

    #[test]
    fn only_a_closed_pipe_is_silent() {
        assert!(Failure::stdout(io::Error::from(io::ErrorKind::BrokenPipe)).is_closed_pipe());
        assert!(!Failure::stdout(io::Error::from(io::ErrorKind::StorageFull)).is_closed_pipe());
    }
}
