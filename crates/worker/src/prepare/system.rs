//! A card's packages of the operating system: looked for, and installed where that is allowed.

use std::{path::Path, time::Duration};

use berth_spec::FailureCategory;
use tokio::sync::Mutex;

use super::{
    Settings, SystemPackages,
    program::{Program, ProgramOutput, RunError},
};
use crate::fault::Fault;

/// The time limit of a question to the package manager: it answers within a second, but waits for its lock while
/// another program installs.
const ASK_LIMIT: Duration = Duration::from_secs(60);

/// The time limit of an installation: a large library passes over a slow line, and a stuck package manager does not
/// hold up other models for an hour.
const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The most packages that a card may name: more than any model needs, and a bound on one check.
const MOST: usize = 100;

/// The package manager of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageManager {
    Debian,
    Rpm,
    /// Nobody: shared libraries are looked for by the linker's list.
    Linker,
}

/// Looks for packages, and installs them one set at a time.
#[derive(Debug, Default)]
pub(super) struct System {
    installing: Mutex<()>,
}

impl System {
    /// Sees to it that `packages` are there, as the worker is set; what it could not look at is given as a note.
    pub(super) async fn ensure(&self, packages: &[String], settings: &Settings) -> Result<Option<String>, Fault> {
        if packages.is_empty() {
            return Ok(None);
        }
        if settings.system_packages == SystemPackages::Ignore {
            return Ok(Some(format!("nobody looked for runtime.system_packages: {}", packages.join(", "))));
        }
        check_names(packages)?;
        let manager = manager();
        let missing = missing(manager, packages, settings).await?;
        if missing.is_empty() {
            return Ok(None);
        }
        let Some(command) = command(manager, &missing) else {
            let note =
                format!("this system has no package manager that could say whether it has {}", missing.join(", "));
            return Ok(Some(note));
        };
        if settings.system_packages == SystemPackages::Install && rustix::process::geteuid().is_root() {
            let _one = self.installing.lock().await;
            install(manager, &missing, settings).await?;
            tracing::info!(event = "system_packages_installed", packages = missing.join(" "));
            return Ok(None);
        }
        let message = format!(
            "the worker's operating system lacks {}: run `{command}` there, or let it do so (--system-packages install, \
             as root)",
            missing.join(", ")
        );
        Err(Fault::new(FailureCategory::Dependencies, message))
    }
}

/// True if some of them are Python libraries, which only the system's interpreter sees.
pub(super) fn have_python(packages: &[String]) -> bool {
    packages.iter().any(|package| package.starts_with("python3-"))
}

/// Nothing that a package manager would take for an option.
fn check_names(packages: &[String]) -> Result<(), Fault> {
    let fine = |name: &String| {
        name.len() <= 100
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-._:".contains(c))
    };
    let message = match packages.iter().find(|name| !fine(name)) {
        Some(odd) => format!("runtime.system_packages: {odd:?} is no name of a package"),
        None if packages.len() > MOST => format!("runtime.system_packages names {}, at most {MOST}", packages.len()),
        None => return Ok(()),
    };
    Err(Fault::new(FailureCategory::Dependencies, message))
}

fn manager() -> PackageManager {
    if Path::new("/usr/bin/dpkg-query").exists() {
        PackageManager::Debian
    } else if Path::new("/usr/bin/rpm").exists() {
        PackageManager::Rpm
    } else {
        PackageManager::Linker
    }
}

/// The command that a person would run.
fn command(manager: PackageManager, missing: &[String]) -> Option<String> {
    match manager {
        PackageManager::Debian => Some(format!("apt-get install {}", missing.join(" "))),
        PackageManager::Rpm => Some(format!("dnf install {}", missing.join(" "))),
        PackageManager::Linker => None,
    }
}

async fn missing(manager: PackageManager, packages: &[String], settings: &Settings) -> Result<Vec<String>, Fault> {
    let ask = |path: &str| Program::new(path, settings.surroundings(), Path::new("/")).env("LC_ALL", "C");
    let program = match manager {
        PackageManager::Debian => {
            ask("/usr/bin/dpkg-query").args(["-W", "-f=${db:Status-Status} ${Package}\\n", "--"]).args(packages)
        }
        PackageManager::Rpm => ask("/usr/bin/rpm").args(["-q", "--qf", "installed %{NAME}\\n", "--"]).args(packages),
        PackageManager::Linker => ask("/sbin/ldconfig").arg("-p"),
    };
    let said = match program.run(ASK_LIMIT).await {
        Ok(said) => said,
        // Without even a linker's list nothing can be said.
        Err(RunError::Start { .. }) if manager == PackageManager::Linker => return Ok(packages.to_vec()),
        Err(error) => return Err(Fault::new(FailureCategory::Internal, error.to_string())),
    };
    Ok(packages.iter().filter(|package| !is_installed(manager, package, &said.out)).cloned().collect())
}

