//! Tells the binary which commit it was built from: `$RUNNEL_COMMIT`, else what git says, else `unknown`.
//!
//! It asks git once per commit, not once per build. Changes that are not committed are not seen.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=RUNNEL_COMMIT");
    let given = std::env::var("RUNNEL_COMMIT").ok().filter(|commit| !commit.trim().is_empty());
    let commit = given.or_else(|| git(&["rev-parse", "HEAD"])).unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=RUNNEL_COMMIT={}", commit.trim());
    // The log of HEAD grows with every commit and every checkout.
    for path in ["HEAD", "logs/HEAD"].iter().filter_map(|name| git(&["rev-parse", "--git-path", name])) {
        // A path that is not there would make every build a new one.
        if Path::new(&path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
