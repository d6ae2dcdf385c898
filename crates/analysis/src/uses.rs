//! Who uses a value: def-use lists of everything in the layout.
//!
//! A snapshot; it is not updated when the program changes.

use runnel_ir::{Block, Inst, Program, SecondaryMap, Value};

/// Where in a block a value is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Site {
    /// By an instruction.
    Inst(Inst),
    /// By the terminator, arguments of its targets included.
    Terminator,
}

/// One use of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Use {
    /// The block.
    pub block: Block,
    /// Where in it.
    pub site: Site,
}

/// The uses of every value.
pub struct Uses {
    of: SecondaryMap<Value, Vec<Use>>,
}

impl Uses {
    /// Collects the uses in all blocks of the layout, reachable or not.
    pub fn new(program: &Program) -> Uses {
        let mut of: SecondaryMap<Value, Vec<Use>> = SecondaryMap::new();
        for &block in &program.layout {
            let data = &program.blocks[block];
            for &inst in &data.insts {
                let site = Site::Inst(inst);
                program.insts[inst].data.for_each_arg(|v| of[v].push(Use { block, site }));
            }
            data.terminator.for_each_arg(|v| of[v].push(Use { block, site: Site::Terminator }));
        }
        Uses { of }
    }

    /// The uses of `value` in layout order, one entry for each operand that it is.
    pub fn of(&self, value: Value) -> &[Use] {
        &self.of[value]
    }

    /// How often `value` is used.
    pub fn count(&self, value: Value) -> usize {
        self.of[value].len()
    }
}
