//! The tasks of builds and deployments that run: cancelled by their ids; one that panics has failed.

use std::{collections::BTreeMap, time::Instant};

use tokio::task::{AbortHandle, JoinError};

use crate::controller::{Event, Failure, Retry, TaskId};

/// Part of a turn that a task does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TaskKind {
    Build,
    /// The deployment of what was built.
    Deployment,
}

/// A task that runs.
#[derive(Debug)]
struct RunningTask {
    kind: TaskKind,
    handle: AbortHandle,
    since: Instant,
}

/// All of them, one at most for each turn.
#[derive(Debug, Default)]
pub(crate) struct RunningTasks(BTreeMap<TaskId, RunningTask>);

impl RunningTasks {
    /// Notes a task that begins.
    pub(crate) fn begin(&mut self, id: TaskId, kind: TaskKind, handle: AbortHandle) {
        self.0.insert(id, RunningTask { kind, handle, since: Instant::now() });
    }

    /// Ends a task that is not wanted any more.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        if let Some(task) = self.0.remove(&id) {
            task.handle.abort();
        }
    }

    /// Forgets the task that gave an event.
    pub(crate) fn ended(&mut self, event: &Event) {
        if let Event::Built(id, _) | Event::Deployed(id, _) = event {
            self.0.remove(id);
        }
    }

    /// The event in place of that of a task that panicked; `None` where it was another task, or one that is not wanted any more.
    pub(crate) fn broke(&mut self, error: &JoinError) -> Option<Event> {
        let id = self.0.iter().find(|(_, task)| task.handle.id() == error.id()).map(|(id, _)| *id)?;
        let RunningTask { kind, since, .. } = self.0.remove(&id)?;
        let failure = |word: &str| Failure {
            reason: "Internal",
            message: format!("the {word} broke, please report it: {error}"),
            // A fault of ours may depend on what was there at that time.
            retry: Retry::Later,
            log_tail: String::new(),
            took: since.elapsed(),
        };
        Some(match kind {
            TaskKind::Build => Event::Built(id, Box::new(Err(failure("build")))),
            TaskKind::Deployment => Event::Deployed(id, Err(failure("deployment"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_control::store::Rev;
    use berth_spec::Time;
    use serde_json::json;
    use tokio::task::JoinSet;

    use super::*;
    use crate::{
        controller::{Built, Controller, Effect, Policy},
        deployment::Declared,
        status::{ArtifactStatus, Phase},
    };

    async fn broken() -> Option<Event> {
        panic!("no such wheel")
    }

    /// The event of a task that panics.
    async fn broke(id: TaskId, kind: TaskKind) -> Event {
        let (mut tasks, mut work) = (RunningTasks::default(), JoinSet::new());
        tasks.begin(id, kind, work.spawn(broken()));
        let error = work.join_next().await.expect("a task").expect_err("a panic");
        let event = tasks.broke(&error).expect("an event");
        assert!(tasks.broke(&error).is_none(), "told once");
        event
    }

    #[tokio::test]
    async fn a_task_that_panics_has_failed_and_is_tried_again() {
        let mut controller = Controller::new(Policy::default(), 7, BTreeMap::new());
        let object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": "python", "sourceUri": "file:/code/a.zip", "entrypoint": "handler.predict",
                     "target": {"platform": "local"}},
        });
        let declared = Declared::read("words", object.to_string().as_bytes(), Rev(1));
        controller.on(Event::Put("words".to_owned(), Box::new(declared)), Time(1));
        let phase = |controller: &Controller| {
            let view = controller.view().next().expect("a function");
            (view.status.phase, view.status.message.clone())
        };
        assert_eq!(phase(&controller).0, Phase::Building);

        controller.on(broke(TaskId(7), TaskKind::Build).await, Time(2));
        let (now, message) = phase(&controller);
        assert_eq!(now, Phase::Failed);
        assert!(message.contains("he build broke, please report it") && message.contains("no such wheel"), "{message}");
        let again = controller.wake_at().expect("another attempt");
        assert_eq!(again.since(Time(2)), Duration::from_secs(5));

        let effects = controller.on(Event::Tick, again);
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Build(TaskId(8), _))), "{effects:?}");
        let artifact = ArtifactStatus { digest: format!("sha256:{:064}", 1), size: 7 };
        let (log_tail, notes) = (String::new(), Vec::new());
        let built = Built { artifact, cached: false, restored: false, took: Duration::ZERO, log_tail, notes };
        controller.on(Event::Built(TaskId(8), Box::new(Ok(built))), again);
        assert_eq!(phase(&controller).0, Phase::Deploying);
        controller.on(broke(TaskId(8), TaskKind::Deployment).await, again);
        assert_eq!(phase(&controller).0, Phase::Failed);
        assert!(controller.wake_at().is_some(), "another attempt");
    }

    #[tokio::test]
    async fn a_task_that_is_not_wanted_any_more_fails_nothing() {
        let (mut tasks, mut work) = (RunningTasks::default(), JoinSet::new());
        tasks.begin(TaskId(7), TaskKind::Build, work.spawn(broken()));
        tasks.cancel(TaskId(7));
        let error = work.join_next().await.expect("a task").expect_err("an end");
        assert!(tasks.broke(&error).is_none());
    }
}
