//! Object files: opened, configured and loaded by libbpf, then handed out as plain maps and programs.
//!
//! libbpf does what an object's author relies on: BTF, CO-RE relocation against this kernel, externs, initial
//! values, static program arrays. After the load everything is duplicated out of libbpf's object and the
//! object is closed, so nothing returned here has a lifetime or a thread to keep to.
//!
//! A program's instructions are those that libbpf really gave to the kernel (libbpf keeps them relocated),
//! brought into canonical form: map references by index in order of first use. Two things are not in that form
//! and make a program loadable from its object only: callbacks (the kernel wants BTF for `PSEUDO_FUNC`), and
//! kernel functions of modules.

mod elf;
mod libbpf_log;

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use libbpf_sys as sys;
use runnel_bpf::insn::{Insn, PSEUDO_MAP_FD, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE, PSEUDO_MAP_VALUE};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use thiserror::Error;

use crate::error::{Errno, Error, Result, check};
use crate::map::Map;
use crate::program::Program;
use crate::sys::string_from;

/// Why an object file could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no file of that name.
    #[error("{}: no such file", path.display())]
    NotFound {
        /// The path given.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The path given.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is no ELF file at all.
    #[error("{}: not an ELF file", path.display())]
    NotElf {
        /// The path given.
        path: PathBuf,
    },
    /// An ELF file, but not one of BPF programs for this machine.
    #[error("{}: not a BPF object: {why}", path.display())]
    NotBpf {
        /// The path given.
        path: PathBuf,
        /// What it is instead.
        why: String,
    },
    /// The object has no program of that name.
    #[error("{}: no program `{wanted}`; there are: {}", path.display(), there.join(", "))]
    NoSuchProgram {
        /// The path given.
        path: PathBuf,
        /// The name asked for.
        wanted: String,
        /// The names of the programs in the object.
        there: Vec<String>,
    },
    /// The object has no map of that name.
    #[error("{}: no map `{wanted}`; there are: {}", path.display(), there.join(", "))]
    NoSuchMap {
        /// The path given.
        path: PathBuf,
        /// The name asked for.
        wanted: String,
        /// The names of the maps in the object.
        there: Vec<String>,
    },
    /// The program is there but of another type than the one needed.
    #[error("{}: program `{program}` (section `{section}`) is of type {found}, not {wanted}", path.display())]
    WrongType {
        /// The path given.
        path: PathBuf,
        /// The program's name.
        program: String,
        /// The section it stands in.
        section: String,
        /// The type that it has, by name.
        found: String,
        /// The type that was needed, by name.
        wanted: String,
    },
    /// libbpf refused the object, for a reason other than a program's verification.
    #[error("{}: {doing}: {errno}{}", path.display(), said(messages))]
    Libbpf {
        /// The path given.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// libbpf's answer.
        errno: Errno,
        /// What libbpf said meanwhile, one message a line.
        messages: String,
    },
}

fn said(messages: &str) -> String {
    if messages.trim().is_empty() { String::new() } else { format!("; libbpf says: {}", messages.trim()) }
}

/// A program as the object declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Name of the entry function.
    pub name: String,
    /// ELF section, such as `xdp`.
    pub section: String,
    /// `enum bpf_prog_type`, from the section's name.
    pub prog_type: u32,
}

/// An object file that is open but not loaded: it can still be configured.
#[derive(Debug)]
pub struct Object {
    raw: Raw,
    path: PathBuf,
    license: String,
}

/// libbpf's object, closed on drop.
#[derive(Debug)]
struct Raw(NonNull<sys::bpf_object>);

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: open until here, and nothing points into it any more.
        unsafe { sys::bpf_object__close(self.0.as_ptr()) };
    }
}

/// What was in a loaded object: its maps by name, its loaded programs by name.
#[derive(Debug)]
pub struct LoadedObject {
    path: PathBuf,
    maps: BTreeMap<String, Map>,
    programs: BTreeMap<String, LoadedProgram>,
}

/// A program of a loaded object.
#[derive(Debug)]
pub struct LoadedProgram {
    /// The program in the kernel.
    pub program: Program,
    /// What was loaded, in canonical form. `spec.maps[i].name` is the map's name in the object.
    pub spec: ProgramSpec,
}

