//! A ready-made host for XDP programs: a context of fields, and the helper functions that such programs call most.
//!
//! The core knows no helper numbers; here, too, functions are kept by whatever number the program's callees carry,
//! and the default ones are chosen by the callees' *names*. What varies in a kernel (time, randomness, the CPU) is
//! pinned, so that runs can be compared.
//!
//! Absent on purpose: frames of several buffers, metadata set by a program, maps of devices with programs of their
//! own. What such a program calls is an unknown callee, unless the user of the host supplies it.

use std::collections::{BTreeMap, BTreeSet};

use runnel_ir::{Callee, CalleeData, Program, Size, Table};

use crate::address::table_of;
use crate::fault::What;
use crate::host::{Called, Host};
use crate::machine::Machine;
use crate::tables::errno::EINVAL;

/// Verdicts of XDP programs (`enum xdp_action` in `include/uapi/linux/bpf.h`).
pub mod action {
    /// An error occurred; the packet is dropped.
    pub const ABORTED: u64 = 0;
    /// The packet is dropped.
    pub const DROP: u64 = 1;
    /// The packet goes up the stack.
    pub const PASS: u64 = 2;
    /// The packet leaves by the interface that it came from.
    pub const TX: u64 = 3;
    /// The packet goes where the last redirection said.
    pub const REDIRECT: u64 = 4;
}

/// What stands in a field of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// Address of the packet's first byte.
    Data,
    /// Address of the byte behind the packet.
    DataEnd,
    /// Address of the metadata in front of the packet.
    DataMeta,
    /// [`Xdp::ingress_ifindex`].
    IngressIfindex,
    /// [`Xdp::rx_queue_index`].
    RxQueueIndex,
}

/// A field of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Offset in bytes.
    pub offset: i32,
    /// Size in bytes.
    pub size: u32,
    /// What stands there.
    pub meaning: Meaning,
}

/// The fields of `struct xdp_md` in `include/uapi/linux/bpf.h`.
pub const XDP_MD: [Field; 5] = [
    Field { offset: 0, size: 4, meaning: Meaning::Data },
    Field { offset: 4, size: 4, meaning: Meaning::DataEnd },
    Field { offset: 8, size: 4, meaning: Meaning::DataMeta },
    Field { offset: 12, size: 4, meaning: Meaning::IngressIfindex },
    Field { offset: 16, size: 4, meaning: Meaning::RxQueueIndex },
];

/// What an opaque table holds, as far as callees care.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Opaque {
    /// The indices that have an entry.
    pub indices: BTreeSet<u32>,
    /// Flags beyond the low two bits that a redirection to the table may have. Device maps know broadcast (8) and
    /// exclude-ingress (16), others none.
    pub flags: u64,
}

/// Something that a callee did outside of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// `redirect`: to an interface.
    Redirect {
        /// Number of the interface.
        ifindex: u32,
    },
    /// `redirect_map`: to what a table says. Only successful ones.
    RedirectMap {
        /// The table.
        table: Table,
        /// The index in it.
        index: u32,
        /// The flags.
        flags: u64,
    },
    /// `tail_call`: to the program in a table.
    TailCall {
        /// The table.
        table: Table,
        /// The index in it.
        index: u32,
        /// Whether a program was there; if not, the caller went on.
        taken: bool,
    },
}

/// What the functions of the host see and change.
#[derive(Clone, Debug)]
pub struct Xdp {
    /// The context's fields.
    pub fields: Vec<Field>,
    /// Number of the interface that packets come from.
    pub ingress_ifindex: u32,
    /// Number of the queue that packets come from.
    pub rx_queue_index: u32,
    /// The time that `ktime_get_ns` gives.
    pub time_ns: u64,
    /// The number that `get_prandom_u32` gives.
    pub random: u32,
    /// What the opaque tables hold.
    pub opaque: BTreeMap<Table, Opaque>,
    /// What happened since [`Xdp::begin_packet`]. Only the last redirection counts, and only if the verdict asks for
    /// one.
    pub events: Vec<Event>,
}

impl Xdp {
    /// Forgets what happened for the packet before.
    pub fn begin_packet(&mut self) {
        self.events.clear();
    }
}

