//! The surroundings of a program: its context, and the functions outside that it calls.

use runnel_ir::{Callee, CalleeData, Size};

use crate::fault::What;
use crate::machine::Machine;

/// How a call ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Called {
    /// It returns a value to the program.
    Value(u64),
    /// It leaves the program for good, as a tail call does; the number is the host's to interpret.
    Exit(u64),
}

/// What the program runs in. A plugin's helper functions and context live behind it, so that the interpreter knows
/// none of them.
pub trait Host {
    /// Reads a field of the context. A field may hold a pointer, which has 64 bits whatever the field's size.
    ///
    /// # Errors
    /// [`What::NoContextField`] when there is no such field.
    fn ctx_load(&mut self, offset: i32, size: Size, machine: &Machine) -> Result<u64, What>;

    /// Calls a function. `callee` is its number in the program, `data` its declaration; there are as many arguments
    /// as it takes.
    ///
    /// # Errors
    /// [`What::UnknownCallee`] when the host has no such function, and whatever the function finds wrong.
    fn call(
        &mut self,
        callee: Callee,
        data: &CalleeData,
        args: &[u64],
        machine: &mut Machine,
    ) -> Result<Called, What>;
}

/// A host without a context and without functions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {
    fn ctx_load(&mut self, offset: i32, size: Size, _: &Machine) -> Result<u64, What> {
        Err(What::NoContextField { offset, size: size.bytes() })
    }

    fn call(&mut self, _: Callee, data: &CalleeData, _: &[u64], _: &mut Machine) -> Result<Called, What> {
        Err(What::UnknownCallee { name: data.name.clone(), number: data.number })
    }
}
