//! A program as it takes part in a comparison: rewritten, loaded, on the maps of its instance.

use std::os::fd::{AsFd, BorrowedFd};

use runnel_bpf::insn::Insn;
use runnel_bpf::spec::ProgramSpec;
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::map::Map;
use runnel_kernel::program::Program;
use runnel_kernel::test_run::TestRunner;

use super::super::candidate::fallback_array;
use super::super::maps::Instance;
use super::super::pin_helpers::{Pinned, Pins, Redirection, map_addresses, pin_helpers};
use super::super::reference::Destination;
use super::super::version::Version;
use super::CheckError;
use super::report::Seen;

/// `XDP_REDIRECT`.
const REDIRECT: u32 = 4;

/// A program that takes part in a comparison.
#[derive(Debug)]
pub struct Subject {
    program: Program,
    pins: Pins,
    /// Addresses of the instance's maps, in the program's order.
    addresses: Vec<u64>,
    /// The program array that the program falls back through, kept because its slot goes with its last holder.
    _fallback: Option<Map>,
}

impl Subject {
    /// The original.
    ///
    /// # Errors
    /// The rewritten copy cannot be made or loaded.
    pub fn original(instance: &Instance) -> Result<Subject, CheckError> {
        Self::original_edited(instance, |_| ())
    }

    /// The original with its bytecode changed by `edit`: into what lifting and lowering make of it, say.
    ///
    /// # Errors
    /// As [`Subject::original`].
    pub fn original_edited(
        instance: &Instance,
        edit: impl FnOnce(&mut Vec<Insn>),
    ) -> Result<Subject, CheckError> {
        let pins = Pins::new()?;
        let program = load_original(instance, edit, &pins)?;
        Ok(Subject { program, addresses: addresses(instance)?, pins, _fallback: None })
    }

    /// A specialized version, which falls back to a rewritten copy of the original.
    ///
    /// # Errors
    /// As [`Subject::original`].
    pub fn version(instance: &Instance, version: &Version) -> Result<Subject, CheckError> {
        Self::version_edited(instance, version, |_| ())
    }

    /// The same with its bytecode changed by `edit`, as a mistake in code generation would change it.
    ///
    /// # Errors
    /// As [`Subject::original`].
    pub fn version_edited(
        instance: &Instance,
        version: &Version,
        edit: impl FnOnce(&mut Vec<Insn>),
    ) -> Result<Subject, CheckError> {
        let pins = Pins::new()?;
        let fallback = fallback_array(&load_original(instance, |_| (), &pins)?)?;
        let mut spec = version.candidate.spec.clone();
        edit(&mut spec.insns);
        let maps = instance.maps()?;
        let own = [version.epoch_map().as_fd(), version.candidate.data.as_fd(), fallback.as_fd()];
        let fds: Vec<BorrowedFd<'_>> = maps.iter().map(|m| m.as_fd()).chain(own).collect();
        let program = load(&spec, fds, &pins)?;
        Ok(Subject { program, addresses: addresses(instance)?, pins, _fallback: Some(fallback) })
    }

    /// The program that runs.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs it on a packet.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn run<'r>(
        &self,
        runner: &'r mut TestRunner<'_>,
        packet: &[u8],
        context: &[u8],
        pinned: Pinned,
    ) -> Result<Seen<'r>, KernelError> {
        self.pins.set(pinned);
        let outcome = runner.run(packet, context)?;
        let redirection = if outcome.retval == REDIRECT { self.pins.redirection() } else { None };
        let destination = redirection.map(|r| self.destination(r));
        Ok(Seen::kernel(outcome.retval, outcome.data, outcome.ctx, destination))
    }

    fn destination(&self, redirection: Redirection) -> Destination {
        match redirection {
            Redirection::Interface { index, flags } => Destination::Interface { index, flags },
            Redirection::Map { map, key, flags } => {
                let map = self.addresses.iter().position(|&address| address == map);
                Destination::Map { map, key, flags }
            }
        }
    }
}

fn load_original(
    instance: &Instance,
    edit: impl FnOnce(&mut Vec<Insn>),
    pins: &Pins,
) -> Result<Program, CheckError> {
    let fds = instance.maps()?.into_iter().map(|m| m.as_fd()).collect();
    let mut spec = instance.original()?.spec.clone();
    edit(&mut spec.insns);
    load(&spec, fds, pins)
}

fn load<'a>(spec: &ProgramSpec, mut fds: Vec<BorrowedFd<'a>>, pins: &'a Pins) -> Result<Program, CheckError> {
    let copy = pin_helpers(spec)?;
    fds.push(pins.as_fd());
    let (program, _) = Program::load(&copy, &fds).map_err(|e| CheckError::Refused(Box::new(e)))?;
    Ok(program)
}

fn addresses(instance: &Instance) -> Result<Vec<u64>, CheckError> {
    Ok(map_addresses(&instance.original()?.spec, &instance.maps()?)?)
}
