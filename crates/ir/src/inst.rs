//! Instructions, terminators and their operands.

use smallvec::SmallVec;

use crate::{
    BinaryOp, Block, Callee, Cond, Data, Effects, Program, Size, Slot, Table, UnaryOp, Value, Width,
};

/// One stretch of a lookup key: the low `size` bytes of `value`, stored in the machine's byte order at `offset`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyPart {
    /// Offset in bytes from the start of the key.
    pub offset: u16,
    /// Bytes that the part covers.
    pub size: Size,
    /// Where the bytes come from.
    pub value: Value,
}

/// A key given as values: parts in ascending order that cover the key without gap or overlap.
pub type Key = SmallVec<[KeyPart; 4]>;

/// An instruction: what it computes from which operands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum InstData {
    /// A constant.
    Const(u64),
    /// Arithmetic on two operands.
    Binary {
        /// The operation.
        op: BinaryOp,
        /// The width that it works on.
        width: Width,
        /// Left operand.
        lhs: Value,
        /// Right operand.
        rhs: Value,
    },
    /// Arithmetic on one operand.
    Unary {
        /// The operation.
        op: UnaryOp,
        /// The operand.
        arg: Value,
    },
    /// Loads `size` bytes from `ptr + offset`, zero-extended.
    Load {
        /// Bytes to load.
        size: Size,
        /// Base address.
        ptr: Value,
        /// Distance from the base in bytes.
        offset: i32,
    },
    /// Stores the low `size` bytes of `value` at `ptr + offset`.
    Store {
        /// Bytes to store.
        size: Size,
        /// Base address.
        ptr: Value,
        /// Distance from the base in bytes.
        offset: i32,
        /// What to store.
        value: Value,
    },
    /// Adds `value` atomically to the `size` bytes (4 or 8) at `ptr + offset`; no result.
    AtomicAdd {
        /// Bytes of the memory operand.
        size: Size,
        /// Base address.
        ptr: Value,
        /// Distance from the base in bytes.
        offset: i32,
        /// What to add.
        value: Value,
    },
    /// Reads a field of the context that the program was invoked with; the plugin knows what stands there.
    CtxLoad {
        /// Bytes to read.
        size: Size,
        /// The context: the entry block's parameter.
        ctx: Value,
        /// Offset of the field in bytes.
        offset: i32,
    },
    /// Address of byte `offset` of a stack slot.
    SlotAddr {
        /// The slot.
        slot: Slot,
        /// Byte in the slot.
        offset: u32,
    },
    /// Address of byte `offset` of a data object.
    DataAddr {
        /// The object.
        data: Data,
        /// Byte in the object.
        offset: u32,
    },
    /// The table itself, to be handed to a callee.
    TableRef(Table),
    /// Address of byte `offset` in the value of a table of one entry that is addressed directly (global data).
    TableValue {
        /// The table.
        table: Table,
        /// Byte in the value.
        offset: u32,
    },
    /// Looks a key up; gives the address of the value, or 0 when there is no entry.
    Lookup {
        /// The table.
        table: Table,
        /// The key.
        key: Key,
    },
    /// Inserts or replaces an entry; gives 0 or a negative error number.
    Update {
        /// The table.
        table: Table,
        /// The key.
        key: Key,
        /// Address of the value.
        value: Value,
        /// The plugin's flags.
        flags: Value,
    },
    /// Deletes an entry; gives 0 or a negative error number.
    Delete {
        /// The table.
        table: Table,
        /// The key.
        key: Key,
    },
    /// Calls a function outside the program.
    Call {
        /// The function.
        callee: Callee,
        /// Its arguments.
        args: SmallVec<[Value; 5]>,
    },
}

impl InstData {
    /// Calls `f` on each operand, in the order of the text form.
    pub fn for_each_arg(&self, mut f: impl FnMut(Value)) {
        match self {
            InstData::Const(_)
            | InstData::SlotAddr { .. }
            | InstData::DataAddr { .. }
            | InstData::TableRef(_)
            | InstData::TableValue { .. } => {}
            InstData::Binary { lhs, rhs, .. } => {
                f(*lhs);
                f(*rhs);
            }
            InstData::Unary { arg, .. } => f(*arg),
            InstData::Load { ptr, .. } => f(*ptr),
            InstData::Store { ptr, value, .. } | InstData::AtomicAdd { ptr, value, .. } => {
                f(*ptr);
                f(*value);
            }
            InstData::CtxLoad { ctx, .. } => f(*ctx),
            InstData::Lookup { key, .. } | InstData::Delete { key, .. } => {
                key.iter().for_each(|p| f(p.value));
            }
            InstData::Update { key, value, flags, .. } => {
                key.iter().for_each(|p| f(p.value));
                f(*value);
                f(*flags);
            }
            InstData::Call { args, .. } => args.iter().for_each(|&a| f(a)),
        }
    }

