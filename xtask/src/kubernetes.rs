//! A control plane of Kubernetes for tests: built once from Debian's source package, and kept outside the checkout.
//!
//! No ready program is to be had from Debian. 1.20.2 is out of support, and good enough to be an API server: its absences (CEL rules,
//! native sidecars, `policy/v1`) are what the operator must do without.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{
    debian,
    go::{DoesNotCompile, Program},
    run::{run, run_quiet, step},
    workspace::outside,
};

/// The version of the source package.
const VERSION: &str = "1.20.2";

/// The programs that are built.
const PROGRAMS: [&str; 2] = ["kube-apiserver", "kube-controller-manager"];

/// Builds the programs where they are missing (7 minutes, 3 GB while it lasts), and those that a machine may do without. Returns their
/// folder.
pub(crate) fn ensure() -> Result<PathBuf> {
    let folder = ensure_plane()?;
    for (program, tests) in [(Program::Helm, "the chart"), (Program::SchemaRules, "rules in schemas")] {
        if let Err(error) = program.ensure() {
            if error.is::<DoesNotCompile>() {
                return Err(error);
            }
            step(&format!("LEFT OUT: tests of {tests}: {error:#}"));
        }
    }
    Ok(folder)
}

/// Builds the programs alone, where they are missing. Returns their folder.
pub(crate) fn ensure_plane() -> Result<PathBuf> {
    debian::ensure(&[debian::ETCD, debian::KUBECTL, debian::OPENSSL])?;
    let folder = folder()?;
    if is_built(&folder) {
        return Ok(folder);
    }
    step(&format!("building the control plane of Kubernetes {VERSION} (once, 7 minutes)"));
    let work = folder.join("build");
    fs_err::create_dir_all(&work)?;
    let script = work.join("build.sh");
    fs_err::write(&script, BUILD)?;
    run(Command::new("bash")
        .arg("-e")
        .arg(&script)
        .args(PROGRAMS.map(|name| format!("./cmd/{name}")))
        .current_dir(&work))?;
    for name in PROGRAMS {
        fs_err::rename(work.join(name), folder.join(name))?;
    }
    // Go makes its modules read-only.
    run_quiet(Command::new("chmod").args(["-R", "u+w"]).arg(&work))?;
    fs_err::remove_dir_all(work)?;
    Ok(folder)
}

/// The folder, if the programs are in it.
pub(crate) fn built() -> Option<PathBuf> {
    folder().ok().filter(|folder| is_built(folder))
}

fn is_built(folder: &Path) -> bool {
    PROGRAMS.iter().all(|name| folder.join(name).exists())
}

fn folder() -> Result<PathBuf> {
    Ok(outside("kubernetes")?.join(VERSION))
}

/// Builds without `make`, which would generate all code anew, with six programs that it compiles first: the description of the API is
/// all that the sources lack. The vendored `reflect2` crashes with Go 1.18 and later: Debian's own takes its place. Sources are read from
/// a list of this build's own, so that the machine's stays as it is.
const BUILD: &str = r#"
WORK=$PWD
mkdir -p lists/partial
cat > sources.list <<'LIST'
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security bookworm-security main
LIST
apt="-o Dir::Etc::sourcelist=$WORK/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$WORK/lists"
apt-get -o DPkg::Lock::Timeout=600 update -qq
apt-get -o DPkg::Lock::Timeout=600 install -y -qq --no-install-recommends golang-1.19-go golang-github-modern-go-reflect2-dev dpkg-dev > /dev/null
apt-get $apt update -qq
rm -rf kubernetes-1*/ source
apt-get $apt source -qq kubernetes
mv kubernetes-1*/ source
cd source
reflect=vendor/github.com/modern-go/reflect2
rm -rf $reflect
cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 $reflect
rm -f $reflect/*_test.go
module=k8s.io/kubernetes
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/$module
cd .go/src/$module
export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$WORK/source/.go GOCACHE=$WORK/cache GO111MODULE=off CGO_ENABLED=0 HOME=$WORK
# The compiler takes a quarter less processor time where it seldom collects its garbage.
export GOGC=400
described=$(grep -Rl --include='*.go' -- '+k8s:openapi-gen=' cmd pkg $(ls -d vendor/k8s.io/* | grep -v 'code-generator\|sample-apiserver'))
nice -n 5 go run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen --go-header-file hack/boilerplate/boilerplate.generatego.txt \
  -i "$(dirname $described | sort -u | sed "s|^|$module/|" | paste -sd,)" -p $module/pkg/generated/openapi -O zz_generated.openapi -r /dev/null
version=$module/vendor/k8s.io/component-base/version
nice -n 5 go build -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" -o "$WORK" "$@"
"#;
