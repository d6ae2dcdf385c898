//! Execution: the meaning of each instruction, spelled out once.

use runnel_ir::{Block, Effects, EntityRef, Program, Size};
use smallvec::SmallVec;
use thiserror::Error;

use crate::address::CONTEXT;
use crate::compile::{Compiled, Edge, End, Op, Part, Span, count};
use crate::count::{Counters, Totals};
use crate::fault::{Fault, SetupError, What};
use crate::host::{Called, Host};
use crate::image::Image;
use crate::machine::{Machine, put_number};
use crate::trace::{NoTrace, Trace};

/// As many instructions as the kernel's verifier is ready to follow.
pub const DEFAULT_FUEL: u64 = 1_000_000;

/// Everything a run changes.
#[derive(Clone, Debug)]
pub struct State<H> {
    /// Memory and tables.
    pub machine: Machine,
    /// The surroundings.
    pub host: H,
    /// Instructions that one run may execute.
    pub fuel: u64,
    scratch: Scratch,
}

/// Room that runs use over and over.
#[derive(Clone, Debug, Default)]
struct Scratch {
    registers: Vec<u64>,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<H> State<H> {
    /// A state with the usual fuel.
    pub fn new(machine: Machine, host: H) -> State<H> {
        State { machine, host, fuel: DEFAULT_FUEL, scratch: Scratch::default() }
    }
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With a verdict.
    Verdict(u64),
    /// The program gave up: the original has to run instead. See [`run_or_fall_back`].
    Deopt,
    /// A callee left the program for good; the number is the host's.
    Exit(u64),
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it ended.
    pub ended: Ended,
    /// Instructions and terminators executed.
    pub steps: u64,
    /// Whether anything that outlasts the run was written, or anything done that nobody here models. A program that
    /// gives up must not have.
    pub wrote: bool,
}

/// Why [`run`] gave no outcome.
#[derive(PartialEq, Eq, Debug, Error)]
pub enum RunError {
    /// The program cannot be run at all.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The program did what it must not do.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Runs a program once, on the image that the state has. What runs more often is compiled once: [`Compiled`].
///
/// # Errors
/// [`RunError::Setup`] when the program is not well-formed, [`RunError::Fault`] when it does what it must not.
pub fn run<H: Host>(program: &Program, state: &mut State<H>) -> Result<Outcome, RunError> {
    let compiled = Compiled::new(program)?;
    let mut counters = Counters::new(&compiled);
    Ok(compiled.run(state, &mut counters)?)
}

/// Runs a program and, where it gives up, the one that it falls back to, as a data plane does.
///
/// The state's image is the program's; `fallback` comes with an image of its own, whose stack and live data persist
/// between calls.
///
/// # Errors
/// The fault of whichever of the two did what it must not.
pub fn run_or_fall_back<H: Host>(
    (program, counters): (&Compiled, &mut Counters),
    fallback: (&Compiled, &mut Counters, &mut Image),
    state: &mut State<H>,
) -> Result<Outcome, Fault> {
    let first = program.run(state, counters)?;
    if first.ended != Ended::Deopt {
        return Ok(first);
    }
    let (original, counters, image) = fallback;
    std::mem::swap(&mut state.machine.image, image);
    let second = original.run(state, counters);
    std::mem::swap(&mut state.machine.image, image);
    second.map(|s| Outcome { steps: first.steps + s.steps, wrote: first.wrote || s.wrote, ..s })
}

impl Compiled {
    /// Runs the program once, from its entry, and counts what is executed.
    ///
    /// # Errors
    /// [`Fault`] when the program does what it must not do or does not end within the state's fuel.
    ///
    /// # Panics
    /// When `counters` are those of another program.
    pub fn run<H: Host>(&self, state: &mut State<H>, counters: &mut Counters) -> Result<Outcome, Fault> {
        self.run_traced(state, counters, &mut NoTrace)
    }

