//! The checks. Each looks at one thing, changes nothing that stays, and says what to type.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Output,
    time::Duration,
};

use berth_sandbox::Launcher;
use berth_spec::{ByteSize, card::estimator::PYTHON, format::ONNX_ENGINE_REMEDY};
use berth_worker::{capacity::Capacity, gpu::Gpus, prepare, runtime};
use tokio::{process::Command, time::timeout};

use super::{Check, DoctorArgs, Verdict};
use crate::settings::LAUNCHER;

/// Open files below which a gateway with many clients runs out: each connection is one.
const FILES: u64 = 4_096;

/// Free disk below which fetched models soon find no place.
const DISK: ByteSize = ByteSize::gib(2);

/// Longest time that a program may take to say its version: enough for a cold disk.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) async fn all(args: &DoctorArgs) -> Vec<Check> {
    vec![
        engine(args.onnxruntime.as_deref()),
        data(&args.data),
        port("inference port", "--http", args.http),
        port("control port", "--api", args.api),
        memory(),
        files(),
        uv(args),
        python().await,
        git().await,
        bubblewrap().await,
        node().await,
        npm(),
        control_groups(),
        isolation(),
        gpus(args.nvml_library.as_deref()),
    ]
}

fn engine(library: Option<&Path>) -> Check {
    match runtime::onnx::probe(library) {
        Ok(path) => Check::ok("onnx engine", path.display().to_string()),
        Err(error) => {
            let found = error.to_string();
            // The remedy has a line of its own.
            let found =
                found.strip_suffix(ONNX_ENGINE_REMEDY).map_or(found.as_str(), |found| found.trim_end_matches(": "));
            Check::lacks("onnx engine", Verdict::Missing, found, ONNX_ENGINE_REMEDY)
        }
    }
}

/// The folder can be written to, and its disk has room.
fn data(folder: &Path) -> Check {
    const NAME: &str = "data folder";
    // One that is not there yet is made by the server: the nearest folder above must let it.
    let there = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let probe = tempfile::Builder::new().prefix(".berth-doctor-").tempfile_in(there);
    if let Err(error) = probe.and_then(tempfile::NamedTempFile::close) {
        let remedy = "name a folder of yours with --data DIR, or change its owner";
        return Check::lacks(NAME, Verdict::Missing, error.to_string(), remedy);
    }
    let free = rustix::fs::statvfs(there).map(|disk| ByteSize(disk.f_bavail.saturating_mul(disk.f_frsize)));
    let found = |free: ByteSize| format!("{}, {free} free", folder.display());
    match free {
        Ok(free) if free < DISK => {
            let remedy = format!("free at least {DISK}, or name a folder on another disk with --data DIR");
            Check::lacks(NAME, Verdict::Optional, found(free), remedy)
        }
        Ok(free) => Check::ok(NAME, found(free)),
        Err(_) => Check::ok(NAME, folder.display().to_string()),
    }
}

fn port(name: &'static str, flag: &str, address: SocketAddr) -> Check {
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(name, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Check::lacks(
            name,
            Verdict::Optional,
            format!("{address} is in use"),
            format!("`berth version` shows whether a server of yours has it; another address: {flag} HOST:PORT"),
        ),
        Err(error) => {
            let remedy = format!("name another address: {flag} HOST:PORT");
            Check::lacks(name, Verdict::Missing, format!("{address}: {error}"), remedy)
        }
    }
}

fn memory() -> Check {
    let capacity = Capacity::probe();
    let (all, from) = (capacity.memory, capacity.memory_from);
    Check::ok("memory", format!("{} for models, of {all} ({from}); {} cores", capacity.for_models(), capacity.cpus))
}

fn files() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    let found = format!("{} at once", if most == u64::MAX { "any number".to_owned() } else { most.to_string() });
    if most >= FILES {
        return Check::ok("open files", found);
    }
    let remedy = format!("raise the hard limit to at least {FILES}: `ulimit -Hn`, LimitNOFILE= of a service");
    Check::lacks("open files", Verdict::Optional, found, remedy)
}

fn uv(args: &DoctorArgs) -> Check {
    let settings = prepare::Settings {
        uv: args.uv.clone(),
        environment: std::env::vars_os().collect(),
        ..prepare::Settings::default()
    };
    match prepare::find_uv(&settings) {
        Ok(path) => Check::ok("uv", path.display().to_string()),
        Err(fault) => Check::lacks(
            "uv",
            Verdict::Optional,
            "not found: ONNX models are served, models in Python are not",
            fault.message,
        ),
    }
}

/// The interpreters, one of which a card's `runtime.python_version` names: Berth installs none.
async fn python() -> Check {
    let settings = prepare::Settings { environment: std::env::vars_os().collect(), ..prepare::Settings::default() };
    let found: Vec<String> = prepare::pythons(&settings).await.into_iter().map(|(version, _)| version).collect();
    if found.is_empty() {
        return Check::lacks(
            "python",
            Verdict::Optional,
            "none that makes environments (venv): models and functions in Python are not served",
            "apt-get install python3 python3-venv, or `uv python install 3.11`",
        );
    }
    let listed = found.join(", ");
    if !found.iter().any(|version| version == PYTHON) {
        return Check::lacks(
            "python",
            Verdict::Optional,
            format!("{listed}: not {PYTHON}, with which estimators run that say nothing else"),
            format!("`uv python install {PYTHON}`, or a package python{PYTHON} of the system"),
        );
    }
    Check::ok("python", format!("{listed}; a card's runtime.python_version names one of them"))
}

