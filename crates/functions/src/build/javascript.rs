//! Builds of JavaScript: packages by `npm ci` or `npm install`, then the bundler of the spec.
//!
//! ```text
//! npm ci --ignore-scripts (network) ──▶ npm rebuild (no network) ──▶ rollup, esbuild (no network) ──▶ without packages for
//! development ──▶ for Azure: with @azure/functions
//! ```

use std::{
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;

use super::{
    BuildError, Builder, LONGEST_STEP, Workplace, blocking,
    container::in_image,
    lock::Lock,
    packages,
    python::contents,
    sandbox::{Network, Step, StepCommand, fresh, fresh_folder},
    worker_check,
};
use crate::{
    dependencies::of_packages,
    deployment::{Bundler, Language},
};

/// Options of every call of npm.
const NPM_OPTIONS: [&str; 3] = ["--no-audit", "--no-fund", "--no-progress"];

/// Settings of every call of npm. Variables win over the `.npmrc` of the code, and are handed on to the npm that a package from Git is
/// fetched with: neither says which program is `git`. The home folder's file may have been written by code of packages.
const ALWAYS: [(&str, &str); 3] =
    [("npm_config_git", "git"), ("npm_config_userconfig", "/dev/null"), ("npm_config_update_notifier", "false")];

/// Settings of a call that fetches packages, and runs no code of theirs. An empty variable would not count: the option for Node.js
/// is one that changes nothing.
const FETCHES: [(&str, &str); 2] =
    [("npm_config_ignore_scripts", "true"), ("npm_config_node_options", "--no-deprecation")];

/// Endings of a module.
pub(crate) const ENDINGS: [&str; 4] = ["js", "cjs", "mjs", "json"];

/// Files that esbuild starts from where no script says so.
const ENTRIES: [&str; 6] = ["src/index.ts", "src/index.js", "index.ts", "index.js", "src/index.mjs", "index.mjs"];

/// Programs of a JavaScript build.
#[derive(Clone)]
pub(super) struct NodeTools {
    pub(super) node: PathBuf,
    npm: PathBuf,
    version: String,
    /// The image that they are in; `None`: this machine.
    pub(super) image: Option<String>,
}

impl NodeTools {
    /// The part of them that decides the outcome.
    pub(super) fn key(&self) -> String {
        format!("node {}{}", self.version, in_image(self.image.as_deref()))
    }

    /// A note where this is not the version that was wanted.
    pub(super) fn note(&self, wanted: Option<&str>) -> Option<String> {
        let version = &self.version;
        let wanted = wanted.filter(|wanted| major(wanted) != major(version))?;
        let place = if self.image.is_some() { "The image" } else { "This machine" };
        Some(format!("{place} has Node.js {version}, not {wanted}: that is used."))
    }
}

impl Builder {
    pub(super) async fn node_tools(&self, place: &Workplace<'_>) -> Result<NodeTools, BuildError> {
        place.tools.node.get_or_try_init(|| self.find_node_tools(place)).await.cloned()
    }

    async fn find_node_tools(&self, place: &Workplace<'_>) -> Result<NodeTools, BuildError> {
        if let Some(container) = self.sandbox.container() {
            let image = container.identity().await?;
            let said = container.says(&image, "node", "--version").await?;
            let version = said.trim_start_matches('v').to_owned();
            return Ok(NodeTools { node: "node".into(), npm: "npm".into(), version, image: Some(image) });
        }
        let (node, version) = find_node(&self.toolchain.environment(), place.spec.version.as_deref()).await?;
        let npm = node.with_file_name("npm");
        Ok(NodeTools { node, npm, version, image: None })
    }

    pub(super) async fn javascript(&self, place: &mut Workplace<'_>) -> Result<(), BuildError> {
        let tools = self.node_tools(place).await?;
        let code = place.code();
        let package = package(&code)?;
        check_config(&code, place.spec.bundler.as_ref())?;
        if package.is_some() {
            self.packages(place, &tools).await?;
        }
        match &place.spec.bundler {
            Some(Bundler::Rollup { config }) => self.rollup(place, &tools, config, package.as_ref()).await?,
            Some(Bundler::Esbuild { config }) => self.esbuild(place, &tools, config.as_deref()).await?,
            None => {}
        }
        let entry = place.spec.entrypoint.module.clone();
        let bundled = place.spec.bundler.is_some();
        let file = ENDINGS.iter().map(|ending| format!("{entry}.{ending}")).find(|file| code.join(file).is_file());
        let Some(file) = file.or_else(|| code.join(&entry).is_file().then(|| entry.clone())) else {
            let made = code.join(&entry).parent().map(contents).unwrap_or_default();
            let message = format!(
                "there is no {entry}.js, which spec.entrypoint names, after the build: in its folder, {made}; let the \
                 bundler write it there, or change spec.entrypoint"
            );
            return Err(BuildError::lasting("NoEntrypoint", message));
        };
        let keeps = match &package {
            Some(package) => !bundled || needs_packages(&code.join(&file), package),
            None => false,
        };
        if keeps {
            self.npm(place, &tools, "npm prune", &["prune", "--omit=dev", "--offline"], Network::None).await?;
        }
        blocking(move || {
            refuse_links(&code, Path::new("node_modules"))?;
            if !keeps && code.join("node_modules").exists() {
                fs_err::remove_dir_all(code.join("node_modules"))?;
            }
            forget_traces(&code)?;
            say_what_it_is(&code, &file, package.as_ref())
        })
        .await?;
        if self.goes_to_azure(place.spec) { self.library(place, &tools).await } else { Ok(()) }
    }

    /// Adds the library of Azure's worker, which an app has to bring along, where the code has none.
    async fn library(&self, place: &mut Workplace<'_>, tools: &NodeTools) -> Result<(), BuildError> {
        let modules = place.code().join("node_modules");
        if modules.join("@azure/functions").is_dir() {
            return Ok(());
        }
        let aside = place.folder.join("library");
        fresh_folder(&aside)?;
        let prefix = aside.to_string_lossy().into_owned();
        let mut words = vec!["install", "--ignore-scripts", "--prefix", prefix.as_str()];
        words.extend(worker_check::library(place.spec.version.as_deref()));
        self.npm(place, tools, "npm install @azure/functions", &words, Network::Registries).await?;
        let lock = fs_err::read_to_string(aside.join("node_modules/.package-lock.json")).unwrap_or_default();
        place.packages.extend(packages::of_node(&lock));
        let code = place.code();
        blocking(move || {
            refuse_links(&code, Path::new("node_modules"))?;
            fs_err::remove_file(aside.join("node_modules/.package-lock.json"))?;
            merge(&aside.join("node_modules"), &modules)
        })
        .await
    }

    async fn packages(&self, place: &mut Workplace<'_>, tools: &NodeTools) -> Result<(), BuildError> {
        let code = place.code();
        let locked = ["package-lock.json", "npm-shrinkwrap.json"].iter().any(|lock| code.join(lock).is_file());
        let how = if locked { "ci" } else { "install" };
        if !locked {
            place.notes.push(Lock::note("There is no package-lock.json", place.spec.name.as_str()));
        }
        let install = [how, "--ignore-scripts", "--include=dev"];
        self.npm(place, tools, &format!("npm {how}"), &install, Network::Registries).await?;
        let lock = fs_err::read_to_string(code.join("node_modules/.package-lock.json")).unwrap_or_default();
        place.packages = packages::of_node(&lock);
        if !locked {
            place.lock = Lock::of_node(&code);
        }
        if lock.contains("\"hasInstallScript\": true") {
            self.npm(place, tools, "npm rebuild", &["rebuild", "--foreground-scripts"], Network::None).await?;
        }
        Ok(())
    }

    async fn rollup(
        &self,
        place: &Workplace<'_>,
        tools: &NodeTools,
        config: &str,
        package: Option<&Value>,
    ) -> Result<(), BuildError> {
        let code = place.code();
        let script = code.join("node_modules/rollup/dist/bin/rollup");
        if !script.is_file() {
            return Err(no_bundler("rollup", &code));
        }
        let text = fs_err::read(config_in(&code, config)?)?;
        let text = String::from_utf8_lossy(&text);
        let mut arguments: Vec<OsString> = vec![script.into(), "--config".into(), config.into()];
        // Node.js reads such a file as CommonJS, and Rollup stops and names this flag.
        let is_module = package.and_then(|package| package.get("type")?.as_str()) == Some("module");
        if config.ends_with(".js") && !is_module && text.contains("export default") {
            arguments.push("--bundleConfigAsCjs".into());
        }
        let command = StepCommand { name: "rollup", program: &tools.node, arguments };
        self.step(place, tools, command, Network::None).await
    }

    /// A script that calls esbuild, or esbuild with what fits a function.
    async fn esbuild(&self, place: &Workplace<'_>, tools: &NodeTools, config: Option<&str>) -> Result<(), BuildError> {
        let code = place.code();
        if !code.join("node_modules/esbuild/lib/main.js").is_file() {
            return Err(no_bundler("esbuild", &code));
        }
        let arguments: Vec<OsString> = match config {
            Some(script) => {
                config_in(&code, script)?;
                vec![script.into()]
            }
            None => {
                let entry = ENTRIES.iter().find(|entry| code.join(entry).is_file()).ok_or_else(|| {
                    let message = format!(
                        "esbuild needs one of {}, or a script in spec.build.configFile that calls it: {}",
                        ENTRIES.join(", "),
                        contents(&code)
                    );
                    BuildError::lasting("NoBundlerConfig", message)
                })?;
                let to = format!("{}.js", place.spec.entrypoint.module);
                let options = serde_json::json!({
                    "entryPoints": [entry], "outfile": to, "bundle": true, "platform": "node", "format": "cjs",
                    "target": format!("node{}", major(&tools.version)), "logLevel": "info",
                });
                vec!["-e".into(), format!("require('esbuild').buildSync({options})").into()]
            }
        };
        let command = StepCommand { name: "esbuild", program: &tools.node, arguments };
        self.step(place, tools, command, Network::None).await
    }

    async fn npm(
        &self,
        place: &Workplace<'_>,
        tools: &NodeTools,
        name: &str,
        words: &[&str],
        network: Network,
    ) -> Result<(), BuildError> {
        let arguments = words.iter().chain(&NPM_OPTIONS).map(Into::into).collect();
        let command = StepCommand { name, program: &tools.npm, arguments };
        self.step(place, tools, command, network).await
    }

    async fn step(
        &self,
        place: &Workplace<'_>,
        tools: &NodeTools,
        command: StepCommand<'_>,
        network: Network,
    ) -> Result<(), BuildError> {
        let home = place.home()?;
        let (cache, fetches) = (self.npm_cache.folder().clone(), network == Network::Registries);
        let mut environment = self.toolchain.environment();
        environment.extend([
            ("HOME".into(), home.clone().into()),
            ("npm_config_cache".into(), if fetches { cache.clone().into() } else { home.join("npm").into() }),
            ("NODE_ENV".into(), "production".into()),
            ("CI".into(), "true".into()),
        ]);
        environment.extend(settings_of_npm(fetches).map(|(name, value)| (name.into(), value.into())));
        environment.extend(self.config.python.environment.iter().filter(|(name, _)| is_of_npm(name)).cloned());
        let code = place.code();
        let step = Step {
            name: command.name,
            function: place.spec.name.as_str(),
            program: command.program,
            image: tools.image.as_deref(),
            arguments: command.arguments,
            environment,
            folder: &place.folder,
            at: &code,
            // A step that runs code of packages does not touch what other builds install from.
            writable: if fetches { vec![cache] } else { Vec::new() },
            readable: Vec::new(),
            network,
            limit: LONGEST_STEP,
        };
        let registry = fetches.then(|| of_packages(Language::JavaScript));
        let _in_use = if fetches { Some(self.npm_cache.begin_step().await) } else { None };
        self.asking(registry, self.sandbox.run(step, place.log)).await
    }
}

/// Settings of a call of npm.
fn settings_of_npm(fetches: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    ALWAYS.into_iter().chain(FETCHES.into_iter().filter(move |_| fetches))
}

/// Settings of npm that say where packages are.
fn is_of_npm(name: &std::ffi::OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    name == "node_extra_ca_certs" || name == "npm_config_registry"
}

/// The `node` of a version, else the newest that is found: containers and Azure have the right one.
pub(crate) async fn find_node(
    environment: &[(OsString, OsString)],
    wanted: Option<&str>,
) -> Result<(PathBuf, String), BuildError> {
    let variable = |wanted: &str| environment.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    let mut folders: Vec<PathBuf> = std::env::split_paths(&variable("PATH").unwrap_or_default()).collect();
    folders.extend(["/usr/local/bin", "/usr/bin"].map(PathBuf::from));
    let mut first = None;
    for node in folders.into_iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join("node")) {
        if !node.is_file() {
            continue;
        }
        let Some(version) = says(&node).await else { continue };
        if wanted.is_none_or(|wanted| major(wanted) == major(&version)) {
            return Ok((node, version));
        }
        first.get_or_insert((node, version));
    }
    first.ok_or_else(|| {
        BuildError::passing("NoNode", "this machine has no Node.js: install node and npm, and have them on the PATH")
    })
}

