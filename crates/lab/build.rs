//! Compiles the bench's own BPF programs (`src/bpf/*.bpf.c`) with clang, to be embedded in the library.
//!
//! The compiler is `$RUNNEL_CLANG`, else `clang-19`, else `clang`. The headers are those of the libbpf that is
//! linked (from `libbpf-sys`) and the C library's kernel headers.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const OPTIONS: [&str; 9] =
    ["-g", "-O2", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("cargo:error={}", problem.trim().replace('\n', " | "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=RUNNEL_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    let clang = find_clang()?;
    let include =
        std::env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf-sys did not say where its headers are")?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    compile(&clang, &include, Path::new("src/bpf/traffic.bpf.c"), &out.join("traffic.bpf.o"))
}

fn find_clang() -> Result<String, String> {
    let works =
        |clang: &String| Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success());
    if let Ok(chosen) = std::env::var("RUNNEL_CLANG") {
        return Some(chosen.clone()).filter(works).ok_or(format!("RUNNEL_CLANG={chosen} does not run"));
    }
    ["clang-19", "clang"].map(str::to_owned).into_iter().find(works).ok_or_else(|| {
        "no clang found; it compiles the BPF programs. Install the Debian package clang-19 (or clang), or set \
         RUNNEL_CLANG to a clang of version 15 or later"
            .to_owned()
    })
}

fn compile(clang: &str, include: &str, source: &Path, object: &Path) -> Result<(), String> {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let output = Command::new(clang)
        .args(OPTIONS)
        .args(["-I", include, "-idirafter", &format!("/usr/include/{arch}-linux-gnu"), "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("running {clang}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{clang} failed on {}: {}", source.display(), String::from_utf8_lossy(&output.stderr)))
}
