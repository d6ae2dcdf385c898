//! One program on one interface: set up, specialized again and again, and taken down.
//!
//! # What is pinned, and in which order
//!
//! Everything that the hook needs to stay right without this process is pinned in a directory of its own before the
//! first specialized version goes on the hook: the watcher (its hooks and maps), the program array that holds the
//! original, the original, the original's maps (so that control planes find them), and the link. A version refers
//! to its own data; nothing else keeps that alive. So if the process is killed at any moment, then
//!
//! * before the link exists, there is nothing on the hook, as there was before;
//! * between the creation of the link and its pin, the kernel detaches it again: the same;
//! * later, the hook keeps the version that it has. The pinned watcher still bumps its epoch before any write to a
//!   table that it depends on, and then it is the original that runs, for ever.
//!
//! The next session for the interface finds the link and the maps. It loads its own original with these maps (those that
//! are still of the kind that the object declares), so that tables keep what they hold and control planes what they
//! have open; puts that original on the hook in one step; and removes what else the killed one left. The maps' pins stay
//! all the while. By hand: removing the directory detaches the program and takes the watcher out.
//!
//! A lock on the directory keeps two sessions from owning one interface.

use std::path::Path;
use std::time::{Duration, Instant};

use runnel_bpf::lift::lift;
use runnel_engine::controller::{Installed, Snapshot, Target};
use runnel_engine::specialize::{Specialized, TableState};
use runnel_ir::{EntityRef, Program as Ir, SecondaryMap, Table, TableData, TableKind};
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::holders::Survey;
use runnel_kernel::link::{self, LinkError, XdpLink};
use runnel_kernel::map::Map;
use runnel_kernel::object::{LoadedObject, LoadedProgram, Object};
use runnel_kernel::program::{Program, enable_stats};
use runnel_kernel::watcher::Watcher;
use runnel_passes::clean_up;

use super::candidate::{Candidate, Surroundings, build};
use super::maps::MapsError;
use super::pins::{self, SLOT};
use super::setup::{SessionError, Setup};
use super::snapshot::{Snapshots, left_by_kind};

/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;
/// A program on an interface.
#[derive(Debug)]
pub struct Session {
    loaded: LoadedObject,
    name: String,
    device: String,
    ir: Ir,
    watcher: Watcher,
    fallback: Map,
    link: XdpLink,
    current: Option<Candidate>,
    /// Packets that the versions before the current one handed to the original.
    earlier_fallbacks: u64,
    /// Ids of our own versions that may still be loaded.
    ours: Vec<u32>,
    snapshots: Snapshots,
    /// Whether a killed session's hook was taken over.
    pub took_over: bool,
    place: pins::Place,
}

impl Session {
    /// Loads the object, pins what must outlive the process, and attaches the original.
    ///
    /// # Errors
    /// See [`SessionError`]. Nothing is attached then, and what an earlier session left is as it was, or, once the
    /// hook has been taken over, replaced by the original.
    pub fn start(
        setup: &Setup,
        fill: impl FnOnce(&LoadedObject) -> Result<(), MapsError>,
    ) -> Result<Session, SessionError> {
        let ifindex = link::ifindex(&setup.device)?;
        let mut object = Object::open(&setup.object)?;
        let name = choose_program(&object, setup)?;
        object.expect_type(&name, XDP)?;
        object.select(&[&name])?;
        let place = pins::claim(setup)?;
        let Started { loaded, ir, watcher, fallback, link, took_over } =
            match start_in(&place.dir, object, &name, ifindex, setup, fill) {
                Ok(started) => started,
                Err(e) => {
                    // Fails, as it must, where something is left; and the first error is the one to tell.
                    let _ = place.leave();
                    return Err(e);
                }
            };
        Ok(Session {
            loaded,
            name,
            device: setup.device.clone(),
            ir,
            watcher,
            fallback,
            link,
            current: None,
            earlier_fallbacks: 0,
            ours: Vec::new(),
            snapshots: Snapshots::default(),
            took_over,
            place,
        })
    }

    /// The directory of pins.
    pub fn dir(&self) -> &Path {
        &self.place.dir
    }

    /// Whether the program is still attached.
    ///
    /// # Errors
    /// [`SessionError::Gone`] if it is not.
    pub fn expect_attached(&self) -> Result<(), SessionError> {
        match self.link.info()?.ifindex {
            0 => Err(SessionError::Gone { device: self.device.clone() }),
            _ => Ok(()),
        }
    }

