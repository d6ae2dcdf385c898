//! What each value points into.
//!
//! An abstract interpretation over the whole program (Kildall's fixpoint in reverse post-order). The lattice, from
//! below: [`Provenance::Unreached`]; then null, other numbers, or a pointer into one object at an offset that is
//! exact, exact within a row, or anything; then [`Provenance::Unknown`], which may be a pointer into whatever
//! has [escaped](crate::Escapes). The laws of memory that it relies on are those that the plugin's own verifier
//! enforces: a pointer that was computed from a pointer into an object and is used for an access lies
//! in that object; only eight loaded bytes can be a pointer, and none lie in the packet or in data objects.
//!
//! What a context field holds only the plugin knows. Here each counts as a possible pointer into the packet, and
//! as a plain number where it is added to a pointer into something else.

use runnel_ir::cfg::Cfg;
use runnel_ir::{
    BinaryOp, Block, Data, InstData, Program, SecondaryMap, Size, Slot, Table, UnaryOp, Value, Width,
};

use crate::settle;

/// A region of memory that no pointer computed from a pointer into another one reaches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Object {
    /// The context that the program was invoked with.
    Context,
    /// The packet.
    Packet,
    /// A stack slot.
    Slot(Slot),
    /// A data object.
    Data(Data),
    /// The values of a table: some entry's value.
    Table(Table),
}

/// A distance in bytes from the start of an object (for a table: from the start of an entry's value).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Offset {
    /// Exactly this.
    Exact(i64),
    /// This, which is less than the data object's stride, plus some multiple of the stride.
    Row(i64),
    /// Anything. Offsets in the packet are never known: its start is nothing that the IR names.
    Any,
}

/// A pointer into an object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pointer {
    /// The object.
    pub object: Object,
    /// Where in it.
    pub offset: Offset,
    /// Whether the value may also be 0.
    pub nullable: bool,
}

/// What a value is as far as memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Provenance {
    /// Nothing: the value is never computed.
    #[default]
    Unreached,
    /// The constant 0.
    Null,
    /// A number that is no pointer.
    Scalar,
    /// A pointer into one object.
    Pointer(Pointer),
    /// A number or a pointer into anything that has escaped.
    Unknown,
}

impl Provenance {
    fn pointer(object: Object, offset: Offset, nullable: bool) -> Provenance {
        Provenance::Pointer(Pointer { object, offset, nullable })
    }

    /// The pointer that the value is, where that is known.
    pub fn as_pointer(self) -> Option<Pointer> {
        match self {
            Provenance::Pointer(p) => Some(p),
            _ => None,
        }
    }

    /// Whether the value is a pointer that cannot be 0.
    pub fn is_non_null(self) -> bool {
        matches!(self, Provenance::Pointer(p) if p.is_certain())
    }
}

impl Pointer {
    /// Whether it is certainly a pointer into the object, rather than perhaps 0 or a number.
    fn is_certain(self) -> bool {
        !self.nullable && self.object != Object::Packet
    }
}

/// The packet, and whatever else the context's fields hold.
const PACKET: Provenance =
    Provenance::Pointer(Pointer { object: Object::Packet, offset: Offset::Any, nullable: true });

/// How far [`residue`] looks through definitions.
const RESIDUE_DEPTH: u32 = 8;

/// The provenance of every value.
pub struct Provenances {
    of: SecondaryMap<Value, Provenance>,
    base: SecondaryMap<Value, Option<(Value, i64)>>,
}

impl Provenances {
    /// Computes the provenance of every value defined in a reachable block.
    pub fn new(program: &Program, cfg: &Cfg) -> Provenances {
        let mut this = Provenances { of: SecondaryMap::new(), base: SecondaryMap::new() };
        this.of[program.context()] = Provenance::pointer(Object::Context, Offset::Exact(0), false);
        settle(cfg, |block| this.visit(program, block));
        for &block in cfg.order() {
            this.find_bases(program, block);
        }
        this
    }

    /// What `value` points into.
    pub fn of(&self, value: Value) -> Provenance {
        self.of[value]
    }

    /// The value from which `value` is computed by adding constants, and their sum.
    pub fn base(&self, value: Value) -> (Value, i64) {
        self.base[value].unwrap_or((value, 0))
    }

    /// Computes a block's results and what its jumps hand over; says whether anything is new.
    fn visit(&mut self, program: &Program, block: Block) -> bool {
        let mut changed = false;
        let data = &program.blocks[block];
        for &inst in &data.insts {
            if let Some(result) = program.insts[inst].result {
                let found = self.result(program, &program.insts[inst].data);
                changed |= self.raise(program, result, found);
            }
        }
        for target in data.terminator.targets() {
            for (&param, &arg) in program.blocks[target.block].params.iter().zip(&target.args) {
                changed |= self.raise(program, param, self.of[arg]);
            }
        }
        changed
    }

    fn raise(&mut self, program: &Program, value: Value, found: Provenance) -> bool {
        let joined = join(program, self.of[value], found);
        let changed = joined != self.of[value];
        self.of[value] = joined;
        changed
    }

