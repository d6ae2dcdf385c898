//! Random IR programs, with inputs that exercise them: the fuel of differential tests.
//!
//! Each program is well-formed, terminates, and is safe: it reads only what was written, follows only pointers that
//! it checked, and stays inside of objects. So a fault, a difference between two versions of it, or a refusal by a
//! verifier is a mistake of whoever transformed or ran it. It is written as a programmer would write it, statement
//! by statement with branches and loops around them: what is in scope and which pointers are good is known at each
//! point instead of being found out afterwards.
//!
//! With [`Config::kernel_acceptable`] a program also keeps to what the verifier of Linux can follow once it is
//! lowered to eBPF: packet bounds in the form `data + constant > data_end`, variable offsets masked, aligned
//! accesses to the stack, few paths, and pointers used as pointers only. Whatever else differs between a kernel and
//! the interpreter (which entry of a full recency table goes, what a stale pointer shows) is left out then.
//!
//! Not here: running the programs, and deopts, which only passes make.

pub mod compilers;
mod declarations;
mod flow;
mod inputs;
mod scope;
mod statements;

use std::ops::Range;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use runnel_ir::{BinaryOp, Block, Builder, Program, Size, Table, Value, Width};

use declarations::Declared;
use scope::{Kills, Scope, View};

/// Name of the opaque table that `redirect_map` goes to: a map of devices.
pub const PORTS: &str = "ports";

/// Name of the opaque table that `tail_call` goes to: a map of programs.
pub const PROGRAMS: &str = "programs";

/// What programs to generate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Statements; an average one is five instructions.
    pub size: u32,
    /// How deep branches and loops may be nested.
    pub depth: u32,
    /// Packets to generate with the program.
    pub packets: u32,
    /// Whether the program must be acceptable to the verifier of Linux, and must behave there as in the interpreter.
    /// The opaque tables are empty then.
    pub kernel_acceptable: bool,
    /// Whether to call what gives different results each time: the clock, random numbers, the CPU's number.
    pub varying: bool,
    /// The bits of the verdict that may be set.
    pub verdict_mask: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config { size: 24, depth: 3, packets: 16, kernel_acceptable: false, varying: true, verdict_mask: 7 }
    }
}

impl Config {
    /// What a kernel accepts, and runs as the interpreter does.
    pub fn kernel() -> Config {
        Config { kernel_acceptable: true, varying: false, verdict_mask: 3, ..Config::default() }
    }

    /// As this one, of another size.
    pub fn sized(self, size: u32) -> Config {
        Config { size, ..self }
    }
}

/// One entry of a table, to be there when the program begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The value; of a table with values for each CPU, the one that all CPUs get.
    pub value: Vec<u8>,
}

/// What a program runs on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inputs {
    /// Packets, to be run on one after another with the same tables.
    pub packets: Vec<Vec<u8>>,
    /// Entries of tables. Each fits: no key comes twice, and no table is overfull.
    pub entries: Vec<Entry>,
    /// Indices of opaque tables at which something is.
    pub indices: Vec<(Table, u32)>,
}

/// A program and what it runs on.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The program.
    pub program: Program,
    /// Its inputs.
    pub inputs: Inputs,
}

/// The program of a seed. The same seed and configuration give the same program and inputs, as long as this crate
/// and the version of `rand` are the same.
pub fn generate(seed: u64, config: &Config) -> Generated {
    let mut generator = Generator::new(seed, config);
    generator.body();
    let program = generator.program.compact();
    let inputs = inputs::inputs(&mut generator.rng, config, &program, &generator.declared);
    Generated { program, inputs }
}

/// The seeds that a test is to try: the first `usual` ones, or as many as the environment variable `RUNNEL_SEEDS` says, or
/// only the one that `RUNNEL_SEED` names.
///
/// # Panics
/// If a variable holds anything but a number.
pub fn seeds(usual: u64) -> Range<u64> {
    let number = |name| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
    };
    match number("RUNNEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("RUNNEL_SEEDS").unwrap_or(usual),
    }
}

/// Constants at which operations tend to go wrong.
const CORNERS: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    8,
    0x1f,
    0x20,
    0x3f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Paths that the kernel's verifier may have to follow one by one.
const KERNEL_PATHS: f64 = 256.0;

struct Generator<'c> {
    rng: SmallRng,
    config: &'c Config,
    program: Program,
    declared: Declared,
    /// The block being written.
    block: Block,
    scope: Scope,
    /// What became invalid in the region being written.
    kills: Kills,
    /// Statements left to write.
    budget: u32,
    /// Paths through the region being written so far, and how many there may be at most.
    paths: f64,
    max_paths: f64,
}

