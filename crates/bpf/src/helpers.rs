//! What the kernel's helpers take and do, as far as the lifter needs to know.
//!
//! One line a helper, from `include/uapi/linux/bpf.h` and the prototypes in `net/core/filter.c` and
//! `kernel/bpf/helpers.c`. A helper that is not listed is refused by the lifter with its number: to guess
//! at one that moves the packet would be a wrong verdict.

use runnel_ir::Effects;

/// `bpf_map_lookup_elem`.
pub const MAP_LOOKUP_ELEM: u32 = 1;
/// `bpf_map_update_elem`.
pub const MAP_UPDATE_ELEM: u32 = 2;
/// `bpf_map_delete_elem`.
pub const MAP_DELETE_ELEM: u32 = 3;
/// `bpf_tail_call`.
pub const TAIL_CALL: u32 = 12;
/// `bpf_redirect_map`.
pub const REDIRECT_MAP: u32 = 51;

/// A stretch of memory that a helper gets by pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemArg {
    /// Argument that holds the pointer, from 1.
    pub pointer: u8,
    /// How long the stretch is.
    pub extent: Extent,
}

/// How many bytes a helper may touch behind a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    /// As many as this argument says, from 1.
    Arg(u8),
    /// The key size of the map that is argument 1.
    Key,
    /// The value size of the map that is argument 1.
    Value,
}

/// One helper.
#[derive(Clone, Copy, Debug)]
pub struct Helper {
    /// Its number in `enum bpf_func_id`.
    pub number: u32,
    /// Its name without `bpf_`.
    pub name: &'static str,
    /// How many arguments it takes.
    pub arity: u8,
    /// What it does.
    pub effects: Effects,
    /// Memory that it gets by pointer, apart from the context and packets.
    pub memory: &'static [MemArg],
}

/// The helper with `number`, if it is known here.
pub fn helper(number: u32) -> Option<&'static Helper> {
    HELPERS.iter().find(|h| h.number == number)
}

const KEY: MemArg = MemArg { pointer: 2, extent: Extent::Key };
const fn by_arg(pointer: u8, size: u8) -> MemArg {
    MemArg { pointer, extent: Extent::Arg(size) }
}

macro_rules! helpers {
    ($($number:literal $name:literal $arity:literal [$($effect:ident)*] [$($memory:expr),*];)*) => {
        const HELPERS: &[Helper] = &[$(Helper {
            number: $number,
            name: $name,
            arity: $arity,
            effects: Effects::empty()$(.union(Effects::$effect))*,
            memory: &[$($memory),*],
        }),*];
    };
}

helpers! {
    1 "map_lookup_elem" 2 [READS_MEMORY READS_TABLES] [KEY];
    2 "map_update_elem" 4 [READS_MEMORY WRITES_TABLES] [KEY, MemArg { pointer: 3, extent: Extent::Value }];
    3 "map_delete_elem" 2 [READS_MEMORY WRITES_TABLES] [KEY];
    5 "ktime_get_ns" 0 [VARIES] [];
    7 "get_prandom_u32" 0 [VARIES] [];
    8 "get_smp_processor_id" 0 [VARIES] [];
    12 "tail_call" 3 [READS_TABLES MAY_EXIT EXTERNAL] [];
    23 "redirect" 2 [EXTERNAL] [];
    28 "csum_diff" 5 [READS_MEMORY] [by_arg(1, 2), by_arg(3, 4)];
    42 "get_numa_node_id" 0 [VARIES] [];
    44 "xdp_adjust_head" 2 [MOVES_PACKET WRITES_MEMORY EXTERNAL] [];
    51 "redirect_map" 3 [READS_TABLES EXTERNAL] [];
    54 "xdp_adjust_meta" 2 [MOVES_PACKET WRITES_MEMORY EXTERNAL] [];
    65 "xdp_adjust_tail" 2 [MOVES_PACKET WRITES_MEMORY EXTERNAL] [];
    69 "fib_lookup" 4 [READS_MEMORY WRITES_MEMORY VARIES EXTERNAL] [by_arg(2, 3)];
    118 "jiffies64" 0 [VARIES] [];
    125 "ktime_get_boot_ns" 0 [VARIES] [];
    160 "ktime_get_coarse_ns" 0 [VARIES] [];
    208 "ktime_get_tai_ns" 0 [VARIES] [];
}