    fn result(&self, program: &Program, data: &InstData) -> Provenance {
        match *data {
            InstData::Const(0) => Provenance::Null,
            InstData::Const(_) | InstData::TableRef(_) => Provenance::Scalar,
            InstData::SlotAddr { slot, offset } => exact(Object::Slot(slot), offset),
            InstData::DataAddr { data, offset } => exact(Object::Data(data), offset),
            InstData::TableValue { table, offset } => exact(Object::Table(table), offset),
            InstData::Lookup { table, .. } => {
                Provenance::pointer(Object::Table(table), Offset::Exact(0), true)
            }
            InstData::CtxLoad { .. } => PACKET,
            InstData::Load { size, ptr, .. } => self.loaded(size, ptr),
            InstData::Binary { op, width, lhs, rhs } => self.binary(program, op, width, lhs, rhs),
            InstData::Unary { op, arg } => match (op, self.of[arg]) {
                (_, Provenance::Unreached) => Provenance::Unreached,
                // A pointer with its bytes exchanged can be turned back; of the others only a part is left.
                (UnaryOp::Bswap64, Provenance::Pointer(_) | Provenance::Unknown) => Provenance::Unknown,
                _ => Provenance::Scalar,
            },
            InstData::Call { .. } => Provenance::Unknown,
            InstData::Update { .. }
            | InstData::Delete { .. }
            | InstData::Store { .. }
            | InstData::AtomicAdd { .. } => Provenance::Scalar,
        }
    }

    fn loaded(&self, size: Size, ptr: Value) -> Provenance {
        match self.of[ptr] {
            Provenance::Unreached => Provenance::Unreached,
            _ if size != Size::B8 => Provenance::Scalar,
            Provenance::Pointer(Pointer { object: Object::Packet | Object::Data(_), .. }) => {
                Provenance::Scalar
            }
            _ => Provenance::Unknown,
        }
    }

    fn binary(&self, program: &Program, op: BinaryOp, width: Width, lhs: Value, rhs: Value) -> Provenance {
        let (a, b) = (self.of[lhs], self.of[rhs]);
        if a == Provenance::Unreached || b == Provenance::Unreached {
            return Provenance::Unreached;
        }
        if width == Width::W32 {
            return Provenance::Scalar;
        }
        match op {
            BinaryOp::Add => self.sum(program, (lhs, a), (rhs, b)),
            BinaryOp::Sub => self.difference(program, a, (rhs, b)),
            BinaryOp::And if [lhs, rhs].iter().any(|&v| is_narrow(program, v)) => Provenance::Scalar,
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
                let plain = |p| matches!(p, Provenance::Null | Provenance::Scalar) || p == PACKET;
                if plain(a) && plain(b) { Provenance::Scalar } else { Provenance::Unknown }
            }
            _ => Provenance::Scalar,
        }
    }

    fn sum(
        &self,
        program: &Program,
        (lhs, a): (Value, Provenance),
        (rhs, b): (Value, Provenance),
    ) -> Provenance {
        match (a, b) {
            (Provenance::Pointer(p), Provenance::Pointer(q)) if p.is_certain() && q.is_certain() => {
                Provenance::Unknown
            }
            // Only one of two operands is a pointer, so one that certainly is decides.
            (Provenance::Pointer(p), _) if p.is_certain() => moved(program, p, rhs, false),
            (_, Provenance::Pointer(q)) if q.is_certain() => moved(program, q, lhs, false),
            (PACKET, PACKET) => PACKET,
            (Provenance::Pointer(p), Provenance::Null | Provenance::Scalar) => moved(program, p, rhs, false),
            (Provenance::Null | Provenance::Scalar, Provenance::Pointer(q)) => moved(program, q, lhs, false),
            (Provenance::Null | Provenance::Scalar, Provenance::Null | Provenance::Scalar) => {
                Provenance::Scalar
            }
            _ => Provenance::Unknown,
        }
    }

    fn difference(&self, program: &Program, a: Provenance, (rhs, b): (Value, Provenance)) -> Provenance {
        match (a, b) {
            (Provenance::Pointer(p), Provenance::Pointer(q)) if p.object == q.object => Provenance::Scalar,
            (Provenance::Pointer(p), Provenance::Null | Provenance::Scalar) => moved(program, p, rhs, true),
            (Provenance::Pointer(p), PACKET) if p.is_certain() => moved(program, p, rhs, true),
            (Provenance::Null | Provenance::Scalar, Provenance::Null | Provenance::Scalar | PACKET) => {
                Provenance::Scalar
            }
            _ => Provenance::Unknown,
        }
    }

    /// A definition stands before its uses in reverse post-order, so one walk suffices.
    fn find_bases(&mut self, program: &Program, block: Block) {
        for &inst in &program.blocks[block].insts {
            let node = &program.insts[inst];
            let Some(result) = node.result else { continue };
            let InstData::Binary { op, width: Width::W64, lhs, rhs } = node.data else { continue };
            let (from, distance) = match (op, program.as_const(lhs), program.as_const(rhs)) {
                (BinaryOp::Add, _, Some(c)) => (lhs, c as i64),
                (BinaryOp::Add, Some(c), _) => (rhs, c as i64),
                (BinaryOp::Sub, _, Some(c)) => (lhs, (c as i64).wrapping_neg()),
                _ => continue,
            };
            let (base, before) = self.base(from);
            self.base[result] = Some((base, before.wrapping_add(distance)));
        }
    }
}

