//! Names for values in the places where a branch says more of them.

use std::collections::HashMap;

use runnel_ir::cfg::{Cfg, Dominators};
use runnel_ir::{Block, Cond, Program, SecondaryMap, Terminator, Value, Width};

/// A value as used at some place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Name {
    /// The value itself.
    Value(Value),
    /// The value as refined by a branch.
    Refined(usize),
}

/// A value behind a comparison: `value cond constant` holds.
pub(super) struct Node {
    pub(super) value: Value,
    /// The name that the comparison refines.
    pub(super) parent: Name,
    pub(super) cond: Cond,
    pub(super) width: Width,
    pub(super) constant: u64,
    /// The nodes that refine this one.
    pub(super) children: Vec<usize>,
}

/// All refinements, and the names that hold in each block and on each edge.
pub(super) struct Refinements {
    nodes: Vec<Node>,
    of_value: SecondaryMap<Value, Vec<usize>>,
    in_block: HashMap<(Block, Value), usize>,
    on_edge: HashMap<(Block, usize), usize>,
}

/// A value, and the refinement of it that another one hides.
type Hidden = (Value, Option<usize>);

/// The value compared with a constant at the end of `block`, as `value cond constant`.
fn comparison(program: &Program, block: Block) -> Option<(Value, Cond, Width, u64)> {
    let Terminator::Branch { cond, width, lhs, rhs, .. } = program.blocks[block].terminator else {
        return None;
    };
    let (value, cond, constant) = match (program.as_const(lhs), program.as_const(rhs)) {
        (None, Some(c)) => (lhs, cond, c),
        (Some(c), None) => (rhs, cond.swap(), c),
        _ => return None,
    };
    // The context has one name only, by which its fields are read.
    (value != program.context()).then_some((value, cond, width, constant))
}

impl Refinements {
    pub(super) fn new(program: &Program, cfg: &Cfg) -> Refinements {
        let mut this = Refinements {
            nodes: Vec::new(),
            of_value: SecondaryMap::new(),
            in_block: HashMap::new(),
            on_edge: HashMap::new(),
        };
        let dominators = Dominators::new(program, cfg);
        let mut current: SecondaryMap<Value, Option<usize>> = SecondaryMap::new();
        // The blocks from the entry to the present one in the dominator tree, each with what it hid.
        let mut path: Vec<(Block, Option<Hidden>)> = Vec::new();
        for &block in dominators.preorder() {
            while let Some((_, hidden)) = path.pop_if(|(above, _)| !dominators.dominates(*above, block)) {
                if let Some((value, before)) = hidden {
                    current[value] = before;
                }
            }
            let refined = this.edge_into(program, cfg, block);
            path.push((
                block,
                refined.map(|i| {
                    let value = this.nodes[i].value;
                    (value, current[value].replace(i))
                }),
            ));
            this.enter(program, block, &current);
        }
        this
    }

    /// The refinement on the one edge into `block`.
    fn edge_into(&self, program: &Program, cfg: &Cfg, block: Block) -> Option<usize> {
        let &[pred] = cfg.preds(block) else { return None };
        let edge = program.blocks[pred].terminator.targets().position(|t| t.block == block)?;
        self.on_edge.get(&(pred, edge)).copied()
    }

    /// Notes the names that hold in `block`, and makes those that hold on the edges out of it.
    fn enter(&mut self, program: &Program, block: Block, current: &SecondaryMap<Value, Option<usize>>) {
        let data = &program.blocks[block];
        let mut note = |value: Value| {
            if let Some(i) = current[value] {
                self.in_block.insert((block, value), i);
            }
        };
        data.insts.iter().for_each(|&inst| program.insts[inst].data.for_each_arg(&mut note));
        data.terminator.for_each_arg(&mut note);
        let Some((value, cond, width, constant)) = comparison(program, block) else { return };
        let parent = current[value].map_or(Name::Value(value), Name::Refined);
        for (edge, cond) in [cond, cond.negate()].into_iter().enumerate() {
            let i = self.nodes.len();
            self.nodes.push(Node { value, parent, cond, width, constant, children: Vec::new() });
            match parent {
                Name::Value(value) => self.of_value[value].push(i),
                Name::Refined(above) => self.nodes[above].children.push(i),
            }
            self.on_edge.insert((block, edge), i);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn node(&self, i: usize) -> &Node {
        &self.nodes[i]
    }

    /// The refinements on edges: the block that the edge leaves, the number of the edge there, and the refinement.
    pub(super) fn on_edges(&self) -> impl Iterator<Item = (Block, usize, usize)> {
        self.on_edge.iter().map(|(&(block, edge), &i)| (block, edge, i))
    }

    /// The refinements of `value` itself.
    pub(super) fn of_value(&self, value: Value) -> &[usize] {
        &self.of_value[value]
    }

    /// The name that an instruction of `block`, or its terminator's own operand, uses `value` by.
    pub(super) fn name(&self, block: Block, value: Value) -> Name {
        self.in_block.get(&(block, value)).map_or(Name::Value(value), |&i| Name::Refined(i))
    }

    /// The name by which an edge hands `value` over.
    pub(super) fn name_on_edge(&self, block: Block, edge: usize, value: Value) -> Name {
        match self.on_edge.get(&(block, edge)) {
            Some(&i) if self.nodes[i].value == value => Name::Refined(i),
            _ => self.name(block, value),
        }
    }
}
