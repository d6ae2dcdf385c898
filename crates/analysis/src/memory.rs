//! Which accesses may touch the same bytes, and what may change them.
//!
//! Relies on [`Provenances`] and [`Escapes`]: distinct objects never overlap; within an object, and between
//! pointers computed from the same value, offsets decide. Two pointers with the same base are compared as of one
//! moment: in a loop the base may be another value in the next round, which is sound wherever the base's
//! definition dominates both accesses and neither is reached from the other without passing the first again, as
//! between a value and what it would replace.

use runnel_ir::cfg::Cfg;
use runnel_ir::{DataKind, Effects, Inst, InstData, Program, Value};

use crate::{Escapes, Object, Offset, Pointer, Provenances};

/// Bytes in memory, with what is known of where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The object that the bytes lie in and the offset of the first of them, if the object is known.
    pub pointer: Option<Pointer>,
    /// Number of bytes.
    pub size: u32,
    /// The value that the address was computed from by adding constants, and their sum.
    base: Value,
    from_base: i64,
}

impl Place {
    /// How far `other` begins behind this place (negative: before), in bytes, where that is known.
    pub fn distance(&self, other: &Place) -> Option<i64> {
        if self.base == other.base {
            return Some(other.from_base.wrapping_sub(self.from_base));
        }
        let (p, q) = (self.pointer?, other.pointer?);
        match (p.offset, q.offset) {
            // Equal offsets into a table's values may be of different entries.
            (Offset::Exact(i), Offset::Exact(j)) if p.object == q.object => {
                (!matches!(p.object, Object::Table(_))).then(|| j.wrapping_sub(i))
            }
            _ => None,
        }
    }

    fn object(&self) -> Option<Object> {
        self.pointer.map(|p| p.object)
    }
}

/// What an instruction may change.
#[derive(Clone, Copy)]
pub(crate) enum Write {
    /// Nothing in memory.
    Nothing,
    /// The bytes of a place.
    Bytes(Place),
    /// Values of tables.
    Tables,
    /// What a callee with these effects may.
    Call(Effects),
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

    /// The `size` bytes at `ptr + offset`.
    pub fn place(&self, ptr: Value, offset: i32, size: u32) -> Place {
        let offset = i64::from(offset);
        let (base, from_base) = self.provenances.base(ptr);
        let pointer = self.provenances.of(ptr).as_pointer().map(|p| {
            let moved = match (p.offset, p.object) {
                (Offset::Exact(o), _) => Offset::Exact(o.wrapping_add(offset)),
                (Offset::Row(o), Object::Data(d)) => {
                    Offset::Row(o.wrapping_add(offset).rem_euclid(i64::from(self.program.data[d].stride)))
                }
                _ => Offset::Any,
            };
            Pointer { offset: moved, ..p }
        });
        Place { pointer, size, base, from_base: from_base.wrapping_add(offset) }
    }

    /// The bytes that a load, store or atomic addition accesses; none for other instructions.
    pub fn access(&self, inst: Inst) -> Option<Place> {
        match self.program.insts[inst].data {
            InstData::Load { size, ptr, offset }
            | InstData::Store { size, ptr, offset, .. }
            | InstData::AtomicAdd { size, ptr, offset, .. }
            | InstData::CtxLoad { size, ctx: ptr, offset } => Some(self.place(ptr, offset, size.bytes())),
            _ => None,
        }
    }

    /// Whether the two may have a byte in common.
    pub fn may_alias(&self, a: &Place, b: &Place) -> bool {
        if let Some(distance) = a.distance(b) {
            return distance < i64::from(a.size) && distance.wrapping_neg() < i64::from(b.size);
        }
        match (a.pointer, b.pointer) {
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
    pub fn is_private(&self, place: &Place) -> bool {
        match place.object() {
            Some(Object::Packet | Object::Context | Object::Slot(_)) => true,
            Some(Object::Data(d)) => self.program.data[d].kind == DataKind::Const,
            Some(Object::Table(_)) | None => false,
        }
    }

    /// Whether one access may take all of the bytes, for all that its alignment matters: whoever re-checks the program
    /// wants accesses to slots to be aligned (`check_ptr_alignment` in `kernel/bpf/verifier.c`), and no others.
    pub fn is_one_access(&self, place: &Place) -> bool {
        match place.pointer {
            Some(Pointer { object: Object::Slot(_), offset: Offset::Exact(at), .. }) => {
                at.rem_euclid(i64::from(place.size)) == 0
            }
            Some(Pointer { object: Object::Slot(_), .. }) | None => false,
            Some(_) => true,
        }
    }

    /// Whether `inst` may change the bytes, or what it means to access them.
    pub fn may_change(&self, inst: Inst, place: &Place) -> bool {
        self.changes(&self.write(inst), place)
    }

    /// What `inst` may change.
    pub(crate) fn write(&self, inst: Inst) -> Write {
        match &self.program.insts[inst].data {
            InstData::Store { .. } | InstData::AtomicAdd { .. } => {
                self.access(inst).map_or(Write::Nothing, Write::Bytes)
            }
            InstData::Call { callee, .. } => Write::Call(self.program.callees[*callee].effects),
            InstData::Update { .. } | InstData::Delete { .. } => Write::Tables,
            _ => Write::Nothing,
        }
    }

    pub(crate) fn changes(&self, write: &Write, place: &Place) -> bool {
        let object = place.object();
        if let Some(Object::Data(d)) = object
            && self.program.data[d].kind == DataKind::Const
        {
            return false;
        }
        match write {
            Write::Nothing => false,
            // Fields of the context depend on each other in ways that only the plugin knows.
            Write::Bytes(written) if object == Some(Object::Context) => {
                written.object().is_none_or(|o| o == Object::Context)
            }
            Write::Bytes(written) => self.may_alias(written, place),
            Write::Tables => matches!(object, Some(Object::Table(_)) | None),
            Write::Call(effects) => effects.intersects(match object {
                Some(Object::Slot(s)) if !self.escapes.escapes(s) => Effects::empty(),
                Some(Object::Slot(_)) => Effects::WRITES_MEMORY,
                Some(Object::Context) => Effects::WRITES_MEMORY | Effects::MOVES_PACKET | Effects::EXTERNAL,
                Some(Object::Table(_)) => Effects::WRITES_MEMORY | Effects::WRITES_TABLES,
                Some(Object::Packet | Object::Data(_)) => Effects::WRITES_MEMORY | Effects::MOVES_PACKET,
                None => Effects::WRITES_MEMORY | Effects::WRITES_TABLES | Effects::MOVES_PACKET,
            }),
        }
    }
}
