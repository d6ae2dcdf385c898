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
//! Advice comes from whoever knows what the user asked for; the conversions here add it for errors of the kernel's crate
//! that mean the same in every command.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;

use runnel_kernel::error::{Error as KernelError, LoadError};
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
    detail: Option<String>,
    closed_pipe: bool,
}

impl Failure {
    /// A failure to do something: a clause that begins in lower case, with names in backticks.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure { what: what.into(), because: None, advice: Vec::new(), detail: None, closed_pipe: false }
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

    /// With a text that is too long to be shown unless asked for.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Failure {
        self.detail = Some(detail.into());
        self
    }

    /// The text that is shown only when asked for.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
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
        let (red, bold, plain) = if self.color { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
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

const PRIVILEGES: &str = "run as root, or with CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_SYS_ADMIN; if that does not help, \
                          see whether a kernel lockdown forbids it (/sys/kernel/security/lockdown)";
const NOT_AN_OBJECT: &str = "give an object file made with `clang -O2 -g -target bpf -c`";

/// The messages of the kernel's crate stand alone, cause and advice included; here they are taken apart.
impl From<KernelError> for Failure {
    fn from(error: KernelError) -> Failure {
        match error {
            KernelError::Permission { doing, errno } => {
                Failure::doing(&doing, format!("not permitted ({errno})")).advise(PRIVILEGES)
            }
            KernelError::Unsupported { doing, why } => {
                Failure::doing(&doing, format!("not offered here ({why})"))
            }
            KernelError::Kernel { doing, errno } => Failure::doing(&doing, errno.to_string()),
            KernelError::Usage { doing, problem } => Failure::doing(&doing, problem),
            KernelError::Io { doing, source } => Failure::doing(&doing, source),
            KernelError::Load(error) => error.into(),
            KernelError::Link(error) => error.into(),
            KernelError::Object(error) => error.into(),
            other => Failure::new(other.to_string()),
        }
    }
}

impl Failure {
    /// A failure while doing something. What libbpf said meanwhile is part of the cause.
    fn doing(doing: &str, because: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        let Some((doing, said)) = doing.split_once("; libbpf says: ") else {
            return Failure::new(doing).because(because);
        };
        Failure::new(doing).because(format!("{}\nlibbpf says: {said}", because.into()))
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let failure = Failure::new(format!("loading program `{}`", error.program));
        if error.is_permission() {
            return failure.because(format!("not permitted ({})", error.errno)).advise(PRIVILEGES);
        }
        if error.log.trim().is_empty() {
            return failure.because(error.errno.to_string());
        }
        failure
            .because(format!("the kernel's verifier refuses it: {}", error.reason()))
            .advise("give `-v` to see all that the verifier said")
            .with_detail(error.log)
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Failure {
        match error {
            LinkError::NoSuchInterface { interface } => Failure::new(format!("no network interface {interface} here"))
                .advise("look for its name with `ip link`; if it is in another network namespace, name that with `--netns`"),
            LinkError::NoNativeXdp { ifindex } => {
                Failure::new(format!("interface {ifindex} has no native XDP: its driver does not offer it"))
                    .advise("use `--mode generic`, which every interface has and which is slower")
            }
            LinkError::Busy { ifindex } => {
                Failure::new(format!("interface {ifindex} has an XDP program already"))
                    .because("somebody else attached it, or it is attached in another mode")
                    .advise("see which it is with `ip link show` or `bpftool net`, and detach it first")
            }
            other => Failure::new(other.to_string()),
        }
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Failure {
        let reading = |path: &Path| format!("cannot read the object `{}`", path.display());
        match error {
            ObjectError::NotFound { path } => {
                Failure::new(reading(&path)).because("no such file").advise(NOT_AN_OBJECT)
            }
            ObjectError::Unreadable { path, source } => {
                Failure::new(reading(&path)).because(source).advise(NOT_AN_OBJECT)
            }
            ObjectError::NotElf { path } => {
                Failure::new(reading(&path)).because("it is not an ELF file").advise(NOT_AN_OBJECT)
            }
            ObjectError::NotBpf { path, why } => {
                Failure::new(reading(&path)).because(format!("it is not a BPF object: {why}")).advise(NOT_AN_OBJECT)
            }
            ObjectError::NoSuchProgram { path, wanted, there } => no_such_program(&path, &wanted, &there),
            wrong @ ObjectError::WrongType { .. } => Failure::new(wrong.to_string()).advise(
                "name an XDP program with `--prog`; `runnel inspect` shows the programs of an object with their types",
            ),
            ObjectError::Libbpf { path, doing, errno, messages } => {
                let said = if messages.trim().is_empty() { String::new() } else { format!("\nlibbpf says: {messages}") };
                let failure = Failure::new(format!("cannot use the object `{}`: {doing} failed", path.display()));
                let failure = failure.because(format!("{errno}{said}"));
                if messages.contains("BTF is required") { failure.advise("compile it with `-g`") } else { failure }
            }
            other => Failure::new(other.to_string()),
        }
    }
}

/// What is said of a name that no program of an object has.
pub(crate) fn no_such_program(object: &Path, wanted: &str, there: &[String]) -> Failure {
    let failure = Failure::new(format!("the object `{}` has no program `{wanted}`", object.display()));
    if there.is_empty() {
        return failure.advise("it has none at all: mark the entry function with SEC(\"xdp\")");
    }
    failure.advise(format!("name one of those that it has with `--prog`: `{}`", there.join("`, `")))
}

/// What is said of a file that cannot be read as an object.
pub(crate) fn unreadable_object(object: &Path, error: io::Error) -> Failure {
    ObjectError::Unreadable { path: object.to_owned(), source: error }.into()
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
        let failure =
            Failure::new("cannot go on").because(Outer { source: io::Error::from_raw_os_error(13) });
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
    fn what_libbpf_said_is_a_cause() {
        let doing = "r.o: loading it; libbpf says: libbpf: no".to_owned();
        let failure = Failure::from(KernelError::Unsupported { doing, why: "ENOSYS".into() });
        assert_eq!(
            failure.to_string(),
            "error: r.o: loading it\n  why: not offered here (ENOSYS)\n       libbpf says: libbpf: no"
        );
    }

    #[test]
    fn only_a_closed_pipe_is_silent() {
        assert!(Failure::stdout(io::Error::from(io::ErrorKind::BrokenPipe)).is_closed_pipe());
        assert!(!Failure::stdout(io::Error::from(io::ErrorKind::StorageFull)).is_closed_pipe());
    }
}
