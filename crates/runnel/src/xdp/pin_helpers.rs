//! Copies of programs that can be compared: what varies from run to run is pinned, what only the kernel would see is
//! recorded.
//!
//! Calls of time, random and CPU helpers become loads from a map that the comparison sets before each packet, so that
//! two variants get the same answers however often they ask. Redirections are recorded before they happen, because
//! the verdict says only that there was one. Both variants are rewritten in the same way, in bytecode, and in
//! nothing else; the programs that are measured and put on hooks are not rewritten at all.
//!
//! Which map a redirection names is known by the map's address, as the program sees it: [`map_addresses`] asks a
//! small program for the addresses.

use std::os::fd::{AsFd, BorrowedFd};

use runnel_bpf::insn::{self, Insn};
use runnel_bpf::rewrite::{RewriteError, rewrite};
use runnel_bpf::spec::{MapSpec, ProgramSpec};
use runnel_kernel::error::Error as KernelError;
use runnel_kernel::map::{Map, Mapping};
use runnel_kernel::possible_cpus;
use runnel_kernel::program::Program;

/// Helpers by `enum bpf_func_id`: those that give the time, in whatever unit and from whatever clock.
pub const TIME: [i32; 5] = [5, 118, 125, 160, 208];
/// `bpf_get_prandom_u32`.
pub const RANDOM: i32 = 7;
/// `bpf_get_smp_processor_id`.
pub const CPU: i32 = 8;
/// `bpf_get_numa_node_id`.
pub const NODE: i32 = 42;
/// `bpf_redirect`.
const REDIRECT: i32 = 23;
/// `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;

/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

/// The map's value, by offset in bytes: what helpers give, then the last redirection: the helper's number and three
/// arguments. All are words of eight bytes.
const TIME_AT: u32 = 0;
const RANDOM_AT: u32 = 8;
const CPU_AT: u32 = 16;
const NODE_AT: u32 = 24;
const RECORD_AT: u32 = 64;
const SIZE: u32 = 128;

/// What helpers give.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    /// All clocks.
    pub time: u64,
    /// Random numbers.
    pub random: u32,
    /// The CPU.
    pub cpu: u32,
}

/// A redirection that a program asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirection {
    /// To an interface.
    Interface {
        /// Its index.
        index: u32,
        /// The flags.
        flags: u64,
    },
    /// To what a map says.
    Map {
        /// Address of the map in the kernel.
        map: u64,
        /// The key.
        key: u64,
        /// The flags.
        flags: u64,
    },
}

/// The map that a rewritten copy reads and records in.
#[derive(Debug)]
pub struct Pins {
    map: Map,
    mapping: Mapping,
}

fn pins_spec() -> MapSpec {
    MapSpec {
        name: "runnel_pins".into(),
        map_type: ARRAY,
        key_size: 4,
        value_size: SIZE,
        max_entries: 1,
        flags: MMAPABLE,
    }
}

impl Pins {
    /// Creates the map.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Pins, KernelError> {
        let map = Map::create(&pins_spec())?;
        let mapping = map.mmap(true)?;
        Ok(Pins { map, mapping })
    }

    /// Sets what helpers give from now on, and forgets redirections.
    pub fn set(&self, pinned: Pinned) {
        self.mapping.store_u64(TIME_AT as usize, pinned.time);
        self.mapping.store_u64(RANDOM_AT as usize, pinned.random.into());
        self.mapping.store_u64(CPU_AT as usize, pinned.cpu.into());
        self.mapping.store_u64(NODE_AT as usize, 0);
        self.mapping.store_u64(RECORD_AT as usize, 0);
    }

    /// The last redirection since [`Pins::set`]: the one that the kernel would follow.
    pub fn redirection(&self) -> Option<Redirection> {
        let word = |i: u32| self.mapping.load_u64((RECORD_AT + 8 * i) as usize);
        match i32::try_from(word(0)).ok()? {
            // The helper takes the low half of its argument.
            REDIRECT => Some(Redirection::Interface { index: word(1) as u32, flags: word(2) }),
            REDIRECT_MAP => Some(Redirection::Map { map: word(1), key: word(2), flags: word(3) }),
            _ => None,
        }
    }
}