async fn says(node: &Path) -> Option<String> {
    let run = tokio::process::Command::new(node).arg("--version").env_clear().kill_on_drop(true).output();
    let said = tokio::time::timeout(Duration::from_secs(10), run).await.ok()?.ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    Some(text.trim().trim_start_matches('v').to_owned()).filter(|version| !version.is_empty())
}

/// Refuses code without the file that its bundler reads, before anything is fetched. A package may bring it along.
fn check_config(code: &Path, bundler: Option<&Bundler>) -> Result<(), BuildError> {
    let config = match bundler {
        Some(Bundler::Rollup { config }) => Some(config),
        Some(Bundler::Esbuild { config }) => config.as_ref(),
        None => None,
    };
    let of_package = |config: &str| Path::new(config).components().any(|part| part.as_os_str() == "node_modules");
    match config.filter(|config| !of_package(config)) {
        Some(config) => config_in(code, config).map(drop),
        None => Ok(()),
    }
}

/// The file that `spec.build.configFile` names, or the one that Rollup reads where it names none.
fn config_in(code: &Path, config: &str) -> Result<PathBuf, BuildError> {
    let file = code.join(config);
    if file.is_file() {
        return Ok(file);
    }
    let message = format!(
        "the code has no {config}, which the bundler is to read: add it, or name another file in spec.build.configFile: {}",
        contents(code)
    );
    Err(BuildError::lasting("NoBundlerConfig", message))
}

