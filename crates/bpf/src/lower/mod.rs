//! IR to eBPF bytecode.
//!
//! `edges` gives every edge that needs moves a block of its own, `select` chooses instructions over virtual registers,
//! `regs` lets `regalloc2` choose registers, and `emit` writes bytecode and resolves jumps. Constants and addresses are
//! materialized anew at each use rather than kept in registers: an instruction is cheaper than a spill, and ten
//! registers are few.
//!
//! The order of memory accesses, comparisons and calls is that of the IR: what the kernel's verifier has to
//! follow is decided by the passes, not here. Spilled registers go to aligned eight-byte stack words, where the
//! verifier keeps all that it knows of them.

mod edges;
mod emit;
mod regs;
mod select;

use runnel_ir::{Data, EntityRef, Program, Table, VerifyError};
use thiserror::Error;

use crate::insn::Insn;

/// Where a data object lies: in the value of map `map` of the program, from byte `offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataPlace {
    /// Index of a map of one entry.
    pub map: u32,
    /// First byte in its value.
    pub offset: u32,
}

/// What `deopt` does: a tail call of the original, and its code in line for when that fails.
#[derive(Clone, Copy, Debug)]
pub struct Fallback<'a> {
    /// Index of the program array that holds the original.
    pub array: u32,
    /// Its slot there.
    pub slot: u32,
    /// The original's code in canonical form; its map indices must mean the same as those of the program.
    pub original: &'a [Insn],
}

/// What the program refers to that is not in the IR.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout<'a> {
    /// Map index of each table, by number; tables beyond the end of the list have their own number.
    pub tables: &'a [u32],
    /// Place of each data object, by number.
    pub data: &'a [DataPlace],
    /// What `deopt` does; a program without `deopt` needs none.
    pub fallback: Option<Fallback<'a>>,
}

/// Bytecode, and for each slot the origin of the IR instruction that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// Instructions in canonical form.
    pub insns: Vec<Insn>,
    /// Origins, one a slot.
    pub origins: Vec<Option<u32>>,
}

impl Layout<'_> {
    fn map_of(&self, table: Table) -> u32 {
        self.tables.get(table.index()).copied().unwrap_or(table.as_u32())
    }
}

/// A program that cannot be lowered.
#[derive(Debug, Error)]
pub enum LowerError {
    /// The IR is not well-formed: a mistake of ours.
    #[error("the program is not well-formed: {0}")]
    Invalid(#[from] VerifyError),
    /// The frame would be larger than the kernel allows.
    #[error("needs {0} bytes of stack, and the kernel allows 512")]
    Stack(u32),
    /// A jump would be longer than an instruction can say.
    #[error("is too large: a jump over {0} instructions does not fit")]
    Jump(i64),
    /// An offset would be larger than an instruction can say.
    #[error("an offset of {0} bytes does not fit into an instruction")]
    Offset(i64),
    /// A callee takes more than five arguments.
    #[error("{0} takes more than five arguments")]
    Arguments(String),
    /// A data object has no place.
    #[error("{0} has no place in memory")]
    Place(Data),
    /// `deopt` without a fall-back.
    #[error("gives up in favour of the original, and there is none to fall back to")]
    NoFallback,
    /// The register allocator failed: a mistake of ours.
    #[error("register allocation failed: {0}")]
    Registers(String),
}

/// Lowers a program.
///
/// # Errors
/// See [`LowerError`]; the program that was lifted can always go on running instead.
pub fn lower(program: &Program, layout: &Layout<'_>) -> Result<Lowered, LowerError> {
    runnel_ir::verify(program)?;
    let (split, far) = edges::split(program);
    let code = select::select(&split, layout)?;
    let allocated = regs::allocate(&code)?;
    emit::emit(&code, &allocated, layout, &far)
}