/// A function of the host. It has as many arguments as its callee declares.
pub type Function = Box<dyn FnMut(&mut Xdp, &[u64], &mut Machine) -> Result<Called, What> + Send>;

/// A host for XDP programs.
pub struct XdpHost {
    /// What the functions see and change.
    pub xdp: Xdp,
    functions: BTreeMap<u32, Function>,
}

impl XdpHost {
    /// A host with the default functions for those callees of `program` whose names have one: [`standard`].
    pub fn new(program: &Program) -> XdpHost {
        let functions = program
            .callees
            .values()
            .filter_map(|callee| Some((callee.number, standard(&callee.name, callee.arity)?)))
            .collect();
        let xdp = Xdp {
            fields: XDP_MD.to_vec(),
            ingress_ifindex: 1,
            rx_queue_index: 0,
            time_ns: 1_000_000_000,
            random: 0x9e37_79b9,
            opaque: BTreeMap::new(),
            events: Vec::new(),
        };
        XdpHost { xdp, functions }
    }

    /// Supplies the function for callees of a number, in place of any other.
    pub fn set_function(&mut self, number: u32, function: Function) {
        self.functions.insert(number, function);
    }
}

impl Host for XdpHost {
    fn ctx_load(&mut self, offset: i32, size: Size, machine: &Machine) -> Result<u64, What> {
        let found = self.xdp.fields.iter().find(|f| f.offset == offset && f.size == size.bytes());
        let field = found.ok_or(What::NoContextField { offset, size: size.bytes() })?;
        Ok(match field.meaning {
            Meaning::Data => machine.packet.data_address(),
            Meaning::DataEnd => machine.packet.end_address(),
            Meaning::DataMeta => machine.packet.meta_address(),
            Meaning::IngressIfindex => self.xdp.ingress_ifindex.into(),
            Meaning::RxQueueIndex => self.xdp.rx_queue_index.into(),
        })
    }

    fn call(
        &mut self,
        _: Callee,
        data: &CalleeData,
        args: &[u64],
        machine: &mut Machine,
    ) -> Result<Called, What> {
        match self.functions.get_mut(&data.number) {
            Some(function) => function(&mut self.xdp, args, machine),
            None => Err(What::UnknownCallee { name: data.name.clone(), number: data.number }),
        }
    }
}

type Plain = fn(&mut Xdp, &[u64], &mut Machine) -> Result<Called, What>;

/// The default function of a name, with or without `bpf_` before it, if there is one that takes `arity` arguments.
pub fn standard(name: &str, arity: u8) -> Option<Function> {
    let (takes, function): (u8, Plain) = match name.strip_prefix("bpf_").unwrap_or(name) {
        "ktime_get_ns" => (0, |xdp, _, _| Ok(Called::Value(xdp.time_ns))),
        "get_prandom_u32" => (0, |xdp, _, _| Ok(Called::Value(xdp.random.into()))),
        "get_smp_processor_id" => (0, |_, _, machine| Ok(Called::Value(machine.tables.cpu().into()))),
        "redirect" => (2, redirect),
        "redirect_map" => (3, redirect_map),
        "tail_call" => (3, tail_call),
        "xdp_adjust_head" => (2, adjust_head),
        "xdp_adjust_tail" => (2, adjust_tail),
        "csum_diff" => (5, csum_diff),
        _ => return None,
    };
    (takes == arity).then(|| Box::new(function) as Function)
}

/// `bpf_xdp_redirect` of the kernel's `net/core/filter.c`: no flags are allowed.
fn redirect(xdp: &mut Xdp, args: &[u64], _: &mut Machine) -> Result<Called, What> {
    if args[1] != 0 {
        return Ok(Called::Value(action::ABORTED));
    }
    xdp.events.push(Event::Redirect { ifindex: args[0] as u32 });
    Ok(Called::Value(action::REDIRECT))
}

