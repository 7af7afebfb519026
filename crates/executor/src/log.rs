//! The log of requests and answers: some of them, without their secrets, as lines of JSON in a file or at a broker.
//!
//! ```text
//! request ──chosen? room?──▶ recording: copies of heads, and of the begin of bodies, while they pass
//!                                │ the exchange is over
//!                                ▼
//!                          queue (bounded by memory) ──▶ writer: redact, encode ──▶ file | HTTP | NATS | Kafka
//! ```
//! Requests never wait for the log. What finds no room, or a sink that does not take it, is dropped and counted.

mod entry;
mod http;
mod kafka;
mod recording;
mod settings;
mod sink;
mod writer;

pub(crate) use self::{
    recording::{Captured, Recording},
    settings::{KafkaSettings, LogSettings, Mechanism, Redaction, SinkSettings},
    sink::Sink,
    writer::{LogFamilies, Logger},
};
