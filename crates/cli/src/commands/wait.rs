//! `berth wait`: until a deployment is as it should be.
//!
//! ```text
//! connecting ──a server answers──▶ watching ──condition holds──▶ done
//!     ▲  ▲                            ├──it never will──▶ failed, with the reason
//!     ▲  ▲                            │
//!     │  └── again in RETRY ──────────┤ the watch broke off, or is old
//!     └─ nobody listens yet           └─ the deadline passes ──▶ timed out (or not found)
//! ```
//! On a terminal a line on standard error says meanwhile how far it is ([`progress`]); elsewhere an obstacle that stays is told once.

pub(crate) mod progress;

use std::{str::FromStr, time::Duration};

use berth_spec::{DeploymentName, manifest::closest};
use berth_wire::api::{DeploymentView, WatchEvent};
use clap::Args;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use futures::{StreamExt, pin_mut};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(crate) use self::progress::StatusLine;
use super::{
    namespace::{NamespaceArgs, list_in, path_of},
    resource::{Resource, Target},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments])), after_help = "Examples:
  berth wait iris --for=Available --timeout=60s
  berth wait iris --for=ScaledDown
  berth wait iris --for=condition=Scheduled
  berth wait iris --for=delete

Also waits for a server that is starting, and for a deployment that does not exist yet. Exit code 1
as soon as it is certain that the rollout failed, or that its deadline passed; 5 after the timeout,
3 if the deployment still does not exist.")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    target: Target,
    /// Phase (Available, ScaledDown, Failed, …), condition=TYPE[=STATUS], or delete
    #[arg(long = "for", value_name = "WHAT", default_value = "Available", add = ArgValueCandidates::new(known))]
    until: Until,
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::settings::duration)]
    timeout: Duration,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const PHASES: [&str; 7] =
    ["Available", "Progressing", "Degraded", "Failed", "ScheduleFailed", "ScaledDown", "Terminating"];

/// Conditions that a deployment may have.
const CONDITIONS: [&str; 5] = ["Available", "Progressing", "Scheduled", "Endpoint", "Validated"];

/// Words to wait for, of which a shell offers those that fit.
fn known() -> Vec<CompletionCandidate> {
    let conditions = CONDITIONS.iter().map(|kind| format!("condition={kind}"));
    let phases = PHASES.iter().map(|phase| (*phase).to_owned());
    phases.chain(conditions).chain(["delete".to_owned()]).map(CompletionCandidate::new).collect()
}

/// Pause before a server that did not answer is asked again. Short, for scripts that start a server and wait.
const RETRY: Duration = Duration::from_millis(200);

/// Interval at which the state is read again in spite of the watch, in case an event was lost.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Condition to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Until {
    Phase(String),
    Condition {
        kind: String,
        status: String,
    },
    Deleted,
    /// The revision that the spec asks for serves, with all its replicas; only `berth rollout status` waits for it.
    RolledOut,
}

impl FromStr for Until {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(condition) = text.strip_prefix("condition=") {
            let (kind, status) = condition.split_once('=').unwrap_or((condition, "True"));
            let Some(known) = CONDITIONS.iter().find(|known| known.eq_ignore_ascii_case(kind)) else {
                return Err(match closest(kind, CONDITIONS) {
                    Some(near) => format!("did you mean condition={near}?"),
                    None => format!("the conditions of a deployment are {}", CONDITIONS.join(", ")),
                });
            };
            return Ok(Self::Condition { kind: (*known).to_owned(), status: status.to_owned() });
        }
        if matches!(text, "delete" | "deleted") {
            return Ok(Self::Deleted);
        }
        if let Some(phase) = PHASES.iter().find(|phase| phase.eq_ignore_ascii_case(text)) {
            return Ok(Self::Phase((*phase).to_owned()));
        }
        Err(match closest(text, PHASES) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("write condition=TYPE, delete, or a phase: {}", PHASES.join(", ")),
        })
    }
}

impl Until {
    /// True if the condition holds. Only a status for the current spec counts.
    fn holds(&self, view: &DeploymentView) -> bool {
        let status = &view.status;
        status.observed_generation == view.metadata.generation
            && match self {
                Self::Phase(phase) => status.phase == *phase,
                Self::Condition { kind, status: wanted } => status
                    .conditions
                    .iter()
                    .any(|condition| condition.kind == *kind && condition.status.eq_ignore_ascii_case(wanted)),
                Self::RolledOut => match status.phase.as_str() {
                    "Available" => status.revision.serving.as_ref() == Some(&status.revision.wanted),
                    phase => phase == "ScaledDown" || canary(view).is_some(),
                },
                Self::Deleted => false,
            }
    }

