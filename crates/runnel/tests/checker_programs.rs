//! The checker on programs that do what the router does not: ask for time, random numbers and the CPU, move the
//! packet's bounds, write metadata, redirect by interface, call other programs.

mod checker_support;

use checker_support::Pair;
use checker_support::programs::{
    CALLING, MOVING, REDIRECTING, VARYING, calling, moving, object, redirecting, varying, words,
};
use runnel::xdp::check::{Finished, Interpreted, Parties};
use runnel::xdp::faults;
use runnel_bpf::insn;
use runnel_bpf::maps_json::MapContents;
use runnel_testkit::packet::Frame;

fn packets(count: usize) -> Vec<Vec<u8>> {
    let frame = |i: usize| Frame { ttl: i as u8, payload: i % 300, ..Frame::to([10, 0, 0, i as u8].into()) };
    (0..count).map(|i| frame(i).build().unwrap()).collect()
}

#[test]
fn what_varies_is_pinned_for_everyone() {
    let pair = Pair::new(&object(VARYING), "varying", &varying());
    let version = pair.version(|_| ());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(2000));
    assert!(report.agrees(), "{report}");
    assert_eq!(report.interpreted, [(); 2].map(|()| Interpreted::All(2000)));
    assert_eq!(report.verdicts.len(), 3, "{:?}", report.verdicts);
}

#[test]
fn bounds_and_metadata_are_compared() {
    let pair = Pair::new(&object(MOVING), "moving", &moving());
    let version = pair.version(|_| ());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(500));
    assert!(report.agrees(), "{report}");
    assert!(matches!(&report.interpreted[0], Interpreted::Not(why) if why.contains("xdp_adjust_meta")));

    // A byte of the metadata, a length and the context are seen.
    let pair = Pair::new(&object(MOVING), "moving", &moving());
    let version =
        pair.version(|made| assert!(faults::change_argument(&mut made.program, "xdp_adjust_meta", 1, !3)));
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(500));
    let symptoms: Vec<String> = report.first.iter().flat_map(|d| d.symptoms()).collect();
    assert!(
        symptoms.iter().any(|s| s.contains("length")) && symptoms.iter().any(|s| s.contains("context")),
        "{report}"
    );
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

#[test]
fn programs_that_are_called_run_and_leave_the_same_maps() {
    let pair = Pair::new(&object(CALLING), "calling", &calling());
    let Finished { report, .. } = pair.compare_originals(&packets(160));
    assert!(report.agrees(), "{report}");
    assert_eq!(report.verdicts.get(&3), Some(&40), "two of eight keys lead to the other program");
    assert!(matches!(&report.interpreted[0], Interpreted::Not(why) if why.contains("tail calls")));
}

#[test]
fn programs_that_make_tail_calls_can_be_specialized() {
    let pair = Pair::new(&object(CALLING), "calling", &calling());
    let version = pair.version(|_| ());
    assert!(version.specialized.is_worthwhile());
    let Finished { report, .. } = pair.compare(&version, |_| (), &packets(160));
    assert!(report.agrees(), "{report}");
}

#[test]
fn a_lifter_that_misunderstands_is_noticed() {
    let mut pair = Pair::new(&object(VARYING), "varying", &varying());
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
    let unknown = refusal(words("tables", &[(1, 1)]));
    assert!(unknown.contains("`tables`") && unknown.contains("`table`"), "{unknown}");
    let far = refusal(words("left", &[(1, 5), (99, 5)]));
    assert!(far.contains("map `left`, entry 1"), "{far}");
    let mut short = redirecting();
    short.maps.get_mut("table").unwrap()[2].key.pop();
    let short = refusal(short);
    assert!(short.contains("`table`, entry 2") && short.contains("3 bytes"), "{short}");
}
