//! Objects that are well-formed but out of proportion.

use std::fmt::Write as _;

use runnel_bpf::object::{LINK_BUDGET, Object, Refusal};

use crate::fuzz::peak_memory;
use crate::support::{assemble, spec};

/// A function in assembly.
fn function(text: &mut String, name: &str, body: &str) {
    let _ = write!(
        text,
        "\t.globl {name}\n\t.type {name},@function\n{name}:\n{body}\texit\n.L{name}:\n\t.size {name}, .L{name}-{name}\n"
    );
}

#[test]
fn calls_may_be_nested_as_deeply_as_there_are_functions() {
    const DEPTH: usize = 20_000;
    let mut text = String::from("\t.text\n");
    for i in 0..DEPTH {
        function(&mut text, &format!("f{i}"), &format!("\tcall f{}\n", (i + 1) % DEPTH));
    }
    text.push_str("\t.section xdp,\"ax\",@progbits\n");
    function(&mut text, "entry", "\tcall f0\n");
    let object = Object::parse(&assemble(&text)).expect("a good object");
    assert_eq!(spec(&object, "entry").insns.len(), 2 * (DEPTH + 1));
}

#[test]
fn programs_that_share_large_subprograms_cannot_take_unlimited_memory() {
    const PROGRAMS: usize = 400;
    let mut text = String::from("\t.text\n");
    function(&mut text, "large", "\t.fill 40000, 8, 0xb7 # r0 = 0\n");
    text.push_str("\t.section xdp,\"ax\",@progbits\n");
    for i in 0..PROGRAMS {
        function(&mut text, &format!("p{i}"), "\tcall large\n");
    }
    let bytes = assemble(&text);
    let (object, peak) = peak_memory(|| Object::parse(&bytes).expect("a good object"));
    let refused = object.programs.iter().filter(|p| matches!(p.spec, Err(Refusal::TooLarge { .. }))).count();
    let usable = object.programs.iter().filter(|p| p.spec.is_ok()).count();
    assert_eq!((usable + refused, usable), (PROGRAMS, LINK_BUDGET / (40_003 * 8 + 64)));
    assert!(peak < 2 * LINK_BUDGET + 100 * bytes.len(), "{peak} bytes");
}

#[test]
fn a_program_longer_than_the_kernel_takes_is_refused() {
    let mut text = String::from("\t.section xdp,\"ax\",@progbits\n");
    function(&mut text, "long", "\t.fill 1000000, 8, 0xb7 # r0 = 0\n");
    let object = Object::parse(&assemble(&text)).expect("a good object");
    let refusal = object.programs[0].spec.as_ref().expect_err("too long");
    assert_eq!(refusal, &Refusal::TooLarge { insns: 1_000_001, limit: "the kernel takes 1,000,000" });
}

#[test]
fn functions_that_overlap_cost_no_more_than_others() {
    const FUNCTIONS: usize = 20_000;
    let mut text = String::from("\t.section xdp,\"ax\",@progbits\n");
    for i in 0..FUNCTIONS {
        let _ = write!(
            text,
            "\t.globl f{i}\n\t.type f{i},@function\nf{i}:\n\tcall f{FUNCTIONS}\n\t.size f{i}, .Lend-f{i}\n"
        );
    }
    function(&mut text, &format!("f{FUNCTIONS}"), "\tr0 = 0\n.Lend:\n");
    let object = Object::parse(&assemble(&text)).expect("a good object");
    let usable = object.programs.iter().filter(|p| p.spec.is_ok()).count();
    let too_large =
        object.programs.iter().filter(|p| matches!(p.spec, Err(Refusal::TooLarge { .. }))).count();
    assert_eq!(usable + too_large, FUNCTIONS + 1);
    assert!((400..800).contains(&usable), "{usable} usable");
}
