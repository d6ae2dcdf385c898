//! Packet files in the classic libpcap format, of whole Ethernet frames.
//!
//! Time stamps are written as zero and ignored: a trace here is an order of packets, not a timing.

use std::io::{Read, Write};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError};

/// Longest frame that is written or read, in bytes.
pub const MAX_FRAME: u32 = 65_550;

/// Why packets cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file's header cannot be read.
    #[error("not a pcap file (pcapng is not read; `editcap -F pcap` converts it): {0}")]
    Header(#[source] PcapError),
    /// The file holds something else than Ethernet frames.
    #[error("the file holds {0:?} packets; Ethernet frames are needed")]
    LinkType(DataLink),
    /// A packet cannot be read.
    #[error("packet {index}: {source}")]
    Read {
        /// Its place in the file, from 0.
        index: usize,
        /// Why.
        source: PcapError,
    },
    /// Only the beginning of a packet was captured.
    #[error(
        "packet {index}: only {captured} of its {length} bytes were captured; capture whole packets (tcpdump -s 0)"
    )]
    Cut {
        /// Its place in the file, from 0.
        index: usize,
        /// Bytes in the file.
        captured: u32,
        /// Bytes on the wire.
        length: u32,
    },
    /// A packet is longer than [`MAX_FRAME`].
    #[error("packet {index}: {length} bytes; frames have at most {MAX_FRAME}")]
    TooLong {
        /// Its place, from 0.
        index: usize,
        /// Its length.
        length: usize,
    },
    /// The file cannot be written.
    #[error("cannot write the packets: {0}")]
    Write(#[source] PcapError),
}

/// Writes frames.
pub fn write<P: AsRef<[u8]>>(writer: impl Write, frames: &[P]) -> Result<(), FileError> {
    let header = PcapHeader { snaplen: MAX_FRAME, datalink: DataLink::ETHERNET, ..Default::default() };
    let mut writer = PcapWriter::with_header(writer, header).map_err(FileError::Write)?;
    for (index, frame) in frames.iter().enumerate() {
        let frame = frame.as_ref();
        let length = u32::try_from(frame.len()).ok().filter(|length| *length <= MAX_FRAME);
        let length = length.ok_or(FileError::TooLong { index, length: frame.len() })?;
        writer.write_packet(&PcapPacket::new(Duration::ZERO, length, frame)).map_err(FileError::Write)?;
    }
    writer.into_writer().flush().map_err(|e| FileError::Write(PcapError::IoError(e)))
}

/// Reads all frames of a file. Memory grows with what the file really holds, not with what it says it holds.
pub fn read(reader: impl Read) -> Result<Vec<Vec<u8>>, FileError> {
    let mut reader = PcapReader::new(reader).map_err(FileError::Header)?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        return Err(FileError::LinkType(link));
    }
    let mut frames = Vec::new();
    // Raw, because the checked form refuses files whose snap length is 0, which some tools write for "no limit".
    while let Some(packet) = reader.next_raw_packet() {
        let index = frames.len();
        let packet = packet.map_err(|source| FileError::Read { index, source })?;
        if packet.incl_len > MAX_FRAME {
            return Err(FileError::TooLong { index, length: packet.data.len() });
        }
        if packet.incl_len != packet.orig_len {
            return Err(FileError::Cut { index, captured: packet.incl_len, length: packet.orig_len });
        }
        frames.push(packet.data.into_owned());
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, frames).unwrap();
        bytes
    }

    #[test]
    fn frames_come_back() {
        let long = vec![7; MAX_FRAME as usize];
        for frames in [&[][..], &[b"one".as_slice(), b"", &long, b"four"]] {
            assert_eq!(read(&file(frames)[..]).unwrap(), frames);
        }
    }

    #[test]
    fn frames_that_are_too_long_are_refused() {
        let long = vec![0; MAX_FRAME as usize + 1];
        let error = write(Vec::new(), &[&b"ok"[..], &long]);
        assert!(matches!(error, Err(FileError::TooLong { index: 1, length: 65_551 })));
    }

    #[test]
    fn files_of_other_kinds_are_refused() {
        assert!(matches!(read(&b""[..]), Err(FileError::Header(_))));
        assert!(matches!(read(&b"prefix,next_hop\n0.0.0.0/0,1.1.1.1\n"[..]), Err(FileError::Header(_))));
        let mut raw_ip = file(&[b"x"]);
        // The link type is the last field of the header; the writer chose the byte order.
        let link = if raw_ip[0] == 0xa1 { 23 } else { 20 };
        raw_ip[link] = 101;
        assert!(matches!(read(&raw_ip[..]), Err(FileError::LinkType(DataLink::RAW))));
    }

    #[test]
    fn a_file_cut_anywhere_is_an_error_or_shorter() {
        let whole = file(&[b"first", b"second"]);
        let first = 24 + 16 + 5;
        for length in 0..whole.len() {
            match read(&whole[..length]) {
                Ok(frames) => {
                    assert!((length == 24 && frames.is_empty()) || (length == first && frames.len() == 1));
                }
                Err(FileError::Header(_)) => assert!(length < 24),
                Err(FileError::Read { index, .. }) => assert_eq!(index, usize::from(length > first)),
                Err(other) => panic!("{length}: {other}"),
            }
        }
    }

    #[test]
    fn no_damage_is_too_odd() {
        let whole = file(&[b"first", b"second", b"third"]);
        for at in 0..whole.len() {
            for byte in [0x00, 0x01, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                if let Ok(frames) = read(&damaged[..]) {
                    assert!(frames.iter().map(Vec::len).sum::<usize>() <= whole.len());
                }
            }
        }
    }

    #[test]
    fn cut_packets_and_huge_lengths_are_refused() {
        let big_endian = file(&[])[0] == 0xa1;
        let number = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let with = |captured: u32, length: u32, data: &[u8]| {
            let mut bytes = file(&[]);
            for field in [0, 0, captured, length] {
                bytes.extend(number(field));
            }
            bytes.extend(data);
            read(&bytes[..])
        };
        assert!(matches!(with(2, 60, b"ab"), Err(FileError::Cut { index: 0, captured: 2, length: 60 })));
        assert!(matches!(with(u32::MAX, u32::MAX, b"ab"), Err(FileError::Read { index: 0, .. })));
        let long = vec![0; MAX_FRAME as usize + 1];
        assert!(matches!(
            with(MAX_FRAME + 1, MAX_FRAME + 1, &long),
            Err(FileError::TooLong { index: 0, .. })
        ));
    }
}