/// A program on the path, or in the folders where systems keep theirs.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let usual = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
    folders.chain(usual).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Output of a program, which ends with the check.
async fn said(program: &Path, args: &[&str]) -> std::io::Result<Output> {
    let mut command = Command::new(program);
    let asked = command.args(args).stdin(std::process::Stdio::null()).kill_on_drop(true).output();
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", PATIENCE.as_secs());
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, message))
    })
}

/// The walls around builds of functions, and around functions where the sandbox of models has no file tree.
async fn bubblewrap() -> Check {
    const NAME: &str = "bwrap";
    let Some(program) = on_path("bwrap") else {
        return Check::lacks(
            NAME,
            Verdict::Optional,
            "not found: builds of functions see the files that Berth sees, and so do functions where model isolation lacks \
             a file tree",
            "apt-get install bubblewrap",
        );
    };
    let tried = said(&program, &["--unshare-all", "--ro-bind", "/", "/", "--", "/bin/true"]);
    let why = match tried.await {
        Ok(output) if output.status.success() => {
            let walls = "fences builds of functions, and functions where model isolation lacks a file tree";
            return Check::ok(NAME, format!("{}; {walls}", program.display()));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned(),
        Err(error) => error.to_string(),
    };
    Check::lacks(
        NAME,
        Verdict::Optional,
        format!(
            "{} does not work here ({why}): builds of functions are not fenced, nor functions where model isolation lacks a \
             file tree",
            program.display()
        ),
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces; in a container a \
         seccomp profile that allows unshare and mount)",
    )
}

/// Runs and builds functions in JavaScript.
async fn node() -> Check {
    let program = on_path("node").unwrap_or_else(|| PathBuf::from("node"));
    let lacking = "functions in JavaScript are neither built nor run";
    let remedy = "apt-get install nodejs npm, or put the folder that holds node and npm on the PATH";
    versioned("node", &program, "; for functions in JavaScript", lacking, remedy).await
}

/// Fetches the packages of functions in JavaScript; builds take the one beside node.
fn npm() -> Check {
    let beside = on_path("node").map(|node| node.with_file_name("npm")).filter(|npm| npm.is_file());
    if let Some(program) = beside {
        return Check::ok("npm", format!("{}; for functions in JavaScript", program.display()));
    }
    let found = match on_path("npm") {
        Some(elsewhere) => format!("{} is not in the folder of node: builds do not see it", elsewhere.display()),
        None => "not found: functions in JavaScript are not built".to_owned(),
    };
    Check::lacks("npm", Verdict::Optional, found, "apt-get install npm, so that it lies beside node")
}

async fn git() -> Check {
    let lacking = "registries and model cards in Git are not followed";
    versioned("git", Path::new("git"), "", lacking, "apt-get install git").await
}

/// A program that some things need, by the version that it tells. `purpose` stands behind it.
async fn versioned(name: &'static str, program: &Path, purpose: &str, lacking: &str, remedy: &str) -> Check {
    match said(program, &["--version"]).await {
        Ok(output) if output.status.success() => {
            Check::ok(name, format!("{}{purpose}", String::from_utf8_lossy(&output.stdout).trim()))
        }
        _ => Check::lacks(name, Verdict::Optional, format!("not found: {lacking}"), remedy),
    }
}

fn control_groups() -> Check {
    const NAME: &str = "control groups";
    let lacking = runtime::process::unbounded();
    if lacking.is_empty() {
        return Check::ok(NAME, "bound memory, CPU time and number of models' processes");
    }
    Check::lacks(
        NAME,
        Verdict::Optional,
        format!("this user cannot bound the {} of models' processes", lacking.join(", the ")),
        "run Berth as a systemd service with Delegate=yes, or in a container with a writable cgroup of its own",
    )
}

/// The sandbox of models in Python.
fn isolation() -> Check {
    const NAME: &str = "model isolation";
    const REMEDY: &str = "allow user namespaces (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, \
                          kernel.apparmor_restrict_unprivileged_userns; in a container a seccomp profile that allows unshare and \
                          mount), and use a kernel with Landlock (5.13 or later, `lsm=landlock`); root needs \
                          CAP_SETUID and CAP_SETGID";
    match Launcher::find(LAUNCHER) {
        Ok(launcher) if launcher.missing().is_empty() => {
            Check::ok(NAME, "models in Python and functions run in a sandbox")
        }
        Ok(launcher) => {
            let found =
                format!("the sandbox of models in Python and of functions lacks {}", launcher.missing().join(", "));
            Check::lacks(NAME, Verdict::Optional, found, REMEDY)
        }
        Err(error) => Check::lacks(NAME, Verdict::Optional, format!("cannot be tried: {error}"), REMEDY),
    }
}

fn gpus(library: Option<&Path>) -> Check {
    match Gpus::find(library) {
        Ok(gpus) if gpus.devices().is_empty() => Check::ok("GPUs", "none"),
        Ok(gpus) => {
            let named: Vec<String> = gpus.devices().iter().map(|gpu| format!("{} {}", gpu.kind, gpu.memory)).collect();
            Check::ok("GPUs", named.join(", "))
        }
        Err(error) => Check::lacks("GPUs", Verdict::Optional, "cannot be asked", error.to_string()),
    }
}
