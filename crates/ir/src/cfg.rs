//! The shape of the control flow: predecessors, an order in which to visit blocks, dominators.
//!
//! All of it is computed afresh from a program and holds only until the program's edges change.

use cranelift_entity::SecondaryMap;
use petgraph::algo::dominators;
use petgraph::graphmap::DiGraphMap;

use crate::{Block, EntityRef, Program};

/// Edges and visiting order of the blocks that can be reached from the entry.
pub struct Cfg {
    preds: SecondaryMap<Block, Vec<Block>>,
    order: Vec<Block>,
    position: SecondaryMap<Block, Option<u32>>,
}

impl Cfg {
    /// Computes the shape of `program`.
    pub fn new(program: &Program) -> Cfg {
        let mut preds: SecondaryMap<Block, Vec<Block>> = SecondaryMap::new();
        let mut order = Vec::new();
        let mut seen: SecondaryMap<Block, bool> = SecondaryMap::new();
        // Depth first with an explicit stack: programs may be deep.
        let mut stack = vec![(program.entry(), 0usize)];
        seen[program.entry()] = true;
        while let Some((block, next)) = stack.pop() {
            match program.blocks[block].terminator.targets().nth(next) {
                Some(target) => {
                    stack.push((block, next + 1));
                    preds[target.block].push(block);
                    if !seen[target.block] {
                        seen[target.block] = true;
                        stack.push((target.block, 0));
                    }
                }
                None => order.push(block),
            }
        }
        order.reverse();
        let mut position = SecondaryMap::new();
        for (i, &block) in order.iter().enumerate() {
            position[block] = Some(i as u32);
        }
        Cfg { preds, order, position }
    }

    /// The blocks that jump to `block`, one entry an edge.
    pub fn preds(&self, block: Block) -> &[Block] {
        &self.preds[block]
    }

    /// The reachable blocks in reverse post-order: outside of loops, each after all that jump to it.
    pub fn order(&self) -> &[Block] {
        &self.order
    }

    /// Whether `block` can be reached.
    pub fn is_reachable(&self, block: Block) -> bool {
        self.position[block].is_some()
    }

    /// Position of a reachable block in [`Cfg::order`].
    pub fn position(&self, block: Block) -> Option<usize> {
        self.position[block].map(|p| p as usize)
    }

    /// Whether the edge goes back to a block that comes no later in the order: every loop has one.
    pub fn is_back_edge(&self, from: Block, to: Block) -> bool {
        self.position[to] <= self.position[from]
    }
}

/// Which blocks every path from the entry to a block passes.
pub struct Dominators {
    parent: SecondaryMap<Block, Option<Block>>,
    enter: SecondaryMap<Block, u32>,
    leave: SecondaryMap<Block, u32>,
    preorder: Vec<Block>,
}

impl Dominators {
    /// Computes the dominators of the reachable blocks (Cooper, Harvey and Kennedy, as petgraph implements it).
    pub fn new(program: &Program, cfg: &Cfg) -> Dominators {
        let mut graph: DiGraphMap<u32, ()> = DiGraphMap::new();
        for &block in cfg.order() {
            graph.add_node(block.index() as u32);
            for target in program.blocks[block].terminator.targets() {
                graph.add_edge(block.index() as u32, target.block.index() as u32, ());
            }
        }
        let found = dominators::simple_fast(&graph, program.entry().index() as u32);
        let mut parent = SecondaryMap::new();
        let mut children: SecondaryMap<Block, Vec<Block>> = SecondaryMap::new();
        for &block in cfg.order() {
            if let Some(idom) = found.immediate_dominator(block.index() as u32) {
                let idom = Block::new(idom as usize);
                parent[block] = Some(idom);
                children[idom].push(block);
            }
        }
        let mut tree = Dominators {
            parent,
            enter: SecondaryMap::new(),
            leave: SecondaryMap::new(),
            preorder: Vec::new(),
        };
        let mut clock = 0;
        let mut stack = vec![(program.entry(), 0usize)];
        while let Some((block, next)) = stack.pop() {
            if next == 0 {
                clock += 1;
                tree.enter[block] = clock;
                tree.preorder.push(block);
            }
            match children[block].get(next) {
                Some(&child) => {
                    stack.push((block, next + 1));
                    stack.push((child, 0));
                }
                None => {
                    clock += 1;
                    tree.leave[block] = clock;
                }
            }
        }
        tree
    }

    /// The nearest other block that every path to `block` passes; none for the entry and unreachable blocks.
    pub fn immediate(&self, block: Block) -> Option<Block> {
        self.parent[block]
    }

    /// Whether every path from the entry to `b` passes `a`. A block dominates itself.
    pub fn dominates(&self, a: Block, b: Block) -> bool {
        self.enter[a] != 0 && self.enter[a] <= self.enter[b] && self.leave[b] <= self.leave[a]
    }

    /// The reachable blocks, each after the ones that dominate it, a whole subtree together.
    pub fn preorder(&self) -> &[Block] {
        &self.preorder
    }
}
