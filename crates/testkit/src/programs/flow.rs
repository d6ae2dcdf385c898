//! Statements that branch: checks with a way out, two arms that meet again, chains of comparisons, counted loops.

use runnel_ir::{BinaryOp, Block, Cond, Target, Terminator, Value, Width};

use super::Generator;
use super::scope::{Origin, Pointer};

/// A condition on two values.
#[derive(Clone, Copy)]
pub(super) struct Test {
    pub(super) cond: Cond,
    pub(super) width: Width,
    pub(super) lhs: Value,
    pub(super) rhs: Value,
}

impl Test {
    pub(super) fn negated(self) -> Test {
        Test { cond: self.cond.negate(), ..self }
    }
}

/// Values that an arm hands to where the arms meet.
struct Handed {
    scalars: Vec<Value>,
    pointer: Option<Pointer>,
}

impl Generator<'_> {
    fn branch(&mut self, test: Test, then: Target, other: Target) {
        let Test { cond, width, lhs, rhs } = test;
        self.at().branch(cond, width, lhs, rhs, then, other);
    }

    fn new_block(&mut self) -> Block {
        self.at().create_block()
    }

    /// Writes a region one deeper, from `block` on. Gives the number of paths through it.
    fn region(&mut self, block: Block, max_paths: f64, write: impl FnOnce(&mut Self)) -> f64 {
        let outer =
            (std::mem::replace(&mut self.paths, 1.0), std::mem::replace(&mut self.max_paths, max_paths));
        self.block = block;
        self.scope.depth += 1;
        write(self);
        let paths = self.paths;
        (self.paths, self.max_paths) = outer;
        paths
    }

    /// How often paths may still fork in the region being written.
    pub(super) fn paths_left(&self) -> f64 {
        self.max_paths / self.paths
    }

    pub(super) fn may_nest(&self) -> bool {
        self.scope.depth < self.config.depth
    }

    /// A few statements, as many as the budget has.
    fn some_statements(&mut self) {
        for _ in 0..self.below(5).min(self.budget) {
            if self.budget > 0 {
                self.statement();
            }
        }
    }

    /// Goes on only where `bad` does not hold, after `learn` noted what is known there. Where it holds, either the
    /// program ends or, in `meets` of 100 cases where there may be an arm more, both ways meet again.
    pub(super) fn unless(&mut self, bad: Test, negatable: bool, meets: u32, learn: impl Fn(&mut Self)) {
        let negated = negatable && self.chance(50);
        if self.may_nest() && self.paths_left() >= 2.0 && self.chance(meets) {
            let test = if negated { bad.negated() } else { bad };
            self.two_arms(test, |g, first| {
                if first == negated {
                    learn(g);
                }
            });
            return;
        }
        let (good, out) = (self.new_block(), self.new_block());
        if negated {
            self.branch(bad.negated(), Target::to(good), Target::to(out));
        } else {
            self.branch(bad, Target::to(out), Target::to(good));
        }
        self.block = out;
        if self.chance(80) {
            self.give_up();
        } else {
            self.finish();
        }
        self.block = good;
        learn(self);
    }

    /// Two arms that meet again; `prepare` is told whether it is the first that it prepares.
    fn two_arms(&mut self, test: Test, prepare: impl Fn(&mut Self, bool)) {
        let (then, other, meet) = (self.new_block(), self.new_block(), self.new_block());
        self.branch(test, Target::to(then), Target::to(other));
        let outer = self.scope.clone();
        let outer_kills = std::mem::take(&mut self.kills);
        let share = self.paths_left() / 2.0;
        let count = self.below(3);
        let with_pointer = self.chance(25);
        let mut paths = 0.0;
        let mut handed = Vec::new();
        for block in [then, other] {
            self.scope = outer.clone();
            paths += self.region(block, share, |g| {
                prepare(g, block == then);
                g.some_statements();
            });
            // The second arm may leave for good: the first still gets to where they would have met.
            if block == other && self.chance(10) {
                self.finish();
            } else {
                let scalars = (0..count).map(|_| self.scalar()).collect();
                let pointer = if with_pointer { self.pointer(|p| p.span() >= 4) } else { None };
                handed.push((self.block, Handed { scalars, pointer }));
            }
        }
        self.paths *= paths;
        self.scope = outer;
        self.scope.apply(&self.kills);
        self.kills.merge(outer_kills);
        self.meet(meet, handed);
    }

    /// Lets arms meet at `block`, where what each of them hands over arrives as parameters.
    fn meet(&mut self, block: Block, handed: Vec<(Block, Handed)>) {
        let count = handed.iter().map(|(_, h)| h.scalars.len()).min().unwrap_or(0);
        let params: Vec<Value> = (0..count).map(|_| self.program.append_param(block)).collect();
        self.scope.scalars.extend(params);
        let pointers: Vec<Pointer> = handed.iter().filter_map(|(_, h)| h.pointer.clone()).collect();
        let low = pointers.iter().map(|p| p.low).max().unwrap_or(0);
        let high = pointers.iter().map(|p| p.high).min().unwrap_or(0);
        let merges = pointers.len() == handed.len() && high - low >= 4;
        if merges {
            let value = self.program.append_param(block);
            self.scope.pointers.push(Pointer {
                value,
                low,
                high,
                origins: pointers.iter().flat_map(|p| p.origins.clone()).collect(),
                writable: pointers.iter().all(|p| p.writable),
                steerable: pointers.iter().all(|p| p.steerable),
            });
        }
        for (from, arm) in handed {
            let pointer = arm.pointer.filter(|_| merges).map(|p| p.value);
            self.block = from;
            self.at().jump(Target::with(block, arm.scalars.into_iter().take(count).chain(pointer)));
        }
        self.block = block;
    }

    /// If something holds, else something else.
    pub(super) fn conditional(&mut self) {
        let test = self.test();
        self.two_arms(test, |_, _| {});
    }

    fn test(&mut self) -> Test {
        let cond = self.pick(Cond::ALL);
        let width = self.pick(&[Width::W32, Width::W64]);
        // Small numbers are as often equal as not.
        let (lhs, rhs) = if self.chance(70) {
            let constant = u64::from(self.below(4));
            (self.masked(3), self.at().iconst(constant))
        } else {
            (self.scalar(), self.scalar())
        };
        Test { cond, width, lhs, rhs }
    }

    /// Compares a number with one constant after another, as a switch does.
    pub(super) fn switch(&mut self) {
        let number = self.masked(7);
        let meet = self.new_block();
        let mut handed = Vec::new();
        for case in 0..2 + u64::from(self.below(2)) {
            let (arm, next) = (self.new_block(), self.new_block());
            let rhs = self.at().iconst(case);
            let test = Test { cond: Cond::Eq, width: Width::W64, lhs: number, rhs };
            self.branch(test, Target::to(arm), Target::to(next));
            handed.push((arm, self.case(arm)));
            self.block = next;
        }
        let last = self.block;
        handed.push((last, self.case(last)));
        self.paths *= handed.len() as f64;
        self.meet(meet, handed);
    }

    /// One arm of a switch: hands over something computed there.
    fn case(&mut self, block: Block) -> Handed {
        let outer = self.scope.clone();
        self.block = block;
        if self.chance(60) {
            self.arithmetic();
        }
        let scalars = vec![self.scalar()];
        self.scope = outer;
        Handed { scalars, pointer: None }
    }

    /// A loop with a counter.
    pub(super) fn counted_loop(&mut self) {
        let most: u32 = self.pick(if self.config.kernel_acceptable { &[1, 3][..] } else { &[1, 3, 7] });
        let fixed = self.chance(70);
        let bound = if fixed { self.at().iconst(u64::from(most)) } else { self.masked(u64::from(most)) };
        let tests_first = self.chance(60);
        let (head, exit) = (self.new_block(), self.new_block());
        let zero = self.at().iconst(0);
        let first: Vec<Value> = (0..self.below(3)).map(|_| self.scalar()).collect();
        self.at().jump(Target::with(head, std::iter::once(zero).chain(first.iter().copied())));
        let counter = self.program.append_param(head);
        let carried: Vec<Value> = first.iter().map(|_| self.program.append_param(head)).collect();
        let mut outer = self.scope.clone();
        let outer_kills = std::mem::take(&mut self.kills);
        self.enter_loop(counter, &carried);

        let body = if tests_first {
            let body = self.new_block();
            self.block = head;
            let test = Test { cond: Cond::Ult, width: Width::W64, lhs: counter, rhs: bound };
            self.branch(test, Target::to(body), Target::to(exit));
            body
        } else {
            head
        };
        let ways_out = if fixed { 1.0 } else { f64::from(most + 1) };
        let times = f64::from(most);
        let share = (self.paths_left() / ways_out).powf(1.0 / times);
        let paths = self.region(body, share, Self::some_statements);
        self.paths *= paths.powf(times) * ways_out;

        let next = self.at().binary_imm(BinaryOp::Add, Width::W64, counter, 1);
        let again: Vec<Value> = carried.iter().map(|_| self.scalar()).collect();
        let again = Target::with(head, std::iter::once(next).chain(again));
        if tests_first {
            self.at().jump(again);
        } else {
            let test = Test { cond: Cond::Ult, width: Width::W64, lhs: next, rhs: bound };
            self.branch(test, again, Target::to(exit));
        }

        outer.scalars.push(counter);
        outer.scalars.extend(carried);
        self.scope = outer;
        self.scope.apply(&self.kills);
        self.kills.merge(outer_kills);
        self.block = exit;
    }

    /// What is in scope in a loop, in every turn of it: no pointer to a value of a table, because a turn may end the
    /// entry, and the packet stays where it is.
    fn enter_loop(&mut self, counter: Value, carried: &[Value]) {
        self.scope.in_loop = true;
        self.scope.pointers.retain(|p| !p.origins.iter().any(|o| matches!(o, Origin::Entry(_))));
        self.scope.scalars.push(counter);
        self.scope.scalars.extend(carried);
    }

    /// A block that nothing goes to.
    pub(super) fn unreachable_block(&mut self) {
        let (here, lost) = (self.block, self.new_block());
        self.block = lost;
        self.arithmetic();
        let value = self.scope.scalars.pop().unwrap_or_else(|| self.constant());
        self.at().terminate(Terminator::Return(value));
        self.block = here;
    }
}
