//! Builds of Python: packages of `requirements.lock` or `requirements.txt`, as wheels, into the folder where Azure Functions
//! looks for them.

use std::{
    env::consts::ARCH,
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    BuildError, Builder, LONGEST_STEP, Workplace, blocking,
    container::{Container, in_image, is_version},
    lock::Lock,
    packages, requirements,
    sandbox::{Network, Step, prefix_of},
};
use crate::{dependencies::of_packages, deployment::Language};

/// Folder of packages in an artifact.
pub(super) const PACKAGES: &str = ".python_packages/lib/site-packages";

/// Files that list packages, the first that exists counts: a lock, then wishes.
const LISTS: [&str; 2] = ["requirements.lock", "requirements.txt"];

/// Version of Python where the spec names none.
pub(crate) const VERSION: &str = "3.11";

/// The machine that wheels are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wheels {
    /// The one that builds.
    Host,
    /// Azure's.
    Azure,
}

/// Platform of wheels for Azure's workers, in uv's words. Up to Python 3.11 they run on Debian 11, whose glibc is 2.31
/// (Azure/azure-functions-python-worker#1651); wheels are made for 2.28 and then for 2.34.
pub(super) const AZURE: &str = "x86_64-manylinux_2_28";

/// Words of uv and pip that tell of a package without a wheel that fits.
const NO_WHEEL: [&str; 4] =
    ["no usable wheels", "with a matching", "building from source is disabled", "No matching distribution found"];

/// Programs of a Python build.
#[derive(Clone)]
pub(super) struct PythonTools {
    pub(super) python: PathBuf,
    pub(super) version: String,
    /// `None`: pip of the interpreter installs.
    uv: Option<PathBuf>,
    /// The image that they are in; `None`: this machine.
    pub(super) image: Option<String>,
}

impl PythonTools {
    /// The part of them that decides the outcome.
    pub(super) fn key(&self) -> String {
        let installer = if self.uv.is_some() { "uv" } else { "pip" };
        format!("python {} {installer} {ARCH}{}", self.version, in_image(self.image.as_deref()))
    }

    /// Finds the programs of an image.
    async fn of_image(container: &Container, version: String) -> Result<Self, BuildError> {
        let image = container.identity().await?;
        let said = container.says(&image, "python3", "--version").await?;
        let found = said.strip_prefix("Python ").unwrap_or(&said);
        if !is_version(found, &version) {
            let message = format!(
                "the image of --function-builder-image has Python {found}, not {version}: set spec.runtime.pythonVersion, or use \
                 another image"
            );
            return Err(BuildError::passing("NoPython", message));
        }
        let uv = container.has(&image, "uv").await?.then(|| PathBuf::from("uv"));
        Ok(Self { python: "python3".into(), version, uv, image: Some(image) })
    }
}

impl Builder {
    pub(super) async fn python_tools(&self, place: &Workplace<'_>) -> Result<PythonTools, BuildError> {
        place.tools.python.get_or_try_init(|| self.find_python_tools(place)).await.cloned()
    }

    async fn find_python_tools(&self, place: &Workplace<'_>) -> Result<PythonTools, BuildError> {
        let version = place.spec.version.clone().unwrap_or_else(|| VERSION.to_owned());
        if let Some(container) = self.sandbox.container() {
            return PythonTools::of_image(container, version).await;
        }
        let python = self.toolchain.python(&version).await;
        let wrong = |message: String| message.replace("runtime.python_version", "spec.runtime.pythonVersion");
        let python = python.map_err(|fault| BuildError::passing("NoPython", wrong(fault.message)))?;
        Ok(PythonTools { python, version, uv: self.toolchain.uv().ok(), image: None })
    }

