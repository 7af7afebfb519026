//! A client of NATS, for queues and logs: publishing, requests and subscriptions over one connection.
//!
//! ```text
//! disconnected ──connected, subscribed again──▶ connected ──broken──▶ disconnected
//! ```
//! What waits when a connection breaks fails at once, and nothing is sent twice: jobs are stored with conditions, and whoever asked
//! decides what an unknown outcome means. A request that has waited too long is not sent later.

mod login;
mod wire;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::port::ServerStream;
use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::{AsyncBufRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{Notify, mpsc, oneshot},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use url::Url;

pub(crate) use self::wire::Message;
use self::wire::{ClientMessage, ServerMessage};
use crate::{
    broker::{Broker, TIMEOUT},
    tls,
};

/// Commands that wait for the connection: a burst of jobs; senders wait beyond that.
const WAITING: usize = 1_024;

/// Messages of one subscription that wait; more are dropped: a subscription gives hints.
const MAX_PENDING_MESSAGES: usize = 1_024;

/// Pause between two attempts to connect: a server that restarts is found within a second, and one that is down is not
/// flooded.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of questions for a sign of life, and the longest silence.
const PING_EVERY: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(50);

/// Bytes that are written at once, at most by one command more.
const BATCH: usize = 256 << 10;

/// Largest payload, where the server has not said it yet.
const PAYLOAD: usize = 1 << 20;

/// Reason why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum NatsError {
    #[error("nobody listens at the subject")]
    NoResponders,
    #[error("{0}")]
    Unreachable(String),
}

enum Command {
    Publish {
        subject: String,
        reply: Option<String>,
        payload: Bytes,
    },
    Request {
        subject: String,
        header: Option<(&'static str, String)>,
        payload: Bytes,
        answer: oneshot::Sender<Message>,
    },
    Subscribe {
        number: u64,
    },
    /// Told when all that came before is written to the connection.
    Flush {
        done: oneshot::Sender<()>,
    },
}

/// A connection that is made again when it breaks. Clones are the same one; it ends with the last of them.
#[derive(Clone)]
pub(crate) struct Nats {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

/// The inbox of answers that keep their own subjects.
pub(crate) struct Inbox {
    subject: String,
    messages: mpsc::Receiver<Message>,
}

/// State of the client and its driver.
struct Shared {
    /// Requests that wait for their answers, by number.
    requests: Mutex<HashMap<u64, oneshot::Sender<Message>>>,
    subscriptions: Mutex<HashMap<u64, (String, mpsc::Sender<Message>)>>,
    next: AtomicU64,
    payload: AtomicUsize,
    /// Told when the server asks for a sign of life.
    pinged: Notify,
    /// Reason why there is no connection; empty while there is one.
    trouble: Mutex<String>,
    /// Begin of the subjects that take answers.
    inbox: String,
}

/// The subscription that takes all answers.
const INBOX: u64 = 0;

impl Nats {
    /// The client, and what keeps its connection for as long as it is polled.
    pub(crate) fn new(broker: Broker) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (commands, waiting) = mpsc::channel(WAITING);
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            subscriptions: Mutex::default(),
            next: AtomicU64::new(INBOX + 1),
            payload: AtomicUsize::new(PAYLOAD),
            pinged: Notify::new(),
            trouble: Mutex::new("not connected yet".to_owned()),
            inbox: format!("_INBOX.{:032x}", rand::random::<u128>()),
        });
        let driver = Driver { broker, shared: Arc::clone(&shared), commands: waiting };
        (Self { commands, shared }, driver.run())
    }

    /// Largest payload of a message.
    pub(crate) fn max_payload(&self) -> usize {
        self.shared.payload.load(Relaxed)
    }

    async fn send(&self, command: Command) -> Result<(), NatsError> {
        match timeout(TIMEOUT, self.commands.send(command)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.shared.unreachable()),
        }
    }

    /// Sends a message, or loses it with the connection.
    pub(crate) async fn publish(&self, subject: String, payload: Bytes) -> Result<(), NatsError> {
        self.send(Command::Publish { subject, reply: None, payload }).await
    }

    /// A place for answers that keep their own subjects, as messages of a stream do.
    pub(crate) async fn inbox(&self) -> Result<Inbox, NatsError> {
        let subject = format!("_INBOX.{:032x}", rand::random::<u128>());
        let messages = self.subscribe(subject.clone()).await?;
        Ok(Inbox { subject, messages })
    }

    /// Sends a message and waits for the next one in a place for answers. It may be late, and answer the one before.
    pub(crate) async fn ask(&self, subject: String, payload: Bytes, inbox: &mut Inbox) -> Result<Message, NatsError> {
        if let Ok(late) = inbox.messages.try_recv() {
            return Ok(late);
        }
        self.send(Command::Publish { subject, reply: Some(inbox.subject.clone()), payload }).await?;
        match timeout(TIMEOUT, inbox.messages.recv()).await {
            Ok(Some(Message { status: Some(503), .. })) => Err(NatsError::NoResponders),
            Ok(Some(message)) => Ok(message),
            _ => Err(self.shared.unreachable()),
        }
    }

    /// Waits until all that was published before is written to the connection.
    pub(crate) async fn flush(&self) -> Result<(), NatsError> {
        let (done, written) = oneshot::channel();
        self.send(Command::Flush { done }).await?;
        match timeout(TIMEOUT, written).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(self.shared.unreachable()),
        }
    }

    /// Sends a message and waits for the answer.
    pub(crate) async fn request(
        &self,
        subject: String,
        header: Option<(&'static str, String)>,
        payload: Bytes,
    ) -> Result<Message, NatsError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Request { subject, header, payload, answer }).await?;
        match timeout(TIMEOUT, answered).await {
            Ok(Ok(Message { status: Some(503), .. })) => Err(NatsError::NoResponders),
            Ok(Ok(message)) => Ok(message),
            Ok(Err(_)) => Err(self.shared.unreachable()),
            Err(_) => Err(self.shared.unreachable()),
        }
    }

    /// Messages of a subject, from now on and over all connections.
    pub(crate) async fn subscribe(&self, subject: String) -> Result<mpsc::Receiver<Message>, NatsError> {
        let number = self.shared.next.fetch_add(1, Relaxed);
        let (messages, receiver) = mpsc::channel(MAX_PENDING_MESSAGES);
        self.shared.subscriptions().insert(number, (subject, messages));
        self.send(Command::Subscribe { number }).await?;
        Ok(receiver)
    }
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<u64, (String, mpsc::Sender<Message>)>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self) -> NatsError {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        NatsError::Unreachable(match trouble.is_empty() {
            true => format!("no answer within {} s", TIMEOUT.as_secs()),
            false => trouble,
        })
    }

    fn came(&self, message: Message) {
        if message.to != INBOX {
            let mut subscriptions = self.subscriptions();
            let Some((_, to)) = subscriptions.get(&message.to) else { return };
            let number = message.to;
            if let Err(mpsc::error::TrySendError::Closed(_)) = to.try_send(message) {
                subscriptions.remove(&number);
            }
            return;
        }
        let number = message.subject.rsplit('.').next().and_then(|number| number.parse().ok());
        if let Some(answer) = number.and_then(|number| self.requests().remove(&number)) {
            // Whoever asked may have gone.
            let _ = answer.send(message);
        }
    }
}

