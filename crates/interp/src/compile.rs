//! The dense form that is executed: blocks in layout order, operations in one array, operands as register numbers.
//!
//! Nothing is optimized on the way: each instruction of the program is one operation here, so that counts are
//! counts of the program's own instructions. Block parameters become moves on the edges, ordered so that doing
//! them one after another has the effect of doing them all at once.

use runnel_ir::{
    BinaryOp, Block, CalleeData, Cond, DataKind, EntityRef, Inst, InstData, Key, PrimaryMap, Program,
    SecondaryMap, Size, Table, Target, Terminator, UnaryOp, Value, Width, verify,
};

use crate::count::Totals;
use crate::fault::SetupError;
use crate::image::{Image, Layout};

/// Number of a register; each value of the program has one.
pub(crate) type Reg = u32;

/// A stretch of one of the side arrays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    pub(crate) fn of<T>(self, side: &[T]) -> &[T] {
        &side[self.start as usize..][..self.len as usize]
    }
}

/// An operation; the fields are those of the instruction that it stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Const { dst: Reg, value: u64 },
    Binary { op: BinaryOp, width: Width, dst: Reg, lhs: Reg, rhs: Reg },
    Unary { op: UnaryOp, dst: Reg, arg: Reg },
    Load { size: Size, dst: Reg, ptr: Reg, offset: i32 },
    Store { size: Size, ptr: Reg, offset: i32, value: Reg },
    AtomicAdd { size: Size, ptr: Reg, offset: i32, value: Reg },
    CtxLoad { size: Size, dst: Reg, offset: i32 },
    TableValue { dst: Reg, table: Table, offset: u32 },
    Lookup { dst: Reg, table: Table, key: Span },
    Update { dst: Reg, table: Table, key: Span, value: Reg, flags: Reg },
    Delete { dst: Reg, table: Table, key: Span },
    Call { dst: Reg, callee: runnel_ir::Callee, args: Span },
}

/// A jump: the moves to make, and the position of the block to go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) to: u32,
    pub(crate) moves: Span,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Jump(Edge),
    Branch { cond: Cond, width: Width, lhs: Reg, rhs: Reg, then: Edge, other: Edge },
    Return(Reg),
    Deopt,
}

#[derive(Clone, Debug)]
pub(crate) struct CompiledBlock {
    /// Its name in the program.
    pub(crate) block: Block,
    pub(crate) ops: Span,
    pub(crate) end: End,
    /// Position of the first instruction in the program, terminators counted.
    pub(crate) first: u32,
    /// What one execution adds to the totals.
    pub(crate) tally: Totals,
}

/// One stretch of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) offset: u16,
    pub(crate) size: Size,
    pub(crate) reg: Reg,
}

/// A program made ready to run many times.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub(crate) blocks: Vec<CompiledBlock>,
    pub(crate) ops: Vec<Op>,
    /// The instruction that each operation stands for.
    pub(crate) insts: Vec<Inst>,
    pub(crate) moves: Vec<(Reg, Reg)>,
    pub(crate) parts: Vec<Part>,
    pub(crate) args: Vec<Reg>,
    pub(crate) callees: PrimaryMap<runnel_ir::Callee, CalleeData>,
    pub(crate) registers: usize,
    pub(crate) context: Reg,
    pub(crate) table_count: usize,
    /// Size in bytes of each table's keys.
    pub(crate) key_sizes: Vec<u32>,
    positions: SecondaryMap<Block, Option<u32>>,
    layout: Layout,
    data: Vec<(DataKind, Vec<u8>)>,
}

impl Compiled {
    /// Makes `program` ready to run.
    ///
    /// # Errors
    /// [`SetupError`] when it is not well-formed or too large.
    pub fn new(program: &Program) -> Result<Compiled, SetupError> {
        verify(program)?;
        let mut compiled = Compiled {
            blocks: Vec::with_capacity(program.layout.len()),
            ops: Vec::new(),
            insts: Vec::new(),
            moves: Vec::new(),
            parts: Vec::new(),
            args: Vec::new(),
            callees: program.callees.clone(),
            registers: program.values.len(),
            context: reg(program.context()),
            table_count: program.tables.len(),
            key_sizes: program.tables.values().map(|t| t.key_size).collect(),
            positions: SecondaryMap::new(),
            layout: Layout::new(program)?,
            data: program.data.values().map(|d| (d.kind, d.bytes.clone())).collect(),
        };
        for (i, &block) in program.layout.iter().enumerate() {
            compiled.positions[block] = Some(i as u32);
        }
        // A cycle of moves needs one register more per move, at most.
        let widest = program.layout.iter().map(|&b| program.blocks[b].params.len()).max().unwrap_or(0);
        compiled.registers += widest;
        let mut first = 0;
        for &block in &program.layout {
            compiled.block(program, block, first);
            first += program.blocks[block].insts.len() as u32 + 1;
        }
        Ok(compiled)
    }

    /// The memory of the program: its data objects with their first contents, and its stack.
    pub fn image(&self) -> Image {
        Image::new(&self.data, &self.layout)
    }

    /// Number of instructions and terminators.
    pub fn size(&self) -> usize {
        self.ops.len() + self.blocks.len()
    }

    /// Position of a block in the layout.
    pub(crate) fn position(&self, block: Block) -> Option<usize> {
        self.positions[block].map(|p| p as usize)
    }

