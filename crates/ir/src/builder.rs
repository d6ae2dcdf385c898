//! Writes instructions at the end of a block, in the order in which one thinks of them.

use smallvec::SmallVec;

use crate::{
    BinaryOp, Block, Callee, Cond, Data, InstData, Key, Program, Size, Slot, Table, Target, Terminator,
    UnaryOp, Value, Width,
};

/// Appends to one block of a program at a time.
pub struct Builder<'p> {
    /// The program being written.
    pub program: &'p mut Program,
    block: Block,
    origin: Option<u32>,
}

impl<'p> Builder<'p> {
    /// Writes at the end of `block`.
    pub fn at(program: &'p mut Program, block: Block) -> Builder<'p> {
        Builder { program, block, origin: None }
    }

    /// Marks what follows as coming from position `origin` of the input.
    pub fn set_origin(&mut self, origin: Option<u32>) {
        self.origin = origin;
    }

    /// The block being written.
    pub fn block(&self) -> Block {
        self.block
    }

    /// Goes on at the end of `block`.
    pub fn switch_to(&mut self, block: Block) {
        self.block = block;
    }

    /// Makes a block and appends it to the layout, without going there.
    pub fn create_block(&mut self) -> Block {
        let block = self.program.new_block();
        self.program.layout.push(block);
        block
    }

    /// Appends an instruction that gives no result.
    pub fn effect(&mut self, data: InstData) {
        self.program.append_inst(self.block, data, self.origin);
    }

    /// Appends an instruction and gives its result.
    ///
    /// # Panics
    /// If the instruction has no result: a mistake of the caller's.
    pub fn value(&mut self, data: InstData) -> Value {
        let inst = self.program.append_inst(self.block, data, self.origin);
        self.program.insts[inst].result.expect("the instruction has a result")
    }

    /// A constant.
    pub fn iconst(&mut self, value: u64) -> Value {
        self.value(InstData::Const(value))
    }

    /// Arithmetic on two operands.
    pub fn binary(&mut self, op: BinaryOp, width: Width, lhs: Value, rhs: Value) -> Value {
        self.value(InstData::Binary { op, width, lhs, rhs })
    }

    /// Arithmetic with a constant on the right.
    pub fn binary_imm(&mut self, op: BinaryOp, width: Width, lhs: Value, rhs: u64) -> Value {
        let rhs = self.iconst(rhs);
        self.binary(op, width, lhs, rhs)
    }

    /// Arithmetic on one operand.
    pub fn unary(&mut self, op: UnaryOp, arg: Value) -> Value {
        self.value(InstData::Unary { op, arg })
    }

    /// Loads from memory.
    pub fn load(&mut self, size: Size, ptr: Value, offset: i32) -> Value {
        self.value(InstData::Load { size, ptr, offset })
    }

    /// Stores to memory.
    pub fn store(&mut self, size: Size, ptr: Value, offset: i32, value: Value) {
        self.effect(InstData::Store { size, ptr, offset, value });
    }

    /// Reads a field of the context.
    pub fn ctx_load(&mut self, size: Size, ctx: Value, offset: i32) -> Value {
        self.value(InstData::CtxLoad { size, ctx, offset })
    }

    /// Address in a stack slot.
    pub fn slot_addr(&mut self, slot: Slot, offset: u32) -> Value {
        self.value(InstData::SlotAddr { slot, offset })
    }

    /// Address in a data object.
    pub fn data_addr(&mut self, data: Data, offset: u32) -> Value {
        self.value(InstData::DataAddr { data, offset })
    }

    /// Looks a key up in a table.
    pub fn lookup(&mut self, table: Table, key: Key) -> Value {
        self.value(InstData::Lookup { table, key })
    }

    /// Calls a function outside the program.
    pub fn call(&mut self, callee: Callee, args: impl IntoIterator<Item = Value>) -> Value {
        self.value(InstData::Call { callee, args: args.into_iter().collect::<SmallVec<_>>() })
    }

    /// Ends the block.
    pub fn terminate(&mut self, terminator: Terminator) {
        self.program.blocks[self.block].terminator = terminator;
    }

    /// Ends the block with a jump.
    pub fn jump(&mut self, target: Target) {
        self.terminate(Terminator::Jump(target));
    }

    /// Ends the block with a branch.
    pub fn branch(&mut self, cond: Cond, width: Width, lhs: Value, rhs: Value, then: Target, other: Target) {
        self.terminate(Terminator::Branch { cond, width, lhs, rhs, then, other });
    }

    /// Ends the program with a verdict.
    pub fn ret(&mut self, value: Value) {
        self.terminate(Terminator::Return(value));
    }
}
