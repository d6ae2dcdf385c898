//! One eBPF instruction as the kernel takes it (`struct bpf_insn`), and the constants of its encoding.
//!
//! Source: RFC 9669 and `include/uapi/linux/bpf.h`. Only the encoding lives here; what instructions mean is
//! said by the lifter.

/// One 8-byte eBPF instruction slot, laid out as `struct bpf_insn`. `ld_imm64` takes two slots.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Insn {
    /// Class, source bit and operation.
    pub code: u8,
    /// Destination register in the low four bits, source register in the high four.
    pub regs: u8,
    /// Jump offset in instruction slots after the next one, or memory offset in bytes.
    pub off: i16,
    /// Immediate operand.
    pub imm: i32,
}

impl Insn {
    /// Builds an instruction from its fields.
    pub const fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Self {
        Insn { code, regs: (dst & 15) | (src << 4), off, imm }
    }
    /// Destination register number.
    pub const fn dst(self) -> u8 {
        self.regs & 15
    }
    /// Source register number, or the pseudo kind of a `ld_imm64` or call.
    pub const fn src(self) -> u8 {
        self.regs >> 4
    }
    /// Instruction class (`BPF_CLASS`).
    pub const fn class(self) -> u8 {
        self.code & 7
    }
    /// Operation of ALU and jump classes (`BPF_OP`).
    pub const fn op(self) -> u8 {
        self.code & 0xf0
    }
    /// Access size bits of load and store classes (`BPF_SIZE`).
    pub const fn size(self) -> u8 {
        self.code & 0x18
    }
    /// Addressing mode of load and store classes (`BPF_MODE`).
    pub const fn mode(self) -> u8 {
        self.code & 0xe0
    }
    /// Whether the second operand is a register (`BPF_X`) rather than the immediate.
    pub const fn is_reg(self) -> bool {
        self.code & X != 0
    }
    /// Whether this is the first slot of the two-slot `ld_imm64`.
    pub const fn is_ld_imm64(self) -> bool {
        self.code == (LD | IMM | DW)
    }
}

impl std::fmt::Debug for Insn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x} r{} r{} {:+} {:#x}", self.code, self.dst(), self.src(), self.off, self.imm)
    }
}

macro_rules! consts {
    ($($(#[$m:meta])* $name:ident = $v:expr;)*) => { $($(#[$m])* #[allow(missing_docs, reason = "named as in linux/bpf.h")] pub const $name: u8 = $v;)* };
}

consts! {
    // Classes.
    LD = 0; LDX = 1; ST = 2; STX = 3; ALU = 4; JMP = 5; JMP32 = 6; ALU64 = 7;
    // Operand source.
    K = 0; X = 8;
    // Sizes.
    W = 0; H = 0x08; B = 0x10; DW = 0x18;
    // Modes.
    IMM = 0; ABS = 0x20; IND = 0x40; MEM = 0x60; MEMSX = 0x80; ATOMIC = 0xc0;
    // ALU operations.
    ADD = 0; SUB = 0x10; MUL = 0x20; DIV = 0x30; OR = 0x40; AND = 0x50; LSH = 0x60; RSH = 0x70;
    NEG = 0x80; MOD = 0x90; XOR = 0xa0; MOV = 0xb0; ARSH = 0xc0; END = 0xd0;
    // Jump operations.
    JA = 0; JEQ = 0x10; JGT = 0x20; JGE = 0x30; JSET = 0x40; JNE = 0x50; JSGT = 0x60; JSGE = 0x70;
    CALL = 0x80; EXIT = 0x90; JLT = 0xa0; JLE = 0xb0; JSLT = 0xc0; JSLE = 0xd0; JCOND = 0xe0;
    // Pseudo sources of `ld_imm64`.
    PSEUDO_MAP_FD = 1; PSEUDO_MAP_VALUE = 2; PSEUDO_BTF_ID = 3; PSEUDO_FUNC = 4; PSEUDO_MAP_IDX = 5; PSEUDO_MAP_IDX_VALUE = 6;
    // Pseudo sources of `call`.
    PSEUDO_CALL = 1; PSEUDO_KFUNC_CALL = 2;
}
