//! A Kubernetes of today and a Helm, from Go's own registry: built where there is a Go that is new enough, and kept outside the checkout.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{folder_of, is_built};
use crate::run::{run, step};

const VERSION: &str = "1.37.2";

const HELM: &str = "3.22.0";

/// The oldest Go that builds them.
const GO: (u32, u32) = (1, 26);

/// Builds what is missing (10 minutes, 4 GB while it lasts); without such a Go, nothing.
pub(super) fn ensure() -> Result<()> {
    if !has_go() {
        return Ok(());
    }
    let folder = folder_of(VERSION)?;
    if !is_built(&folder) {
        step(&format!("building the control plane of Kubernetes {VERSION} (once, 10 minutes)"));
        build(CONTROL_PLANE, VERSION, &folder)?;
    }
    let folder = folder_of("helm")?;
    if !folder.join("helm").exists() {
        step(&format!("building Helm {HELM} (once, 3 minutes)"));
        build(BUILD_HELM, HELM, &folder)?;
    }
    Ok(())
}

fn build(script: &str, version: &str, folder: &Path) -> Result<()> {
    let work = folder.join("build");
    fs_err::create_dir_all(&work)?;
    let file = work.join("build.sh");
    fs_err::write(&file, script)?;
    run(Command::new("nice").args(["bash", "-e"]).arg(&file).arg(version).arg(folder).current_dir(&work))?;
    Ok(fs_err::remove_dir_all(work)?)
}

/// The folder of the newer control plane, if it is built.
pub(crate) fn built() -> Option<PathBuf> {
    folder_of(VERSION).ok().filter(|folder| is_built(folder))
}

/// Helm, if it is built.
pub(crate) fn helm() -> Option<PathBuf> {
    folder_of("helm").ok().map(|folder| folder.join("helm")).filter(|program| program.exists())
}

fn has_go() -> bool {
    let Ok(said) = Command::new("go").args(["env", "GOVERSION"]).output() else { return false };
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut numbers = text.trim().trim_start_matches("go").split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= GO
}

/// The module has no `main` of its own that `go install` would take, for its parts are in the same source: each is named with the version
/// that was released with it.
const CONTROL_PLANE: &str = r#"
export CGO_ENABLED=0
module=$(go mod download -json "k8s.io/kubernetes@v$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
{
  echo "module control-plane"
  sed -n 's/^go /go /p' "$module/go.mod"
  echo "require k8s.io/kubernetes v$1"
  sed -n "s#.*\(k8s.io/[a-z-]*\) => ./staging/src/.*#replace \1 => \1 v0.${1#1.}#p" "$module/go.mod"
} > go.mod
for program in apiserver:APIServer controller-manager:ControllerManager; do
  name=kube-${program%:*}
  mkdir -p "$name"
  cat > "$name/main.go" <<GO
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/$name/app"
)

func main() { os.Exit(cli.Run(app.New${program#*:}Command())) }
GO
done
go mod tidy
said=k8s.io/component-base/version
minor=${1#1.}
flags="-s -w -X $said.gitVersion=v$1 -X $said.gitMajor=1 -X $said.gitMinor=${minor%.*} -X $said.gitTreeState=clean"
for name in kube-apiserver kube-controller-manager; do
  go build -trimpath -ldflags "$flags" -o "$2/$name" "./$name"
done
"#;

const BUILD_HELM: &str = r#"
export CGO_ENABLED=0 GOBIN=$2
go install -trimpath -ldflags "-s -w" "helm.sh/helm/v3/cmd/helm@v$1"
"#;