    /// The reason why it will not hold before somebody changes something; `None`: it may still hold.
    fn never(&self, view: &DeploymentView) -> Option<String> {
        let status = &view.status;
        let wants_failure = match self {
            Self::Phase(phase) => !matches!(phase.as_str(), "Available" | "Progressing"),
            // One who waits for a condition to be false waits for a failure.
            Self::Condition { status, .. } => !status.eq_ignore_ascii_case("true"),
            Self::Deleted => true,
            Self::RolledOut => false,
        };
        if wants_failure || status.observed_generation != view.metadata.generation {
            return None;
        }
        let ended = |condition: &&berth_wire::api::ConditionView| {
            condition.kind == "Progressing"
                && condition.status == "False"
                && matches!(condition.reason.as_str(), "RolloutStuck" | "RolloutOverdue" | "LoadFailed")
        };
        let ended = status.conditions.iter().find(ended)?;
        // What went wrong is said once: with the replicas, or where nothing answers.
        let cause = status.conditions.iter().find(|other| other.kind == "Available" && other.status == "False");
        let message = cause.map_or(&ended.message, |cause| &cause.message);
        Some(format!("{message} ({})", ended.reason))
    }

    /// The text that says that it holds, by the state with which it does; `None`: there is no state any more.
    fn met(&self, view: Option<&DeploymentView>) -> String {
        if let (Self::RolledOut, Some(message)) = (self, view.and_then(canary)) {
            return format!("is at its canary: {message}");
        }
        match self {
            Self::Phase(phase) => format!("is {phase}"),
            Self::Condition { kind, status } => format!("has {kind}={status}"),
            Self::Deleted => "is gone".to_owned(),
            Self::RolledOut => "is rolled out".to_owned(),
        }
    }
}

/// The message of a canary that does as declared: it ends a rollout as far as that ends by itself.
fn canary(view: &DeploymentView) -> Option<&str> {
    let mut conditions = view.status.conditions.iter();
    let found = conditions.find(|condition| condition.kind == "Progressing" && condition.reason == "Canary");
    found.map(|condition| condition.message.as_str())
}

pub(crate) async fn run(args: &WaitArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let named = args.target.find(&client, &args.namespace, &[Resource::Deployments]).await?;
    until_all(&client, &named, &args.until, args.timeout).await
}

/// Waits for the deployments, one after the other, within one limit.
pub(super) async fn until_all(
    client: &Client,
    named: &[(Resource, String)],
    until: &Until,
    limit: Duration,
) -> Result<(), Failure> {
    let deadline = Instant::now() + limit;
    for (_, name) in named {
        let name = &DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
        let mut seen = WaitProgress::new(name);
        let waited = timeout_at(deadline, wait(client, name, until, &mut seen)).await;
        let WaitProgress { last, line, met, .. } = seen;
        drop(line);
        match waited {
            Ok(done) => done?,
            Err(_) => return Err(last.failure(name.as_str(), until, limit)),
        }
        terminal::print(&format!("deployment/{name} {}", met.unwrap_or_else(|| until.met(None))))?;
    }
    Ok(())
}

/// Latest state, and the status line.
struct WaitProgress {
    name: String,
    last: Last,
    /// Text that says how the wait ended, where it ended well.
    met: Option<String>,
    line: StatusLine,
    obstacles: progress::Obstacles,
}

impl WaitProgress {
    fn new(name: &DeploymentName) -> Self {
        let name = format!("deployment/{name}");
        let line = StatusLine::new(&name);
        Self { name, last: Last::Nothing, met: None, line, obstacles: progress::Obstacles::default() }
    }

    fn note(&mut self, last: Last) {
        if let Last::Found(view) = &last
            && let Some(text) = self.obstacles.note(&view.status, &self.line, Instant::now())
        {
            eprintln!("{} waits: it is {text}", self.name);
        }
        self.line.show(&match &last {
            Last::Nothing => String::new(),
            Last::Unreachable(_) => "no server answers yet".to_owned(),
            Last::Absent => "not declared yet".to_owned(),
            Last::Found(view) => progress::text(&view.status),
        });
        self.last = last;
    }
}

/// Latest state at the timeout.
enum Last {
    Nothing,
    Unreachable(Failure),
    Absent,
    Found(Box<DeploymentView>),
}

