//! The checker on programs that do what the router does not: ask for time, random numbers and the CPU, move the
//! packet's bounds, write metadata, redirect by interface, call other programs.

mod checker_support;

use checker_support::{Object, Pair};
use runnel::xdp::check::{Finished, Interpreted, Parties};
use runnel::xdp::faults;
use runnel_bpf::insn;
use runnel_bpf::maps_json::{Entry, MapContents, Value};
use runnel_testkit::packet::Frame;

const HEAD: &str =
    "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";

fn object(source: &str) -> Object {
    Object::of_text(&format!("{HEAD}{source}"))
}

fn packets(count: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| Frame { ttl: i as u8, payload: i % 300, ..Frame::to([10, 0, 0, i as u8].into()) };
    (0..count).map(|i| frame(i).build().unwrap()).collect()
}

fn bytes(map: &str, entries: &[(u32, u32)]) -> MapContents {
    let entry = |(key, value): &(u32, u32)| Entry {
        key: key.to_ne_bytes().into(),
        value: Value::Bytes(value.to_ne_bytes().into()),
    };
    MapContents { maps: [(map.into(), entries.iter().map(entry).collect())].into() }
}

const VARYING: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 4096); __type(key, __u64); __type(value, __u64); } seen SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 64); __type(key, __u32); __type(value, __u64); } by_cpu SEC(".maps");
static __u64 total;
SEC("xdp") int varying(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 now = bpf_ktime_get_ns(), boot = bpf_ktime_get_boot_ns(), random = bpf_get_prandom_u32();
	__u32 cpu = bpf_get_smp_processor_id(), key;
	__u64 *slot = bpf_map_lookup_elem(&by_cpu, &cpu);
	__u32 *found;

	if (slot)
		*slot += 1;
	if (data + 34 > end)
		return XDP_DROP;
	bpf_map_update_elem(&seen, &now, &random, BPF_ANY);
	total += boot - now + random;
	key = data[33];
	found = bpf_map_lookup_elem(&table, &key);
	if (!found)
		return random & 1 ? XDP_PASS : XDP_DROP;
	data[0] = random;
	data[1] = *found;
	return XDP_TX;
}
"#;

#[test]
fn what_varies_is_pinned_for_everyone() {
    let contents = bytes("table", &[(1, 10), (2, 20), (200, 30)]);
    let pair = Pair::new(&object(VARYING), "varying", &contents);
    let version = pair.version(|_| ());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(2000));
    assert!(report.agrees(), "{report}");
    assert_eq!(report.interpreted, [(); 2].map(|()| Interpreted::All(2000)));
    assert_eq!(report.verdicts.len(), 3, "{:?}", report.verdicts);
}

const MOVING: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); } table SEC(".maps");
SEC("xdp") int moving(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key, *found, *meta;

	if (data + 34 > end)
		return XDP_DROP;
	key = data[33] & 7;
	found = bpf_map_lookup_elem(&table, &key);
	if (!found)
		return XDP_PASS;
	if (bpf_xdp_adjust_head(ctx, key & 1 ? 4 : -8))
		return XDP_ABORTED;
	if (bpf_xdp_adjust_tail(ctx, key & 2 ? 16 : -4))
		return XDP_ABORTED;
	if (key & 4 && bpf_xdp_adjust_meta(ctx, -4))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	meta = (void *)(long)ctx->data_meta;
	if (data + 14 > end)
		return XDP_DROP;
	data[5] = *found;
	if ((void *)(meta + 1) <= (void *)data)
		*meta = *found;
	return XDP_PASS;
}
"#;

#[test]
fn bounds_and_metadata_are_compared() {
    let contents = bytes("table", &[(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8)]);
    let pair = Pair::new(&object(MOVING), "moving", &contents);
    let version = pair.version(|_| ());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(500));
    assert!(report.agrees(), "{report}");
    assert!(matches!(&report.interpreted[0], Interpreted::Not(why) if why.contains("xdp_adjust_meta")));

    // A byte of the metadata, a length and the context are seen.
    let pair = Pair::new(&object(MOVING), "moving", &contents);
    let version =
        pair.version(|made| assert!(faults::change_argument(&mut made.program, "xdp_adjust_meta", 1, !3)));
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(500));
    let symptoms: Vec<String> = report.first.iter().flat_map(|d| d.symptoms()).collect();
    assert!(
        symptoms.iter().any(|s| s.contains("length")) && symptoms.iter().any(|s| s.contains("context")),
        "{report}"
    );
}

const REDIRECTING: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 8); __type(key, __u32); __type(value, __u32); } left SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_DEVMAP_HASH); __uint(max_entries, 8); __type(key, __u32); __type(value, __u32); } right SEC(".maps");
SEC("xdp") int redirecting(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key, *found;

	if (data + 34 > end)
		return XDP_DROP;
	key = data[33] & 15;
	found = bpf_map_lookup_elem(&table, &key);
	if (!found)
		return XDP_PASS;
	if (key & 1)
		return bpf_redirect(*found, 0);
	return key & 2 ? bpf_redirect_map(&left, *found, XDP_DROP) : bpf_redirect_map(&right, *found, XDP_TX);
}
"#;

fn redirecting() -> MapContents {
    let mut contents = bytes("table", &[(1, 9), (2, 3), (3, 7), (4, 2), (6, 4), (8, 3)]);
    contents.maps.extend(bytes("left", &[(3, 77), (4, 78), (5, 79)]).maps);
    contents.maps.extend(bytes("right", &[(2, 77), (3, 5)]).maps);
    contents
}

