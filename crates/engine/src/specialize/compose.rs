//! Lookups answered beforehand: where every part of the key is a constant or a field of one and the same row, the
//! outcome is a function of the row. It is computed now, for each row, and kept in rows of its own beside them.
//!
//! A route names its port and its next hop; so the port's and the neighbour's lookups cost an address each.
//! This is a join of two read-only tables; it holds as long as both do not change, which the guard sees to.

use runnel_ir::{
    BinaryOp, Builder, Cond, Data, DataKind, DataObject, InstData, Key, Program, Size, Target, Value, Width,
};
use runnel_tables::{Budget, Contents};

use super::{Site, probe};

/// A field of a row that a part of the key is.
struct Field {
    part: usize,
    offset: i64,
}

/// A lookup that can be answered beforehand.
pub struct Composed {
    /// The value that numbers the rows, known to be below their count.
    row: Value,
    /// The joined rows: empty if no row finds an entry.
    rows: Vec<u8>,
    stride: u32,
    /// Where in a joined row it says whether there is an entry, if some have none.
    presence: Option<u32>,
    hits: usize,
    count: usize,
    outer: String,
}

impl Composed {
    /// For people.
    pub fn describe(&self) -> String {
        format!(
            "the key is taken from `{}`: {} of its {} rows find an entry",
            self.outer, self.hits, self.count
        )
    }
}

/// Joined rows beyond this stay apart: they would push more useful data out of the cache.
const MAX_BYTES: u64 = 1 << 20;

/// Whether a key is a function of a row, and if so the outcome for every row.
pub fn plan(program: &Program, key: &Key, contents: &Contents, budget: Budget) -> Option<Composed> {
    let mut fixed = vec![0u8; contents.key_size as usize];
    let mut fields = Vec::new();
    let mut found: Option<(Data, Value)> = None;
    for (index, part) in key.iter().enumerate() {
        let place = usize::from(part.offset)..usize::from(part.offset) + part.size.bytes() as usize;
        match program.def(part.value)? {
            InstData::Const(c) => fixed[place.clone()].copy_from_slice(&c.to_le_bytes()[..place.len()]),
            InstData::Load { size, ptr, offset } if *size >= part.size => {
                let (data, row, inside) = row_of(program, *ptr)?;
                if *found.get_or_insert((data, row)) != (data, row) {
                    return None;
                }
                fields.push(Field { part: index, offset: inside + i64::from(*offset) });
            }
            _ => return None,
        }
    }
    let (outer, row) = found?;
    let outer = &program.data[outer];
    let mut outcomes = Vec::new();
    for bytes in outer.bytes.chunks_exact(outer.stride as usize) {
        let mut whole = fixed.clone();
        for field in &fields {
            let part = &key[field.part];
            let (to, len) = (usize::from(part.offset), part.size.bytes() as usize);
            let from = usize::try_from(field.offset).ok()?;
            whole[to..to + len].copy_from_slice(bytes.get(from..from + len)?);
        }
        outcomes.push(contents.find(&whole).map(|entry| &entry.value));
    }
    let (count, hits) = (outcomes.len(), outcomes.iter().flatten().count());
    let value_size = contents.value_size;
    let presence = (hits < count).then_some(value_size);
    let stride = (value_size + u32::from(presence.is_some())).max(8).next_power_of_two();
    let bytes = u64::from(stride) * count as u64;
    if bytes > MAX_BYTES.min(budget.memory_bytes) {
        return None;
    }
    // A row without an entry repeats one that exists, so that a field equal in all entries is equal in all rows.
    let mut rows = Vec::new();
    if let Some(any) = outcomes.iter().flatten().next() {
        rows.resize(bytes as usize, 0);
        for (slot, outcome) in rows.chunks_exact_mut(stride as usize).zip(&outcomes) {
            slot[..value_size as usize].copy_from_slice(outcome.unwrap_or(any));
            if let Some(at) = presence {
                slot[at as usize] = u8::from(outcome.is_some());
            }
        }
    }
    Some(Composed { row, rows, stride, presence, hits, count, outer: outer.name.clone() })
}

/// The row that `pointer` points into: the object, the value that numbers its rows, and the distance from the
/// row's start.
fn row_of(program: &Program, pointer: Value) -> Option<(Data, Value, i64)> {
    let (mut pointer, mut inside) = (pointer, 0i64);
    for _ in 0..8 {
        let InstData::Binary { op: BinaryOp::Add, width: Width::W64, lhs, rhs } = program.def(pointer)?
        else {
            return None;
        };
        for (base, other) in [(*lhs, *rhs), (*rhs, *lhs)] {
            if let Some(InstData::DataAddr { data, offset }) = program.def(base) {
                let object = &program.data[*data];
                let row = scaled_by(program, other, object.stride)?;
                let usable = object.kind == DataKind::Const && object.stride != 0;
                return usable.then_some((*data, row, inside + i64::from(*offset)));
            }
        }
        let constant = program.as_const(*rhs)?;
        inside = inside.checked_add(constant as i64)?;
        pointer = *lhs;
    }
    None
}

/// The value that `value` is `stride` times of.
fn scaled_by(program: &Program, value: Value, stride: u32) -> Option<Value> {
    match program.def(value)? {
        InstData::Binary { op: BinaryOp::Shl, width: Width::W64, lhs, rhs } => {
            let shift = program.as_const(*rhs)?;
            (shift < 32 && 1u64 << shift == u64::from(stride)).then_some(*lhs)
        }
        InstData::Binary { op: BinaryOp::Mul, width: Width::W64, lhs, rhs } => {
            (program.as_const(*rhs)? == u64::from(stride)).then_some(*lhs)
        }
        _ => None,
    }
}

/// Replaces the lookup; gives the value that stands for its result now.
pub fn apply(program: &mut Program, site: &Site, composed: Composed) -> Value {
    let (rest, result) = probe::split(program, site);
    let name = format!("{}.joined{}", program.tables[site.table].name, site.inst);
    let misses = composed.rows.is_empty();
    let data = (!misses).then(|| {
        program.data.push(DataObject {
            name,
            kind: DataKind::Const,
            stride: composed.stride,
            bytes: composed.rows,
        })
    });
    let mut b = Builder::at(program, site.block);
    b.set_origin(site.origin);
    let Some(data) = data else {
        let zero = b.iconst(0);
        b.jump(Target::with(rest, [zero]));
        return result;
    };
    let base = b.data_addr(data, 0);
    let shift = u64::from(composed.stride.trailing_zeros());
    let offset = b.binary_imm(BinaryOp::Shl, Width::W64, composed.row, shift);
    let address = b.binary(BinaryOp::Add, Width::W64, base, offset);
    match composed.presence {
        None => b.jump(Target::with(rest, [address])),
        Some(at) => {
            let present = b.load(Size::B1, address, at as i32);
            let zero = b.iconst(0);
            let (miss, hit) = (Target::with(rest, [zero]), Target::with(rest, [address]));
            b.branch(Cond::Eq, Width::W64, present, zero, miss, hit);
        }
    }
    result
}
