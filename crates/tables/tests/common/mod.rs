//! What the tests share: a program around a probe, run by the interpreter; a check of its bounds; and a naive model
//! of tables that shares no code with the crate.
//!
//! Bounds are derived as the kernel's verifier derives them from the instructions alone, branches left aside.

#![allow(dead_code, reason = "each test file uses its own part")]

use runnel_interp::{Called, Compiled, Counters, Ended, Host, Machine, State, Tables, What};
use runnel_ir::{
    BinaryOp, Block, Builder, Callee, CalleeData, InstData, Key, KeyPart, Program, Size, Terminator, UnaryOp,
    Value, verify,
};
use runnel_tables::{Budget, Candidates, Contents, Entry, Representation, RowId, SiteFacts, candidates};

/// How a program comes by a part of the key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// A load of just that size.
    Narrow,
    /// A load of eight bytes: what lies behind the part stands above it.
    Wide,
    /// A value that went through two byte swaps, so that bounds are forgotten.
    Swapped,
}

/// Sizes and sources of the parts of a key, in order.
pub type Parts = Vec<(Size, Source)>;

/// Parts that cover `key_size` bytes, chosen by the bits of `seed`.
pub fn parts(key_size: u32, mut seed: u64) -> Parts {
    let mut parts = Parts::new();
    let mut left = key_size;
    while left > 0 {
        let sizes: Vec<Size> = Size::ALL.into_iter().filter(|s| s.bytes() <= left).collect();
        let size = sizes[(seed & 3) as usize % sizes.len()];
        let source =
            [Source::Narrow, Source::Wide, Source::Swapped, Source::Narrow][(seed >> 2 & 3) as usize];
        parts.push((size, source));
        left -= size.bytes();
        seed = seed.rotate_right(4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    parts
}

/// A probe in a program of its own: the context is the key, the verdict the row id.
pub fn probe_program(representation: &Representation, facts: &SiteFacts, parts: &Parts) -> Program {
    let mut program = Program::new("probe");
    let entry = program.new_block();
    let done = program.new_block();
    program.layout = vec![entry, done];
    program.append_param(entry);
    let row = program.append_param(done);
    program.blocks[done].terminator = Terminator::Return(row);
    let data = representation.install(&mut program, "table");
    let key = key_of(&mut program, entry, facts, parts);
    representation.emit(&mut program, &data, entry, &key, done);
    program
}

/// Appends what gets the parts of the key from the context.
pub fn key_of(program: &mut Program, block: Block, facts: &SiteFacts, parts: &Parts) -> Key {
    let ctx = program.blocks[block].params[0];
    let mut b = Builder::at(program, block);
    let mut offset = 0u16;
    let mut key = Key::new();
    for &(size, source) in parts {
        let value = part(&mut b, ctx, offset, size, source, facts);
        key.push(KeyPart { offset, size, value });
        offset += size.bytes() as u16;
    }
    key
}

fn part(
    b: &mut Builder<'_>,
    ctx: Value,
    offset: u16,
    size: Size,
    source: Source,
    facts: &SiteFacts,
) -> Value {
    let bytes: Option<Vec<u8>> =
        (0..size.bytes() as usize).map(|i| facts.byte(usize::from(offset) + i)).collect();
    if let Some(bytes) = bytes {
        let mut constant = [0; 8];
        constant[..bytes.len()].copy_from_slice(&bytes);
        return b.iconst(u64::from_le_bytes(constant));
    }
    let at = i32::from(offset);
    match (source, size) {
        (Source::Narrow, _) | (Source::Swapped, Size::B1) => b.ctx_load(size, ctx, at),
        (Source::Wide, _) => b.ctx_load(Size::B8, ctx, at),
        (Source::Swapped, _) => {
            let op = match size {
                Size::B2 => UnaryOp::Bswap16,
                Size::B4 => UnaryOp::Bswap32,
                _ => UnaryOp::Bswap64,
            };
            let once = b.ctx_load(Size::B8, ctx, at);
            let once = b.unary(op, once);
            b.unary(op, once)
        }
    }
}

/// A context that consists of the key, with garbage behind it.
struct KeyHost(Vec<u8>);

impl Host for KeyHost {
    fn ctx_load(&mut self, offset: i32, size: Size, _: &Machine) -> Result<u64, What> {
        let (at, len) = (offset as usize, size.bytes() as usize);
        let found = self.0.get(at..at + len).ok_or(What::NoContextField { offset, size: size.bytes() })?;
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(found);
        Ok(u64::from_le_bytes(bytes))
    }

    fn call(&mut self, _: Callee, data: &CalleeData, _: &[u64], _: &mut Machine) -> Result<Called, What> {
        Err(What::UnknownCallee { name: data.name.clone(), number: data.number })
    }
}

/// A program whose context is a key, made ready to run.
pub struct Runner {
    compiled: Compiled,
    state: State<KeyHost>,
    counters: Counters,
}

impl Runner {
    pub fn new(program: &Program) -> Runner {
        let compiled = Compiled::new(program).expect("the program can be run");
        let machine = Machine::new(Tables::new(program, 1).expect("there are no tables"), compiled.image());
        let counters = Counters::new(&compiled);
        Runner { state: State::new(machine, KeyHost(Vec::new())), compiled, counters }
    }

    /// The verdict for a key.
    pub fn run(&mut self, key: &[u8]) -> u64 {
        self.state.host.0.clear();
        self.state.host.0.extend_from_slice(key);
        self.state.host.0.extend([0xa5; 8]);
        let outcome = self.compiled.run(&mut self.state, &mut self.counters).expect("probes stay in bounds");
        assert!(!outcome.wrote, "a probe writes nothing");
        match outcome.ended {
            Ended::Verdict(verdict) => verdict,
            other => panic!("a probe does not end with {other:?}"),
        }
    }
}

/// The bits that the instructions before it leave possible, as the verifier tracks them.
fn possible_bits(program: &Program, value: Value) -> u64 {
    let Some(data) = program.def(value) else { return u64::MAX };
    match data {
        InstData::Const(c) => *c,
        InstData::Load { size, .. } | InstData::CtxLoad { size, .. } => size.mask(),
        InstData::Unary { op: UnaryOp::Zext32, arg } => possible_bits(program, *arg) & Size::B4.mask(),
        InstData::Binary { op, width, lhs, rhs } => {
            let (l, r) = (possible_bits(program, *lhs), possible_bits(program, *rhs));
            width.truncate(match op {
                BinaryOp::And => l & r,
                BinaryOp::Add if l & r == 0 => l | r,
                BinaryOp::Or => l | r,
                BinaryOp::Shl => l << r,
                BinaryOp::Lshr => width.truncate(l) >> r,
                _ => u64::MAX,
            })
        }
        _ => u64::MAX,
    }
}

/// Checks that every load from an object is bounded by its own address computation.
pub fn check_bounds(program: &Program) {
    for node in program.layout.iter().flat_map(|&b| &program.blocks[b].insts).map(|&i| &program.insts[i]) {
        let InstData::Load { size, ptr, offset } = &node.data else { continue };
        let Some(InstData::Binary { op: BinaryOp::Add, lhs, rhs, .. }) = program.def(*ptr) else {
            panic!("an address is the sum of base and offset");
        };
        let Some(InstData::DataAddr { data, offset: 0 }) = program.def(*lhs) else {
            panic!("the base is an object");
        };
        let end = possible_bits(program, *rhs).saturating_add((*offset as u64) + u64::from(size.bytes()));
        let len = program.data[*data].bytes.len() as u64;
        assert!(end <= len, "`{}` may reach {end} of {len} bytes in\n{}", node.data, code(program));
        assert!(len <= 1 << 29, "the verifier takes offsets below 2^29");
    }
}

/// The text of a program without the contents of its objects.
pub fn code(program: &Program) -> String {
    let text = program.compact().to_string();
    text.lines().filter(|l| !l.starts_with("  data")).map(|l| format!("{l}\n")).collect()
}

/// The value that a lookup finds, by the definition of the kind of table.
pub fn model<'c>(contents: &'c Contents, key: &[u8]) -> Option<&'c [u8]> {
    use runnel_ir::TableKind;
    let bits = |bytes: &[u8]| -> Vec<bool> {
        bytes.iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1 == 1)).collect()
    };
    let length = |key: &[u8]| u32::from_le_bytes([key[0], key[1], key[2], key[3]]) as usize;
    let mut best: Option<(usize, &Entry)> = None;
    for entry in &contents.entries {
        let rank = match contents.kind {
            TableKind::Exact | TableKind::Index => (*entry.key == *key).then_some(0),
            TableKind::Prefix => {
                let n = length(&entry.key);
                let fits = n <= length(key) && bits(&entry.key[4..])[..n] == bits(&key[4..])[..n];
                fits.then_some(n)
            }
            TableKind::Opaque => None,
        };
        if let Some(rank) = rank
            && best.is_none_or(|(other, _)| rank >= other)
        {
            best = Some((rank, entry));
        }
    }
    best.map(|(_, entry)| &*entry.value)
}

