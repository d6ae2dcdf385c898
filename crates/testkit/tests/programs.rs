//! Generated programs keep what is promised of them: well-formed, terminating, safe, and worth running.
//!
//! Relies on the interpreter as the judge of safety.

use std::collections::BTreeSet;

use runnel_interp::{Compiled, Counters, Ended, Machine, State, Tables, xdp::XdpHost};
use runnel_ir::{
    BinaryOp, Cond, InstData, Program, Size, TableKind, Terminator, UnaryOp, Value, Width, cfg::Cfg,
    parse_program, verify,
};
use runnel_testkit::programs::{Config, Generated, generate};

fn state(generated: &Generated, compiled: &Compiled) -> State<XdpHost> {
    let mut tables = Tables::new(&generated.program, 2).unwrap();
    for entry in &generated.inputs.entries {
        tables.put(entry.table, &entry.key, &entry.value).unwrap();
    }
    let mut state = State::new(Machine::new(tables, compiled.image()), XdpHost::new(&generated.program));
    for &(table, index) in &generated.inputs.indices {
        state.host.xdp.opaque.entry(table).or_default().indices.insert(index);
    }
    state
}

/// Runs a program on all of its packets. Any fault fails the test.
fn run(generated: &Generated) -> (Compiled, Counters, Vec<Ended>) {
    let compiled = Compiled::new(&generated.program).unwrap();
    let mut state = state(generated, &compiled);
    let mut counters = Counters::new(&compiled);
    let mut ends = Vec::new();
    for packet in &generated.inputs.packets {
        state.machine.packet.set(packet).unwrap();
        match compiled.run(&mut state, &mut counters) {
            Ok(outcome) => ends.push(outcome.ended),
            Err(fault) => panic!("{fault}\n{}", generated.program),
        }
    }
    (compiled, counters, ends)
}

fn configs() -> [Config; 4] {
    [
        Config { packets: 6, ..Config::default() }.sized(12),
        Config { packets: 6, ..Config::kernel() }.sized(12),
        Config { packets: 6, ..Config::default() }.sized(40),
        Config { packets: 6, ..Config::kernel() }.sized(40),
    ]
}

