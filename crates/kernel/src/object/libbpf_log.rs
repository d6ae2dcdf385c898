//! libbpf's messages, caught per thread, so that an error carries what libbpf said about it.
//!
//! libbpf prints through one process-wide callback, on the thread that called it. Here the callback appends to
//! the calling thread's buffer while [`captured`] runs and goes to `tracing` otherwise.

use std::cell::RefCell;
use std::sync::Once;

use libbpf_rs::{PrintLevel, set_print};

use crate::error::{Errno, LoadError};

thread_local! {
    static MESSAGES: RefCell<Option<String>> = const { RefCell::new(None) };
}

#[expect(clippy::needless_pass_by_value, reason = "libbpf-rs prescribes the signature")]
fn print(level: PrintLevel, message: String) {
    let kept = MESSAGES.with_borrow_mut(|buffer| buffer.as_mut().map(|b| b.push_str(&message)).is_some());
    if !kept {
        tracing::debug!(?level, "libbpf: {}", message.trim_end());
    }
}

/// Runs a function and gives what libbpf said during it.
pub(super) fn captured<T>(run: impl FnOnce() -> T) -> (T, String) {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        set_print(Some((PrintLevel::Info, print)));
    });
    MESSAGES.set(Some(String::new()));
    let result = run();
    (result, MESSAGES.take().unwrap_or_default())
}

const BEGIN: &str = "-- BEGIN PROG LOAD LOG --\n";
const END: &str = "-- END PROG LOAD LOG --";

/// The verifier's refusal among libbpf's messages, if the load failed for one: libbpf prints
/// `prog 'NAME': -- BEGIN PROG LOAD LOG --`, the log, and `-- END PROG LOAD LOG --`.
pub(super) fn load_error(messages: &str, errno: Errno) -> Option<LoadError> {
    let (before, rest) = messages.split_once(BEGIN)?;
    let log = rest.split_once(END).map_or(rest, |(log, _)| log);
    let program =
        before.rsplit_once("prog '").and_then(|(_, name)| name.split('\'').next()).unwrap_or_default();
    Some(LoadError { program: program.to_owned(), errno, log: log.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verifier_log_is_cut_out_of_the_messages() {
        let messages = "libbpf: prog 'filter': BPF program load failed: Permission denied\n\
                        libbpf: prog 'filter': -- BEGIN PROG LOAD LOG --\n0: (95) exit\nR0 !read_ok\n\
                        processed 1 insns (limit 1000000)\n-- END PROG LOAD LOG --\nlibbpf: failed to load\n";
        let error = load_error(messages, Errno(libc::EACCES)).expect("there is a log");
        assert_eq!((error.program.as_str(), error.reason()), ("filter", "R0 !read_ok"));
        assert!(load_error("libbpf: map 'm': failed to create", Errno(libc::E2BIG)).is_none());
    }
}