impl AsFd for Pins {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// The copy of a program that uses the map [`Pins`], which becomes the last of its maps.
///
/// # Errors
/// Programs that are malformed or grow too large.
pub fn pin_helpers(spec: &ProgramSpec) -> Result<ProgramSpec, RewriteError> {
    let map = spec.maps.len() as i32;
    let insns = rewrite(&spec.insns, |_, insn| {
        let calls_helper = insn.code == insn::JMP | insn::CALL && insn.src() == 0;
        if calls_helper { replacement(insn, map) } else { None }
    })?;
    let mut copy = spec.clone();
    copy.insns = insns;
    copy.maps.push(pins_spec());
    Ok(copy)
}

/// What stands in for the call of a helper. Calls destroy r0 to r5, so r0 is free to be used before one.
fn replacement(call: Insn, map: i32) -> Option<Vec<Insn>> {
    match call.imm {
        helper if TIME.contains(&helper) => Some(load(map, TIME_AT)),
        RANDOM => Some(load(map, RANDOM_AT)),
        NODE => Some(load(map, NODE_AT)),
        CPU => {
            // The verifier knows that the helper gives no more than there are CPUs, and programs rely on it.
            let mut sequence = load(map, CPU_AT);
            sequence.push(Insn::new(insn::JMP | insn::JLT, 0, 0, 1, possible_cpus() as i32));
            sequence.push(Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, 0));
            Some(sequence)
        }
        REDIRECT => Some(record(call, map, 2)),
        REDIRECT_MAP => Some(record(call, map, 3)),
        _ => None,
    }
}

fn address(register: u8, map: i32, offset: u32) -> [Insn; 2] {
    let wide = insn::LD | insn::IMM | insn::DW;
    [Insn::new(wide, register, insn::PSEUDO_MAP_IDX_VALUE, 0, map), Insn::new(0, 0, 0, 0, offset as i32)]
}

fn load(map: i32, offset: u32) -> Vec<Insn> {
    let mut sequence = address(0, map, offset).to_vec();
    sequence.push(Insn::new(insn::LDX | insn::MEM | insn::DW, 0, 0, 0, 0));
    sequence
}

fn record(call: Insn, map: i32, arguments: u8) -> Vec<Insn> {
    let mut sequence = address(0, map, RECORD_AT).to_vec();
    sequence.push(Insn::new(insn::ST | insn::MEM | insn::DW, 0, 0, 0, call.imm));
    let store = |i: u8| Insn::new(insn::STX | insn::MEM | insn::DW, 0, i, 8 * i16::from(i), 0);
    sequence.extend((1..=arguments).map(store));
    sequence.push(call);
    sequence
}

