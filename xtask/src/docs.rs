//! `cargo xtask docs`: the documentation as a site, made by Zensical (the successor of Material for MkDocs) from
//! `xtask/docs/zensical.toml`, which also has the order of the pages.

use std::{path::PathBuf, process::Command};

use anyhow::Result;
use clap::Args;

use crate::{python::Environment, run::run, workspace::Workspace};

/// The site of the documentation.
#[derive(Args)]
pub(crate) struct Options {
    /// Serve the site at http://127.0.0.1:8000 until Ctrl-C.
    #[arg(long)]
    serve: bool,
}

/// Makes the site, and serves it if asked to.
pub(crate) fn run_task(workspace: &Workspace, options: &Options) -> Result<()> {
    let site = make(workspace)?;
    println!("made {}", site.join("index.html").display());
    if options.serve {
        let python = Environment::ensure(workspace, "docs", REQUIREMENTS)?;
        let mut server = Command::new(python.program("python"));
        server.args(["-m", "http.server", "--bind", "127.0.0.1", "8000", "--directory"]).arg(site);
        run(&mut server)?;
    }
    Ok(())
}

const REQUIREMENTS: &str = "xtask/docs/requirements.txt";

/// Makes the site and returns its folder; a warning of the generator, such as a broken link, is an error.
///
/// It is made from a copy: the generator empties the folder `.cache` beside its settings, which in the repository belongs to other
/// tasks.
pub(crate) fn make(workspace: &Workspace) -> Result<PathBuf> {
    let environment = Environment::ensure(workspace, "docs", REQUIREMENTS)?;
    let folder = workspace.target("docs");
    if folder.exists() {
        fs_err::remove_dir_all(&folder)?;
    }
    fs_err::create_dir_all(&folder)?;
    fs_err::copy(workspace.path("xtask/docs/zensical.toml"), folder.join("zensical.toml"))?;
    run(Command::new("cp").arg("-r").arg(workspace.path("docs")).arg(&folder))?;
    run(Command::new(environment.program("zensical")).args(["build", "--strict"]).current_dir(&folder))?;
    Ok(folder.join("site"))
}