#[test]
fn a_redirection_to_another_map_or_interface_is_seen() {
    let object = object(REDIRECTING);
    let pair = Pair::new(&object, "redirecting", &redirecting());
    let Finished { report, .. } = pair.compare(&pair.version(|_| ()), |_| (), &packets(300));
    assert!(report.agrees(), "{report}");
    assert_eq!(report.interpreted, [(); 2].map(|()| Interpreted::All(300)));
    assert_eq!(report.verdicts.get(&4).copied().unwrap_or(0), 300 / 16 * 6 + 6, "{:?}", report.verdicts);

    for argument in ["redirect", "redirect_map"] {
        let pair = Pair::new(&object, "redirecting", &redirecting());
        let index = usize::from(argument == "redirect_map");
        let version =
            pair.version(|made| assert!(faults::change_argument(&mut made.program, argument, index, 1)));
        let Finished { report, .. } = pair.compare(&version, |_| (), &packets(300));
        assert!(
            report.first.iter().any(|d| d.symptoms()[0].starts_with("redirected to")),
            "{argument}: {report}"
        );
    }

    // The other map of the two, with the same key.
    let pair = Pair::new(&object, "redirecting", &redirecting());
    let version = pair.version(|_| ());
    let maps: Vec<String> = pair.b.maps().unwrap().iter().map(|m| m.spec().name.clone()).collect();
    let number = |name: &str| maps.iter().position(|m| m == name).unwrap() as i32;
    let edit = |code: &mut Vec<insn::Insn>| {
        for i in code.iter_mut().filter(|i| i.is_ld_imm64() && i.src() == insn::PSEUDO_MAP_IDX) {
            i.imm = if i.imm == number("left") { number("right") } else { i.imm };
        }
    };
    let Finished { report, .. } = pair.compare(&version, edit, &packets(300));
    assert!(report.differences > 0, "the map of a redirection is compared");
}

const CALLING: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 64); __type(key, __u32); __type(value, __u32); } table SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 4); __type(key, __u32); __type(value, __u32); } next SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u64); } ran SEC(".maps");
SEC("xdp") int second(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&ran, &zero);

	if (count)
		*count += 1;
	return XDP_TX;
}
SEC("xdp") int calling(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key, *found;

	if (data + 34 > end)
		return XDP_DROP;
	key = data[33] & 7;
	found = bpf_map_lookup_elem(&table, &key);
	if (found)
		bpf_tail_call(ctx, &next, *found);
	return XDP_PASS;
}
"#;

#[test]
fn programs_that_are_called_run_and_leave_the_same_maps() {
    let mut contents = bytes("table", &[(1, 0), (2, 1), (3, 0)]);
    let slot = Entry { key: vec![0; 4], value: Value::Program("second".into()) };
    contents.maps.insert("next".into(), vec![slot]);
    let pair = Pair::new(&object(CALLING), "calling", &contents);
    let Finished { report, .. } = pair.compare_originals(&packets(160));
    assert!(report.agrees(), "{report}");
    assert_eq!(report.verdicts.get(&3), Some(&40), "two of eight keys lead to the other program");
    assert!(matches!(&report.interpreted[0], Interpreted::Not(why) if why.contains("tail calls")));
}

#[test]
fn a_lifter_that_misunderstands_is_noticed() {
    let mut pair = Pair::new(&object(VARYING), "varying", &bytes("table", &[(1, 10), (2, 20)]));
    let version = pair.version(|_| ());
    // The kernel's two programs agree; only the interpreter runs what was lifted wrongly.
    let (entry, blocks) = (pair.plan.ir.entry(), pair.plan.ir.layout.clone());
    let wrong = blocks.into_iter().find(|&b| b != entry && faults::decide(&mut pair.plan.ir, b, true));
    assert!(wrong.is_some());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(100));
    assert!(!report.agrees());
    let parties = report.first.iter().map(|d| d.parties);
    assert!(parties.clone().all(|p| p == Parties::Lifted) || !report.interpreted_maps.is_empty(), "{report}");
}

const WRITING: &str = r#"
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 4096); } events SEC(".maps");
SEC("xdp") int writing(struct xdp_md *ctx)
{
	__u32 one = 1;

	bpf_ringbuf_output(&events, &one, sizeof(one), 0);
	return XDP_PASS;
}
"#;

#[test]
fn maps_that_cannot_be_read_back_are_refused_by_name() {
    use runnel::xdp::maps::{Instance, Source, StandIn};
    let (device, object) = (StandIn::new().unwrap(), object(WRITING));
    let (path, contents) = (object.path(), MapContents::default());
    let source = Source { object: &path, program: "writing", contents: &contents, devices: &device };
    let refusal = Instance::load(source).unwrap().snapshot().unwrap_err().to_string();
    assert!(refusal.contains("`events`") && refusal.contains("cannot be read back"), "{refusal}");
}

#[test]
fn contents_that_do_not_fit_are_refused_with_their_place() {
    use runnel::xdp::maps::{Instance, Source, StandIn};
    let (device, object) = (StandIn::new().unwrap(), object(REDIRECTING));
    let path = object.path();
    let refusal = |contents: MapContents| {
        let source = Source { object: &path, program: "redirecting", contents: &contents, devices: &device };
        Instance::load(source).unwrap_err().to_string()
    };
    let unknown = refusal(bytes("tables", &[(1, 1)]));
    assert!(unknown.contains("`tables`") && unknown.contains("`table`"), "{unknown}");
    let far = refusal(bytes("left", &[(1, 5), (99, 5)]));
    assert!(far.contains("map `left`, entry 1"), "{far}");
    let mut short = redirecting();
    short.maps.get_mut("table").unwrap()[2].key.pop();
    let short = refusal(short);
    assert!(short.contains("`table`, entry 2") && short.contains("3 bytes"), "{short}");
}
