//! Which loads and stores still tell what memory holds.
//!
//! A fact is a load or a store of [private memory](Memory::is_private): "the bytes there are those that this
//! instruction read or wrote". It begins at its instruction and ends at whatever [may change](Memory::may_change)
//! the bytes. The analysis is the classical one of available expressions (forward, intersection over
//! predecessors, solved from the optimistic side), so a fact that holds at a point was established on every
//! path to it: its instruction dominates the point, and its operands have there the values that they had.
//!
//! Facts are numbered up to a limit; beyond it the program is too large for quadratic work, and further
//! loads and stores are simply not remembered.

use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Inst, InstData, Program, SecondaryMap};

use crate::memory::Write;
use crate::{Memory, Place};

/// The most facts that are kept; memory use is this many bits a block.
const MAX_FACTS: usize = 4096;

/// Which instructions become facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Facts {
    /// Loads from memory, each until the next call or table access, and loads from the context. A value kept across a
    /// call needs a place that the call leaves alone, and with few registers that place is memory again: loading
    /// anew costs as much, and storing it first costs more. Fields of the context are worth it, as the packet's
    /// bounds are proved for the one pointer that was read.
    LoadsBetweenCalls,
    /// Stores.
    Stores,
}

type Bits = Vec<u64>;

/// The solution: which facts hold at the start of each reachable block.
pub struct Available {
    facts: Vec<(Inst, Place)>,
    number: SecondaryMap<Inst, Option<u32>>,
    kills: SecondaryMap<Inst, Option<Bits>>,
    at_entry: SecondaryMap<Block, Bits>,
}

/// The facts that hold at one point of a block.
#[derive(Clone)]
pub struct Point<'a> {
    solution: &'a Available,
    holds: Bits,
}

impl Available {
    /// Solves for the facts of one kind.
    pub fn new(program: &Program, cfg: &Cfg, memory: &Memory<'_>, kind: Facts) -> Available {
        let facts = collect(program, cfg, memory, kind);
        let mut this = Available {
            number: SecondaryMap::new(),
            kills: SecondaryMap::new(),
            at_entry: SecondaryMap::new(),
            facts,
        };
        for (i, &(fact, _)) in this.facts.iter().enumerate() {
            this.number[fact] = Some(i as u32);
        }
        for &block in cfg.order() {
            for &inst in &program.blocks[block].insts {
                this.kills[inst] = this.killed_by(program, memory, inst);
            }
        }
        this.solve(program, cfg);
        this
    }

    /// The facts that hold at the start of `block`, which must be reachable.
    pub fn at_entry(&self, block: Block) -> Point<'_> {
        Point { solution: self, holds: self.at_entry[block].clone() }
    }

    fn words(&self) -> usize {
        self.facts.len().div_ceil(64)
    }

    /// The facts that `inst` may end, if any.
    fn killed_by(&self, program: &Program, memory: &Memory<'_>, inst: Inst) -> Option<Bits> {
        let write = memory.write(inst);
        let leaves = leaves_program(&program.insts[inst].data);
        if matches!(write, Write::Nothing) && !leaves {
            return None;
        }
        let mut bits = vec![0; self.words()];
        for (i, (fact, place)) in self.facts.iter().enumerate() {
            let dropped = leaves && matches!(program.insts[*fact].data, InstData::Load { .. });
            bits[i / 64] |= u64::from(dropped || memory.changes(&write, place)) << (i % 64);
        }
        Some(bits)
    }

    fn step(&self, holds: &mut Bits, inst: Inst) {
        if let Some(kill) = &self.kills[inst] {
            holds.iter_mut().zip(kill).for_each(|(h, k)| *h &= !k);
        }
        if let Some(i) = self.number[inst] {
            holds[i as usize / 64] |= 1 << (i % 64);
        }
    }

    fn solve(&mut self, program: &Program, cfg: &Cfg) {
        let mut at_exit: SecondaryMap<Block, Option<Bits>> = SecondaryMap::new();
        let mut changed = true;
        while changed {
            changed = false;
            for &block in cfg.order() {
                let mut holds: Option<Bits> = (block == program.entry()).then(|| vec![0; self.words()]);
                // A predecessor that has not been visited yet stands for "everything holds".
                for exit in cfg.preds(block).iter().filter_map(|&p| at_exit[p].as_ref()) {
                    match &mut holds {
                        None => holds = Some(exit.clone()),
                        Some(h) => h.iter_mut().zip(exit).for_each(|(h, e)| *h &= e),
                    }
                }
                let mut holds = holds.unwrap_or_default();
                self.at_entry[block].clone_from(&holds);
                for &inst in &program.blocks[block].insts {
                    self.step(&mut holds, inst);
                }
                if at_exit[block].as_ref() != Some(&holds) {
                    at_exit[block] = Some(holds);
                    changed = true;
                }
            }
        }
    }
}

/// Whether the instruction is, or becomes, a call.
fn leaves_program(data: &InstData) -> bool {
    matches!(
        data,
        InstData::Call { .. } | InstData::Lookup { .. } | InstData::Update { .. } | InstData::Delete { .. }
    )
}

fn collect(program: &Program, cfg: &Cfg, memory: &Memory<'_>, kind: Facts) -> Vec<(Inst, Place)> {
    let of_kind = |inst: Inst| match program.insts[inst].data {
        InstData::Load { .. } | InstData::CtxLoad { .. } => kind == Facts::LoadsBetweenCalls,
        InstData::Store { .. } => kind == Facts::Stores,
        _ => false,
    };
    let private = |inst: Inst| Some((inst, memory.access(inst).filter(|place| memory.is_private(place))?));
    let all = cfg.order().iter().flat_map(|&b| &program.blocks[b].insts).copied();
    all.filter(|&inst| of_kind(inst)).filter_map(private).take(MAX_FACTS).collect()
}

impl Point<'_> {
    /// Goes on behind `inst`.
    pub fn pass(&mut self, inst: Inst) {
        self.solution.step(&mut self.holds, inst);
    }

    /// Whether the bytes that `fact` read or wrote still are what they were then.
    pub fn holds(&self, fact: Inst) -> bool {
        let word = |i: u32| self.holds.get(i as usize / 64).copied().unwrap_or_default();
        self.solution.number[fact].is_some_and(|i| word(i) >> (i % 64) & 1 == 1)
    }

    /// The facts that hold and the bytes that they are about, those of earlier blocks first.
    pub fn facts(&self) -> impl Iterator<Item = (Inst, Place)> {
        self.holds.iter().enumerate().flat_map(move |(word, &bits)| {
            (0..64)
                .filter(move |bit| bits >> bit & 1 == 1)
                .map(move |bit| self.solution.facts[word * 64 + bit])
        })
    }
}
