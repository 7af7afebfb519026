//! The installed Rust.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{run::run_quiet, workspace::Workspace};

/// A compiler and the programs that come with it.
pub(crate) struct Toolchain {
    /// Version: `1.95.0`.
    pub(crate) release: String,
    /// Machine that it runs on, in Rust's words: `x86_64-unknown-linux-gnu`.
    pub(crate) host: String,
    /// Folder of `rust-objcopy` and, with the component `llvm-tools` of rustup, of LLVM's programs.
    pub(crate) tools: PathBuf,
}

impl Toolchain {
    /// Asks the compiler that builds the workspace.
    pub(crate) fn installed(workspace: &Workspace) -> Result<Self> {
        let rustc = |arguments: &[&str]| {
            let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            run_quiet(Command::new(program).current_dir(workspace.root()).args(arguments))
        };
        let about = rustc(&["-vV"])?;
        let field = |name: &str| {
            let value = about.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.map(str::to_owned).with_context(|| format!("rustc -vV names no {name}"))
        };
        let (release, host) = (field("release")?, field("host")?);
        let tools = Path::new(rustc(&["--print", "sysroot"])?.trim()).join("lib/rustlib").join(&host).join("bin");
        Ok(Self { release, host, tools })
    }
}
