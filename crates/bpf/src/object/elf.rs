//! The ELF container of an object: sections, symbols and relocations, checked once so that the rest of the reader
//! can use them without checking again.
//!
//! It relies on the `object` crate for the layout of ELF structures. It knows nothing of maps or programs, and it
//! accepts only what a BPF compiler writes: a 64-bit little-endian relocatable file for machine 247 in which no two
//! sections share bytes. The last rule is what bounds the memory of everything that copies from sections.

use ::object::elf::{self, FileHeader64, SectionHeader64, Sym64};
use ::object::read::elf::{FileHeader, Rel, SectionHeader, Sym};
use ::object::{LittleEndian, SectionIndex};

use super::ObjectError;
use crate::btf::c_str;

/// Longest name of a section or symbol, in bytes; the kernel's `KSYM_NAME_LEN`.
pub const MAX_NAME: usize = 512;

const LE: LittleEndian = LittleEndian;

/// A section.
pub struct Section<'a> {
    /// Name; empty if the file has none for it.
    pub name: &'a str,
    /// `SHT_*`.
    pub kind: u32,
    /// `SHF_*`.
    pub flags: u64,
    /// Size in bytes.
    pub size: u64,
    /// Contents; empty for sections without any (`SHT_NOBITS`).
    pub data: &'a [u8],
    header: &'a SectionHeader64<LittleEndian>,
}

impl Section<'_> {
    /// Whether it holds instructions.
    pub fn is_code(&self) -> bool {
        self.kind == elf::SHT_PROGBITS && self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }
}

/// Where a symbol is defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// Nowhere: the kernel or another object has to provide it.
    Extern,
    /// In the section of that index, which exists.
    Section(usize),
    /// Neither: a common or absolute symbol.
    Special,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol<'a> {
    /// Name; empty for section symbols.
    pub name: &'a str,
    /// `STT_*`.
    pub kind: u8,
    /// Whether it is visible outside its file (global or weak).
    pub is_global: bool,
    /// Where it is defined.
    pub home: Home,
    /// Offset in its section, in bytes.
    pub value: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A relocation.
#[derive(Clone, Copy, Debug)]
pub struct Relocation {
    /// Place in the section, in bytes.
    pub offset: u64,
    /// `R_BPF_*`.
    pub kind: u32,
    /// Index of the symbol, which exists.
    pub symbol: usize,
}

/// A checked ELF file.
pub struct Elf<'a> {
    /// Sections by ELF index.
    pub sections: Vec<Section<'a>>,
    /// Symbols by ELF index.
    pub symbols: Vec<Symbol<'a>>,
    /// Relocations of each section, sorted by place.
    pub relocations: Vec<Vec<Relocation>>,
}

impl<'a> Elf<'a> {
    /// Reads the container.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>, ObjectError> {
        check_ident(bytes)?;
        let header = FileHeader64::<LittleEndian>::parse(bytes)
            .map_err(|_| ObjectError::truncated("ELF header", 0, 64, bytes.len()))?;
        check_header(header, bytes)?;
        let sections = read_sections(header, bytes)?;
        let (table, symbols) = read_symbols(&sections)?;
        let relocations = read_relocations(&sections, table, symbols.len())?;
        Ok(Elf { sections, symbols, relocations })
    }

    /// The first section of that name, with its index.
    pub fn section(&self, name: &str) -> Option<(usize, &Section<'a>)> {
        self.sections.iter().enumerate().find(|(_, s)| s.name == name)
    }
}

/// The first 20 bytes, checked by hand because each way of being wrong deserves its own advice.
fn check_ident(bytes: &[u8]) -> Result<(), ObjectError> {
    let magic = bytes.get(..4).unwrap_or(bytes);
    if magic != elf::ELFMAG {
        return Err(ObjectError::NotElf { found: magic.to_vec() });
    }
    if bytes.len() < 64 {
        return Err(ObjectError::truncated("ELF header", 0, 64, bytes.len()));
    }
    if bytes[4] != elf::ELFCLASS64 {
        return Err(ObjectError::NotElf64);
    }
    let big_endian = bytes[5] == elf::ELFDATA2MSB;
    let machine = [bytes[18], bytes[19]];
    let machine = if big_endian { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
    if machine != elf::EM_BPF {
        return Err(ObjectError::NotBpf { machine });
    }
    if big_endian { Err(ObjectError::BigEndian) } else { Ok(()) }
}

fn check_header(header: &FileHeader64<LittleEndian>, bytes: &[u8]) -> Result<(), ObjectError> {
    let kind = header.e_type.get(LE);
    if kind != elf::ET_REL {
        return Err(ObjectError::NotRelocatable { kind });
    }
    let table = header.e_shoff.get(LE);
    let size = 64 * u64::from(header.e_shnum.get(LE));
    if table.saturating_add(size) > bytes.len() as u64 {
        return Err(ObjectError::truncated("section header table", table, size, bytes.len()));
    }
    Ok(())
}

fn read_sections<'a>(
    header: &FileHeader64<LittleEndian>,
    bytes: &'a [u8],
) -> Result<Vec<Section<'a>>, ObjectError> {
    let malformed = |why: ::object::Error| ObjectError::malformed("section header table", why.to_string());
    let headers = header.section_headers(LE, bytes).map_err(malformed)?;
    if headers.is_empty() {
        return Err(ObjectError::malformed("section header table", "it is empty; was the file stripped?"));
    }
    let names = header.section_strings_index(LE, bytes).map_err(malformed)?;
    let names = headers.get(names.0).map_or(Ok(&[][..]), |h| section_data(h, bytes, names.0, ""))?;
    let mut total = 0u64;
    let mut sections = Vec::with_capacity(headers.len());
    for (index, header) in headers.iter().enumerate() {
        let name = c_str(names, header.sh_name(LE) as usize, MAX_NAME).unwrap_or("");
        let data = section_data(header, bytes, index, name)?;
        total += data.len() as u64;
        sections.push(Section {
            name,
            kind: header.sh_type(LE),
            flags: header.sh_flags(LE),
            size: header.sh_size(LE),
            data,
            header,
        });
    }
    if total > bytes.len() as u64 {
        let why = format!("sections hold {total} bytes, more than the file's {}: they overlap", bytes.len());
        return Err(ObjectError::malformed("section header table", why));
    }
    Ok(sections)
}

