//! Prints instructions as the kernel's documentation and `llvm-objdump` do: `r1 = *(u32 *)(r2 + 4)`,
//! `if r1 > r2 goto +5`, `w0 += 1`, `call 1`. For reports and golden tests.
//!
//! Numbers are decimal, jumps are relative, and references to maps in canonical form show the map. It is total:
//! what is no instruction prints as `invalid` with its fields. It does not say whether a program is valid.
//!
//! Source: RFC 9669 and `Documentation/bpf/standardization/instruction-set.rst` of the kernel; the notation is
//! that of LLVM's BPF assembler.

use std::fmt::Write as _;

use crate::insn::*;
use crate::spec::ProgramSpec;

/// `BPF_ATOMIC` operations in the immediate: fetch the old value, exchange, compare and exchange, and the ordered
/// load and store.
const FETCH: i32 = 1;
const XCHG: i32 = 0xe0 | FETCH;
const CMPXCHG: i32 = 0xf0 | FETCH;
const LOAD_ACQ: i32 = 0x100;
const STORE_REL: i32 = 0x110;

/// The text of a whole program, one instruction per line with its slot, and maps by name.
///
/// ```
/// use runnel_bpf::insn::Insn;
/// # use runnel_bpf::spec::ProgramSpec;
/// # let mut spec = ProgramSpec { name: "p".into(), section: "xdp".into(), prog_type: 6, expected_attach_type: 37,
/// #     flags: 0, license: String::new(), insns: vec![], maps: vec![] };
/// spec.insns = vec![Insn::new(0xb7, 0, 0, 0, 2), Insn::new(0x95, 0, 0, 0, 0)];
/// assert_eq!(runnel_bpf::disasm::program(&spec), "0: r0 = 2\n1: exit\n");
/// ```
pub fn program(spec: &ProgramSpec) -> String {
    let mut text = String::new();
    let mut pc = 0;
    while let Some(&insn) = spec.insns.get(pc) {
        let second = spec.insns.get(pc + 1).copied();
        let line = match map_reference(spec, insn, second) {
            Some(line) => line,
            None => instruction(insn, second),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{pc}: {line}");
        pc += slots(insn, second);
    }
    text
}

/// How many slots an instruction takes, given the slot after it: 2 for a `ld_imm64` with its second half, else 1.
pub fn slots(insn: Insn, second: Option<Insn>) -> usize {
    if insn.is_ld_imm64() && second.is_some_and(|s| s.code == 0) { 2 } else { 1 }
}

/// A reference to one of the program's own maps, with the map's name.
fn map_reference(spec: &ProgramSpec, insn: Insn, second: Option<Insn>) -> Option<String> {
    if slots(insn, second) != 2 {
        return None;
    }
    let name = &spec.maps.get(usize::try_from(insn.imm).ok()?)?.name;
    let dst = insn.dst();
    match insn.src() {
        PSEUDO_MAP_IDX => Some(format!("r{dst} = map[{name}] ll")),
        PSEUDO_MAP_IDX_VALUE => Some(format!("r{dst} = map[{name}][0] + {} ll", second?.imm)),
        _ => None,
    }
}

/// The text of one instruction. `second` is the slot after it, which a `ld_imm64` needs.
pub fn instruction(insn: Insn, second: Option<Insn>) -> String {
    let text = match insn.class() {
        ALU | ALU64 => alu(insn),
        JMP | JMP32 => jump(insn),
        LD => load_special(insn, second),
        LDX => load(insn),
        ST => store(insn),
        _ => match insn.mode() {
            ATOMIC => atomic(insn),
            _ => store(insn),
        },
    };
    text.unwrap_or_else(|| format!("invalid ({insn:?})"))
}

/// `r` for 64-bit operations, `w` for the 32-bit half.
fn prefix(is_64: bool) -> char {
    if is_64 { 'r' } else { 'w' }
}

fn alu(insn: Insn) -> Option<String> {
    let is_64 = insn.class() == ALU64;
    let (p, dst, src) = (prefix(is_64), insn.dst(), insn.src());
    match insn.op() {
        NEG => return Some(format!("{p}{dst} = -{p}{dst}")),
        END => return byte_swap(insn, is_64),
        MOV if insn.is_reg() && insn.off != 0 => return move_special(insn, is_64),
        _ => {}
    }
    let signed = if insn.off == 1 { "s" } else { "" };
    let op = match insn.op() {
        ADD => "+=",
        SUB => "-=",
        MUL => "*=",
        DIV => "/=",
        OR => "|=",
        AND => "&=",
        LSH => "<<=",
        RSH => ">>=",
        MOD => "%=",
        XOR => "^=",
        MOV => "=",
        ARSH => "s>>=",
        _ => return None,
    };
    let signed = if matches!(insn.op(), DIV | MOD) { signed } else { "" };
    Some(match insn.is_reg() {
        true => format!("{p}{dst} {signed}{op} {p}{src}"),
        false => format!("{p}{dst} {signed}{op} {}", insn.imm),
    })
}

/// Sign-extending moves and casts between address spaces, which the offset tells from plain moves.
fn move_special(insn: Insn, is_64: bool) -> Option<String> {
    let (p, dst, src) = (prefix(is_64), insn.dst(), insn.src());
    match insn.off {
        8 | 16 => Some(format!("{p}{dst} = (s{}){p}{src}", insn.off)),
        32 if is_64 => Some(format!("r{dst} = (s32)r{src}")),
        1 if is_64 => {
            let spaces = insn.imm as u32;
            Some(format!("r{dst} = addr_space_cast(r{src}, {}, {})", spaces >> 16, spaces & 0xffff))
        }
        _ => None,
    }
}

fn byte_swap(insn: Insn, is_64: bool) -> Option<String> {
    let order = match (is_64, insn.is_reg()) {
        (false, false) => "le",
        (false, true) => "be",
        (true, false) => "bswap",
        (true, true) => return None,
    };
    let dst = insn.dst();
    matches!(insn.imm, 16 | 32 | 64).then(|| format!("r{dst} = {order}{} r{dst}", insn.imm))
}

fn jump(insn: Insn) -> Option<String> {
    let is_64 = insn.class() == JMP;
    let (p, dst, src) = (prefix(is_64), insn.dst(), insn.src());
    let op = match insn.op() {
        JA if insn.is_reg() => return is_64.then(|| format!("gotox r{dst}")),
        JA if is_64 => return Some(format!("goto {:+}", insn.off)),
        JA => return Some(format!("gotol {:+}", insn.imm)),
        CALL if is_64 => return call(insn),
        EXIT if is_64 => return Some("exit".to_owned()),
        JCOND if is_64 && !insn.is_reg() => return Some(format!("may_goto {:+}", insn.off)),
        JEQ => "==",
        JGT => ">",
        JGE => ">=",
        JSET => "&",
        JNE => "!=",
        JSGT => "s>",
        JSGE => "s>=",
        JLT => "<",
        JLE => "<=",
        JSLT => "s<",
        JSLE => "s<=",
        _ => return None,
    };
    let target = format!("goto {:+}", insn.off);
    Some(match insn.is_reg() {
        true => format!("if {p}{dst} {op} {p}{src} {target}"),
        false => format!("if {p}{dst} {op} {} {target}", insn.imm),
    })
}

fn call(insn: Insn) -> Option<String> {
    if insn.is_reg() {
        return Some(format!("callx r{}", insn.dst()));
    }
    match insn.src() {
        0 => Some(format!("call {}", insn.imm)),
        PSEUDO_CALL => Some(format!("call pc{:+}", insn.imm)),
        PSEUDO_KFUNC_CALL => Some(format!("call kfunc {}", insn.imm)),
        _ => None,
    }
}

/// `ld_imm64` and the old packet loads.
fn load_special(insn: Insn, second: Option<Insn>) -> Option<String> {
    let (dst, src, imm) = (insn.dst(), insn.src(), insn.imm);
    if !insn.is_ld_imm64() {
        let size = size_name(insn);
        return match insn.mode() {
            _ if insn.size() == DW => None,
            ABS => Some(format!("r0 = *({size} *)skb[{imm}]")),
            IND if imm == 0 => Some(format!("r0 = *({size} *)skb[r{src}]")),
            IND => Some(format!("r0 = *({size} *)skb[r{src}{}]", plus(imm))),
            _ => None,
        };
    }
    let high = second.filter(|s| s.code == 0)?.imm;
    Some(match src {
        0 => format!("r{dst} = {} ll", i64::from(high) << 32 | i64::from(imm as u32)),
        PSEUDO_MAP_FD => format!("r{dst} = map fd {imm} ll"),
        PSEUDO_MAP_VALUE => format!("r{dst} = map fd {imm}[0] + {high} ll"),
        PSEUDO_BTF_ID => format!("r{dst} = btf id {imm} ll"),
        PSEUDO_FUNC => format!("r{dst} = func pc{imm:+} ll"),
        PSEUDO_MAP_IDX => format!("r{dst} = map {imm} ll"),
        PSEUDO_MAP_IDX_VALUE => format!("r{dst} = map {imm}[0] + {high} ll"),
        _ => return None,
    })
}

fn size_name(insn: Insn) -> &'static str {
    match insn.size() {
        W => "u32",
        H => "u16",
        B => "u8",
        _ => "u64",
    }
}