impl Object {
    /// Opens an object file. Needs no privilege.
    pub fn open(path: &Path) -> Result<Object> {
        let bytes = std::fs::read(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => ObjectError::NotFound { path: path.into() },
            _ => ObjectError::Unreadable { path: path.into(), source },
        })?;
        Self::open_bytes(path, &bytes)
    }

    /// Opens an object file whose contents are in memory; `path` names it in errors, and its name up to the first dot
    /// names it to libbpf.
    pub fn open_bytes(path: &Path, bytes: &[u8]) -> Result<Object> {
        let license = elf::license(path, bytes)?;
        // What libbpf itself would take: the file's name up to its first dot.
        let file = path.file_name().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let name = CString::new(file.split('.').next().unwrap_or_default()).unwrap_or_default();
        let opts = sys::bpf_object_open_opts {
            sz: size_of::<sys::bpf_object_open_opts>() as _,
            object_name: name.as_ptr(),
            ..Default::default()
        };
        let (raw, messages) = libbpf_log::captured(|| {
            // SAFETY: the bytes and options live during the call; libbpf copies what it keeps.
            let raw = unsafe { sys::bpf_object__open_mem(bytes.as_ptr().cast(), bytes.len() as _, &opts) };
            NonNull::new(raw).ok_or_else(Errno::last)
        });
        match raw {
            Ok(raw) => Ok(Object { raw: Raw(raw), path: path.into(), license }),
            Err(errno) => {
                Err(ObjectError::Libbpf { path: path.into(), doing: "opening it", errno, messages }.into())
            }
        }
    }

    /// The programs that the object declares, in its order.
    pub fn programs(&self) -> Vec<Declared> {
        self.raw_programs().into_iter().map(declared).collect()
    }

    /// Loads only the named programs. Programs that a static program array of the object names must be among
    /// them, or libbpf cannot fill that array.
    pub fn select(&mut self, names: &[&str]) -> Result<()> {
        for name in names {
            self.raw_program(name)?;
        }
        for program in self.raw_programs() {
            let wanted = names.contains(&declared(program).name.as_str());
            // SAFETY: the object is open and not loaded.
            let set = check(unsafe { sys::bpf_program__set_autoload(program.as_ptr(), wanted) });
            set.map_err(|e| self.libbpf_error("selecting programs", e, String::new()))?;
        }
        Ok(())
    }

    /// Fails with `WrongType` unless the program is of the type wanted.
    pub fn expect_type(&self, name: &str, wanted: u32) -> Result<()> {
        let found = declared(self.raw_program(name)?);
        if found.prog_type == wanted {
            return Ok(());
        }
        let wrong = ObjectError::WrongType {
            path: self.path.clone(),
            program: found.name,
            section: found.section,
            found: program_type_name(found.prog_type),
            wanted: program_type_name(wanted),
        };
        Err(wrong.into())
    }

    /// Sets what must be equal between programs that tail-call one another: load flags and the expected attach type.
    pub fn set_program_kind(&mut self, name: &str, flags: u32, expected_attach_type: u32) -> Result<()> {
        let program = self.raw_program(name)?.as_ptr();
        // SAFETY: the object is open and not loaded; both take plain numbers.
        let set = unsafe {
            check(sys::bpf_program__set_flags(program, flags)).and_then(|_| {
                check(sys::bpf_program__set_expected_attach_type(program, expected_attach_type))
            })
        };
        set.map_err(|e| self.libbpf_error("setting flags and attach type", e, String::new()))?;
        Ok(())
    }

    /// Sets the size of a map's value, in bytes, before it is created.
    pub fn set_value_size(&mut self, map: &str, bytes: u32) -> Result<()> {
        let raw = self.raw_map(map)?;
        // SAFETY: the object is open and not loaded.
        check(unsafe { sys::bpf_map__set_value_size(raw.as_ptr(), bytes) })
            .map_err(|e| self.libbpf_error("setting a map's value size", e, String::new()))?;
        Ok(())
    }

    /// Overwrites the first bytes of a map's initial contents (such as `.rodata`).
    pub fn set_initial(&mut self, map: &str, bytes: &[u8]) -> Result<()> {
        let raw = self.raw_map(map)?;
        let mut room = 0;
        // SAFETY: the object is open; `room` receives the size of the memory returned.
        let memory = unsafe { sys::bpf_map__initial_value(raw.as_ptr(), &mut room) };
        if memory.is_null() || (room as usize) < bytes.len() {
            let problem = format!("it has {room} bytes of initial contents, {} given", bytes.len());
            return Err(Error::usage(format!("setting the contents of map `{map}`"), problem));
        }
        // SAFETY: libbpf's memory has `room` bytes, at least as many as are copied, and is not ours.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
        Ok(())
    }

    /// What the object declares of its maps, as far as a file tells; data sections are not among them.
    pub fn declared_maps(&self) -> Vec<MapSpec> {
        let raw = self.raw_maps().into_iter();
        // SAFETY: the object is open.
        raw.filter(|map| !unsafe { sys::bpf_map__is_internal(map.as_ptr()) }).map(declared_map).collect()
    }

    /// Lets a map that exists stand for one that the object declares; false, and nothing done, if it is of another type
    /// or size.
    pub fn reuse_map(&mut self, name: &str, map: &Map) -> Result<bool> {
        let raw = self.raw_map(name)?;
        let declared = MapSpec { name: String::new(), ..declared_map(raw) };
        if declared != (MapSpec { name: String::new(), ..map.spec().clone() }) {
            return Ok(false);
        }
        // SAFETY: the object is open and not loaded; libbpf duplicates the descriptor.
        check(unsafe { sys::bpf_map__reuse_fd(raw.as_ptr(), map.as_fd().as_raw_fd()) }).map_err(|e| {
            self.libbpf_error("putting an existing map in a declared one's place", e, String::new())
        })?;
        Ok(true)
    }

    /// Makes libbpf neither reuse nor create the pins that the object's maps declare (`LIBBPF_PIN_BY_NAME`).
    pub fn ignore_pins(&mut self) -> Result<()> {
        for map in self.raw_maps() {
            // SAFETY: the object is open and not loaded; a null path means "not pinned".
            check(unsafe { sys::bpf_map__set_pin_path(map.as_ptr(), std::ptr::null()) })
                .map_err(|e| self.libbpf_error("clearing pin paths", e, String::new()))?;
        }
        Ok(())
    }

    /// Creates the maps and loads the (selected) programs.
    ///
    /// Errors: [`Error::Load`] with the verifier's whole log when a program is refused; a want of privilege;
    /// `ObjectError::Libbpf` for everything else, with what libbpf said.
    pub fn load(self) -> Result<LoadedObject> {
        let (done, messages) = libbpf_log::captured(|| {
            // SAFETY: the object is open and not loaded.
            check(unsafe { sys::bpf_object__load(self.raw.0.as_ptr()) })
        });
        if let Err(errno) = done {
            return Err(match libbpf_log::load_error(&messages, errno) {
                Some(refused) => refused.into(),
                None => self.libbpf_error("loading it", errno, messages),
            });
        }
        let maps = self.loaded_maps()?;
        let mut programs = BTreeMap::new();
        for raw in self.raw_programs() {
            if let Some(program) = self.loaded_program(raw, &maps)? {
                programs.insert(program.spec.name.clone(), program);
            }
        }
        let maps = maps.into_iter().map(|m| (m.name, m.map)).collect();
        Ok(LoadedObject { path: self.path, maps, programs })
    }

    fn loaded_maps(&self) -> Result<Vec<ObjectMap>> {
        let mut maps = Vec::new();
        for raw in self.raw_maps() {
            // SAFETY: the object is open.
            let (fd, name) =
                unsafe { (sys::bpf_map__fd(raw.as_ptr()), string_from(sys::bpf_map__name(raw.as_ptr()))) };
            if fd < 0 {
                continue; // Not created, because the object or its owner said so.
            }
            maps.push(ObjectMap { fd, name, map: Map::from_fd(duplicate(fd)?)? });
        }
        Ok(maps)
    }

    /// `None` for programs that were not selected.
    fn loaded_program(
        &self,
        raw: NonNull<sys::bpf_program>,
        maps: &[ObjectMap],
    ) -> Result<Option<LoadedProgram>> {
        let Declared { name, section, prog_type } = declared(raw);
        let raw = raw.as_ptr();
        // SAFETY: the object is loaded; libbpf keeps the relocated instructions until it is closed, and an
        // instruction of libbpf's is laid out as ours.
        let (fd, mut insns, attach_type, flags) = unsafe {
            let (insns, count) = (sys::bpf_program__insns(raw), sys::bpf_program__insn_cnt(raw));
            let insns = if insns.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(insns.cast::<Insn>(), count as usize).to_vec()
            };
            (
                sys::bpf_program__fd(raw),
                insns,
                sys::bpf_program__expected_attach_type(raw),
                sys::bpf_program__flags(raw),
            )
        };
        if fd < 0 {
            return Ok(None);
        }
        let map_specs = canonicalize(&mut insns, maps)
            .map_err(|problem| Error::usage(format!("reading back program `{name}`"), problem))?;
        let spec = ProgramSpec {
            name,
            section,
            prog_type,
            expected_attach_type: attach_type,
            flags,
            license: self.license.clone(),
            insns,
            maps: map_specs,
        };
        Ok(Some(LoadedProgram { program: Program::from_fd(duplicate(fd)?)?, spec }))
    }

    fn raw_programs(&self) -> Vec<NonNull<sys::bpf_program>> {
        let next = |previous| {
            // SAFETY: the object is open, and `previous` is null or one of its programs.
            NonNull::new(unsafe { sys::bpf_object__next_program(self.raw.0.as_ptr(), previous) })
        };
        std::iter::successors(next(std::ptr::null_mut()), |p| next(p.as_ptr())).collect()
    }

    fn raw_maps(&self) -> Vec<NonNull<sys::bpf_map>> {
        let next = |previous: *const sys::bpf_map| {
            // SAFETY: the object is open, and `previous` is null or one of its maps.
            NonNull::new(unsafe { sys::bpf_object__next_map(self.raw.0.as_ptr(), previous) })
        };
        std::iter::successors(next(std::ptr::null()), |m| next(m.as_ptr())).collect()
    }

    fn raw_program(&self, name: &str) -> Result<NonNull<sys::bpf_program>, ObjectError> {
        let programs = self.raw_programs();
        programs.iter().copied().find(|p| declared(*p).name == name).ok_or_else(|| {
            ObjectError::NoSuchProgram {
                path: self.path.clone(),
                wanted: name.to_owned(),
                there: programs.iter().map(|p| declared(*p).name).collect(),
            }
        })
    }

    fn raw_map(&self, name: &str) -> Result<NonNull<sys::bpf_map>, ObjectError> {
        let maps = self.raw_maps();
        // SAFETY: the object is open.
        let name_of = |m: NonNull<sys::bpf_map>| unsafe { string_from(sys::bpf_map__name(m.as_ptr())) };
        maps.iter().copied().find(|m| name_of(*m) == name).ok_or_else(|| ObjectError::NoSuchMap {
            path: self.path.clone(),
            wanted: name.to_owned(),
            there: maps.iter().map(|m| name_of(*m)).collect(),
        })
    }

    fn libbpf_error(&self, doing: &'static str, errno: Errno, messages: String) -> Error {
        if matches!(errno.0, libc::EPERM | libc::EACCES) {
            return Error::Permission {
                doing: format!("{}: {doing}{}", self.path.display(), said(&messages)),
                errno,
            };
        }
        ObjectError::Libbpf { path: self.path.clone(), doing, errno, messages }.into()
    }
}