    /// Replaces each operand by what `f` gives for it.
    pub fn map_args(&mut self, mut f: impl FnMut(Value) -> Value) {
        let mut on = |v: &mut Value| *v = f(*v);
        match self {
            InstData::Const(_)
            | InstData::SlotAddr { .. }
            | InstData::DataAddr { .. }
            | InstData::TableRef(_)
            | InstData::TableValue { .. } => {}
            InstData::Binary { lhs, rhs, .. } => {
                on(lhs);
                on(rhs);
            }
            InstData::Unary { arg, .. } => on(arg),
            InstData::Load { ptr, .. } => on(ptr),
            InstData::Store { ptr, value, .. } | InstData::AtomicAdd { ptr, value, .. } => {
                on(ptr);
                on(value);
            }
            InstData::CtxLoad { ctx, .. } => on(ctx),
            InstData::Lookup { key, .. } | InstData::Delete { key, .. } => {
                key.iter_mut().for_each(|p| on(&mut p.value));
            }
            InstData::Update { key, value, flags, .. } => {
                key.iter_mut().for_each(|p| on(&mut p.value));
                on(value);
                on(flags);
            }
            InstData::Call { args, .. } => args.iter_mut().for_each(on),
        }
    }

    /// Whether the instruction defines a value.
    pub const fn has_result(&self) -> bool {
        !matches!(self, InstData::Store { .. } | InstData::AtomicAdd { .. })
    }

    /// What the instruction may do besides giving its result.
    pub fn effects(&self, program: &Program) -> Effects {
        match self {
            InstData::Const(_)
            | InstData::Binary { .. }
            | InstData::Unary { .. }
            | InstData::SlotAddr { .. }
            | InstData::DataAddr { .. }
            | InstData::TableRef(_)
            | InstData::TableValue { .. } => Effects::empty(),
            InstData::Load { .. } | InstData::CtxLoad { .. } => Effects::READS_MEMORY,
            InstData::Store { .. } => Effects::WRITES_MEMORY,
            InstData::AtomicAdd { .. } => Effects::READS_MEMORY | Effects::WRITES_MEMORY,
            // A lookup in a table that keeps recency changes that recency; no table that a program can tell
            // apart by it is specialized, and an unused lookup is removed only for tables that keep none.
            InstData::Lookup { table, .. } => {
                if program.tables[*table].keeps_recency {
                    Effects::READS_TABLES | Effects::EXTERNAL
                } else {
                    Effects::READS_TABLES
                }
            }
            InstData::Update { .. } => Effects::READS_MEMORY | Effects::WRITES_TABLES,
            InstData::Delete { .. } => Effects::WRITES_TABLES,
            InstData::Call { callee, .. } => program.callees[*callee].effects,
        }
    }
}

/// Where a jump goes, and the values that the block's parameters take.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The block.
    pub block: Block,
    /// One value for each of the block's parameters.
    pub args: SmallVec<[Value; 4]>,
}

impl Target {
    /// A jump to a block without parameters.
    pub fn to(block: Block) -> Target {
        Target { block, args: SmallVec::new() }
    }
    /// A jump that hands over `args`.
    pub fn with(block: Block, args: impl IntoIterator<Item = Value>) -> Target {
        Target { block, args: args.into_iter().collect() }
    }
}

/// How a block ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Terminator {
    /// Goes on elsewhere.
    Jump(Target),
    /// Goes on at one of two places.
    Branch {
        /// The condition.
        cond: Cond,
        /// The width of the comparison.
        width: Width,
        /// Left operand.
        lhs: Value,
        /// Right operand.
        rhs: Value,
        /// Where to go when the condition holds.
        then: Target,
        /// Where to go when it does not.
        other: Target,
    },
    /// Ends the program with a verdict.
    Return(Value),
    /// Gives up on this version of the program: the original runs instead, from its beginning, on the context as
    /// it is now. Allowed only where nothing has been written yet.
    Deopt(Value),
}

impl Terminator {
    /// The targets, the one taken when the condition holds first.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let (a, b) = match self {
            Terminator::Jump(t) => (Some(t), None),
            Terminator::Branch { then, other, .. } => (Some(then), Some(other)),
            Terminator::Return(_) | Terminator::Deopt(_) => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// The targets, to be changed.
    pub fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let (a, b) = match self {
            Terminator::Jump(t) => (Some(t), None),
            Terminator::Branch { then, other, .. } => (Some(then), Some(other)),
            Terminator::Return(_) | Terminator::Deopt(_) => (None, None),
        };
        a.into_iter().chain(b)
    }

    /// Calls `f` on each operand, the arguments of targets last.
    pub fn for_each_arg(&self, mut f: impl FnMut(Value)) {
        match self {
            Terminator::Branch { lhs, rhs, .. } => {
                f(*lhs);
                f(*rhs);
            }
            Terminator::Return(v) | Terminator::Deopt(v) => f(*v),
            Terminator::Jump(_) => {}
        }
        for target in self.targets() {
            target.args.iter().for_each(|&a| f(a));
        }
    }

    /// Replaces each operand by what `f` gives for it.
    pub fn map_args(&mut self, mut f: impl FnMut(Value) -> Value) {
        match self {
            Terminator::Branch { lhs, rhs, .. } => {
                *lhs = f(*lhs);
                *rhs = f(*rhs);
            }
            Terminator::Return(v) | Terminator::Deopt(v) => *v = f(*v),
            Terminator::Jump(_) => {}
        }
        for target in self.targets_mut() {
            target.args.iter_mut().for_each(|a| *a = f(*a));
        }
    }
}
