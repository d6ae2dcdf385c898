//! The operations, each declared once: its text, its algebra, its meaning on constants.
//!
//! `eval` is the definition of every arithmetic operation and condition; the interpreter runs it and the
//! constant folder folds by it. Division by zero gives zero and a remainder by zero the dividend, as in eBPF
//! (RFC 9669, section 4.1); shift amounts are taken modulo the width.

use std::fmt;

/// Width in bits of an arithmetic operation or comparison. A 32-bit operation reads the low halves of its
/// operands and leaves the upper half of its result zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Width {
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// The width in bits.
    pub const fn bits(self) -> u32 {
        match self {
            Width::W32 => 32,
            Width::W64 => 64,
        }
    }
    /// `value` cut to this width, zero-extended.
    pub const fn truncate(self, value: u64) -> u64 {
        match self {
            Width::W32 => value as u32 as u64,
            Width::W64 => value,
        }
    }
    /// `value` cut to this width, sign-extended.
    pub const fn signed(self, value: u64) -> i64 {
        match self {
            Width::W32 => value as u32 as i32 as i64,
            Width::W64 => value as i64,
        }
    }
}

/// Size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Size {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
}

impl Size {
    /// All sizes, smallest first.
    pub const ALL: [Size; 4] = [Size::B1, Size::B2, Size::B4, Size::B8];
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        1 << self as u32
    }
    /// The size in bits.
    pub const fn bits(self) -> u32 {
        self.bytes() * 8
    }
    /// The size of `bytes` bytes, where there is one.
    pub const fn from_bytes(bytes: u32) -> Option<Size> {
        match bytes {
            1 => Some(Size::B1),
            2 => Some(Size::B2),
            4 => Some(Size::B4),
            8 => Some(Size::B8),
            _ => None,
        }
    }
    /// The bits of a value that an access of this size carries.
    pub const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }
}

macro_rules! named_ops {
    ($(#[$edoc:meta])* $enum:ident { $($(#[$doc:meta])* $name:ident = $text:literal;)* }) => {
        $(#[$edoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        pub enum $enum { $($(#[$doc])* $name),* }

        impl $enum {
            /// Every one of them.
            pub const ALL: &[$enum] = &[$($enum::$name),*];
            /// Its name in the text form.
            pub const fn text(self) -> &'static str {
                match self { $($enum::$name => $text),* }
            }
            /// The one that the text form calls `text`.
            pub fn from_text(text: &str) -> Option<$enum> {
                match text { $($text => Some($enum::$name),)* _ => None }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.text()) }
        }
    };
}

named_ops! {
    /// Arithmetic on two operands.
    BinaryOp {
        /// Sum, wrapping.
        Add = "add";
        /// Difference, wrapping.
        Sub = "sub";
        /// Product, wrapping.
        Mul = "mul";
        /// Unsigned quotient; zero when the divisor is zero.
        Udiv = "udiv";
        /// Unsigned remainder; the dividend when the divisor is zero.
        Urem = "urem";
        /// Signed quotient, truncated; zero when the divisor is zero; wraps on overflow.
        Sdiv = "sdiv";
        /// Signed remainder; the dividend when the divisor is zero.
        Srem = "srem";
        /// Bitwise and.
        And = "and";
        /// Bitwise or.
        Or = "or";
        /// Bitwise exclusive or.
        Xor = "xor";
        /// Shift left.
        Shl = "shl";
        /// Shift right, filling with zeros.
        Lshr = "lshr";
        /// Shift right, filling with the sign.
        Ashr = "ashr";
    }
}

impl BinaryOp {
    /// Whether the operands may be exchanged.
    pub const fn is_commutative(self) -> bool {
        matches!(self, BinaryOp::Add | BinaryOp::Mul | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor)
    }

    /// The result on two constants.
    pub const fn eval(self, width: Width, a: u64, b: u64) -> u64 {
        let (ua, ub) = (width.truncate(a), width.truncate(b));
        let (sa, sb) = (width.signed(a), width.signed(b));
        let shift = (b as u32) & (width.bits() - 1);
        let result = match self {
            BinaryOp::Add => ua.wrapping_add(ub),
            BinaryOp::Sub => ua.wrapping_sub(ub),
            BinaryOp::Mul => ua.wrapping_mul(ub),
            BinaryOp::Udiv => match ua.checked_div(ub) {
                Some(quotient) => quotient,
                None => 0,
            },
            BinaryOp::Urem => match ua.checked_rem(ub) {
                Some(remainder) => remainder,
                None => ua,
            },
            BinaryOp::Sdiv => {
                if sb == 0 {
                    0
                } else {
                    sa.wrapping_div(sb) as u64
                }
            }
            BinaryOp::Srem => {
                if sb == 0 {
                    ua
                } else {
                    sa.wrapping_rem(sb) as u64
                }
            }
            BinaryOp::And => ua & ub,
            BinaryOp::Or => ua | ub,
            BinaryOp::Xor => ua ^ ub,
            BinaryOp::Shl => ua << shift,
            BinaryOp::Lshr => ua >> shift,
            BinaryOp::Ashr => (sa >> shift) as u64,
        };
        width.truncate(result)
    }
}

