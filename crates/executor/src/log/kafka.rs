//! A producer for brokers that speak Kafka's protocol: one topic, batches of lines, acknowledged by all replicas.
//!
//! ```text
//! metadata (who leads which partition) ──▶ leader of the next partition ──▶ produce ──▶ acknowledged
//!        ▲                                                                    │ any error
//!        └────────────────────────────────────────────────────────────────────┘
//! ```
//! The versions of its requests are ones that brokers take from 0.11 to 4.x.

mod scram;
mod wire;

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use berth_peer::port::ServerStream;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use self::{
    scram::Scram,
    wire::{Partition, Reader, Writer},
};
use super::settings::{KafkaSettings, Mechanism};
use crate::{broker::TIMEOUT, tls};

/// Largest answer that is read: metadata of one topic, acknowledgements.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Requests, by their numbers in the protocol.
#[derive(Clone, Copy)]
enum Request {
    Produce = 0,
    Metadata = 3,
    SaslHandshake = 17,
    SaslAuthenticate = 36,
}

impl Request {
    /// The version that is spoken.
    const fn version(self) -> i16 {
        match self {
            Self::Produce => 3,
            Self::Metadata | Self::SaslHandshake => 1,
            Self::SaslAuthenticate => 0,
        }
    }
}

pub(crate) struct Producer {
    settings: KafkaSettings,
    config: Option<Arc<ClientConfig>>,
    /// The topic, once it is known.
    topic: Option<Topic>,
    connections: HashMap<i32, Connection>,
    turn: usize,
}

/// The brokers of a topic.
struct Topic {
    brokers: HashMap<i32, String>,
    partitions: Vec<Partition>,
}

struct Connection {
    stream: ServerStream,
    number: i32,
}

impl Producer {
    pub(super) fn new(settings: KafkaSettings) -> Result<Self, String> {
        settings.login.password().map_err(|error| format!("log.to.passwordFile: {error}"))?;
        let config = settings.tls.as_ref().map(|tls| tls.config().map_err(|error| format!("log.to.tls: {error}")));
        Ok(Self { config: config.transpose()?, settings, topic: None, connections: HashMap::new(), turn: 0 })
    }

    /// Writes lines as one batch to the next partition.
    pub(super) async fn write(&mut self, lines: &[String]) -> Result<(), String> {
        let written = timeout(4 * TIMEOUT, self.produce(lines)).await;
        let written = written.unwrap_or_else(|_| Err("the broker does not answer in time".to_owned()));
        if written.is_err() {
            // Leaders move: all is asked anew.
            (self.topic, self.connections) = (None, HashMap::new());
        }
        written.map_err(|error| format!("Kafka: {error}"))
    }

    async fn produce(&mut self, lines: &[String]) -> Result<(), String> {
        if self.topic.is_none() {
            self.topic = Some(self.find().await?);
        }
        let Some(Topic { brokers, partitions }) = &self.topic else { return Err("the topic is not known".to_owned()) };
        self.turn = (self.turn + 1) % partitions.len().max(1);
        let Some(Partition { number, leader }) = partitions.get(self.turn).copied() else {
            return Err(format!("topic {:?} has no partition with a leader", self.settings.topic));
        };
        if !self.connections.contains_key(&leader) {
            let address = brokers.get(&leader).ok_or("the leader of a partition is no known broker")?.clone();
            let connection = self.connect(&address).await?;
            self.connections.insert(leader, connection);
        }
        let connection = self.connections.get_mut(&leader).ok_or("it was connected just now")?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let batch = wire::batch(lines, i64::try_from(since.as_millis()).unwrap_or(0));
        let mut body = Writer::default();
        // No transaction, all replicas, and the time that they have.
        body.absent().i16(-1).i32(i32::try_from(TIMEOUT.as_millis()).unwrap_or(i32::MAX));
        body.i32(1).text(&self.settings.topic).i32(1).i32(number).bytes(&batch);
        let answer = connection.ask(Request::Produce, body).await?;
        match wire::produced(&mut Reader(&answer)).ok_or("the answer cannot be read")? {
            0 => Ok(()),
            code => Err(format!("the broker refuses the lines: {}", wire::error(code))),
        }
    }

