//! The sources of a term as people see and reach them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::http::HeaderMap;
use berth_spec::{CredentialSet, WorkerId};

use super::{
    Request, Requests, SourceName, SourceState, SourceStatus, Webhook, WorkerSecret,
    requests::{RequestSender, requests},
};

/// The sources of a term: their status, and the way to them. Cheap to clone; clones are one.
#[derive(Clone, Default)]
pub struct Sources(Arc<Mutex<BTreeMap<SourceName, RunningSource>>>);

/// Credential sets, by worker.
pub(super) type CredentialSets = BTreeMap<WorkerId, Arc<CredentialSet>>;

struct RunningSource {
    status: SourceStatus,
    /// The sources are in the order of the configuration: where two give the same, the first counts.
    place: usize,
    secrets: Vec<WorkerSecret>,
    credentials: CredentialSets,
    requests: RequestSender,
    webhook: Option<Arc<dyn Webhook>>,
}

impl Sources {
    /// Enters a source that begins, or begins again.
    pub(super) fn open(&self, status: SourceStatus, place: usize) -> Requests {
        let (sender, receiver) = requests(status.paused);
        let mut sources = self.lock();
        let before = sources.remove(&status.name);
        let (secrets, credentials) = before.map(|before| (before.secrets, before.credentials)).unwrap_or_default();
        let entry = RunningSource { place, secrets, credentials, requests: sender, webhook: None, status };
        sources.insert(entry.status.name.clone(), entry);
        receiver
    }

    /// Changes the status of a source; does nothing if it does not run.
    pub(super) fn update(&self, name: &SourceName, change: impl FnOnce(&mut SourceStatus)) {
        if let Some(source) = self.lock().get_mut(name) {
            change(&mut source.status);
        }
    }

    pub(super) fn set_webhook(&self, name: &SourceName, webhook: Arc<dyn Webhook>) {
        if let Some(source) = self.lock().get_mut(name) {
            source.webhook = Some(webhook);
        }
    }

    pub(super) fn set_secrets(&self, name: &SourceName, secrets: Vec<WorkerSecret>) {
        if let Some(source) = self.lock().get_mut(name) {
            source.secrets = secrets;
        }
    }

    /// Takes the credentials of one source; gives those of all, the first source's where two name a worker.
    pub(super) fn set_credentials(&self, name: &SourceName, credentials: CredentialSets) -> CredentialSets {
        let mut sources = self.lock();
        if let Some(source) = sources.get_mut(name) {
            source.credentials = credentials;
        }
        let mut last_first: Vec<&RunningSource> = sources.values().collect();
        last_first.sort_by_key(|source| std::cmp::Reverse(source.place));
        last_first.into_iter().flat_map(|source| source.credentials.clone()).collect()
    }

    /// The status of every source of this term, in the order of names.
    #[must_use]
    pub fn list(&self) -> Vec<SourceStatus> {
        self.lock().values().map(RunningSource::shown).collect()
    }

    /// The status of a source; `None` if none of this name runs.
    #[must_use]
    pub fn get(&self, name: &SourceName) -> Option<SourceStatus> {
        self.lock().get(name).map(RunningSource::shown)
    }

    /// The secrets that sources give to workers, without their values.
    #[must_use]
    pub fn secrets(&self) -> Vec<WorkerSecret> {
        self.lock().values().flat_map(|source| source.secrets.clone()).collect()
    }

    /// Asks a source; false: there is none of this name.
    #[must_use]
    pub fn request(&self, name: &SourceName, request: Request) -> bool {
        let mut sources = self.lock();
        let Some(source) = sources.get_mut(name) else { return false };
        if matches!(request, Request::Pause | Request::Resume) {
            source.status.paused = request == Request::Pause;
        }
        source.requests.send(request)
    }

    /// Takes a webhook for a source: `None`: there is none of this name; an error: the webhook lacks the proof.
    pub(crate) fn webhook(&self, name: &SourceName, headers: &HeaderMap, body: &[u8]) -> Option<Result<(), String>> {
        let webhook = self.lock().get(name)?.webhook.clone();
        if let Some(Err(problem)) = webhook.map(|webhook| webhook.verify(headers, body)) {
            return Some(Err(problem));
        }
        self.request(name, Request::Webhook).then_some(Ok(()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SourceName, RunningSource>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningSource {
    /// The status with the problems of its secrets.
    fn shown(&self) -> SourceStatus {
        let mut status = self.status.clone();
        if status.paused {
            status.state = SourceState::Paused;
            status.next_check = None;
        }
        let problems: Vec<String> = status.problem.take().into_iter().chain(unusable(&self.secrets)).collect();
        status.problem = (!problems.is_empty()).then(|| problems.join("\n"));
        status
    }
}

/// Secrets that cannot be used, in a line for each worker and cause: those of one file mostly fail together.
fn unusable(secrets: &[WorkerSecret]) -> impl Iterator<Item = String> {
    let mut names: BTreeMap<(&WorkerId, &str), Vec<&str>> = BTreeMap::new();
    for secret in secrets {
        if let Some(problem) = &secret.problem {
            names.entry((&secret.worker, problem)).or_default().push(&secret.name);
        }
    }
    let line = |((worker, problem), names): ((&WorkerId, &str), Vec<&str>)| {
        format!("secrets of {worker} cannot be used ({}): {problem}", names.join(", "))
    };
    names.into_iter().map(line)
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

impl crate::Handle {
    /// The sources of this term.
    #[must_use]
    pub const fn sources(&self) -> &Sources {
        &self.sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str) -> SourceStatus {
        SourceStatus::new(SourceName::new(name).expect("a name"), "git", String::new())
    }

    #[test]
    fn requests_reach_the_source_of_that_name_and_a_pause_is_shown_at_once() {
        let sources = Sources::default();
        let (a, b) = (SourceName::new("a").expect("a name"), SourceName::new("b").expect("a name"));
        assert!(!sources.request(&a, Request::Sync), "there is none");
        let requests = sources.open(status("a"), 0);
        assert!(sources.request(&a, Request::Sync) && !sources.request(&b, Request::Sync));
        assert!(sources.request(&a, Request::Pause));
        let shown = sources.get(&a).expect("it is there");
        assert!(shown.paused && shown.state == SourceState::Paused && sources.list().len() == 1);
        drop(requests);
        assert!(!sources.request(&a, Request::Sync), "it has ended");
    }

    #[test]
    fn of_two_sources_that_give_credentials_to_a_worker_the_first_counts() {
        let sources = Sources::default();
        let _open: Vec<Requests> = [("z", 0), ("a", 1)].map(|(name, place)| sources.open(status(name), place)).into();
        let set = |number| {
            let generation = berth_spec::Generation(number);
            Arc::new(CredentialSet { generation, ..CredentialSet::default() })
        };
        let worker = |name| WorkerId::new(name).expect("a name");
        let name = |name| SourceName::new(name).expect("a name");
        sources.set_credentials(&name("z"), [(worker("one"), set(7))].into());
        let all = sources.set_credentials(&name("a"), [(worker("one"), set(1)), (worker("two"), set(2))].into());
        assert_eq!(all.values().map(|set| set.generation.0).collect::<Vec<_>>(), [7, 2]);
    }
}
