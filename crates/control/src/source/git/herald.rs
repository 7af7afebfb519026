//! Sends what people are told: messages by webhook, Slack and email, and the mark beside a commit.
//!
//! ```text
//! Word ──▶ desk of each target ──▶ delivery ── fails: a pause, three more times ──▶ given up, counted
//!                                     └── five in a row fail: the target is left alone for a minute
//! ```
//! It never holds anybody up: its queue is bounded, and what does not fit is counted. Nothing here knows a credential of a
//! worker; texts come from incidents, which hold none.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use berth_registry::{
    Settings,
    commit_status::{self, Mark},
    notify::{self, Desk, Notice, Verdict},
    settings::{CommitStatus, Notification, NotificationKind},
};
use berth_spec::{Secret, Time, worker::BreakerState};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{GitConfig, post};
use crate::{driver::Clock, source::Board};

/// Words that may wait. Halved, a burst of incidents loses messages; doubled, a dead target holds twice the memory.
pub(super) const WORDS: usize = 256;

/// Deliveries at once. Halved, one slow target delays the others; doubled, twice the connections.
const AT_ONCE: usize = 16;

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Pauses between attempts. Half of them: a chat that restarts misses the message; twice: it comes when it is old.
const PAUSES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

/// Failures in a row after which a target is left alone.
const THRESHOLD: u32 = 5;

/// How long it is left alone.
const OPEN_FOR: Duration = Duration::from_secs(60);

/// Bytes of a secret file.
const LARGEST_SECRET: u64 = 64 << 10;

/// What is to be told.
#[derive(Debug)]
pub(super) enum Word {
    /// These settings hold from now on.
    Settings(Box<Settings>),
    /// A message.
    Notice(Box<Notice>),
    /// A mark beside a commit of the registry.
    Mark { sha: String, mark: Mark, words: String },
}

/// Tells others; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Teller(mpsc::Sender<Word>);

impl Teller {
    pub(super) fn new() -> (Self, mpsc::Receiver<Word>) {
        let (sender, words) = mpsc::channel(WORDS);
        (Self(sender), words)
    }

    pub(super) fn say(&self, word: Word) {
        if self.0.try_send(word).is_err() {
            tracing::warn!(event = "notification_dropped", "too many messages wait to be sent");
        }
    }
}

