//! eBPF bytecode to IR.
//!
//! Three steps, each in its own file: `flow` decodes the instructions and finds the blocks; `frame` follows
//! constants, stack, context and map pointers through the bytecode and divides the stack frame into areas;
//! `translate` builds SSA, with registers and the stack areas whose address stays private as variables.
//!
//! Whatever the lifter does not understand completely it refuses, with the instruction and the reason; nothing is
//! approximated. What a program may do that the kernel's verifier would not let it do (read a register
//! never written, say) has no meaning here and may be translated to anything.

mod flow;
mod frame;
mod translate;

use runnel_ir::{Program, TableData, TableKind};
use thiserror::Error;

use crate::spec::{MapSpec, ProgramSpec};

/// Why a program was not lifted. The program itself is fine and runs on as it is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("instruction {pc}: {reason}")]
pub struct LiftError {
    /// Index of the instruction slot.
    pub pc: usize,
    /// What stands there.
    pub reason: Unsupported,
}

/// What the lifter does not take.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unsupported {
    /// `call` of another function of the program.
    #[error("calls a subprogram, which is not supported yet")]
    Subprogram,
    /// `call` of a kernel function by BTF id.
    #[error("calls a kernel function (kfunc), which is not supported yet")]
    Kfunc,
    /// A helper that [`crate::helpers`] does not describe.
    #[error("calls helper {0}, which is not described yet")]
    Helper(i32),
    /// A helper on a map that is not one known map.
    #[error("hands {0} a map that is not known at this place, which is not supported yet")]
    UnknownMap(&'static str),
    /// A helper gets a stack buffer whose size is not a constant.
    #[error("hands {0} a stack buffer of a size that is not constant, which is not supported yet")]
    BufferSize(&'static str),
    /// An atomic operation other than an add without fetch.
    #[error("atomic operation {0:#x}, which is not supported yet")]
    Atomic(i32),
    /// `ld_abs` and `ld_ind`.
    #[error("legacy packet load, which is not supported yet")]
    LegacyLoad,
    /// `may_goto`.
    #[error("may_goto, which is not supported yet")]
    MayGoto,
    /// `ld_imm64` of something other than a constant, a map or a map's value.
    #[error("ld_imm64 of pseudo kind {0}, which is not supported yet")]
    PseudoLoad(u8),
    /// A store to the context, or its address in a value of unknown origin.
    #[error("uses the context pointer in a way that is not supported yet ({0})")]
    Context(&'static str),
    /// The frame pointer in a use that cannot be followed.
    #[error("uses a stack pointer in a way that is not supported yet ({0})")]
    StackPointer(&'static str),
    /// Not an instruction that the kernel would take.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

type Result<T> = std::result::Result<T, LiftError>;

fn refuse<T>(pc: usize, reason: Unsupported) -> Result<T> {
    Err(LiftError { pc, reason })
}

/// Translates a program to the IR. Table `i` of the result is map `i` of `spec`; each instruction's origin is the
/// instruction slot that it came from.
///
/// # Errors
/// The first instruction that is not supported, and why.
pub fn lift(spec: &ProgramSpec) -> Result<Program> {
    let flow = flow::Flow::new(&spec.insns)?;
    let frame = frame::Frame::new(spec, &flow)?;
    let mut program = Program::new(spec.name.clone());
    for map in &spec.maps {
        program.tables.push(table(map));
    }
    translate::translate(spec, &flow, &frame, &mut program)?;
    Ok(program)
}

/// How the IR sees a map, by `enum bpf_map_type`. Types whose elements only helpers can use are opaque.
pub fn table(map: &MapSpec) -> TableData {
    let (kind, per_cpu, keeps_recency) = match map.map_type {
        1 => (TableKind::Exact, false, false),
        2 => (TableKind::Index, false, false),
        5 => (TableKind::Exact, true, false),
        6 => (TableKind::Index, true, false),
        9 => (TableKind::Exact, false, true),
        10 => (TableKind::Exact, true, true),
        11 => (TableKind::Prefix, false, false),
        _ => (TableKind::Opaque, false, false),
    };
    TableData {
        name: map.name.clone(),
        kind,
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
        per_cpu,
        keeps_recency,
    }
}