/// `__bpf_xdp_redirect_map` of the kernel's `include/linux/filter.h`: where there is no entry, the low two bits of
/// the flags are the verdict. Of the index only the low 32 bits count.
fn redirect_map(xdp: &mut Xdp, args: &[u64], _: &mut Machine) -> Result<Called, What> {
    const ACTION: u64 = 3;
    const BROADCAST: u64 = 8;
    let (table, index, flags) = (table_argument(args[0], 0)?, args[1] as u32, args[2]);
    let empty = Opaque::default();
    let opaque = xdp.opaque.get(&table).unwrap_or(&empty);
    if flags & !(ACTION | opaque.flags) != 0 {
        return Ok(Called::Value(action::ABORTED));
    }
    if !opaque.indices.contains(&index) && flags & BROADCAST == 0 {
        return Ok(Called::Value(flags & ACTION));
    }
    xdp.events.push(Event::RedirectMap { table, index, flags });
    Ok(Called::Value(action::REDIRECT))
}

/// Leaves the program where the table has an entry, else goes on. The kernel leaves no result in that case; here it
/// is 0.
fn tail_call(xdp: &mut Xdp, args: &[u64], _: &mut Machine) -> Result<Called, What> {
    let (table, index) = (table_argument(args[1], 1)?, args[2] as u32);
    let taken = xdp.opaque.get(&table).is_some_and(|opaque| opaque.indices.contains(&index));
    xdp.events.push(Event::TailCall { table, index, taken });
    Ok(if taken { Called::Exit(index.into()) } else { Called::Value(0) })
}

/// Bytes at the start of the buffer that the kernel keeps for itself: `sizeof(struct xdp_frame)`.
const FRAME_HEADER: usize = 40;

/// A packet keeps at least a link-layer header.
const MIN_PACKET: usize = 14;

/// Bytes at the end of the buffer that the kernel keeps for itself: `struct skb_shared_info`, aligned.
const SHARED_INFO: usize = 320;

/// `bpf_xdp_adjust_head` of the kernel's `net/core/filter.c`.
fn adjust_head(_: &mut Xdp, args: &[u64], machine: &mut Machine) -> Result<Called, What> {
    let delta = i64::from(args[1] as i32);
    let packet = &mut machine.packet;
    let fits = packet.room_before() as i64 + delta >= FRAME_HEADER as i64
        && packet.bytes().len() as i64 - delta >= MIN_PACKET as i64;
    Ok(Called::Value(status(fits && packet.move_head(delta))))
}

/// `bpf_xdp_adjust_tail` of the kernel's `net/core/filter.c`.
fn adjust_tail(_: &mut Xdp, args: &[u64], machine: &mut Machine) -> Result<Called, What> {
    let delta = i64::from(args[1] as i32);
    let packet = &mut machine.packet;
    let fits = packet.room_behind() as i64 - delta >= SHARED_INFO as i64
        && packet.bytes().len() as i64 + delta >= MIN_PACKET as i64;
    Ok(Called::Value(status(fits && packet.move_tail(delta))))
}

fn status(done: bool) -> u64 {
    if done { 0 } else { -EINVAL as u64 }
}

/// `bpf_csum_diff` of the kernel's `net/core/filter.c`: the checksum of what is added less that of what is removed
/// plus the seed, folded to 16 bits (RFC 1071, in the machine's byte order).
fn csum_diff(_: &mut Xdp, args: &[u64], machine: &mut Machine) -> Result<Called, What> {
    let (from_size, to_size) = (args[1] as u32 as usize, args[3] as u32 as usize);
    if !from_size.is_multiple_of(4) || !to_size.is_multiple_of(4) {
        return Ok(Called::Value(-EINVAL as u64));
    }
    let removed = ones_sum(machine.bytes(args[0], from_size)?, 0);
    let added = machine.bytes(args[2], to_size)?;
    let seed = args[4] as u32;
    let sum = match (from_size, to_size) {
        (0, _) => ones_sum(added, seed),
        (_, 0) => !ones_sum(machine.bytes(args[0], from_size)?, !seed),
        _ => ones_add(ones_sum(added, seed), !removed),
    };
    Ok(Called::Value(fold(sum).into()))
}

/// Ones-complement sum of 32-bit words.
fn ones_sum(bytes: &[u8], seed: u32) -> u32 {
    let words = bytes.chunks_exact(4).map(|chunk| crate::machine::number(chunk) as u32);
    words.fold(seed, ones_add)
}

fn ones_add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u32::from(carry)
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

fn table_argument(value: u64, index: usize) -> Result<Table, What> {
    table_of(value).ok_or(What::BadArgument { index, expected: "a table" })
}