/// Facts that say that prefix queries ask for the longest prefix.
pub fn full_length(contents: &Contents) -> SiteFacts {
    let bits = (contents.key_size - 4) * 8;
    SiteFacts { fixed: bits.to_le_bytes().into_iter().map(Some).collect(), values_written: false }
}

/// Checks that all representations of `contents`, their models and their probes agree with the definition on `keys`.
pub fn check(contents: &Contents, facts: &SiteFacts, seed: u64, keys: &[Vec<u8>]) -> Candidates {
    let found = candidates(contents, facts, Budget::default()).expect("the contents are possible");
    let parts = parts(contents.key_size, seed);
    let mut runners = Vec::new();
    for candidate in &found.candidates {
        let program = &probe_program(&candidate.representation, facts, &parts);
        if let Err(e) = verify(program) {
            panic!("{}: {e} in\n{}", candidate.representation.name(), code(program));
        }
        check_bounds(program);
        let data: usize = program.data.values().map(|d| d.bytes.len()).sum();
        assert_eq!(candidate.representation.memory_bytes(), data as u64);
        runners.push(Runner::new(program));
    }
    for key in keys.iter().filter(|k| facts.admits(k)) {
        let expected = model(contents, key);
        assert_eq!(contents.find(key).map(|e| &*e.value), expected, "find {key:x?}");
        let mut rows = Vec::new();
        for (candidate, runner) in found.candidates.iter().zip(&mut runners) {
            let representation = &candidate.representation;
            let row = representation.lookup(key);
            let says = (row != RowId::MISS).then(|| &*found.rows.rows[row.0 as usize]);
            assert_eq!(says, expected, "{} for {key:x?}", representation.name());
            assert_eq!(
                runner.run(key),
                u64::from(row.0),
                "the probe of {} for {key:x?}",
                representation.name()
            );
            assert!(!representation.always_hits() || row != RowId::MISS, "{} hits", representation.name());
            rows.push(row);
        }
        assert!(
            rows.windows(2).all(|w| w[0] == w[1]),
            "row ids do not depend on the representation: {rows:?}"
        );
    }
    found
}

/// An entry from two slices.
pub fn entry(key: &[u8], value: &[u8]) -> Entry {
    Entry { key: key.into(), value: value.into() }
}

/// A prefix key: length and address.
pub fn prefix(length: u32, address: &[u8]) -> Vec<u8> {
    length.to_le_bytes().into_iter().chain(address.iter().copied()).collect()
}
