//! Delivers the payloads of one processor.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::Engine as _;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderName, header};
use reqwest::{Client, Url, redirect::Policy};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Payload, Processor,
    post::{LENIENT, document},
    processor::Destination,
    queue::{DeliveryCounts, QueuedPayload},
};
use crate::{offload, watch::name_of};

/// Payloads that are posted to one service at a time: at 10 ms for each, 800 per second, without crowding a small
/// service.
const MAX_CONCURRENT_POSTS: usize = 8;

/// The longest that a service may take for one: one that hangs gives its turn back.
const POST_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for payloads that wait when the gateway ends; shorter than the time that connections get then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// The least time between two messages about a service that fails: it fails for every payload.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The most characters of one header's value in the log. A client chooses it.
const MAX_VALUE_CHARS: usize = 256;

/// The end of one processor's queue.
#[derive(Debug)]
pub(crate) struct Delivery {
    name: String,
    to: Destination,
    /// Metadata that the log has, with their names there.
    log_headers: Vec<(HeaderName, String)>,
    waiting: mpsc::Receiver<QueuedPayload>,
    counted: DeliveryCounts,
}

impl Delivery {
    pub(super) fn new(
        processor: &Processor,
        log_headers: &[(HeaderName, String)],
        waiting: mpsc::Receiver<QueuedPayload>,
        counted: DeliveryCounts,
    ) -> Self {
        let (name, to) = (processor.to_string(), processor.to.clone());
        Self { name, to, log_headers: log_headers.to_vec(), waiting, counted }
    }

    /// Delivers until `stop`, and then what waits, as long as there is time.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { name, to, log_headers, waiting, counted } = self;
        let last = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN_TIMEOUT).await;
        };
        let payloads = futures::stream::unfold((waiting, stop.clone()), async |(mut waiting, stop)| {
            let next = tokio::select! {
                biased;
                () = stop.cancelled(), if !waiting.is_closed() => {
                    waiting.close();
                    waiting.recv().await
                }
                next = waiting.recv() => next,
            };
            next.map(|next| (next, (waiting, stop)))
        });
        let all = async {
            match to {
                Destination::Log => {
                    payloads
                        .for_each(async |waiting| {
                            log(&waiting.payload, &log_headers);
                            counted.delivered.inc();
                        })
                        .await;
                }
                Destination::Http(url) => match Service::new(&name, url, counted) {
                    Ok(service) => {
                        payloads.for_each_concurrent(MAX_CONCURRENT_POSTS, |waiting| service.post(waiting)).await
                    }
                    Err(error) => {
                        tracing::error!(event = "payloads_undelivered", processor = name, %error, "no HTTP client");
                    }
                },
            }
        };
        tokio::select! {
            () = all => {}
            () = last => tracing::warn!(event = "payloads_cut", processor = name, "payloads were left undelivered at the end"),
        }
    }
}

fn log(payload: &Payload, headers: &[(HeaderName, String)]) {
    let of_request = payload.code.is_none().then(|| named(&payload.metadata, headers));
    tracing::info!(
        event = "payload",
        id = payload.id.as_str(),
        model = &*payload.model,
        alias = payload.alias.as_deref(),
        method = &*payload.method,
        kind = if payload.code.is_some() { "response" } else { "request" },
        status = payload.code.map(name_of),
        bytes = payload.length(),
        headers = of_request.as_deref().filter(|headers| !headers.is_empty()),
        "payload"
    );
}

/// Those of the headers that are there, as `name=value, name=value`. Values of headers that end with `-bin` are UTF-8 in base64.
fn named(metadata: &HeaderMap, headers: &[(HeaderName, String)]) -> String {
    let one = |(header, name): &(HeaderName, String)| {
        let bytes = metadata.get(header)?.as_bytes();
        let decoded = header.as_str().ends_with("-bin").then(|| LENIENT.decode(bytes).ok()).flatten();
        let text = String::from_utf8_lossy(decoded.as_deref().unwrap_or(bytes));
        // A client must not make lines of its own.
        let shown: String = text.chars().take(MAX_VALUE_CHARS).flat_map(char::escape_debug).collect();
        Some(format!("{name}={shown}"))
    };
    headers.iter().filter_map(one).collect::<Vec<_>>().join(", ")
}

/// A service that takes payloads by HTTP.
struct Service {
    name: String,
    url: Url,
    client: Client,
    counted: DeliveryCounts,
    /// The time of the last message, and failures since.
    told: Mutex<(Option<Instant>, u64)>,
}

impl Service {
    fn new(name: &str, url: Url, counted: DeliveryCounts) -> Result<Self, reqwest::Error> {
        // Payloads go where somebody said, and nowhere else.
        let client = Client::builder().timeout(POST_TIMEOUT).redirect(Policy::none()).build()?;
        Ok(Self { name: name.to_owned(), url, client, counted, told: Mutex::default() })
    }

    async fn post(&self, waiting: QueuedPayload) {
        let payload = Arc::clone(&waiting.payload);
        let failed = match offload::run(payload.length(), move || Ok(document(&payload))).await {
            Ok(body) => {
                let request = self.client.post(self.url.clone()).header(header::CONTENT_TYPE, "application/json");
                match request.body(body).send().await {
                    Ok(answer) if answer.status().is_success() => None,
                    Ok(answer) => Some(format!("it answers {}", answer.status())),
                    Err(error) => Some(why(&error)),
                }
            }
            Err(error) => Some(error.to_string()),
        };
        drop(waiting);
        match failed {
            None => self.counted.delivered.inc(),
            Some(why) => {
                self.complain(&why);
                self.counted.failed.inc()
            }
        };
    }

    /// Says that it fails, at most once a minute.
    fn complain(&self, why: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.1 += 1;
        if told.0.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
            tracing::warn!(
                event = "payloads_failed",
                processor = self.name,
                failed = told.1,
                error = why,
                "a payload processor does not take payloads"
            );
            *told = (Some(Instant::now()), 0);
        }
    }
}

/// The innermost cause: the outer ones name the URL, which may hold a password.
fn why(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_timeout() { format!("it took longer than {POST_TIMEOUT:?}") } else { cause.to_string() }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn headers_that_were_asked_for_are_told_in_one_line() {
        let mut metadata = HeaderMap::new();
        for (name, value) in [("txid", "7"), ("user-bin", "w6oKeA"), ("other", "secret"), ("bad-bin", "!")] {
            metadata.insert(name, HeaderValue::from_static(value));
        }
        let asked = [("txid", "tx"), ("absent", "a"), ("user-bin", "user"), ("bad-bin", "bad")];
        let asked = asked.map(|(header, name)| (HeaderName::from_static(header), name.to_owned()));
        assert_eq!(named(&metadata, &asked), r"tx=7, user=ê\nx, bad=!");
        assert_eq!(named(&metadata, &[]), "");
        metadata.insert("txid", HeaderValue::from_str(&"x".repeat(1_000)).expect("a value"));
        assert_eq!(named(&metadata, &asked[..1]).len(), "tx=".len() + MAX_VALUE_CHARS);
    }
}
