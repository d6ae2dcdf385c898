//! Makes a program whole again in which one variable has several definitions.
//!
//! A pass that copies a block gives the values defined there a second definition each. Behind the copies, every use
//! must see the definition that reaches it; where two meet, a block parameter joins them. Parameters go to the iterated
//! dominance frontier of the definitions, as far as a use can be reached from there (pruned SSA; Cytron et al.,
//! "Efficiently Computing Static Single Assignment Form and the Control Dependence Graph", TOPLAS 1991), and
//! uses find their definition by climbing the dominator tree. Which blocks need a value at all is found from the
//! uses backwards, by demand, as Braun et al. do (CC 2013).

use std::collections::{BTreeMap, BTreeSet};

use runnel_analysis::{Site, Use, Uses};
use runnel_ir::cfg::{Cfg, Dominators};
use runnel_ir::{Block, Inst, Program, SecondaryMap, Value, ValueDef};

use crate::edit::distinct_preds;

/// For each value its other definitions, each in a block of its own.
pub(crate) type ExtraDefs = BTreeMap<Value, Vec<Value>>;

/// Directs every use of a value with extra definitions to the one that reaches it.
///
/// A use in a block with a definition sees that one, if it stands behind it. Every block of the layout must be
/// reachable, and each use by some definition on every path.
pub(crate) fn repair(program: &mut Program, extra: &ExtraDefs) {
    let cfg = Cfg::new(program);
    let dominators = Dominators::new(program, &cfg);
    let shape = Shape { frontiers: frontiers(&cfg, &dominators), cfg, dominators };
    let uses = Uses::new(program);
    let homes = Homes::new(program);
    for (&value, others) in extra {
        let defs = std::iter::once(value).chain(others.iter().copied());
        let defs = defs.filter_map(|def| Some((homes.of(program, def)?, def))).collect();
        Repair { shape: &shape, homes: &homes, defs, joins: BTreeMap::new() }.run(
            program,
            value,
            uses.of(value),
        );
    }
}

/// Edges, dominators, and for each block those where its dominance ends.
struct Shape {
    cfg: Cfg,
    dominators: Dominators,
    frontiers: SecondaryMap<Block, Vec<Block>>,
}

/// Dominance frontiers (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", section 4).
fn frontiers(cfg: &Cfg, dominators: &Dominators) -> SecondaryMap<Block, Vec<Block>> {
    let mut frontiers: SecondaryMap<Block, Vec<Block>> = SecondaryMap::new();
    for &join in cfg.order().iter().filter(|&&block| cfg.preds(block).len() > 1) {
        for &pred in cfg.preds(join) {
            let mut runner = Some(pred);
            while let Some(block) = runner.filter(|&b| Some(b) != dominators.immediate(join)) {
                // Whoever has this join already passed it on to all above.
                if frontiers[block].last() == Some(&join) {
                    break;
                }
                frontiers[block].push(join);
                runner = dominators.immediate(block);
            }
        }
    }
    frontiers
}

/// Where each instruction of the layout stands.
struct Homes {
    place: SecondaryMap<Inst, Option<(Block, usize)>>,
    listed: SecondaryMap<Block, bool>,
}

impl Homes {
    fn new(program: &Program) -> Homes {
        let mut homes = Homes { place: SecondaryMap::new(), listed: SecondaryMap::new() };
        for &block in &program.layout {
            homes.listed[block] = true;
            for (i, &inst) in program.blocks[block].insts.iter().enumerate() {
                homes.place[inst] = Some((block, i));
            }
        }
        homes
    }

    /// The block that defines a value, if that is still part of the program.
    fn of(&self, program: &Program, value: Value) -> Option<Block> {
        match program.values[value] {
            ValueDef::Inst(inst) => self.place[inst].map(|(block, _)| block),
            ValueDef::Param(block, _) => self.listed[block].then_some(block),
        }
    }

    /// Whether a use in the block that defines `value` stands behind the definition.
    fn is_behind(&self, program: &Program, at: Use, value: Value) -> bool {
        match (program.values[value], at.site) {
            (ValueDef::Inst(def), Site::Inst(user)) => self.place[def] < self.place[user],
            _ => true,
        }
    }
}

/// The repair of one variable.
struct Repair<'a> {
    shape: &'a Shape,
    homes: &'a Homes,
    /// The definition at the end of each block that has one.
    defs: BTreeMap<Block, Value>,
    /// The parameters that join definitions.
    joins: BTreeMap<Block, Value>,
}

