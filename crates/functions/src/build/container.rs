//! Builds in containers: each step is one `podman run` of an image that holds the tools.
//!
//! ```text
//! step ──▶ podman run: read-only image, the build's folder, network in the fetch step only, no capabilities ──▶ program of the image
//!   └── cancelled, too late, too large ──▶ podman rm: a container outlives the client that started it
//! ```

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::process::Command;

use super::{
    BuildError,
    sandbox::{MEMORY_MIB, PROCESSES, Step, on_path},
};
use crate::driver::now;

/// The longest that podman takes to answer a question: a large image is mounted for the first time.
const ASK: Duration = Duration::from_secs(60);

/// The exit status of a program that was killed: within a container, by the limit of memory.
const KILLED: i32 = 137;

/// Options of every container: nothing of the image is written, and nothing of our environment is seen.
const OPTIONS: [&str; 14] = [
    "run",
    "--rm",
    "--pull",
    "never",
    "--user",
    "0:0",
    "--read-only",
    "--cap-drop",
    "all",
    "--security-opt",
    "no-new-privileges",
    "--http-proxy=false",
    "--log-driver",
    "none",
];

/// Podman, and the image that builds run in.
#[derive(Debug)]
pub(super) struct Container {
    podman: PathBuf,
    image: String,
    /// Label of the containers of this server.
    label: String,
    /// Containers that were started.
    next: AtomicU64,
}