fn exact(object: Object, offset: u32) -> Provenance {
    Provenance::pointer(object, Offset::Exact(i64::from(offset)), false)
}

/// Whether a value is a constant so small that no pointer, cut to its bits, is left one.
fn is_narrow(program: &Program, value: Value) -> bool {
    program.as_const(value).is_some_and(|c| c <= u64::from(u32::MAX))
}

/// `pointer` after adding `distance` to it, or subtracting it.
fn moved(program: &Program, pointer: Pointer, distance: Value, backwards: bool) -> Provenance {
    let signed = |d: i64| if backwards { d.wrapping_neg() } else { d };
    let constant = program.as_const(distance).map(|c| signed(c as i64));
    let stride = stride(program, pointer.object);
    let offset = match (pointer.offset, constant) {
        (Offset::Exact(o), Some(c)) => Offset::Exact(o.wrapping_add(c)),
        (Offset::Exact(o) | Offset::Row(o), _) if stride > 0 => {
            match residue(program, distance, stride, RESIDUE_DEPTH) {
                Some(r) => Offset::Row(o.wrapping_add(signed(r)).rem_euclid(stride)),
                None => Offset::Any,
            }
        }
        _ => Offset::Any,
    };
    Provenance::Pointer(Pointer { offset, ..pointer })
}

/// The stride of a data object, 0 for everything else.
fn stride(program: &Program, object: Object) -> i64 {
    match object {
        Object::Data(d) => i64::from(program.data[d].stride),
        _ => 0,
    }
}

/// What is left of `value` on division by `modulus`, where its definition shows it.
///
/// Sums and products count as exact: one that wraps gives no address of a row, and every pointer into an object
/// with a stride is the address of a row plus a constant ([`runnel_ir::DataObject::stride`]).
fn residue(program: &Program, value: Value, modulus: i64, depth: u32) -> Option<i64> {
    let next = |v| residue(program, v, modulus, depth.checked_sub(1)?);
    let divides = |factor: u64| factor.is_multiple_of(modulus as u64);
    if modulus == 1 {
        return Some(0);
    }
    match *program.def(value)? {
        InstData::Const(c) => Some((c as i64).rem_euclid(modulus)),
        InstData::Unary { op: UnaryOp::Zext32, arg } => next(arg),
        InstData::Binary { op, lhs, rhs, .. } => match op {
            BinaryOp::Add => Some((next(lhs)? + next(rhs)?).rem_euclid(modulus)),
            BinaryOp::Sub => Some((next(lhs)? - next(rhs)?).rem_euclid(modulus)),
            BinaryOp::Mul => match (next(lhs), next(rhs)) {
                (Some(0), _) | (_, Some(0)) => Some(0),
                (a, b) => Some(((i128::from(a?) * i128::from(b?)) % i128::from(modulus)) as i64),
            },
            BinaryOp::Shl => {
                let factor = 1u64.checked_shl(program.as_const(rhs)? as u32)?;
                if divides(factor) {
                    Some(0)
                } else {
                    Some((next(lhs)? as i128 * i128::from(factor) % i128::from(modulus)) as i64)
                }
            }
            BinaryOp::And if modulus.count_ones() == 1 => {
                let cleared = |v| program.as_const(v).is_some_and(divides);
                (cleared(lhs) || cleared(rhs)).then_some(0)
            }
            _ => None,
        },
        _ => None,
    }
}

fn join(program: &Program, a: Provenance, b: Provenance) -> Provenance {
    use Provenance::{Null, Scalar, Unknown, Unreached};
    match (a, b) {
        (Unreached, x) | (x, Unreached) => x,
        (Null, Null) => Null,
        (Null | Scalar, Null | Scalar) => Scalar,
        (Provenance::Pointer(p), Null) | (Null, Provenance::Pointer(p)) => {
            Provenance::Pointer(Pointer { nullable: true, ..p })
        }
        (PACKET, Scalar) | (Scalar, PACKET) => PACKET,
        (Provenance::Pointer(p), Provenance::Pointer(q)) if p.object == q.object => {
            Provenance::Pointer(Pointer {
                object: p.object,
                offset: join_offsets(stride(program, p.object), p.offset, q.offset),
                nullable: p.nullable || q.nullable,
            })
        }
        _ => Unknown,
    }
}

fn join_offsets(stride: i64, a: Offset, b: Offset) -> Offset {
    match (a, b) {
        _ if a == b => a,
        (Offset::Exact(x) | Offset::Row(x), Offset::Exact(y) | Offset::Row(y))
            if stride > 0 && x.rem_euclid(stride) == y.rem_euclid(stride) =>
        {
            Offset::Row(x.rem_euclid(stride))
        }
        _ => Offset::Any,
    }
}
