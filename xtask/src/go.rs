//! Programs in Go that tests need: built once, and kept outside the checkout. Nobody offers them ready where machines of these tests can
//! reach them; their modules can be had.
//!
//! A machine may do without them: their tests are left out then, and say so.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    run::{run_quiet, step},
    workspace::{Workspace, outside},
};

/// The module of Helm. It works with the API server of the tests, which is older than those that Helm supports.
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.22.0";

/// The code of an API server of today that checks rules in schemas.
const RULES: &str = "tests/kubernetes/schema_rules";

/// The adapters of KServe. Only a build inside of the module minds what its `go.mod` replaces.
const ADAPTERS: &str = "github.com/kserve/modelmesh-runtime-adapter@v0.12.0";

/// Folder of modules below that of a build.
const MODULES: &str = "go/pkg/mod";

/// File with what a program was built from.
const KEY: &str = "key";

/// The reason why a program of this repository is missing although its modules are there: no machine's fault, but the code's.
#[derive(Debug)]
pub(crate) struct DoesNotCompile;

impl fmt::Display for DoesNotCompile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{RULES} does not compile")
    }
}

/// A program.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    Helm,
    SchemaRules,
    MlserverAdapter,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Helm => "helm",
            Self::SchemaRules => "schema_rules",
            Self::MlserverAdapter => "mlserver-adapter",
        }
    }

    /// Builds it where it is missing, or was built from something else (5 minutes of processor time, 2 GB while it lasts). It takes the Go
    /// that its `go.mod` names, or a newer one.
    ///
    /// # Errors
    /// With [`DoesNotCompile`] where the code is to blame; all else a machine may lack.
    pub(crate) fn ensure(self) -> Result<()> {
        if self.built().is_some() {
            return Ok(());
        }
        let (folder, key) = (self.folder()?, self.key()?);
        fs_err::create_dir_all(&folder)?;
        // Another checkout may be at it.
        let turn = fs_err::File::create(folder.join("lock"))?;
        turn.file().lock()?;
        if self.built().is_some() {
            return Ok(());
        }
        step(&format!("building {} in Go (once, 3 minutes)", self.name()));
        let work = folder.join("build");
        fs_err::create_dir_all(&work)?;
        let mut build = go(&work);
        match self {
            Self::Helm => build.arg("install"),
            Self::SchemaRules | Self::MlserverAdapter => {
                build.args(["build", "-mod=readonly", "-o"]).arg(work.join(self.name()))
            }
        };
        // Without debug information linking is quicker, and modules that are writable can be removed.
        build.args(["-trimpath", "-modcacherw", "-ldflags=-s -w"]);
        match self {
            Self::Helm => build.arg(HELM),
            Self::SchemaRules => {
                let code = Workspace::here().path(RULES);
                run_quiet(go(&work).args(["mod", "download", "-modcacherw"]).current_dir(&code))?;
                build.arg(".").current_dir(code)
            }
            Self::MlserverAdapter => {
                run_quiet(go(&work).args(["mod", "download", "-modcacherw", ADAPTERS]))?;
                build.arg("./model-mesh-mlserver-adapter").current_dir(work.join(MODULES).join(ADAPTERS))
            }
        };
        let built = run_quiet(&mut build);
        match self {
            Self::SchemaRules => built.context(DoesNotCompile)?,
            Self::Helm | Self::MlserverAdapter => built?,
        };
        fs_err::rename(work.join(self.name()), folder.join(self.name()))?;
        fs_err::write(folder.join(KEY), key)?;
        fs_err::remove_dir_all(work)?;
        Ok(())
    }

    /// The program, if it is there and was built from what is wanted now.
    pub(crate) fn built(self) -> Option<PathBuf> {
        let (folder, key) = (self.folder().ok()?, self.key().ok()?);
        let is_current = fs_err::read_to_string(folder.join(KEY)).is_ok_and(|built| built == key);
        Some(folder.join(self.name())).filter(|program| is_current && program.exists())
    }

    fn folder(self) -> Result<PathBuf> {
        outside(self.name())
    }

    fn key(self) -> Result<String> {
        match self {
            Self::Helm => Ok(HELM.to_owned()),
            Self::MlserverAdapter => Ok(ADAPTERS.to_owned()),
            Self::SchemaRules => {
                let folder = Workspace::here().path(RULES);
                let files = ["go.mod", "main.go"].map(|name| fs_err::read_to_string(folder.join(name)));
                Ok(files.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
    }
}

/// Go, which keeps all that it makes below `work`.
fn go(work: &Path) -> Command {
    let mut go = Command::new("go");
    go.envs([("GOBIN", work.to_owned()), ("GOPATH", work.join("go")), ("GOCACHE", work.join("cache"))])
        .env("GOMODCACHE", work.join(MODULES))
        .envs([("GOFLAGS", "-buildvcs=false"), ("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "0")])
        // The compiler takes a sixth less processor time where it seldom collects its garbage.
        .env("GOGC", "400");
    go
}
