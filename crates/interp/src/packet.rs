//! The packet that a program works on: a buffer with room before and behind the bytes.
//!
//! Which moves of the bounds a hook allows is the host's business ([`crate::xdp`]); here they only have to stay
//! inside of the buffer.

use crate::address::{Kind, PACKET_PLACE, address};
use crate::fault::{ControlError, Object, What};

/// A packet in its buffer. Positions are bytes from the buffer's start: metadata from `meta` to `data`, the packet
/// from `data` to `end`.
#[derive(Clone, Debug)]
pub struct Packet {
    buffer: Vec<u8>,
    headroom: usize,
    tailroom: usize,
    meta: usize,
    data: usize,
    end: usize,
    /// Part of every pointer into the packet, so that pointers from before a move are told apart.
    generation: u64,
}

impl Default for Packet {
    /// The frame in which the kernel's test-run gives packets to XDP programs: one page with 256 bytes before the
    /// packet and 320 behind the longest one (`bpf_prog_test_run_xdp` in `net/bpf/test_run.c`).
    fn default() -> Packet {
        Packet::new(256, 4096 - 256 - 320, 320)
    }
}

impl Packet {
    /// An empty packet, with `headroom` bytes before it, up to `capacity` bytes of packet, and `tailroom` bytes
    /// behind that which only a callee can claim.
    pub fn new(headroom: usize, capacity: usize, tailroom: usize) -> Packet {
        let buffer = vec![0; headroom + capacity + tailroom];
        Packet { buffer, headroom, tailroom, meta: headroom, data: headroom, end: headroom, generation: 0 }
    }

    /// Puts another packet into the buffer, at the place where packets arrive, without metadata. Room before and
    /// behind it holds zeros.
    ///
    /// # Errors
    /// [`ControlError::PacketTooLong`] when it does not fit; the old packet is still there then.
    pub fn set(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        let limit = self.buffer.len() - self.headroom - self.tailroom;
        if bytes.len() > limit {
            return Err(ControlError::PacketTooLong { len: bytes.len(), limit });
        }
        let end = self.headroom + bytes.len();
        self.buffer[..self.headroom].fill(0);
        self.buffer[self.headroom..end].copy_from_slice(bytes);
        // Behind the packet nothing needs clearing: it can be reached only by growing, which clears.
        (self.meta, self.data, self.end, self.generation) = (self.headroom, self.headroom, end, 0);
        Ok(())
    }

    /// The packet's bytes, without metadata.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.data..self.end]
    }

    /// The metadata in front of the packet.
    pub fn metadata(&self) -> &[u8] {
        &self.buffer[self.meta..self.data]
    }

    /// Bytes in the buffer before the metadata.
    pub fn room_before(&self) -> usize {
        self.meta
    }

    /// Bytes in the buffer behind the packet, those that only a callee can claim included.
    pub fn room_behind(&self) -> usize {
        self.buffer.len() - self.end
    }

    /// Moves the packet's first byte by `delta`, metadata with it, and invalidates pointers into the packet.
    /// False, and nothing done, when that would leave the buffer or pass the packet's end.
    pub fn move_head(&mut self, delta: i64) -> bool {
        let Some((meta, data)) = moved(self.meta, delta).zip(moved(self.data, delta)) else { return false };
        if data > self.end {
            return false;
        }
        self.buffer.copy_within(self.meta..self.data, meta);
        (self.meta, self.data) = (meta, data);
        self.generation += 1;
        true
    }

    /// Moves the packet's end by `delta`, clears what it grows by, and invalidates pointers into the packet.
    /// False, and nothing done, when that would leave the buffer or pass the packet's first byte.
    pub fn move_tail(&mut self, delta: i64) -> bool {
        match moved(self.end, delta) {
            Some(end) if (self.data..=self.buffer.len()).contains(&end) => {
                if end > self.end {
                    self.buffer[self.end..end].fill(0);
                }
                self.end = end;
                self.generation += 1;
                true
            }
            _ => false,
        }
    }

    /// Address of the first byte of the packet.
    pub fn data_address(&self) -> u64 {
        self.address_of(self.data)
    }

    /// Address of the byte behind the packet.
    pub fn end_address(&self) -> u64 {
        self.address_of(self.end)
    }

    /// Address of the metadata in front of the packet.
    pub fn meta_address(&self) -> u64 {
        self.address_of(self.meta)
    }

    fn address_of(&self, position: usize) -> u64 {
        address(Kind::Packet, self.generation, PACKET_PLACE + position as u64)
    }

    /// Where in the buffer an access lies.
    fn position(&self, addr: u64, len: usize) -> Result<usize, What> {
        // Wraps for places before the buffer, which makes them far too large.
        let position = addr.wrapping_sub(self.address_of(0));
        if position >= self.meta as u64 && position.saturating_add(len as u64) <= self.end as u64 {
            return Ok(position as usize);
        }
        if crate::address::index(addr) != crate::address::index(self.address_of(0)) {
            return Err(What::StalePacketPointer);
        }
        let offset = (position as i64).wrapping_sub(self.data as i64);
        Err(What::OutOfBounds { object: Object::Packet, offset, len, size: (self.end - self.data) as u64 })
    }

    pub(crate) fn slice(&self, addr: u64, len: usize) -> Result<&[u8], What> {
        let position = self.position(addr, len)?;
        Ok(&self.buffer[position..position + len])
    }

    pub(crate) fn slice_mut(&mut self, addr: u64, len: usize) -> Result<&mut [u8], What> {
        let position = self.position(addr, len)?;
        Ok(&mut self.buffer[position..position + len])
    }
}

fn moved(position: usize, delta: i64) -> Option<usize> {
    usize::try_from((position as i64).checked_add(delta)?).ok()
}
