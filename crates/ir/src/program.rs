//! A program: its control-flow graph and everything that it refers to.

use cranelift_entity::PrimaryMap;

use crate::{Block, Callee, Data, Effects, Inst, InstData, Slot, Table, Terminator, Value};

/// How a table finds an entry for a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TableKind {
    /// The entry whose key is equal.
    Exact,
    /// The entry with the longest prefix of the key. The key's first four bytes give the length in bits, in the
    /// machine's byte order (of the query: the longest prefix to consider), the rest is the address, its most
    /// significant byte first.
    Prefix,
    /// The key is an index of four bytes; every index below `max_entries` has an entry.
    Index,
    /// Only callees know.
    Opaque,
}

/// A match-action table as the program sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableData {
    /// Name, unique in the program.
    pub name: String,
    /// How it finds an entry.
    pub kind: TableKind,
    /// Key size in bytes.
    pub key_size: u32,
    /// Value size in bytes.
    pub value_size: u32,
    /// Capacity in entries.
    pub max_entries: u32,
    /// Whether each CPU has values of its own.
    pub per_cpu: bool,
    /// Whether a lookup changes which entry is evicted next.
    pub keeps_recency: bool,
}

/// Who may change a data object while programs use it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataKind {
    /// Nobody: loads from known places are constants.
    Const,
    /// Others, at any time: each load reads memory anew.
    Live,
}

/// Bytes that the program addresses directly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataObject {
    /// What it is for, unique in the program.
    pub name: String,
    /// Who may change it.
    pub kind: DataKind,
    /// Size in bytes of one row, where the object is a sequence of rows of one layout and every pointer into it
    /// is the address of a row plus a constant; 0 where it is not.
    pub stride: u32,
    /// Contents; of live data, those at the beginning.
    pub bytes: Vec<u8>,
}

/// A slot of the stack frame, aligned to eight bytes. Its contents are undefined at entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotData {
    /// Size in bytes.
    pub size: u32,
}

/// A function outside the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalleeData {
    /// Name, for people.
    pub name: String,
    /// The plugin's number for it.
    pub number: u32,
    /// How many arguments it takes.
    pub arity: u8,
    /// What it may do.
    pub effects: Effects,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// The result of an instruction.
    Inst(Inst),
    /// A parameter of a block, by position.
    Param(Block, u32),
}

/// An instruction with its result and where in the input it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstNode {
    /// What it does.
    pub data: InstData,
    /// The value that it defines.
    pub result: Option<Value>,
    /// The position in the plugin's input that it stands for, where there is one.
    pub origin: Option<u32>,
}

/// A basic block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockData {
    /// Values handed over by the jumps to it.
    pub params: Vec<Value>,
    /// Instructions, in order.
    pub insts: Vec<Inst>,
    /// How it ends.
    pub terminator: Terminator,
}

/// A packet-processing program.
///
/// Blocks and instructions that passes took out stay in their maps unreferenced until [`Program::compact`]; only
/// what [`Program::layout`] lists is part of the program.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the entry function.
    pub name: String,
    /// Tables.
    pub tables: PrimaryMap<Table, TableData>,
    /// Data addressed directly.
    pub data: PrimaryMap<Data, DataObject>,
    /// Stack slots.
    pub slots: PrimaryMap<Slot, SlotData>,
    /// Functions outside.
    pub callees: PrimaryMap<Callee, CalleeData>,
    /// All blocks ever made.
    pub blocks: PrimaryMap<Block, BlockData>,
    /// All instructions ever made.
    pub insts: PrimaryMap<Inst, InstNode>,
    /// All values ever made.
    pub values: PrimaryMap<Value, ValueDef>,
    /// The blocks that the program consists of, the entry first. The entry has one parameter, the context.
    pub layout: Vec<Block>,
}

impl Program {
    /// A program with nothing in it yet; [`crate::Builder`] fills it.
    pub fn new(name: impl Into<String>) -> Program {
        Program {
            name: name.into(),
            tables: PrimaryMap::new(),
            data: PrimaryMap::new(),
            slots: PrimaryMap::new(),
            callees: PrimaryMap::new(),
            blocks: PrimaryMap::new(),
            insts: PrimaryMap::new(),
            values: PrimaryMap::new(),
            layout: Vec::new(),
        }
    }

