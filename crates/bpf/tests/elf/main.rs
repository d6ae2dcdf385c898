//! Tests of the unprivileged half's readers and printers: ELF objects, BTF, disassembly, map contents.
//!
//! They need clang and llvm-objdump (see [`support`]) but no privilege and no kernel.

mod fuzz;
mod limits;
mod objects;
mod props;
mod support;
mod truth;
