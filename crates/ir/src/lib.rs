//! The intermediate representation that everything in Runnel works on: packet-processing programs in SSA form.
//!
//! A [`Program`] is one control-flow graph over 64-bit values, with block parameters in place of phi nodes, and
//! with what it refers to declared beside it: match-action tables, constant or live data, stack slots, callees.
//! A table access is an instruction of its own with the key given as values, which is what makes tables
//! visible to analyses and replaceable by other representations.
//!
//! Values have no static type: each is 64 bits, and each operation says the width it works on; a 32-bit
//! operation leaves the upper half zero. That is how eBPF works, and it loses nothing: what a pointer points into
//! is found by analysis, because after lifting nobody else could say it either.
//!
//! What is deliberately absent: any kernel, eBPF encoding, clock, map type of a kernel, P4 construct or
//! serialization framework. Plugins translate to and from this crate; it knows none of them.

mod builder;
pub mod cfg;
mod entities;
mod inst;
mod ops;
mod parse;
mod print;
mod program;
mod verify;

pub use builder::Builder;
pub use cranelift_entity::{EntityRef, EntitySet, PrimaryMap, SecondaryMap};
pub use entities::{Block, Callee, Data, Inst, Slot, Table, Value};
pub use inst::{InstData, Key, KeyPart, Target, Terminator};
pub use ops::{BinaryOp, Cond, Effects, Size, UnaryOp, Width};
pub use parse::{ParseError, parse_program};
pub use program::{
    BlockData, CalleeData, DataKind, DataObject, InstNode, Program, SlotData, TableData, TableKind, ValueDef,
};
pub use verify::{VerifyError, verify};
