//! eBPF ELF objects as clang writes them and libbpf loads them: read into maps and programs in canonical form,
//! without any privilege and without a kernel.
//!
//! ```no_run
//! let bytes = std::fs::read("router.bpf.o")?;
//! let object = runnel_bpf::object::Object::parse(&bytes)?;
//! for program in &object.programs {
//!     match &program.spec {
//!         Ok(spec) => println!("{}: {} instructions", program.name, spec.insns.len()),
//!         Err(refusal) => println!("{}: {refusal}", program.name),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The way through: `elf` checks the container, `maps` reads declarations and data sections, `link` builds
//! programs, `hook` types them, `ext` keeps lines of source and CO-RE relocations. An error concerns the file
//! as a whole; a program that cannot be used is refused on its own, with the reason, and the others stay usable.
//!
//! It relies on nothing in its input: sizes are checked before memory is set aside, names beyond 512 bytes count as none,
//! and what programs take together is limited. It deliberately does not resolve CO-RE relocations, kernel symbols
//! or configuration values, nor write objects.

mod elf;
mod ext;
pub mod hook;
mod link;
mod maps;

use std::collections::HashMap;

use ::object::elf::STT_OBJECT;
use thiserror::Error;

use crate::btf::{Btf, BtfError, TypeId};
use crate::spec::ProgramSpec;
use elf::{Elf, Home};
use ext::ExtInfo;
use link::Linker;
use maps::MapTable;

pub use link::{ExternKind, Function, LINK_BUDGET, MAX_INSNS, Place, Placement, Refusal};
pub use maps::{InitialData, MapDef, MapRefusal, RefusedMap, SlotValue};

/// Longest license string, in bytes, that the kernel looks at.
const MAX_LICENSE: usize = 127;

/// Why a file cannot be read as an eBPF object.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// It does not begin as ELF files do.
    #[error(
        "not an ELF file: it begins with the bytes {found:02x?} instead of 7f 45 4c 46; \
         give an object file made with `clang -target bpf -c`"
    )]
    NotElf {
        /// Its first bytes, at most four.
        found: Vec<u8>,
    },
    /// It is a 32-bit ELF file.
    #[error("a 32-bit ELF file; eBPF objects are 64-bit: compile with `clang -target bpf -c`")]
    NotElf64,
    /// It holds code for another machine.
    #[error("an ELF file for machine {machine}, not for eBPF (247): compile with `clang -target bpf -c`")]
    NotBpf {
        /// `EM_*`.
        machine: u16,
    },
    /// It is an eBPF object for big-endian machines.
    #[error("an eBPF object for big-endian machines: compile with `clang -target bpfel -c`")]
    BigEndian,
    /// It is not an object file but an executable, a core dump …
    #[error(
        "an eBPF ELF file of type {kind} instead of a relocatable object (1): give the output of `clang -c`"
    )]
    NotRelocatable {
        /// `ET_*`.
        kind: u16,
    },
    /// A part of it lies beyond its end.
    #[error("cut off: {what} should be at bytes {offset}..{}, but the file has {file_size}", .offset.saturating_add(*.size))]
    Truncated {
        /// Which part.
        what: String,
        /// Where it should begin, in bytes.
        offset: u64,
        /// Its size in bytes.
        size: u64,
        /// Size of the file in bytes.
        file_size: usize,
    },
    /// A part of it contradicts itself or the rest.
    #[error("malformed {what}: {why}")]
    Malformed {
        /// Which part.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The type information is unusable.
    #[error("unusable type information: {0}")]
    Btf(#[from] BtfError),
}

impl ObjectError {
    fn truncated(what: impl Into<String>, offset: u64, size: u64, file_size: usize) -> Self {
        ObjectError::Truncated { what: what.into(), offset, size, file_size }
    }

    fn malformed(what: impl Into<String>, why: impl Into<String>) -> Self {
        ObjectError::Malformed { what: what.into(), why: why.into() }
    }
}

/// A program of an object.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name of the entry function.
    pub name: String,
    /// Section of the entry function.
    pub section: String,
    /// Whether loaders are to load it unless told otherwise (its section's name has no leading `?`).
    pub autoload: bool,
    /// The program in canonical form, or why it cannot be used.
    pub spec: Result<ProgramSpec, Refusal>,
    /// For each map of `spec.maps`, its index in [`Object::maps`].
    pub maps: Vec<usize>,
    /// The functions it is made of, by place; the entry is the first. Empty for refused programs.
    pub functions: Vec<Placement>,
}

