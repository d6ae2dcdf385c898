//! The replayer against the real kernel: every packet reaches the program fresh, whatever the program did to the
//! one before. Needs root.

mod common;

use common::{SCHED_CLS, XDP, compile, returns};
use runnel_bpf::spec::ProgramSpec;
use runnel_kernel::map::Mapping;
use runnel_kernel::object::{LoadedObject, Object};
use runnel_kernel::program::Program;
use runnel_kernel::replay::{PACKET_MAX, Replayer};
use runnel_kernel::stats::summarize;

/// A packet that says its own number and length (bytes 14 to 22) and is filled from them.
fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|i| (number * 31 + i * 7) as u8).collect();
    if len >= 22 {
        packet[14..18].copy_from_slice(&(number as u32).to_ne_bytes());
        packet[18..22].copy_from_slice(&(len as u32).to_ne_bytes());
    }
    packet
}

fn trace(lens: &[usize]) -> Vec<Vec<u8>> {
    lens.iter().enumerate().map(|(number, len)| packet(number, *len)).collect()
}

/// Checks that the packet is the next of the trace, whole and unchanged, then spoils it as `how` says. The
/// bytes are compared with what `packet` makes them.
const SPOILER: &str = r#"
struct seen { __u64 runs, wrong_number, wrong_length, wrong_bytes, meta, failed; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 1);
  __type(key, __u32); __type(value, struct seen); } table SEC(".maps");
const volatile __u32 packets = 1;
const volatile __u32 how = 0;

static long check(__u32 i, void *arg) {
  struct { struct xdp_md *ctx; __u32 number; struct seen *seen; } *a = arg;
  __u8 byte;
  if (i >= 14 && i < 22) return 0;
  if (bpf_xdp_load_bytes(a->ctx, i, &byte, 1) || byte != (__u8)(a->number * 31 + i * 7)) a->seen->wrong_bytes++;
  return 0;
}

SEC("xdp") int spoil(struct xdp_md *ctx) {
  __u32 zero = 0, said[2];
  struct seen *seen = bpf_map_lookup_elem(&table, &zero);
  if (!seen) return 0;
  __u64 run = seen->runs++;
  void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *meta = (void *)(long)ctx->data_meta;
  __u64 len = end - data;
  if (data != meta) seen->meta++;
  if (bpf_xdp_load_bytes(ctx, 14, said, 8)) { seen->failed++; return 0; }
  if (said[0] != run % packets) seen->wrong_number++;
  if (len > 4096) return 0;
  if (said[1] != len) seen->wrong_length++;
  struct { struct xdp_md *ctx; __u32 number; struct seen *seen; } arg = { ctx, said[0], seen };
  bpf_loop(len, check, &arg, 0);
  long e = 0;
  switch (how == 7 ? 1 + run % 6 : how) {
  case 1: said[0] = 0xdeadbeef; e = bpf_xdp_store_bytes(ctx, 0, said, 8); break;
  case 2: e = bpf_xdp_adjust_head(ctx, -60); break;
  case 3: e = bpf_xdp_adjust_head(ctx, 8); break;
  case 4: e = bpf_xdp_adjust_tail(ctx, -8); break;
  case 5: e = bpf_xdp_adjust_tail(ctx, 200); break;
  case 6: e = bpf_xdp_adjust_meta(ctx, -16) | bpf_xdp_adjust_head(ctx, -20) | bpf_xdp_adjust_tail(ctx, -(int)len + 10); break;
  }
  if (e) seen->failed++;
  return XDP_TX;
}
"#;

struct Spoiler {
    loaded: LoadedObject,
    seen: Mapping,
}

impl Spoiler {
    fn new(packets: usize, how: u32) -> Spoiler {
        let compiled = compile("spoil", SPOILER);
        let mut object = Object::open(&compiled.path()).expect("opening");
        object
            .set_initial("spoil.rodata", &[packets as u32, how].map(u32::to_ne_bytes).concat())
            .expect("setting");
        let loaded = object.load().expect("loading");
        let seen = loaded.map("table").expect("a map").mmap(false).expect("mapping");
        Spoiler { loaded, seen }
    }

    fn spec(&self) -> &ProgramSpec {
        &self.loaded.program("spoil").expect("a program").spec
    }

    fn program(&self) -> &Program {
        &self.loaded.program("spoil").expect("a program").program
    }

    /// Runs, then packets with a wrong number, length, byte, metadata, and actions that failed.
    fn counts(&self) -> [u64; 6] {
        std::array::from_fn(|i| self.seen.load_u64(i * 8))
    }
}

