//! Removes stores to stack slots that nothing reads any more.
//!
//! Backward liveness over the bytes of those slots whose address does not escape: a load, an atomic addition, or an
//! update that takes its value there makes bytes live, a store makes its own dead, and at the end of the program
//! all are dead. A store to bytes that are all dead behind it goes. Slots that escape are left alone, as is all
//! other memory: others see it.
//!
//! Uses: provenance, escapes. Invalidates: def-use lists.

use runnel_analysis::{Memory, Object, Offset, Place};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Inst, InstData, Program, SecondaryMap, Slot};

/// Slots beyond this many bytes in all are left alone; the eBPF stack has 512.
const MAX_BYTES: usize = 4096;

/// Removes dead stores from `program`; says whether there were any.
pub fn eliminate_dead_stores(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let dead = Liveness::new(program, &cfg).dead_stores(&cfg);
    for &block in cfg.order() {
        program.blocks[block].insts.retain(|inst| dead.binary_search(inst).is_err());
    }
    !dead.is_empty()
}

/// A byte is live where its bit is set.
type Bytes = Vec<u64>;

struct Liveness<'p> {
    program: &'p Program,
    memory: Memory<'p>,
    /// The first bit of each slot that is looked at.
    first: SecondaryMap<Slot, Option<usize>>,
    words: usize,
}

impl<'p> Liveness<'p> {
    fn new(program: &'p Program, cfg: &Cfg) -> Liveness<'p> {
        let memory = Memory::new(program, cfg);
        let mut first = SecondaryMap::new();
        let mut bytes = 0;
        for (slot, data) in &program.slots {
            let end = bytes + data.size as usize;
            if !memory.escapes().escapes(slot) && end <= MAX_BYTES {
                first[slot] = Some(bytes);
                bytes = end;
            }
        }
        Liveness { program, memory, first, words: bytes.div_ceil(64) }
    }

    /// The stores to bytes that are dead behind them, in ascending order.
    fn dead_stores(&self, cfg: &Cfg) -> Vec<Inst> {
        let at_entry = self.solve(cfg);
        let mut dead = Vec::new();
        for &block in cfg.order() {
            let mut live = self.at_exit(&at_entry, block);
            for &inst in self.program.blocks[block].insts.iter().rev() {
                if self.is_dead_store(&live, inst) {
                    dead.push(inst);
                } else {
                    self.step(&mut live, inst);
                }
            }
        }
        dead.sort_unstable();
        dead
    }

    fn solve(&self, cfg: &Cfg) -> SecondaryMap<Block, Bytes> {
        let mut at_entry: SecondaryMap<Block, Bytes> = SecondaryMap::with_default(vec![0; self.words]);
        let mut changed = true;
        while changed {
            changed = false;
            for &block in cfg.order().iter().rev() {
                let mut live = self.at_exit(&at_entry, block);
                self.program.blocks[block].insts.iter().rev().for_each(|&inst| self.step(&mut live, inst));
                changed |= live != at_entry[block];
                at_entry[block] = live;
            }
        }
        at_entry
    }

    fn at_exit(&self, at_entry: &SecondaryMap<Block, Bytes>, block: Block) -> Bytes {
        let mut live = vec![0; self.words];
        for target in self.program.blocks[block].terminator.targets() {
            live.iter_mut().zip(&at_entry[target.block]).for_each(|(l, e)| *l |= e);
        }
        live
    }

    /// Goes back over an instruction.
    fn step(&self, live: &mut Bytes, inst: Inst) {
        let data = &self.program.insts[inst].data;
        match *data {
            InstData::Store { .. } => {
                if let Some((bytes, true)) = self.memory.access(inst).and_then(|place| self.bytes(&place)) {
                    bytes.for_each(|i| live[i / 64] &= !(1 << (i % 64)));
                }
            }
            InstData::Load { .. } | InstData::AtomicAdd { .. } => {
                self.read(live, self.memory.access(inst));
            }
            InstData::Update { table, value, .. } => {
                let size = self.program.tables[table].value_size;
                self.read(live, Some(self.memory.place(value, 0, size)));
            }
            _ => {}
        }
    }

    fn read(&self, live: &mut Bytes, place: Option<Place>) {
        if let Some((bytes, _)) = place.and_then(|place| self.bytes(&place)) {
            bytes.for_each(|i| live[i / 64] |= 1 << (i % 64));
        }
    }

    fn is_dead_store(&self, live: &Bytes, inst: Inst) -> bool {
        if !matches!(self.program.insts[inst].data, InstData::Store { .. }) {
            return false;
        }
        match self.memory.access(inst).and_then(|place| self.bytes(&place)) {
            Some((mut bytes, _)) => bytes.all(|i| live[i / 64] >> (i % 64) & 1 == 0),
            None => false,
        }
    }

    /// The bits of the bytes that a location may cover, if it lies in a slot that is looked at, and whether it
    /// covers exactly those.
    fn bytes(&self, place: &Place) -> Option<(std::ops::Range<usize>, bool)> {
        let pointer = place.pointer?;
        let Object::Slot(slot) = pointer.object else { return None };
        let first = self.first[slot]?;
        let size = self.program.slots[slot].size as usize;
        if let Offset::Exact(offset) = pointer.offset
            && let Ok(offset) = usize::try_from(offset)
            && offset + place.size as usize <= size
        {
            return Some((first + offset..first + offset + place.size as usize, true));
        }
        Some((first..first + size, false))
    }
}