impl Repair<'_> {
    fn run(mut self, program: &mut Program, value: Value, uses: &[Use]) {
        let uses: BTreeSet<Use> = uses.iter().copied().collect();
        let outer = uses.iter().filter(|&&at| !self.is_local(program, at));
        let needed = self.needed_at_entry(outer.map(|at| at.block));
        for &block in self.frontier().intersection(&needed) {
            self.joins.insert(block, program.append_param(block));
        }
        for &at in &uses {
            let local = self.is_local(program, at);
            let reaching = if local { self.at_end(at.block) } else { self.at_entry(at.block) };
            let Some(reaching) = reaching else { continue };
            let redirect = |v| if v == value { reaching } else { v };
            match at.site {
                Site::Inst(inst) => program.insts[inst].data.map_args(redirect),
                Site::Terminator => program.blocks[at.block].terminator.map_args(redirect),
            }
        }
        self.hand_over(program, value);
    }

    /// Whether the use stands in a block with a definition, and behind that.
    fn is_local(&self, program: &Program, at: Use) -> bool {
        self.defs.get(&at.block).is_some_and(|&def| self.homes.is_behind(program, at, def))
    }

    /// The blocks at whose entry the variable is needed.
    fn needed_at_entry(&self, uses: impl Iterator<Item = Block>) -> BTreeSet<Block> {
        let mut needed = BTreeSet::new();
        let mut work: Vec<Block> = uses.collect();
        while let Some(block) = work.pop() {
            if needed.insert(block) {
                let preds = self.shape.cfg.preds(block).iter();
                work.extend(preds.filter(|pred| !self.defs.contains_key(pred)));
            }
        }
        needed
    }

    /// The iterated dominance frontier of the definitions.
    fn frontier(&self) -> BTreeSet<Block> {
        let mut found = BTreeSet::new();
        let mut work: Vec<Block> = self.defs.keys().copied().collect();
        while let Some(block) = work.pop() {
            work.extend(self.shape.frontiers[block].iter().filter(|&&join| found.insert(join)));
        }
        found
    }

    /// The definition that reaches the entry of `block`.
    fn at_entry(&self, block: Block) -> Option<Value> {
        let mut block = block;
        loop {
            if let Some(&join) = self.joins.get(&block) {
                return Some(join);
            }
            block = self.shape.dominators.immediate(block)?;
            if let Some(&def) = self.defs.get(&block) {
                return Some(def);
            }
        }
    }

    /// The definition that reaches the end of `block`.
    fn at_end(&self, block: Block) -> Option<Value> {
        self.defs.get(&block).copied().or_else(|| self.at_entry(block))
    }

    /// Gives the joining parameters their arguments.
    fn hand_over(&self, program: &mut Program, value: Value) {
        for &join in self.joins.keys() {
            for pred in distinct_preds(&self.shape.cfg, join) {
                let arg = self.at_end(pred).unwrap_or(value);
                for target in program.blocks[pred].terminator.targets_mut().filter(|t| t.block == join) {
                    target.args.push(arg);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use runnel_ir::{EntityRef, parse_program, verify};

    use super::*;

    /// Repairs v1 with the given other definitions.
    fn repaired(text: &str, others: &[usize]) -> String {
        let mut program = parse_program(text).unwrap();
        let extra = ExtraDefs::from([(Value::new(1), others.iter().map(|&i| Value::new(i)).collect())]);
        repair(&mut program, &extra);
        verify(&program).unwrap_or_else(|e| panic!("{e}\n{program}"));
        program.to_string()
    }

    #[test]
    fn definitions_meet_in_a_parameter() {
        let text = "program \"p\" {
          block0(v0):
            v9 = ctx_load.32 v0
            branch.eq.64 v9, v9, block1, block2
          block1:
            v1 = const 1
            jump block3
          block2:
            v2 = const 2
            jump block3
          block3:
            branch.eq.64 v1, v9, block4, block5
          block4:
            return v1
          block5:
            return v9
        }";
        let expected = "block3(v10):
  branch.eq.64 v10, v9, block4, block5
block4:
  return v10
";
        let found = repaired(text, &[2]);
        assert!(found.contains(expected), "{found}");
        assert!(found.contains("jump block3(v1)") && found.contains("jump block3(v2)"), "{found}");
    }

    #[test]
    fn a_use_that_one_definition_reaches_gets_no_parameter() {
        let text = "program \"p\" {
          block0(v0):
            v9 = ctx_load.32 v0
            branch.eq.64 v9, v9, block1, block2
          block1:
            v1 = const 1
            jump block3
          block2:
            v2 = const 2
            jump block4
          block3:
            jump block5(v1)
          block4:
            return v1
          block5(v3):
            return v3
        }";
        let found = repaired(text, &[2]);
        assert!(found.contains("block4:\n  return v2\n"), "{found}");
        assert!(found.contains("jump block5(v1)"), "{found}");
    }

    #[test]
    fn a_definition_in_a_loop_meets_the_one_before_it() {
        let text = "program \"p\" {
          block0(v0):
            v1 = const 1
            v9 = ctx_load.32 v0
            jump block1
          block1:
            v3 = add.64 v1, v9
            branch.eq.64 v3, v9, block2, block3
          block2:
            v2 = const 2
            jump block1
          block3:
            return v1
        }";
        let found = repaired(text, &[2]);
        assert!(found.contains("block1(v10):\n  v3 = add.64 v10, v9\n"), "{found}");
        assert!(found.contains("return v10"), "{found}");
        assert!(found.contains("jump block1(v1)") && found.contains("jump block1(v2)"), "{found}");
    }

    #[test]
    fn the_loop_that_defines_may_be_the_one_that_uses() {
        let text = "program \"p\" {
          block0(v0):
            v1 = const 1
            v9 = ctx_load.32 v0
            jump block1
          block1:
            v3 = add.64 v1, v9
            v2 = add.64 v1, v9
            v4 = add.64 v1, v9
            branch.eq.64 v3, v4, block1, block2
          block2:
            return v1
        }";
        let found = repaired(text, &[2]);
        let expected = "block1(v10):
  v3 = add.64 v10, v9
  v2 = add.64 v10, v9
  v4 = add.64 v2, v9
  branch.eq.64 v3, v4, block1(v2), block2
block2:
  return v2
";
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn a_definition_that_left_the_program_does_not_count() {
        let text = "program \"p\" {
          block0(v0):
            v2 = const 2
            jump block1
          block1:
            return v1
          block2:
            v1 = const 1
            return v1
        }";
        let mut program = parse_program(text).unwrap();
        program.layout.pop();
        repair(&mut program, &ExtraDefs::from([(Value::new(1), vec![Value::new(2)])]));
        verify(&program).unwrap();
        assert!(program.to_string().contains("block1:\n  return v2\n"), "{program}");
    }
}
