//! The typed `u32` indices by which the parts of a program refer to each other.

use cranelift_entity::entity_impl;

macro_rules! entities {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    )*};
}

entities! {
    /// A basic block.
    Block "block";
    /// An instruction.
    Inst "inst";
    /// An SSA value of 64 bits.
    Value "v";
    /// A match-action table.
    Table "t";
    /// A block of bytes that the program addresses directly.
    Data "d";
    /// A slot of the program's stack frame.
    Slot "s";
    /// A function outside the program.
    Callee "c";
}
