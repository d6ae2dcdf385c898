//! Linking: from the functions of an object to programs in canonical form.
//!
//! A program is an entry function with every function that it reaches by calls or by address appended behind it, in
//! the order of the first reference, depth first: the order in which libbpf lays programs out, so that a program
//! read here equals the one that libbpf loaded. References to maps and data become indices into the program's own
//! list of maps.
//!
//! It relies on checked sections ([`super::elf`]) and collected maps ([`super::maps`]). What it cannot link it
//! refuses, program by program. It does not look at instructions that refer to nothing outside their function,
//! so it says nothing about whether a program is valid. Work and memory over all programs of an object are
//! bounded by [`LINK_BUDGET`], since programs that share subprograms can be far larger than their file.

use std::collections::HashMap;
use std::fmt;

use ::object::elf::STT_FUNC;
use thiserror::Error;

use super::elf::{Elf, Home, Relocation, Symbol};
use super::maps::{MapRefusal, MapTable};
use crate::btf::Btf;
use crate::insn::{CALL, Insn, JMP, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE};

/// Most instructions of a program that the kernel takes (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const MAX_INSNS: usize = 1_000_000;

/// Bytes that all linked programs of an object may take together.
pub const LINK_BUDGET: usize = 64 << 20;

/// Bytes that an instruction slot, a placed function and a map reference (without its name) count.
const INSN_COST: usize = 8;
const FUNCTION_COST: usize = 32;
const MAP_COST: usize = 64;

/// `R_BPF_64_64`: a 64-bit immediate.
const R_64_64: u32 = 1;
/// `R_BPF_64_32`: a call.
const R_64_32: u32 = 10;

/// A place in the object's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the function.
    pub function: String,
    /// Instruction slot in the function.
    pub insn: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {} of function `{}`", self.insn, self.function)
    }
}

/// What an extern symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternKind {
    /// A function of the kernel that is called.
    KernelFunction,
    /// A variable or function of the kernel whose address is taken (`.ksyms`).
    KernelSymbol,
    /// A value of the kernel's configuration (`.kconfig`).
    KernelConfig,
    /// The object does not say.
    Unknown,
}

impl fmt::Display for ExternKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExternKind::KernelFunction => "kernel function",
            ExternKind::KernelSymbol => "kernel symbol",
            ExternKind::KernelConfig => "kernel configuration value",
            ExternKind::Unknown => "external symbol",
        })
    }
}

/// Why a program of an object cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It needs something that only a running kernel, or another object, can provide.
    #[error("{place} needs the {kind} `{symbol}`, which is outside the object")]
    Extern {
        /// Name of the symbol.
        symbol: String,
        /// What it stands for.
        kind: ExternKind,
        /// Who needs it.
        place: Place,
    },
    /// It uses a map that cannot be used.
    #[error("{place} uses the map `{map}`, but {reason}")]
    Map {
        /// Name of the map.
        map: String,
        /// Why the map cannot be used.
        reason: MapRefusal,
        /// Who uses it.
        place: Place,
    },
    /// It refers to a section that is neither code nor maps nor plain data (arenas, jump tables, struct_ops).
    #[error("{place} refers to `{symbol}` in section `{section}`, which is neither code, maps nor data")]
    Section {
        /// Name of the symbol, or empty.
        symbol: String,
        /// Name of the section.
        section: String,
        /// Who refers to it.
        place: Place,
    },
    /// A relocation makes no sense where it is.
    #[error("{place}: {why}")]
    Relocation {
        /// Where.
        place: Place,
        /// What is wrong.
        why: String,
    },
    /// A function's symbol has a place or size that cannot be, or ends amid an instruction.
    #[error("function `{function}` {why}")]
    Function {
        /// Name of the function.
        function: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The program, or all programs of the object together, are larger than what is linked.
    #[error("the program has {insns} instructions or more with its subprograms; {limit}")]
    TooLarge {
        /// Instructions placed when the limit was met.
        insns: usize,
        /// Which limit.
        limit: &'static str,
    },
}

