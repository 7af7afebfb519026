//! `berth card check --run`: a worker of one model, here, that does with the folder what a worker of a fleet does with a commit.
//!
//! ```text
//! folder ──▶ a commit in a repository of its own ──▶ berth_worker: code, environment, artifact, load, validation ──▶ Ready
//!                                                                                                 └──▶ one request
//! ```
//! Nothing is skipped and nothing is imitated: what passes here passes on a worker with the same Python and the same access
//! to packages and weights.

mod log_printer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_git::{Draft, Edit, Git, Identity, Repository, Stop};
use berth_mesh::local::LocalReplicas;
use berth_spec::{
    AssignmentChange, ByteSize, Deployment, Failure as LoadFailure, FromController, Generation, InventoryChange,
    ModelCard, Origin, PinnedCard, Placed, Residency, Revision, Serving, Time, WorkerId, WorkerLimits,
    deployment::{Labels, Warmup},
    manifest::{self, ParseContext},
};
use berth_worker::WorkerLink;
use clap::Args;
use fs_err as fs;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{data::DataFolder, failure::Failure, terminal::size};

/// Limit for git to commit the folder. Allows for large folders on slow disks.
const SNAPSHOT: Duration = Duration::from_secs(60);

/// Largest folder of model code in bytes. Finds weights that were left in the folder before they are copied.
const MAX_FOLDER_BYTES: u64 = 256 << 20;

/// The memory that a card without `resources` gets here.
const MEMORY: ByteSize = ByteSize::gib(4);

/// Silence after which the current step is shown again, so that people know that it still runs.
const REPEAT_STEP_AFTER: Duration = Duration::from_secs(20);

/// Entries that are not part of a model's code.
const LEFT_OUT: [&str; 5] = [".git", "__pycache__", ".venv", ".pytest_cache", "node_modules"];

#[derive(Debug, Clone, Args)]
pub(super) struct TrialArgs {
    /// Run all steps of a worker: environment, weights, load, validation inference
    #[arg(long)]
    pub(super) run: bool,
    /// Use these weights instead of the card's
    #[arg(long, value_name = "FILE", requires = "run")]
    artifact: Option<PathBuf>,
    /// Then send this request (a JSON file that matches the card's input_schema) and print the response
    #[arg(long, value_name = "FILE", requires = "run")]
    request: Option<PathBuf>,
    /// uv program, which creates environments [default: searched in the usual places]
    // It may be set for all commands, so it asks for no `--run`.
    #[arg(long, value_name = "FILE", env = "BERTH_UV")]
    uv: Option<PathBuf>,
    /// Cache folder for environments and weights [default: ~/.cache/berth/card]
    #[arg(long, value_name = "DIR", requires = "run")]
    data: Option<PathBuf>,
}

/// Prints a step or a response.
pub(super) type Tell = fn(&str) -> io::Result<()>;

/// Loads the card's model from `folder`, and tells what it does.
pub(super) fn run(args: &TrialArgs, folder: &Path, card: ModelCard, tell: Tell) -> Result<(), Failure> {
    // What is wrong with the request is better known before the load than after it.
    let request = args.request.as_deref().map(fs::read).transpose()?;
    log_printer::show();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| Failure::doing("cannot start the runtime", e))?;
    let scratch = tempfile::tempdir()?;
    let pinned = pin(folder, card, args.artifact.as_deref(), &scratch.path().join("code.git"))?;
    let done = runtime.block_on(load(args, pinned, request, tell));
    let done = done.map_err(|failure| failure.with(|text| at_home(text, folder)));
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

