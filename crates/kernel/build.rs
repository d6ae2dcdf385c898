//! Compiles this crate's own BPF programs (`src/bpf/*.bpf.c`) with clang, to be embedded in the library.
//!
//! The compiler is `$RUNNEL_CLANG`, else `clang-19`, else `clang`. The headers are those of the libbpf that is
//! linked (from `libbpf-sys`) and the C library's kernel headers. Tests compile their own objects with the same
//! compiler, so its path and the include directory are handed on as `RUNNEL_BUILD_CLANG` and
//! `RUNNEL_BUILD_BPF_INCLUDE`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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
    println!("cargo:rustc-env=RUNNEL_BUILD_CLANG={clang}");
    println!("cargo:rustc-env=RUNNEL_BUILD_BPF_INCLUDE={include}");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    let sources = std::fs::read_dir("src/bpf").map_err(|e| format!("src/bpf: {e}"))?;
    for source in sources.filter_map(Result::ok).map(|entry| entry.path()) {
        if let Some(stem) = source.file_name().and_then(|n| n.to_str()?.strip_suffix(".bpf.c")) {
            compile(&clang, &include, &source, &out.join(format!("{stem}.bpf.o")))?;
        }
    }
    Ok(())
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
    let kernel_arch = match arch.as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    };
    let output = Command::new(clang)
        .args([
            "-g",
            "-O2",
            "-target",
            "bpf",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Werror",
            "-c",
        ])
        .arg(format!("-D__TARGET_ARCH_{kernel_arch}"))
        .args(["-I", include, "-idirafter", &format!("/usr/include/{arch}-linux-gnu")])
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