fn declared_map(raw: NonNull<sys::bpf_map>) -> MapSpec {
    let raw = raw.as_ptr();
    // SAFETY: the map belongs to an open object.
    unsafe {
        MapSpec {
            name: string_from(sys::bpf_map__name(raw)),
            map_type: sys::bpf_map__type(raw),
            key_size: sys::bpf_map__key_size(raw),
            value_size: sys::bpf_map__value_size(raw),
            max_entries: sys::bpf_map__max_entries(raw),
            flags: sys::bpf_map__map_flags(raw),
        }
    }
}

impl LoadedObject {
    /// The maps, by the names that the object gives them.
    pub fn maps(&self) -> &BTreeMap<String, Map> {
        &self.maps
    }

    /// The map of this name.
    pub fn map(&self, name: &str) -> Result<&Map> {
        self.maps.get(name).ok_or_else(|| {
            let there = self.maps.keys().cloned().collect();
            ObjectError::NoSuchMap { path: self.path.clone(), wanted: name.to_owned(), there }.into()
        })
    }

    /// The loaded programs, by name.
    pub fn programs(&self) -> &BTreeMap<String, LoadedProgram> {
        &self.programs
    }

    /// The loaded program of this name.
    pub fn program(&self, name: &str) -> Result<&LoadedProgram> {
        self.programs.get(name).ok_or_else(|| {
            let there = self.programs.keys().cloned().collect();
            ObjectError::NoSuchProgram { path: self.path.clone(), wanted: name.to_owned(), there }.into()
        })
    }

