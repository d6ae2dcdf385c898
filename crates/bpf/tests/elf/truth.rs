//! The reader and the disassembler against LLVM's: every function's length, every relocation's target, and the text
//! of every instruction.

use std::collections::HashMap;

use runnel_bpf::disasm;
use runnel_bpf::insn::{Insn, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE};
use runnel_bpf::object::{Object, Program};
use runnel_bpf::spec::ProgramSpec;

use crate::support::{SNIPPETS, compile, objdump};

/// Section and byte offset of something.
type Location = (String, i64);

#[derive(Default)]
struct Truth {
    symbols: HashMap<String, Location>,
    /// Size of each symbol in bytes.
    sizes: HashMap<String, usize>,
    /// Text of each instruction, by section and slot.
    lines: HashMap<(String, usize), String>,
    /// Name of each relocation's symbol, by section and slot.
    relocations: HashMap<(String, usize), String>,
}

fn read_objdump(text: &str) -> Truth {
    let mut truth = Truth::default();
    let mut section = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(name) = line.strip_prefix("Disassembly of section ") {
            section = name.trim_end_matches(':').to_owned();
        } else if let [place, kind, symbol] = words[..]
            && kind.starts_with("R_BPF_")
        {
            let byte = usize::from_str_radix(place.trim_end_matches(':'), 16).expect("a place");
            truth.relocations.insert((section.clone(), byte / 8), symbol.to_owned());
        } else if let Some((slot, text)) = line.split_once(":\t")
            && let Ok(slot) = slot.trim().parse()
        {
            let without_label =
                text.rsplit_once(" <").filter(|_| text.ends_with('>')).map_or(text, |(text, _)| text);
            truth.lines.insert((section.clone(), slot), whole_registers(without_label.trim()));
        } else if section.is_empty()
            && let [value, .., home, size, name] = words[..]
            && let Ok(value) = i64::from_str_radix(value, 16)
        {
            truth.sizes.insert(name.to_owned(), usize::from_str_radix(size, 16).expect("a size"));
            truth.symbols.insert(name.to_owned(), (home.to_owned(), value));
        }
    }
    truth
}

/// 32-bit loads and stores name a whole register here and its lower half in LLVM's newest dialect.
fn whole_registers(text: &str) -> String {
    match text.split_once(" = ") {
        Some((dst, address)) if address.starts_with("*(") => format!("{} = {address}", dst.replace('w', "r")),
        Some((address, src)) if address.starts_with("*(") => format!("{address} = {}", src.replace('w', "r")),
        _ => text.to_owned(),
    }
}

/// What an instruction of a linked program refers to, back in terms of the object.
fn target(object: &Object, program: &Program, spec: &ProgramSpec, pc: usize) -> Option<Location> {
    let insn = spec.insns[pc];
    let function = || {
        let to = usize::try_from(pc as i64 + 1 + i64::from(insn.imm)).expect("inside the program");
        let (function, inside) = object.function_at(program, to).expect("a function");
        assert_eq!(inside, 0, "{pc} leads into the middle of {}", function.name);
        (function.section.clone(), function.start as i64 * 8)
    };
    let map = || &object.maps[program.maps[usize::try_from(insn.imm).expect("an index")]];
    match (insn.is_ld_imm64(), insn.src()) {
        (true, PSEUDO_MAP_IDX) => Some((map().spec.name.clone(), 0)),
        (true, PSEUDO_MAP_IDX_VALUE) => Some((map().section.clone(), spec.insns[pc + 1].imm.into())),
        (true, PSEUDO_FUNC) => Some(function()),
        (false, PSEUDO_CALL) if insn.code == 0x85 => Some(function()),
        _ => None,
    }
}

/// What LLVM says that the relocated instruction refers to.
fn expected(truth: &Truth, symbol: &str, text: &str, is_call: bool) -> Location {
    let (home, value) = truth.symbols[symbol].clone();
    let number = |text: &str| text.parse::<i64>().unwrap_or_else(|_| panic!("no number in {text}"));
    match is_call {
        true => (home, value + 8 * (number(text.trim_start_matches("call ")) + 1)),
        false if home == ".maps" || home == "maps" => (symbol.to_owned(), 0),
        false => {
            let addend = text.split_once(" = ").expect("an assignment").1.trim_end_matches(" ll");
            (home, value + number(addend))
        }
    }
}

#[test]
fn functions_relocations_and_text_agree_with_llvm() {
    let (mut relocations, mut lines) = (0, 0);
    for (name, args) in SNIPPETS {
        let bytes = compile(name, args);
        let object = Object::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let truth = read_objdump(&objdump(&bytes));
        for function in &object.functions {
            let place = (function.section.clone(), function.start as i64 * 8);
            assert_eq!(truth.symbols[&function.name], place, "{name}: {}", function.name);
            assert_eq!(truth.sizes[&function.name], function.len * 8, "{name}: {}", function.name);
        }
        for program in &object.programs {
            let Ok(spec) = &program.spec else { continue };
            for (pc, insn, slot, section) in instructions(&object, program, spec) {
                let place = (section, slot);
                let text = &truth.lines[&place];
                let found = target(&object, program, spec, pc);
                if let Some(symbol) = truth.relocations.get(&place) {
                    let wanted = expected(&truth, symbol, text, !insn.is_ld_imm64());
                    assert_eq!(found, Some(wanted), "{name}: {} at {pc}: {text}", program.name);
                    relocations += 1;
                } else if found.is_none() {
                    let second = spec.insns.get(pc + 1).copied();
                    assert_eq!(&disasm::instruction(insn, second), text, "{name}: {} at {pc}", program.name);
                    lines += 1;
                }
            }
        }
    }
    assert!(relocations >= 30 && lines >= 250, "compared only {relocations} relocations, {lines} lines");
}

/// Slot in the program, instruction, and slot and section in the object of each instruction of a program.
fn instructions(object: &Object, program: &Program, spec: &ProgramSpec) -> Vec<(usize, Insn, usize, String)> {
    let mut found = Vec::new();
    let mut pc = 0;
    while pc < spec.insns.len() {
        let insn = spec.insns[pc];
        let (function, inside) = object.function_at(program, pc).expect("every slot is in a function");
        found.push((pc, insn, function.start + inside, function.section.clone()));
        pc += disasm::slots(insn, spec.insns.get(pc + 1).copied());
    }
    found
}

#[test]
fn references_to_maps_show_the_map() {
    let object = crate::support::object("maps.c", &[]);
    let text = disasm::program(crate::support::spec(&object, "use_maps"));
    for line in [" = map[flows] ll\n", " = map[snippet.bss][0] + 72 ll\n", " = map[snippet.data][0] + 0 ll\n"]
    {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
