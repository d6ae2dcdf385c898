//! Maps against the real kernel. Needs root.

mod common;

use std::collections::BTreeMap;

use common::{
    ARRAY, ARRAY_OF_MAPS, HASH, LPM_TRIE, LRU_HASH, MMAPABLE, NO_PREALLOC, PERCPU_ARRAY, PERCPU_HASH, QUEUE,
    RINGBUF, map_spec,
};
use runnel_kernel::bpffs::PrivateBpffs;
use runnel_kernel::map::{Map, UpdateMode};
use runnel_kernel::{Error, possible_cpus};

fn filled(map_type: u32, value_size: u32, entries: u32, flags: u32) -> (Map, BTreeMap<Vec<u8>, Vec<u8>>) {
    let map = Map::create(&map_spec("filled", map_type, 8, value_size, entries, flags)).expect("creating");
    let mut expected = BTreeMap::new();
    for i in 0..entries {
        let key = if map_type == LPM_TRIE {
            [32u32.to_ne_bytes(), i.to_be_bytes()].concat()
        } else {
            u64::from(i).to_ne_bytes().to_vec()
        };
        let value: Vec<u8> = (0..map.value_len()).map(|b| (b as u32 ^ i) as u8).collect();
        map.update(&key, &value, UpdateMode::Any).expect("updating");
        expected.insert(key, value);
    }
    (map, expected)
}

fn contents(map: &Map) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entries = map.read_all().expect("reading");
    let count = entries.len();
    let contents: BTreeMap<_, _> = entries.into_iter().map(|(k, v)| (k.into_vec(), v.into_vec())).collect();
    assert_eq!(contents.len(), count, "no key twice");
    contents
}

#[test]
fn every_keyed_type_reads_back_what_was_written() {
    for (map_type, flags) in [(HASH, 0), (HASH, NO_PREALLOC), (LPM_TRIE, NO_PREALLOC), (PERCPU_HASH, 0)] {
        let (map, expected) = filled(map_type, 12, 5000, flags);
        if map_type == PERCPU_HASH {
            assert_eq!(map.value_len(), 16 * possible_cpus());
            // The padding behind each CPU's 12 bytes is not stored.
            let cut = |m: BTreeMap<Vec<u8>, Vec<u8>>| -> BTreeMap<Vec<u8>, Vec<Vec<u8>>> {
                m.into_iter().map(|(k, v)| (k, v.chunks(16).map(|c| c[..12].to_vec()).collect())).collect()
            };
            assert_eq!(cut(contents(&map)), cut(expected));
        } else {
            assert_eq!(contents(&map), expected, "type {map_type} flags {flags}");
        }
    }
}

#[test]
fn an_lru_table_is_read_by_batch() {
    let (map, expected) = filled(LRU_HASH, 4, 64, 0);
    // The kernel may evict before the table is full, but never invents.
    for (key, value) in contents(&map) {
        assert_eq!(expected.get(&key), Some(&value));
    }
}

#[test]
fn arrays_yield_every_index() {
    let map = Map::create(&map_spec("array", ARRAY, 4, 3, 10, 0)).expect("creating");
    map.update(&7u32.to_ne_bytes(), &[1, 2, 3], UpdateMode::Any).expect("updating");
    let all = contents(&map);
    assert_eq!(all.len(), 10);
    assert_eq!(all[&7u32.to_ne_bytes().to_vec()], [1, 2, 3]);
    let percpu = Map::create(&map_spec("percpu", PERCPU_ARRAY, 4, 8, 3, 0)).expect("creating");
    assert_eq!(contents(&percpu).len(), 3);
}

#[test]
fn large_values_take_several_commands() {
    let map = Map::create(&map_spec("large", HASH, 8, 300 << 10, 64, NO_PREALLOC)).expect("creating");
    let value = vec![7u8; map.value_len()];
    for i in 0..64u64 {
        map.update(&i.to_ne_bytes(), &value, UpdateMode::NoExist).expect("updating");
    }
    let all = contents(&map);
    assert_eq!(all.len(), 64);
    assert!(all.values().all(|v| *v == value));
}

#[test]
fn an_empty_table_reads_as_empty() {
    for (map_type, flags) in [(HASH, 0), (LPM_TRIE, NO_PREALLOC), (LRU_HASH, 0)] {
        let map = Map::create(&map_spec("empty", map_type, 8, 4, 16, flags)).expect("creating");
        assert!(map.read_all().expect("reading").is_empty());
    }
}

#[test]
fn maps_of_maps_hold_ids_and_are_read_by_key() {
    let inner = Map::create(&map_spec("inner", ARRAY, 4, 4, 1, 0)).expect("creating");
    let outer = Map::create_outer(&map_spec("outer", ARRAY_OF_MAPS, 4, 4, 4, 0), &inner).expect("creating");
    outer.update_fd(&2u32.to_ne_bytes(), std::os::fd::AsFd::as_fd(&inner)).expect("updating");
    let all = contents(&outer);
    assert_eq!(all[&2u32.to_ne_bytes().to_vec()], inner.id().to_ne_bytes());
}

#[test]
fn maps_without_keys_are_refused_by_name() {
    for (map_type, value_size, entries) in [(QUEUE, 4, 4), (RINGBUF, 0, 4096)] {
        let map = Map::create(&map_spec("nokey", map_type, 0, value_size, entries, 0)).expect("creating");
        assert!(matches!(map.read_all(), Err(Error::Unsupported { .. })), "type {map_type}");
    }
}