    /// As [`Compiled::run`], telling `trace` what is touched.
    ///
    /// # Errors
    /// As [`Compiled::run`].
    ///
    /// # Panics
    /// As [`Compiled::run`].
    pub fn run_traced<H: Host, T: Trace>(
        &self,
        state: &mut State<H>,
        counters: &mut Counters,
        trace: &mut T,
    ) -> Result<Outcome, Fault> {
        assert_eq!(counters.blocks.len(), self.blocks.len(), "the counters are the program's");
        counters.runs += 1;
        state.machine.image.begin_run();
        let scratch = &mut state.scratch;
        if scratch.registers.len() < self.registers {
            scratch.registers.resize(self.registers, 0);
        }
        scratch.registers[self.context as usize] = CONTEXT;
        let mut run = Run {
            program: self,
            machine: &mut state.machine,
            host: &mut state.host,
            scratch,
            counters,
            trace,
            wrote: false,
        };
        run.blocks(state.fuel)
    }
}

/// A run under way.
struct Run<'a, H, T> {
    program: &'a Compiled,
    machine: &'a mut Machine,
    host: &'a mut H,
    scratch: &'a mut Scratch,
    counters: &'a mut Counters,
    trace: &'a mut T,
    wrote: bool,
}

impl<H: Host, T: Trace> Run<'_, H, T> {
    fn blocks(&mut self, fuel: u64) -> Result<Outcome, Fault> {
        let program = self.program;
        let mut steps = 0;
        let mut at = 0;
        loop {
            let block = &program.blocks[at];
            self.counters.blocks[at] += 1;
            steps += block.tally.instructions;
            if steps > fuel {
                return Err(Fault { block: block.block, inst: None, what: What::OutOfFuel { fuel } });
            }
            self.trace.fetch(block.first, block.tally.instructions as u32);
            if let Some((value, unexecuted)) = self.ops(block.block, block.ops)? {
                let mut skipped = Totals { instructions: 1, ..Totals::default() };
                skipped.branches = block.tally.branches;
                unexecuted.iter().for_each(|op| count(op, &mut skipped));
                self.counters.skipped += skipped;
                let steps = steps - skipped.instructions;
                return Ok(Outcome { ended: Ended::Exit(value), steps, wrote: self.wrote });
            }
            let edge = match &block.end {
                End::Jump(edge) => edge,
                End::Branch { cond, width, lhs, rhs, then, other } => {
                    let holds = cond.eval(*width, self.reg(*lhs), self.reg(*rhs));
                    self.counters.directions[at][usize::from(!holds)] += 1;
                    if holds { then } else { other }
                }
                End::Return(value) => {
                    let ended = Ended::Verdict(self.reg(*value));
                    return Ok(Outcome { ended, steps, wrote: self.wrote });
                }
                End::Deopt => return Ok(Outcome { ended: Ended::Deopt, steps, wrote: self.wrote }),
            };
            at = self.follow(edge);
        }
    }

    /// Executes operations in a row. Where a call leaves the program: its value, and the operations left out.
    fn ops(&mut self, block: Block, span: Span) -> Result<Option<(u64, &[Op])>, Fault> {
        let program = self.program;
        let ops = span.of(&program.ops);
        for (i, op) in ops.iter().enumerate() {
            match self.op(op) {
                Ok(None) => {}
                Ok(Some(value)) => return Ok(Some((value, &ops[i + 1..]))),
                Err(what) => {
                    let inst = Some(span.of(&program.insts)[i]);
                    return Err(Fault { block, inst, what });
                }
            }
        }
        Ok(None)
    }

    fn reg(&self, reg: u32) -> u64 {
        self.scratch.registers[reg as usize]
    }

    fn set(&mut self, reg: u32, value: u64) {
        self.scratch.registers[reg as usize] = value;
    }

    fn follow(&mut self, edge: &Edge) -> usize {
        for &(from, to) in edge.moves.of(&self.program.moves) {
            let value = self.reg(from);
            self.set(to, value);
        }
        edge.to as usize
    }