impl<'c> Generator<'c> {
    fn new(seed: u64, config: &'c Config) -> Generator<'c> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut program = Program::new(format!("seed_{seed}"));
        let declared = Declared::new(&mut rng, config, &mut program);
        let entry = program.new_block();
        program.layout.push(entry);
        program.append_param(entry);
        Generator {
            rng,
            config,
            program,
            declared,
            block: entry,
            scope: Scope::default(),
            kills: Kills::default(),
            budget: config.size,
            paths: 1.0,
            max_paths: if config.kernel_acceptable { KERNEL_PATHS } else { 1e12 },
        }
    }

    fn body(&mut self) {
        self.read_packet_bounds();
        if self.chance(90) {
            self.check_packet();
            self.read_header();
        }
        while self.budget > 0 {
            self.statement();
        }
        self.finish();
    }

    /// Writes at the end of the block.
    fn at(&mut self) -> Builder<'_> {
        Builder::at(&mut self.program, self.block)
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_ratio(percent, 100)
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.rng.random_range(0..limit.max(1))
    }

    fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        one_of(&mut self.rng, options)
    }

    fn constant(&mut self) -> Value {
        let value = match self.below(4) {
            0 => self.rng.random(),
            1 => u64::from(self.rng.random::<u16>()),
            _ => self.pick(&CORNERS),
        };
        self.at().iconst(value)
    }

    /// A number that is in scope, or a constant.
    fn scalar(&mut self) -> Value {
        if self.chance(20) { self.constant() } else { self.known() }
    }

    /// A number that is in scope, if there is any.
    fn known(&mut self) -> Value {
        let count = self.scope.scalars.len();
        if count == 0 {
            return self.constant();
        }
        // Later ones more often, so that computations build on each other.
        let (a, b) = (self.rng.random_range(0..count), self.rng.random_range(0..count));
        self.scope.scalars[a.max(b)]
    }

    /// A number that has no bit outside of `mask`.
    fn masked(&mut self, mask: u64) -> Value {
        let number = self.known();
        let width = if mask <= u64::from(u32::MAX) && self.chance(30) { Width::W32 } else { Width::W64 };
        self.at().binary_imm(BinaryOp::And, width, number, mask)
    }

    fn size(&mut self) -> Size {
        self.pick(&Size::ALL)
    }

    /// Reads the bounds of the packet; nothing of it is checked yet.
    fn read_packet_bounds(&mut self) -> View {
        let ctx = self.program.context();
        let mut at = self.at();
        let data = at.ctx_load(Size::B4, ctx, 0);
        let end = at.ctx_load(Size::B4, ctx, 4);
        let view = View { data, end, len: 0 };
        self.scope.packet = Some(view);
        view
    }

    /// Loads a few fields of the packet, so that what is computed differs between packets.
    fn read_header(&mut self) {
        let Some(view) = self.scope.packet else { return };
        for _ in 0..1 + self.below(4) {
            let size = self.size();
            if let Some(room) = view.len.checked_sub(size.bytes()) {
                let offset = self.below(room + 1) as i32;
                let field = self.at().load(size, view.data, offset);
                self.scope.scalars.push(field);
            }
        }
    }

    /// Ends the program with a verdict that depends on much of what was computed.
    fn finish(&mut self) {
        let mut digest = self.scalar();
        for _ in 0..self.below(4) {
            let next = self.scalar();
            digest = self.at().binary_imm(BinaryOp::Mul, Width::W64, digest, 31);
            digest = self.at().binary(BinaryOp::Add, Width::W64, digest, next);
        }
        if let Some(&table) = self.declared.globals.first() {
            let mut at = self.at();
            let ptr = at.value(runnel_ir::InstData::TableValue { table, offset: 0 });
            at.store(Size::B8, ptr, 0, digest);
        }
        let mask = self.config.verdict_mask;
        let mut at = self.at();
        let verdict = at.binary_imm(BinaryOp::And, Width::W64, digest, mask);
        at.ret(verdict);
    }

    /// Ends the program with a constant verdict.
    fn give_up(&mut self) {
        let verdict = u64::from(self.below(4)) & self.config.verdict_mask;
        let mut at = self.at();
        let verdict = at.iconst(verdict);
        at.ret(verdict);
    }
}

/// One of several, at random; there is at least one.
fn one_of<T: Copy>(rng: &mut SmallRng, options: &[T]) -> T {
    options[rng.random_range(0..options.len())]
}