/// A function of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name of its symbol.
    pub name: String,
    /// Name of its section.
    pub section: String,
    /// First instruction slot in the section.
    pub start: usize,
    /// Length in instruction slots; 0 if the symbol's place or size cannot be.
    pub len: usize,
    /// Whether it is visible outside its file.
    pub is_global: bool,
    /// ELF index of its section.
    pub(super) section_index: usize,
}

/// Where a function lies in a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index in [`super::Object::functions`].
    pub function: usize,
    /// First instruction slot in the program.
    pub start: usize,
}

/// A linked program.
#[derive(Default)]
pub struct Linked {
    /// Instructions in canonical form.
    pub insns: Vec<Insn>,
    /// The functions in it, by place; the entry is the first.
    pub functions: Vec<Placement>,
    /// Indices of the maps it uses, in [`MapTable::maps`].
    pub maps: Vec<usize>,
}

/// The functions in the sections of code, sorted by section and place. Of several names for one place the first
/// global one counts.
pub fn functions(elf: &Elf<'_>) -> Vec<Function> {
    let mut functions: Vec<Function> =
        elf.symbols.iter().filter_map(|symbol| function(elf, symbol)).collect();
    functions.sort_by_key(|f| (f.section_index, f.start, f.len == 0, !f.is_global));
    functions.dedup_by_key(|f| (f.section_index, f.start));
    functions
}

fn function(elf: &Elf<'_>, symbol: &Symbol<'_>) -> Option<Function> {
    let Home::Section(section_index) = symbol.home else { return None };
    let section = &elf.sections[section_index];
    if symbol.kind != STT_FUNC || !section.is_code() {
        return None;
    }
    let end = symbol.value.checked_add(symbol.size);
    let fits = end.is_some_and(|end| end <= section.data.len() as u64);
    let aligned = symbol.value.is_multiple_of(8) && symbol.size.is_multiple_of(8);
    Some(Function {
        name: symbol.name.to_owned(),
        section: section.name.to_owned(),
        start: (symbol.value / 8) as usize,
        len: if fits && aligned { (symbol.size / 8) as usize } else { 0 },
        is_global: symbol.is_global,
        section_index,
    })
}

/// Indices of the functions that are programs: those that are global or begin their section, outside `.text`;
/// and the global ones of `.text` if there is no other code, as subprograms would have no caller then.
pub fn entries(functions: &[Function]) -> Vec<usize> {
    let only_text = functions.iter().all(|f| f.section == ".text");
    let is_entry = |f: &Function| match f.section.as_str() {
        ".text" => only_text && f.is_global,
        _ => f.is_global || f.start == 0,
    };
    (0..functions.len()).filter(|&i| is_entry(&functions[i])).collect()
}

/// Links the programs of one object.
pub struct Linker<'a> {
    elf: &'a Elf<'a>,
    functions: &'a [Function],
    maps: &'a MapTable,
    by_start: HashMap<(usize, usize), usize>,
    externs: HashMap<&'a str, ExternKind>,
    budget: usize,
}

/// A program while it is being linked.
#[derive(Default)]
struct Draft {
    linked: Linked,
    /// Place in `linked.functions` of each function.
    placed: HashMap<usize, usize>,
    /// Index in `linked.maps` of each map.
    used: HashMap<usize, usize>,
    /// Instructions that refer to a function.
    references: Vec<(usize, usize)>,
}

/// What an instruction turned out to refer to.
enum Target {
    Function(usize),
    Map(usize),
    Data { map: usize, offset: u32 },
}

impl<'a> Linker<'a> {
    /// Prepares to link programs of the object with those functions and maps.
    pub fn new(
        elf: &'a Elf<'a>,
        functions: &'a [Function],
        maps: &'a MapTable,
        btf: Option<&'a Btf>,
    ) -> Self {
        let by_start = (0..functions.len())
            .filter(|&i| functions[i].len != 0)
            .map(|i| ((functions[i].section_index, functions[i].start), i))
            .collect();
        let mut externs = HashMap::new();
        for (id, section) in btf.into_iter().flat_map(Btf::data_sections) {
            let kind = match section {
                ".kconfig" => ExternKind::KernelConfig,
                ".ksyms" => ExternKind::KernelSymbol,
                _ => continue,
            };
            let btf = btf.into_iter();
            externs.extend(btf.flat_map(|b| b.section_vars(id).iter().map(|var| (b.name(var.ty), kind))));
        }
        Linker { elf, functions, maps, by_start, externs, budget: LINK_BUDGET }
    }

