//! The last check of an artifact that goes to Azure: it is loaded and asked once by the libraries of Azure's own workers, so that
//! what they would refuse is never uploaded.
//!
//! ```text
//! artifact ──▶ unpack ──▶ Python: azure_functions_worker, azure.functions ──▶ load, bind, invoke, marshal
//!                    └──▶ Node.js: @azure/functions, from the artifact ─────▶ load, register, invoke
//! ```
//! Microsoft publishes the Python worker's library up to 1.1.9, which is older than `function_app.py`: that file is indexed by
//! `azure.functions`, as newer workers do it. The module that the Node.js worker brings along is replaced by our own.

use std::{
    collections::BTreeMap,
    env::consts::ARCH,
    ffi::OsString,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    BuildError, Builder, Workplace,
    container::fits_a_line,
    javascript::NodeTools,
    python::{PythonTools, Wheels},
    sandbox::{Network, Step, StepCommand, fresh, fresh_folder},
    tree::Tree,
};
use crate::{
    build::{stoppable, unpack_zip},
    deployment::Language,
    status::ArtifactStatus,
};

/// Program of the check of Python.
const PYTHON: &str = include_str!("../host/check.py");

/// Program of the check of JavaScript.
const NODE: &str = concat!(include_str!("../host/core.cjs"), include_str!("../host/check.cjs"));

/// The longest check: a large framework is imported from a cold disk.
const CHECK_TIMEOUT: Duration = Duration::from_secs(180);

/// The last release of the worker's library; what it pins of gRPC is not used.
const WORKER: &str = "azure-functions-worker==1.1.9";

/// Packages beside it: the library of functions, and the protocol buffers that the worker's messages were generated for.
const BESIDE: [&str; 2] = ["azure-functions>=1.11,<2", "protobuf==3.20.3"];

/// Packages of an app by the Node.js version of Azure: each needs its own.
const LIBRARY: &[&str] = &["@azure/functions@4.16.5", "@azure/functions-extensions-base@0.3.0", "cookie@0.7.2"];
const LIBRARY_BEFORE_20: &[&str] = &["@azure/functions@4.5.1", "cookie@0.6.0", "long@4.0.0", "undici@5.29.0"];

/// Packages of the library that an app of Azure needs for a version of Node.js.
pub(super) fn library(version: Option<&str>) -> &'static [&'static str] {
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major < 20) { LIBRARY_BEFORE_20 } else { LIBRARY }
}

impl Builder {
    /// Loads an artifact as Azure's worker does, and asks it once.
    pub(super) async fn check(&self, place: &mut Workplace<'_>, artifact: &ArtifactStatus) -> Result<(), BuildError> {
        let zip = self.artifacts.path(&artifact.digest);
        let zip = zip.ok_or_else(|| BuildError::lasting("Internal", "a digest is none"))?;
        let app = place.folder.join("check");
        let to = app.clone();
        let native = stoppable(move |stop| {
            fresh_folder(&to)?;
            unpack_zip(&zip, &to, stop)?;
            has_native(&to)
        })
        .await?;
        let checked = match place.spec.language {
            Language::Python if native && ARCH != "x86_64" => {
                place.log.line(&format!("skipped: its packages are for x86_64, and this machine is {ARCH}"));
                Ok(())
            }
            Language::Python => {
                let tools = self.python_tools(place).await?;
                self.check_python(place, &tools, &app).await
            }
            Language::JavaScript => {
                let tools = self.node_tools(place).await?;
                self.check_node(place, &tools, &app).await
            }
        };
        let said = place.log.tail();
        let last = |word: &str| said.lines().rev().find_map(|line| line.strip_prefix(word).map(str::to_owned));
        match checked {
            Ok(()) => {
                place.notes.extend(last("skipped: ").map(|why| format!("Not checked in Azure's worker: {why}.")));
                Ok(())
            }
            // The program of the check has told the reason in a line of its own.
            Err(error) if error.reason == "BuildFailed" => {
                let why = last("error: ").unwrap_or(error.message);
                Err(BuildError { message: why, reason: "CheckFailed", ..error })
            }
            Err(error) => Err(error),
        }
    }

    async fn check_python(&self, place: &Workplace<'_>, tools: &PythonTools, app: &Path) -> Result<(), BuildError> {
        let worker = self.azure_worker(place, tools).await?;
        let script = place.folder.join("check.py");
        let mut file = fresh(&script)?;
        if let Some(variables) = awkward(&place.spec.env) {
            writeln!(file, "import os\nos.environ.update({variables})")?;
        }
        file.write_all(PYTHON.as_bytes())?;
        let mut words: Vec<OsString> = ["-s", "-B", "-u"].map(Into::into).to_vec();
        words.extend([script.into(), app.into(), worker.clone().into(), probe(place).into()]);
        let command = StepCommand { name: "azure_functions_worker", program: &tools.python, arguments: words };
        self.ask(place, tools.image.as_deref(), command, app, worker).await
    }

