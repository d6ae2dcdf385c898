//! Replaces single instructions of a program by sequences, and corrects every distance that reaches over them.
//!
//! Distances are counted in instruction slots: jumps, calls of other functions of the program and references to
//! them. A jump to an instruction that is replaced goes to the first of the sequence. Jumps inside a sequence are
//! the sequence's own and stay as they are; they may not leave it.
//!
//! This works on bytecode as it is, so that the copies that a checker instruments differ from what they stand for in
//! the replaced instructions and in nothing else. It deliberately does not lengthen jumps: a distance that no
//! longer fits its field is an error.

use thiserror::Error;

use crate::insn::{self, Insn};

/// Why a program was not rewritten.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RewriteError {
    /// A jump or call leaves the program or lands inside of an instruction of two slots.
    #[error("instruction {pc} leads to no instruction of the program")]
    Target {
        /// Slot of the jump, before rewriting.
        pc: usize,
    },
    /// The program ends in the middle of an instruction of two slots.
    #[error("the program ends in the middle of instruction {pc}")]
    Truncated {
        /// Its first slot.
        pc: usize,
    },
    /// A distance does not fit its field any more.
    #[error("instruction {pc} would have to reach over {distance} slots, which do not fit into it")]
    TooFar {
        /// Slot of the jump, before rewriting.
        pc: usize,
        /// The distance after rewriting.
        distance: i64,
    },
}

/// The field that holds a distance in slots, counted from the slot after the instruction's first.
#[derive(Clone, Copy)]
enum Distance {
    Off(i16),
    Imm(i32),
}

impl Distance {
    /// The distance that `insn` holds, if it holds one.
    fn of(insn: Insn) -> Option<Distance> {
        let (off, imm) = (Some(Distance::Off(insn.off)), Some(Distance::Imm(insn.imm)));
        match (insn.class(), insn.op()) {
            (insn::JMP, insn::CALL) => imm.filter(|_| insn.src() == insn::PSEUDO_CALL),
            (insn::JMP | insn::JMP32, insn::CALL | insn::EXIT) => None,
            (insn::JMP32, insn::JA) => imm,
            (insn::JMP | insn::JMP32, _) => off,
            _ => imm.filter(|_| insn.is_ld_imm64() && insn.src() == insn::PSEUDO_FUNC),
        }
    }

    fn target(self, pc: usize) -> Option<usize> {
        let slots = match self {
            Distance::Off(off) => i64::from(off),
            Distance::Imm(imm) => i64::from(imm),
        };
        usize::try_from(pc as i64 + 1 + slots).ok()
    }

    /// Writes another distance into `insn`; false if it does not fit.
    fn put(self, insn: &mut Insn, distance: i64) -> bool {
        match self {
            Distance::Off(_) => i16::try_from(distance).map(|off| insn.off = off).is_ok(),
            Distance::Imm(_) => i32::try_from(distance).map(|imm| insn.imm = imm).is_ok(),
        }
    }
}