/// Sends.
pub(super) struct Herald {
    config: Arc<GitConfig>,
    board: Board,
    clock: Clock,
    client: reqwest::Client,
    settings: Settings,
    desks: BTreeMap<String, Desk>,
    failing: BTreeMap<String, Failing>,
    flight: JoinSet<(String, Result<(), String>)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Failing {
    times: u32,
    until: Time,
}

/// One thing to be sent.
enum Parcel {
    Http { url: String, headers: Vec<(String, String)>, body: Vec<u8> },
    Mail(Box<post::Letter>),
}

impl Herald {
    pub(super) fn new(config: Arc<GitConfig>, board: Board, clock: Clock) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self {
            config,
            board,
            clock,
            client,
            settings: Settings::default(),
            desks: BTreeMap::new(),
            failing: BTreeMap::new(),
            flight: JoinSet::new(),
        })
    }

    pub(super) async fn run(mut self, mut words: mpsc::Receiver<Word>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = self.flight.join_next() => self.delivered(done),
                word = words.recv(), if self.flight.len() < AT_ONCE => match word {
                    Some(word) => self.word(word).await,
                    None => return,
                },
            }
        }
    }

    async fn word(&mut self, word: Word) {
        match word {
            Word::Settings(settings) => self.settings = *settings,
            Word::Notice(notice) => {
                for target in self.settings.notifications.clone() {
                    self.notice(&target, &notice).await;
                }
            }
            Word::Mark { sha, mark, words } => {
                if let Some(status) = self.settings.commit_status.clone() {
                    self.mark(&status, &sha, mark, &words).await;
                }
            }
        }
    }

    async fn notice(&mut self, target: &Notification, notice: &Notice) {
        let name = name(target);
        let now = (self.clock)();
        let verdict = self.desks.entry(name.clone()).or_default().take(target, notice, now);
        let held = match verdict {
            Verdict::Send { held } => held,
            Verdict::TooMany => return self.config.metrics.notified("held_back"),
            Verdict::NotForThem | Verdict::ToldLately => return,
        };
        match self.parcel(target, notice, held).await {
            Ok(parcel) => self.send(name, parcel, now),
            Err(problem) => self.refused(&name, &problem),
        }
    }

    async fn parcel(&self, target: &Notification, notice: &Notice, held: u64) -> Result<Parcel, String> {
        let cluster = &self.config.cluster;
        let secret = match &target.secret_ref {
            Some(name) => Some(self.secret(name).await?),
            None => None,
        };
        if target.kind == NotificationKind::Email {
            let email = notify::email(notice, cluster, held);
            return Ok(Parcel::Mail(Box::new(post::Letter::new(
                target,
                secret.as_ref(),
                &self.config.identity,
                &email,
            )?)));
        }
        let (url, key) = match (&target.url, secret) {
            (Some(url), key) => (url.clone(), key),
            (None, Some(url)) => (url.expose().trim().to_owned(), None),
            (None, None) => return Err("it is not said where to send it: add url or secretRef".to_owned()),
        };
        let body = match target.kind {
            NotificationKind::Slack => notify::slack(notice, cluster, held),
            _ => notify::webhook(notice, cluster, held),
        };
        let body = body.to_string().into_bytes();
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(key) = key {
            headers.push(("x-berth-signature".to_owned(), format!("sha256={}", sign(&key, &body))));
        }
        Ok(Parcel::Http { url, headers, body })
    }

    async fn mark(&mut self, settings: &CommitStatus, sha: &str, mark: Mark, words: &str) {
        const NAME: &str = "commit status";
        let name = NAME.to_owned();
        let repository = self.config.remote.shown();
        let request = match commit_status::request(settings, &repository, sha, mark, words) {
            Ok(request) => request,
            Err(problem) => return self.refused(&name, &problem),
        };
        let token = match &settings.secret_ref {
            Some(secret) => self.secret(secret).await,
            None => match self.config.credentials_for(&self.config.remote) {
                berth_git::Credentials::Token { token, .. } => Ok(Secret::new(token)),
                _ => Err("it needs a token: add commitStatus.secretRef, or --source-token-file".to_owned()),
            },
        };
        match token {
            Ok(token) => {
                let (header, value) = request.token.header(token.expose().trim());
                let mut headers =
                    vec![("content-type".to_owned(), "application/json".to_owned()), (header.to_owned(), value)];
                headers.extend(request.headers.into_iter().map(|(name, value)| (name.to_owned(), value)));
                let parcel = Parcel::Http { url: request.url, headers, body: request.body.to_string().into_bytes() };
                self.send(name, parcel, (self.clock)());
            }
            Err(problem) => self.refused(&name, &problem),
        }
    }

    /// A secret that `registry.yaml` names. Read each time: it may be replaced while we run.
    async fn secret(&self, name: &str) -> Result<Secret, String> {
        let folder = self.config.secrets.as_ref();
        let folder = folder
            .ok_or_else(|| format!("the secret {name} is not there: --registry-secrets FOLDER says where they are"))?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_name) {
            return Err(format!("{name:?} is no name of a secret: use letters, digits, dashes, dots"));
        }
        read_secret(&folder.join(name)).await
    }

    fn send(&mut self, name: String, parcel: Parcel, now: Time) {
        let failing = self.failing.get(&name).copied().unwrap_or_default();
        if failing.times >= THRESHOLD && now < failing.until {
            self.config.metrics.notified("breaker_open");
            return;
        }
        let client = self.client.clone();
        self.flight.spawn(async move {
            let mut pauses = PAUSES.iter();
            loop {
                let result = deliver(&client, &parcel).await;
                match (result, pauses.next()) {
                    (Err((_, true)), Some(pause)) => tokio::time::sleep(*pause).await,
                    (result, _) => return (name, result.map_err(|(problem, _)| problem)),
                }
            }
        });
    }

    fn delivered(&mut self, done: Result<(String, Result<(), String>), tokio::task::JoinError>) {
        let Ok((name, result)) = done else { return };
        match result {
            Ok(()) => {
                self.config.metrics.notified("sent");
                self.failing.remove(&name);
                self.show(&name, BreakerState::Closed);
            }
            Err(problem) => self.refused(&name, &problem),
        }
    }

    fn refused(&mut self, name: &str, problem: &str) {
        self.config.metrics.notified("failed");
        let failing = self.failing.entry(name.to_owned()).or_default();
        failing.times += 1;
        failing.until = (self.clock)() + OPEN_FOR;
        let open = failing.times >= THRESHOLD;
        tracing::warn!(event = "notification_failed", target = name, problem);
        self.show(name, if open { BreakerState::Open } else { BreakerState::Closed });
    }

    fn show(&self, name: &str, state: BreakerState) {
        self.config.metrics.breaker(name, state);
        self.board.update(|view| {
            view.breakers.insert(name.to_owned(), state);
        });
    }
}

/// What a target is called in logs and metrics: never its whole URL, which may be a secret.
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

/// Sends once; the flag says whether another attempt may succeed.
async fn deliver(client: &reqwest::Client, parcel: &Parcel) -> Result<(), (String, bool)> {
    match parcel {
        Parcel::Http { url, headers, body } => {
            let mut request = client.post(url).body(body.clone());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            // Without the URL: it may be a secret.
            let response = request.send().await.map_err(|error| (error.without_url().to_string(), true))?;
            let status = response.status();
            let passing = status.is_server_error() || status.as_u16() == 429;
            if status.is_success() { Ok(()) } else { Err((format!("the answer was {status}"), passing)) }
        }
        Parcel::Mail(letter) => letter.send().await.map_err(|problem| (problem, true)),
    }
}

async fn read_secret(path: &Path) -> Result<Secret, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let size = fs_err::metadata(&path).map_err(|error| error.to_string())?.len();
        if size > LARGEST_SECRET {
            return Err(format!("{} is larger than {LARGEST_SECRET} bytes", path.display()));
        }
        fs_err::read_to_string(&path).map(Secret::new).map_err(|error| error.to_string())
    });
    read.await.map_err(|error| error.to_string())?
}

/// HMAC-SHA-256 of a body, in hex.
pub(crate) fn sign(key: &Secret, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.expose().trim().as_bytes());
    hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
