//! What a program and its maps are before and apart from any kernel: the canonical form that the ELF reader
//! and the kernel crate both produce, and that the lifter takes and the lowering gives back.
//!
//! In canonical form every reference to a map is `ld_imm64` with source `PSEUDO_MAP_IDX` (or
//! `PSEUDO_MAP_IDX_VALUE`) and, as immediate, the index of the map in [`ProgramSpec::maps`]. The kernel takes
//! that form as it is, with the descriptors given as `fd_array`.

use crate::insn::Insn;

/// A map as the program's author declared it, or as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Name, at most 15 bytes once in the kernel.
    pub name: String,
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes (of one CPU's copy for per-CPU maps).
    pub value_size: u32,
    /// Capacity in entries.
    pub max_entries: u32,
    /// `BPF_F_*` creation flags.
    pub flags: u32,
}

/// A program: instructions in canonical form and what they refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSpec {
    /// Name of the entry function.
    pub name: String,
    /// ELF section it came from, such as `xdp`; empty where unknown.
    pub section: String,
    /// `enum bpf_prog_type`.
    pub prog_type: u32,
    /// `enum bpf_attach_type` given at load.
    pub expected_attach_type: u32,
    /// `BPF_F_*` load flags that must be equal between a program and its replacement (such as `BPF_F_XDP_HAS_FRAGS`).
    pub flags: u32,
    /// License string, which decides about GPL-only helpers.
    pub license: String,
    /// Instructions: the entry function first, then any subprograms.
    pub insns: Vec<Insn>,
    /// Maps that the instructions refer to by index.
    pub maps: Vec<MapSpec>,
}
