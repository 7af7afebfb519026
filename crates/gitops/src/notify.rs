//! Sends messages by webhook, Slack and email, and commit statuses.
//!
//! ```text
//! Command ──▶ deduplicator of each target ──▶ its queue ──▶ delivery ── fails: it stays first, and is sent again after a pause
//! ```
//! It never holds anybody up: its queues are bounded, and what does not fit is counted. What has not arrived when the term
//! ends is told again by the next leader: [`DeliveryProgress`] says how far it is. Nothing here knows a credential of a worker; texts
//! come from incidents, which hold none.

mod delivery;
mod queue;
mod smtp;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_control::source::{Context, SourceBreaker};
use berth_registry::{
    Settings,
    commit_status::Mark,
    notify::{Deduplicator, Notice, Verdict},
    settings::{Notification, NotificationKind},
};
use berth_spec::Time;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

#[cfg(test)]
pub(crate) use self::delivery::sign;
use self::{
    delivery::{Delivery, DeliveryError, Marked},
    queue::{Attempt, Queue, THRESHOLD},
};
use crate::{GitConfig, SourceMetrics};

/// The most commands that may wait: a burst of incidents fits.
const COMMANDS: usize = 256;

/// The most deliveries at once, so that one slow target does not delay the others.
const AT_ONCE: usize = 16;

/// The time limit of one attempt: a chat answers within a second, and the next message of the target waits for it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The time for deliveries under way when the term ends; the next leader waits for it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The name of commit statuses in logs and metrics.
const MARKS: &str = "commit status";

/// A command to the notifier, handled in order.
#[derive(Debug)]
pub(crate) enum Command {
    /// These settings hold from now on.
    Settings(Box<Settings>),
    /// Earlier leaders have told this, and when; long ago, where nobody knows whether it arrived.
    Known(Vec<(Notice, Time)>),
    /// A message, numbered by who says it.
    Notice(u64, Box<Notice>),
    /// A mark beside a commit of the registry.
    Mark { sha: String, mark: Mark, words: String },
}

/// Numbers of the messages that were taken in and of those under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeliveryProgress {
    /// Up to this number they were taken in.
    taken: u64,
    /// Messages of these that are still on their way to somebody.
    waiting: BTreeSet<u64>,
}

impl DeliveryProgress {
    /// All up to this number are.
    #[cfg(test)]
    pub(crate) fn all_through(taken: u64) -> Self {
        Self { taken, waiting: BTreeSet::new() }
    }

    /// True if a message has arrived at every target, or was given up.
    pub(crate) fn is_through(&self, number: u64) -> bool {
        number <= self.taken && !self.waiting.contains(&number)
    }
}

/// Tells others; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct NotifierHandle {
    commands: mpsc::Sender<Command>,
    progress: watch::Receiver<DeliveryProgress>,
    metrics: SourceMetrics,
}

/// The receiving end of a [`NotifierHandle`].
pub(crate) struct NotifierReceiver {
    commands: mpsc::Receiver<Command>,
    progress: watch::Sender<DeliveryProgress>,
}

impl NotifierHandle {
    pub(crate) fn new(metrics: SourceMetrics) -> (Self, NotifierReceiver) {
        let (sender, commands) = mpsc::channel(COMMANDS);
        let (progress, seen) = watch::channel(DeliveryProgress::default());
        (Self { commands: sender, progress: seen, metrics }, NotifierReceiver { commands, progress })
    }

    pub(crate) fn send(&self, command: Command) {
        if self.commands.try_send(command).is_err() {
            self.metrics.notified("dropped");
            tracing::warn!(event = "notification_dropped", "too many messages wait to be sent");
        }
    }

    /// Messages that may be said at once: half of what there is room for, so that settings and marks always get through.
    pub(crate) fn room(&self) -> usize {
        self.commands.capacity() / 2
    }

    /// The numbers of messages now, for the alerts that are stored.
    pub(crate) fn progress(&self) -> DeliveryProgress {
        self.progress.borrow().clone()
    }

    /// Waits until nothing is sent any more; not for long, once the term is over.
    pub(crate) async fn ended(&mut self) {
        while self.progress.changed().await.is_ok() {}
    }
}