#[test]
fn every_packet_is_fresh_whatever_was_done_to_the_one_before() {
    let lens = [64, 60, 1514, 65, 128, 33, 72, 3000, 64, 200, 100];
    for how in 0..=7 {
        let spoiler = Spoiler::new(lens.len(), how);
        let replayer = Replayer::new(&trace(&lens), spoiler.spec()).expect("preparing");
        let slices = replayer.run(spoiler.program(), 1000).expect("replaying");
        assert_eq!(slices.len(), 4, "1,000 packets fill four slices of 256");
        assert_eq!(spoiler.counts(), [1025, 0, 0, 0, 0, 0], "way {how}");
    }
}

#[test]
fn the_shortest_and_the_longest_packets_can_be_replayed() {
    let lens = [22, PACKET_MAX, 22, 23];
    let spoiler = Spoiler::new(lens.len(), 1);
    let replayer = Replayer::new(&trace(&lens), spoiler.spec()).expect("preparing");
    replayer.run(spoiler.program(), 256).expect("replaying");
    assert_eq!(spoiler.counts(), [257, 0, 0, 0, 0, 0]);
    let replayer = Replayer::new(&[vec![7; 14]], spoiler.spec()).expect("preparing");
    replayer.overhead(256).expect("replaying");
}

#[test]
fn a_replay_starts_where_it_is_told_and_each_time_anew() {
    let spoiler = Spoiler::new(4, 0);
    let replayer = Replayer::with_slices(&trace(&[64; 4]), spoiler.spec(), 4).expect("preparing");
    // 4 + 1 runs from packet 0, then 4 + 1 from packet 1: number `runs % 4` each time.
    replayer.run(spoiler.program(), 4).expect("replaying");
    replayer.run_from(spoiler.program(), 5, 4).expect("replaying");
    assert_eq!(spoiler.counts(), [10, 0, 0, 0, 0, 0]);
    replayer.run(spoiler.program(), 4).expect("replaying");
    assert_eq!(spoiler.counts()[1], 5, "from the beginning, which the program did not expect");
}

#[test]
fn each_kind_of_program_has_its_replayer() {
    for (flags, expected_attach_type) in [(0, 0), (0, 37), (1 << 5, 0), (1 << 5, 37)] {
        let spec = ProgramSpec { flags, expected_attach_type, ..returns(XDP, 2) };
        let (program, _) = Program::load(&spec, &[]).expect("loading");
        let replayer = Replayer::new(&trace(&[64]), &spec).expect("preparing");
        assert_eq!(replayer.run(&program, 512).expect("replaying").len(), 2);
        let other = ProgramSpec { flags: flags ^ 1 << 5, ..spec };
        let (other, _) = Program::load(&other, &[]).expect("loading");
        assert_eq!(replayer.run(&other, 256).unwrap_err().errno().map(|e| e.0), Some(libc::EINVAL));
    }
}

#[test]
fn a_replay_takes_time_and_more_work_takes_more() {
    let source = r#"
static long spin(__u32 i, void *sum) { *(volatile __u64 *)sum += i; return 0; }
SEC("xdp") int work(struct xdp_md *ctx) { __u64 sum = 0; bpf_loop(2000, spin, &sum, 0); return XDP_DROP; }
"#;
    let compiled = compile("work", source);
    let loaded = Object::open(&compiled.path()).expect("opening").load().expect("loading");
    let work = loaded.program("work").expect("a program");
    let replayer = Replayer::new(&trace(&[64; 100]), &work.spec).expect("preparing");
    let median = |slices: Vec<f64>| summarize(&slices).expect("slices").median;
    let nothing = median(replayer.overhead(20_000).expect("replaying"));
    let something = median(replayer.run(&work.program, 20_000).expect("replaying"));
    assert!(nothing > 0.0);
    assert!(something > nothing, "2,000 turns of a loop: {something} against {nothing} ns");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let spec = returns(XDP, 2);
    assert!(Replayer::new(&[], &spec).is_err());
    assert!(Replayer::new(&trace(&[64]), &returns(SCHED_CLS, 0)).is_err());
    assert!(Replayer::with_slices(&trace(&[64]), &spec, 100).is_err());
    let replayer = Replayer::with_slices(&trace(&[64]), &spec, 1).expect("preparing");
    let (program, _) = Program::load(&spec, &[]).expect("loading");
    assert!(replayer.run(&program, 65_536).is_err(), "more slices than there is room for");
}
