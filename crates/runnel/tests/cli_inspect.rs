//! `runnel inspect` on the router and on programs that cannot be specialized: what is told of them.
//!
//! Expected output is in `golden`; `UPDATE_EXPECT=1` rewrites it. Places in the code are left out of it, since they depend
//! on the version of clang.

mod cli_support;

use std::path::Path;

use cli_support::{root, router, runnel, snippet};
use expect_test::expect_file;
use serde_json::Value;

fn inspect(object: &Path, more: &[&str]) -> String {
    let arguments = [&["inspect", object.to_str().unwrap()], more].concat();
    let ran = runnel(&arguments);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{arguments:?}");
    ran.out
}

fn rows(object: &Path, more: &[&str]) -> Vec<Value> {
    let document: Value = serde_json::from_str(&inspect(object, &[more, &["--json"]].concat())).unwrap();
    document["results"].as_array().unwrap().clone()
}

/// The text without numbers of instructions, which depend on the compiler.
fn steady(text: &str) -> String {
    let is_place = |word: &str| word.trim_end_matches(',').bytes().all(|b| b.is_ascii_digit());
    let line = |line: &str| {
        let mut words: Vec<&str> = Vec::new();
        for word in line.split(' ') {
            let counted =
                words.last().is_some_and(|last| ["instruction", "instructions", "#"].contains(last));
            match word {
                "" => words.push(word),
                _ if counted && is_place(word) && words.last() == Some(&"#") => {}
                _ if counted && is_place(word) => words.push("#"),
                "instructions)" => *words.last_mut().unwrap() = "# instructions)",
                _ => words.push(word),
            }
        }
        words.join(" ").replace("# # instructions)", "# instructions)")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn the_router() {
    let dir = tempfile::tempdir().unwrap();
    expect_file!["golden/inspect_router.txt"].assert_eq(&steady(&inspect(&router(dir.path()), &[])));
}

#[test]
fn the_router_with_contents() {
    let dir = tempfile::tempdir().unwrap();
    let object = router(dir.path());
    let prefixes = runnel_testkit::routes::generate(500, 1).unwrap();
    let tables = router_ctl::Tables::spread(&prefixes, 16, 4).unwrap();
    let maps = dir.path().join("maps.json");
    std::fs::write(&maps, serde_json::to_string(&dump(&tables)).unwrap()).unwrap();
    let rows = rows(&object, &["--maps", maps.to_str().unwrap()]);
    let routes = table(&rows[0], "routes");
    assert_eq!(routes["entries"], 500);
    let site = &routes["specialized"][0];
    assert!(site["predicted_ns"].as_f64().unwrap() > 0.0, "{site}");
    // No table of the router changes by its own doing, so none of the lookups in the four match tables stays.
    for name in ["routes", "ports", "neighbours", "local_addrs"] {
        let sites = table(&rows[0], name)["specialized"].as_array().unwrap();
        assert!(!sites.is_empty() && sites.iter().all(|s| s["form"] != "original"), "{name}: {sites:?}");
    }
    for name in ["tx_counters", "drop_counters", "tx_ports"] {
        assert_eq!(table(&rows[0], name)["specialized"], serde_json::json!([]), "{name}");
    }
}

/// Contents as `bpftool -j map dump` prints them.
fn dump(tables: &router_ctl::Tables) -> Value {
    let bytes = |b: &[u8]| b.iter().map(|b| format!("{b:#04x}")).collect::<Vec<_>>();
    let entries = tables.entries().into_iter().map(|(map, entries)| {
        let entry =
            |(key, value): &(Vec<u8>, Vec<u8>)| serde_json::json!({"key": bytes(key), "value": bytes(value)});
        (map.to_string(), entries.iter().map(entry).collect::<Vec<_>>().into())
    });
    Value::Object(entries.collect())
}

fn table<'a>(row: &'a Value, name: &str) -> &'a Value {
    row["tables"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["table"] == name)
        .unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn what_machines_read_of_the_router() {
    let dir = tempfile::tempdir().unwrap();
    let rows = rows(&router(dir.path()), &["--prog", "router"]);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(
        (&row["program"], &row["type"], &row["lifts"]),
        (&"router".into(), &"xdp".into(), &true.into())
    );
    let routes = table(row, "routes");
    assert_eq!((&routes["type"], &routes["read_only"]), (&"lpm_trie".into(), &true.into()));
    assert_eq!((&routes["key_size"], &routes["value_size"]), (&8.into(), &8.into()));
    let site = &routes["sites"][0];
    assert_eq!(site["access"], "lookup");
    assert!(site["at"]["source"]["text"].as_str().unwrap().contains("&routes"), "{site}");
    let read: Vec<&str> =
        site["reads"].as_array().unwrap().iter().filter_map(|r| r["fields"][0].as_str()).collect();
    assert!(read.contains(&"next_hop") && read.contains(&"port"), "{read:?}");
    let counters = table(row, "tx_counters");
    assert_eq!(counters["read_only"], false);
    assert!(counters["written_at"]["source"]["text"].as_str().unwrap().contains("packets++"), "{counters}");
}

#[test]
fn a_program_that_cannot_be_lifted_is_told_with_the_reason_and_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let body = "static __noinline int twice(int x) { return x + (int)bpf_get_prandom_u32(); }\n\
                SEC(\"xdp\") int calls(struct xdp_md *ctx) {\n    return twice(ctx->rx_queue_index);\n}\n\
                SEC(\"?xdp\") int pass(struct xdp_md *ctx) { return XDP_PASS; }\n";
    let object = snippet(dir.path(), "mixed", body);
    let rows = rows(&object, &[]);
    let (calls, pass) = (&rows[0], &rows[1]);
    assert_eq!((&calls["lifts"], &pass["lifts"]), (&false.into(), &true.into()));
    assert!(calls["refused"]["reason"].as_str().unwrap().contains("subprogram"), "{calls}");
    assert!(calls["refused"]["at"]["source"]["text"].as_str().unwrap().contains("twice("), "{calls}");
    assert_eq!(pass["autoload"], false);
    let text = inspect(&object, &[]);
    assert!(text.contains("is left as it is: at instruction"), "{text}");
}