/// The card as a registry would pin it, with the folder as it lies there for its code, in a repository at `place`.
pub(crate) fn pin(
    folder: &Path,
    mut card: ModelCard,
    artifact: Option<&Path>,
    place: &Path,
) -> Result<PinnedCard, Failure> {
    let (stop, git) = (Stop::within(SNAPSHOT), Arc::new(Git::new(std::env::vars_os())));
    let repository = Repository::create(git, place, "main", &stop)?;
    let mut edits = Vec::new();
    collect(folder, "", &mut edits, &mut 0)?;
    let draft = Draft {
        edits,
        author: Identity { name: "berth card check".to_owned(), email: "berth@localhost".to_owned() },
        time: 0,
        message: "The folder as it lies there".to_owned(),
        trailers: Vec::new(),
        signing: None,
    };
    let commit = repository.build(&draft, None, &stop)?;
    let commit = commit.ok_or_else(|| Failure::NotFound(format!("{} holds no files", folder.display())))?.to_string();
    // No branch names it: it is fetched by its name alone.
    repository.configure("uploadpack.allowAnySHA1InWant", "true", &stop)?;
    card.code.repository = format!("file://{}", fs::canonicalize(place)?.display());
    card.code.reference.clone_from(&commit);
    if let Some(artifact) = artifact {
        let weights = std::fs::canonicalize(artifact)
            .map_err(|e| Failure::NotFound(format!("--artifact {}: {e}", artifact.display())))?;
        card.artifacts.model_path = format!("file://{}", weights.display());
    }
    let repository = card.code.repository.clone();
    Ok(PinnedCard { reference: commit.clone(), commit: commit.clone(), code_commit: commit, repository, card })
}

fn collect(folder: &Path, prefix: &str, edits: &mut Vec<Edit>, bytes: &mut u64) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let (kind, path) = (entry.file_type()?, format!("{prefix}{name}"));
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), edits, bytes)?;
        } else if kind.is_file() {
            *bytes += entry.metadata()?.len();
            if *bytes > MAX_FOLDER_BYTES {
                let message = format!(
                    "the folder is larger than {}: keep weights and data outside of it",
                    size(MAX_FOLDER_BYTES)
                );
                return Err(Failure::Failed(message));
            }
            edits.push(Edit { path, content: Some(fs::read(entry.path())?) });
        }
    }
    Ok(())
}

/// The warm-up of a check: a request that is made up has to be answered, so that a broken card is found here.
fn proof(warmup: &Warmup) -> Warmup {
    match warmup {
        Warmup::Generated => Warmup::Required,
        other => other.clone(),
    }
}

async fn load(args: &TrialArgs, pinned: PinnedCard, request: Option<Vec<u8>>, tell: Tell) -> Result<(), Failure> {
    let deployment = declare(&pinned)?;
    let revision = Arc::new(Revision::of(&deployment));
    let local = Arc::new(LocalReplicas::default());
    let data = folder(args)?;
    // Another check at the same time would clear away what this one has made so far.
    let _alone = DataFolder::take(&data)?;
    let worker = berth_worker::build(config(args, &data)?, Arc::clone(&local), &mut Registry::default());
    let worker = worker.map_err(|fault| Failure::Failed(fault.to_string()))?;
    let (assign, assignments) = mpsc::channel(4);
    let (reports, mut reported) = mpsc::channel(64);
    let stop = CancellationToken::new();
    let running = crate::node::running::spawn(worker.run(WorkerLink { assignments, reports }, stop.clone()));
    let claim = deployment.spec.memory.unwrap_or(MEMORY);
    let serving = Arc::new(Serving {
        deployment: deployment.name.clone(),
        warmup: proof(&deployment.spec.warmup),
        concurrency: deployment.spec.concurrency,
        batching: deployment.spec.batching,
        drain_timeout: Duration::ZERO,
    });
    let placed = Placed { revision: Arc::clone(&revision), claim, gpu: None, urgent: true, serving };
    let limits = WorkerLimits::default();
    let change =
        AssignmentChange { generation: Generation(1), base: None, limits, set: vec![placed], unset: Vec::new() };
    let told = async {
        assign.send(FromController::Attached).await.ok();
        assign.send(FromController::Assigned(change)).await.ok();
        follow(&mut reported, tell).await.map_err(|(failure, step)| hinted(failure, &step, args.artifact.is_some()))
    };
    let done = match told.await {
        Ok(()) => answer(request, &local, &revision, tell).await,
        Err(failure) => Err(failure),
    };
    stop.cancel();
    // Its last report wants to be heard.
    while reported.recv().await.is_some() {}
    let _stopped = running.await;
    done
}

