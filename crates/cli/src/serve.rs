//! `berth serve`: one command for a file or folder with a model, and one line that says where it answers.
//!
//! ```text
//! what is it? ──▶ manifests, and a card where Python runs it ──▶ `berth up` ──▶ ready ──▶ a request that works, printed
//! ```
//! Nothing is imitated: what answers here is served as a fleet would serve it, from manifests that are kept in `--data`.

pub(crate) mod announce;
mod content;
mod declare;
mod estimator;

use std::path::{Path, PathBuf};

use clap::{Arg, Args, Parser};

use self::{content::Content, declare::Choices};
use crate::{
    failure::Failure,
    node::{self, Hooks, ServingHook, running::spawn},
    settings::{ServerArgs, source::SourceArgs},
    terminal,
    up::{self, UpArgs},
};

#[derive(Debug, Args)]
#[command(
    mut_args(of_serve),
    after_help = "Examples:
  berth serve model.onnx                     an ONNX model
  berth serve ./models                       every ONNX file of a folder, loaded on demand
  berth serve model.joblib                   a scikit-learn estimator (.joblib, .pkl)
  berth serve model.ubj                      an XGBoost model (.ubj, .json, .bst)
  berth serve model.txt                      a LightGBM model in text form
  berth serve model.pt                       a TorchScript model
  berth serve model.keras                    a Keras model, or a folder with a SavedModel
  berth serve ./mlruns/…/model               a folder that MLflow wrote
  berth serve ./my-model                     a folder with model-card.yaml
  berth serve model.joblib --requirements requirements.txt
  berth serve model.joblib --python 3.12     with another version of Python

The command prints a request to try as soon as the model answers. Models in Python without a card
run with the packages of --requirements, of a requirements.txt beside the file, or else with pinned
defaults, which the command names. PyTorch and TensorFlow have no defaults; an MLflow folder names
its own. The server listens on loopback until Ctrl-C. For two at once, give the second one its own
--http, --api and --data."
)]
pub(crate) struct ServeArgs {
    /// File or folder with the model
    #[arg(value_name = "WHAT")]
    what: PathBuf,
    /// Name of the model [default: the name of the file or folder]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// File with the packages of a model in Python without a card, each pinned: NAME==VERSION
    #[arg(long, value_name = "FILE")]
    requirements: Option<PathBuf>,
    /// Version of Python for a model without a card [default: that of an MLflow folder, else 3.11]
    #[arg(long, value_name = "VERSION")]
    python: Option<String>,
    /// Use these weights instead of those that a card names
    #[arg(long, value_name = "FILE")]
    artifact: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A command line without sources: the manifests are the only one.
#[derive(Debug, Parser)]
struct NoSources {
    #[command(flatten)]
    source: SourceArgs,
}

/// Data folder where none is chosen: what was made for a model once is there the next time, wherever the command is typed.
const DATA: &str = "~/.cache/berth/serve";

/// Log filter where none is chosen: one line tells what matters.
const LOG: &str = "error,berth_worker=error";

/// A setting of servers with the default that it has here; those that are decided here are not shown.
fn of_serve(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "data" => arg.default_value(DATA),
        "log" => arg.default_value(LOG),
        "config" | "local_repositories" => arg.hide(true),
        _ => arg,
    }
}

/// Serves a file or folder until it is told to stop.
pub(crate) fn run(args: ServeArgs) -> Result<(), Failure> {
    let ServeArgs { what, model, requirements, python, artifact, mut server } = args;
    if server.config.is_some() {
        let message = "`berth serve` reads no file of settings (--config, BERTH_CONFIG): use flags, or `berth up`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let found = Content::of(&what)?;
    if server.data == Path::new(DATA) {
        server.data = data()?;
    }
    server.local_repositories = true;
    let manifests = server.data.join("serve/manifests");
    let folders = declare::ServeFolders { manifests: manifests.clone(), code: server.data.join("serve/code") };
    let sources = NoSources::try_parse_from(["berth"]).map_err(|error| Failure::Usage(error.to_string()))?;
    let settings = up::settings(UpArgs { folder: Some(manifests), advertise: None, server, source: sources.source })?;
    let prepare = move || {
        let choices = Choices {
            name: model.as_deref(),
            requirements: requirements.as_deref(),
            python: python.as_deref(),
            artifact: artifact.as_deref(),
        };
        let declared = declare::declare(&found, choices, &folders)?;
        for note in &declared.notes {
            terminal::print(&format!("{note}\n"))?;
        }
        let serving: ServingHook = Box::new(move |started| {
            // Ends with the runtime.
            let _announcing = spawn(announce::announce(started, declared));
        });
        Ok(serving)
    };
    node::start(settings, Hooks { prepare: Some(Box::new(prepare)), quiet: true, ..Hooks::default() })
}

/// The folder that [`DATA`] means.
fn data() -> Result<PathBuf, Failure> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let cache =
        cache.ok_or_else(|| Failure::Usage("neither HOME nor XDG_CACHE_HOME is set: say --data DIR".to_owned()))?;
    Ok(cache.join("berth/serve"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_what_can_be_set_and_its_defaults() {
        let mut command = crate::args::command();
        let help = command.find_subcommand_mut("serve").map(|serve| serve.render_long_help().to_string());
        let help = help.expect("the command");
        assert!(help.contains(DATA) && help.contains(LOG), "{help}");
        assert!(!help.contains("--config") && !help.contains("--local-repositories"), "{help}");
    }
}