#[test]
fn ten_thousand_programs_are_well_formed_print_and_parse_alike_and_run_without_fault() {
    for config in configs() {
        for seed in 0..2500 {
            let generated = generate(seed, &config);
            let text = generated.program.to_string();
            verify(&generated.program).unwrap_or_else(|e| panic!("{e}\n{text}"));
            let parsed = parse_program(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(parsed.to_string(), text);
            run(&generated);
        }
    }
}

#[test]
fn a_seed_gives_the_same_program_and_inputs_each_time() {
    let (a, b) = (generate(7, &Config::default()), generate(7, &Config::default()));
    assert_eq!(a.program.to_string(), b.program.to_string());
    assert_eq!(a.inputs, b.inputs);
    assert_ne!(a.program.to_string(), generate(8, &Config::default()).program.to_string());
}

/// What programs consist of, and what happens when they run.
#[derive(Default)]
struct Seen {
    binary: BTreeSet<(BinaryOp, Width)>,
    unary: BTreeSet<UnaryOp>,
    conds: BTreeSet<(Cond, Width)>,
    accesses: BTreeSet<(&'static str, Size)>,
    others: BTreeSet<&'static str>,
    called: BTreeSet<String>,
    back_edges: u64,
    params: u64,
    hits: [u64; 3],
    misses: [u64; 3],
    branches_reached: u64,
    branches: u64,
    verdicts: BTreeSet<u64>,
    exits: u64,
    instructions: u64,
    packets: u64,
}

impl Seen {
    fn look_at(&mut self, program: &Program) {
        for node in program.insts.values() {
            match &node.data {
                InstData::Binary { op, width, .. } => drop(self.binary.insert((*op, *width))),
                InstData::Unary { op, .. } => drop(self.unary.insert(*op)),
                InstData::Load { size, .. } => drop(self.accesses.insert(("load", *size))),
                InstData::Store { size, .. } => drop(self.accesses.insert(("store", *size))),
                InstData::AtomicAdd { size, .. } => drop(self.accesses.insert(("atomic_add", *size))),
                InstData::Const(_) => drop(self.others.insert("const")),
                InstData::CtxLoad { .. } => drop(self.others.insert("ctx_load")),
                InstData::SlotAddr { .. } => drop(self.others.insert("slot_addr")),
                InstData::DataAddr { .. } => drop(self.others.insert("data_addr")),
                InstData::TableRef(_) => drop(self.others.insert("table_ref")),
                InstData::TableValue { .. } => drop(self.others.insert("table_value")),
                InstData::Lookup { .. } => drop(self.others.insert("lookup")),
                InstData::Update { .. } => drop(self.others.insert("update")),
                InstData::Delete { .. } => drop(self.others.insert("delete")),
                InstData::Call { callee, .. } => {
                    self.called.insert(program.callees[*callee].name.clone());
                }
            }
        }
        let cfg = Cfg::new(program);
        for &block in &program.layout {
            let data = &program.blocks[block];
            self.params += data.params.len() as u64;
            if let Terminator::Branch { cond, width, .. } = data.terminator {
                self.conds.insert((cond, width));
            }
            let back = data
                .terminator
                .targets()
                .filter(|t| cfg.is_reachable(block) && cfg.is_back_edge(block, t.block));
            self.back_edges += back.count() as u64;
        }
    }

    fn watch(&mut self, generated: &Generated) {
        let (compiled, counters, ends) = run(generated);
        for (table, data) in &generated.program.tables {
            let kind = match data.kind {
                TableKind::Exact => 0,
                TableKind::Prefix => 1,
                TableKind::Index => 2,
                TableKind::Opaque => continue,
            };
            let counts = counters.table(table);
            self.hits[kind] += counts.hits;
            self.misses[kind] += counts.lookups - counts.hits;
        }
        let reached = counters.branches_reached(&compiled);
        self.branches_reached += reached.reached;
        self.branches += reached.total;
        self.instructions += counters.totals(&compiled).instructions;
        self.packets += ends.len() as u64;
        for ended in ends {
            match ended {
                Ended::Verdict(verdict) => drop(self.verdicts.insert(verdict)),
                Ended::Exit(_) => self.exits += 1,
                Ended::Deopt => panic!("nobody generates deopts"),
            }
        }
    }
}

#[test]
fn programs_use_everything_that_the_ir_has_and_reach_most_of_it() {
    for (config, callees, exits) in [(Config::default(), 9, true), (Config::kernel(), 6, false)] {
        let mut seen = Seen::default();
        for seed in 0..600 {
            let generated = generate(seed, &config);
            seen.look_at(&generated.program);
            seen.watch(&generated);
        }
        assert_eq!(seen.binary.len(), 2 * BinaryOp::ALL.len());
        assert_eq!(seen.unary.len(), UnaryOp::ALL.len());
        assert_eq!(seen.conds.len(), 2 * Cond::ALL.len());
        assert_eq!(seen.accesses.len(), 4 + 4 + 2);
        assert_eq!(seen.others.len(), 9);
        assert_eq!(seen.called.len(), callees, "{:?}", seen.called);
        assert!(seen.back_edges > 100 && seen.params > 500);
        assert!(seen.hits.iter().chain(&seen.misses).all(|&n| n > 500), "{:?} {:?}", seen.hits, seen.misses);
        // Some branches cannot go both ways: checks of what is known already.
        let (reached, all) = (seen.branches_reached, seen.branches);
        assert!(reached * 100 > all * 45, "{reached} of {all}");
        assert!(seen.instructions / seen.packets > 30);
        assert_eq!(seen.exits > 100, exits);
        assert_eq!(seen.verdicts, (0..=config.verdict_mask).collect());
    }
}

/// The value is an address that arithmetic started from, whatever was added.
fn is_packet_pointer(program: &Program, mut value: Value) -> bool {
    loop {
        match program.def(value) {
            Some(InstData::CtxLoad { offset: 0 | 4, .. }) => return true,
            Some(InstData::Binary { op: BinaryOp::Add, lhs, .. }) => value = *lhs,
            _ => return false,
        }
    }
}

#[test]
fn what_a_kernel_is_to_accept_keeps_to_the_forms_that_it_can_follow() {
    for seed in 0..1000 {
        let program = generate(seed, &Config::kernel()).program;
        assert!(program.tables.values().all(|t| !t.keeps_recency));
        assert!(program.slots.values().map(|s| s.size).sum::<u32>() <= 128);
        let cfg = Cfg::new(&program);
        for &block in &program.layout {
            assert!(cfg.is_reachable(block), "{block} of\n{program}");
            if let Terminator::Branch { cond, width, lhs, rhs, .. } = program.blocks[block].terminator {
                let pointers = [lhs, rhs].map(|v| is_packet_pointer(&program, v));
                assert_eq!(pointers[0], pointers[1]);
                if pointers[0] {
                    let end = matches!(program.def(rhs), Some(InstData::CtxLoad { offset: 4, .. }));
                    assert!(end && (cond, width) == (Cond::Ugt, Width::W64), "{block} of\n{program}");
                }
            }
        }
    }
}