struct Driver {
    broker: Broker,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
}

type Connected = (BufReader<tokio::io::ReadHalf<ServerStream>>, tokio::io::WriteHalf<ServerStream>);

impl Driver {
    async fn run(mut self) {
        let servers: Vec<String> = self.broker.url.split(',').map(str::to_owned).collect();
        let mut told = String::new();
        for server in servers.iter().cycle() {
            let ended = match timeout(2 * TIMEOUT, self.connect(server)).await {
                Ok(Ok((reader, writer))) => {
                    told.clear();
                    self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    self.serve(reader, writer).await
                }
                Ok(Err(why)) => Some(why),
                Err(_) => Some("the server does not answer in time".to_owned()),
            };
            let why = format!("{server}: {}", ended.as_deref().unwrap_or_default());
            self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&why);
            self.shared.requests().clear();
            if ended.is_none() {
                return;
            }
            if told != why {
                tracing::warn!(event = "nats_disconnected", error = why, "no connection to NATS: trying again");
                told = why;
            }
            sleep(RECONNECT_INTERVAL).await;
            if self.commands.is_closed() {
                return;
            }
        }
    }

    async fn connect(&self, server: &str) -> Result<Connected, String> {
        let text = |error: &dyn std::error::Error| error.to_string();
        let url = Url::parse(server).map_err(|error| text(&error))?;
        let host = url.host_str().unwrap_or_default();
        let address = format!("{host}:{}", url.port().unwrap_or(4_222));
        let stream = tls::connect(&address).await.map_err(|error| text(&error))?;
        let mut reader = BufReader::with_capacity(1, stream);
        // The server speaks first, in the clear. What came after that line would be TLS.
        let ServerMessage::Info(info) = wire::read(&mut reader).await.map_err(|error| text(&error))? else {
            return Err("the server does not begin with INFO".to_owned());
        };
        let info: Value = serde_json::from_str(&info).map_err(|error| text(&error))?;
        let stream = reader.into_inner();
        let stream = match (&self.broker.tls, info["tls_required"].as_bool()) {
            (Some(tls), _) => tls::secured(stream, host, tls.config()?).await.map_err(|error| text(&error))?,
            (None, Some(true)) => return Err("the server wants TLS: write tls:// in its address".to_owned()),
            (None, _) => ServerStream::Plain(stream),
        };
        if let Some(most) = info["max_payload"].as_u64().and_then(|most| usize::try_from(most).ok()) {
            self.shared.payload.store(most, Relaxed);
        }
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let connect = login::connect(&self.broker.login, nonce, self.broker.tls.is_some())?;
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let mut out = format!("CONNECT {connect}\r\n").into_bytes();
        ClientMessage::Subscribe { subject: &format!("{}.*", self.shared.inbox), number: INBOX }.write(&mut out);
        for (number, (subject, _)) in self.shared.subscriptions().iter() {
            ClientMessage::Subscribe { subject, number: *number }.write(&mut out);
        }
        out.extend_from_slice(b"PING\r\n");
        writer.write_all(&out).await.map_err(|error| text(&error))?;
        writer.flush().await.map_err(|error| text(&error))?;
        loop {
            match wire::read(&mut reader).await.map_err(|error| text(&error))? {
                ServerMessage::Pong => return Ok((reader, writer)),
                ServerMessage::Error(why) => return Err(why),
                ServerMessage::Message(message) => self.shared.came(message),
                _ => {}
            }
        }
    }

    /// Serves until the connection breaks, and tells why; `None`: until nobody needs it.
    async fn serve(&mut self, reader: impl AsyncBufRead + Unpin, writer: impl AsyncWrite + Unpin) -> Option<String> {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            why = listen(reader, &shared) => Some(why),
            ended = self.speak(writer) => ended.err().map(|error| error.to_string()),
        }
    }

    /// Writes what waits, as much at a time as there is.
    async fn speak(&mut self, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut out, mut flushed) = (Vec::new(), Vec::new());
        loop {
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(Command::Flush { done }) => flushed.push(done),
                    Some(command) => self.say(command, &mut out),
                    None => return Ok(()),
                },
                () = self.shared.pinged.notified() => out.extend_from_slice(b"PONG\r\n"),
                _ = pings.tick() => out.extend_from_slice(b"PING\r\n"),
            }
            while out.len() < BATCH
                && let Ok(command) = self.commands.try_recv()
            {
                match command {
                    Command::Flush { done } => flushed.push(done),
                    command => self.say(command, &mut out),
                }
            }
            writer.write_all(&out).await?;
            writer.flush().await?;
            out.clear();
            for done in flushed.drain(..) {
                // Whoever asked may have gone.
                let _ = done.send(());
            }
        }
    }

    fn say(&self, command: Command, out: &mut Vec<u8>) {
        match command {
            Command::Publish { subject, reply, payload } => {
                ClientMessage::Publish { subject: &subject, reply: reply.as_deref(), header: None, payload: &payload }
                    .write(out);
            }
            // It was given up while it waited.
            Command::Request { answer, .. } if answer.is_closed() => {}
            Command::Request { subject, header, payload, answer } => {
                let number = self.shared.next.fetch_add(1, Relaxed);
                let mut requests = self.shared.requests();
                requests.retain(|_, answer| !answer.is_closed());
                requests.insert(number, answer);
                let reply = format!("{}.{number}", self.shared.inbox);
                let header = header.as_ref().map(|(name, value)| (*name, value.as_str()));
                ClientMessage::Publish { subject: &subject, reply: Some(&reply), header, payload: &payload }.write(out);
            }
            // Told by the one who writes.
            Command::Flush { .. } => {}
            Command::Subscribe { number } => {
                if let Some((subject, _)) = self.shared.subscriptions().get(&number) {
                    ClientMessage::Subscribe { subject, number }.write(out);
                }
            }
        }
    }
}

/// Reads until the connection breaks, and tells why.
async fn listen(mut reader: impl AsyncBufRead + Unpin, shared: &Shared) -> String {
    loop {
        match timeout(SILENCE, wire::read(&mut reader)).await {
            Ok(Ok(ServerMessage::Message(message))) => shared.came(message),
            Ok(Ok(ServerMessage::Ping)) => shared.pinged.notify_one(),
            Ok(Ok(ServerMessage::Error(why))) if why.starts_with("Permissions Violation") => {
                tracing::warn!(event = "nats_refused", error = why, "NATS refuses a subject");
            }
            Ok(Ok(ServerMessage::Error(why))) => return why,
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "the server says nothing any more".to_owned(),
        }
    }
}
