//! What is counted, and what a trace hears.

use expect_test::expect;
use runnel_interp::{Reached, TableCounts, Trace, place};
use runnel_ir::{Block, EntityRef, Table};

use crate::Bench;

/// Counts packets by their first byte, in the table's values, when the table knows the byte.
const COUNTER: &str = "table t0 \"hits\" exact key 1 value 8 entries 8
    slot s0 8
    block0(v0):
      v1 = ctx_load.32 v0
      v2 = load.8 v1
      v3 = lookup t0 [0:8 v2]
      v4 = const 0
      branch.eq.64 v3, v4, block1, block2
    block1:
      v5 = slot_addr s0
      store.64 v5, v4
      v6 = load.8 v1+1
      branch.ne.64 v6, v4, block3, block4
    block2:
      v7 = const 1
      atomic_add.64 v3, v7
      return v7
    block3:
      v8 = update t0 [0:8 v2], v5, v4
      v9 = delete t0 [0:8 v6]
      jump block4
    block4:
      return v4";

#[test]
fn counts_are_sums_over_all_runs() {
    let mut bench = Bench::new(COUNTER);
    let t0 = Table::new(0);
    for packet in [[1, 0], [1, 9], [1, 0], [2, 0], [1, 0]] {
        bench.run(&packet).unwrap();
    }
    assert_eq!(bench.counters.runs, 5);
    assert_eq!(bench.counters.table(t0), TableCounts { lookups: 5, hits: 2, updates: 1, deletes: 1 });
    assert_eq!(bench.counters.block(&bench.compiled, Block::new(4)), 3);
    assert_eq!(bench.counters.branch(&bench.compiled, Block::new(0)), [3, 2]);
    assert_eq!(bench.counters.branches_reached(&bench.compiled), Reached { reached: 4, total: 4 });
    let reached = bench.state.machine.tables.entries_reached(t0);
    assert_eq!(reached.into_iter().collect::<Vec<_>>(), [Box::from([1])]);
    expect![[r#"
        Totals {
            instructions: 49,
            constants: 10,
            loads: 10,
            stores: 5,
            context_loads: 5,
            table_accesses: 7,
            calls: 0,
            branches: 8,
        }
    "#]]
    .assert_debug_eq(&bench.counters.totals(&bench.compiled));
    let mut twice = bench.counters.clone();
    twice.merge(&bench.counters);
    assert_eq!(twice.totals(&bench.compiled).loads, 2 * bench.counters.totals(&bench.compiled).loads);
}

#[test]
fn entries_that_are_gone_were_reached_all_the_same() {
    let mut bench = Bench::new(COUNTER);
    let t0 = Table::new(0);
    let tables = &mut bench.state.machine.tables;
    tables.put(t0, &[3], &[0; 8]).unwrap();
    tables.put(t0, &[4], &[0; 8]).unwrap();
    bench.run(&[3, 0]).unwrap();
    let tables = &mut bench.state.machine.tables;
    tables.put(t0, &[3], &[1; 8]).unwrap();
    assert_eq!(tables.entries_reached(t0).len(), 1);
    tables.remove(t0, &[3]).unwrap();
    assert_eq!(tables.entries_reached(t0).len(), 1);
    tables.forget_hits();
    assert!(tables.entries_reached(t0).is_empty());
}

#[test]
fn a_branch_that_always_goes_one_way_is_half_reached() {
    let mut bench = Bench::new(COUNTER);
    bench.run(&[1, 0]).unwrap();
    let reached = bench.counters.branches_reached(&bench.compiled);
    assert_eq!(reached, Reached { reached: 2, total: 4 });
    assert_eq!(reached.share(), 0.5);
}

#[test]
fn what_a_tail_call_leaves_out_is_not_counted() {
    let mut bench = Bench::new(
        "table t0 \"programs\" opaque key 4 value 4 entries 4
         callee c0 \"tail_call\" number 12 args 3 may_exit
         block0(v0):
           v1 = const 2
           v2 = table_ref t0
           v3 = call c0(v0, v2, v1)
           v4 = ctx_load.32 v0
           v5 = load.8 v4
           branch.eq.64 v5, v1, block1, block1
         block1:
           return v5",
    );
    assert_eq!(bench.run(&[7]).unwrap().steps, 7);
    let opaque = bench.state.host.xdp.opaque.entry(Table::new(0)).or_default();
    opaque.indices.insert(2);
    assert_eq!(bench.run(&[7]).unwrap().steps, 3);
    let totals = bench.counters.totals(&bench.compiled);
    assert_eq!((totals.instructions, totals.loads, totals.branches, totals.calls), (10, 1, 1, 2));
}

/// Writes down all that it hears.
#[derive(Default)]
struct Log(Vec<String>);

impl Trace for Log {
    fn fetch(&mut self, first: u32, count: u32) {
        self.0.push(format!("fetch {first}+{count}"));
    }
    fn load(&mut self, address: u64, bytes: u32) {
        self.0.push(format!("load {:#x} {bytes}", place(address)));
    }
    fn store(&mut self, address: u64, bytes: u32) {
        self.0.push(format!("store {:#x} {bytes}", place(address)));
    }
    fn lookup(&mut self, table: Table, key: &[u8], address: u64) {
        self.0.push(format!("lookup {table} {key:?} {:#x}", place(address)));
    }
}

#[test]
fn a_trace_hears_every_fetch_and_access_in_order() {
    let mut bench = Bench::new(COUNTER);
    let mut log = Log::default();
    for packet in [[1, 9], [1, 0]] {
        bench.state.machine.packet.set(&packet).unwrap();
        bench.compiled.run_traced(&mut bench.state, &mut bench.counters, &mut log).unwrap();
    }
    expect![[r#"
        fetch 0+5
        load 0x10000100 1
        lookup t0 [1] 0x0
        fetch 5+4
        store 0x100000 8
        load 0x10000101 1
        fetch 12+3
        load 0x100000 8
        fetch 15+1
        fetch 0+5
        load 0x10000100 1
        lookup t0 [1] 0x1000000000
        fetch 9+3
        load 0x1000000000 8
        store 0x1000000000 8"#]]
    .assert_eq(&log.0.join("\n"));
}
