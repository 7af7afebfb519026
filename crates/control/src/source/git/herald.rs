//! Sends what people are told: messages by webhook, Slack and email, and the mark beside a commit.
//!
//! ```text
//! Word ──▶ desk of each target ──▶ its queue ──▶ parcel ── fails: it stays first, and is sent again after a pause
//! ```
//! It never holds anybody up: its queues are bounded, and what does not fit is counted. Nothing here knows a credential of a
//! worker; texts come from incidents, which hold none.

mod parcel;
mod queue;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_registry::{
    Settings,
    commit_status::Mark,
    notify::{Desk, Notice, Verdict},
    settings::{Notification, NotificationKind},
};
use berth_spec::{Event, Time, event::Severity};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

#[cfg(test)]
pub(super) use self::parcel::sign;
use self::{
    parcel::{Marked, Parcel, Trouble},
    queue::{Attempt, Queue, THRESHOLD},
};
use super::{GitConfig, SourceMetrics};
use crate::{Handle, source::SourceBreaker};

/// Words that may wait. Halved, a burst of incidents loses messages; doubled, a dead target holds twice the memory.
const WORDS: usize = 256;

/// Deliveries at once. Halved, one slow target delays the others; doubled, twice the connections.
const AT_ONCE: usize = 16;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long what is under way may take when the term ends. Halved, a message to a slow chat is lost; doubled, the next
/// leader waits that long.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What marks are called in logs and metrics.
const MARKS: &str = "commit status";

/// What is to be told.
#[derive(Debug)]
pub(super) enum Word {
    /// These settings hold from now on.
    Settings(Box<Settings>),
    /// Earlier leaders have told this.
    Known(Vec<Notice>),
    /// A message.
    Notice(Box<Notice>),
    /// A mark beside a commit of the registry.
    Mark { sha: String, mark: Mark, words: String },
}

/// Tells others; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Teller(mpsc::Sender<Word>, SourceMetrics);

impl Teller {
    pub(super) fn new(metrics: SourceMetrics) -> (Self, mpsc::Receiver<Word>) {
        let (sender, words) = mpsc::channel(WORDS);
        (Self(sender, metrics), words)
    }

    pub(super) fn say(&self, word: Word) {
        if self.0.try_send(word).is_err() {
            self.1.notified("dropped");
            tracing::warn!(event = "notification_dropped", "too many messages wait to be sent");
        }
    }
}

/// Sends.
pub(super) struct Herald {
    config: Arc<GitConfig>,
    handle: Handle,
    client: reqwest::Client,
    settings: Settings,
    /// By what makes them the same from commit to commit.
    targets: BTreeMap<String, Target>,
    known: Vec<Notice>,
    marks: Queue<Marked>,
    marked: Option<Marked>,
    flight: JoinSet<(Line, Result<(), Trouble>)>,
}

/// Where messages go.
struct Target {
    /// In logs and metrics: never its whole URL, which may be a secret.
    name: String,
    settings: Notification,
    desk: Desk,
    /// With how many others were held back before.
    queue: Queue<(Arc<Notice>, u64)>,
}

/// Whose attempt it was.
enum Line {
    Target(String),
    Marks,
}

