//! What loads from constant data give.

use std::collections::HashMap;

use runnel_analysis::{Memory, Object, Offset};
use runnel_ir::{Data, DataKind, DataObject, Program, Size, Value};

use crate::lattice::Known;

/// Columns that were read through, so that none is twice.
#[derive(Default)]
pub(super) struct Columns {
    read: HashMap<(Data, i64, Size), Known>,
}

impl Columns {
    /// What a load of `size` bytes from `ptr + offset` gives.
    pub(super) fn loaded(
        &mut self,
        program: &Program,
        memory: &Memory<'_>,
        size: Size,
        ptr: Value,
        offset: i32,
    ) -> Known {
        let Some(pointer) = memory.place(ptr, offset, size.bytes()).pointer else { return Known::Varies };
        let Object::Data(d) = pointer.object else { return Known::Varies };
        let object = &program.data[d];
        match (object.kind, pointer.offset) {
            (DataKind::Const, Offset::Exact(o)) => {
                number(object, o, size).map_or(Known::Varies, Known::constant)
            }
            (DataKind::Const, Offset::Row(o)) => {
                self.read.entry((d, o, size)).or_insert_with(|| column(object, o, size)).clone()
            }
            _ => Known::Varies,
        }
    }
}

/// The number of `size` bytes at `offset`, in the machine's byte order.
fn number(object: &DataObject, offset: i64, size: Size) -> Option<u64> {
    let start = usize::try_from(offset).ok()?;
    let bytes = object.bytes.get(start..start.checked_add(size.bytes() as usize)?)?;
    let mut wide = [0; 8];
    let from = if cfg!(target_endian = "little") { 0 } else { 8 - bytes.len() };
    wide[from..from + bytes.len()].copy_from_slice(bytes);
    Some(u64::from_ne_bytes(wide))
}

/// Rows of a column that are read. Beyond, nothing is known of it: a large table seldom has a column worth knowing.
const MAX_ROWS: usize = 1 << 16;

/// The numbers at `offset` of all rows that have one there.
fn column(object: &DataObject, offset: i64, size: Size) -> Known {
    let rows = (offset..).step_by(object.stride as usize);
    let mut values = rows.map_while(|o| number(object, o, size)).peekable();
    let too_many = object.bytes.len() / object.stride.max(1) as usize > MAX_ROWS;
    if too_many || values.peek().is_none() { Known::Varies } else { Known::from_values(values) }
}