/// The line of source that an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// File, as the compiler was given it.
    pub file: &'a str,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
    /// Text of the line, with its indentation.
    pub text: &'a str,
}

/// A CO-RE relocation of a program: a value that has to be adapted to the running kernel's types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreRelocation<'a> {
    /// Instruction slot in the program.
    pub pc: usize,
    /// `enum bpf_core_relo_kind`.
    pub kind: u32,
    /// Type that it is about, in the object's BTF.
    pub type_id: TypeId,
    /// Name of that type; empty for anonymous types.
    pub type_name: &'a str,
    /// Access string, such as `0:1:2`.
    pub access: &'a str,
}

/// An eBPF object.
#[derive(Clone, Debug)]
pub struct Object {
    /// License string, empty if the object has none.
    pub license: String,
    /// Usable maps: declared ones, then data sections.
    pub maps: Vec<MapDef>,
    /// Maps that cannot be used, with the reason.
    pub refused_maps: Vec<RefusedMap>,
    /// Programs by section and place.
    pub programs: Vec<Program>,
    /// Functions of all sections of code, by section and place.
    pub functions: Vec<Function>,
    /// Type information, if the object has any.
    pub btf: Option<Btf>,
    ext: ExtInfo,
}

impl Object {
    /// Reads an object from the bytes of its file. Data sections are named without the object's name (`.rodata`).
    ///
    /// # Errors
    /// [`ObjectError`] when the file as a whole is not a usable eBPF object. Programs and maps that cannot be used
    /// are no errors: see [`Program::spec`] and [`Object::refused_maps`].
    pub fn parse(bytes: &[u8]) -> Result<Object, ObjectError> {
        Self::parse_named(bytes, "")
    }

    /// Like [`Object::parse`], for an object of that name, which begins the names of the maps of data sections:
    /// `router` gives `router.rodata`. libbpf takes the name of the file up to its first dot.
    ///
    /// # Errors
    /// As [`Object::parse`].
    pub fn parse_named(bytes: &[u8], name: &str) -> Result<Object, ObjectError> {
        let elf = Elf::parse(bytes)?;
        let btf = read_btf(&elf)?;
        let ext = read_ext(&elf, btf.as_ref())?;
        let table = MapTable::collect(&elf, btf.as_ref(), name);
        let functions = link::functions(&elf);
        let license = license(&elf);
        let mut linker = Linker::new(&elf, &functions, &table, btf.as_ref());
        let programs = link::entries(&functions)
            .into_iter()
            .map(|entry| program(&functions[entry], linker.link(entry), &table, &license))
            .collect();
        let MapTable { maps, refused: refused_maps, .. } = table;
        Ok(Object { license, maps, refused_maps, programs, functions, btf, ext })
    }