/// Asks `replace` for each instruction, with its slot, what to put in its place; `None` leaves it.
///
/// # Errors
/// [`RewriteError`], for programs that are malformed or grow too large.
pub fn rewrite(
    insns: &[Insn],
    mut replace: impl FnMut(usize, Insn) -> Option<Vec<Insn>>,
) -> Result<Vec<Insn>, RewriteError> {
    let mut out = Vec::with_capacity(insns.len());
    // The new slot of each instruction, and the instructions that were kept.
    let mut moved = vec![None; insns.len()];
    let mut kept = Vec::new();
    let mut pc = 0;
    while pc < insns.len() {
        let insn = insns[pc];
        let next = pc + if insn.is_ld_imm64() { 2 } else { 1 };
        let whole = insns.get(pc..next).ok_or(RewriteError::Truncated { pc })?;
        moved[pc] = Some(out.len());
        match replace(pc, insn) {
            Some(sequence) => out.extend(sequence),
            None => {
                kept.push(pc);
                out.extend(whole);
            }
        }
        pc = next;
    }
    let place = |pc: usize| moved.get(pc).copied().flatten();
    for pc in kept {
        let Some(distance) = Distance::of(insns[pc]) else { continue };
        let (Some(from), Some(to)) = (place(pc), distance.target(pc).and_then(place)) else {
            return Err(RewriteError::Target { pc });
        };
        let slots = to as i64 - from as i64 - 1;
        if !distance.put(&mut out[from], slots) {
            return Err(RewriteError::TooFar { pc, distance: slots });
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An instruction of a random program. Targets are indices of instructions.
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Plain,
        Wide,
        Branch(usize),
        Jump(usize),
        LongJump(usize),
        Call(usize),
        Function(usize),
        Exit,
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let target = 0..64usize;
        prop_oneof![
            4 => Just(Kind::Plain),
            2 => Just(Kind::Wide),
            3 => target.clone().prop_map(Kind::Branch),
            1 => target.clone().prop_map(Kind::Jump),
            1 => target.clone().prop_map(Kind::LongJump),
            1 => target.clone().prop_map(Kind::Call),
            1 => target.prop_map(Kind::Function),
            1 => Just(Kind::Exit),
        ]
    }

    /// Encodes a program; each instruction carries its number in a field that it does not use otherwise.
    fn encode(kinds: &[Kind]) -> Vec<Insn> {
        let slots = |k: &Kind| if matches!(k, Kind::Wide | Kind::Function(_)) { 2 } else { 1 };
        let starts: Vec<usize> =
            kinds.iter().scan(0, |next, k| Some(std::mem::replace(next, *next + slots(k)))).collect();
        let mut out = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            let distance = |to: usize| starts[to % kinds.len()] as i64 - starts[number] as i64 - 1;
            let id = number as i32;
            let wide = insn::LD | insn::IMM | insn::DW;
            match *kind {
                Kind::Plain => out.push(Insn::new(insn::ALU64 | insn::MOV, 1, 0, 0, id)),
                Kind::Wide => out.extend([Insn::new(wide, 1, 0, 0, 0), Insn::new(0, 0, 0, 0, id)]),
                Kind::Branch(to) => {
                    out.push(Insn::new(insn::JMP | insn::JEQ, 1, 0, distance(to) as i16, id));
                }
                Kind::Jump(to) => out.push(Insn::new(insn::JMP | insn::JA, 0, 0, distance(to) as i16, id)),
                Kind::LongJump(to) => {
                    out.push(Insn::new(insn::JMP32 | insn::JA, 0, 0, id as i16, distance(to) as i32));
                }
                Kind::Call(to) => {
                    let call = insn::JMP | insn::CALL;
                    out.push(Insn::new(call, 0, insn::PSEUDO_CALL, id as i16, distance(to) as i32));
                }
                Kind::Function(to) => out.extend([
                    Insn::new(wide, 1, insn::PSEUDO_FUNC, 0, distance(to) as i32),
                    Insn::new(0, 0, 0, 0, id),
                ]),
                Kind::Exit => out.push(Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, id)),
            }
        }
        out
    }

    const NOTHING: Insn = Insn::new(insn::ALU64 | insn::MOV, 2, 0, 0, 0);

    /// The number of the instruction at `pc`; none for what was inserted.
    fn number(insns: &[Insn], pc: usize) -> Option<i32> {
        let insn = insns[pc];
        match (insn.class(), insn.op()) {
            (insn::ALU64, _) => (insn.dst() == 1).then_some(insn.imm),
            (insn::LD, _) => Some(insns[pc + 1].imm),
            (insn::JMP, insn::JA) => (insn.dst() == 0).then_some(insn.imm),
            (insn::JMP, insn::CALL) | (insn::JMP32, insn::JA) => Some(insn.off.into()),
            _ => Some(insn.imm),
        }
    }

    /// Runs a program: conditions are read off a tape. Gives the numbers of the instructions as they are executed,
    /// and for references to functions the number of what they refer to.
    fn run(insns: &[Insn], tape: &[bool]) -> Vec<i32> {
        let (mut trace, mut calls, mut pc, mut read) = (Vec::new(), Vec::new(), 0, 0);
        let mut first_number = 0;
        while trace.len() < 200 && pc < insns.len() {
            let insn = insns[pc];
            let number_here = number(insns, pc);
            trace.extend(number_here);
            let next = pc + if insn.is_ld_imm64() { 2 } else { 1 };
            let to = Distance::of(insn).and_then(|d| d.target(pc)).unwrap_or(0);
            pc = match (insn.class(), insn.op()) {
                (insn::JMP, insn::JEQ) => {
                    read += 1;
                    if tape[read % tape.len()] { to } else { next }
                }
                (insn::JMP | insn::JMP32, insn::JA) => to,
                (insn::JMP, insn::CALL) if calls.len() < 8 => {
                    calls.push(next);
                    to
                }
                (insn::JMP, insn::EXIT) => match calls.pop() {
                    Some(back) => back,
                    None => break,
                },
                (insn::LD, _) if insn.src() == insn::PSEUDO_FUNC => {
                    let named = (to..insns.len()).find_map(|pc| number(insns, pc));
                    trace.extend(named);
                    next
                }
                _ => next,
            };
            // An endless loop of jumps would not lengthen the trace if nothing in it had a number.
            first_number += 1;
            if first_number > 10_000 {
                break;
            }
        }
        trace
    }

    proptest! {
        #[test]
        fn what_is_executed_stays_the_same(
            kinds in prop::collection::vec(kind(), 1..40),
            chosen in prop::collection::vec((any::<bool>(), 0..4usize, any::<bool>()), 40),
            tape in prop::collection::vec(any::<bool>(), 16),
        ) {
            let program = encode(&kinds);
            let mut at = 0;
            let rewritten = rewrite(&program, |pc, insn| {
                let (is_chosen, before, jumps) = chosen[at];
                let replaced = is_chosen && matches!(kinds[at], Kind::Plain | Kind::Wide);
                at += 1;
                replaced.then(|| {
                    let width = if insn.is_ld_imm64() { 2 } else { 1 };
                    let mut sequence = vec![NOTHING; before];
                    sequence.extend(&program[pc..pc + width]);
                    if jumps {
                        // A jump of the sequence's own, to its end.
                        sequence.extend([Insn::new(insn::JMP | insn::JA, 5, 0, 1, 0), NOTHING]);
                    }
                    sequence
                })
            }).unwrap();
            prop_assert_eq!(run(&program, &tape), run(&rewritten, &tape));
        }

        #[test]
        fn replacing_nothing_changes_nothing(kinds in prop::collection::vec(kind(), 1..40)) {
            let program = encode(&kinds);
            prop_assert_eq!(rewrite(&program, |_, _| None).unwrap(), program);
        }

        #[test]
        fn no_bytes_are_too_odd(words in prop::collection::vec(any::<(u8, u8, i16, i32)>(), 0..64)) {
            let program: Vec<Insn> =
                words.into_iter().map(|(code, regs, off, imm)| Insn { code, regs, off, imm }).collect();
            let _ = rewrite(&program, |pc, _| (pc % 3 == 0).then(|| vec![NOTHING; 2]));
        }
    }

    #[test]
    fn what_no_longer_fits_is_an_error() {
        let far = 20_000;
        let mut program = vec![Insn::new(insn::JMP | insn::JA, 0, 0, far, 0)];
        program.resize(far as usize + 1, NOTHING);
        program.push(Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0));
        let doubled = rewrite(&program, |_, insn| (insn == NOTHING).then(|| vec![NOTHING; 2]));
        assert_eq!(doubled, Err(RewriteError::TooFar { pc: 0, distance: 40_000 }));
        assert!(rewrite(&program, |pc, _| (pc == 7).then(|| vec![NOTHING; 9])).is_ok());
    }

    #[test]
    fn malformed_programs_are_refused() {
        let jump = |off| [Insn::new(insn::JMP | insn::JA, 0, 0, off, 0), NOTHING];
        assert_eq!(rewrite(&jump(5), |_, _| None), Err(RewriteError::Target { pc: 0 }));
        assert_eq!(rewrite(&jump(-9), |_, _| None), Err(RewriteError::Target { pc: 0 }));
        let wide = Insn::new(insn::LD | insn::IMM | insn::DW, 1, 0, 0, 0);
        assert_eq!(rewrite(&[wide], |_, _| None), Err(RewriteError::Truncated { pc: 0 }));
        let into = [Insn::new(insn::JMP | insn::JA, 0, 0, 1, 0), wide, Insn::default()];
        assert_eq!(rewrite(&into, |_, _| None), Err(RewriteError::Target { pc: 0 }));
    }
}