    /// Links the program that begins with that function.
    pub fn link(&mut self, entry: usize) -> Result<Linked, Refusal> {
        let mut draft = Draft::default();
        let first = self.place(&mut draft, entry)?;
        // Functions whose instructions are still to be looked at, with the next instruction; an explicit stack
        // because the depth of calls is the input's.
        let mut pending = vec![(first, 0)];
        while let Some((placement, mut insn)) = pending.pop() {
            while let Some((next, target)) = self.step(&mut draft, placement, insn)? {
                insn = next;
                if let Some(callee) = target.filter(|callee| !draft.placed.contains_key(callee)) {
                    pending.push((placement, insn));
                    pending.push((self.place(&mut draft, callee)?, 0));
                    break;
                }
            }
        }
        draft.patch_references();
        Ok(draft.linked)
    }

    /// Appends a function to the program and returns its place in the list of functions.
    fn place(&mut self, draft: &mut Draft, function: usize) -> Result<usize, Refusal> {
        let Function { name, start, len, section_index, .. } = &self.functions[function];
        if *len == 0 {
            let why = "is empty, not aligned to 8 bytes, or reaches beyond its section";
            return Err(Refusal::Function { function: name.clone(), why });
        }
        let at = draft.linked.insns.len();
        if at + len > MAX_INSNS {
            return Err(Refusal::TooLarge { insns: at + len, limit: "the kernel takes 1,000,000" });
        }
        // Before any work on the instructions: refused programs use up the budget too.
        self.spend(FUNCTION_COST + len * INSN_COST, at + len)?;
        self.check_relocations(function)?;
        let code = &self.elf.sections[*section_index].data[start * 8..(start + len) * 8];
        draft.linked.insns.extend(code.chunks_exact(8).map(decode));
        draft.linked.functions.push(Placement { function, start: at });
        draft.placed.insert(function, draft.linked.functions.len() - 1);
        Ok(draft.linked.functions.len() - 1)
    }

    fn spend(&mut self, cost: usize, insns: usize) -> Result<(), Refusal> {
        let limit = "all programs of an object together may take 64 MB";
        self.budget = self.budget.checked_sub(cost).ok_or(Refusal::TooLarge { insns, limit })?;
        Ok(())
    }

    /// Every relocation of a function has to be on a call or a 64-bit immediate, and alone there.
    fn check_relocations(&self, function: usize) -> Result<(), Refusal> {
        let Function { start, len, section_index, .. } = &self.functions[function];
        let section = self.elf.sections[*section_index].data;
        let list = &self.elf.relocations[*section_index];
        let first = list.partition_point(|r| r.offset < *start as u64 * 8);
        let mut last = None;
        for relocation in list[first..].iter().take_while(|r| r.offset < (start + len) as u64 * 8) {
            let at = relocation.offset as usize;
            let expects = |kind| relocation.kind == kind;
            let fits = match section[at] {
                _ if !at.is_multiple_of(8) => false,
                code if code == JMP | CALL => expects(R_64_32),
                code if Insn::new(code, 0, 0, 0, 0).is_ld_imm64() => expects(R_64_64),
                _ => false,
            };
            if !fits || last == Some(at) {
                let place = self.place_of(function, at / 8 - start);
                let why = format!(
                    "a relocation of type {} at byte {at} of the section does not fit there",
                    relocation.kind
                );
                return Err(Refusal::Relocation { place, why });
            }
            last = Some(at);
        }
        Ok(())
    }

