//! The reference semantics of the IR, and the machine that counts: what programs execute, load, store and look up.
//!
//! A program is made ready once ([`Compiled`]) and run as often as one likes on a [`State`]: a [`Machine`] with the
//! packet, the [`Tables`] and the program's own memory, and a [`Host`] with the context and the functions outside.
//! Whatever a program does that it must not do ends the run with a typed [`Fault`], never with a panic: the
//! interpreter is the judge in differential tests, so it trusts nothing that it runs. [`xdp`] has a ready-made host.
//!
//! ```
//! use runnel_interp::{Compiled, Counters, Ended, Machine, State, Tables, xdp::XdpHost};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let program = runnel_ir::parse_program("program \"pass\" {\nblock0(v0):\n v1 = const 2\n return v1\n}")?;
//! let compiled = Compiled::new(&program)?;
//! let machine = Machine::new(Tables::new(&program, 1)?, compiled.image());
//! let mut state = State::new(machine, XdpHost::new(&program));
//! let mut counters = Counters::new(&compiled);
//! state.machine.packet.set(&[0; 64])?;
//! assert_eq!(compiled.run(&mut state, &mut counters)?.ended, Ended::Verdict(2));
//! assert_eq!(counters.totals(&compiled).instructions, 2);
//! # Ok(())
//! # }
//! ```
//!
//! What is deliberately absent: passes and analyses (a reference must not share their mistakes), the kernel's
//! verifier (it proves that faults cannot happen; here they are found when they do), and time: what a run costs is
//! told in instructions and accesses, or by a model that listens to a [`Trace`].

mod address;
mod compile;
mod count;
mod fault;
mod host;
mod image;
mod machine;
mod packet;
mod run;
mod tables;
mod trace;
pub mod xdp;

pub use address::{CONTEXT, place, table_of, table_ref};
pub use compile::Compiled;
pub use count::{Counters, Reached, TableCounts, Totals};
pub use fault::{ControlError, Fault, Object, SetupError, What};
pub use host::{Called, Host, NoHost};
pub use image::{Image, Uninitialised};
pub use machine::Machine;
pub use packet::Packet;
pub use run::{DEFAULT_FUEL, Ended, Outcome, RunError, State, run, run_or_fall_back};
pub use tables::{Contents, Entry, Tables, UpdateMode, errno};
pub use trace::{NoTrace, Trace};