/// Sends messages to all targets, and marks commits; one loop for the term.
pub(crate) struct Notifier {
    config: Arc<GitConfig>,
    context: Context,
    client: reqwest::Client,
    /// `None`: nobody has said yet whom to tell.
    settings: Option<Settings>,
    /// By what makes them the same from commit to commit.
    targets: BTreeMap<String, Target>,
    known: Vec<(Notice, Time)>,
    /// The number of the last message that was taken in.
    taken: u64,
    marks: Queue<Marked>,
    marked: Option<Marked>,
    in_flight: JoinSet<(QueueId, Result<(), DeliveryError>)>,
}

/// A destination of messages.
struct Target {
    /// In logs and metrics: never its whole URL, which may be a secret.
    name: String,
    settings: Notification,
    deduplicator: Deduplicator,
    queue: Queue<QueuedMessage>,
}

/// A message that waits for one target.
#[derive(Debug, Clone)]
struct QueuedMessage {
    number: u64,
    notice: Arc<Notice>,
    /// The number of messages that were held back before this one.
    held: u64,
    /// The target has heard nothing of the matter yet.
    first: bool,
}

/// The queue that an attempt belongs to.
enum QueueId {
    Target(String),
    Marks,
}

impl Notifier {
    pub(crate) fn new(config: Arc<GitConfig>, context: Context) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            config,
            context,
            client,
            settings: None,
            targets: BTreeMap::new(),
            known: Vec::new(),
            taken: 0,
            marks: Queue::default(),
            marked: None,
            in_flight: JoinSet::new(),
        })
    }

    pub(crate) async fn run(mut self, receiver: NotifierReceiver, shutdown: CancellationToken) {
        let NotifierReceiver { mut commands, progress } = receiver;
        loop {
            let now = self.context.now();
            let wakes = self.targets.values().map(|target| target.queue.wake_at()).chain([self.marks_wake_at()]);
            let wake = wakes.flatten().min().filter(|_| self.in_flight.len() < AT_ONCE);
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(done) = self.in_flight.join_next() => self.delivered(done).await,
                command = commands.recv() => match command {
                    Some(command) => self.handle(command),
                    None => break,
                },
                () = sleep(wake.map(|at| at.since(now))) => {}
            }
            self.start();
            self.show(&progress);
        }
        let last = async {
            while let Some(done) = self.in_flight.join_next().await {
                self.delivered(done).await;
                self.show(&progress);
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, last).await.is_err() {
            tracing::info!(event = "notifications_cut", "the term has ended before all messages were taken");
        }
    }

    /// When a mark is due, if anybody takes marks.
    fn marks_wake_at(&self) -> Option<Time> {
        self.settings.as_ref()?.commit_status.as_ref()?;
        self.marks.wake_at()
    }

    /// Says how far messages have come.
    fn show(&self, progress: &watch::Sender<DeliveryProgress>) {
        let waiting = self.targets.values().flat_map(|target| target.queue.all()).map(|letter| letter.number).collect();
        let now = DeliveryProgress { taken: self.taken, waiting };
        progress.send_if_modified(|before| {
            let changes = *before != now;
            *before = now;
            changes
        });
    }

    fn handle(&mut self, command: Command) {
        let now = self.context.now();
        match command {
            Command::Settings(settings) => self.take_settings(*settings),
            Command::Known(notices) => {
                for target in self.targets.values_mut() {
                    notices.iter().for_each(|(notice, at)| target.deduplicator.recall(&target.settings, notice, *at));
                }
                self.known = notices;
            }
            Command::Notice(number, notice) => {
                let notice: Arc<Notice> = Arc::from(notice);
                self.taken = number;
                if notice.resolved {
                    // Its next beginning is news, also to a target that comes later.
                    self.known.retain(|(known, _)| !is_same(known, &notice));
                }
                for target in self.targets.values_mut() {
                    target.take(number, &notice, &self.config.metrics, now);
                }
            }
            Command::Mark { sha, mark, words } => {
                let marked = Marked { sha, mark, words };
                // While nobody knows whether there are marks, what became of a commit is kept until somebody does.
                let is_wanted = match &self.settings {
                    Some(settings) => settings.commit_status.is_some(),
                    None => mark != Mark::Pending,
                };
                if is_wanted && self.marked.as_ref() != Some(&marked) {
                    self.marks.withdraw(|waiting| waiting.sha == marked.sha);
                    self.marks.put(marked.clone(), now);
                    self.marked = Some(marked);
                }
            }
        }
    }

    fn take_settings(&mut self, settings: Settings) {
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
                    let mut deduplicator = Deduplicator::default();
                    self.known.iter().for_each(|(notice, at)| deduplicator.recall(settings, notice, *at));
                    Target { name, settings: settings.clone(), deduplicator, queue: Queue::default() }
                }
            };
            self.targets.insert(key, target);
        }
        let is_there = |name: &String| self.targets.values().any(|target| target.name == *name);
        for gone in before.into_values().map(|target| target.name).filter(|name| !is_there(name)) {
            self.config.metrics.no_breaker(&gone);
            self.context.update_status(|status| {
                status.breakers.remove(&gone);
            });
        }
        self.settings = Some(settings);
    }

    /// Sends what is due.
    fn start(&mut self) {
        let now = self.context.now();
        for (key, target) in &mut self.targets {
            if self.in_flight.len() >= AT_ONCE {
                return;
            }
            let Some(QueuedMessage { notice, held, .. }) = target.queue.next(now) else { continue };
            let (config, client, key) = (Arc::clone(&self.config), self.client.clone(), key.clone());
            let settings = target.settings.clone();
            self.in_flight.spawn(async move {
                let sent = match Delivery::of_notice(&config, &settings, &notice, held).await {
                    Ok(delivery) => delivery.deliver(&client).await,
                    Err(trouble) => Err(trouble),
                };
                (QueueId::Target(key), sent)
            });
        }
        let Some(settings) = self.settings.as_ref().and_then(|settings| settings.commit_status.clone()) else { return };
        let Some(marked) = self.marks.next(now) else { return };
        let (config, client) = (Arc::clone(&self.config), self.client.clone());
        self.in_flight.spawn(async move {
            let sent = match Delivery::of_mark(&config, &settings, &marked).await {
                Ok(delivery) => delivery.deliver(&client).await,
                Err(trouble) => Err(trouble),
            };
            (QueueId::Marks, sent)
        });
    }

    async fn delivered(&mut self, done: Result<(QueueId, Result<(), DeliveryError>), tokio::task::JoinError>) {
        let Ok((queue, sent)) = done else { return };
        let now = self.context.now();
        let attempt = sent.as_ref().map_or_else(|trouble| trouble.attempt, |()| Attempt::Taken);
        let (name, given_up, breaker) = match &queue {
            QueueId::Target(key) => {
                // Its settings have gone in between.
                let Some(target) = self.targets.get_mut(key) else { return };
                let given_up = target.queue.done(attempt, now);
                target.deduplicator.lost(u64::from(given_up));
                (target.name.clone(), given_up, breaker(&target.queue))
            }
            QueueId::Marks => {
                let given_up = self.marks.done(attempt, now);
                (MARKS.to_owned(), given_up, breaker(&self.marks))
            }
        };
        let failures = breaker.failures;
        self.config.metrics.breaker(&name, breaker.state);
        self.context.update_status(|status| {
            status.breakers.insert(name.clone(), breaker);
        });
        let Err(DeliveryError { problem, .. }) = sent else { return self.config.metrics.notified("sent") };
        self.config.metrics.notified(if given_up { "given_up" } else { "failed" });
        tracing::warn!(event = "notification_failed", target = name, problem, given_up);
        if given_up || failures == THRESHOLD {
            self.context
                .warn(
                    "NotificationFailed",
                    format!(
                        "{name}: {problem}; {}",
                        if given_up { "the message was given up" } else { "it is sent again" }
                    ),
                )
                .await;
        }
    }
}