    async fn check_node(&self, place: &Workplace<'_>, tools: &NodeTools, app: &Path) -> Result<(), BuildError> {
        let script = place.folder.join("check.cjs");
        let mut file = fresh(&script)?;
        if let Some(variables) = awkward(&place.spec.env) {
            writeln!(file, "'use strict';\nObject.assign(process.env, {variables});")?;
        }
        file.write_all(NODE.as_bytes())?;
        let words = vec![script.into(), app.into(), probe(place).into()];
        let command = StepCommand { name: "@azure/functions", program: &tools.node, arguments: words };
        self.ask(place, tools.image.as_deref(), command, app, app.to_owned()).await
    }

    async fn ask(
        &self,
        place: &Workplace<'_>,
        image: Option<&str>,
        command: StepCommand<'_>,
        at: &Path,
        library: PathBuf,
    ) -> Result<(), BuildError> {
        // The environment that the function will have, and nothing of ours.
        let variables = place.spec.env.iter().filter(|(_, value)| fits_a_line(value));
        let mut environment: Vec<(OsString, OsString)> =
            variables.map(|(name, value)| (name.into(), value.into())).collect();
        environment
            .extend([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()), ("HOME".into(), place.home()?.into())]);
        let step = Step {
            name: command.name,
            function: place.spec.name.as_str(),
            program: command.program,
            image,
            arguments: command.arguments,
            environment,
            folder: &place.folder,
            at,
            writable: Vec::new(),
            readable: vec![library],
            // As on Azure: code may load its model from elsewhere. What listens on this machine alone is not there, either.
            network: Network::Own,
            limit: CHECK_TIMEOUT,
        };
        self.sandbox.run(step, place.log).await
    }

    /// Folder of the worker's library for the programs of a build, installed once.
    async fn azure_worker(&self, place: &Workplace<'_>, tools: &PythonTools) -> Result<PathBuf, BuildError> {
        // Wheels of one image are none of another's.
        let digest = crate::deployment::digest(tools.key().as_bytes());
        let name = format!("azure-worker-{}", digest.trim_start_matches("sha256:"));
        let kept = self.config.root.join("packages").join(name);
        if kept.is_dir() {
            return Ok(kept);
        }
        let made = place.folder.join("worker");
        self.install(place, tools, Wheels::Host, BESIDE.map(Into::into).to_vec(), &made).await?;
        self.install(place, tools, Wheels::Host, vec!["--no-deps".into(), WORKER.into()], &made).await?;
        match fs_err::rename(&made, &kept) {
            // Another build was faster.
            Err(_) if kept.is_dir() => Ok(kept),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(kept),
        }
    }
}

/// True if an app has libraries that only Azure's machines load.
fn has_native(app: &Path) -> Result<bool, BuildError> {
    Ok(Tree::list(app)?.iter().any(|file| file.path.ends_with(".so")))
}

/// The probe of the spec; empty where it has none.
fn probe(place: &Workplace<'_>) -> String {
    place.spec.probe.as_ref().map(ToString::to_string).unwrap_or_default()
}

/// Variables with several lines, as JSON, which is an object of JavaScript and a dictionary of Python, too: the program of the check
/// sets them, as podman takes one line for each.
fn awkward(env: &BTreeMap<String, String>) -> Option<String> {
    let awkward: BTreeMap<_, _> = env.iter().filter(|(_, value)| !fits_a_line(value)).collect();
    (!awkward.is_empty()).then(|| serde_json::json!(awkward).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_with_libraries_is_known() {
        let app = tempfile::tempdir().expect("a folder");
        fs_err::create_dir(app.path().join("numpy")).expect("made");
        fs_err::write(app.path().join("numpy/core.py"), "").expect("written");
        assert!(!has_native(app.path()).expect("read"));
        fs_err::write(app.path().join("numpy/core.cpython-311-x86_64-linux-gnu.so"), "").expect("written");
        assert!(has_native(app.path()).expect("read"));
    }

    #[test]
    fn variables_with_several_lines_are_set_by_the_program() {
        let env =
            [("A", "b"), ("KEY", "-----BEGIN\n\"x\"\r\n")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(awkward(&BTreeMap::from(env)).as_deref(), Some(r#"{"KEY":"-----BEGIN\n\"x\"\r\n"}"#));
        assert_eq!(awkward(&BTreeMap::from([("A".to_owned(), "b".to_owned())])), None);
    }
}
