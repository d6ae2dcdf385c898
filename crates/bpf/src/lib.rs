//! The eBPF plugin's unprivileged half: instruction set, ELF objects, lifting to the IR and lowering back.
//!
//! Works without any privilege; everything that needs `bpf(2)` lives in `runnel-kernel`.

pub mod btf;
pub mod disasm;
pub mod helpers;
pub mod insn;
pub mod lift;
pub mod lower;
pub mod maps_json;
pub mod object;
pub mod rewrite;
pub mod spec;