/// The state of a queue as a circuit breaker.
fn breaker<T: Clone>(queue: &Queue<T>) -> SourceBreaker {
    let failures = queue.failures();
    SourceBreaker { state: queue.breaker(), failures, retry_at: queue.wake_at().filter(|_| failures > 0) }
}

impl Target {
    fn take(&mut self, number: u64, notice: &Arc<Notice>, metrics: &SourceMetrics, now: Time) {
        let knows = self.deduplicator.knows(notice);
        let held = match self.deduplicator.take(&self.settings, notice, now) {
            Verdict::Send { held } => held,
            Verdict::TooMany => return metrics.notified("held_back"),
            Verdict::NotForThem | Verdict::ToldLately => return,
        };
        let withdrawn = self.queue.withdraw(|waiting| is_same(&waiting.notice, notice));
        let held = held + withdrawn.iter().map(|letter| letter.held).sum::<u64>();
        // An end that waited is withdrawn as well: then the target takes the matter for open.
        let first = if withdrawn.is_empty() { !knows } else { withdrawn.iter().any(|letter| letter.first) };
        // Who has not heard of the beginning need not hear of the end; what got worse is told as it is now.
        if first && notice.resolved {
            return self.deduplicator.lost(held);
        }
        let letter = QueuedMessage { number, notice: Arc::clone(notice), held, first };
        self.deduplicator.lost(self.queue.put(letter, now));
    }
}

