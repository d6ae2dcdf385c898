//! Which accesses may touch the same bytes, and what may change them.
//!
//! Relies on [`Provenances`] and [`Escapes`]: distinct objects never overlap; within an object, and between
//! pointers computed from the same value, offsets decide. Two pointers with the same base are compared as of one
//! moment: in a loop the base may be another value in the next round, which is sound wherever the base's
//! definition dominates both accesses and neither is reached from the other without passing the first again, as
//! between a value and what it would replace.

use runnel_ir::cfg::Cfg;
use runnel_ir::{DataKind, Effects, Inst, InstData, Program, Value};

use crate::{Escapes, Object, Offset, Pointer, Provenance, Provenances};

/// Bytes in memory: `size` of them from `ptr + offset`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Location {
    /// Base address.
    pub ptr: Value,
    /// Distance from it in bytes.
    pub offset: i64,
    /// Number of bytes.
    pub size: u32,
}

/// The memory of a program, as far as its pointers tell.
pub struct Memory<'p> {
    program: &'p Program,
    provenances: Provenances,
    escapes: Escapes,
}

impl<'p> Memory<'p> {
    /// Computes provenance and escapes of `program`.
    pub fn new(program: &'p Program, cfg: &Cfg) -> Memory<'p> {
        let provenances = Provenances::new(program, cfg);
        let escapes = Escapes::new(program, &provenances);
        Memory { program, provenances, escapes }
    }

    /// What the values point into.
    pub fn provenances(&self) -> &Provenances {
        &self.provenances
    }

    /// Which slots escape.
    pub fn escapes(&self) -> &Escapes {
        &self.escapes
    }

    /// The bytes that a load, store or atomic addition accesses; none for other instructions.
    pub fn location(&self, inst: Inst) -> Option<Location> {
        match self.program.insts[inst].data {
            InstData::Load { size, ptr, offset }
            | InstData::Store { size, ptr, offset, .. }
            | InstData::AtomicAdd { size, ptr, offset, .. }
            | InstData::CtxLoad { size, ctx: ptr, offset } => {
                Some(Location { ptr, offset: i64::from(offset), size: size.bytes() })
            }
            _ => None,
        }
    }

    /// The object that a location lies in, and where in it the location begins.
    pub fn pointer(&self, at: Location) -> Option<Pointer> {
        let mut pointer = self.provenances.of(at.ptr).as_pointer()?;
        pointer.offset = match (pointer.offset, pointer.object) {
            (Offset::Exact(o), _) => Offset::Exact(o.wrapping_add(at.offset)),
            (Offset::Row(o), Object::Data(d)) => {
                Offset::Row(o.wrapping_add(at.offset).rem_euclid(i64::from(self.program.data[d].stride)))
            }
            _ => Offset::Any,
        };
        Some(pointer)
    }

    /// How far `b` begins behind `a` (negative: before), where that is known.
    pub fn distance(&self, a: Location, b: Location) -> Option<i64> {
        let ((x, from_x), (y, from_y)) = (self.provenances.base(a.ptr), self.provenances.base(b.ptr));
        if x == y {
            return Some(from_y.wrapping_add(b.offset).wrapping_sub(from_x.wrapping_add(a.offset)));
        }
        match (self.pointer(a)?, self.pointer(b)?) {
            (Pointer { object, offset: Offset::Exact(i), .. }, Pointer { object: other, offset: Offset::Exact(j), .. })
                // Equal offsets into a table's values may be of different entries.
                if object == other && !matches!(object, Object::Table(_)) =>
            {
                Some(j.wrapping_sub(i))
            }
            _ => None,
        }
    }

    /// Whether the two may have a byte in common.
    pub fn may_alias(&self, a: Location, b: Location) -> bool {
        if let Some(distance) = self.distance(a, b) {
            return distance < i64::from(a.size) && distance.wrapping_neg() < i64::from(b.size);
        }
        match (self.pointer(a), self.pointer(b)) {
            (Some(p), Some(q)) if p.object != q.object => false,
            (Some(Pointer { object: Object::Slot(s), .. }), None)
            | (None, Some(Pointer { object: Object::Slot(s), .. })) => self.escapes.escapes(s),
            // Within an entry's value offsets decide, whichever entries they are.
            (
                Some(Pointer { offset: Offset::Exact(i), .. }),
                Some(Pointer { offset: Offset::Exact(j), .. }),
            ) => i < j.saturating_add(i64::from(b.size)) && j < i.saturating_add(i64::from(a.size)),
            _ => true,
        }
    }

    /// Whether nobody but this program's own stores and callees changes the bytes while it runs: packet, context,
    /// slots and constant data, but neither table values nor live data.
    pub fn is_private(&self, at: Location) -> bool {
        match self.pointer(at).map(|p| p.object) {
            Some(Object::Packet | Object::Context | Object::Slot(_)) => true,
            Some(Object::Data(d)) => self.program.data[d].kind == DataKind::Const,
            Some(Object::Table(_)) | None => false,
        }
    }

    /// Whether `inst` may change the bytes, or what it means to access them.
    pub fn may_change(&self, inst: Inst, at: Location) -> bool {
        let object = self.pointer(at).map(|p| p.object);
        if let Some(Object::Data(d)) = object
            && self.program.data[d].kind == DataKind::Const
        {
            return false;
        }
        match &self.program.insts[inst].data {
            InstData::Store { ptr, .. } | InstData::AtomicAdd { ptr, .. } => match object {
                // Fields of the context depend on each other in ways that only the plugin knows.
                Some(Object::Context) => match self.provenances.of(*ptr) {
                    Provenance::Pointer(p) => p.object == Object::Context,
                    _ => true,
                },
                _ => self.location(inst).is_some_and(|written| self.may_alias(written, at)),
            },
            InstData::Call { callee, .. } => {
                let effects = self.program.callees[*callee].effects;
                match object {
                    Some(Object::Slot(s)) => {
                        effects.contains(Effects::WRITES_MEMORY) && self.escapes.escapes(s)
                    }
                    Some(Object::Context) => {
                        effects.intersects(Effects::WRITES_MEMORY | Effects::MOVES_PACKET | Effects::EXTERNAL)
                    }
                    Some(Object::Table(_)) => {
                        effects.intersects(Effects::WRITES_MEMORY | Effects::WRITES_TABLES)
                    }
                    _ => effects.intersects(Effects::WRITES_MEMORY | Effects::MOVES_PACKET),
                }
            }
            InstData::Update { .. } | InstData::Delete { .. } => {
                matches!(object, Some(Object::Table(_)) | None)
            }
            _ => false,
        }
    }
}