named_ops! {
    /// Arithmetic on one operand. Each works on the low bits that its name gives and ignores the rest.
    UnaryOp {
        /// The low 16 bits with their bytes exchanged, zero-extended.
        Bswap16 = "bswap16";
        /// The low 32 bits with their bytes reversed, zero-extended.
        Bswap32 = "bswap32";
        /// All bytes reversed.
        Bswap64 = "bswap64";
        /// The low 32 bits, zero-extended.
        Zext32 = "zext32";
        /// The low 8 bits, sign-extended to 64.
        Sext8 = "sext8";
        /// The low 16 bits, sign-extended to 64.
        Sext16 = "sext16";
        /// The low 32 bits, sign-extended to 64.
        Sext32 = "sext32";
    }
}

impl UnaryOp {
    /// The result on a constant.
    pub const fn eval(self, a: u64) -> u64 {
        match self {
            UnaryOp::Bswap16 => (a as u16).swap_bytes() as u64,
            UnaryOp::Bswap32 => (a as u32).swap_bytes() as u64,
            UnaryOp::Bswap64 => a.swap_bytes(),
            UnaryOp::Zext32 => a as u32 as u64,
            UnaryOp::Sext8 => a as i8 as i64 as u64,
            UnaryOp::Sext16 => a as i16 as i64 as u64,
            UnaryOp::Sext32 => a as i32 as i64 as u64,
        }
    }
}

named_ops! {
    /// Condition of a branch.
    Cond {
        /// Equal.
        Eq = "eq";
        /// Not equal.
        Ne = "ne";
        /// Less, unsigned.
        Ult = "ult";
        /// Less or equal, unsigned.
        Ule = "ule";
        /// Greater, unsigned.
        Ugt = "ugt";
        /// Greater or equal, unsigned.
        Uge = "uge";
        /// Less, signed.
        Slt = "slt";
        /// Less or equal, signed.
        Sle = "sle";
        /// Greater, signed.
        Sgt = "sgt";
        /// Greater or equal, signed.
        Sge = "sge";
        /// The operands have a bit in common.
        Any = "any";
        /// The operands have no bit in common.
        None = "none";
    }
}

impl Cond {
    /// Whether the condition holds on two constants.
    pub const fn eval(self, width: Width, a: u64, b: u64) -> bool {
        let (ua, ub) = (width.truncate(a), width.truncate(b));
        let (sa, sb) = (width.signed(a), width.signed(b));
        match self {
            Cond::Eq => ua == ub,
            Cond::Ne => ua != ub,
            Cond::Ult => ua < ub,
            Cond::Ule => ua <= ub,
            Cond::Ugt => ua > ub,
            Cond::Uge => ua >= ub,
            Cond::Slt => sa < sb,
            Cond::Sle => sa <= sb,
            Cond::Sgt => sa > sb,
            Cond::Sge => sa >= sb,
            Cond::Any => ua & ub != 0,
            Cond::None => ua & ub == 0,
        }
    }

    /// The condition that holds exactly when this one does not.
    pub const fn negate(self) -> Cond {
        match self {
            Cond::Eq => Cond::Ne,
            Cond::Ne => Cond::Eq,
            Cond::Ult => Cond::Uge,
            Cond::Ule => Cond::Ugt,
            Cond::Ugt => Cond::Ule,
            Cond::Uge => Cond::Ult,
            Cond::Slt => Cond::Sge,
            Cond::Sle => Cond::Sgt,
            Cond::Sgt => Cond::Sle,
            Cond::Sge => Cond::Slt,
            Cond::Any => Cond::None,
            Cond::None => Cond::Any,
        }
    }

    /// The condition that holds on exchanged operands exactly when this one does.
    pub const fn swap(self) -> Cond {
        match self {
            Cond::Ult => Cond::Ugt,
            Cond::Ule => Cond::Uge,
            Cond::Ugt => Cond::Ult,
            Cond::Uge => Cond::Ule,
            Cond::Slt => Cond::Sgt,
            Cond::Sle => Cond::Sge,
            Cond::Sgt => Cond::Slt,
            Cond::Sge => Cond::Sle,
            other => other,
        }
    }
}

bitflags::bitflags! {
    /// What an instruction or callee may do besides giving its result. Nothing set: pure.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Effects: u16 {
        /// Reads memory: packet, stack slots, table values, live data.
        const READS_MEMORY = 1;
        /// Writes memory.
        const WRITES_MEMORY = 2;
        /// Looks tables up.
        const READS_TABLES = 4;
        /// Inserts into, deletes from or otherwise changes tables.
        const WRITES_TABLES = 8;
        /// May move or resize the packet, so that pointers into it are no longer valid.
        const MOVES_PACKET = 16;
        /// May leave the program for good (a tail call).
        const MAY_EXIT = 32;
        /// Gives different results for equal operands: time, randomness, the CPU.
        const VARIES = 64;
        /// Changes something outside that nobody here models (prints, redirects, locks).
        const EXTERNAL = 128;
    }
}

impl Effects {
    /// Everything at once: what to assume of a callee of which nothing is known.
    pub const UNKNOWN: Effects = Effects::all();

    /// Whether an instruction with these effects may go away when its result is not used.
    pub fn is_removable(self) -> bool {
        !self.intersects(
            Effects::WRITES_MEMORY
                | Effects::WRITES_TABLES
                | Effects::MOVES_PACKET
                | Effects::MAY_EXIT
                | Effects::EXTERNAL,
        )
    }
}