    /// Looks at one instruction of a placed function. Returns the index of the next one and the function that
    /// this one refers to, or `None` at the end.
    fn step(
        &mut self,
        draft: &mut Draft,
        placement: usize,
        index: usize,
    ) -> Result<Option<(usize, Option<usize>)>, Refusal> {
        let Placement { function, start } = draft.linked.functions[placement];
        let Function { name, len, .. } = &self.functions[function];
        if index >= *len {
            return Ok(None);
        }
        let insn = draft.linked.insns[start + index];
        let target = if insn.is_ld_imm64() {
            if index + 1 >= *len || draft.linked.insns[start + index + 1].code != 0 {
                let why = "has a 64-bit immediate without its second half";
                return Err(Refusal::Function { function: name.clone(), why });
            }
            self.immediate_target(function, index, insn)?
        } else if insn.code == JMP | CALL {
            self.call_target(function, index, insn)?
        } else {
            None
        };
        if let Some(target) = &target {
            self.rewrite(draft, start + index, target)?;
        }
        let callee = match target {
            Some(Target::Function(callee)) => Some(callee),
            _ => None,
        };
        Ok(Some((index + if insn.is_ld_imm64() { 2 } else { 1 }, callee)))
    }

    fn rewrite(&mut self, draft: &mut Draft, at: usize, target: &Target) -> Result<(), Refusal> {
        let (map, pseudo, offset) = match *target {
            Target::Function(function) => {
                draft.references.push((at, function));
                return Ok(());
            }
            Target::Map(map) => (map, PSEUDO_MAP_IDX, 0),
            Target::Data { map, offset } => (map, PSEUDO_MAP_IDX_VALUE, offset),
        };
        let index = match draft.used.get(&map) {
            Some(&index) => index,
            None => {
                self.spend(MAP_COST + self.maps.maps[map].spec.name.len(), draft.linked.insns.len())?;
                draft.linked.maps.push(map);
                draft.used.insert(map, draft.linked.maps.len() - 1);
                draft.linked.maps.len() - 1
            }
        };
        let insns = &mut draft.linked.insns;
        insns[at] = Insn::new(insns[at].code, insns[at].dst(), pseudo, 0, index as i32);
        insns[at + 1].imm = offset as i32;
        Ok(())
    }

    /// What a 64-bit immediate refers to; `None` if it is just a number.
    fn immediate_target(&self, function: usize, index: usize, insn: Insn) -> Result<Option<Target>, Refusal> {
        let place = || self.place_of(function, index);
        let Some(relocation) = self.relocation(function, index) else {
            let why =
                "refers to a map, type or function by number, which means nothing outside a kernel".into();
            return if insn.src() == 0 { Ok(None) } else { Err(Refusal::Relocation { place: place(), why }) };
        };
        let symbol = &self.elf.symbols[relocation.symbol];
        let section = self.home(symbol, place, false)?;
        // The addend is 32 bits wide and signed, whatever the second half holds.
        let offset = (symbol.value as i64).wrapping_add(insn.imm.into());
        let data = self.maps.data.get(&section);
        let declared =
            u64::try_from(offset).ok().and_then(|offset| self.maps.declared.get(&(section, offset)));
        if let Some(&map) = data.or(declared) {
            let map = map.map_err(|refused| {
                let refused = &self.maps.refused[refused];
                Refusal::Map { map: refused.name.clone(), reason: refused.reason.clone(), place: place() }
            })?;
            if data.is_none() {
                return Ok(Some(Target::Map(map)));
            }
            return match u32::try_from(offset) {
                Ok(offset) if offset < self.maps.maps[map].spec.value_size => {
                    Ok(Some(Target::Data { map, offset }))
                }
                _ => {
                    let size = self.maps.maps[map].spec.value_size;
                    let name = self.elf.sections[section].name;
                    let why = format!("refers to byte {offset} of `{name}`, which has {size}");
                    Err(Refusal::Relocation { place: place(), why })
                }
            };
        }
        let name = self.elf.sections[section].name;
        if self.elf.sections[section].is_code() {
            return self.function_at(section, offset, place).map(|f| Some(Target::Function(f)));
        }
        if matches!(name, ".maps" | "maps") {
            let why = format!("no map begins at byte {offset} of `{name}`");
            return Err(Refusal::Relocation { place: place(), why });
        }
        Err(Refusal::Section { symbol: symbol.name.into(), section: name.into(), place: place() })
    }