/// A deployment of this card alone.
fn declare(pinned: &PinnedCard) -> Result<Deployment, Failure> {
    let resources = pinned.card.resources.as_ref();
    let memory = resources.and_then(|resources| resources.memory_bytes()).unwrap_or(MEMORY);
    let mut card = serde_json::to_value(pinned).map_err(|e| Failure::doing("the card cannot be written", e))?;
    let document = json!({
        "apiVersion": "berth.dev/v1",
        "kind": "ModelDeployment",
        "metadata": {"name": "card"},
        "spec": {
            "model": {"format": "python", "card": card.take()},
            "resources": {"memory": memory.0},
        },
    });
    let context = ParseContext { file: "the card".to_owned(), base: None, ..ParseContext::default() };
    let parsed = manifest::from_value(&document, &context)
        .map_err(|errors| Failure::Failed(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    Ok(Deployment {
        name: parsed.name,
        generation: Generation(1),
        labels: Labels::default(),
        origin: Origin::API,
        created: Time::ZERO,
        deleting: false,
        resource_version: 0,
        spec: parsed.spec,
        digest: None,
        artifact: None,
    })
}

/// Folder for environments and weights.
fn folder(args: &TrialArgs) -> Result<PathBuf, Failure> {
    let cache = || {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Some(named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?.join("berth/card"))
    };
    let nowhere = || Failure::Usage("neither HOME nor XDG_CACHE_HOME is set: say --data DIR".to_owned());
    args.data.clone().or_else(cache).ok_or_else(nowhere)
}

fn config(args: &TrialArgs, data: &Path) -> Result<berth_worker::Config, Failure> {
    let name = WorkerId::new("here").map_err(|e| Failure::Failed(e.to_string()))?;
    let mut config = berth_worker::Config::new(name, data);
    config.credentials = std::env::vars().filter(|(name, _)| berth_worker::Config::is_credential(name)).collect();
    config.isolation = crate::settings::isolation();
    config.cards = berth_worker::prepare::Settings {
        uv: args.uv.clone(),
        local_repositories: true,
        environment: std::env::vars_os().collect(),
        ..berth_worker::prepare::Settings::default()
    };
    Ok(config)
}

/// Prints each step when it begins, until the model is ready or has failed.
///
/// # Errors
/// What failed, and at which step.
async fn follow(reported: &mut mpsc::Receiver<InventoryChange>, tell: Tell) -> Result<(), (Failure, String)> {
    let (mut told, started) = (String::new(), Instant::now());
    let mut last = started;
    loop {
        let Ok(report) = timeout(REPEAT_STEP_AFTER, reported.recv()).await else {
            let line = format!("{:>6.1} s  still {told}\n", started.elapsed().as_secs_f64());
            tell(&line).map_err(|error| (error.into(), told.clone()))?;
            continue;
        };
        let Some(report) = report else { break };
        for (_, residency) in report.replicas {
            let step = match &residency {
                None | Some(Residency::Queued | Residency::Draining { .. }) => continue,
                Some(Residency::Preparing(step)) => format!("preparing: {}", step.as_str().replace('_', " ")),
                Some(Residency::Failed(failure)) => return Err((failed(failure), told)),
                Some(Residency::Ready(ready)) => {
                    let phases = &ready.phases;
                    let note = ready.note.as_ref().map(|note| format!("\n  {note}")).unwrap_or_default();
                    let text = format!(
                        "{:>6.1} s  ready: {} of memory; fetched in {:.0} ms, loaded in {:.0} ms, validated in {:.0} ms{note}\n",
                        started.elapsed().as_secs_f64(),
                        size(ready.memory.0),
                        phases.fetch_ms,
                        phases.load_ms,
                        phases.validate_ms,
                    );
                    return tell(&text).map_err(|error| (error.into(), told));
                }
                Some(other) => other.as_str().to_lowercase(),
            };
            if step != told {
                let line = format!("{:>6.1} s  {step}\n", started.elapsed().as_secs_f64());
                tell(&line).map_err(|error| (error.into(), step.clone()))?;
                (told, last) = (step, Instant::now());
            } else if let Some(Residency::Preparing(step)) = &residency
                && last.elapsed() >= REPEAT_STEP_AFTER
            {
                let line = format!("{:>6.1} s  still preparing: {step}\n", started.elapsed().as_secs_f64());
                tell(&line).map_err(|error| (error.into(), told.clone()))?;
                last = Instant::now();
            }
        }
    }
    Err((Failure::Failed("the worker ended by itself, please report it".to_owned()), told))
}

/// Before weights are uploaded, they are on this machine: whoever tries a card then is told how to say so.
fn hinted(failure: Failure, step: &str, given: bool) -> Failure {
    if step != "fetching" || given {
        return failure;
    }
    failure.with(|text| format!("{text}\n  help: `--artifact FILE` takes weights from here"))
}

/// A traceback names files of the checkout; whoever mends them has them in `folder`.
fn at_home(text: &str, folder: &Path) -> String {
    let mut parts = text.split('"');
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let file = part.split_once("/prepared/checkouts/").and_then(|(_, rest)| rest.split_once("/files/"));
        let file = file.filter(|(name, path)| !name.contains('/') && !path.contains('\n'));
        told.push('"');
        match file {
            Some((_, path)) => told.push_str(&folder.join(path).display().to_string()),
            None => told.push_str(part),
        }
    }
    told
}

/// A failed load, with what the model's code said. Nothing is tried again here: people are waiting.
fn failed(failure: &LoadFailure) -> Failure {
    // A trace that only says the message again is of no use.
    let trace = failure.trace.as_deref().map(str::trim_end);
    let trace = trace.filter(|trace| trace.contains('\n') || !trace.contains(&failure.message));
    let trace = trace.map(|trace| format!("{trace}\n\n")).unwrap_or_default();
    Failure::Failed(format!("{trace}{} ({})", failure.message, failure.category.as_str()))
}

/// Sends the request, if there is one, and prints the answer.
async fn answer(
    request: Option<Vec<u8>>,
    local: &LocalReplicas,
    revision: &Revision,
    tell: Tell,
) -> Result<(), Failure> {
    let Some(body) = request else { return Ok(()) };
    let replica = local.get(&revision.id);
    let lease = replica.and_then(|replica| replica.acquire());
    let lease = lease.ok_or_else(|| Failure::Failed("the model is gone again".to_owned()))?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = lease.model().call(body.into(), deadline.into_std()).await;
    let answer = answer.map_err(|error| Failure::Failed(format!("the request failed: {error}")))?;
    Ok(tell(&format!("{}\n", String::from_utf8_lossy(&answer)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracebacks_name_files_of_the_folder() {
        let folder = Path::new("my-model");
        for (text, told) in [
            (
                "  File \"/c/prepared/checkouts/3f2a/files/src/model.py\", line 3",
                "  File \"my-model/src/model.py\", line 3",
            ),
            ("  File \"/usr/lib/python3/json.py\", line 3", "  File \"/usr/lib/python3/json.py\", line 3"),
            ("it said \"no\"", "it said \"no\""),
        ] {
            assert_eq!(at_home(text, folder), told);
        }
    }

    #[test]
    fn weights_that_cannot_be_fetched_may_be_here() {
        for (step, given, told) in [("fetching", false, true), ("fetching", true, false), ("loading", false, false)] {
            let failure = hinted(Failure::Failed("no".to_owned()), step, given).to_string();
            assert_eq!(failure.contains("--artifact FILE"), told, "{step} {given}: {failure}");
        }
    }
}
