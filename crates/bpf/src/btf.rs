//! A reader of BTF, the type information in the `.BTF` section of an object and of the kernel.
//!
//! It reads as much as map definitions and reports need: every kind is walked with its right length, names,
//! sizes and members are kept, and what only debuggers ask for (parameter names, enumerator names, encodings) is
//! not. It relies on nothing but the bytes: type ids are checked when they are followed, never trusted, and chains
//! of aliases are cut after [`MAX_CHAIN`] steps, so that no input makes a query long.
//!
//! It deliberately does not relocate, deduplicate, or write BTF.
//!
//! Source of the format: `Documentation/bpf/btf.rst` and `include/uapi/linux/btf.h` of the kernel.

use thiserror::Error;

/// Index of a type; 0 is `void`.
pub type TypeId = u32;

/// Longest chain of typedefs, qualifiers and arrays that is followed (the kernel's own limit is the same).
pub const MAX_CHAIN: usize = 32;

/// Most fields that [`Btf::fields`] returns.
pub const MAX_FIELDS: usize = 1024;

/// Longest name that is read, in bytes; the kernel's `KSYM_NAME_LEN`.
const MAX_NAME: usize = 512;

/// Longest line of source that is read, in bytes.
const MAX_LINE: usize = 4096;

const MAGIC: u16 = 0xeb9f;

/// Why a BTF section cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BtfError {
    /// The header is incomplete or claims a length that it cannot have.
    #[error("BTF header: {why} (section of {size} bytes); recompile the object with -g")]
    Header {
        /// What is wrong.
        why: &'static str,
        /// Size of the section in bytes.
        size: usize,
    },
    /// The types or the strings lie outside the section.
    #[error("BTF {part} at bytes {start}..{end} lie outside the section of {size} bytes")]
    Outside {
        /// `types`, `strings`, or a part of `.BTF.ext`.
        part: &'static str,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Size of the section in bytes.
        size: usize,
    },
    /// A type is cut off by the end of the type section.
    #[error("BTF type [{id}] at byte {offset} of the types is cut off")]
    Truncated {
        /// The type.
        id: TypeId,
        /// Where it begins in the type section.
        offset: usize,
    },
    /// A kind that this reader does not know, so that its length is unknown too.
    #[error("BTF type [{id}] has the unknown kind {kind}; the compiler is newer than this reader")]
    UnknownKind {
        /// The type.
        id: TypeId,
        /// `BTF_KIND_*`.
        kind: u32,
    },
    /// A record list of `.BTF.ext` is inconsistent.
    #[error("BTF.ext {part} at byte {offset}: {why}")]
    Ext {
        /// `line info` or `CO-RE relocations`.
        part: &'static str,
        /// Where in the section.
        offset: usize,
        /// What is wrong.
        why: &'static str,
    },
}

/// A member of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Offset of the name in the strings.
    pub name: u32,
    /// Type of the member.
    pub ty: TypeId,
    /// Offset from the start of the struct, in bits.
    pub bit_offset: u32,
    /// Width in bits of a bit field, 0 for ordinary members.
    pub bit_size: u32,
}

/// A variable of a data section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionVar {
    /// The variable (a [`Kind::Var`]) or, for externs, function.
    pub ty: TypeId,
    /// Offset in the section, in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// What a type is. Kinds that only wrap another type are one: [`Kind::Alias`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `void`, and whatever has no size and no use here (forward declarations, tags).
    Void,
    /// An integer or floating-point number of so many bytes.
    Number {
        /// Size in bytes.
        size: u32,
    },
    /// A pointer.
    Ptr(TypeId),
    /// An array.
    Array {
        /// Type of an element.
        element: TypeId,
        /// Number of elements.
        count: u32,
    },
    /// A struct.
    Struct {
        /// Size in bytes.
        size: u32,
        /// Members in declaration order.
        members: Vec<Member>,
    },
    /// A union.
    Union {
        /// Size in bytes.
        size: u32,
        /// Members in declaration order.
        members: Vec<Member>,
    },
    /// An enumeration.
    Enum {
        /// Size in bytes.
        size: u32,
        /// Values of the enumerators in declaration order.
        values: Vec<i64>,
    },
    /// A typedef, `const`, `volatile`, `restrict` or type tag.
    Alias(TypeId),
    /// A function; the type is its prototype.
    Func(TypeId),
    /// A function prototype.
    FuncProto,
    /// A variable.
    Var {
        /// Its type.
        ty: TypeId,
        /// Whether it is visible only in its own file.
        is_static: bool,
    },
    /// A data section such as `.maps` or `.rodata`.
    DataSection {
        /// Size in bytes; 0 as the compiler writes it.
        size: u32,
        /// Its variables.
        vars: Vec<SectionVar>,
    },
}

