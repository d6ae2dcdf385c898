//! The machine: everything that a program can reach by an address, and the accesses themselves.

use runnel_ir::Size;

use crate::address::{Kind, index, kind};
use crate::fault::What;
use crate::image::Image;
use crate::packet::Packet;
use crate::tables::Tables;

/// Packet, tables, and the memory of the program that runs.
///
/// Packet and tables outlive a program; the image is the one program's own. To let another program go on where
/// one gave up (a deopt), exchange the images.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The packet.
    pub packet: Packet,
    /// The tables.
    pub tables: Tables,
    /// Data objects and stack of the program that runs.
    pub image: Image,
}

impl Machine {
    /// A machine with an empty packet.
    pub fn new(tables: Tables, image: Image) -> Machine {
        Machine { packet: Packet::default(), tables, image }
    }

    /// The `len` bytes at `address`, which all lie in one object. No bytes may be asked for anywhere.
    ///
    /// # Errors
    /// Accesses that a program must not make, as [`What`] lists them.
    pub fn bytes(&self, address: u64, len: usize) -> Result<&[u8], What> {
        if len == 0 {
            return Ok(&[]);
        }
        match kind(address) {
            Kind::Packet => self.packet.slice(address, len),
            Kind::Slot => self.image.slot_slice(index(address), address, len),
            Kind::Data => self.image.data_slice(index(address), address, len),
            Kind::Entry => self.tables.value_slice(address, len),
            Kind::Nothing | Kind::Context | Kind::Table => Err(What::Unmapped { address }),
        }
    }

    /// The `len` bytes at `address`, to be overwritten entirely.
    ///
    /// # Errors
    /// Accesses that a program must not make, as [`What`] lists them.
    pub fn bytes_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], What> {
        if len == 0 {
            return Ok(&mut []);
        }
        match kind(address) {
            Kind::Packet => self.packet.slice_mut(address, len),
            Kind::Slot => self.image.slot_slice_mut(index(address), address, len),
            Kind::Data => self.image.data_slice_mut(index(address), address, len),
            Kind::Entry => self.tables.value_slice_mut(address, len),
            Kind::Nothing | Kind::Context | Kind::Table => Err(What::Unmapped { address }),
        }
    }

    /// Loads a number in the machine's byte order, zero-extended.
    ///
    /// # Errors
    /// As [`Machine::bytes`].
    pub fn load(&self, size: Size, address: u64) -> Result<u64, What> {
        self.bytes(address, size.bytes() as usize).map(number)
    }

    /// Stores the low `size` bytes of a number in the machine's byte order.
    ///
    /// # Errors
    /// As [`Machine::bytes`].
    pub fn store(&mut self, size: Size, address: u64, value: u64) -> Result<(), What> {
        put_number(self.bytes_mut(address, size.bytes() as usize)?, value);
        Ok(())
    }
}

/// The number that 1, 2, 4 or 8 bytes hold in the machine's byte order; 0 for any other number of bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    // Sizes known to the compiler: a copy of a size that varies costs more than the rest of a load.
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the low bytes of a number to 1, 2, 4 or 8 bytes.
pub(crate) fn put_number(bytes: &mut [u8], value: u64) {
    match bytes.len() {
        1 => bytes.copy_from_slice(&(value as u8).to_ne_bytes()),
        2 => bytes.copy_from_slice(&(value as u16).to_ne_bytes()),
        4 => bytes.copy_from_slice(&(value as u32).to_ne_bytes()),
        8 => bytes.copy_from_slice(&value.to_ne_bytes()),
        other => debug_assert!(false, "a number of {other} bytes"),
    }
}