    /// The maps that a specification of this object's programs refers to, in its order: what
    /// [`Program::load`] wants beside the specification.
    pub fn maps_of(&self, spec: &ProgramSpec) -> Result<Vec<&Map>> {
        spec.maps.iter().map(|m| self.map(&m.name)).collect()
    }
}

struct ObjectMap {
    /// libbpf's descriptor, as it stands in the instructions.
    fd: i32,
    name: String,
    map: Map,
}

/// Rewrites map references from descriptors to indices, in place, and gives the maps in order of first use.
fn canonicalize(insns: &mut [Insn], maps: &[ObjectMap]) -> std::result::Result<Vec<MapSpec>, String> {
    let mut used: Vec<i32> = Vec::new();
    let mut specs = Vec::new();
    let mut at = 0;
    while let Some(insn) = insns.get_mut(at) {
        if !insn.is_ld_imm64() {
            at += 1;
            continue;
        }
        let pseudo = match insn.src() {
            PSEUDO_MAP_FD => PSEUDO_MAP_IDX,
            PSEUDO_MAP_VALUE => PSEUDO_MAP_IDX_VALUE,
            _ => {
                at += 2;
                continue;
            }
        };
        let fd = insn.imm;
        let index = match used.iter().position(|u| *u == fd) {
            Some(index) => index,
            None => {
                let map = maps.iter().find(|m| m.fd == fd);
                let map =
                    map.ok_or_else(|| format!("instruction {at} names descriptor {fd}, no map has it"))?;
                specs.push(MapSpec { name: map.name.clone(), ..map.map.spec().clone() });
                used.push(fd);
                used.len() - 1
            }
        };
        *insn = Insn::new(insn.code, insn.dst(), pseudo, insn.off, index as i32);
        at += 2;
    }
    Ok(specs)
}

fn declared(program: NonNull<sys::bpf_program>) -> Declared {
    let program = program.as_ptr();
    // SAFETY: a program of an open object; the strings are libbpf's and are copied.
    unsafe {
        Declared {
            name: string_from(sys::bpf_program__name(program)),
            section: string_from(sys::bpf_program__section_name(program)),
            prog_type: sys::bpf_program__type(program),
        }
    }
}

/// The name of an `enum bpf_prog_type`, such as `xdp`.
pub fn program_type_name(prog_type: u32) -> String {
    // SAFETY: takes a number, returns null or a static string.
    let name = unsafe { string_from(sys::libbpf_bpf_prog_type_str(prog_type)) };
    if name.is_empty() { format!("{prog_type}") } else { name }
}

fn duplicate(fd: i32) -> Result<std::os::fd::OwnedFd> {
    // SAFETY: libbpf holds the descriptor open while its object is.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|e| Error::io("duplicating a descriptor", e))
}

const _: () = assert!(size_of::<*const c_void>() == 8, "eBPF objects are handled on 64-bit hosts only");
