//! The checks. Each looks at one thing, changes nothing that stays, and says what to type.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Command,
};

use berth_sandbox::Launcher;
use berth_spec::ByteSize;
use berth_worker::{capacity::Capacity, gpu::Gpus, prepare, runtime};
use fs_err as fs;

use super::{Check, DoctorArgs, Verdict};
use crate::settings::LAUNCHER;

/// Open files below which a gateway with many clients runs out: each connection is one.
const FILES: u64 = 4_096;

/// Free disk below which fetched models soon find no place.
const DISK: ByteSize = ByteSize::gib(2);

pub(super) fn all(args: &DoctorArgs) -> Vec<Check> {
    vec![
        engine(args.onnxruntime.as_deref()),
        data(&args.data),
        port("inference port", "--http", args.http),
        port("control port", "--api", args.api),
        memory(),
        files(),
        python(args),
        git(),
        control_groups(),
        isolation(),
        gpus(args.nvml_library.as_deref()),
    ]
}

fn engine(library: Option<&Path>) -> Check {
    match runtime::onnx::probe(library) {
        Ok(path) => Check::ok("onnx engine", path.display().to_string()),
        Err(error) => Check::lacks(
            "onnx engine",
            Verdict::Missing,
            error.to_string(),
            "install a package of Berth, which holds the engine, or `pip install onnxruntime` and name its folder \
             onnxruntime/capi by --onnxruntime or ORT_DYLIB_PATH",
        ),
    }
}

/// The folder can be written to, and its disk has room.
fn data(folder: &Path) -> Check {
    const NAME: &str = "data folder";
    // One that is not there yet is made by the server: the nearest folder above must let it.
    let there = folder.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let probe = there.join(format!(".berth-doctor-{}", std::process::id()));
    let written = fs::write(&probe, b"").and_then(|()| fs::remove_file(&probe));
    if let Err(error) = written {
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

fn python(args: &DoctorArgs) -> Check {
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

fn git() -> Check {
    let said = Command::new("git").arg("--version").output();
    match said {
        Ok(output) if output.status.success() => {
            Check::ok("git", String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        _ => Check::lacks(
            "git",
            Verdict::Optional,
            "not found: registries and model cards in Git are not followed",
            "apt-get install git",
        ),
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
        Ok(launcher) if launcher.missing().is_empty() => Check::ok(NAME, "models in Python run in a sandbox"),
        Ok(launcher) => {
            let found = format!("the sandbox of models in Python lacks {}", launcher.missing().join(", "));
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