    pub(super) async fn python(&self, place: &mut Workplace<'_>) -> Result<(), BuildError> {
        let code = place.code();
        let entry = place.spec.entrypoint.module.replace('.', "/");
        if !code.join(format!("{entry}.py")).is_file() && !code.join(&entry).join("__init__.py").is_file() {
            let message = format!("the code has no {entry}.py, which spec.entrypoint names: {}", contents(&code));
            return Err(BuildError::lasting("NoEntrypoint", message));
        }
        let list = LISTS.iter().find(|list| code.join(list).is_file());
        let needs_azure = uses_azure(&code) && list.is_none_or(|list| !names_azure(&code.join(list)));
        if list.is_none() && !needs_azure {
            place.log.line("no requirements.txt: no packages");
            return Ok(());
        }
        let tools = self.python_tools(place).await?;
        if let Some(list) = list {
            requirements::check(&code, list, tools.uv.is_none())?;
        }
        let mut wishes: Vec<OsString> = Vec::new();
        if let Some(list) = list {
            wishes.extend(["-r".into(), (*list).into()]);
        }
        if needs_azure {
            wishes.push("azure-functions".into());
        }
        if list == Some(&LISTS[1]) && !place.code().join(LISTS[0]).is_file() {
            place.notes.push(Lock::note("requirements.txt is no lock", place.spec.name.as_str()));
        }
        let (target, locked) = (code.join(PACKAGES), list == Some(&LISTS[0]) && !needs_azure);
        let wheels = if self.goes_to_azure(place.spec) { Wheels::Azure } else { Wheels::Host };
        self.install(place, &tools, wheels, wishes, &target).await?;
        let (packages, lock) = blocking(move || {
            let lock = if locked { None } else { Some(Lock::of_python(&target, &code)?) };
            tidy(&target)?;
            Ok((packages::of_python(&target)?, lock))
        })
        .await?;
        (place.packages, place.lock) = (packages, lock);
        Ok(())
    }

    /// Installs packages into the folder `target`.
    pub(super) async fn install(
        &self,
        place: &Workplace<'_>,
        tools: &PythonTools,
        wheels: Wheels,
        wishes: Vec<OsString>,
        target: &Path,
    ) -> Result<(), BuildError> {
        let code = place.code();
        let cache = self.uv_cache.folder().clone();
        let mut environment = self.toolchain.environment();
        environment.push(("HOME".into(), place.home()?.into()));
        let mut readable: Vec<PathBuf> = prefix_of(&tools.python).into_iter().collect();
        let (name, program, mut arguments): (_, &Path, Vec<OsString>) = match &tools.uv {
            Some(uv) => {
                environment.extend(self.toolchain.package_settings());
                environment
                    .extend([("UV_CACHE_DIR".into(), cache.clone().into()), ("UV_LINK_MODE".into(), "copy".into())]);
                readable.extend(uv.parent().map(Path::to_owned));
                let words = ["pip", "install", "--no-progress", "--no-build", "--no-config", "--python"];
                let mut words: Vec<OsString> = words.map(Into::into).to_vec();
                words.extend([tools.python.clone().into(), "--target".into(), target.into()]);
                // The version of Python is that of the interpreter, down to its patch.
                words.extend(for_uv(wheels));
                ("uv pip install", uv, words)
            }
            None => {
                // Isolated: with `-m` alone, a module of the code would be taken for pip.
                let words = ["-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"];
                let mut words: Vec<OsString> = words.map(Into::into).to_vec();
                words.extend(["--only-binary=:all:".into(), "--target".into(), target.into()]);
                words.extend(for_pip(wheels, ARCH)?);
                ("pip install", &tools.python, words)
            }
        };
        arguments.extend(wishes);
        let step = Step {
            name,
            function: place.spec.name.as_str(),
            program,
            image: tools.image.as_deref(),
            arguments,
            environment,
            folder: &place.folder,
            at: &code,
            writable: vec![cache],
            readable,
            network: Network::Registries,
            limit: LONGEST_STEP,
        };
        let _in_use = self.uv_cache.begin_step().await;
        let done = self.asking(Some(of_packages(Language::Python)), self.sandbox.run(step, place.log)).await;
        done.map_err(|error| without_wheel(error, &place.log.tail(), &tools.version, wheels))
    }
}

/// Options of uv that choose wheels.
fn for_uv(wheels: Wheels) -> Vec<OsString> {
    match wheels {
        Wheels::Host => Vec::new(),
        Wheels::Azure => vec!["--python-platform".into(), AZURE.into()],
    }
}

/// The same of pip, which takes each tag by itself, the best first. It reads conditions of requirements (`platform_machine`) as of the
/// machine `arch` that it runs on.
fn for_pip(wheels: Wheels, arch: &str) -> Result<Vec<OsString>, BuildError> {
    if wheels == Wheels::Host {
        return Ok(Vec::new());
    }
    if arch != "x86_64" {
        let message =
            format!("Azure runs x86_64, and on this {arch} machine only uv chooses packages for it: install uv");
        return Err(BuildError::passing("NoUv", message));
    }
    let tags = (5..=28).rev().map(|minor| format!("manylinux_2_{minor}_x86_64"));
    // pip knows the two before 2014, too.
    let tags = tags.chain(["manylinux2014_x86_64", "linux_x86_64"].map(str::to_owned));
    Ok(tags.flat_map(|tag| [OsString::from("--platform"), tag.into()]).collect())
}

