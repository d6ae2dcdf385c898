//! Fuzz bodies of all readers, and a deterministic fuzzer that drives them for about a second: bit flips,
//! truncations, splices and planted numbers in real objects, and random bytes.
//!
//! Whatever the bytes, a reader must not panic, must not take memory out of proportion, and what it accepts must be
//! in canonical form.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use runnel_bpf::btf::Btf;
use runnel_bpf::disasm;
use runnel_bpf::insn::{PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE};
use runnel_bpf::maps_json::MapContents;
use runnel_bpf::object::{LINK_BUDGET, Object, Program};
use runnel_bpf::spec::ProgramSpec;

use crate::support::{Rng, SNIPPETS, compile};

/// Counts the memory that each thread holds, so that tests beside it do not disturb.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    // Both fail only while the thread ends, when nobody counts any more.
    let live = LIVE.try_with(|live| {
        live.set(live.get().saturating_add(more).saturating_sub(less));
        live.get()
    });
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.unwrap_or(0))));
}

// SAFETY: every call is passed on to the system's allocator unchanged; the counters own no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: `memory` came from `alloc` above, that is from the system's allocator, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most memory in bytes that this thread held beyond what it held before, while `body` ran.
pub fn peak_memory<T>(body: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = body();
    (result, PEAK.with(Cell::get) - before)
}

