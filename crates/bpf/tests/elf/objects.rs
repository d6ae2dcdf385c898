//! What is read from objects: maps, data, programs, hooks, lines, CO-RE relocations, refusals.

use runnel_bpf::btf::{Btf, BtfError, Field};
use runnel_bpf::insn::{Insn, PSEUDO_CALL, PSEUDO_FUNC, PSEUDO_MAP_IDX, PSEUDO_MAP_IDX_VALUE};
use runnel_bpf::object::hook::{F_SLEEPABLE, F_XDP_HAS_FRAGS};
use runnel_bpf::object::{ExternKind, InitialData, MapRefusal, Object, ObjectError, Refusal, SlotValue};
use runnel_bpf::spec::MapSpec;

use crate::support::{ROUTER, compile, object, program, refusal, spec};

fn map_spec(name: &str, numbers: [u32; 5]) -> MapSpec {
    let [map_type, key_size, value_size, max_entries, flags] = numbers;
    MapSpec { name: name.into(), map_type, key_size, value_size, max_entries, flags }
}

#[test]
fn declared_maps_keep_all_that_was_declared() {
    let object = object("maps.c", &[]);
    let flows = object.map("flows").expect("flows");
    assert_eq!(flows.spec, map_spec("flows", [9, 16, 24, 4096, 6]));
    assert_eq!((flows.numa_node, flows.pin_by_name, flows.section.as_str()), (Some(1), true, ".maps"));
    let routes = object.map("routes").expect("routes");
    assert_eq!(routes.spec, map_spec("routes", [11, 8, 4, 100, 1]));
    assert_eq!((routes.key_type, routes.numa_node, routes.pin_by_name), (None, None, false));
    let bloom = object.map("bloom").expect("bloom");
    assert_eq!((bloom.spec.clone(), bloom.map_extra), (map_spec("bloom", [30, 0, 4, 10, 0]), 3));
    assert!(object.refused_maps.is_empty());
}

#[test]
fn inner_maps_and_initial_slots_are_read() {
    let object = object("maps.c", &[]);
    let outer = object.map("outer").expect("outer");
    assert_eq!(outer.spec, map_spec("outer", [12, 4, 4, 4, 0]));
    assert_eq!(outer.inner.as_ref().expect("inner").spec, map_spec("outer.inner", [2, 4, 8, 7, 0]));
    let map = |name: &str| SlotValue::Map(name.into());
    assert_eq!(outer.slots, [(1, map("inner_b")), (3, map("inner_a"))]);
    let jumps = object.map("jumps").expect("jumps");
    assert_eq!(jumps.spec, map_spec("jumps", [3, 4, 4, 2, 0]));
    assert_eq!(jumps.slots, [(1, SlotValue::Program("target".into()))]);
}

