//! The probe against the real kernel (Linux 6.18 where this was written). Needs root.

use runnel_kernel::probe::{Answer, probe};

#[test]
fn what_the_other_tests_rely_on_is_found_present() {
    let offers = probe();
    for (question, answer) in offers.list() {
        println!("{question}: {answer}");
    }
    assert!(offers.kernel_types.is_yes() && offers.load_xdp.is_yes() && offers.syscall_tracepoints.is_yes());
    // Hash and array tables have had batch commands since 5.6; device maps have none.
    let batch = |map_type: u32| offers.batch_read.iter().find(|(t, _)| *t == map_type).map(|(_, a)| a);
    assert_eq!((batch(1), batch(2)), (Some(&Answer::Yes), Some(&Answer::Yes)));
    assert!(matches!(batch(14), Some(Answer::No(_))));
    assert_eq!(offers, probe(), "asking changes nothing");
}