/// The addresses of maps as programs like `like` see them, in the order given.
///
/// # Errors
/// What the kernel says; the verifier's refusal if it lets nobody see addresses.
pub fn map_addresses(like: &ProgramSpec, maps: &[&Map]) -> Result<Vec<u64>, KernelError> {
    let out = Map::create(&MapSpec {
        name: "runnel_addrs".into(),
        value_size: 8 * (maps.len() as u32).max(1),
        ..pins_spec()
    })?;
    let last = maps.len() as i32;
    let mut insns = address(1, last, 0).to_vec();
    for index in 0..maps.len() {
        let wide = insn::LD | insn::IMM | insn::DW;
        insns.push(Insn::new(wide, 2, insn::PSEUDO_MAP_IDX, 0, index as i32));
        insns.push(Insn::default());
        insns.push(Insn::new(insn::STX | insn::MEM | insn::DW, 1, 2, 8 * index as i16, 0));
    }
    insns.push(Insn::new(insn::ALU64 | insn::MOV, 0, 0, 0, 2));
    insns.push(Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0));
    let mut specs: Vec<MapSpec> = maps.iter().map(|m| m.spec().clone()).collect();
    specs.push(out.spec().clone());
    let spec = ProgramSpec { name: "runnel_addrs".into(), insns, maps: specs, ..like.clone() };
    let fds: Vec<BorrowedFd<'_>> = maps.iter().map(|m| m.as_fd()).chain([out.as_fd()]).collect();
    let (program, _) = Program::load(&spec, &fds)?;
    // Any packet will do.
    program.test_run(&[0; 64], &[], 1, 0)?;
    let mapping = out.mmap(false)?;
    Ok((0..maps.len()).map(|i| mapping.load_u64(8 * i)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const XDP: u32 = 6;

    fn spec(insns: Vec<Insn>, maps: Vec<MapSpec>) -> ProgramSpec {
        ProgramSpec {
            name: "test".into(),
            section: "xdp".into(),
            prog_type: XDP,
            expected_attach_type: 0,
            flags: 0,
            license: "GPL".into(),
            insns,
            maps,
        }
    }

    fn call(helper: i32) -> Insn {
        Insn::new(insn::JMP | insn::CALL, 0, 0, 0, helper)
    }

    fn mov(register: u8, value: i32) -> Insn {
        Insn::new(insn::ALU64 | insn::MOV, register, 0, 0, value)
    }

    const EXIT: Insn = Insn::new(insn::JMP | insn::EXIT, 0, 0, 0, 0);

    fn verdict(insns: Vec<Insn>, pinned: Pinned) -> (u32, Pins) {
        let pins = Pins::new().unwrap();
        pins.set(pinned);
        let copy = pin_helpers(&spec(insns, vec![])).unwrap();
        let (program, _) = Program::load(&copy, &[pins.as_fd()]).unwrap();
        let verdict = program.test_run(&[0; 64], &[], 1, 0).unwrap().retval;
        (verdict, pins)
    }

    #[test]
    fn helpers_give_what_is_pinned() {
        let pinned = Pinned { time: 77, random: 0xffff_fff0, cpu: 0 };
        for helper in TIME {
            assert_eq!(verdict(vec![call(helper), EXIT], pinned).0, 77, "helper {helper}");
        }
        assert_eq!(verdict(vec![call(RANDOM), EXIT], pinned).0, 0xffff_fff0);
        assert_eq!(verdict(vec![call(CPU), EXIT], pinned).0, 0);
        assert_eq!(verdict(vec![call(CPU), EXIT], Pinned { cpu: 9999, ..pinned }).0, 0, "bounded");
        assert_eq!(verdict(vec![call(NODE), EXIT], pinned).0, 0);
    }

    #[test]
    fn redirections_are_recorded() {
        let insns = vec![mov(1, 5), mov(2, 0), call(REDIRECT), EXIT];
        let (verdict, pins) = verdict(insns, Pinned::default());
        assert_eq!(verdict, 4, "XDP_REDIRECT");
        assert_eq!(pins.redirection(), Some(Redirection::Interface { index: 5, flags: 0 }));
        pins.set(Pinned::default());
        assert_eq!(pins.redirection(), None);
    }

    #[test]
    fn redirections_name_their_map_by_its_address() {
        let devices = |name: &str| MapSpec {
            name: name.into(),
            map_type: 14,
            key_size: 4,
            value_size: 4,
            max_entries: 4,
            flags: 0,
        };
        let maps = [Map::create(&devices("a")).unwrap(), Map::create(&devices("b")).unwrap()];
        let mut insns =
            vec![Insn::new(insn::LD | insn::IMM | insn::DW, 1, insn::PSEUDO_MAP_IDX, 0, 1), Insn::default()];
        insns.extend([mov(2, 3), mov(3, 2), call(REDIRECT_MAP), EXIT]);
        let spec = spec(insns, vec![devices("a"), devices("b")]);
        let addresses = map_addresses(&spec, &[&maps[0], &maps[1]]).unwrap();
        assert_ne!(addresses[0], addresses[1]);
        let pins = Pins::new().unwrap();
        pins.set(Pinned::default());
        let copy = pin_helpers(&spec).unwrap();
        let fds = [maps[0].as_fd(), maps[1].as_fd(), pins.as_fd()];
        let (program, _) = Program::load(&copy, &fds).unwrap();
        assert_eq!(program.test_run(&[0; 64], &[], 1, 0).unwrap().retval, 2, "no entry: the flags decide");
        let expected = Redirection::Map { map: addresses[1], key: 3, flags: 2 };
        assert_eq!(pins.redirection(), Some(expected));
    }
}
