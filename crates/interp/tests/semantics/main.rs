//! What programs do, told by text programs; what tables do, told by models; what is counted.
//!
//! Relies on the text form of the IR. Nothing here knows how the interpreter works inside.

mod counting;
mod instructions;
mod memory;
mod tables;
mod xdp_host;

use runnel_interp::{Compiled, Counters, Machine, Outcome, State, Tables, xdp::XdpHost};
use runnel_ir::parse_program;

/// A program with everything that it needs to run.
struct Bench {
    compiled: Compiled,
    counters: Counters,
    state: State<XdpHost>,
}

impl Bench {
    /// `text` is what stands between the braces of a program.
    fn new(text: &str) -> Bench {
        Bench::with_cpus(text, 1)
    }

    fn with_cpus(text: &str, cpus: u32) -> Bench {
        let program = parse_program(&format!("program \"p\" {{\n{text}\n}}")).unwrap();
        let compiled = Compiled::new(&program).unwrap();
        let machine = Machine::new(Tables::new(&program, cpus).unwrap(), compiled.image());
        let state = State::new(machine, XdpHost::new(&program));
        let counters = Counters::new(&compiled);
        Bench { compiled, counters, state }
    }

    /// Runs on a packet; a fault is told as text.
    fn run(&mut self, packet: &[u8]) -> Result<Outcome, String> {
        self.state.machine.packet.set(packet).unwrap();
        self.state.host.xdp.begin_packet();
        self.compiled.run(&mut self.state, &mut self.counters).map_err(|fault| fault.to_string())
    }

    /// How a run on a packet ended, as text.
    fn ended(&mut self, packet: &[u8]) -> String {
        match self.run(packet) {
            Ok(outcome) => format!("{:?}", outcome.ended),
            Err(fault) => fault,
        }
    }
}

/// The verdict of straight-line code that leaves it in `v99`.
fn verdict(body: &str) -> String {
    Bench::new(&format!("block0(v0):\n{body}\nreturn v99")).ended(&[])
}
