//! The `.BTF.ext` section: which line of source an instruction comes from, and which instructions await a CO-RE
//! relocation.
//!
//! It relies on the strings of `.BTF`, which it refers to by offset and never copies. Records are kept by section
//! of code and by place in it; [`super::Object`] maps them to the instructions of a linked program. Function
//! information, the section's third part, serves the kernel only and is passed over.
//!
//! Source of the format: `Documentation/bpf/btf.rst` of the kernel, `struct btf_ext_header` of libbpf.

use std::collections::HashMap;

use crate::btf::{Btf, BtfError, TypeId, part, read_u32};

/// The line of source that instructions from a place on come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRecord {
    /// Index of the first instruction in the section of code.
    pub insn: usize,
    /// Offset of the file's name in the strings of `.BTF`.
    pub file: u32,
    /// Offset of the line's text in the strings of `.BTF`.
    pub text: u32,
    /// Line number, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// A CO-RE relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreRecord {
    /// Index of the instruction in the section of code.
    pub insn: usize,
    /// Type that it is about.
    pub ty: TypeId,
    /// Offset of the access string in the strings of `.BTF`.
    pub access: u32,
    /// `enum bpf_core_relo_kind`.
    pub kind: u32,
}

/// Records by index of the section of code, sorted by instruction.
#[derive(Clone, Debug, Default)]
pub struct ExtInfo {
    /// Lines of source.
    pub lines: HashMap<usize, Vec<LineRecord>>,
    /// CO-RE relocations.
    pub core: HashMap<usize, Vec<CoreRecord>>,
}

impl ExtInfo {
    /// Reads the section. `strings` are those of `.BTF`; `sections` gives the index of a section of code by name.
    /// Records of other sections are left out.
    pub fn parse(bytes: &[u8], btf: &Btf, sections: &HashMap<&str, usize>) -> Result<ExtInfo, BtfError> {
        let header = |why| BtfError::Header { why, size: bytes.len() };
        let word = |at| read_u32(bytes, at).ok_or(header("of .BTF.ext is cut off before its end"));
        if bytes.get(..2) != Some(&[0x9f, 0xeb]) {
            return Err(header("of .BTF.ext has a wrong magic number"));
        }
        let header_len = word(4)? as usize;
        let mut info = ExtInfo::default();
        let lines = part(bytes, header_len, word(16)?, word(20)?, "line info")?;
        read_list(lines, "line info", btf, sections, &mut info.lines, line_record)?;
        // The third part was added later; older headers end before it.
        if header_len >= 32 {
            let core = part(bytes, header_len, word(24)?, word(28)?, "CO-RE relocations")?;
            read_list(core, "CO-RE relocations", btf, sections, &mut info.core, core_record)?;
        }
        info.lines.values_mut().for_each(|list| list.sort_by_key(|r| r.insn));
        info.core.values_mut().for_each(|list| list.sort_by_key(|r| r.insn));
        Ok(info)
    }
}

fn line_record(word: [u32; 4]) -> LineRecord {
    let [insn, file, text, position] = word;
    LineRecord { insn: insn as usize / 8, file, text, line: position >> 10, column: position & 0x3ff }
}

fn core_record(word: [u32; 4]) -> CoreRecord {
    let [insn, ty, access, kind] = word;
    CoreRecord { insn: insn as usize / 8, ty, access, kind }
}

/// A list is: size of a record, then per section of code its name, the number of records, and the records. Records
/// may be longer than the four words known here; the rest is passed over.
fn read_list<T>(
    bytes: &[u8],
    part: &'static str,
    btf: &Btf,
    sections: &HashMap<&str, usize>,
    into: &mut HashMap<usize, Vec<T>>,
    read: fn([u32; 4]) -> T,
) -> Result<(), BtfError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let bad = |offset, why| BtfError::Ext { part, offset, why };
    let word = |at| read_u32(bytes, at).ok_or(bad(at, "the list is cut off"));
    let record_len = word(0)? as usize;
    if record_len < 16 {
        return Err(bad(0, "a record is shorter than 16 bytes"));
    }
    let mut at = 4;
    while at < bytes.len() {
        let (name, count) = (word(at)?, word(at + 4)? as usize);
        let start = at + 8;
        let end = count.checked_mul(record_len).and_then(|len| start.checked_add(len));
        let end =
            end.filter(|&end| end <= bytes.len()).ok_or(bad(at, "more records than there is room for"))?;
        if let Some(&section) = btf.string(name).and_then(|name| sections.get(name)) {
            let list = into.entry(section).or_default();
            for record in bytes[start..end].chunks_exact(record_len) {
                let word = |index: usize| read_u32(record, 4 * index).unwrap_or(0);
                list.push(read([word(0), word(1), word(2), word(3)]));
            }
        }
        at = end;
    }
    Ok(())
}