    /// The program of that name.
    pub fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|p| p.name == name)
    }

    /// The map of that name, or the data section of that name (`.rodata`).
    pub fn map(&self, name: &str) -> Option<&MapDef> {
        let by_name = self.maps.iter().find(|m| m.spec.name == name);
        by_name.or_else(|| self.maps.iter().find(|m| m.section == name && m.initial.is_some()))
    }

    /// The function that holds an instruction of a program of this object, and the instruction's slot in it.
    pub fn function_at(&self, program: &Program, pc: usize) -> Option<(&Function, usize)> {
        let index = program.functions.partition_point(|p| p.start <= pc).checked_sub(1)?;
        let placement = program.functions[index];
        let function = self.functions.get(placement.function)?;
        let inside = pc - placement.start;
        (inside < function.len).then_some((function, inside))
    }

    /// The line of source that an instruction of a program of this object comes from; `None` without line
    /// information for its function.
    pub fn source_line(&self, program: &Program, pc: usize) -> Option<SourceLine<'_>> {
        let (function, inside) = self.function_at(program, pc)?;
        let lines = self.ext.lines.get(&function.section_index)?;
        let insn = function.start + inside;
        let record = lines[..lines.partition_point(|r| r.insn <= insn)].last()?;
        let btf = self.btf.as_ref()?;
        // A record holds up to the next one, but not for the function before.
        (record.insn >= function.start).then_some(SourceLine {
            file: btf.line(record.file)?,
            line: record.line,
            column: record.column,
            text: btf.line(record.text)?,
        })
    }

    /// The CO-RE relocations of a program of this object, by instruction. They are not applied: an instruction
    /// that has one holds what the compiler knew.
    pub fn core_relocations(&self, program: &Program) -> Vec<CoreRelocation<'_>> {
        let Some(btf) = &self.btf else { return Vec::new() };
        let mut found = Vec::new();
        for placement in &program.functions {
            let Some(function) = self.functions.get(placement.function) else { continue };
            let Some(records) = self.ext.core.get(&function.section_index) else { continue };
            let first = records.partition_point(|r| r.insn < function.start);
            let inside = records[first..].iter().take_while(|r| r.insn < function.start + function.len);
            found.extend(inside.map(|record| CoreRelocation {
                pc: placement.start + record.insn - function.start,
                kind: record.kind,
                type_id: record.ty,
                type_name: btf.name(record.ty),
                access: btf.string(record.access).unwrap_or(""),
            }));
        }
        found
    }
}

fn read_btf(elf: &Elf<'_>) -> Result<Option<Btf>, ObjectError> {
    let Some((_, section)) = elf.section(".BTF") else { return Ok(None) };
    let mut btf = Btf::parse(section.data)?;
    let sizes: HashMap<&str, u64> = elf.sections.iter().map(|s| (s.name, s.size)).collect();
    let mut offsets = HashMap::new();
    for symbol in elf.symbols.iter().filter(|s| s.kind == STT_OBJECT) {
        if let Home::Section(section) = symbol.home {
            offsets.insert((elf.sections[section].name, symbol.name), symbol.value);
        }
    }
    btf.place_data_sections(
        |section| u32::try_from(*sizes.get(section)?).ok(),
        |section, var| u32::try_from(*offsets.get(&(section, var))?).ok(),
    );
    Ok(Some(btf))
}

fn read_ext(elf: &Elf<'_>, btf: Option<&Btf>) -> Result<ExtInfo, ObjectError> {
    let (Some(btf), Some((_, section))) = (btf, elf.section(".BTF.ext")) else {
        return Ok(ExtInfo::default());
    };
    let code = elf.sections.iter().enumerate().filter(|(_, s)| s.is_code());
    let by_name = code.map(|(index, section)| (section.name, index)).collect();
    Ok(ExtInfo::parse(section.data, btf, &by_name)?)
}

fn license(elf: &Elf<'_>) -> String {
    let data = elf.section("license").map_or(&[][..], |(_, section)| section.data);
    let text = data.split(|&b| b == 0).next().unwrap_or(&[]);
    String::from_utf8_lossy(&text[..text.len().min(MAX_LICENSE)]).into_owned()
}

fn program(
    function: &Function,
    linked: Result<link::Linked, Refusal>,
    table: &MapTable,
    license: &str,
) -> Program {
    let (name, section) = (function.name.clone(), function.section.clone());
    let autoload = !section.starts_with('?');
    let linked = match linked {
        Ok(linked) => linked,
        Err(refusal) => {
            let (maps, functions) = (Vec::new(), Vec::new());
            return Program { name, section, autoload, spec: Err(refusal), maps, functions };
        }
    };
    let hook = hook::hook_of_section(&section);
    let spec = ProgramSpec {
        name: name.clone(),
        section: section.clone(),
        prog_type: hook.prog_type,
        expected_attach_type: hook.attach_type,
        flags: hook.flags,
        license: license.to_owned(),
        insns: linked.insns,
        maps: linked.maps.iter().map(|&map| table.maps[map].spec.clone()).collect(),
    };
    Program { name, section, autoload, spec: Ok(spec), maps: linked.maps, functions: linked.functions }
}