    /// The block where execution begins.
    pub fn entry(&self) -> Block {
        self.layout[0]
    }

    /// The context: the entry block's parameter.
    pub fn context(&self) -> Value {
        self.blocks[self.entry()].params[0]
    }

    /// Makes a block outside the layout that ends in a jump to itself until it is given an end.
    pub fn new_block(&mut self) -> Block {
        let next = self.blocks.next_key();
        self.blocks.push(BlockData {
            params: Vec::new(),
            insts: Vec::new(),
            terminator: Terminator::Jump(crate::Target::to(next)),
        })
    }

    /// Gives `block` one more parameter.
    pub fn append_param(&mut self, block: Block) -> Value {
        let index = self.blocks[block].params.len() as u32;
        let value = self.values.push(ValueDef::Param(block, index));
        self.blocks[block].params.push(value);
        value
    }

    /// Makes an instruction that stands in no block yet.
    pub fn new_inst(&mut self, data: InstData, origin: Option<u32>) -> Inst {
        let inst = self.insts.next_key();
        let result = data.has_result().then(|| self.values.push(ValueDef::Inst(inst)));
        self.insts.push(InstNode { data, result, origin })
    }

    /// Makes an instruction and appends it to `block`.
    pub fn append_inst(&mut self, block: Block, data: InstData, origin: Option<u32>) -> Inst {
        let inst = self.new_inst(data, origin);
        self.blocks[block].insts.push(inst);
        inst
    }

    /// The instruction that defines `value`, unless it is a block parameter.
    pub fn def(&self, value: Value) -> Option<&InstData> {
        match self.values[value] {
            ValueDef::Inst(inst) => Some(&self.insts[inst].data),
            ValueDef::Param(..) => None,
        }
    }

    /// The constant that `value` is, if an instruction says so outright.
    pub fn as_const(&self, value: Value) -> Option<u64> {
        match self.def(value) {
            Some(InstData::Const(c)) => Some(*c),
            _ => None,
        }
    }

    /// Replaces every use of a value by what `f` gives for it.
    pub fn map_values(&mut self, mut f: impl FnMut(Value) -> Value) {
        for &block in &self.layout {
            for &inst in &self.blocks[block].insts {
                self.insts[inst].data.map_args(&mut f);
            }
            self.blocks[block].terminator.map_args(&mut f);
        }
    }

    /// Number of instructions in the layout, terminators included.
    pub fn size(&self) -> usize {
        self.layout.iter().map(|&b| self.blocks[b].insts.len() + 1).sum()
    }

    /// The same program with blocks, instructions and values numbered anew in layout order, and nothing else in
    /// its maps. Tables, data, slots and callees keep their numbers.
    pub fn compact(&self) -> Program {
        use cranelift_entity::SecondaryMap;
        let mut out = Program::new(self.name.clone());
        out.tables = self.tables.clone();
        out.data = self.data.clone();
        out.slots = self.slots.clone();
        out.callees = self.callees.clone();
        let mut blocks: SecondaryMap<Block, Option<Block>> = SecondaryMap::new();
        let mut values: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
        for &old in &self.layout {
            let new = out.new_block();
            blocks[old] = Some(new);
            out.layout.push(new);
            for &param in &self.blocks[old].params {
                values[param] = Some(out.append_param(new));
            }
            for &inst in &self.blocks[old].insts {
                let node = &self.insts[inst];
                let made = out.append_inst(new, node.data.clone(), node.origin);
                if let (Some(was), Some(is)) = (node.result, out.insts[made].result) {
                    values[was] = Some(is);
                }
            }
        }
        for (&old, &new) in self.layout.iter().zip(&out.layout.clone()) {
            let mut terminator = self.blocks[old].terminator.clone();
            for target in terminator.targets_mut() {
                target.block = blocks[target.block].unwrap_or(target.block);
            }
            out.blocks[new].terminator = terminator;
        }
        out.map_values(|v| values[v].unwrap_or(v));
        out
    }
}