#[test]
fn data_sections_become_array_maps_with_their_contents() {
    const RDONLY_MAPPED: u32 = 1 << 7 | 1 << 10;
    let object = object("maps.c", &[]);
    let map = |name: &str| object.map(name).unwrap_or_else(|| panic!("no map {name}"));
    let bytes = |name: &str| match &map(name).initial {
        Some(InitialData::Bytes(bytes)) => bytes.clone(),
        other => panic!("{name} has {other:?}"),
    };
    assert_eq!(map(".rodata").spec, map_spec("snippet.rodata", [2, 4, 20, 1, RDONLY_MAPPED]));
    assert_eq!(bytes(".rodata")[..12], [17, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(map(".data").spec, map_spec("snippet.data", [2, 4, 8, 1, 1 << 10]));
    assert_eq!(bytes(".data"), 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(map(".bss").spec, map_spec("snippet.bss", [2, 4, 76, 1, 1 << 10]));
    assert_eq!(map(".bss").initial, Some(InitialData::Zeros));
    // Only static variables: not mapped. Two dots: the section's own name, cut to 15 bytes.
    assert_eq!(map(".data.hidden").spec, map_spec(".data.hidden", [2, 4, 4, 1, 0]));
    let custom = map(".rodata.custom_long_name");
    assert_eq!(custom.spec, map_spec(".rodata.custom_", [2, 4, 4, 1, RDONLY_MAPPED]));
}

#[test]
fn data_sections_are_named_after_the_object_as_libbpf_does() {
    let bytes = compile("maps.c", &[]);
    let name = |object: &str, section: &str| {
        let object = Object::parse_named(&bytes, object).expect("a good object");
        object.map(section).expect("the section").spec.name.clone()
    };
    assert_eq!(name("my_object_name", ".rodata"), "my_objec.rodata");
    assert_eq!(name("my_object_name", ".bss"), "my_objec.bss");
    assert_eq!(name("", ".bss"), ".bss");
    assert_eq!(name("a-b c", ".data"), "a_b_c.data");
}

#[test]
fn field_names_of_keys_values_and_globals_are_known() {
    let object = object("maps.c", &[]);
    let btf = object.btf.as_ref().expect("BTF");
    let field = |name: &str, offset, size| Field { name: name.into(), offset, size };
    let flows = object.map("flows").expect("flows");
    assert_eq!(
        btf.fields(flows.key_type.expect("key type")),
        [
            field("saddr", 0, 4),
            field("daddr", 4, 4),
            field("ports", 8, 4),
            field("sport", 8, 2),
            field("dport", 10, 2),
            field("proto", 12, 1),
            field("class", 12, 1),
            field("pad", 13, 3),
        ]
    );
    let value = flows.value_type.expect("value type");
    assert_eq!(btf.fields(value), [field("packets", 0, 8), field("bytes", 8, 16)]);
    assert_eq!((btf.name(value), btf.size_of(value)), ("counters_t", Some(24)));
    // The compiler leaves the places of globals to the loader.
    let bss = object.map(".bss").expect(".bss").value_type.expect("data section type");
    assert_eq!(btf.fields(bss), [field("total", 0, 8), field("table", 8, 64), field("common", 72, 4)]);
    assert_eq!(btf.size_of(bss), Some(76));
}

#[test]
fn map_references_are_canonical_and_only_used_maps_are_listed() {
    let object = object("maps.c", &[]);
    let used = program(&object, "use_maps");
    let spec = spec(&object, "use_maps");
    let names: Vec<&str> = spec.maps.iter().map(|m| m.name.as_str()).collect();
    assert!(names.contains(&"flows") && names.contains(&"jumps") && !names.contains(&"inner_a"));
    for (&index, map) in used.maps.iter().zip(&spec.maps) {
        assert_eq!(object.maps[index].spec, *map);
    }
    let references: Vec<&Insn> = spec.insns.iter().filter(|i| i.is_ld_imm64() && i.src() != 0).collect();
    assert!(references.len() >= 11);
    for insn in references {
        let data = object.maps[used.maps[insn.imm as usize]].initial.is_some();
        assert_eq!(insn.src(), if data { PSEUDO_MAP_IDX_VALUE } else { PSEUDO_MAP_IDX });
    }
    assert!(self::spec(&object, "target").maps.is_empty());
}

#[test]
fn a_program_has_just_the_subprograms_it_reaches_in_order_of_first_reference() {
    let object = object("calls.c", &[]);
    let functions = |name: &str| -> Vec<String> {
        let program = program(&object, name);
        program.functions.iter().map(|p| object.functions[p.function].name.clone()).collect()
    };
    assert_eq!(functions("first"), ["first", "shared", "branch", "leaf", "unused_by_second"]);
    assert_eq!(functions("second"), ["second", "leaf"]);
    assert_eq!(functions("third"), ["third", "each", "shared", "branch", "leaf", "unused_by_second"]);
    assert_eq!(functions("alone"), ["alone"]);
}

#[test]
fn calls_and_function_addresses_lead_to_the_functions_as_laid_out() {
    let object = object("calls.c", &[]);
    for name in ["first", "second", "third"] {
        let program = program(&object, name);
        let spec = spec(&object, name);
        let starts: Vec<i64> = program.functions.iter().map(|p| p.start as i64).collect();
        let mut reached = vec![0];
        for (pc, insn) in spec.insns.iter().enumerate() {
            let is_call = insn.code == 0x85 && insn.src() == PSEUDO_CALL;
            if is_call || insn.is_ld_imm64() && insn.src() == PSEUDO_FUNC {
                let target = pc as i64 + 1 + i64::from(insn.imm);
                assert!(starts.contains(&target), "{name}: {pc} leads to {target}, not one of {starts:?}");
                reached.push(target);
            }
        }
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, starts, "{name}");
    }
}

#[test]
fn subprograms_in_the_program_s_own_section_are_linked_without_relocations() {
    let object = object("same_section.s", &[]);
    let names: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["entry", "hidden_entry"], "a static function amid a section is no program");
    let spec = spec(&object, "entry");
    let calls: Vec<i32> = spec.insns.iter().filter(|i| i.code == 0x85).map(|i| i.imm).collect();
    assert_eq!((spec.insns.len(), calls), (7, vec![2, 1]));
}

#[test]
fn sections_say_type_attach_type_and_flags() {
    let object = object("hooks.c", &[]);
    let hook = |name: &str| {
        let spec = spec(&object, name);
        (spec.prog_type, spec.expected_attach_type, spec.flags)
    };
    assert_eq!(hook("on_xdp"), (6, 37, 0));
    assert_eq!(hook("xdp_frags"), (6, 37, F_XDP_HAS_FRAGS));
    assert_eq!(hook("xdp_devmap"), (6, 33, 0));
    assert_eq!(hook("xdp_frags_cpumap"), (6, 35, F_XDP_HAS_FRAGS));
    assert_eq!(hook("on_tc"), (3, 0, 0));
    assert_eq!(hook("on_action"), (4, 0, 0));
    assert_eq!(hook("tcx_ingress"), (3, 46, 0));
    assert_eq!(hook("tcx_egress"), (3, 47, 0));
    assert_eq!(hook("on_socket"), (1, 0, 0));
    assert_eq!(hook("cgroup_ingress"), (8, 0, 0));
    assert_eq!(hook("cgroup_egress"), (8, 1, 0));
    assert_eq!(hook("raw_tp"), (17, 0, 0));
    assert_eq!(hook("on_syscall"), (31, 0, F_SLEEPABLE));
    assert_eq!(hook("xdp_manual"), (6, 37, 0));
    assert_eq!(hook("on_xdpish"), (0, 0, 0));
    assert_eq!(hook("on_prog"), (0, 0, 0));
    assert!(!program(&object, "xdp_manual").autoload && program(&object, "on_xdp").autoload);
}

#[test]
fn the_license_is_read() {
    assert_eq!(object("calls.c", &[]).license, "Dual BSD/GPL");
    assert_eq!(object("hooks.c", &[]).license, "");
    assert_eq!(spec(&object("maps.c", &[]), "target").license, "GPL");
}

#[test]
fn instructions_lead_back_to_lines_of_source_also_in_subprograms() {
    let object = object("calls.c", &[]);
    let third = program(&object, "third");
    let texts: Vec<&str> = (0..spec(&object, "third").insns.len())
        .filter_map(|pc| object.source_line(third, pc))
        .map(|line| line.text.trim())
        .collect();
    for text in ["bpf_loop(4, each, &sum, 0);", "return branch(x) ^ quiet[2];", "return sink - x;"] {
        assert!(texts.contains(&text), "{text} is not among {texts:?}");
    }
    let line = object.source_line(third, 0).expect("a first line");
    assert!(line.file.ends_with("calls.c") && line.line > 40, "{line:?}");
    let leaf = object.programs[0].functions.iter().find(|p| object.functions[p.function].name == "leaf");
    let line = object.source_line(&object.programs[0], leaf.expect("leaf").start).expect("its first line");
    assert!(line.text.contains("leaf(int x)") || line.text.contains("sink += x"), "{line:?}");
    assert_eq!(object.source_line(third, 100_000), None);
}

#[test]
fn core_relocations_are_listed_but_not_applied() {
    let object = object("core.c", &[]);
    let traced = program(&object, "traced");
    let found: Vec<(&str, &str, u32)> =
        object.core_relocations(traced).iter().map(|c| (c.type_name, c.access, c.kind)).collect();
    assert_eq!(found, [("net_device", "0:0", 0), ("net_device", "0:1:0:2", 0)]);
    let pcs: Vec<usize> = object.core_relocations(traced).iter().map(|c| c.pc).collect();
    let (function, _) = object.function_at(traced, pcs[1]).expect("in a function");
    assert_eq!(function.name, "flags_of");
    assert_eq!(spec(&object, "traced").insns[pcs[1]].off, 24, "the compiler's own offset stays");
}

#[test]
fn programs_that_need_the_kernel_are_refused_and_the_others_stay_usable() {
    let object = object("externs.c", &[]);
    assert_eq!(spec(&object, "plain").maps.len(), 1);
    let needs = |name: &str| match refusal(&object, name) {
        Refusal::Extern { symbol, kind, place } => (symbol.as_str(), *kind, place.function.as_str()),
        other => panic!("{name}: {other}"),
    };
    assert_eq!(needs("needs_config"), ("LINUX_KERNEL_VERSION", ExternKind::KernelConfig, "version"));
    assert_eq!(needs("needs_symbol"), ("init_net", ExternKind::KernelSymbol, "needs_symbol"));
    let kfunc = ("bpf_xdp_metadata_rx_hash", ExternKind::KernelFunction, "needs_function");
    assert_eq!(needs("needs_function"), kfunc);
}

#[test]
fn old_map_definitions_are_read_if_simple_and_refused_by_name_if_not() {
    let simple = object("legacy.c", &[]);
    assert_eq!(simple.map("ports").expect("ports").spec, map_spec("ports", [1, 2, 8, 128, 1]));
    assert_eq!(simple.map("hits").expect("hits").spec, map_spec("hits", [6, 4, 16, 3, 0]));
    assert_eq!(spec(&simple, "uses_hits").maps[0].name, "hits");
    let extra = object("legacy.c", &["-DEXTRA"]);
    assert_eq!(extra.refused_maps.len(), 1);
    assert_eq!(extra.refused_maps[0].name, "hits");
    assert!(matches!(extra.refused_maps[0].reason, MapRefusal::Legacy { .. }));
    assert_eq!(spec(&extra, "uses_ports").maps[0].name, "ports");
    assert!(matches!(refusal(&extra, "uses_hits"), Refusal::Map { map, .. } if map == "hits"));
}

#[test]
fn maps_need_btf() {
    let object = object("maps.c", &["-g0"]);
    assert!(object.btf.is_none());
    let flows = object.refused_maps.iter().find(|m| m.name == "flows").expect("flows");
    assert_eq!(flows.reason, MapRefusal::NoBtf);
    assert!(matches!(refusal(&object, "use_maps"), Refusal::Map { reason: MapRefusal::NoBtf, .. }));
    assert_eq!(spec(&object, "target").insns.len(), 2);
}

#[test]
fn odd_programs_are_refused_each_for_its_reason() {
    let object = object("odd.s", &[]);
    let reason = |name: &str| refusal(&object, name).to_string();
    assert_eq!(spec(&object, "fine").insns.len(), 2);
    assert!(reason("map_by_number").contains("by number"));
    assert!(reason("kfunc_by_number").contains("kernel function by number"));
    assert!(reason("into_the_middle").contains("no function begins at byte 64 of section `xdp`"));
    assert!(reason("half_an_immediate").contains("without its second half"));
    assert!(reason("beyond_the_data").contains("byte 4 of `.data`, which has 4"));
    assert!(reason("strange_section").contains("section `.arena.1`"));
    assert!(reason("empty").contains("empty"));
}

#[test]
fn files_that_are_no_objects_are_told_apart() {
    let good = compile("hooks.c", &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Object::parse(&bytes).expect_err("a bad file")
    };
    let text = Object::parse(b"int main").expect_err("a bad file");
    assert_eq!(text, ObjectError::NotElf { found: b"int ".to_vec() });
    assert_eq!(Object::parse(&[]).expect_err("a bad file"), ObjectError::NotElf { found: vec![] });
    assert_eq!(with(4, 1), ObjectError::NotElf64);
    assert_eq!(with(18, 62), ObjectError::NotBpf { machine: 62 });
    assert_eq!(with(16, 2), ObjectError::NotRelocatable { kind: 2 });
    let big_endian = compile("hooks.c", &["-target", "bpfeb"]);
    assert_eq!(Object::parse(&big_endian).expect_err("a bad file"), ObjectError::BigEndian);
    let own = std::fs::read(std::env::current_exe().expect("a path")).expect("this test's own binary");
    assert!(matches!(Object::parse(&own), Err(ObjectError::NotBpf { .. })));
    for len in [4, 63, 64, 100, good.len() - 1] {
        let error = Object::parse(&good[..len]).expect_err("a cut file");
        assert!(matches!(error, ObjectError::Truncated { .. }), "{len}: {error}");
        assert!(error.to_string().contains(&format!("the file has {len}")), "{error}");
    }
}

#[test]
fn broken_type_information_is_an_error_that_says_where() {
    assert!(matches!(Btf::parse(&[0x9f, 0xeb]), Err(BtfError::Header { size: 2, .. })));
    let header = |types_len: u32, strings_len: u32| {
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types_len, types_len, strings_len] {
            bytes.extend(u32::to_le_bytes(word));
        }
        bytes
    };
    let outside = Btf::parse(&header(12, 0)).expect_err("nothing follows");
    assert!(outside.to_string().contains("bytes 24..36 lie outside the section of 24 bytes"), "{outside}");
    let ty = |info: u32| {
        let mut bytes = header(12, 0);
        bytes.extend([0; 4]);
        bytes.extend(info.to_le_bytes());
        bytes.extend([0; 4]);
        Btf::parse(&bytes)
    };
    assert_eq!(ty(31 << 24).expect_err("a bad kind"), BtfError::UnknownKind { id: 1, kind: 31 });
    assert_eq!(ty(4 << 24 | 1).expect_err("no member"), BtfError::Truncated { id: 1, offset: 0 });
    assert_eq!(ty(2 << 24).expect("a pointer").size_of(1), Some(8));
}

#[test]
fn nothing_of_the_router_is_refused() {
    let object = object(ROUTER, &[]);
    assert!(object.refused_maps.is_empty() && !object.programs.is_empty());
    for program in &object.programs {
        let spec = spec(&object, &program.name);
        assert_eq!((spec.prog_type, spec.expected_attach_type), (6, 37), "{}", program.name);
        assert!(object.core_relocations(program).is_empty());
        assert!((0..spec.insns.len()).all(|pc| object.source_line(program, pc).is_some()));
    }
}