fn section_data<'a>(
    header: &SectionHeader64<LittleEndian>,
    bytes: &'a [u8],
    index: usize,
    name: &str,
) -> Result<&'a [u8], ObjectError> {
    let (offset, size) = (header.sh_offset(LE), header.sh_size(LE));
    header
        .data(LE, bytes)
        .map_err(|_| ObjectError::truncated(format!("section {index} `{name}`"), offset, size, bytes.len()))
}

/// The symbol table's section index (0 if there is none) and its symbols.
fn read_symbols<'a>(sections: &[Section<'a>]) -> Result<(usize, Vec<Symbol<'a>>), ObjectError> {
    let Some(table) = sections.iter().position(|s| s.kind == elf::SHT_SYMTAB) else {
        return Ok((0, Vec::new()));
    };
    let section = &sections[table];
    let raw: &[Sym64<LittleEndian>] = records(section)?;
    let names = sections.get(section.header.link(LE).0).map_or(&[][..], |s| s.data);
    Ok((table, raw.iter().map(|symbol| read_symbol(symbol, names, sections.len())).collect()))
}

fn read_symbol<'a>(symbol: &Sym64<LittleEndian>, names: &'a [u8], sections: usize) -> Symbol<'a> {
    // Section indices of 0xff00 and more are special; objects with so many sections are not worth their table.
    let home = match symbol.st_shndx(LE) {
        elf::SHN_UNDEF => Home::Extern,
        index if usize::from(index) < sections && index < elf::SHN_LORESERVE => Home::Section(index.into()),
        _ => Home::Special,
    };
    Symbol {
        name: c_str(names, symbol.st_name(LE) as usize, MAX_NAME).unwrap_or(""),
        kind: symbol.st_type(),
        is_global: symbol.st_bind() != elf::STB_LOCAL,
        home,
        value: symbol.st_value(LE),
        size: symbol.st_size(LE),
    }
}

fn read_relocations(
    sections: &[Section<'_>],
    table: usize,
    symbols: usize,
) -> Result<Vec<Vec<Relocation>>, ObjectError> {
    let mut relocations = vec![Vec::new(); sections.len()];
    for section in sections {
        let malformed = |why: String| ObjectError::malformed(format!("section `{}`", section.name), why);
        if section.kind == elf::SHT_RELA {
            return Err(malformed("relocations with addends (RELA) are not what BPF objects use".into()));
        }
        if section.kind != elf::SHT_REL {
            continue;
        }
        let target = section.header.info_link(LE).0;
        let Some(list) = relocations.get_mut(target) else {
            return Err(malformed(format!("relocates section {target}, which does not exist")));
        };
        if section.header.link(LE) != SectionIndex(table) {
            return Err(malformed("refers to another symbol table than the file's".into()));
        }
        for raw in records::<elf::Rel64<LittleEndian>>(section)? {
            let symbol = raw.r_sym(LE) as usize;
            if symbol >= symbols {
                return Err(malformed(format!("refers to symbol {symbol} of {symbols}")));
            }
            list.push(Relocation { offset: raw.r_offset(LE), kind: raw.r_type(LE), symbol });
        }
    }
    for list in &mut relocations {
        list.sort_by_key(|r| r.offset);
    }
    Ok(relocations)
}

/// A section's contents as records of one size.
fn records<'a, T: ::object::Pod>(section: &Section<'a>) -> Result<&'a [T], ObjectError> {
    let size = std::mem::size_of::<T>();
    let count = section.data.len() / size;
    let whole = section.data.len().is_multiple_of(size);
    let list = ::object::slice_from_bytes(section.data, count).ok().filter(|_| whole);
    list.map(|(list, _)| list).ok_or_else(|| {
        let why = format!("{} bytes are no whole number of {size}-byte records", section.data.len());
        ObjectError::malformed(format!("section `{}`", section.name), why)
    })
}
