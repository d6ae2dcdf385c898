//! Who can reach a map without going through bpf(2) each time.
//!
//! Asking means going through all programs, links and maps of the machine; so that is done once, for any number of maps.

use std::collections::HashSet;
use std::sync::OnceLock;

use libbpf_sys as sys;

use crate::error::{Errno, Error, Result, check};
use crate::link::iterators;
use crate::map::outer_maps;
use crate::program::{ProgramInfo, all_programs};

/// What of this machine can hold maps, at one moment. What appears later is not in it.
#[derive(Debug)]
pub struct Survey {
    programs: Vec<ProgramInfo>,
    /// Iterator links with the map that each was made for.
    iterators: Vec<(u32, u32)>,
    /// What programs that iterate over the elements of maps are attached to.
    over_elements: Option<u32>,
    /// Maps of maps with the ids of their elements; one that does not let itself be read may have any.
    outer_maps: Vec<(u32, Option<HashSet<u32>>)>,
}

/// Who can reach a map without going through bpf(2) each time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Programs that refer to the map, attached or not.
    pub programs: Vec<ProgramInfo>,
    /// Iterator links made for this very map: the program behind one can write values whenever somebody reads
    /// from it, though the map need not be among the program's map ids.
    pub iterator_links: Vec<u32>,
    /// Programs that iterate over the elements of maps. An open iterator goes on without its link, and nothing tells
    /// which map it is over, so each of them may be over this one.
    pub element_iterators: Vec<ProgramInfo>,
    /// Maps of maps that have the map as an element: whatever program holds one of them can reach it.
    pub outer_maps: Vec<u32>,
}

impl Survey {
    /// Goes through the machine.
    pub fn take() -> Result<Survey> {
        Ok(Survey {
            programs: all_programs()?,
            iterators: iterators()?,
            over_elements: over_elements()?,
            outer_maps: outer_maps()?,
        })
    }

    /// The programs, iterators and maps of maps that hold a map. SYSCALL programs can write any map through
    /// `bpf_sys_bpf` and are not listed for that; the watcher treats each of their runs as a write to everything.
    pub fn holders_of(&self, map_id: u32) -> Holders {
        let (programs, others): (Vec<_>, Vec<_>) =
            self.programs.iter().cloned().partition(|p| p.map_ids.contains(&map_id));
        let iterates = |p: &ProgramInfo| p.attach_btf_id != 0 && Some(p.attach_btf_id) == self.over_elements;
        let links = self.iterators.iter().filter(|(_, over)| *over == map_id);
        let outer = self.outer_maps.iter();
        let outer = outer.filter(|(_, elements)| elements.as_ref().is_none_or(|e| e.contains(&map_id)));
        Holders {
            programs,
            iterator_links: links.map(|(link, _)| *link).collect(),
            element_iterators: others.into_iter().filter(iterates).collect(),
            outer_maps: outer.map(|(id, _)| *id).collect(),
        }
    }
}

/// What programs that iterate over the elements of maps are attached to; nothing where the kernel has no such iterators.
/// Types of modules have ids of their own beyond those of the kernel.
fn over_elements() -> Result<Option<u32>> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    // SAFETY: a constant C string.
    let found = match check(unsafe {
        sys::libbpf_find_vmlinux_btf_id(c"bpf_map_elem".as_ptr(), sys::BPF_TRACE_ITER)
    }) {
        Ok(id) => u32::try_from(id).ok(),
        Err(Errno(libc::ENOENT)) => None,
        Err(e) => return Err(Error::from_errno("looking for iterators in the kernel's types", e)),
    };
    Ok(*FOUND.get_or_init(|| found))
}
