//! The memory that belongs to one program: its data objects and its stack frame.

use runnel_ir::{Data, DataKind, Program, Slot};

use crate::address::{DATA_PLACE, MAX_OBJECTS, STACK_PLACE, data_address, place, slot_address};
use crate::fault::{Object, SetupError, What};

/// Largest stack frame in bytes. Far beyond eBPF's 512, and small enough to clear for every packet.
const MAX_STACK: u64 = 1 << 20;

/// Data objects begin at multiples of this, as array memory does.
const DATA_ALIGN: u64 = 64;

/// What a load of a stack byte gives that nothing was stored to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Uninitialised {
    /// A fault: a correct program does not look at it.
    #[default]
    Faults,
    /// Zero.
    ReadsZero,
}

/// Where the slots and data objects of a program lie; the same for every image of it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Place and size of each slot.
    slots: Vec<(u64, u64)>,
    /// Place of each data object.
    data: Vec<u64>,
    stack: usize,
}

impl Layout {
    pub(crate) fn new(program: &Program) -> Result<Layout, SetupError> {
        for (what, count) in [("slots", program.slots.len()), ("data objects", program.data.len())] {
            if count > MAX_OBJECTS {
                return Err(SetupError::TooMany { what, count, limit: MAX_OBJECTS });
            }
        }
        let mut next = STACK_PLACE;
        let slots = program
            .slots
            .values()
            .map(|slot| {
                let start = next;
                next += u64::from(slot.size).next_multiple_of(8);
                (start, u64::from(slot.size))
            })
            .collect();
        let bytes = next - STACK_PLACE;
        if bytes > MAX_STACK {
            return Err(SetupError::TooLarge { what: "the stack frame".into(), bytes, limit: MAX_STACK });
        }
        let mut next = DATA_PLACE;
        let data = program
            .data
            .values()
            .map(|object| {
                let start = next;
                next += (object.bytes.len() as u64).next_multiple_of(DATA_ALIGN);
                start
            })
            .collect();
        Ok(Layout { slots, data, stack: bytes as usize })
    }

    /// Address of a byte of a slot. The slot is one of the program's.
    pub(crate) fn slot(&self, slot: Slot, offset: u32) -> u64 {
        slot_address(slot, self.slots[slot.as_u32() as usize].0 + u64::from(offset))
    }

    /// Address of a byte of a data object. The object is one of the program's.
    pub(crate) fn data(&self, data: Data, offset: u32) -> u64 {
        data_address(data, self.data[data.as_u32() as usize] + u64::from(offset))
    }
}

#[derive(Clone, Debug)]
struct Bytes {
    start: u64,
    writable: bool,
    bytes: Vec<u8>,
}

/// The data objects and the stack frame of one program. [`crate::Compiled::image`] makes it.
#[derive(Clone, Debug)]
pub struct Image {
    /// What reading a stack byte gives that nothing was stored to.
    pub uninitialised: Uninitialised,
    data: Vec<Bytes>,
    slots: Vec<(u64, u64)>,
    stack: Vec<u8>,
    stored: Vec<bool>,
}

impl Image {
    pub(crate) fn new(data: &[(DataKind, Vec<u8>)], layout: &Layout) -> Image {
        let data = data
            .iter()
            .zip(&layout.data)
            .map(|((kind, bytes), &start)| Bytes {
                start,
                writable: *kind == DataKind::Live,
                bytes: bytes.clone(),
            })
            .collect();
        Image {
            uninitialised: Uninitialised::default(),
            data,
            slots: layout.slots.clone(),
            stack: vec![0; layout.stack],
            stored: vec![false; layout.stack],
        }
    }

    /// The bytes of a data object, if the program has it.
    pub fn data(&self, data: Data) -> Option<&[u8]> {
        self.data.get(data.as_u32() as usize).map(|d| &d.bytes[..])
    }

    /// The bytes of a data object, to be changed as others change live data.
    pub fn data_mut(&mut self, data: Data) -> Option<&mut [u8]> {
        self.data.get_mut(data.as_u32() as usize).map(|d| &mut d.bytes[..])
    }

    /// Forgets what is on the stack.
    pub(crate) fn begin_run(&mut self) {
        self.stored.fill(false);
        if self.uninitialised == Uninitialised::ReadsZero {
            self.stack.fill(0);
        }
    }

    fn stack_range(&self, index: usize, addr: u64, len: usize) -> Result<std::ops::Range<usize>, What> {
        let &(start, size) = self.slots.get(index).ok_or(What::Unmapped { address: addr })?;
        let object = || Object::Slot(Slot::from_u32(index as u32));
        let offset = inside(place(addr), start, size, len, object)?;
        let from = (start - STACK_PLACE) as usize + offset;
        Ok(from..from + len)
    }

    pub(crate) fn slot_slice(&self, index: usize, addr: u64, len: usize) -> Result<&[u8], What> {
        let range = self.stack_range(index, addr, len)?;
        if self.uninitialised == Uninitialised::Faults
            && let Some(missing) = self.stored[range.clone()].iter().position(|&stored| !stored)
        {
            let offset = (range.start + missing) as u64 - (self.slots[index].0 - STACK_PLACE);
            return Err(What::Uninitialised { slot: Slot::from_u32(index as u32), offset });
        }
        Ok(&self.stack[range])
    }

    /// The bytes to be overwritten: all of them count as stored to.
    pub(crate) fn slot_slice_mut(&mut self, index: usize, addr: u64, len: usize) -> Result<&mut [u8], What> {
        let range = self.stack_range(index, addr, len)?;
        self.stored[range.clone()].fill(true);
        Ok(&mut self.stack[range])
    }

    fn data_range(&self, index: usize, addr: u64, len: usize) -> Result<std::ops::Range<usize>, What> {
        let found = self.data.get(index).ok_or(What::Unmapped { address: addr })?;
        let object = || Object::Data(Data::from_u32(index as u32));
        let offset = inside(place(addr), found.start, found.bytes.len() as u64, len, object)?;
        Ok(offset..offset + len)
    }

    pub(crate) fn data_slice(&self, index: usize, addr: u64, len: usize) -> Result<&[u8], What> {
        let range = self.data_range(index, addr, len)?;
        Ok(&self.data[index].bytes[range])
    }

    pub(crate) fn data_slice_mut(&mut self, index: usize, addr: u64, len: usize) -> Result<&mut [u8], What> {
        let range = self.data_range(index, addr, len)?;
        let found = &mut self.data[index];
        if found.writable {
            Ok(&mut found.bytes[range])
        } else {
            Err(What::ReadOnly { data: Data::from_u32(index as u32) })
        }
    }
}

/// Offset of an access in an object that begins at `start`, if the access lies inside of it.
pub(crate) fn inside(
    place: u64,
    start: u64,
    size: u64,
    len: usize,
    object: impl FnOnce() -> Object,
) -> Result<usize, What> {
    // Wraps for places before the object, which makes them far too large.
    let offset = place.wrapping_sub(start);
    if offset.saturating_add(len as u64) <= size {
        Ok(offset as usize)
    } else {
        Err(What::OutOfBounds { object: object(), offset: offset as i64, len, size })
    }
}