fn load(insn: Insn) -> Option<String> {
    let (dst, address) = (insn.dst(), address(insn.src(), insn.off));
    let size = match (insn.mode(), insn.size()) {
        (MEM, _) => size_name(insn),
        (MEMSX, W) => "s32",
        (MEMSX, H) => "s16",
        (MEMSX, B) => "s8",
        _ => return None,
    };
    // Assemblers of the newest dialect write `w1` for 32-bit loads; that is the same instruction.
    Some(format!("r{dst} = *({size} *){address}"))
}

fn store(insn: Insn) -> Option<String> {
    if insn.mode() != MEM {
        return None;
    }
    let (size, address) = (size_name(insn), address(insn.dst(), insn.off));
    Some(match insn.class() {
        ST => format!("*({size} *){address} = {}", insn.imm),
        _ => format!("*({size} *){address} = r{}", insn.src()),
    })
}

fn atomic(insn: Insn) -> Option<String> {
    let (dst, src, off) = (insn.dst(), insn.src(), insn.off);
    let size = size_name(insn);
    match insn.imm {
        LOAD_ACQ => return Some(format!("r{dst} = load_acquire(({size} *){})", address(src, off))),
        STORE_REL => return Some(format!("store_release(({size} *){}, r{src})", address(dst, off))),
        _ => {}
    }
    let is_64 = match insn.size() {
        DW => true,
        W => false,
        _ => return None,
    };
    let (p, bits) = (prefix(is_64), if is_64 { "64" } else { "32" });
    let old = if is_64 { "" } else { "32" };
    let address = address(dst, off);
    let (name, op) = match insn.imm & !FETCH {
        0x00 => ("add", "+"),
        0x40 => ("or", "|"),
        0x50 => ("and", "&"),
        0xa0 => ("xor", "^"),
        _ => ("", ""),
    };
    let place = format!("r{dst}{}", plus(off.into()));
    Some(match insn.imm {
        XCHG => format!("{p}{src} = xchg{old}_{bits}({place}, {p}{src})"),
        CMPXCHG => format!("{p}0 = cmpxchg{old}_{bits}({place}, {p}0, {p}{src})"),
        _ if op.is_empty() => return None,
        imm if imm & FETCH != 0 => {
            format!("{p}{src} = atomic_fetch_{name}(({size} *){address}, {p}{src})")
        }
        _ => format!("lock *({size} *){address} {op}= {p}{src}"),
    })
}

/// `(r2 + 4)`, `(r10 - 8)`.
fn address(register: u8, offset: i16) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!("(r{register} {sign} {})", offset.unsigned_abs())
}

/// ` + 4`, ` - 8`.
fn plus(offset: i32) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!(" {sign} {}", offset.unsigned_abs())
}
