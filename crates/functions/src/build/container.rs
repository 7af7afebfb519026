//! Builds in containers: each step is one `podman run` of an image that holds the tools.
//!
//! ```text
//! step ──▶ podman run: read-only image, the build's folder, no capabilities ──▶ program of the image
//!   │        network: of the machine to fetch packages, one of its own for the check for Azure, else none
//!   ├── too late, too large ──▶ podman rm, awaited ──▶ the folder goes
//!   └── cancelled ──▶ the folder is moved away ──▶ remover: podman rm, then the folder goes
//! ```
//! A container outlives the client that started it, and writes to its folder until it is removed. Files for podman lie in `own/`
//! beside the folders of builds, which no container sees: a program cannot plant a link where we write.

mod podman;

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::SyncSender,
    },
    time::Duration,
};

use tokio::{process::Command, sync::OnceCell};

use self::podman::{ASK, Gone, NoAnswer, answer, bounds, clear_left_behind, last_words, removal, remover};
use super::{
    BuildError, BuildLog,
    javascript::NodeTools,
    python::PythonTools,
    sandbox::{MEMORY_MIB, Network, PROCESSES, Step, cpus, fresh, on_path},
};
use crate::driver::now;

/// The longest that a build waits for the end of its container; then the remover goes on with it.
const REMOVE: Duration = Duration::from_secs(30);

/// Time after its limit at which podman itself ends a container, whatever has become of us.
const GRACE: Duration = Duration::from_secs(30);

/// The longest value that podman takes from a file of variables, which it reads by lines of 64 KiB.
const LONGEST_VALUE: usize = 32 << 10;

/// The exit status of podman where podman itself has failed.
const PODMAN_FAILED: i32 = 125;

/// The exit status of podman where the image has no such program.
const NO_PROGRAM: i32 = 127;

/// The exit status of a program that was killed: within a container, by the limit of memory.
const KILLED: i32 = 137;

/// Options of every container: nothing of the image is written, and nothing of our environment is seen. Limits of cores and files
/// are inherited: `--ulimit` would replace the defaults of containers.conf, and Berth's own limit for cores is 0.
const OPTIONS: [&str; 16] = [
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
    "--security-opt",
    "label=disable",
    "--http-proxy=false",
    "--log-driver",
    "none",
];

/// Programs of a build, looked for once: the name of an image may mean another one meanwhile.
#[derive(Default)]
pub(super) struct BuildPrograms {
    pub(super) python: OnceCell<PythonTools>,
    pub(super) node: OnceCell<NodeTools>,
}

/// Podman, and the image that builds run in.
#[derive(Debug)]
pub(super) struct Container {
    podman: PathBuf,
    image: String,
    /// Label of the containers of this server.
    label: String,
    /// Folder of files that no container sees.
    own: PathBuf,
    /// Processors of a step; `None`: podman cannot bound them here.
    cpus: Option<f32>,
    /// Containers that were started.
    next: AtomicU64,
    remover: SyncSender<Gone>,
    /// True if podman has made a network for a container.
    has_network: AtomicBool,
    /// Functions and steps that were killed at the last attempt.
    killed: Mutex<BTreeSet<String>>,
}