#[test]
fn lookups_updates_and_deletes_report_absence_and_presence() {
    let map = Map::create(&map_spec("table", HASH, 4, 4, 8, 0)).expect("creating");
    let (key, value) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    assert_eq!(map.lookup(&key).expect("looking up"), None);
    assert!(!map.delete(&key).expect("deleting"));
    map.update(&key, &value, UpdateMode::NoExist).expect("creating the entry");
    assert_eq!(
        map.update(&key, &value, UpdateMode::NoExist).unwrap_err().errno().map(|e| e.0),
        Some(libc::EEXIST)
    );
    assert_eq!(map.lookup(&key).expect("looking up").as_deref(), Some(&value[..]));
    assert_eq!(map.lookup_and_delete(&key).expect("taking").as_deref(), Some(&value[..]));
    assert_eq!(map.lookup(&key).expect("looking up"), None);
    map.update_batch(&[1; 8], &[2; 8]).expect("a batch of two");
    assert_eq!(map.lookup(&[1; 4]).expect("looking up").as_deref(), Some(&[2u8; 4][..]));
}

#[test]
fn wrong_sizes_are_the_callers_fault_and_reach_no_kernel() {
    let map = Map::create(&map_spec("table", HASH, 4, 4, 8, 0)).expect("creating");
    assert!(matches!(map.lookup(&[0; 3]), Err(Error::Usage { .. })));
    assert!(matches!(map.update(&[0; 4], &[0; 5], UpdateMode::Any), Err(Error::Usage { .. })));
    assert!(matches!(map.update_batch(&[0; 8], &[0; 4]), Err(Error::Usage { .. })));
}

#[test]
fn a_frozen_map_is_reported_as_frozen_not_as_a_want_of_privilege() {
    let map = Map::create(&map_spec("table", ARRAY, 4, 4, 1, MMAPABLE)).expect("creating");
    assert!(!map.is_frozen().expect("fdinfo"));
    let mapping = map.mmap(true).expect("mapping");
    assert_eq!(map.freeze().unwrap_err().errno().map(|e| e.0), Some(libc::EBUSY), "a writable mapping lives");
    drop(mapping);
    map.freeze().expect("freezing");
    assert!(map.is_frozen().expect("fdinfo"));
    assert!(matches!(map.update(&[0; 4], &[0; 4], UpdateMode::Any), Err(Error::Frozen { .. })));
    assert!(matches!(map.mmap(true), Err(Error::Frozen { .. })));
    map.mmap(false).expect("reading is still allowed");
}

#[test]
fn mapped_memory_and_the_map_are_the_same_bytes() {
    let map = Map::create(&map_spec("table", ARRAY, 4, 16, 2, MMAPABLE)).expect("creating");
    let memory = map.mmap(true).expect("mapping");
    memory.store_u64(16, 0x1122_3344_5566_7788);
    assert_eq!(memory.fetch_add_u64(16, 1), 0x1122_3344_5566_7788);
    memory.store_u32(24, 9);
    memory.write(28, &[1, 2]);
    let value = map.lookup(&1u32.to_ne_bytes()).expect("looking up").expect("an array entry");
    assert_eq!(
        value,
        [&0x1122_3344_5566_7789u64.to_ne_bytes()[..], &9u32.to_ne_bytes(), &[1, 2, 0, 0]].concat()
    );
    let mut back = [0; 4];
    memory.read(26, &mut back);
    assert_eq!(back, [0, 0, 1, 2]);
    assert_eq!((memory.load_u32(24), memory.load_u64(0)), (9, 0));
}

#[test]
fn unmappable_maps_are_refused_with_the_reason() {
    let map = Map::create(&map_spec("table", ARRAY, 4, 16, 2, 0)).expect("creating");
    assert!(map.mmap(false).unwrap_err().to_string().contains("BPF_F_MMAPABLE"));
}

#[test]
fn a_map_is_found_again_by_id_and_by_pin_and_gone_with_its_last_holder() {
    let bpffs = PrivateBpffs::new().expect("mounting");
    let map = Map::create(&map_spec("a name longer than 15", HASH, 4, 4, 8, 0)).expect("creating");
    let (id, pin) = (map.id(), bpffs.path().join("map"));
    map.pin(&pin).expect("pinning");
    assert_eq!(Map::from_id(id).expect("by id").spec(), map.spec());
    assert_eq!(map.spec().name, "a_name_longer_t");
    assert_eq!(Map::from_pin(&pin).expect("by pin").id(), id);
    assert!(runnel_kernel::map::all_map_ids().expect("listing").contains(&id));
    drop(map);
    assert_eq!(Map::from_pin(&pin).expect("the pin holds it").id(), id);
    runnel_kernel::bpffs::unpin(&pin).expect("unpinning");
    runnel_kernel::bpffs::unpin(&pin).expect("unpinning twice is no error");
    // The kernel frees the map after an RCU grace period; the id goes at once.
    assert_eq!(Map::from_id(id).unwrap_err().errno().map(|e| e.0), Some(libc::ENOENT));
}

#[test]
fn pinning_outside_a_bpf_file_system_says_so() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let map = Map::create(&map_spec("table", HASH, 4, 4, 8, 0)).expect("creating");
    assert!(map.pin(&dir.path().join("map")).unwrap_err().to_string().contains("BPF file system"));
}