fn no_bundler(name: &str, code: &Path) -> BuildError {
    let message = if code.join("package.json").is_file() {
        format!("spec.build.bundler is {name}, and package.json does not list it: `npm install --save-dev {name}`")
    } else {
        format!(
            "spec.build.bundler is {name}, and the code has no package.json that lists it: `npm init -y && npm install \
             --save-dev {name}`: {}",
            contents(code)
        )
    };
    BuildError::lasting("NoBundler", message)
}

fn major(version: &str) -> &str {
    version.split('.').next().unwrap_or_default()
}

fn package(code: &Path) -> Result<Option<Value>, BuildError> {
    let path = code.join("package.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs_err::read(path)?;
    let wrong = |error| BuildError::lasting("InvalidSource", format!("package.json is not JSON: {error}"));
    serde_json::from_slice(&text).map(Some).map_err(wrong)
}

/// True if a bundle asks for packages at run time.
fn needs_packages(bundle: &Path, package: &Value) -> bool {
    let text = fs_err::read_to_string(bundle).unwrap_or_default();
    let names = package.get("dependencies").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name);
    names.into_iter().any(|name| {
        ["require(", "require( ", "from ", "from", "import(", "import "].iter().any(|before| {
            ['"', '\''].iter().any(|quote| {
                text.contains(&format!("{before}{quote}{name}{quote}"))
                    || text.contains(&format!("{before}{quote}{name}/"))
            })
        })
    })
}