/// One type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Offset of the name in the strings; the empty string for anonymous types.
    pub name: u32,
    /// What it is.
    pub kind: Kind,
}

/// A field of a key or value, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the member.
    pub name: String,
    /// Offset from the start of the type, in bytes.
    pub offset: u32,
    /// Size in bytes; for a bit field the bytes that it touches.
    pub size: u32,
}

/// Parsed type information.
#[derive(Clone, Debug)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
}

impl Btf {
    /// Reads the contents of a `.BTF` section (little-endian).
    ///
    /// # Errors
    /// [`BtfError`] when the header, the types or the strings do not fit the section, or a kind is unknown.
    pub fn parse(bytes: &[u8]) -> Result<Btf, BtfError> {
        let header = |why| BtfError::Header { why, size: bytes.len() };
        let word = |at: usize| read_u32(bytes, at).ok_or(header("cut off before its end"));
        let magic = bytes.get(..2).ok_or(header("cut off before its end"))?;
        if u16::from_le_bytes([magic[0], magic[1]]) != MAGIC {
            return Err(header("wrong magic number, 0xeb9f in little-endian order expected"));
        }
        let header_len = word(4)? as usize;
        let types = part(bytes, header_len, word(8)?, word(12)?, "types")?;
        let strings = part(bytes, header_len, word(16)?, word(20)?, "strings")?;
        Ok(Btf { types: parse_types(types)?, strings: strings.to_vec() })
    }

    /// Number of types, `void` included; every valid id is less.
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// Whether there is no type but `void`.
    pub fn is_empty(&self) -> bool {
        self.types.len() <= 1
    }

    /// The type of that id, if there is one.
    pub fn ty(&self, id: TypeId) -> Option<&Type> {
        self.types.get(id as usize)
    }

    /// The name at that offset of the strings; `None` if the offset is outside, or the name is not UTF-8 or longer
    /// than 512 bytes.
    pub fn string(&self, offset: u32) -> Option<&str> {
        c_str(&self.strings, offset as usize, MAX_NAME)
    }

    /// The line of source at that offset of the strings, like [`Btf::string`] but for up to 4096 bytes.
    pub fn line(&self, offset: u32) -> Option<&str> {
        c_str(&self.strings, offset as usize, MAX_LINE)
    }

    /// The name of a type; empty for anonymous types and unknown ids.
    pub fn name(&self, id: TypeId) -> &str {
        self.ty(id).and_then(|t| self.string(t.name)).unwrap_or("")
    }

    /// Follows typedefs, qualifiers and tags to the type itself. `None` for unknown ids and endless chains.
    pub fn resolve(&self, mut id: TypeId) -> Option<(TypeId, &Type)> {
        for _ in 0..MAX_CHAIN {
            let ty = self.ty(id)?;
            match ty.kind {
                Kind::Alias(next) => id = next,
                _ => return Some((id, ty)),
            }
        }
        None
    }

    /// Size of a type in bytes; `None` where it has none (functions, `void`), is unknown, or exceeds 32 bits.
    pub fn size_of(&self, mut id: TypeId) -> Option<u32> {
        let mut count: u32 = 1;
        for _ in 0..MAX_CHAIN {
            let (_, ty) = self.resolve(id)?;
            let size = match &ty.kind {
                Kind::Array { element, count: n } => {
                    count = count.checked_mul(*n)?;
                    id = *element;
                    continue;
                }
                Kind::Var { ty, .. } => {
                    id = *ty;
                    continue;
                }
                Kind::Number { size }
                | Kind::Struct { size, .. }
                | Kind::Union { size, .. }
                | Kind::Enum { size, .. }
                | Kind::DataSection { size, .. } => *size,
                Kind::Ptr(_) => 8,
                Kind::Void | Kind::Alias(_) | Kind::Func(_) | Kind::FuncProto => return None,
            };
            return count.checked_mul(size);
        }
        None
    }

