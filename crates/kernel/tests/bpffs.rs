//! The BPF file system against the real kernel. Needs root.

use nix::mount::{MntFlags, umount2};
use runnel_kernel::bpffs::{Mounted, PrivateBpffs, discard, ensure, is_bpffs};

/// Unmounts on drop, also when an assertion fails.
struct Unmount<'a>(&'a std::path::Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_directory_is_made_fit_for_pins_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("deep/er");
    let _unmount = Unmount(&path);
    assert_eq!(ensure(&path).expect("mounting"), Mounted::Now);
    assert!(is_bpffs(&path).expect("asking"));
    assert_eq!(ensure(&path).expect("nothing to do"), Mounted::Already);
    assert_eq!(ensure(&path.join("below")).expect("a directory in it"), Mounted::Already);
    assert!(!is_bpffs(dir.path()).expect("asking"));
    assert!(is_bpffs(std::path::Path::new("/nothere")).is_err());
}

#[test]
fn what_was_made_fit_is_discarded_once_it_is_empty() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("state");
    let _unmount = Unmount(&path);
    let mounted = ensure(&path).expect("mounting");
    let below = path.join("below");
    ensure(&below).expect("a directory in it");
    discard(&path, mounted).expect("it is in use");
    assert!(is_bpffs(&below).expect("asking"));
    discard(&below, Mounted::Already).expect("removing");
    discard(&path, Mounted::Already).expect("somebody else's mount");
    assert!(is_bpffs(&path).expect("asking"));
    discard(&path, mounted).expect("unmounting and removing");
    assert!(!path.exists());
    discard(&path, mounted).expect("nothing to do");
}

#[test]
fn a_private_file_system_goes_away_with_its_guard() {
    let path = {
        let bpffs = PrivateBpffs::new().expect("mounting");
        assert!(is_bpffs(bpffs.path()).expect("asking"));
        bpffs.path().to_owned()
    };
    assert!(!path.exists());
}