/// Removes what differs between two installations of the same packages.
fn forget_traces(code: &Path) -> Result<(), BuildError> {
    for trace in ["node_modules/.package-lock.json", "node_modules/.cache", "node_modules/.bin"] {
        let path = code.join(trace);
        if path.is_dir() {
            fs_err::remove_dir_all(path)?;
        } else if path.exists() {
            fs_err::remove_file(path)?;
        }
    }
    Ok(())
}

/// Refuses code where a step has made a link of a folder on the way to `below`: what we do there would be done elsewhere.
fn refuse_links(code: &Path, below: &Path) -> Result<(), BuildError> {
    let mut path = code.to_owned();
    let mut parts = below.components();
    loop {
        if path.is_symlink() {
            let message = format!("the build has made a link of {}: the code must hold no links", path.display());
            return Err(BuildError::lasting("InvalidSource", message));
        }
        let Some(part) = parts.next() else { return Ok(()) };
        path.push(part);
    }
}

/// Moves the packages below `from` to `to`, but for those that are there.
fn merge(from: &Path, to: &Path) -> Result<(), BuildError> {
    refuse_links(to, Path::new(""))?;
    fs_err::create_dir_all(to)?;
    for entry in fs_err::read_dir(from)? {
        let entry = entry?;
        let (source, place) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == ".bin" {
            continue;
        }
        if entry.file_name().to_string_lossy().starts_with('@') {
            merge(&source, &place)?;
        } else if !place.exists() {
            fs_err::rename(source, place)?;
        }
    }
    Ok(())
}