/// True if the output of the package manager lists the package as installed.
fn is_installed(manager: PackageManager, package: &str, out: &str) -> bool {
    // An architecture may follow: `libgomp1:amd64`.
    let name = package.split(':').next().unwrap_or(package);
    match manager {
        PackageManager::Debian | PackageManager::Rpm => {
            out.lines().any(|line| line.split_once(' ') == Some(("installed", name)))
        }
        PackageManager::Linker => {
            // `libgomp1` holds `libgomp.so.1`.
            let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
            let version = &name[digits.len()..];
            let library = format!("{}.so.{version}", digits.trim_end_matches('-'));
            !version.is_empty() && out.lines().any(|line| line.trim_start().starts_with(&library))
        }
    }
}

async fn install(manager: PackageManager, missing: &[String], settings: &Settings) -> Result<(), Fault> {
    let run = |path: &str| {
        let program = Program::new(path, settings.surroundings(), Path::new("/")).env("LC_ALL", "C");
        program.env("DEBIAN_FRONTEND", "noninteractive").env("HOME", "/root")
    };
    let failed = |error: RunError| Fault::new(FailureCategory::Dependencies, error.to_string());
    let said = match manager {
        PackageManager::Debian => {
            // A list that cannot be made anew may still hold what is wanted: the installation decides.
            let _ = run("/usr/bin/apt-get").args(["-qq", "update"]).run(INSTALL_LIMIT).await.map_err(failed)?;
            let install = ["-qq", "-y", "--no-install-recommends", "install", "--"];
            run("/usr/bin/apt-get").args(install).args(missing).run(INSTALL_LIMIT).await.map_err(failed)?
        }
        PackageManager::Rpm => {
            let install = ["-q", "-y", "install", "--"];
            run("/usr/bin/dnf").args(install).args(missing).run(INSTALL_LIMIT).await.map_err(failed)?
        }
        PackageManager::Linker => return Ok(()),
    };
    if said.status.success() { Ok(()) } else { Err(not_installed(&said, missing)) }
}

fn not_installed(said: &ProgramOutput, missing: &[String]) -> Fault {
    let words = said.reason();
    let network = ["Temporary failure resolving", "Could not connect", "Connection failed", "Connection timed out"];
    let category = match network.iter().any(|phrase| words.contains(phrase)) {
        true => FailureCategory::Network,
        false => FailureCategory::Dependencies,
    };
    let last = words.lines().rfind(|line| line.starts_with("E:") || line.starts_with("Error")).unwrap_or_default();
    Fault::new(category, format!("cannot install {}: {last}", missing.join(", "))).with_trace(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_package_managers() {
        let debian = "installed libgomp1\nnot-installed libfoo1\nconfig-files old\n";
        let linker = "\tlibgomp.so.1 (libc6,x86-64) => /lib/libgomp.so.1\n\tlibssl.so.3 (libc6)\n";
        for (manager, package, out, there) in [
            (PackageManager::Debian, "libgomp1", debian, true),
            (PackageManager::Debian, "libgomp1:amd64", debian, true),
            (PackageManager::Debian, "libfoo1", debian, false),
            (PackageManager::Debian, "old", debian, false),
            (PackageManager::Debian, "libgomp", debian, false),
            (PackageManager::Rpm, "libgomp", "installed libgomp\npackage x is not installed\n", true),
            (PackageManager::Rpm, "x", "installed libgomp\npackage x is not installed\n", false),
            (PackageManager::Linker, "libgomp1", linker, true),
            (PackageManager::Linker, "libssl3", linker, true),
            (PackageManager::Linker, "ffmpeg", linker, false),
        ] {
            assert_eq!(is_installed(manager, package, out), there, "{manager:?} {package}");
        }
    }

    #[tokio::test]
    async fn names_are_names_and_nobody_looks_where_nobody_should() {
        let system = System::default();
        let settings = |system_packages| Settings { system_packages, ..Settings::default() };
        let odd = ["--purge".to_owned()];
        let fault = system.ensure(&odd, &settings(SystemPackages::Check)).await.expect_err("an option");
        assert_eq!(fault.category, FailureCategory::Dependencies);
        let note = system.ensure(&odd, &settings(SystemPackages::Ignore)).await.expect("ignored");
        assert!(note.is_some_and(|note| note.contains("--purge")));
        assert_eq!(system.ensure(&[], &settings(SystemPackages::Check)).await, Ok(None));
    }
}
