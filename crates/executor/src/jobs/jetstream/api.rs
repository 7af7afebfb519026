//! JetStream's own requests (docs.nats.io, "NATS API Reference"): few, and with the codes of their errors.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::{Value, json};

use super::super::queue::QueueError;
use crate::nats::{Inbox, Nats, NatsError};

/// The message that was expected to be the last of its subject is not.
const WRONG_LAST: u64 = 10_071;
/// A stream holds as many messages as it may.
const STORE_FAILED: u64 = 10_077;
/// No message of this subject or number.
const NO_MESSAGE: u64 = 10_037;

/// Reason why a request was not carried out.
#[derive(Debug)]
pub(super) enum JetStreamError {
    /// Somebody else was faster.
    Changed,
    /// The stream is full.
    Full,
    /// The stream or consumer is not there, or no server with JetStream is.
    Missing(String),
    Other(String),
}

impl From<JetStreamError> for QueueError {
    fn from(error: JetStreamError) -> Self {
        match error {
            JetStreamError::Changed => Self("NATS: the job is changed by others all the time".to_owned()),
            JetStreamError::Full => Self("NATS: the stream is full".to_owned()),
            JetStreamError::Missing(why) | JetStreamError::Other(why) => Self(format!("NATS: {why}")),
        }
    }
}

/// A message as a stream keeps it.
pub(super) struct StoredMessage {
    pub(super) subject: String,
    pub(super) sequence: u64,
    pub(super) data: Vec<u8>,
}

/// A message that was given to a consumer, and the subject that takes its acknowledgement.
pub(super) struct DeliveredMessage {
    pub(super) subject: String,
    pub(super) reply: String,
}

impl From<NatsError> for JetStreamError {
    fn from(error: NatsError) -> Self {
        match error {
            NatsError::NoResponders => {
                Self::Missing("there is no JetStream, or the queue's streams have gone".to_owned())
            }
            NatsError::Unreachable(why) => Self::Other(why),
        }
    }
}

/// The last message of a subject that a change builds on; 0: there is none.
pub(super) type Expected = Option<u64>;

#[derive(Clone)]
pub(super) struct Api(pub(super) Nats);

impl Api {
    async fn ask(&self, subject: String, expected: Expected, payload: Bytes) -> Result<Value, JetStreamError> {
        let header = expected.map(|last| ("Nats-Expected-Last-Subject-Sequence", last.to_string()));
        let answer = self.0.request(subject, header, payload).await?;
        let answer: Value =
            serde_json::from_slice(&answer.payload).map_err(|error| JetStreamError::Other(error.to_string()))?;
        let Some(error) = answer.get("error") else { return Ok(answer) };
        let why = error["description"].as_str().unwrap_or("the request was refused").to_owned();
        Err(match (error["err_code"].as_u64(), error["code"].as_u64()) {
            (Some(WRONG_LAST), _) => JetStreamError::Changed,
            (Some(STORE_FAILED), _) if why.contains("maximum messages") => JetStreamError::Full,
            (Some(NO_MESSAGE), _) | (_, Some(404)) => JetStreamError::Missing(why),
            _ => JetStreamError::Other(why),
        })
    }

    /// A request of the API, such as `STREAM.INFO.name`.
    pub(super) async fn call(&self, what: String, body: &Value) -> Result<Value, JetStreamError> {
        // Questions without a body are empty, and not `null`.
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        self.ask(format!("$JS.API.{what}"), None, body).await
    }

    /// Stores a message; its number.
    pub(super) async fn publish(
        &self,
        subject: String,
        payload: Bytes,
        expected: Expected,
    ) -> Result<u64, JetStreamError> {
        let answer = self.ask(subject, expected, payload).await?;
        answer["seq"].as_u64().ok_or_else(|| JetStreamError::Other("a message was stored without a number".to_owned()))
    }

    /// The last message of a subject.
    pub(super) async fn last(&self, stream: &str, subject: &str) -> Result<Option<StoredMessage>, JetStreamError> {
        self.get(stream, &json!({ "last_by_subj": subject })).await
    }

    /// The first message with this number or a later one.
    pub(super) async fn next_kept(&self, stream: &str, sequence: u64) -> Result<Option<StoredMessage>, JetStreamError> {
        self.get(stream, &json!({ "seq": sequence, "next_by_subj": ">" })).await
    }

    async fn get(&self, stream: &str, which: &Value) -> Result<Option<StoredMessage>, JetStreamError> {
        let answer = match self.call(format!("STREAM.MSG.GET.{stream}"), which).await {
            Ok(answer) => answer,
            Err(JetStreamError::Missing(why)) if why.contains("no message found") => return Ok(None),
            Err(error) => return Err(error),
        };
        let message = &answer["message"];
        let data = BASE64_STANDARD.decode(message["data"].as_str().unwrap_or_default());
        match (message["subject"].as_str(), message["seq"].as_u64(), data) {
            (Some(subject), Some(sequence), Ok(data)) => {
                Ok(Some(StoredMessage { subject: subject.to_owned(), sequence, data }))
            }
            _ => Err(JetStreamError::Other("a stored message cannot be read".to_owned())),
        }
    }

    /// The next message for a consumer, if one waits.
    pub(super) async fn take(
        &self,
        stream: &str,
        consumer: &str,
        inbox: &mut Inbox,
    ) -> Result<Option<DeliveredMessage>, JetStreamError> {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let request = json!({ "batch": 1, "no_wait": true }).to_string();
        let answer = self.0.ask(subject, request.into(), inbox).await?;
        match (answer.status, answer.reply) {
            // Nothing waits.
            (Some(404 | 408), _) => Ok(None),
            (None, Some(reply)) => Ok(Some(DeliveredMessage { subject: answer.subject, reply })),
            (status, _) => Err(JetStreamError::Other(format!("the consumer gives nothing, and answers {status:?}"))),
        }
    }

    /// Acknowledges a message in one of the ways that there are, and waits until the server has noted it.
    pub(super) async fn acknowledge(&self, reply: &str, how: String) -> Result<(), JetStreamError> {
        Ok(self.0.request(reply.to_owned(), None, how.into()).await.map(drop)?)
    }

    /// Removes all messages whose subjects match.
    pub(super) async fn purge(&self, stream: &str, filter: &str) -> Result<(), JetStreamError> {
        self.call(format!("STREAM.PURGE.{stream}"), &json!({ "filter": filter })).await.map(drop)
    }

    /// Removes one message, which may have gone.
    pub(super) async fn delete(&self, stream: &str, sequence: u64) -> Result<(), JetStreamError> {
        let what = json!({ "seq": sequence, "no_erase": true });
        match self.call(format!("STREAM.MSG.DELETE.{stream}"), &what).await {
            Ok(_) | Err(JetStreamError::Missing(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
