//! Programs that do what the router does not, and contents for their maps.

use runnel_bpf::maps_json::{Entry, MapContents, Value};

use super::Object;

const HEAD: &str =
    "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\nchar _license[] SEC(\"license\") = \"GPL\";\n";

/// Compiles C, with the usual headers included for it.
pub fn object(source: &str) -> Object {
    Object::of_text(&format!("{HEAD}{source}"))
}

/// Entries of a map with keys and values of four bytes.
pub fn words(map: &str, entries: &[(u32, u32)]) -> MapContents {
    let entry = |(key, value): &(u32, u32)| Entry {
        key: key.to_ne_bytes().into(),
        value: Value::Bytes(value.to_ne_bytes().into()),
    };
    MapContents { maps: [(map.into(), entries.iter().map(entry).collect())].into() }
}

/// Asks for the time, random numbers and the CPU, and stores what it gets.
pub const VARYING: &str = r#"
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

/// Moves the packet's bounds and writes metadata.
pub const MOVING: &str = r#"
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

/// Redirects by interface and by two maps.
pub const REDIRECTING: &str = r#"
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

/// Leaves by tail calls.
pub const CALLING: &str = r#"
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

/// Contents for [`VARYING`].
pub fn varying() -> MapContents {
    words("table", &[(1, 10), (2, 20), (200, 30)])
}

/// Contents for [`MOVING`].
pub fn moving() -> MapContents {
    words("table", &[(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8)])
}

/// Contents for [`REDIRECTING`].
pub fn redirecting() -> MapContents {
    let mut contents = words("table", &[(1, 9), (2, 3), (3, 7), (4, 2), (6, 4), (8, 3)]);
    contents.maps.extend(words("left", &[(3, 77), (4, 78), (5, 79)]).maps);
    contents.maps.extend(words("right", &[(2, 77), (3, 5)]).maps);
    contents
}

/// Contents for [`CALLING`].
pub fn calling() -> MapContents {
    let mut contents = words("table", &[(1, 0), (2, 1), (3, 0)]);
    let slot = Entry { key: vec![0; 4], value: Value::Program("second".into()) };
    contents.maps.insert("next".into(), vec![slot]);
    contents
}
