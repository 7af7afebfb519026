//! `berth serve`: one command for a file or folder with a model, and one line that says where it answers.
//!
//! ```text
//! what is it? ──▶ manifests, and a card where Python runs it ──▶ `berth up` ──▶ ready ──▶ a request that works, printed
//! ```
//! Nothing is imitated: what answers here is served as a fleet would serve it, from manifests that are kept in `--data`.

pub(crate) mod announce;
mod declare;
mod estimator;
mod what;

use std::path::{Path, PathBuf};

use clap::{Args, Parser};

use self::{declare::Choices, what::Content};
use crate::{
    failure::Failure,
    node::{self, Hooks, ServingHook, running::spawn},
    settings::{ServerArgs, source::SourceArgs},
    terminal,
    up::{self, UpArgs},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth serve model.onnx                     an ONNX model
  berth serve ./models                       every ONNX file of a folder, each loaded by its first request
  berth serve model.joblib                   a scikit-learn estimator (.joblib, .pkl)
  berth serve model.ubj                      an XGBoost model (.ubj, .json, .bst)
  berth serve model.txt                      a LightGBM model in text form
  berth serve model.pt                       a TorchScript model
  berth serve model.keras                    a Keras model, or a folder with a SavedModel
  berth serve ./mlruns/…/model               a folder that MLflow wrote
  berth serve ./my-model                     a folder with model-card.yaml
  berth serve model.joblib --requirements requirements.txt
  berth serve model.joblib --python 3.12     with another version of Python

The command prints a request to try as soon as the model answers. Models in Python without a card run with the packages of
--requirements, of a requirements.txt beside the file, or else of pinned defaults, which the command names; MLflow, PyTorch and
TensorFlow have no defaults. The server listens on loopback until Ctrl-C. Without --data, state and environments are kept in
~/.cache/berth/serve.")]
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

/// Data folder of `berth up`; another one is the user's choice.
const UP_DATA: &str = "./.berth";

/// Log filter of `berth up`; here one line tells what matters.
const UP_LOG: &str = "warn,berth=info";

/// Serves a file or folder until it is told to stop.
pub(crate) fn run(args: ServeArgs) -> Result<(), Failure> {
    let ServeArgs { what, model, requirements, python, artifact, mut server } = args;
    if server.config.is_some() {
        let message = "`berth serve` reads no file of settings (--config, BERTH_CONFIG): use flags, or `berth up`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let found = Content::of(&what)?;
    if server.data == Path::new(UP_DATA) {
        server.data = data()?;
    }
    if server.log == UP_LOG {
        "error,berth_worker=error".clone_into(&mut server.log);
    }
    server.local_repositories = true;
    let manifests = server.data.join("serve/manifests");
    let place = declare::Place { manifests: manifests.clone(), code: server.data.join("serve/code") };
    let sources = NoSources::try_parse_from(["berth"]).map_err(|error| Failure::Usage(error.to_string()))?;
    let settings = up::settings(UpArgs { folder: Some(manifests), advertise: None, server, source: sources.source })?;
    let prepare = move || {
        let choices = Choices {
            name: model.as_deref(),
            requirements: requirements.as_deref(),
            python: python.as_deref(),
            artifact: artifact.as_deref(),
        };
        let declared = declare::declare(&found, choices, &place)?;
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

/// The folder for state, environments and fetched artifacts: what was made for a model once is there the next time.
fn data() -> Result<PathBuf, Failure> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let cache =
        cache.ok_or_else(|| Failure::Usage("neither HOME nor XDG_CACHE_HOME is set: say --data DIR".to_owned()))?;
    Ok(cache.join("berth/serve"))
}