    /// Asks one server after the other for the topic.
    async fn find(&self) -> Result<Topic, String> {
        let mut why = "no server is named".to_owned();
        for server in &self.settings.servers {
            match self.ask_for_topic(server).await {
                Ok(topic) => return Ok(topic),
                Err(error) => why = format!("{server}: {error}"),
            }
        }
        Err(why)
    }

    async fn ask_for_topic(&self, server: &str) -> Result<Topic, String> {
        let mut connection = self.connect(server).await?;
        let mut body = Writer::default();
        body.i32(1).text(&self.settings.topic);
        let answer = connection.ask(Request::Metadata, body).await?;
        let metadata = wire::metadata(&mut Reader(&answer)).ok_or("the answer cannot be read")?;
        if metadata.error != 0 {
            return Err(format!("topic {:?}: {}", self.settings.topic, wire::error(metadata.error)));
        }
        Ok(Topic { brokers: metadata.brokers, partitions: metadata.partitions })
    }

    async fn connect(&self, address: &str) -> Result<Connection, String> {
        timeout(TIMEOUT, self.connected(address)).await.unwrap_or_else(|_| Err("no connection in time".to_owned()))
    }

    async fn connected(&self, address: &str) -> Result<Connection, String> {
        let stream = tls::connect(address).await.map_err(|error| error.to_string())?;
        let stream = match &self.config {
            None => ServerStream::Plain(stream),
            Some(config) => {
                let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
                tls::secured(stream, host, Arc::clone(config)).await.map_err(|error| error.to_string())?
            }
        };
        let mut connection = Connection { stream, number: 0 };
        if let (Some(user), Some(password)) = (&self.settings.login.user, self.settings.login.password()?) {
            connection.log_in(self.settings.mechanism, user, &password).await?;
        }
        Ok(connection)
    }
}

impl Connection {
    async fn ask(&mut self, request: Request, body: Writer) -> Result<Vec<u8>, String> {
        let text = |error: io::Error| error.to_string();
        self.number = self.number.wrapping_add(1);
        let mut message = Writer::default();
        message.i16(request as i16).i16(request.version()).i32(self.number).text("berth-executor").raw(&body.0);
        let length = u32::try_from(message.0.len()).map_err(|error| error.to_string())?;
        self.stream.write_u32(length).await.map_err(text)?;
        self.stream.write_all(&message.0).await.map_err(text)?;
        self.stream.flush().await.map_err(text)?;
        let length = self.stream.read_u32().await.map_err(text)? as usize;
        if !(4..=MAX_ANSWER_BYTES).contains(&length) {
            return Err("the server speaks no protocol of Kafka".to_owned());
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await.map_err(text)?;
        let rest = answer.split_off(4);
        match answer == self.number.to_be_bytes() {
            true => Ok(rest),
            false => Err("the broker answers another request".to_owned()),
        }
    }

    async fn log_in(&mut self, mechanism: Mechanism, user: &str, password: &str) -> Result<(), String> {
        let mut body = Writer::default();
        body.text(mechanism.name());
        let answer = self.ask(Request::SaslHandshake, body).await?;
        match Reader(&answer).i16().ok_or("the answer cannot be read")? {
            0 => {}
            code => return Err(format!("the broker does not take {}: {}", mechanism.name(), wire::error(code))),
        }
        let Some(mut scram) = Scram::new(mechanism, user, password) else {
            return self.prove(format!("\0{user}\0{password}").as_bytes()).await.map(drop);
        };
        let first = self.prove(scram.first().as_bytes()).await?;
        let proof = scram.answer(&first)?;
        let last = self.prove(proof.as_bytes()).await?;
        scram.verify(&last)
    }

    async fn prove(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut body = Writer::default();
        body.bytes(bytes);
        let answer = self.ask(Request::SaslAuthenticate, body).await?;
        let mut reader = Reader(&answer);
        let read = (|| Some((reader.i16()?, reader.text()?, reader.bytes()?)))();
        match read.ok_or("the answer cannot be read")? {
            (0, _, bytes) => Ok(bytes.to_vec()),
            (code, why, _) => Err(why.map_or_else(|| wire::error(code), str::to_owned)),
        }
    }
}

impl Mechanism {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}