/// True if two messages concern the same thing.
fn is_same(one: &Notice, other: &Notice) -> bool {
    one.kind == other.kind && one.subject == other.subject
}

/// The name of a target in logs and metrics.
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

#[cfg(test)]
mod tests {
    use berth_registry::{
        notify::Recipient,
        settings::{NotificationAudience, NotificationSeverity},
    };
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::GitMetrics;

    fn target() -> Target {
        let settings = Notification {
            kind: NotificationKind::Webhook,
            url: Some("https://example.com/hook".to_owned()),
            secret_ref: None,
            to: Vec::new(),
            audience: NotificationAudience::All,
            min_severity: NotificationSeverity::Info,
        };
        Target { name: name(&settings), settings, deduplicator: Deduplicator::default(), queue: Queue::default() }
    }

    /// A letter for each event: a matter begins, gets worse or ends, and a message arrives.
    const BEGINS: char = 'b';
    const GETS_WORSE: char = 'w';
    const ENDS: char = 'e';
    const ARRIVES: char = 'a';

    /// The message that arrives when the target is well again.
    fn arrives(story: &str) -> String {
        let (mut target, metrics) = (target(), GitMetrics::register(&mut Registry::default()).of("git"));
        let word = |letter: &QueuedMessage| match (letter.notice.resolved, letter.notice.severity) {
            (true, _) => ENDS,
            (false, NotificationSeverity::Critical) => GETS_WORSE,
            (false, _) => BEGINS,
        };
        let (mut arrived, mut number) = (String::new(), 0);
        let mut deliver = |target: &mut Target| {
            while let Some(letter) = target.queue.next(Time::ZERO) {
                arrived.push(word(&letter));
                target.queue.done(Attempt::Taken, Time::ZERO);
            }
        };
        for what in story.chars() {
            if what == ARRIVES {
                deliver(&mut target);
                continue;
            }
            number += 1;
            let severity = match what {
                GETS_WORSE => NotificationSeverity::Critical,
                _ => NotificationSeverity::Error,
            };
            let notice = Notice {
                kind: "load-failure".to_owned(),
                subject: "iris".to_owned(),
                severity,
                recipients: vec![Recipient::Ops],
                owners: Vec::new(),
                at: Time::ZERO,
                title: String::new(),
                text: String::new(),
                facts: Vec::new(),
                resolved: what == ENDS,
            };
            target.take(number, &Arc::new(notice), &metrics, Time::ZERO);
        }
        deliver(&mut target);
        arrived
    }

    #[test]
    fn who_heard_of_a_beginning_hears_of_its_end_whatever_waited_in_between() {
        for (story, expected) in [
            ("bae", "be"),
            ("bawae", "bwe"),
            ("be", ""),
            ("bwe", ""),
            // It got worse while the target was away: the end was lost with that.
            ("bawe", "be"),
            // It ended and began again: what the target has heard last is that it began.
            ("baeb", "bb"),
            ("baebe", "be"),
            ("beb", "b"),
            ("bebe", ""),
        ] {
            assert_eq!(arrives(story), expected, "{story}");
        }
    }

    #[test]
    fn a_message_is_through_when_it_is_nowhere_any_more() {
        let progress = DeliveryProgress { taken: 3, waiting: BTreeSet::from([2]) };
        let through: Vec<u64> = (1..=4).filter(|number| progress.is_through(*number)).collect();
        assert_eq!(through, [1, 3], "2 waits, 4 was not taken in");
    }
}