    /// Name of the program.
    pub fn program_name(&self) -> &str {
        &self.name
    }

    fn original(&self) -> Result<&LoadedProgram, KernelError> {
        self.loaded.program(&self.name)
    }

    /// Packets that the version on the hook handed to the original so far.
    pub fn fallbacks(&self) -> u64 {
        self.current.as_ref().map_or(0, Candidate::fallbacks)
    }

    /// Packets that all versions so far handed to the original.
    pub fn fallbacks_in_all(&self) -> u64 {
        self.earlier_fallbacks + self.fallbacks()
    }

    /// Cost of a packet on the hook, in nanoseconds, timed over a burst of `duration`, and how many packets it was
    /// timed on; nothing if none came.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn time(&self, duration: Duration) -> Result<Option<(f64, u64)>, SessionError> {
        let id = self.link.info()?.program_id;
        let program = Program::from_id(id)?;
        let _stats = enable_stats()?;
        let before = program.info()?;
        std::thread::sleep(duration);
        let after = program.info()?;
        let runs = after.run_cnt - before.run_cnt;
        let nanoseconds = after.run_time_ns - before.run_time_ns;
        Ok((runs > 0).then(|| (nanoseconds as f64 / runs as f64, runs)))
    }

    /// Takes the program off the interface and removes all that was pinned.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn stop(mut self) -> Result<(), SessionError> {
        match self.link.update(&self.original()?.program, None) {
            // The interface is gone, or somebody detached the program by force: nothing runs it any more.
            Err(KernelError::Link(LinkError::Detached { .. })) => {}
            updated => {
                updated?;
                self.link.detach()?;
            }
        }
        self.current = None;
        pins::clear(&self.place.dir, &[])?;
        pins::remove(&self.place.dir.join("link"))?;
        self.place.leave()
    }

    /// What may be known of a table, before it is read.
    fn state_of(&self, data: &TableData, map: &Map, survey: &Survey) -> Result<Option<String>, KernelError> {
        if let Some(why) = left_by_kind(data) {
            return Ok(Some(why.into()));
        }
        if map.spec().flags & MMAPABLE != 0 && !map.is_frozen()? {
            return Ok(Some("user space may write it through memory mappings".into()));
        }
        let holders = survey.holders_of(map.id());
        let original = self.original()?.program.id();
        let foreign = holders.programs.iter().find(|p| p.id != original && !self.ours.contains(&p.id));
        if let Some(other) = foreign {
            return Ok(Some(format!(
                "program `{}` (id {}) holds it too and may write it",
                other.name, other.id
            )));
        }
        if let Some(link) = holders.iterator_links.first() {
            return Ok(Some(format!("an iterator (link id {link}) may write it")));
        }
        if let Some(iterator) = holders.element_iterators.first() {
            return Ok(Some(format!(
                "an iterator over a map's elements, program `{}` (id {}), may write it",
                iterator.name, iterator.id
            )));
        }
        if let Some(outer) = holders.outer_maps.first() {
            return Ok(Some(format!(
                "it is an element of a map of maps (id {outer}), whose programs may write it"
            )));
        }
        Ok(None)
    }
}

/// What is there once the original is attached.
struct Started {
    loaded: LoadedObject,
    ir: Ir,
    watcher: Watcher,
    fallback: Map,
    link: XdpLink,
    took_over: bool,
}

fn start_in(
    dir: &Path,
    mut object: Object,
    name: &str,
    ifindex: u32,
    setup: &Setup,
    fill: impl FnOnce(&LoadedObject) -> Result<(), MapsError>,
) -> Result<Started, SessionError> {
    let link_pin = dir.join("link");
    let old = pins::old_link(&link_pin, ifindex, setup)?;
    let kept = if old.is_some() { pins::keep_maps(dir, &mut object)? } else { Vec::new() };
    if !kept.is_empty() {
        tracing::info!(maps = ?kept, "the maps of a killed session are kept");
    }
    let loaded = object.load()?;
    tracing::info!(maps = loaded.maps().len(), "the object is loaded");
    let original = loaded.program(name)?;
    let mut ir =
        lift(&original.spec).map_err(|source| SessionError::Lift { program: name.to_owned(), source })?;
    clean_up(&mut ir);
    tracing::info!(blocks = ir.layout.len(), "`{name}` is lifted");
    fill(&loaded)?;
    if let Some(link) = &old {
        link.update(&original.program, None)?;
    }
    pins::clear(dir, &kept)?;
    let took_over = old.is_some();
    let prepared = pins::pin_surroundings(dir, &kept, (&loaded, original), &ir, setup.bump).and_then(
        |(fallback, watcher)| {
            let link = match old {
                Some(link) => link,
                None => pins::attach(&original.program, ifindex, setup.mode, &link_pin)?,
            };
            Ok((fallback, watcher, link))
        },
    );
    match prepared {
        Ok((fallback, watcher, link)) => {
            tracing::info!(dir = %dir.display(), "all is pinned, the watcher is in place, the original is attached");
            Ok(Started { loaded, ir, watcher, fallback, link, took_over })
        }
        Err(e) => {
            // What is left is harmless, and the first error is the one to tell.
            let _ = pins::clear(dir, &kept);
            Err(e)
        }
    }
}