    /// What a call refers to; `None` for helpers.
    fn call_target(&self, function: usize, index: usize, insn: Insn) -> Result<Option<Target>, Refusal> {
        let place = || self.place_of(function, index);
        let Function { start, section_index, .. } = &self.functions[function];
        let after = |slot: i64| slot.saturating_add(i64::from(insn.imm) + 1).saturating_mul(8);
        let (section, offset) = match self.relocation(function, index) {
            None if insn.src() == 0 => return Ok(None),
            None if insn.src() == PSEUDO_CALL => (*section_index, after((start + index) as i64)),
            None => {
                let why = "calls a kernel function by number, which means nothing outside a kernel".into();
                return Err(Refusal::Relocation { place: place(), why });
            }
            Some(relocation) => {
                let symbol = &self.elf.symbols[relocation.symbol];
                let section = self.home(symbol, place, true)?;
                if insn.src() != PSEUDO_CALL || !symbol.value.is_multiple_of(8) {
                    let why = format!("is no call of a subprogram, but is to call `{}`", symbol.name);
                    return Err(Refusal::Relocation { place: place(), why });
                }
                // Calls of global functions hold -1, those of static ones the place in the section less one.
                (section, after((symbol.value / 8) as i64))
            }
        };
        self.function_at(section, offset, place).map(|f| Some(Target::Function(f)))
    }

    /// The section that a symbol is defined in.
    fn home(&self, symbol: &Symbol<'_>, place: impl Fn() -> Place, is_call: bool) -> Result<usize, Refusal> {
        match symbol.home {
            Home::Section(section) => Ok(section),
            Home::Extern => {
                let kind = match self.externs.get(symbol.name) {
                    _ if is_call => ExternKind::KernelFunction,
                    kind => kind.copied().unwrap_or(ExternKind::Unknown),
                };
                Err(Refusal::Extern { symbol: symbol.name.into(), kind, place: place() })
            }
            Home::Special => {
                let why = format!(
                    "refers to `{}`, which is in no section; give the variable an initial value",
                    symbol.name
                );
                Err(Refusal::Relocation { place: place(), why })
            }
        }
    }

    fn function_at(&self, section: usize, offset: i64, place: impl Fn() -> Place) -> Result<usize, Refusal> {
        let start = usize::try_from(offset).ok().filter(|offset| offset % 8 == 0).map(|offset| offset / 8);
        start.and_then(|start| self.by_start.get(&(section, start)).copied()).ok_or_else(|| {
            let why = format!(
                "no function begins at byte {offset} of section `{}`",
                self.elf.sections[section].name
            );
            Refusal::Relocation { place: place(), why }
        })
    }

    fn relocation(&self, function: usize, index: usize) -> Option<&Relocation> {
        let Function { start, section_index, .. } = &self.functions[function];
        let list = &self.elf.relocations[*section_index];
        let offset = (start + index) as u64 * 8;
        list.get(list.partition_point(|r| r.offset < offset)).filter(|r| r.offset == offset)
    }

    fn place_of(&self, function: usize, insn: usize) -> Place {
        Place { function: self.functions[function].name.clone(), insn }
    }
}

impl Draft {
    /// Writes the distances to functions, now that their places are known. Programs are short enough for them.
    fn patch_references(&mut self) {
        for &(at, function) in &self.references {
            let start = self.linked.functions[self.placed[&function]].start;
            let distance = start as i64 - at as i64 - 1;
            let insns = &mut self.linked.insns;
            let is_call = !insns[at].is_ld_imm64();
            let pseudo = if is_call { PSEUDO_CALL } else { PSEUDO_FUNC };
            insns[at] = Insn::new(insns[at].code, insns[at].dst(), pseudo, 0, distance as i32);
            if !is_call {
                insns[at + 1].imm = 0;
            }
        }
    }
}

/// An instruction from its eight bytes.
fn decode(bytes: &[u8]) -> Insn {
    Insn {
        code: bytes[0],
        regs: bytes[1],
        off: i16::from_le_bytes([bytes[2], bytes[3]]),
        imm: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    }
}