impl Last {
    fn failure(self, name: &str, until: &Until, limit: Duration) -> Failure {
        let after = format!("after {}", terminal::short(limit));
        match self {
            Self::Unreachable(failure) => Failure::TimedOut(format!("{failure} ({after})")),
            Self::Absent => Failure::NotFound(format!(
                "{after} there is no deployment {name:?}: `berth get deployments` lists them"
            )),
            Self::Nothing => Failure::TimedOut(format!("deployment/{name}: no answer {after}")),
            Self::Found(view) => {
                let status = &view.status;
                let count = format!(", {} of {} ready", status.replicas.ready, status.replicas.desired);
                let why = match progress::obstacle(status) {
                    // Its message begins with the count.
                    Some(degraded) if degraded.reason == "Degraded" => format!(": {}", degraded.message),
                    Some(obstacle) => format!("{count}: {} ({})", obstacle.message, obstacle.reason),
                    None => count,
                };
                Failure::TimedOut(format!(
                    "{} {after}; it is {}{why}. `berth describe {name}` says more",
                    match until {
                        Until::Phase(phase) => format!("deployment/{name} --for={phase} has not come true"),
                        Until::Condition { kind, status } => {
                            format!("deployment/{name} --for=condition={kind}={status} has not come true")
                        }
                        Until::Deleted => format!("deployment/{name} --for=delete has not come true"),
                        Until::RolledOut => format!("deployment/{name} is not rolled out"),
                    },
                    status.phase
                ))
            }
        }
    }
}

async fn wait(client: &Client, name: &DeploymentName, until: &Until, seen: &mut WaitProgress) -> Result<(), Failure> {
    loop {
        match client.get::<DeploymentView>(&path_of(name)).await {
            Ok(view) if until.holds(&view) => {
                seen.met = Some(until.met(Some(&view)));
                return Ok(());
            }
            Ok(view) if until.never(&view).is_some() => return Err(given_up(name, until, &view)),
            Ok(view) => seen.note(Last::Found(Box::new(view))),
            Err(Failure::NotFound(_)) if *until == Until::Deleted => return Ok(()),
            Err(Failure::NotFound(_)) => seen.note(Last::Absent),
            Err(failure @ (Failure::Failed(_) | Failure::TimedOut(_))) => {
                seen.note(Last::Unreachable(failure));
                sleep(RETRY).await;
                continue;
            }
            Err(other) => return Err(other),
        }
        let again = if seen.obstacles.is_pending() { progress::TELL_AFTER } else { LOOK_AGAIN };
        match timeout(again, follow(client, name, until, seen)).await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(over))) => return Err(over),
            Ok(Err(_)) | Err(_) => {}
        }
        sleep(RETRY).await; // the watch broke off or was refused: look again, but not in a tight loop
    }
}

/// The failure of a wait that is over.
fn given_up(name: &DeploymentName, until: &Until, view: &DeploymentView) -> Failure {
    let why = until.never(view).unwrap_or_default();
    Failure::Failed(format!("deployment/{name} is {}: {why}. `berth describe {name}` says more", view.status.phase))
}