#[test]
fn tables_that_a_program_changes_or_that_user_space_maps() {
    let dir = tempfile::tempdir().unwrap();
    let body = "struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 8); __type(key, int); __type(value, int); }\n\
                flows SEC(\".maps\");\n\
                struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 8); __type(key, int); __type(value, int); }\n\
                seen SEC(\".maps\");\n\
                struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(map_flags, BPF_F_MMAPABLE); __uint(max_entries, 8);\n\
                __type(key, int); __type(value, int); } config SEC(\".maps\");\n\
                SEC(\"xdp\") int p(struct xdp_md *ctx) {\n\
                int key = ctx->rx_queue_index; int *a = bpf_map_lookup_elem(&flows, &key);\n\
                int *b = bpf_map_lookup_elem(&config, &key);\n\
                if (!a || !b) return XDP_DROP;\n\
                bpf_map_update_elem(&seen, &key, &key, BPF_ANY);\n\
                return *a + *b; }\n";
    let rows = rows(&snippet(dir.path(), "changing", body), &[]);
    let outlook = |name: &str| table(&rows[0], name)["outlook"].as_str().unwrap().to_owned();
    assert!(outlook("flows").starts_with("stays as it is: lookups decide"), "{}", outlook("flows"));
    assert!(outlook("seen").starts_with("stays as it is: the program changes it"), "{}", outlook("seen"));
    assert!(outlook("config").contains("only once it is frozen"), "{}", outlook("config"));
    assert_eq!(table(&rows[0], "seen")["sites"][0]["access"], "update");
    assert_eq!(table(&rows[0], "seen")["written_because"], "the program inserts into it");
    assert_eq!(table(&rows[0], "config")["flags"], serde_json::json!(["mmapable"]));
}

#[test]
fn files_are_named_as_seen_from_here() {
    let dir = tempfile::tempdir().unwrap();
    let text = inspect(&router(dir.path()), &[]);
    assert!(text.contains("(nf/router/router.bpf.c:"), "{text}");
    assert!(!text.contains(root().to_str().unwrap()), "{text}");
}
