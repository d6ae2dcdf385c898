//! A session's directory on a BPF file system: what is pinned there, and what a killed session left.
//!
//! See [`super::session`] for the order, and why each moment in between is harmless.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};

use runnel_ir::{EntityRef, Program as Ir, Table};
use runnel_kernel::bpffs::{self, Mounted};
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::link::{Mode, XdpLink, attached};
use runnel_kernel::map::Map;
use runnel_kernel::object::{LoadedObject, LoadedProgram, Object};
use runnel_kernel::program::Program;
use runnel_kernel::watcher::{Options, Watcher};

use super::candidate::fallback_array;
use super::setup::{SessionError, Setup};
use super::snapshot::left_by_kind;

/// The only program of a session's watcher.
pub(super) const SLOT: u32 = 0;

/// A session's directory, locked.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory.
    pub(super) dir: PathBuf,
    state_dir: PathBuf,
    mounted: Mounted,
    lock: File,
}

impl Place {
    /// Removes the directory, which must be empty, and the one above unless another session uses it.
    pub(super) fn leave(self) -> Result<(), SessionError> {
        let Place { dir, state_dir, mounted, lock } = self;
        std::fs::remove_dir(&dir).map_err(|source| SessionError::Io { path: dir, source })?;
        // An open file would keep its file system from being unmounted.
        drop(lock);
        Ok(bpffs::discard(&state_dir, mounted)?)
    }
}

/// Makes the session's directory and locks it.
pub(super) fn claim(setup: &Setup) -> Result<Place, SessionError> {
    let parent = setup.state_dir.parent().unwrap_or(&setup.state_dir);
    if !setup.state_dir.exists() && parent.ends_with("bpf") {
        bpffs::ensure(parent)?;
    }
    let state_dir = setup.state_dir.clone();
    let mounted = bpffs::ensure(&state_dir)?;
    // A BPF file system takes no name with a dot, as VLAN devices have; no device has a colon in its name.
    let dir = state_dir.join(setup.device.replace('.', ":"));
    let io = |source| SessionError::Io { path: dir.clone(), source };
    std::fs::create_dir_all(&dir).map_err(io)?;
    let lock = File::open(&dir).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => Ok(Place { dir, state_dir, mounted, lock }),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(SessionError::Busy { device: setup.device.clone(), dir })
        }
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

/// The link that a killed session left on this interface.
pub(super) fn old_link(
    pin: &Path,
    ifindex: u32,
    Setup { device, mode, .. }: &Setup,
) -> Result<Option<XdpLink>, SessionError> {
    if !pin.exists() {
        return Ok(None);
    }
    let foreign = || SessionError::Foreign { path: pin.into(), device: device.clone() };
    let link = XdpLink::from_pin(pin).map_err(|_| foreign())?;
    let info = link.info()?;
    if info.ifindex == 0 {
        // The interface is gone or the program was detached by force: the link is an empty shell.
        remove(pin)?;
        return Ok(None);
    }
    // Interfaces of other network namespaces may have the same name and even the same index.
    match attached(ifindex)? {
        Some((id, there)) if info.ifindex == ifindex && id == info.program_id => {
            let other = || SessionError::OtherMode { device: device.clone() };
            (there == *mode).then_some(Some(link)).ok_or_else(other)
        }
        _ => Err(foreign()),
    }
}

pub(super) fn attach(
    original: &Program,
    ifindex: u32,
    mode: Mode,
    pin: &Path,
) -> Result<XdpLink, KernelError> {
    let link = XdpLink::create(original, ifindex, mode)?;
    link.pin(pin)?;
    Ok(link)
}

pub(super) fn remove(path: &Path) -> Result<(), SessionError> {
    bpffs::unpin(path).map_err(SessionError::from)
}

/// The name of a map's pin: a BPF file system takes no name with a dot, and those of data sections begin with one.
fn pin_name(map: &str) -> String {
    map.replace('.', "_")
}

/// Puts maps that a killed session left in the place of those that the object declares, where they are of the same kind:
/// control planes hold them, and the hook's program uses them. Returns their names. Data sections are not among
/// them: they belong to the program.
pub(super) fn keep_maps(dir: &Path, object: &mut Object) -> Result<Vec<String>, SessionError> {
    let mut kept = Vec::new();
    for spec in object.declared_maps() {
        let pin = dir.join("maps").join(pin_name(&spec.name));
        if !pin.exists() {
            continue;
        }
        let map = Map::from_pin(&pin)?;
        if object.reuse_map(&spec.name, &map)? {
            kept.push(spec.name);
        }
    }
    Ok(kept)
}

/// Removes everything from a session's directory but the link and the maps that are kept.
pub(super) fn clear(dir: &Path, kept: &[String]) -> Result<(), SessionError> {
    let watcher = dir.join("watcher");
    if watcher.exists() {
        Watcher::remove(&watcher)?;
        let _ = std::fs::remove_dir(&watcher);
    }
    let maps = dir.join("maps");
    if let Ok(entries) = std::fs::read_dir(&maps) {
        let is_kept = |name: &OsStr| kept.iter().any(|map| *name == *pin_name(map));
        for entry in entries.filter_map(Result::ok).filter(|entry| !is_kept(&entry.file_name())) {
            remove(&entry.path())?;
        }
        if kept.is_empty() {
            std::fs::remove_dir(&maps).map_err(|source| SessionError::Io { path: maps.clone(), source })?;
        }
    }
    remove(&dir.join("fallback"))?;
    remove(&dir.join("original"))
}

/// Pins the maps that are not pinned yet, the original, the array that holds it, and the watcher, which begins to watch.
pub(super) fn pin_surroundings(
    dir: &Path,
    kept: &[String],
    (loaded, original): (&LoadedObject, &LoadedProgram),
    ir: &Ir,
    bump: bool,
) -> Result<(Map, Watcher), SessionError> {
    let maps = dir.join("maps");
    std::fs::create_dir_all(&maps).map_err(|source| SessionError::Io { path: maps.clone(), source })?;
    for (name, map) in loaded.maps().iter().filter(|(name, _)| !kept.contains(name)) {
        map.pin(&maps.join(pin_name(name)))?;
    }
    original.program.pin(&dir.join("original"))?;
    let fallback = fallback_array(&original.program)?;
    fallback.pin(&dir.join("fallback"))?;
    let watcher_dir = dir.join("watcher");
    std::fs::create_dir(&watcher_dir)
        .map_err(|source| SessionError::Io { path: watcher_dir.clone(), source })?;
    let watcher = Watcher::install_with(Some(&watcher_dir), Options { bump })?;
    watch(&watcher, loaded, original, ir)?;
    Ok((fallback, watcher))
}

/// Watches every map that may ever be specialized.
fn watch(
    watcher: &Watcher,
    loaded: &LoadedObject,
    original: &LoadedProgram,
    ir: &Ir,
) -> Result<(), SessionError> {
    for (index, map) in loaded.maps_of(&original.spec)?.into_iter().enumerate() {
        if left_by_kind(&ir.tables[Table::new(index)]).is_none() {
            watcher.watch(map.id(), SLOT)?;
        }
    }
    Ok(())
}
