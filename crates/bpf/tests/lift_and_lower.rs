//! Properties of lifting and lowering that a kernel would complain about, shown without one.

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::lift::lift;
use runnel_bpf::lower::{DataPlace, Fallback, Layout, lower};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_ir::{BinaryOp, InstData, parse_program};

const FP: u8 = 10;

/// A map of four-byte keys and values.
fn hash() -> MapSpec {
    MapSpec { name: "table".into(), map_type: 1, key_size: 4, value_size: 4, max_entries: 4, flags: 0 }
}

fn program(insns: Vec<Insn>) -> ProgramSpec {
    ProgramSpec {
        name: "p".into(),
        section: "xdp".into(),
        prog_type: 6,
        expected_attach_type: 37,
        flags: 0,
        license: "GPL".into(),
        insns,
        maps: vec![hash()],
    }
}

#[test]
fn what_is_aligned_in_the_frame_is_aligned_in_its_slot() {
    let mov = insn::ALU64 | insn::MOV;
    let address = |reg, at| {
        [Insn::new(mov | insn::X, reg, FP, 0, 0), Insn::new(insn::ALU64 | insn::ADD, reg, 0, 0, at)]
    };
    // A value of four bytes from fp-7 on, two of them stored at once at fp-6; the key at fp-16.
    let mut insns = vec![
        Insn::new(insn::ST | insn::MEM | insn::B, FP, 0, -7, 1),
        Insn::new(insn::ST | insn::MEM | insn::H, FP, 0, -6, 2),
        Insn::new(insn::ST | insn::MEM | insn::B, FP, 0, -4, 3),
        Insn::new(insn::ST | insn::MEM | insn::W, FP, 0, -16, 4),
        Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX, 0, 0),
        Insn::new(0, 0, 0, 0, 0),
    ];
    insns.extend(address(2, -16));
    insns.extend(address(3, -7));
    insns.extend([
        Insn::new(mov, 4, 0, 0, 0),
        Insn::new(insn::JMP | insn::CALL, 0, 0, 0, 2),
        Insn::new(mov, 0, 0, 0, 2),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ]);
    let lifted = lift(&program(insns)).expect("it can be lifted");
    let mut stores = Vec::new();
    for node in lifted.insts.values() {
        if let InstData::Store { size, ptr, offset, .. } = node.data
            && let Some(InstData::SlotAddr { offset: inside, .. }) = lifted.def(ptr)
        {
            stores.push((size.bytes(), *inside as i32 + offset));
        }
    }
    assert_eq!(stores, [(1, 1), (2, 2), (1, 4)]);
}

/// The kernel takes only aligned accesses to the stack.
fn assert_aligned(lowered: &[Insn]) {
    let bytes = |i: &Insn| match i.code & 0x18 {
        insn::B => 1,
        insn::H => 2,
        insn::W => 4,
        _ => 8,
    };
    let is_store = |i: &&Insn| [insn::ST, insn::STX].contains(&(i.code & 7)) && i.dst() == FP;
    let stores: Vec<&Insn> = lowered.iter().filter(is_store).collect();
    assert!(!stores.is_empty());
    assert!(stores.iter().all(|i| i.off % bytes(i) == 0), "{stores:?}");
}

#[test]
fn a_word_that_was_used_for_less_before_stays_whole() {
    let mov = insn::ALU64 | insn::MOV;
    let word = |reg| Insn::new(insn::STX | insn::MEM | insn::DW, FP, reg, -8, 0);
    let half = insn::MEM | insn::W;
    // Four bytes at fp-8 first; then, on either way, a pointer or a number, which may not be taken apart.
    let insns = vec![
        Insn::new(insn::LDX | half, 6, 1, 0, 0),
        Insn::new(insn::ST | half, FP, 0, -8, 1),
        Insn::new(insn::LDX | half, 2, FP, -8, 0),
        Insn::new(insn::JMP | insn::JEQ, 2, 0, 2, 0),
        word(6),
        Insn::new(insn::JMP | insn::JA, 0, 0, 1, 0),
        word(2),
        Insn::new(insn::LDX | insn::MEM | insn::DW, 7, FP, -8, 0),
        Insn::new(mov | insn::X, 0, 7, 0, 0),
        Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
    ];
    let lifted = lift(&program(insns)).expect("it can be lifted");
    let joins = |data: &InstData| matches!(data, InstData::Binary { op: BinaryOp::Or | BinaryOp::Shl, .. });
    assert!(!lifted.insts.values().any(|node| joins(&node.data)), "{lifted}");
}

#[test]
fn keys_whose_bytes_are_stored_twice_are_cut_into_aligned_parts() {
    // A key of eight bytes stored at once, the first of them once more.
    let spec = ProgramSpec {
        maps: vec![MapSpec { key_size: 8, ..hash() }],
        ..program(vec![
            Insn::new(insn::ST | insn::MEM | insn::DW, FP, 0, -8, 1),
            Insn::new(insn::ST | insn::MEM | insn::B, FP, 0, -8, 2),
            Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX, 0, 0),
            Insn::new(0, 0, 0, 0, 0),
            Insn::new(insn::ALU64 | insn::MOV | insn::X, 2, FP, 0, 0),
            Insn::new(insn::ALU64 | insn::ADD, 2, 0, 0, -8),
            Insn::new(insn::JMP | insn::CALL, 0, 0, 0, 1),
            Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, 2),
            Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0),
        ])
    };
    let lifted = lift(&spec).expect("it can be lifted");
    assert_aligned(&lower(&lifted, &Layout::default()).expect("it can be lowered").insns);
}

#[test]
fn keys_begin_where_their_parts_are_aligned() {
    let text = "program \"p\" {
  table t0 \"table\" exact key 12 value 4 entries 4
block0(v0):
  v1 = const 1
  v2 = lookup t0 [0:32 v1, 4:64 v1]
  return v1
}
";
    let program = parse_program(text).expect("it parses");
    assert_aligned(&lower(&program, &Layout::default()).expect("it can be lowered").insns);
}

#[test]
fn the_original_is_jumped_to_and_stands_last() {
    let text = "program \"p\" {
  data d0 \"epoch\" live = 0000000000000000
block0(v0):
  v1 = data_addr d0
  v2 = load.64 v1
  v3 = const 1
  branch.eq.64 v2, v3, block1, block2
block1:
  v4 = const 2
  return v4
block2:
  deopt v0
}
";
    let program = parse_program(text).expect("it parses");
    // Tail calls in a subprogram need BTF, which a program lowered here has not: so nothing may be called.
    let original =
        [Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, 3), Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0)];
    let layout = Layout {
        data: &[DataPlace { map: 0, offset: 0 }],
        fallback: Some(Fallback { array: 1, slot: 0, original: &original }),
        ..Layout::default()
    };
    let lowered = lower(&program, &layout).expect("it can be lowered").insns;
    let call = |i: &Insn| i.code == insn::JMP | insn::CALL && i.src() == insn::PSEUDO_CALL;
    assert!(!lowered.iter().any(call));
    assert_eq!(lowered[lowered.len() - 2..], original);
    // What stands before it is the move of the context to r1, behind the tail call that failed.
    let before = &lowered[lowered.len() - 4..lowered.len() - 2];
    assert_eq!((before[0].code, before[0].imm), (insn::JMP | insn::CALL, 12));
    assert_eq!(before[1].code, insn::ALU64 | insn::MOV | insn::X);
}