impl Container {
    /// Looks for podman on the path, and removes containers that an earlier process with the same folder left behind. Blocks.
    ///
    /// # Errors
    /// If there is no podman.
    pub(super) fn find(environment: &[(OsString, OsString)], image: &str, root: &Path) -> io::Result<Self> {
        let podman = on_path(environment, "podman").ok_or_else(|| {
            let message = "--function-builder-image needs podman on the PATH: `apt-get install podman`";
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
        let label = format!("dev.berth.build={}", root.display());
        let container = Self { podman, image: image.to_owned(), label, next: AtomicU64::new(0) };
        container.clear_left_behind();
        tracing::info!(event = "function_isolation", isolation = "container", image, "isolation of builds");
        Ok(container)
    }

    fn clear_left_behind(&self) {
        let filter = format!("label={}", self.label);
        let listed = std::process::Command::new(&self.podman)
            .args(["ps", "--all", "--quiet", "--filter", &filter])
            .stdin(Stdio::null())
            .output();
        let names = listed.map(|listed| String::from_utf8_lossy(&listed.stdout).into_owned()).unwrap_or_default();
        names.split_whitespace().for_each(|name| drop(self.removal(name).status()));
    }

    /// The command that removes a container, running or not.
    fn removal(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(&self.podman);
        command.args(["rm", "--force", "--ignore", "--time", "0", name]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Identity of the image: another one builds something else.
    pub(super) async fn identity(&self) -> Result<String, BuildError> {
        let mut command = Command::new(&self.podman);
        command.args(["image", "inspect", "--format", "{{.Id}}", &self.image]);
        self.answer(command).await
    }

    /// Answer of a program of the image to one argument.
    pub(super) async fn says(&self, program: &str, argument: &str) -> Result<String, BuildError> {
        let mut command = Command::new(&self.podman);
        command.args(OPTIONS).args(["--network", "none", "--label", &self.label, "--entrypoint", program]);
        command.args([self.image.as_str(), argument]);
        self.answer(command).await
    }

    async fn answer(&self, mut command: Command) -> Result<String, BuildError> {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let asked = tokio::time::timeout(ASK, command.output()).await;
        let why = match asked {
            Ok(Ok(output)) if output.status.success() => {
                return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
            }
            Ok(Ok(output)) => {
                let said = String::from_utf8_lossy(&output.stderr);
                said.lines().next_back().unwrap_or("podman says nothing").chars().take(300).collect()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("podman has not answered for {} s", ASK.as_secs()),
        };
        let message = format!("the image {:?} of --function-builder-image cannot be used: {why}", self.image);
        Err(BuildError::passing("NoBuilderImage", message))
    }

    /// Begins a container, which is removed unless it ends.
    pub(super) fn begin(&self) -> Running<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Other servers on this machine have containers, too.
        let name = format!("berth-build-{}-{}-{number}", std::process::id(), now().0);
        Running { container: self, name, has_ended: false }
    }
}

/// A container that may run.
pub(super) struct Running<'a> {
    container: &'a Container,
    name: String,
    has_ended: bool,
}

impl Running<'_> {
    /// The client that runs a step in it.
    pub(super) fn command(&self, step: &Step<'_>) -> io::Result<Command> {
        let Container { podman, image, label, .. } = self.container;
        let memory = format!("{MEMORY_MIB}m");
        let network = if step.network { "host" } else { "none" };
        let mut command = Command::new(podman);
        command.args(OPTIONS).args(["--name", &self.name, "--label", label, "--network", network]);
        command.args(["--memory", &memory, "--memory-swap", &memory, "--pids-limit", &PROCESSES.to_string()]);
        command.args(["--tmpfs", "/tmp:rw,exec,mode=1777"]);
        command.arg("--volume").arg(volume(step.folder, ""));
        for folder in &step.writable {
            command.arg("--volume").arg(volume(folder, ""));
        }
        let readable = step.readable.iter().filter(|folder| folder.is_absolute() && folder.exists());
        for folder in readable.filter(|folder| !folder.starts_with(step.folder)) {
            command.arg("--volume").arg(volume(folder, ":ro"));
        }
        command.arg("--env-file").arg(environment(step)?);
        command.arg("--workdir").arg(step.at).arg("--entrypoint").arg(step.program).arg(image);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        Ok(command)
    }

    /// Notes that its program has ended by itself; podman has removed it.
    pub(super) fn ended(&mut self) {
        self.has_ended = true;
    }

    /// True if it ended because it took too much memory.
    pub(super) fn ran_out_of_memory(status: std::process::ExitStatus) -> bool {
        status.code() == Some(KILLED)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut removal = self.container.removal(&self.name);
        // What cannot be removed goes at the next start.
        std::thread::spawn(move || drop(removal.status()));
    }
}

/// A folder at the same place in a container.
fn volume(folder: &Path, how: &str) -> OsString {
    let mut volume = folder.as_os_str().to_owned();
    volume.push(":");
    volume.push(folder);
    volume.push(how);
    volume
}

/// Writes the variables of a step to a file: arguments are seen by everybody on this machine, and the client's own environment is
/// not a function's to set. Folders of this machine's programs are none of the image.
fn environment(step: &Step<'_>) -> io::Result<PathBuf> {
    let path = step.folder.join("environment");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let is_ours = |name: &OsStr| name == "PATH" || name == "TMPDIR";
    for (name, value) in step.environment.iter().filter(|(name, _)| !is_ours(name)) {
        let line = format!("{}={}\n", name.to_string_lossy(), value.to_string_lossy());
        // The file has a line for each: what has more lines is left out.
        if !line.trim_end().contains('\n') {
            file.write_all(line.as_bytes())?;
        }
    }
    Ok(path)
}

/// The image of a build for the identity of its tools.
pub(super) fn in_image(image: Option<&str>) -> String {
    image.map(|image| format!(" in {image}")).unwrap_or_default()
}

/// True if a program that says `found` is of the version that is wanted: `3.11` for `3.11.2`.
pub(super) fn is_version(found: &str, wanted: &str) -> bool {
    found.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_sees_its_folder_and_its_variables_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = tempfile::tempdir().expect("a folder");
        let container = Container {
            podman: "/usr/bin/podman".into(),
            image: "builder:1".to_owned(),
            label: "dev.berth.build=/data".to_owned(),
            next: AtomicU64::new(0),
        };
        let variables = [("PATH", "/host/bin"), ("HOME", "/h"), ("LINES", "1\n2"), ("A", "b c=d")];
        let step = Step {
            name: "npm ci",
            program: Path::new("npm"),
            arguments: Vec::new(),
            environment: variables.map(|(name, value)| (name.into(), value.into())).to_vec(),
            folder: folder.path(),
            at: folder.path(),
            writable: Vec::new(),
            readable: vec![cache.path().to_owned(), folder.path().join("code"), "".into(), "/no/such/folder".into()],
            network: false,
            limit: ASK,
        };
        let mut running = container.begin();
        let command = running.command(&step).expect("a command");
        running.ended();
        let words: Vec<_> = command.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let text = words.join(" ");
        let (here, cache) = (folder.path().display(), cache.path().display());
        assert!(text.contains("--network none") && text.contains("--read-only --cap-drop all"), "{text}");
        assert!(text.contains(&format!("--volume {here}:{here} --volume {cache}:{cache}:ro --env-file")), "{text}");
        assert!(text.ends_with(&format!("--workdir {here} --entrypoint npm builder:1")), "{text}");
        let told = fs_err::read_to_string(folder.path().join("environment")).expect("variables");
        assert_eq!(told, "HOME=/h\nA=b c=d\n");
        assert_eq!(command.as_std().get_envs().count(), 0, "the client has nothing of a step");
    }

    #[test]
    fn versions_are_compared_by_their_parts() {
        assert!(is_version("3.11.2", "3.11") && is_version("3.11", "3.11") && !is_version("3.1", "3.11"));
        assert!(!is_version("3.110", "3.11"));
    }
}