    /// The fields of a struct or union, or the variables of a data section, by offset. Members of anonymous
    /// structs and unions are listed as if they were the outer type's own. At most [`MAX_FIELDS`] are looked at;
    /// empty for other types.
    pub fn fields(&self, id: TypeId) -> Vec<Field> {
        let mut fields = Vec::new();
        // Types can contain one another many times over, so what bounds the work is the number of members
        // looked at, not the size of the type section.
        let mut budget = MAX_FIELDS;
        let mut pending = vec![(id, 0u32)];
        while let Some((id, base)) = pending.pop() {
            match self.resolve(id).map(|(_, ty)| &ty.kind) {
                Some(Kind::Struct { members, .. } | Kind::Union { members, .. }) => {
                    for member in members.iter().take(budget) {
                        budget -= 1;
                        let offset = base.saturating_add(member.bit_offset / 8);
                        match self.string(member.name) {
                            None | Some("") => pending.push((member.ty, offset)),
                            Some(name) => {
                                let size = self.member_size(member);
                                fields.push(Field { name: name.to_owned(), offset, size });
                            }
                        }
                    }
                }
                Some(Kind::DataSection { vars, .. }) => {
                    for var in vars.iter().take(budget) {
                        budget -= 1;
                        let name = self.name(var.ty).to_owned();
                        fields.push(Field { name, offset: var.offset, size: var.size });
                    }
                }
                _ => {}
            }
        }
        fields.sort_by_key(|f| f.offset);
        fields
    }

    fn member_size(&self, member: &Member) -> u32 {
        match member.bit_size {
            0 => self.size_of(member.ty).unwrap_or(0),
            bits => (member.bit_offset % 8 + bits).div_ceil(8),
        }
    }

    /// The data sections with their names.
    pub fn data_sections(&self) -> impl Iterator<Item = (TypeId, &str)> {
        let is_section = |t: &Type| matches!(t.kind, Kind::DataSection { .. });
        (0..)
            .zip(&self.types)
            .filter(move |(_, t)| is_section(t))
            .filter_map(|(id, t)| Some((id, self.string(t.name)?)))
    }

    /// Id of the (first) data section of that name.
    pub fn data_section(&self, name: &str) -> Option<TypeId> {
        self.data_sections().find(|&(_, n)| n == name).map(|(id, _)| id)
    }

    /// The variables of a data section; empty for other types.
    pub fn section_vars(&self, id: TypeId) -> &[SectionVar] {
        match self.ty(id).map(|t| &t.kind) {
            Some(Kind::DataSection { vars, .. }) => vars,
            _ => &[],
        }
    }

    /// Gives data sections the sizes and offsets that only the object's symbols know: the compiler leaves both
    /// zero and asks the loader to fill them in.
    ///
    /// `size` maps the name of a section to its size, `offset` the names of a section and of a variable to the
    /// place of the variable. Where they answer `None`, nothing changes.
    pub(crate) fn place_data_sections(
        &mut self,
        size: impl Fn(&str) -> Option<u32>,
        offset: impl Fn(&str, &str) -> Option<u32>,
    ) {
        for index in 0..self.types.len() {
            let Kind::DataSection { size: written, vars } = &self.types[index].kind else { continue };
            let section = self.string(self.types[index].name).unwrap_or("");
            let size = size(section).unwrap_or(*written);
            let place = |var: &SectionVar| {
                let offset = offset(section, self.name(var.ty)).unwrap_or(var.offset);
                SectionVar { offset, ..var.clone() }
            };
            let vars = vars.iter().map(place).collect();
            self.types[index].kind = Kind::DataSection { size, vars };
        }
    }
}

/// The bytes `offset..offset + len` after the header.
pub(crate) fn part<'a>(
    bytes: &'a [u8],
    header_len: usize,
    offset: u32,
    len: u32,
    part: &'static str,
) -> Result<&'a [u8], BtfError> {
    let start = header_len as u64 + u64::from(offset);
    let end = start + u64::from(len);
    let outside = BtfError::Outside { part, start, end, size: bytes.len() };
    if end > bytes.len() as u64 { Err(outside) } else { Ok(&bytes[start as usize..end as usize]) }
}

/// Little-endian word at a byte offset.
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The NUL-terminated UTF-8 string at an offset, at most `max` bytes long. Bounded, because the strings of many
/// symbols may be one and the same huge string.
pub(crate) fn c_str(bytes: &[u8], at: usize, max: usize) -> Option<&str> {
    let tail = bytes.get(at..)?;
    let tail = &tail[..tail.len().min(max + 1)];
    let len = tail.iter().position(|&b| b == 0)?;
    std::str::from_utf8(&tail[..len]).ok()
}