/// Watches until it holds, or until it is certain that it will not, which is what is given then; an error means: look again.
async fn follow(
    client: &Client,
    name: &DeploymentName,
    until: &Until,
    seen: &mut WaitProgress,
) -> Result<Option<Failure>, Failure> {
    let namespace = name.to_namespace();
    let path = list_in(Resource::Deployments, Some(&namespace));
    let changes = client.watch::<WatchEvent>(&path, &[("watch", "true".to_owned())]).await?;
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        match change? {
            WatchEvent::Added(view) | WatchEvent::Modified(view) if view.metadata.name == name.name() => {
                if until.holds(&view) {
                    seen.met = Some(until.met(Some(&view)));
                    return Ok(None);
                }
                if until.never(&view).is_some() {
                    return Ok(Some(given_up(name, until, &view)));
                }
                seen.note(Last::Found(view));
            }
            WatchEvent::Deleted(view) if view.metadata.name == name.name() => {
                if *until == Until::Deleted {
                    return Ok(None);
                }
                seen.note(Last::Absent);
            }
            WatchEvent::Error(error) => return Err(Failure::Failed(error.message)),
            _ => {}
        }
    }
    Err(Failure::Failed("the watch ended".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_a_shell_offers_can_be_waited_for() {
        let words: Vec<String> = known().iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect();
        assert!(["Available", "condition=Scheduled", "delete"].iter().all(|word| words.contains(&(*word).to_owned())));
        for word in words {
            assert!(word.parse::<Until>().is_ok(), "{word}");
        }
    }

    #[test]
    fn what_to_wait_for_is_read_strictly() {
        assert_eq!("available".parse(), Ok(Until::Phase("Available".to_owned())));
        assert_eq!("delete".parse(), Ok(Until::Deleted));
        let scheduled = Until::Condition { kind: "Scheduled".to_owned(), status: "True".to_owned() };
        assert_eq!("condition=Scheduled".parse(), Ok(scheduled));
        assert_eq!("Avaliable".parse::<Until>(), Err("did you mean Available?".to_owned()));
        assert!("Ready=1".parse::<Until>().is_err());
        let refused = |text: &str| text.parse::<Until>().expect_err(text);
        assert_eq!(refused("condition=Avaliable"), "did you mean condition=Available?");
        assert!(refused("condition=Ready").contains("are Available, Progressing, Scheduled"));
    }

    #[test]
    fn a_failed_rollout_ends_the_wait_for_its_success() {
        let mut view: DeploymentView = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "generation": 2},
            "spec": {}, "status": {"phase": "Degraded", "observedGeneration": 2, "conditions": [
                {"type": "Progressing", "status": "False", "reason": "RolloutStuck", "message": "v2 was given up: bad file"}
            ]}
        }))
        .expect("a deployment");
        let until = |text: &str| text.parse::<Until>().expect("it reads");
        for text in ["Available", "condition=Available"] {
            assert!(until(text).never(&view).is_some_and(|why| why.contains("bad file")), "{text}");
        }
        assert!(Until::RolledOut.never(&view).is_some());
        for text in ["Degraded", "Failed", "delete", "condition=Progressing=False"] {
            assert_eq!(until(text).never(&view), None, "{text}");
        }
        view.metadata.generation = 3;
        assert_eq!(until("Available").never(&view), None, "the status is of an older spec");
        view.metadata.generation = 2;
        view.status.conditions[0].reason = "SurgeWaits".to_owned();
        assert_eq!(until("Available").never(&view), None, "there may be room later");
        view.status.conditions[0].reason = "RolloutOverdue".to_owned();
        assert!(until("Available").never(&view).is_some(), "there was none for as long as a rollout may take");
    }

    #[test]
    fn a_canary_ends_a_rollout_and_no_wait_for_the_model() {
        let mut view: DeploymentView = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "generation": 2},
            "spec": {}, "status": {"phase": "Progressing", "observedGeneration": 2, "conditions": [
                {"type": "Progressing", "status": "False", "reason": "Canary", "message": "iris@b gets 10 % of requests"}
            ]}
        }))
        .expect("a deployment");
        assert!(Until::RolledOut.holds(&view) && Until::RolledOut.never(&view).is_none());
        assert_eq!(Until::RolledOut.met(Some(&view)), "is at its canary: iris@b gets 10 % of requests");
        let available = Until::Phase("Available".to_owned());
        assert!(!available.holds(&view) && available.never(&view).is_none());
        view.status.conditions[0].reason = "RollingOut".to_owned();
        assert!(!Until::RolledOut.holds(&view));
        assert_eq!(Until::RolledOut.met(Some(&view)), "is rolled out");
    }

    #[test]
    fn a_limit_that_passes_tells_what_was_waited_for() {
        let view: DeploymentView = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "generation": 2},
            "spec": {}, "status": {"phase": "Degraded", "observedGeneration": 2, "replicas": {"desired": 2, "ready": 1}}
        }))
        .expect("a deployment");
        for (until, words) in [
            (Until::RolledOut, "deployment/iris is not rolled out after 3s; it is Degraded, 1 of 2 ready."),
            (Until::Deleted, "deployment/iris --for=delete has not come true after 3s"),
        ] {
            let failure = Last::Found(Box::new(view.clone())).failure("iris", &until, Duration::from_secs(3));
            assert!(failure.to_string().starts_with(words), "{failure}");
        }
        let mut waits = view;
        waits.status.conditions = vec![
            condition("Available", "True", "Degraded", "1 of 2 replicas answer; there is 1 worker: add a worker"),
            condition("Progressing", "False", "NoCapacity", "nothing moves until a worker can take it"),
        ];
        let failure = Last::Found(Box::new(waits)).failure("iris", &Until::RolledOut, Duration::from_secs(3));
        let cause = "it is Degraded: 1 of 2 replicas answer; there is 1 worker: add a worker. `berth";
        assert!(failure.to_string().contains(cause), "{failure}");
    }

    fn condition(kind: &str, status: &str, reason: &str, message: &str) -> berth_wire::api::ConditionView {
        berth_wire::api::ConditionView {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_status_of_an_older_spec_does_not_count() {
        let mut view: DeploymentView = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": "iris", "generation": 2},
            "spec": {}, "status": {"phase": "Available", "observedGeneration": 1}
        }))
        .expect("a deployment");
        let until = Until::Phase("Available".to_owned());
        assert!(!until.holds(&view));
        view.status.observed_generation = 2;
        assert!(until.holds(&view));
    }
}