fn choose_program(object: &Object, setup: &Setup) -> Result<String, SessionError> {
    let mut programs = object.programs();
    if programs.iter().any(|p| p.prog_type == XDP) {
        programs.retain(|p| p.prog_type == XDP);
    }
    let names: Vec<String> = programs.into_iter().map(|p| p.name).collect();
    match (&setup.program, &names[..]) {
        (Some(name), _) => Ok(name.clone()),
        (None, [only]) => Ok(only.clone()),
        (None, _) => Err(SessionError::WhichProgram { object: setup.object.clone(), names }),
    }
}

impl Target for Session {
    type Error = SessionError;

    fn epoch(&self) -> Result<u64, SessionError> {
        Ok(self.watcher.epoch(SLOT)?)
    }

    fn program(&self) -> &Ir {
        &self.ir
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, SessionError> {
        let started = Instant::now();
        let mut tables: SecondaryMap<Table, Option<TableState>> = SecondaryMap::new();
        let spec = &self.loaded.program(&self.name)?.spec;
        let maps = self.loaded.maps_of(spec)?;
        // The epoch is read before anybody asks who holds a map: a load by another process moves it when it returns, if
        // the program holds one of them.
        let epoch = self.watcher.epoch(SLOT)?;
        let survey = Survey::take()?;
        let mut known = Vec::new();
        for (index, map) in maps.iter().enumerate() {
            let table = Table::new(index);
            let data = &self.ir.tables[table];
            match self.state_of(data, map, &survey)? {
                Some(why) => tables[table] = Some(TableState::Left(why)),
                None => known.push((table, *map, data.kind)),
            }
        }
        let wanted: Vec<(&Map, TableKind)> = known.iter().map(|(_, map, kind)| (*map, *kind)).collect();
        let Some(token) = self.snapshots.refresh(&self.watcher, SLOT, &wanted)? else { return Ok(None) };
        if token.epoch != epoch {
            return Ok(None);
        }
        for (table, map, _) in known {
            tables[table] = self.snapshots.contents(map).map(TableState::Known);
        }
        Ok(Some(Snapshot { epoch: token.epoch, tables, read: started.elapsed() }))
    }

    fn install(&mut self, version: &Specialized) -> Result<Installed, SessionError> {
        let loaded = self.loaded.program(&self.name)?;
        let maps = self.loaded.maps_of(&loaded.spec)?;
        let around = Surroundings {
            original: &loaded.spec,
            maps: &maps,
            epoch: (self.watcher.epochs_map(), Watcher::epoch_offset(SLOT)),
            fallback: &self.fallback,
        };
        tracing::info!(assumptions = ?version.assumptions, "specialized; generating code");
        let candidate = build(version, around)?;
        tracing::info!(
            id = candidate.program.id(),
            insns = candidate.spec.insns.len(),
            "the kernel has taken a version"
        );
        tracing::debug!("its IR:\n{}", version.program.compact());
        self.ours.push(candidate.program.id());
        let started = Instant::now();
        self.link.update(&candidate.program, None)?;
        let swap = started.elapsed();
        let installed = Installed {
            lower: candidate.lower_time,
            fill: candidate.data_time,
            verify: candidate.load.load_time,
            swap,
            insns: candidate.spec.insns.len(),
            verified_insns: u64::from(candidate.load.verified_insns),
            memory_bytes: candidate.memory_bytes,
        };
        let keep = candidate.program.id();
        self.earlier_fallbacks = self.fallbacks_in_all();
        self.current = Some(candidate);
        self.ours.retain(|&id| id == keep || Program::from_id(id).is_ok());
        Ok(installed)
    }
}