    /// Executes one operation. Gives a value when a call leaves the program.
    fn op(&mut self, op: &Op) -> Result<Option<u64>, What> {
        match *op {
            Op::Const { dst, value } => self.set(dst, value),
            Op::Binary { op, width, dst, lhs, rhs } => {
                self.set(dst, op.eval(width, self.reg(lhs), self.reg(rhs)));
            }
            Op::Unary { op, dst, arg } => self.set(dst, op.eval(self.reg(arg))),
            Op::Load { size, dst, ptr, offset } => {
                let address = self.address(ptr, offset);
                self.trace.load(address, size.bytes());
                let value = self.machine.load(size, address)?;
                self.set(dst, value);
            }
            Op::Store { size, ptr, offset, value } => {
                let value = self.reg(value);
                self.store(size, self.address(ptr, offset), value)?;
            }
            Op::AtomicAdd { size, ptr, offset, value } => {
                let address = self.address(ptr, offset);
                self.trace.load(address, size.bytes());
                let sum = self.machine.load(size, address)?.wrapping_add(self.reg(value));
                self.store(size, address, sum)?;
            }
            Op::CtxLoad { size, dst, offset } => {
                let value = self.host.ctx_load(offset, size, self.machine)?;
                self.set(dst, value);
            }
            Op::TableValue { dst, table, offset } => {
                let address = self.machine.tables.direct(table, offset)?;
                self.set(dst, address);
            }
            Op::Lookup { dst, table, key } => {
                self.key(table, key);
                let address = self.machine.tables.lookup(table, &self.scratch.key)?;
                self.trace.lookup(table, &self.scratch.key, address);
                let counts = &mut self.counters.tables[table.index()];
                counts.lookups += 1;
                counts.hits += u64::from(address != 0);
                self.set(dst, address);
            }
            Op::Update { dst, table, key, value, flags } => {
                self.wrote = true;
                self.key(table, key);
                self.value(table, self.reg(value))?;
                let flags = self.reg(flags);
                let Scratch { key, value, .. } = &self.scratch;
                let result = self.machine.tables.update(table, key, value, flags)?;
                self.counters.tables[table.index()].updates += 1;
                self.set(dst, result as u64);
            }
            Op::Delete { dst, table, key } => {
                self.wrote = true;
                self.key(table, key);
                let result = self.machine.tables.delete(table, &self.scratch.key)?;
                self.counters.tables[table.index()].deletes += 1;
                self.set(dst, result as u64);
            }
            Op::Call { dst, callee, args } => {
                let data = &self.program.callees[callee];
                self.wrote |= data.effects.intersects(
                    Effects::WRITES_MEMORY
                        | Effects::WRITES_TABLES
                        | Effects::MOVES_PACKET
                        | Effects::EXTERNAL,
                );
                let args = args.of(&self.program.args);
                let args: SmallVec<[u64; 8]> = args.iter().map(|&arg| self.reg(arg)).collect();
                match self.host.call(callee, data, &args, self.machine)? {
                    Called::Value(value) => self.set(dst, value),
                    Called::Exit(value) => return Ok(Some(value)),
                }
            }
        }
        Ok(None)
    }

    fn address(&self, ptr: u32, offset: i32) -> u64 {
        self.reg(ptr).wrapping_add_signed(i64::from(offset))
    }

    fn store(&mut self, size: Size, address: u64, value: u64) -> Result<(), What> {
        self.trace.store(address, size.bytes());
        self.wrote |= !crate::address::is_slot(address);
        self.machine.store(size, address, value)
    }

    /// Puts a key together.
    fn key(&mut self, table: runnel_ir::Table, parts: Span) {
        let size = self.program.key_sizes[table.index()] as usize;
        let Scratch { registers, key, .. } = &mut *self.scratch;
        key.resize(size, 0);
        for &Part { offset, size, reg } in parts.of(&self.program.parts) {
            let at = usize::from(offset);
            put_number(&mut key[at..at + size.bytes() as usize], registers[reg as usize]);
        }
    }

    /// Fetches the value that an update writes; a copy, because it may come from the table itself.
    fn value(&mut self, table: runnel_ir::Table, address: u64) -> Result<(), What> {
        let size = self.machine.tables.value_size(table)?;
        self.trace.load(address, size as u32);
        let bytes = self.machine.bytes(address, size)?;
        self.scratch.value.clear();
        self.scratch.value.extend_from_slice(bytes);
        Ok(())
    }
}