impl Herald {
    pub(super) fn new(config: Arc<GitConfig>, handle: Handle) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            config,
            handle,
            client,
            settings: Settings::default(),
            targets: BTreeMap::new(),
            known: Vec::new(),
            marks: Queue::default(),
            marked: None,
            flight: JoinSet::new(),
        })
    }

    pub(super) async fn run(mut self, mut words: mpsc::Receiver<Word>, shutdown: CancellationToken) {
        loop {
            let now = self.handle.now();
            let wakes = self.targets.values().map(|target| target.queue.wake_at()).chain([self.marks.wake_at()]);
            let wake = wakes.flatten().min().filter(|_| self.flight.len() < AT_ONCE);
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(done) = self.flight.join_next() => self.delivered(done).await,
                word = words.recv() => match word {
                    Some(word) => self.word(word),
                    None => break,
                },
                () = sleep(wake.map(|at| at.since(now))) => {}
            }
            self.start();
        }
        let last = async { while self.flight.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORD, last).await.is_err() {
            tracing::info!(event = "notifications_cut", "the term has ended before all messages were taken");
        }
    }

    fn word(&mut self, word: Word) {
        let now = self.handle.now();
        match word {
            Word::Settings(settings) => self.take_settings(*settings, now),
            Word::Known(notices) => {
                for target in self.targets.values_mut() {
                    notices.iter().for_each(|notice| target.desk.recall(&target.settings, notice, now));
                }
                self.known = notices;
            }
            Word::Notice(notice) => {
                let notice = Arc::from(notice);
                for target in self.targets.values_mut() {
                    target.take(&notice, &self.config.metrics, now);
                }
            }
            Word::Mark { sha, mark, words } => {
                let marked = Marked { sha, mark, words };
                if self.settings.commit_status.is_some() && self.marked.as_ref() != Some(&marked) {
                    self.marks.withdraw(|waiting| waiting.sha == marked.sha);
                    self.marks.put(marked.clone(), now);
                    self.marked = Some(marked);
                }
            }
        }
    }

    fn take_settings(&mut self, settings: Settings, now: Time) {
        let mut before = std::mem::take(&mut self.targets);
        let mut names: BTreeMap<String, usize> = BTreeMap::new();
        for settings in &settings.notifications {
            let base = name(settings);
            let nth = names.entry(base.clone()).or_default();
            *nth += 1;
            let name = if *nth == 1 { base } else { format!("{base} {nth}") };
            let key = format!("{:?} {:?} {:?} {:?}", settings.kind, settings.url, settings.secret_ref, settings.to);
            let target = match before.remove(&key) {
                Some(target) => Target { name, settings: settings.clone(), ..target },
                None => {
                    let mut desk = Desk::default();
                    self.known.iter().for_each(|notice| desk.recall(settings, notice, now));
                    Target { name, settings: settings.clone(), desk, queue: Queue::default() }
                }
            };
            self.targets.insert(key, target);
        }
        let is_there = |name: &String| self.targets.values().any(|target| target.name == *name);
        for gone in before.into_values().map(|target| target.name).filter(|name| !is_there(name)) {
            self.config.metrics.no_breaker(&gone);
            self.handle.board.update(|view| {
                view.breakers.remove(&gone);
            });
        }
        self.settings = settings;
    }

    /// Sends what is due.
    fn start(&mut self) {
        let now = self.handle.now();
        for (key, target) in &mut self.targets {
            if self.flight.len() >= AT_ONCE {
                return;
            }
            let Some((notice, held)) = target.queue.next(now) else { continue };
            let (config, client, key) = (Arc::clone(&self.config), self.client.clone(), key.clone());
            let settings = target.settings.clone();
            self.flight.spawn(async move {
                let sent = match Parcel::of_notice(&config, &settings, &notice, held).await {
                    Ok(parcel) => parcel.deliver(&client).await,
                    Err(trouble) => Err(trouble),
                };
                (Line::Target(key), sent)
            });
        }
        let Some(settings) = self.settings.commit_status.clone() else { return };
        let Some(marked) = self.marks.next(now) else { return };
        let (config, client) = (Arc::clone(&self.config), self.client.clone());
        self.flight.spawn(async move {
            let sent = match Parcel::of_mark(&config, &settings, &marked).await {
                Ok(parcel) => parcel.deliver(&client).await,
                Err(trouble) => Err(trouble),
            };
            (Line::Marks, sent)
        });
    }

    async fn delivered(&mut self, done: Result<(Line, Result<(), Trouble>), tokio::task::JoinError>) {
        let Ok((line, sent)) = done else { return };
        let now = self.handle.now();
        let attempt = sent.as_ref().map_or_else(|trouble| trouble.attempt, |()| Attempt::Taken);
        let (name, given_up, breaker) = match &line {
            Line::Target(key) => {
                // Its settings have gone in between.
                let Some(target) = self.targets.get_mut(key) else { return };
                let given_up = target.queue.done(attempt, now);
                target.desk.lost(u64::from(given_up));
                (target.name.clone(), given_up, breaker(&target.queue))
            }
            Line::Marks => {
                let given_up = self.marks.done(attempt, now);
                (MARKS.to_owned(), given_up, breaker(&self.marks))
            }
        };
        let failures = breaker.failures;
        self.config.metrics.breaker(&name, breaker.state);
        self.handle.board.update(|view| {
            view.breakers.insert(name.clone(), breaker);
        });
        let Err(Trouble { problem, .. }) = sent else { return self.config.metrics.notified("sent") };
        self.config.metrics.notified(if given_up { "given_up" } else { "failed" });
        tracing::warn!(event = "notification_failed", target = name, problem, given_up);
        if given_up || failures == THRESHOLD {
            self.note(format!(
                "{name}: {problem}; {}",
                if given_up { "the message was given up" } else { "it is sent again" }
            ))
            .await;
        }
    }

    async fn note(&self, message: String) {
        let (at, severity) = (self.handle.now(), Severity::Warning);
        let event = Event { at, severity, reason: "NotificationFailed", message, deployment: None, worker: None };
        if let Err(error) = self.handle.note(event).await {
            tracing::debug!(event = "event_not_kept", %error);
        }
    }
}

/// How a queue stands.
fn breaker<T: Clone>(queue: &Queue<T>) -> SourceBreaker {
    let failures = queue.failures();
    SourceBreaker { state: queue.breaker(), failures, retry_at: queue.wake_at().filter(|_| failures > 0) }
}

impl Target {
    fn take(&mut self, notice: &Arc<Notice>, metrics: &SourceMetrics, now: Time) {
        let held = match self.desk.take(&self.settings, notice, now) {
            Verdict::Send { held } => held,
            Verdict::TooMany => return metrics.notified("held_back"),
            Verdict::NotForThem | Verdict::ToldLately => return,
        };
        let is_same =
            |(waiting, _): &(Arc<Notice>, u64)| waiting.kind == notice.kind && waiting.subject == notice.subject;
        // Who has not heard of the beginning need not hear of the end; what got worse is told as it is now.
        if self.queue.withdraw(is_same) > 0 && notice.resolved {
            return;
        }
        self.desk.lost(self.queue.put((Arc::clone(notice), held), now));
    }
}

/// What a target is called in logs and metrics.
fn name(target: &Notification) -> String {
    let kind = match target.kind {
        NotificationKind::Webhook => "webhook",
        NotificationKind::Slack => "slack",
        NotificationKind::Email => "email",
    };
    let url = target.url.as_deref().and_then(|url| url::Url::parse(url).ok());
    let host = url.as_ref().and_then(|url| url.host_str());
    let place = host.or(target.secret_ref.as_deref()).or(target.to.first().map(String::as_str)).unwrap_or_default();
    format!("{kind} {place}")
}

/// So long, or for ever.
async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
