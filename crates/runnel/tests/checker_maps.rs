//! Maps of every kind are filled from contents and read back as they were given.

mod checker_support;

use checker_support::programs::object;
use runnel::xdp::maps::{Held, Instance, Snapshot, Source, StandIn};
use runnel_bpf::maps_json::{Entry, MapContents, Value};
use runnel_kernel::possible_cpus;

const KINDS: &str = r#"
struct inner { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); };
struct inner one SEC(".maps"), two SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, 2); __type(key, __u32); __array(values, struct inner); } outer SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } jumps SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u32); } per_cpu SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } devices SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 4); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, __u64); __type(value, __u32); } prefixes SEC(".maps");
const volatile __u32 limit = 7;
SEC("xdp") int other(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp") int kinds(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 prefix = 32;
	void *inner = bpf_map_lookup_elem(&outer, &zero);

	bpf_tail_call(ctx, &jumps, limit);
	if (inner && bpf_map_lookup_elem(&per_cpu, &zero) && bpf_map_lookup_elem(&prefixes, &prefix))
		return bpf_redirect_map(&devices, limit, 0);
	return XDP_DROP;
}
"#;

fn word(value: u32) -> Vec<u8> {
    value.to_ne_bytes().into()
}

fn contents() -> MapContents {
    let entry = |key: u32, value| vec![Entry { key: word(key), value }];
    let per_cpu = Value::PerCpu(vec![(0, word(5)), (1, word(6))]);
    let prefix = Entry { key: [word(8), word(10)].concat(), value: Value::Bytes(word(4)) };
    MapContents {
        maps: [
            ("outer".to_string(), entry(1, Value::Map("two".into()))),
            ("jumps".to_string(), entry(2, Value::Program("other".into()))),
            ("per_cpu".to_string(), entry(1, per_cpu)),
            ("devices".to_string(), entry(3, Value::Bytes(word(999_999)))),
            ("prefixes".to_string(), vec![prefix]),
            ("program.rodata".to_string(), entry(0, Value::Bytes(word(2)))),
            ("one".to_string(), entry(0, Value::Bytes(word(11)))),
        ]
        .into(),
    }
}

fn held(snapshot: &Snapshot, map: &str, key: &[u8]) -> Option<Held> {
    snapshot.maps[map].get(key).cloned()
}

#[test]
fn what_was_given_is_read_back() {
    assert!(possible_cpus() >= 2, "values of two CPUs are given");
    let (device, object) = (StandIn::new().unwrap(), object(KINDS));
    let (path, contents) = (object.path(), contents());
    let source = Source { object: &path, program: "kinds", contents: &contents, devices: &device };
    let instance = Instance::load(source).unwrap_or_else(|e| panic!("{e}"));
    let snapshot = instance.snapshot().unwrap();
    let bytes = |value: u32| Some(Held::Bytes(word(value).into()));
    assert_eq!(held(&snapshot, "outer", &word(1)), Some(Held::Name("two".into())));
    assert_eq!(held(&snapshot, "outer", &word(0)), None);
    assert_eq!(held(&snapshot, "jumps", &word(2)), Some(Held::Name("other".into())));
    assert_eq!(held(&snapshot, "one", &word(0)), bytes(11));
    assert_eq!(held(&snapshot, "prefixes", &[word(8), word(10)].concat()), bytes(4));
    assert_eq!(held(&snapshot, "devices", &word(3)), bytes(device.ifindex()), "an interface that exists");
    assert_eq!(held(&snapshot, "program.rodata", &word(0)), bytes(2));
    let Some(Held::Bytes(per_cpu)) = held(&snapshot, "per_cpu", &word(1)) else { panic!("no bytes") };
    assert_eq!(per_cpu.len(), 8 * possible_cpus());
    assert_eq!(
        (&per_cpu[..8], &per_cpu[8..16]),
        (&[5, 0, 0, 0, 0, 0, 0, 0][..], &[6, 0, 0, 0, 0, 0, 0, 0][..])
    );

    // Two instances have nothing in common but what they hold.
    let other = Instance::load(source).unwrap();
    assert_eq!(snapshot.differences(&other.snapshot().unwrap(), 9), (0, vec![]));
    let map = |i: &Instance| i.maps().unwrap().iter().map(|m| m.id()).collect::<Vec<_>>();
    assert!(map(&instance).iter().all(|id| !map(&other).contains(id)));
}