impl Container {
    /// Looks for podman on the path, and removes containers that an earlier process with the same folder left behind, also where
    /// this one has no image. Blocks.
    ///
    /// # Errors
    /// If there is an image and no podman, or the folder cannot be used.
    pub(super) fn find(
        environment: &[(OsString, OsString)],
        image: Option<&str>,
        root: &Path,
    ) -> io::Result<Option<Self>> {
        let (own, label) = (root.join("own"), format!("dev.berth.build={}", root.display()));
        let podman = on_path(environment, "podman");
        if let Some(podman) = podman.as_deref().filter(|_| image.is_some() || own.is_dir()) {
            fs_err::create_dir_all(&own)?;
            clear_left_behind(podman, &label, &own);
        }
        if own.exists() {
            fs_err::remove_dir_all(&own)?;
        }
        let Some(image) = image else { return Ok(None) };
        let podman = podman.ok_or_else(|| {
            let message = "--function-builder-image needs podman on the PATH: `apt-get install podman`";
            io::Error::new(io::ErrorKind::NotFound, message)
        })?;
        if root.to_string_lossy().contains([',', '"']) {
            let message =
                format!("--function-builder-image needs a --data without commas and quotes: {}", root.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        std::fs::DirBuilder::new().mode(0o700).create(&own)?;
        let cpus = bounds(&podman, &own).then(cpus);
        tracing::info!(event = "function_isolation", isolation = "container", image, "isolation of builds");
        Ok(Some(Self {
            remover: remover(podman.clone())?,
            podman,
            image: image.to_owned(),
            label,
            own,
            cpus,
            next: AtomicU64::new(0),
            has_network: AtomicBool::new(false),
            killed: Mutex::default(),
        }))
    }

    /// Identity of the image: another one builds something else.
    pub(super) async fn identity(&self) -> Result<String, BuildError> {
        let mut command = Command::new(&self.podman);
        command.args(["image", "inspect", "--format", "{{.Id}}", &self.image]);
        answer(command).await.map_err(|silence| self.unusable(&silence.why))
    }

    /// Answer of a program of an image to one argument.
    pub(super) async fn says(&self, image: &str, program: &str, argument: &str) -> Result<String, BuildError> {
        let command = self.question("none", image, OsStr::new(program), argument);
        answer(command).await.map_err(|silence| self.unusable(&silence.why))
    }

    /// True if an image has a program, which knows `--version`.
    pub(super) async fn has(&self, image: &str, program: &str) -> Result<bool, BuildError> {
        match answer(self.question("none", image, OsStr::new(program), "--version")).await {
            Ok(_) => Ok(true),
            Err(NoAnswer { code: Some(NO_PROGRAM), .. }) => Ok(false),
            Err(silence) => Err(self.unusable(&silence.why)),
        }
    }

    fn question(&self, network: &str, image: &str, program: &OsStr, argument: &str) -> Command {
        let mut command = Command::new(&self.podman);
        command.args(OPTIONS).args(["--network", network, "--label", &self.label]);
        command.args(["--timeout", &ASK.as_secs().to_string()]);
        command.arg("--entrypoint").arg(program).args([image, argument]);
        command
    }

    fn unusable(&self, why: &str) -> BuildError {
        let message = format!("the image {:?} of --function-builder-image cannot be used: {why}", self.image);
        BuildError::passing("NoBuilderImage", message)
    }

    /// The image of a step.
    fn image<'a>(&'a self, step: &Step<'a>) -> &'a str {
        step.image.unwrap_or(&self.image)
    }

    /// The network of a step, in podman's words. One of its own has no way to what listens on the machine's loopback.
    pub(super) async fn network(&self, step: &Step<'_>, log: &BuildLog) -> &'static str {
        match step.network {
            Network::None => "none",
            Network::Registries => {
                log.line("this step reaches the whole network of the machine: builds in containers are not kept to registries");
                "host"
            }
            Network::Own => {
                if self.has_network(step).await {
                    return "private";
                }
                log.line("podman cannot make a network for a container here: this step has none");
                "none"
            }
        }
    }

    async fn has_network(&self, step: &Step<'_>) -> bool {
        if self.has_network.load(Ordering::Relaxed) {
            return true;
        }
        match answer(self.question("private", self.image(step), step.program.as_os_str(), "--version")).await {
            Ok(_) => {
                self.has_network.store(true, Ordering::Relaxed);
                true
            }
            Err(NoAnswer { why, .. }) => {
                tracing::warn!(event = "function_check_without_network", why);
                false
            }
        }
    }

    /// Begins the container of a step, which is removed unless it ends.
    pub(super) fn begin(&self, step: &Step<'_>) -> StepContainer<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Other servers on this machine have containers, too.
        let name = format!("berth-build-{}-{}-{number}", std::process::id(), now().0);
        StepContainer {
            container: self,
            variables: self.own.join(format!("{name}.env")),
            name,
            step: format!("{} of {}", step.name, step.function),
            folder: step.folder.to_owned(),
            is_gone: false,
        }
    }
}

/// A container that may run.
pub(super) struct StepContainer<'a> {
    container: &'a Container,
    name: String,
    /// The step and its function, in words.
    step: String,
    /// Folder of the build.
    folder: PathBuf,
    /// File of its variables.
    variables: PathBuf,
    is_gone: bool,
}

impl StepContainer<'_> {
    /// The client that runs a step in it.
    pub(super) fn command(&self, step: &Step<'_>, network: &str) -> io::Result<Command> {
        let Container { podman, label, cpus, .. } = self.container;
        let memory = format!("{MEMORY_MIB}m");
        let mut command = Command::new(podman);
        command.args(OPTIONS).args(["--name", &self.name, "--label", label, "--network", network]);
        command.args(["--memory", &memory, "--memory-swap", &memory, "--pids-limit", &PROCESSES.to_string()]);
        if let Some(cpus) = cpus {
            command.args(["--cpus", &cpus.to_string()]);
        }
        command.args(["--timeout", &(step.limit + GRACE).as_secs().to_string()]);
        command.args(["--tmpfs", "/tmp:rw,exec,mode=1777"]);
        command.arg("--mount").arg(mount(step.folder, ""));
        for folder in &step.writable {
            command.arg("--mount").arg(mount(folder, ""));
        }
        let readable = step.readable.iter().filter(|folder| folder.is_absolute() && folder.exists());
        for folder in readable.filter(|folder| !folder.starts_with(step.folder)) {
            command.arg("--mount").arg(mount(folder, ",readonly"));
        }
        self.write_variables(step)?;
        command.arg("--env-file").arg(&self.variables);
        command.arg("--workdir").arg(step.at).arg("--entrypoint").arg(step.program).arg(self.container.image(step));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        Ok(command)
    }

    /// Writes the variables of a step to a file: arguments are seen by everybody on this machine, and the client's own environment
    /// is not a function's to set, whose `LD_PRELOAD` or `CONTAINERS_CONF` would be obeyed outside of the container. Folders of
    /// this machine's programs are none of the image.
    fn write_variables(&self, step: &Step<'_>) -> io::Result<()> {
        let mut file = fresh(&self.variables)?;
        let is_ours = |name: &OsStr| name == "PATH" || name == "TMPDIR";
        for (name, value) in step.environment.iter().filter(|(name, _)| !is_ours(name)) {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            if fits_a_line(&value) {
                writeln!(file, "{name}={value}")?;
            } else {
                tracing::warn!(event = "function_variable_left_out", %name, step = self.step);
            }
        }
        Ok(())
    }

    /// Notes that nothing was begun.
    pub(super) fn not_begun(&mut self) {
        self.is_gone = true;
    }

    /// Notes that its client has ended. Where its program has ended by itself, podman has removed it.
    pub(super) async fn ended(&mut self, status: ExitStatus) {
        if status.success() {
            self.killed().remove(&self.step);
        }
        match status.code() {
            None | Some(PODMAN_FAILED) => self.remove().await,
            Some(_) => self.is_gone = true,
        }
    }

    /// Removes it, so that nothing writes to its folder any more. What takes too long is left to the remover.
    pub(super) async fn remove(&mut self) {
        let mut command = Command::from(removal(&self.container.podman));
        command.arg(&self.name).kill_on_drop(true);
        let removed = tokio::time::timeout(REMOVE, command.status()).await;
        self.is_gone = matches!(removed, Ok(Ok(status)) if status.success());
    }

    /// The error of a client that ended so, where it is none of the program's own.
    pub(super) fn error(&self, step: &Step<'_>, status: ExitStatus, said: &str) -> Option<BuildError> {
        match status.code()? {
            PODMAN_FAILED => {
                Some(self.container.unusable(&format!("podman cannot run {}: {}", step.name, last_words(said))))
            }
            KILLED => {
                let message = format!("{} was killed, perhaps for memory: it may take {MEMORY_MIB} MiB", step.name);
                // Others may have taken the machine's memory: it gets another attempt.
                let mut killed = self.killed();
                if killed.remove(&self.step) {
                    return Some(BuildError::lasting("OutOfMemory", message));
                }
                killed.insert(self.step.clone());
                Some(BuildError::passing("OutOfMemory", message))
            }
            _ => None,
        }
    }

    fn killed(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.container.killed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StepContainer<'_> {
    fn drop(&mut self) {
        // It is not there where nothing was begun.
        let _ = std::fs::remove_file(&self.variables);
        if self.is_gone {
            return;
        }
        // The container writes to its folder until it is removed: that one goes after it.
        let aside = self.container.own.join(&self.name);
        let folder = std::fs::rename(&self.folder, &aside).is_ok().then_some(aside);
        let name = self.name.clone();
        if self.container.remover.try_send(Gone { name, folder }).is_err() {
            tracing::warn!(
                event = "function_container_left",
                name = self.name,
                "too many containers wait for their removal"
            );
        }
    }
}

/// A folder at the same place in a container.
fn mount(folder: &Path, how: &str) -> OsString {
    let mut mount = OsString::from("type=bind,src=");
    mount.push(folder);
    mount.push(",dst=");
    mount.push(folder);
    mount.push(how);
    mount
}

/// True if podman takes a value from a file of variables.
pub(super) fn fits_a_line(value: &str) -> bool {
    value.len() <= LONGEST_VALUE && !value.contains(['\n', '\r'])
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
    use std::time::Instant;

    use serde_json::Value;

    use super::{
        podman::{holds, unlimited},
        *,
    };

    /// A container whose podman is a program that does nothing.
    fn container(own: &Path) -> Container {
        Container {
            podman: "/bin/true".into(),
            image: "builder:1".to_owned(),
            label: "dev.berth.build=/data".to_owned(),
            own: own.to_owned(),
            cpus: Some(1.5),
            next: AtomicU64::new(0),
            remover: remover("/bin/true".into()).expect("a thread"),
            has_network: AtomicBool::new(false),
            killed: Mutex::default(),
        }
    }

    fn step(folder: &Path) -> Step<'_> {
        Step {
            name: "npm ci",
            function: "words",
            program: Path::new("npm"),
            image: Some("0123"),
            arguments: Vec::new(),
            environment: Vec::new(),
            folder,
            at: folder,
            writable: Vec::new(),
            readable: Vec::new(),
            network: Network::None,
            limit: ASK,
        }
    }

    fn ended(code: i32) -> ExitStatus {
        std::os::unix::process::ExitStatusExt::from_raw(code << 8)
    }

    #[test]
    fn a_step_sees_its_folder_and_its_variables_alone() {
        let [folder, cache, own] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        let container = container(own.path());
        let variables = [("PATH", "/host/bin"), ("HOME", "/h"), ("LINES", "1\n2"), ("A", "b c=d")];
        let step = Step {
            environment: variables.map(|(name, value)| (name.into(), value.into())).to_vec(),
            readable: vec![cache.path().to_owned(), folder.path().join("code"), "".into(), "/no/such/folder".into()],
            ..step(folder.path())
        };
        let mut running = container.begin(&step);
        let command = running.command(&step, "none").expect("a command");
        let words: Vec<_> = command.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let text = words.join(" ");
        let (here, cache, file) = (folder.path().display(), cache.path().display(), running.variables.display());
        assert!(text.contains("--network none") && text.contains("--read-only --cap-drop all"), "{text}");
        assert!(text.contains("--security-opt label=disable") && text.contains("--cpus 1.5 --timeout 90"), "{text}");
        let mounts =
            format!("--mount type=bind,src={here},dst={here} --mount type=bind,src={cache},dst={cache},readonly");
        assert!(text.contains(&format!("{mounts} --env-file {file}")), "{text}");
        assert!(text.ends_with(&format!("--workdir {here} --entrypoint npm 0123")), "{text}");
        assert!(!running.variables.starts_with(folder.path()), "no program reaches it");
        assert_eq!(fs_err::read_to_string(&running.variables).expect("variables"), "HOME=/h\nA=b c=d\n");
        assert_eq!(command.as_std().get_envs().count(), 0, "the client has nothing of a step");
        running.not_begun();
        drop(running);
        assert!(fs_err::read_dir(own.path()).expect("a folder").next().is_none(), "its variables go with it");
        assert!(folder.path().exists());
    }

    #[test]
    fn the_folder_of_a_container_that_was_left_goes_with_it() {
        let [work, own] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let folder = work.path().join("b1");
        fs_err::create_dir(&folder).expect("a folder");
        fs_err::write(folder.join("file"), "text").expect("written");
        let container = container(own.path());
        drop(container.begin(&step(&folder)));
        assert!(!folder.exists(), "it is moved away at once");
        let until = Instant::now() + ASK;
        while fs_err::read_dir(own.path()).expect("a folder").next().is_some() {
            assert!(Instant::now() < until, "the remover removes it");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn podman_and_programs_end_for_different_reasons() {
        let [folder, own] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let (container, step) = (container(own.path()), step(folder.path()));
        let mut running = container.begin(&step);
        running.not_begun();
        let error = |code| running.error(&step, ended(code), "one\nError: no space\n");
        assert!(error(1).is_none() && error(NO_PROGRAM).is_none());
        let podman = error(PODMAN_FAILED).expect("an error");
        assert_eq!((podman.reason, podman.retry), ("NoBuilderImage", crate::controller::Retry::Later));
        assert!(podman.message.ends_with("podman cannot run npm ci: Error: no space"), "{}", podman.message);
        let attempts = [(); 3].map(|()| error(KILLED).expect("an error").retry);
        use crate::controller::Retry::{Later, Never};
        assert_eq!(attempts, [Later, Never, Later], "one more attempt for each change");
    }

    #[test]
    fn limits_that_podman_does_not_hold_are_told() {
        let told = |rootless: bool, version: &str, controllers: &[&str]| {
            let host = serde_json::json!({
                "cgroupVersion": version, "cgroupControllers": controllers, "security": {"rootless": rootless},
            });
            let about = serde_json::json!({ "host": host });
            assert_eq!(holds(&about, "cpu"), controllers.contains(&"cpu"));
            unlimited(&about).is_some()
        };
        assert!(!told(false, "v1", &[]) && !told(true, "v2", &["cpu", "memory", "pids"]));
        assert!(told(true, "v1", &["memory", "pids"]) && told(true, "v2", &["memory"]));
        assert!(unlimited(&Value::Null).is_none());
    }

    #[test]
    fn versions_are_compared_by_their_parts() {
        assert!(is_version("3.11.2", "3.11") && is_version("3.11", "3.11") && !is_version("3.1", "3.11"));
        assert!(!is_version("3.110", "3.11"));
    }
}