fn parse_types(bytes: &[u8]) -> Result<Vec<Type>, BtfError> {
    let mut types = vec![Type { name: 0, kind: Kind::Void }];
    let mut at = 0;
    while at < bytes.len() {
        let id = types.len() as TypeId;
        let mut words = Words { bytes, at, cut_off: BtfError::Truncated { id, offset: at } };
        types.push(parse_type(&mut words, id)?);
        at = words.at;
    }
    Ok(types)
}

struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
    cut_off: BtfError,
}

impl Words<'_> {
    fn next(&mut self) -> Result<u32, BtfError> {
        let word = read_u32(self.bytes, self.at).ok_or_else(|| self.cut_off.clone())?;
        self.at += 4;
        Ok(word)
    }

    /// Checks that so many records of so many words follow, before memory is set aside for them.
    fn expect(&self, records: usize, words: usize) -> Result<(), BtfError> {
        let left = (self.bytes.len() - self.at) / 4;
        if records * words <= left { Ok(()) } else { Err(self.cut_off.clone()) }
    }

    fn list<T>(
        &mut self,
        count: usize,
        words: usize,
        read: impl Fn(&mut Self) -> Result<T, BtfError>,
    ) -> Result<Vec<T>, BtfError> {
        self.expect(count, words)?;
        (0..count).map(|_| read(self)).collect()
    }

    fn skip(&mut self, count: usize, words: usize) -> Result<(), BtfError> {
        self.expect(count, words)?;
        self.at += count * words * 4;
        Ok(())
    }
}

fn parse_type(words: &mut Words<'_>, id: TypeId) -> Result<Type, BtfError> {
    let name = words.next()?;
    let info = words.next()?;
    // One word is the size or the type that is referred to, by kind.
    let word = words.next()?;
    let len = (info & 0xffff) as usize;
    let has_bit_fields = info >> 31 != 0;
    let kind = match (info >> 24) & 0x1f {
        1 => {
            words.skip(1, 1)?;
            Kind::Number { size: word }
        }
        2 => Kind::Ptr(word),
        3 => {
            let element = words.next()?;
            words.skip(1, 1)?;
            Kind::Array { element, count: words.next()? }
        }
        4 => Kind::Struct { size: word, members: parse_members(words, len, has_bit_fields)? },
        5 => Kind::Union { size: word, members: parse_members(words, len, has_bit_fields)? },
        6 => Kind::Enum { size: word, values: words.list(len, 2, parse_enumerator)? },
        7 => Kind::Void,
        8..=11 | 18 => Kind::Alias(word),
        12 => Kind::Func(word),
        13 => {
            words.skip(len, 2)?;
            Kind::FuncProto
        }
        14 => Kind::Var { ty: word, is_static: words.next()? == 0 },
        15 => Kind::DataSection { size: word, vars: words.list(len, 3, parse_var)? },
        16 => Kind::Number { size: word },
        17 => {
            words.skip(1, 1)?;
            Kind::Void
        }
        19 => Kind::Enum { size: word, values: words.list(len, 3, parse_enumerator64)? },
        kind => return Err(BtfError::UnknownKind { id, kind }),
    };
    Ok(Type { name, kind })
}

fn parse_members(words: &mut Words<'_>, len: usize, has_bit_fields: bool) -> Result<Vec<Member>, BtfError> {
    words.list(len, 3, |words| {
        let (name, ty, offset) = (words.next()?, words.next()?, words.next()?);
        Ok(match has_bit_fields {
            true => Member { name, ty, bit_offset: offset & 0xff_ffff, bit_size: offset >> 24 },
            false => Member { name, ty, bit_offset: offset, bit_size: 0 },
        })
    })
}

fn parse_enumerator(words: &mut Words<'_>) -> Result<i64, BtfError> {
    words.next()?;
    Ok(i64::from(words.next()? as i32))
}

fn parse_enumerator64(words: &mut Words<'_>) -> Result<i64, BtfError> {
    words.next()?;
    let (low, high) = (words.next()?, words.next()?);
    Ok((u64::from(high) << 32 | u64::from(low)) as i64)
}

fn parse_var(words: &mut Words<'_>) -> Result<SectionVar, BtfError> {
    Ok(SectionVar { ty: words.next()?, offset: words.next()?, size: words.next()? })
}
