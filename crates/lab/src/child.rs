//! Child processes that do not outlive their parent, and whose words are kept.
//!
//! Each is in a process group of its own, so that Ctrl-C reaches only the parent, which ends its children in order;
//! should the parent be killed, the kernel interrupts them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::error::{LabError, Result};

/// How much of what a child complains of is kept, in bytes.
const KEPT: usize = 8 << 10;

/// A child process; interrupted and waited for on drop, and killed if it does not heed that.
#[derive(Debug)]
pub struct ChildProcess {
    what: String,
    child: Child,
    stderr: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

impl ChildProcess {
    /// Starts a command; its standard output is handed to `on_line` line by line, on a thread of its own, without
    /// line ends. `what` names the process in errors.
    pub fn start(
        what: &str,
        mut command: Command,
        on_line: impl FnMut(&str) + Send + 'static,
    ) -> Result<ChildProcess> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: one system call, which allocates nothing, as code between fork and exec must.
        unsafe {
            command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGINT).map_err(std::io::Error::from));
        }
        let mut child = command.spawn().map_err(|e| LabError::io(format!("starting {what}"), e))?;
        let stderr = Arc::new(Mutex::new(Vec::new()));
        if let Some(stream) = child.stderr.take() {
            let kept = Arc::clone(&stderr);
            // Ends with the child's standard error.
            std::thread::spawn(move || keep(stream, &kept));
        }
        let listener = child.stdout.take().map(|stream| std::thread::spawn(move || listen(stream, on_line)));
        Ok(ChildProcess { what: what.to_owned(), child, stderr, listener })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|e| LabError::io(format!("waiting for {}", self.what), e))
    }

    /// Sends it a signal. One that has ended is none the worse.
    pub fn signal(&self, signal: Signal) {
        // The child has not been waited for, so its id is not anybody else's.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// Waits until it ends by itself, and until all that it said has been handed on.
    ///
    /// Errors: it takes longer than `patience`, or ends in failure.
    pub fn wait(&mut self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.ended()? {
                self.listener.take().map(JoinHandle::join);
                return if status.success() {
                    Ok(())
                } else {
                    Err(self.error(format!("ended with {status}")))
                };
            }
            if Instant::now() > until {
                return Err(self.error(format!("did not end within {} s", patience.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it and its own children at once (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        // The process is the leader of its group, and has not been waited for unless it has ended.
        if self.ended()?.is_none() {
            killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL)
                .map_err(|e| LabError::io(format!("killing {}", self.what), e))?;
        }
        self.child.wait().map_err(|e| LabError::io(format!("waiting for {}", self.what), e))?;
        self.listener.take().map(JoinHandle::join);
        Ok(())
    }

    /// An error about this process, with what it complained of.
    pub fn error(&self, problem: impl Into<String>) -> LabError {
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        LabError::Child {
            what: self.what.clone(),
            problem: problem.into(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if matches!(self.ended(), Ok(None)) {
            self.signal(Signal::SIGINT);
            if self.wait(Duration::from_secs(10)).is_err() && matches!(self.ended(), Ok(None)) {
                // Nothing can be done about a failure here.
                let _ = self.kill();
            }
        }
    }
}

fn listen(stream: ChildStdout, mut on_line: impl FnMut(&str)) {
    // A line that is no text ends the listening; whoever waits for the lines will miss them.
    for line in BufReader::with_capacity(1 << 16, stream).lines().map_while(std::io::Result::ok) {
        on_line(&line);
    }
}

/// Keeps the end of what comes.
fn keep(mut stream: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&buffer[..n]);
        let excess = kept.len().saturating_sub(KEPT);
        kept.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_says_is_heard_and_how_it_ends_is_told() {
        let (send, lines) = channel();
        let said = move |line: &str| send.send(line.to_owned()).unwrap();
        let mut child =
            ChildProcess::start("a child", shell("echo one; echo two; echo oh >&2; exit 3"), said).unwrap();
        let error = child.wait(Duration::from_secs(60)).unwrap_err().to_string();
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(error.starts_with("a child ended with exit status: 3"), "{error}");
    }

    #[test]
    fn a_child_that_does_not_heed_an_interrupt_does_not_outlive_its_handle_when_killed() {
        let mut child = ChildProcess::start("a child", shell("trap '' INT; sleep 1000"), |_| {}).unwrap();
        assert!(child.wait(Duration::ZERO).is_err());
        child.kill().unwrap();
        assert!(child.ended().unwrap().is_some());
    }
}