    fn block(&mut self, program: &Program, block: Block, first: u32) {
        let start = self.ops.len();
        let mut tally = Totals::default();
        for &inst in &program.blocks[block].insts {
            let node = &program.insts[inst];
            let op = self.op(&node.data, node.result);
            count(&op, &mut tally);
            self.ops.push(op);
            self.insts.push(inst);
        }
        let terminator = &program.blocks[block].terminator;
        tally.instructions += 1;
        tally.branches += u64::from(matches!(terminator, Terminator::Branch { .. }));
        let end = match terminator {
            Terminator::Jump(target) => End::Jump(self.edge(program, target)),
            Terminator::Branch { cond, width, lhs, rhs, then, other } => End::Branch {
                cond: *cond,
                width: *width,
                lhs: reg(*lhs),
                rhs: reg(*rhs),
                then: self.edge(program, then),
                other: self.edge(program, other),
            },
            Terminator::Return(value) => End::Return(reg(*value)),
            Terminator::Deopt(_) => End::Deopt,
        };
        let ops = Span { start: start as u32, len: (self.ops.len() - start) as u32 };
        self.blocks.push(CompiledBlock { block, ops, end, first, tally });
    }

    fn op(&mut self, data: &InstData, result: Option<Value>) -> Op {
        // Verified: an operation that uses it has a result.
        let dst = result.map_or(0, reg);
        match data {
            InstData::Const(value) => Op::Const { dst, value: *value },
            InstData::SlotAddr { slot, offset } => Op::Const { dst, value: self.layout.slot(*slot, *offset) },
            InstData::DataAddr { data, offset } => Op::Const { dst, value: self.layout.data(*data, *offset) },
            InstData::TableRef(table) => Op::Const { dst, value: crate::address::table_ref(*table) },
            InstData::Binary { op, width, lhs, rhs } => {
                Op::Binary { op: *op, width: *width, dst, lhs: reg(*lhs), rhs: reg(*rhs) }
            }
            InstData::Unary { op, arg } => Op::Unary { op: *op, dst, arg: reg(*arg) },
            InstData::Load { size, ptr, offset } => {
                Op::Load { size: *size, dst, ptr: reg(*ptr), offset: *offset }
            }
            InstData::Store { size, ptr, offset, value } => {
                Op::Store { size: *size, ptr: reg(*ptr), offset: *offset, value: reg(*value) }
            }
            InstData::AtomicAdd { size, ptr, offset, value } => {
                Op::AtomicAdd { size: *size, ptr: reg(*ptr), offset: *offset, value: reg(*value) }
            }
            InstData::CtxLoad { size, offset, .. } => Op::CtxLoad { size: *size, dst, offset: *offset },
            InstData::TableValue { table, offset } => Op::TableValue { dst, table: *table, offset: *offset },
            InstData::Lookup { table, key } => Op::Lookup { dst, table: *table, key: self.key(key) },
            InstData::Update { table, key, value, flags } => {
                let key = self.key(key);
                Op::Update { dst, table: *table, key, value: reg(*value), flags: reg(*flags) }
            }
            InstData::Delete { table, key } => Op::Delete { dst, table: *table, key: self.key(key) },
            InstData::Call { callee, args } => {
                let span = Span { start: self.args.len() as u32, len: args.len() as u32 };
                self.args.extend(args.iter().map(|&arg| reg(arg)));
                Op::Call { dst, callee: *callee, args: span }
            }
        }
    }

    fn key(&mut self, key: &Key) -> Span {
        let span = Span { start: self.parts.len() as u32, len: key.len() as u32 };
        self.parts.extend(key.iter().map(|p| Part { offset: p.offset, size: p.size, reg: reg(p.value) }));
        span
    }

    fn edge(&mut self, program: &Program, target: &Target) -> Edge {
        let start = self.moves.len();
        let params = &program.blocks[target.block].params;
        let moves: Vec<(Reg, Reg)> = target
            .args
            .iter()
            .zip(params)
            .map(|(&from, &to)| (reg(from), reg(to)))
            .filter(|(from, to)| from != to)
            .collect();
        let overwritten = |i: usize| moves[..i].iter().any(|&(_, to)| to == moves[i].0);
        if (0..moves.len()).any(overwritten) {
            // A source that an earlier move overwrites: go through the spare registers behind the values.
            let spare = program.values.len() as Reg;
            self.moves.extend(moves.iter().enumerate().map(|(i, &(from, _))| (from, spare + i as Reg)));
            self.moves.extend(moves.iter().enumerate().map(|(i, &(_, to))| (spare + i as Reg, to)));
        } else {
            self.moves.extend(moves);
        }
        let moves = Span { start: start as u32, len: (self.moves.len() - start) as u32 };
        // Verified: the target is in the layout.
        Edge { to: self.positions[target.block].unwrap_or(0), moves }
    }
}

fn reg(value: Value) -> Reg {
    value.index() as Reg
}

/// Adds one execution of `op` to the totals.
pub(crate) fn count(op: &Op, tally: &mut Totals) {
    tally.instructions += 1;
    match op {
        Op::Const { .. } | Op::TableValue { .. } => tally.constants += 1,
        Op::Binary { .. } | Op::Unary { .. } => {}
        Op::Load { .. } => tally.loads += 1,
        Op::Store { .. } => tally.stores += 1,
        Op::AtomicAdd { .. } => {
            tally.loads += 1;
            tally.stores += 1;
        }
        Op::CtxLoad { .. } => tally.context_loads += 1,
        Op::Lookup { .. } | Op::Update { .. } | Op::Delete { .. } => tally.table_accesses += 1,
        Op::Call { .. } => tally.calls += 1,
    }
}
