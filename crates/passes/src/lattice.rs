//! What is known of a value: the lattice of constant propagation.
//!
//! From below: [`Known::Unreached`] (never computed); one of a few constants, or not zero; [`Known::Varies`]. A
//! set of one is a constant. Sets have at most [`MAX_SET`] members, so chains are short and evaluation over two
//! sets is cheap. Everything here is monotone: knowing less of the operands never yields knowing more.

use runnel_ir::{BinaryOp, Cond, UnaryOp, Width};
use smallvec::{SmallVec, smallvec};

/// The most constants that a value may be one of before it counts as varying.
pub(crate) const MAX_SET: usize = 16;

/// Constants in ascending order, each once.
pub(crate) type Set = SmallVec<[u64; 2]>;

/// What is known of a value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// It is never computed.
    #[default]
    Unreached,
    /// It is one of these.
    OneOf(Set),
    /// It is not zero.
    NonZero,
    /// Nothing.
    Varies,
}

/// The ways that a branch may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decision {
    /// The condition may hold.
    pub(crate) may_hold: bool,
    /// The condition may fail.
    pub(crate) may_fail: bool,
}

impl Decision {
    pub(crate) const OPEN: Decision = Decision { may_hold: true, may_fail: true };

    /// The outcome, if there is only one.
    pub(crate) fn outcome(self) -> Option<bool> {
        (self.may_hold != self.may_fail).then_some(self.may_hold)
    }
}

impl Known {
    pub(crate) fn constant(value: u64) -> Known {
        Known::OneOf(smallvec![value])
    }

    /// One of the given constants; less is known if they are too many.
    pub(crate) fn from_values(values: impl IntoIterator<Item = u64>) -> Known {
        let mut set = Set::new();
        let mut values = values.into_iter();
        for value in values.by_ref() {
            if let Err(at) = set.binary_search(&value) {
                set.insert(at, value);
            }
            if set.len() > MAX_SET {
                let zero = set.contains(&0) || values.any(|v| v == 0);
                return if zero { Known::Varies } else { Known::NonZero };
            }
        }
        if set.is_empty() { Known::Unreached } else { Known::OneOf(set) }
    }

    /// The constant that it is.
    pub(crate) fn as_constant(&self) -> Option<u64> {
        match self {
            Known::OneOf(set) if set.len() == 1 => Some(set[0]),
            _ => None,
        }
    }

    fn excludes_zero(&self) -> bool {
        match self {
            Known::OneOf(set) => !set.contains(&0),
            Known::NonZero => true,
            Known::Unreached | Known::Varies => false,
        }
    }

    /// What is known of a value that may come from either.
    pub(crate) fn join(&self, other: &Known) -> Known {
        match (self, other) {
            (Known::Unreached, x) | (x, Known::Unreached) => x.clone(),
            (Known::OneOf(a), Known::OneOf(b)) => Known::from_values(a.iter().chain(b).copied()),
            (a, b) if a.excludes_zero() && b.excludes_zero() => Known::NonZero,
            _ => Known::Varies,
        }
    }

    pub(crate) fn unary(op: UnaryOp, arg: &Known) -> Known {
        match arg {
            Known::Unreached => Known::Unreached,
            Known::OneOf(set) => Known::from_values(set.iter().map(|&v| op.eval(v))),
            _ => Known::Varies,
        }
    }

    pub(crate) fn binary(op: BinaryOp, width: Width, lhs: &Known, rhs: &Known) -> Known {
        match (lhs, rhs) {
            (Known::Unreached, _) | (_, Known::Unreached) => Known::Unreached,
            (Known::OneOf(a), Known::OneOf(b)) => {
                Known::from_values(a.iter().flat_map(|&x| b.iter().map(move |&y| op.eval(width, x, y))))
            }
            (a, b)
                if op == BinaryOp::Or && width == Width::W64 && (a.excludes_zero() || b.excludes_zero()) =>
            {
                Known::NonZero
            }
            _ => Known::Varies,
        }
    }

    /// Which ways a branch on the two may go. Neither, as long as an operand is not computed.
    pub(crate) fn decide(cond: Cond, width: Width, lhs: &Known, rhs: &Known) -> Decision {
        match (lhs, rhs) {
            (Known::Unreached, _) | (_, Known::Unreached) => Decision { may_hold: false, may_fail: false },
            (Known::OneOf(a), Known::OneOf(b)) => {
                let mut decision = Decision { may_hold: false, may_fail: false };
                for (&x, &y) in a.iter().flat_map(|x| b.iter().map(move |y| (x, y))) {
                    let holds = cond.eval(width, x, y);
                    decision.may_hold |= holds;
                    decision.may_fail |= !holds;
                }
                decision
            }
            (Known::NonZero, zero) if width == Width::W64 && zero.as_constant() == Some(0) => match cond {
                Cond::Ne | Cond::Ugt => Decision { may_hold: true, may_fail: false },
                Cond::Eq | Cond::Ule => Decision { may_hold: false, may_fail: true },
                _ => Decision::OPEN,
            },
            (zero, Known::NonZero) if zero.as_constant() == Some(0) => {
                Known::decide(cond.swap(), width, rhs, lhs)
            }
            _ => Decision::OPEN,
        }
    }

