//! Programs of the operating system that tests and demos run beside Berth: installed where that is possible.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::run::{run_quiet, step};

/// A program and the Debian package that it comes in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    package: &'static str,
}

/// The store of a cluster.
pub(crate) const ETCD: Program = Program { name: "etcd", package: "etcd-server" };
/// Its client, for people and tests.
pub(crate) const ETCDCTL: Program = Program { name: "etcdctl", package: "etcd-client" };
/// The client of Kubernetes.
pub(crate) const KUBECTL: Program = Program { name: "kubectl", package: "kubernetes-client" };
/// Network namespaces and links.
pub(crate) const IP: Program = Program { name: "ip", package: "iproute2" };
/// Partitions and packet loss.
pub(crate) const IPTABLES: Program = Program { name: "iptables", package: "iptables" };

/// Keeps the registry.
pub(crate) const GIT: Program = Program { name: "git", package: "git" };
/// Keys that commits are signed with.
pub(crate) const SSH_KEYGEN: Program = Program { name: "ssh-keygen", package: "openssh-client" };
/// The same, of the other kind.
pub(crate) const GPG: Program = Program { name: "gpg", package: "gnupg" };
/// Stands in for a key management service in tests.
pub(crate) const OPENSSL: Program = Program { name: "openssl", package: "openssl" };
/// A hardware security module in software, for the tests of its key provider.
pub(crate) const SOFTHSM: Program = Program { name: "softhsm2-util", package: "softhsm2" };

/// Runs JavaScript functions.
pub(crate) const NODE: Program = Program { name: "node", package: "nodejs" };
/// Installs their packages.
pub(crate) const NPM: Program = Program { name: "npm", package: "npm" };
/// Isolates builds of functions.
pub(crate) const BUBBLEWRAP: Program = Program { name: "bwrap", package: "bubblewrap" };

/// Keeps queues of jobs.
pub(crate) const REDIS: Program = Program { name: "redis-server", package: "redis-server" };

/// The same, and a place for logs.
pub(crate) const NATS: Program = Program { name: "nats-server", package: "nats-server" };

/// Sends the requests of pages.
pub(crate) const CURL: Program = Program { name: "curl", package: "curl" };

/// Shows the dashboard in tests.
pub(crate) const CHROMIUM: Program = Program { name: "chromium", package: "chromium" };

/// Reads alert rules and tries them; its package also holds the server.
pub(crate) const PROMTOOL: Program = Program { name: "promtool", package: "prometheus" };

/// Installs programs that are missing, with apt.
pub(crate) fn ensure(programs: &[Program]) -> Result<()> {
    let missing: Vec<&Program> = programs.iter().filter(|program| !is_there(program.name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|program| program.package).collect();
    step(&format!("installing {}", packages.join(", ")));
    // Another suite may be installing something.
    let wait = ["-o", "DPkg::Lock::Timeout=600"];
    let install = || {
        let mut install = Command::new("apt-get");
        run_quiet(install.args(wait).args(["install", "-y", "--no-install-recommends"]).args(&packages))
    };
    // The list of packages may be old, or not there at all.
    if install().is_err() {
        run_quiet(Command::new("apt-get").arg("update"))?;
        install()?;
    }
    match programs.iter().find(|program| !is_there(program.name)) {
        None => Ok(()),
        Some(program) => {
            bail!("{} is still missing after apt-get install {}: install it by hand", program.name, program.package)
        }
    }
}

/// Looks for a program, in `sbin` too, as apt's own scripts do.
fn is_there(program: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", "PATH=$PATH:/usr/sbin:/sbin command -v \"$0\"", program]);
    look.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Tries to make a network namespace, which takes root and a kernel that allows it.
pub(crate) fn namespaces() -> bool {
    // Another run on this machine may try at the same time.
    let name = format!("berth-try-{}", std::process::id());
    let try_one = |action: &str| {
        let mut ip = Command::new("ip");
        ip.args(["netns", action, &name]).stdout(Stdio::null()).stderr(Stdio::null());
        ip.status().is_ok_and(|status| status.success())
    };
    try_one("add") && try_one("del")
}