/// Reads bytes as an object and asks for everything that an object can be asked for.
pub fn fuzz_object(bytes: &[u8]) -> Result<(), String> {
    let (object, peak) = peak_memory(|| Object::parse_named(bytes, "fuzzed"));
    let limit = 2 * LINK_BUDGET + 100 * bytes.len() + (1 << 20);
    assert!(peak <= limit, "{peak} bytes of memory for {} bytes of input", bytes.len());
    let object = object.map_err(|error| error.to_string())?;
    for map in &object.maps {
        for ty in [map.key_type, map.value_type].into_iter().flatten() {
            object.btf.as_ref().expect("types come from BTF").fields(ty);
        }
    }
    for map in &object.refused_maps {
        assert!(!map.reason.to_string().is_empty());
    }
    for program in &object.programs {
        object.core_relocations(program);
        match &program.spec {
            Ok(spec) => check_canonical(&object, program, spec),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
    Ok(())
}

/// What everybody who takes a [`ProgramSpec`] may rely on.
fn check_canonical(object: &Object, program: &Program, spec: &ProgramSpec) {
    assert_eq!(program.maps.len(), spec.maps.len());
    let is_start = |pc: i64| program.functions.iter().any(|p| p.start as i64 == pc);
    let mut pc = 0;
    while let Some(&insn) = spec.insns.get(pc) {
        let target = pc as i64 + 1 + i64::from(insn.imm);
        if insn.is_ld_imm64() {
            let second = spec.insns[pc + 1];
            match insn.src() {
                0 => {}
                PSEUDO_MAP_IDX => assert!((insn.imm as usize) < spec.maps.len()),
                PSEUDO_MAP_IDX_VALUE => {
                    assert!((second.imm as u32) < spec.maps[insn.imm as usize].value_size);
                }
                PSEUDO_FUNC => assert!(is_start(target)),
                other => panic!("source {other} is not canonical"),
            }
        } else if insn.code == 0x85 && insn.src() != 0 {
            assert_eq!(insn.src(), PSEUDO_CALL);
            assert!(is_start(target));
        }
        object.source_line(program, pc);
        pc += disasm::slots(insn, spec.insns.get(pc + 1).copied());
    }
    assert_eq!(pc, spec.insns.len());
    assert!(!disasm::program(spec).is_empty());
}

/// Reads bytes as type information and asks for everything.
pub fn fuzz_btf(bytes: &[u8]) {
    let Ok(btf) = Btf::parse(bytes) else { return };
    for id in 0..btf.len().min(200) as u32 {
        btf.fields(id);
        btf.size_of(id);
        btf.name(id);
        btf.section_vars(id);
    }
    btf.data_section(".maps");
}

/// Reads bytes as map contents; what is accepted must print and read back the same.
pub fn fuzz_maps_json(bytes: &[u8]) {
    match MapContents::parse(bytes) {
        Ok(contents) => {
            let again = MapContents::parse(contents.to_json().as_bytes());
            assert_eq!(again.expect("its own output"), contents);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

const NUMBERS: &[u64] =
    &[0, 1, 2, 7, 8, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, 1 << 63, u64::MAX];

/// One change to some bytes, with another input to take pieces from.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let at = rng.below(bytes.len());
    match rng.below(10) {
        0..4 => bytes[at] ^= 1 << rng.below(8),
        4 => bytes.truncate(at),
        5 | 6 => {
            // A number where numbers lie: aligned, of some width.
            let width = 1 << rng.below(4);
            let number = NUMBERS[rng.below(NUMBERS.len())].to_le_bytes();
            let at = at / width * width;
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        7 | 8 => {
            let from = rng.below(other.len());
            let len = rng.below(256).min(other.len() - from).min(bytes.len() - at);
            bytes[at..at + len].copy_from_slice(&other[from..from + len]);
        }
        _ => {
            let len = rng.below(64).min(bytes.len() - at);
            let to = rng.below(bytes.len() - len + 1);
            bytes.copy_within(at..at + len, to);
        }
    }
}

/// Changes a number in a section header, or in a section chosen by its header: tables are where a change matters
/// most, and too small to be hit often by chance.
fn mutate_section(rng: &mut Rng, bytes: &mut [u8]) {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        usize::try_from(word.unwrap_or(0)).unwrap_or(0)
    };
    let table = word(bytes, 40);
    let count = bytes.len().saturating_sub(table) / 64;
    if count == 0 {
        return;
    }
    let header = table + 64 * rng.below(count);
    let (offset, size) = (word(bytes, header + 24), word(bytes, header + 32));
    let is_inside = offset.checked_add(size).is_some_and(|end| size >= 8 && end <= bytes.len());
    let field = match rng.below(3) {
        0 if is_inside => header + 4 * rng.below(15),
        _ if is_inside => offset + 4 * rng.below(size / 4 - 1),
        _ => return,
    };
    let number = match rng.below(2) {
        0 => NUMBERS[rng.below(NUMBERS.len())],
        _ => rng.below(bytes.len()) as u64,
    };
    let width = 4 << rng.below(2);
    bytes[field..field + width].copy_from_slice(&number.to_le_bytes()[..width]);
}

#[test]
fn readers_of_objects_survive_broken_objects() {
    let seeds: Vec<Vec<u8>> = SNIPPETS.iter().map(|(name, args)| compile(name, args)).collect();
    let mut rng = Rng(1);
    let (mut accepted, mut rejected) = (0, 0);
    for round in 0..6000 {
        let mut bytes = seeds[rng.below(seeds.len())].clone();
        for _ in 0..1 + rng.below(8) {
            let other = rng.below(seeds.len());
            mutate(&mut rng, &mut bytes, &seeds[other]);
            if round % 2 == 0 {
                mutate_section(&mut rng, &mut bytes);
            }
        }
        match fuzz_object(&bytes) {
            Ok(()) => accepted += 1,
            Err(_) => rejected += 1,
        }
    }
    // Both ways have to be taken often, or the mutations are useless.
    assert!(accepted > 500 && rejected > 500, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn readers_survive_every_truncation_of_an_object() {
    let bytes = compile("calls.c", &[]);
    for len in (0..bytes.len()).step_by(7) {
        assert!(fuzz_object(&bytes[..len]).is_err(), "an object cut at {len} was accepted");
    }
}

#[test]
fn readers_survive_random_bytes() {
    let mut rng = Rng(2);
    let header = &compile("hooks.c", &[])[..64];
    for round in 0..3000 {
        let mut bytes: Vec<u8> = (0..rng.below(600)).map(|_| rng.next() as u8).collect();
        if round % 2 == 0 {
            bytes.splice(0..0, header.iter().copied());
        }
        let _ = fuzz_object(&bytes);
        fuzz_btf(&bytes);
        fuzz_maps_json(&bytes);
    }
}

#[test]
fn the_reader_of_type_information_survives_broken_types() {
    let object = compile("maps.c", &[]);
    // The magic number with version 1 and the usual header length marks both BTF sections.
    let start = object.windows(8).position(|w| w == [0x9f, 0xeb, 1, 0, 24, 0, 0, 0]).expect("BTF");
    let seed = &object[start..];
    fuzz_btf(seed);
    let mut rng = Rng(3);
    for _ in 0..3000 {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + rng.below(6) {
            mutate(&mut rng, &mut bytes, seed);
        }
        fuzz_btf(&bytes);
    }
}

#[test]
fn the_reader_of_map_contents_survives_broken_text() {
    let seed = br#"{"routes":[{"key":["0x20","0x00"],"value":["0x01"],"formatted":{"key":[1,{"a":null}]}}],
        "n":[{"key":["0x00"],"values":[{"cpu":0,"value":["0xff"]},{"cpu":1,"value":["0x07"]}]}],
        "jmp":[{"key":["0x00"],"prog":"name\u00e9"}],"outer":[{"key":[],"inner":"x"}]}"#;
    fuzz_maps_json(seed);
    MapContents::parse(seed).expect("the seed is good");
    let mut rng = Rng(4);
    for _ in 0..20_000 {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + rng.below(3) {
            mutate(&mut rng, &mut bytes, seed);
        }
        fuzz_maps_json(&bytes);
    }
    // Depth is limited, not the stack's business.
    fuzz_maps_json(&[br#"{"m":[{"formatted":"#.to_vec(), vec![b'['; 1 << 20]].concat());
}