/// The error of an installation, with the remedy where a package has no wheel that fits. `said`: the end of the log.
fn without_wheel(error: BuildError, said: &str, version: &str, wheels: Wheels) -> BuildError {
    let step = said.rfind("\n$ ").map_or(said, |at| &said[at..]);
    // uv breaks its lines anywhere.
    let step = step.split_whitespace().collect::<Vec<_>>().join(" ");
    if error.reason != "BuildFailed" || !NO_WHEEL.iter().any(|words| step.contains(words)) {
        return error;
    }
    let platform = if wheels == Wheels::Azure { AZURE } else { "this machine" };
    let message = format!(
        "{}; only wheels are installed, and a package has none for Python {version} on {platform}: choose a version that has one, or \
         name a wheel as in NAME @ https://HOST/FILE.whl",
        error.message
    );
    BuildError { reason: "NoWheel", message, ..error }
}

/// The names at the top of the code, for a message.
pub(super) fn contents(code: &Path) -> String {
    let mut names: Vec<String> = fs_err::read_dir(code)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.truncate(10);
    if names.is_empty() { "it is empty".to_owned() } else { format!("it holds {}", names.join(", ")) }
}

/// True if a file at the top of the code imports Microsoft's library.
fn uses_azure(code: &Path) -> bool {
    let files = fs_err::read_dir(code).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut python = files.filter(|path| path.extension().is_some_and(|ending| ending == "py"));
    python.any(|path| fs_err::read_to_string(path).is_ok_and(|text| text.contains("azure.functions")))
}

fn names_azure(list: &Path) -> bool {
    let text = fs_err::read_to_string(list).unwrap_or_default().to_ascii_lowercase();
    text.lines().any(|line| line.trim_start().replace('_', "-").starts_with("azure-functions"))
}

/// Removes what differs between two installations of the same packages.
fn tidy(packages: &Path) -> Result<(), BuildError> {
    let mut open = vec![packages.to_owned()];
    while let Some(folder) = open.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type()?.is_dir() {
                // Scripts name the interpreter of this machine.
                let scripts = name == "bin" && folder == packages;
                if name == "__pycache__" || scripts {
                    fs_err::remove_dir_all(path)?;
                } else {
                    open.push(path);
                }
            } else if name == ".lock" || name == "direct_url.json" || name == "RECORD" {
                fs_err::remove_file(path)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: Vec<OsString>) -> Vec<String> {
        words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn wheels_for_azure_are_chosen_by_its_platform() {
        assert_eq!(texts(for_uv(Wheels::Azure)), ["--python-platform", "x86_64-manylinux_2_28"]);
        let pip = texts(for_pip(Wheels::Azure, "x86_64").expect("options"));
        assert_eq!(pip[..4], ["--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_27_x86_64"]);
        assert!(!pip.iter().any(|word| word.contains("manylinux_2_29")), "newer than Azure's glibc: {pip:?}");
        assert!(for_uv(Wheels::Host).is_empty() && for_pip(Wheels::Host, "aarch64").expect("options").is_empty());
        let message = for_pip(Wheels::Azure, "aarch64").expect_err("pip would read the conditions of this machine");
        assert!(message.text().ends_with("install uv"));
    }

    #[test]
    fn a_package_without_a_wheel_is_told_with_the_remedy() {
        let failed = || BuildError::lasting("BuildFailed", "uv pip install failed: no");
        let disabled = "$ fetch\n$ uv pip install\n  hint: Wheels are required for `a` because building from\n      source is disabled\n";
        for (said, told) in [
            (disabled, true),
            ("a\n$ uv pip install\n  × Because a==1 has no wheels with a\n  matching platform tag, no\n", true),
            ("a\n$ uv pip install\n  × Because a==1 has no usable\n      wheels, no\n", true),
            ("a\n$ pip install\nERROR: No matching distribution found for a\n", true),
            ("building from source is disabled\n$ uv pip install\n  × Because a==1 needs b>2, no\n", false),
        ] {
            let error = without_wheel(failed(), said, "3.11", Wheels::Azure);
            assert_eq!(error.reason == "NoWheel", told, "{said}");
            assert_eq!(error.message.contains("for Python 3.11 on x86_64-manylinux_2_28"), told, "{}", error.message);
        }
        let away = BuildError::away("RegistryUnreachable", "timed out");
        assert_eq!(without_wheel(away, disabled, "3.11", Wheels::Host).reason, "RegistryUnreachable");
    }
}
