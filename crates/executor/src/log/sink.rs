//! The places that lines go to.

use std::sync::{Arc, Mutex, PoisonError};

use berth_audit::RotatedFile;
use bytes::Bytes;
use tokio::task::JoinSet;

use super::{http::HttpSink, kafka::Producer, settings::SinkSettings};
use crate::nats::Nats;

/// The destination of one log's lines.
pub(crate) enum Sink {
    File(Arc<Mutex<RotatedFile>>),
    Http(HttpSink),
    Nats {
        nats: Nats,
        subject: String,
        /// Ends with the sink.
        _connection: JoinSet<()>,
    },
    Kafka(Box<Producer>),
}

impl Sink {
    /// Makes it. In a runtime; reads small files. Servers are reached when there is something to write.
    ///
    /// # Errors
    /// The reason why it can never be used.
    pub(crate) fn open(settings: &SinkSettings) -> Result<Self, String> {
        match settings {
            SinkSettings::File { path, size, keep } => {
                let mut file = RotatedFile::new(path.clone(), *size, *keep);
                file.append(b"").map_err(|error| format!("log.to.file: {error}"))?;
                Ok(Self::File(Arc::new(Mutex::new(file))))
            }
            SinkSettings::Http { url, token_file, tls } => {
                HttpSink::new(url.clone(), token_file.clone(), tls.as_ref()).map(Self::Http)
            }
            SinkSettings::Nats { broker, subject } => {
                broker.check().map_err(|error| format!("log.to: {error}"))?;
                let (nats, running) = Nats::new(broker.clone());
                let mut connection = JoinSet::new();
                connection.spawn(running);
                Ok(Self::Nats { nats, subject: subject.clone(), _connection: connection })
            }
            SinkSettings::Kafka(settings) => {
                Producer::new(settings.clone()).map(|producer| Self::Kafka(Box::new(producer)))
            }
        }
    }

    /// Writes lines. After an error some of them may have been written.
    pub(super) async fn write(&mut self, lines: &[String]) -> Result<(), String> {
        match self {
            Self::File(file) => {
                let (file, text) = (Arc::clone(file), joined(lines));
                let write = move || file.lock().unwrap_or_else(PoisonError::into_inner).append(text.as_bytes());
                let written = tokio::task::spawn_blocking(write).await.map_err(|error| error.to_string())?;
                written.map_err(|error| error.to_string())
            }
            Self::Http(sink) => sink.write(joined(lines)).await,
            Self::Nats { nats, subject, .. } => {
                for line in lines {
                    let line = Bytes::copy_from_slice(line.as_bytes());
                    nats.publish(subject.clone(), line).await.map_err(|error| error.to_string())?;
                }
                nats.flush().await.map_err(|error| error.to_string())
            }
            Self::Kafka(producer) => producer.write(lines).await,
        }
    }
}

fn joined(lines: &[String]) -> String {
    let mut text = lines.join("\n");
    text.push('\n');
    text
}
