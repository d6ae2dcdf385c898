//! What a program declares: its tables, data and callees, drawn before the first statement is written.

use rand::Rng;
use rand::rngs::SmallRng;
use runnel_ir::{
    Callee, CalleeData, Data, DataKind, DataObject, Effects, Program, Size, Table, TableData, TableKind,
};

use super::{Config, PORTS, PROGRAMS, one_of};

/// A table with keys, and the parts that every key of it is made of.
#[derive(Clone, Debug)]
pub(super) struct Keyed {
    pub(super) table: Table,
    pub(super) parts: Vec<Size>,
}

/// A sequence of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) data: Data,
    pub(super) stride: u32,
    /// A power of two.
    pub(super) count: u32,
}

/// The callees, by what they are for.
#[derive(Clone, Debug)]
pub(super) struct Callees {
    /// Without arguments.
    pub(super) varying: Vec<Callee>,
    pub(super) redirect: Callee,
    pub(super) redirect_map: Callee,
    pub(super) tail_call: Callee,
    pub(super) adjust_head: Callee,
    pub(super) adjust_tail: Callee,
    pub(super) csum_diff: Callee,
}

/// All that a program declares.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) keyed: Vec<Keyed>,
    /// Tables of one entry that are addressed directly.
    pub(super) globals: Vec<Table>,
    pub(super) ports: Table,
    pub(super) programs: Table,
    /// Data of no particular layout.
    pub(super) plain: Vec<Data>,
    pub(super) rows: Rows,
    pub(super) callees: Callees,
}

impl Declared {
    pub(super) fn new(rng: &mut SmallRng, config: &Config, program: &mut Program) -> Declared {
        let kinds = [TableKind::Exact, TableKind::Prefix, TableKind::Index];
        let more = (0..rng.random_range(0..=2)).map(|_| one_of(rng, &kinds)).collect::<Vec<_>>();
        // Most programs have every kind.
        let first = if rng.random_ratio(3, 4) { &kinds[..] } else { &kinds[..2] };
        let keyed = first.iter().chain(&more).map(|&kind| keyed(rng, config, program, kind)).collect();
        let globals = (0..rng.random_range(0..=1))
            .map(|_| {
                program.tables.push(TableData {
                    value_size: one_of(rng, &[8, 16, 40]),
                    max_entries: 1,
                    ..table("global", TableKind::Index, 4)
                })
            })
            .collect();
        let opaque = |name| TableData { value_size: 4, max_entries: 8, ..table(name, TableKind::Opaque, 4) };
        let ports = program.tables.push(opaque(PORTS));
        let programs = program.tables.push(opaque(PROGRAMS));
        let plain = vec![
            data(rng, program, "constants", DataKind::Const, 0, 48),
            data(rng, program, "live", DataKind::Live, 0, 16),
        ];
        let stride = rng.random_range(1..=24);
        let count = 1 << rng.random_range(1..=4);
        let data = data(rng, program, "rows", DataKind::Const, stride, stride * count);
        let callees = callees(config, program);
        let rows = Rows { data, stride, count };
        Declared { keyed, globals, ports, programs, plain, rows, callees }
    }
}

fn table(name: impl Into<String>, kind: TableKind, key_size: u32) -> TableData {
    TableData {
        name: name.into(),
        kind,
        key_size,
        value_size: 8,
        max_entries: 4,
        per_cpu: false,
        keeps_recency: false,
    }
}

fn keyed(rng: &mut SmallRng, config: &Config, program: &mut Program, kind: TableKind) -> Keyed {
    let mut parts = match kind {
        TableKind::Index => vec![Size::B4],
        TableKind::Prefix => {
            let addresses = [&[Size::B4][..], &[Size::B2, Size::B2], &[Size::B2, Size::B1], &[Size::B4; 4]];
            let address = one_of(rng, &addresses);
            [&[Size::B4], address].concat()
        }
        TableKind::Exact | TableKind::Opaque => {
            (0..rng.random_range(1..=4)).map(|_| one_of(rng, &Size::ALL)).collect()
        }
    };
    if kind == TableKind::Exact && config.kernel_acceptable {
        // Keys are put together on the stack, where each part must be aligned.
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes()));
    }
    let key_size = parts.iter().map(|p| p.bytes()).sum();
    let data = TableData {
        value_size: one_of(rng, &[1, 4, 8, 12, 16, 32]),
        max_entries: one_of(rng, &[2, 4, 5, 16]),
        per_cpu: kind != TableKind::Prefix && rng.random_ratio(1, 5),
        keeps_recency: kind == TableKind::Exact && !config.kernel_acceptable && rng.random_ratio(1, 6),
        ..table(format!("table{}", program.tables.len()), kind, key_size)
    };
    Keyed { table: program.tables.push(data), parts }
}

fn data(
    rng: &mut SmallRng,
    program: &mut Program,
    name: &str,
    kind: DataKind,
    stride: u32,
    size: u32,
) -> Data {
    let bytes = (0..size).map(|_| super::inputs::byte(rng)).collect();
    program.data.push(DataObject { name: name.into(), kind, stride, bytes })
}

/// Declares the functions of the XDP host, with the kernel's numbers (`include/uapi/linux/bpf.h`).
fn callees(config: &Config, program: &mut Program) -> Callees {
    let mut declare = |name: &str, number, arity, effects| {
        program.callees.push(CalleeData { name: name.into(), number, arity, effects })
    };
    let mut varying = Vec::new();
    if config.varying {
        varying.push(declare("ktime_get_ns", 5, 0, Effects::VARIES));
        varying.push(declare("get_prandom_u32", 7, 0, Effects::VARIES));
        varying.push(declare("get_smp_processor_id", 8, 0, Effects::VARIES));
    }
    let moves = Effects::MOVES_PACKET | Effects::WRITES_MEMORY | Effects::EXTERNAL;
    Callees {
        varying,
        redirect: declare("redirect", 23, 2, Effects::EXTERNAL),
        redirect_map: declare("redirect_map", 51, 3, Effects::READS_TABLES | Effects::EXTERNAL),
        tail_call: declare("tail_call", 12, 3, Effects::READS_TABLES | Effects::MAY_EXIT | Effects::EXTERNAL),
        adjust_head: declare("xdp_adjust_head", 44, 2, moves),
        adjust_tail: declare("xdp_adjust_tail", 65, 2, moves),
        csum_diff: declare("csum_diff", 28, 5, Effects::READS_MEMORY),
    }
}
