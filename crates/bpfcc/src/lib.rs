//! Compiles eBPF C with clang, for build scripts and tests: one way to find the compiler and the headers.
//!
//! The compiler is `$RUNNEL_CLANG`, else `clang-19`, else `clang`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A clang that runs, and where it looks for headers first.
#[derive(Clone, Debug)]
pub struct Compiler {
    clang: String,
    include: Option<PathBuf>,
    options: Vec<&'static str>,
}

impl Compiler {
    /// Finds the compiler.
    ///
    /// # Errors
    /// There is none, or the one that `RUNNEL_CLANG` names does not run: what to do.
    pub fn find() -> Result<Compiler, String> {
        let works =
            |clang: &String| Command::new(clang).arg("--version").output().is_ok_and(|o| o.status.success());
        let found = match std::env::var("RUNNEL_CLANG") {
            Ok(chosen) => Some(chosen.clone()).filter(works).ok_or(format!("RUNNEL_CLANG={chosen} does not run")),
            Err(_) => ["clang-19", "clang"].map(str::to_owned).into_iter().find(works).ok_or_else(|| {
                "no clang found; it compiles the eBPF programs. `make setup` installs it; or set RUNNEL_CLANG to a \
                 clang of version 15 or later"
                    .to_owned()
            }),
        };
        Ok(Compiler { clang: found?, include: None, options: Vec::new() })
    }

    /// Looks for headers in `dir` before the system's.
    pub fn include(self, dir: impl Into<PathBuf>) -> Compiler {
        Compiler { include: Some(dir.into()), ..self }
    }

    /// Hands a further option to the compiler.
    pub fn option(mut self, option: &'static str) -> Compiler {
        self.options.push(option);
        self
    }

    /// Takes warnings for errors.
    pub fn strict(self) -> Compiler {
        ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"].into_iter().fold(self, Compiler::option)
    }

    /// Compiles `source` to `object`, for the machine that build scripts build for or tests run on.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compile(&self, source: &Path, object: &Path) -> Result<(), String> {
        let arch =
            std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_else(|_| std::env::consts::ARCH.to_owned());
        let kernel_arch = match arch.as_str() {
            "x86_64" => "x86",
            "aarch64" => "arm64",
            other => other,
        };
        let mut command = Command::new(&self.clang);
        command.args(["-g", "-O2", "-target", "bpf"]).arg(format!("-D__TARGET_ARCH_{kernel_arch}"));
        command.args(&self.options);
        if let Some(dir) = &self.include {
            command.arg("-I").arg(dir);
        }
        command.args(["-idirafter", &format!("/usr/include/{arch}-linux-gnu")]);
        command.args([OsStr::new("-c"), source.as_os_str(), OsStr::new("-o"), object.as_os_str()]);
        let output = command.output().map_err(|e| format!("running {}: {e}", self.clang))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{} failed on {}: {said}", self.clang, source.display()))
    }

    /// [`Compiler::compile`] for C that is given as text; its file is put beside the object.
    ///
    /// # Errors
    /// The file cannot be written; what the compiler says.
    pub fn compile_text(&self, text: &str, object: &Path) -> Result<(), String> {
        let source = object.with_extension("bpf.c");
        std::fs::write(&source, text).map_err(|e| format!("writing {}: {e}", source.display()))?;
        self.compile(&source, object)
    }
}

/// What a build script does: compiles every `src/bpf/*.bpf.c` of its package into `OUT_DIR`, strictly, with the headers
/// of the libbpf that is linked, and tells cargo when to do so again.
///
/// # Errors
/// The compiler is missing or refuses a file, or cargo does not say where things are.
pub fn build_script() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=RUNNEL_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    let include =
        std::env::var("DEP_BPF_INCLUDE").map_err(|_| "libbpf-sys did not say where its headers are")?;
    // Tests compile with the same headers.
    println!("cargo:rustc-env=RUNNEL_BUILD_BPF_INCLUDE={include}");
    let compiler = Compiler::find()?.include(include).option("-mcpu=v3").strict();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?);
    let sources = std::fs::read_dir("src/bpf").map_err(|e| format!("src/bpf: {e}"))?;
    for source in sources.filter_map(Result::ok).map(|entry| entry.path()) {
        if let Some(stem) = source.file_name().and_then(|name| name.to_str()?.strip_suffix(".bpf.c")) {
            compiler.compile(&source, &out.join(format!("{stem}.bpf.o")))?;
        }
    }
    Ok(())
}