/// Tells Node.js that a `.js` file is an ES module, where it is one and nothing says so.
fn say_what_it_is(code: &Path, file: &str, package: Option<&Value>) -> Result<(), BuildError> {
    let is_module = package.and_then(|package| package.get("type")?.as_str()) == Some("module");
    if is_module || !file.ends_with(".js") {
        return Ok(());
    }
    let text = fs_err::read_to_string(code.join(file)).unwrap_or_default();
    let says = |line: &str| line.starts_with("export ") || line.starts_with("export{") || line.starts_with("import ");
    let Some(folder) = Path::new(file).parent().filter(|_| text.lines().any(says)) else { return Ok(()) };
    refuse_links(code, folder)?;
    let place = code.join(folder).join("package.json");
    // A link stays, and the artifact is refused for it.
    if fs_err::symlink_metadata(&place).is_err() {
        fresh(&place)?.write_all(b"{\"type\":\"module\"}\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_does_not_say_which_programs_npm_runs() {
        let names = |fetches| settings_of_npm(fetches).map(|(name, _)| name).collect::<Vec<_>>();
        let (fetching, others) = (names(true), names(false));
        for setting in ["git", "userconfig", "ignore_scripts", "node_options"] {
            assert!(fetching.contains(&&*format!("npm_config_{setting}")), "{setting}: {fetching:?}");
        }
        assert!(!others.contains(&"npm_config_ignore_scripts"), "`npm rebuild` runs them: {others:?}");
        assert!(settings_of_npm(true).all(|(_, value)| !value.is_empty()), "npm ignores an empty variable");
    }

    #[test]
    fn a_link_that_a_step_has_planted_is_not_followed() {
        let home = tempfile::tempdir().expect("a folder");
        let (code, elsewhere) = (home.path().join("code"), home.path().join("elsewhere"));
        for folder in [code.join("dist"), elsewhere.clone()] {
            fs_err::create_dir_all(folder).expect("a folder");
        }
        let module = "export const handler = () => 1;\n";
        fs_err::write(code.join("dist/a.js"), module).expect("written");
        fs_err::write(elsewhere.join("a.js"), module).expect("written");
        say_what_it_is(&code, "dist/a.js", None).expect("said");
        assert!(code.join("dist/package.json").is_file());

        fs_err::os::unix::fs::symlink(&elsewhere, code.join("linked")).expect("a link");
        fs_err::os::unix::fs::symlink(elsewhere.join("made.json"), code.join("package.json")).expect("a link");
        fs_err::write(code.join("a.js"), module).expect("written");
        assert!(say_what_it_is(&code, "linked/a.js", None).is_err());
        say_what_it_is(&code, "a.js", None).expect("left as it is");
        assert!(refuse_links(&code, Path::new("linked")).is_err() && refuse_links(&code, Path::new("dist")).is_ok());
        assert!(merge(&code.join("dist"), &code.join("linked")).is_err());
        let there: Vec<_> = fs_err::read_dir(&elsewhere).expect("a folder").flatten().collect();
        assert_eq!(there.len(), 1, "{there:?}");
    }
}