    /// What is known of a value once `value cond constant` is known to hold. `narrow` says that the value
    /// has no bits beyond the comparison's width.
    pub(crate) fn refine(&self, cond: Cond, width: Width, constant: u64, narrow: bool) -> Known {
        if let Known::OneOf(set) = self {
            return Known::from_values(set.iter().copied().filter(|&v| cond.eval(width, v, constant)));
        }
        if *self == Known::Unreached {
            return Known::Unreached;
        }
        let whole = width == Width::W64 || narrow;
        if cond == Cond::Eq && whole {
            let constant = width.truncate(constant);
            return if *self == Known::NonZero && constant == 0 {
                Known::Unreached
            } else {
                Known::constant(constant)
            };
        }
        // Whatever the width, zero itself is whole.
        if cond.eval(width, 0, constant) { self.clone() } else { Known::NonZero }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Known> {
        let mut samples = vec![Known::Unreached, Known::NonZero, Known::Varies];
        for set in
            [&[0u64][..], &[1], &[5], &[0, 1], &[1, 5], &[0, 1, 5], &[1 << 32], &[0, 1 << 32, u64::MAX]]
        {
            samples.push(Known::from_values(set.iter().copied()));
        }
        samples
    }

    /// Whether `a` lies below `b`: whatever `b` allows, `a` allows no more.
    fn below(a: &Known, b: &Known) -> bool {
        a.join(b) == *b
    }

    #[test]
    fn joining_goes_up_and_the_order_of_operands_does_not_matter() {
        for a in &samples() {
            for b in &samples() {
                let joined = a.join(b);
                assert_eq!(joined, b.join(a));
                assert!(below(a, &joined) && below(b, &joined), "{a:?} {b:?} {joined:?}");
            }
        }
    }

    #[test]
    fn knowing_less_of_the_operands_never_yields_knowing_more() {
        let samples = samples();
        let pairs: Vec<(&Known, &Known)> = samples
            .iter()
            .flat_map(|a| samples.iter().map(move |b| (a, b)))
            .filter(|(a, b)| below(a, b))
            .collect();
        for &(low, high) in &pairs {
            for other in &samples {
                for &op in BinaryOp::ALL {
                    for width in [Width::W32, Width::W64] {
                        let (l, h) =
                            (Known::binary(op, width, low, other), Known::binary(op, width, high, other));
                        assert!(below(&l, &h), "{op}.{width} {low:?} {high:?} {other:?}");
                    }
                }
                for &cond in Cond::ALL {
                    for width in [Width::W32, Width::W64] {
                        let l = Known::decide(cond, width, low, other);
                        let h = Known::decide(cond, width, high, other);
                        assert!(h.may_hold || !l.may_hold, "{cond} {low:?} {high:?} {other:?}");
                        assert!(h.may_fail || !l.may_fail, "{cond} {low:?} {high:?} {other:?}");
                    }
                }
            }
            for &cond in Cond::ALL {
                for (width, c) in [(Width::W32, 0), (Width::W32, 5), (Width::W64, 0), (Width::W64, 5)] {
                    let (l, h) = (low.refine(cond, width, c, false), high.refine(cond, width, c, false));
                    assert!(below(&l, &h), "{cond}.{width} {c} {low:?} {high:?}");
                }
            }
        }
    }

    #[test]
    fn refining_keeps_every_value_for_which_the_condition_holds() {
        let values = [0, 1, 4, 5, 6, 1 << 32, (1 << 32) + 5, u64::MAX];
        for known in samples() {
            for &value in values.iter().filter(|&&v| below(&Known::constant(v), &known)) {
                for &cond in Cond::ALL {
                    for width in [Width::W32, Width::W64] {
                        for c in [0, 1, 5, u64::MAX] {
                            let refined = known.refine(cond, width, c, false);
                            assert!(
                                !cond.eval(width, value, c) || below(&Known::constant(value), &refined),
                                "{value} {cond}.{width} {c}: {known:?} became {refined:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn too_many_constants_still_are_not_zero() {
        assert_eq!(Known::from_values(1..=17), Known::NonZero);
        assert_eq!(Known::from_values(0..=16), Known::Varies);
        assert_eq!(Known::from_values((1..=17).rev().chain([0])), Known::Varies);
    }
}
