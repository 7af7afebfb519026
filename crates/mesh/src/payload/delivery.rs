//! Delivers the payloads of one processor.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use http::header;
use reqwest::{Client, Url, redirect::Policy};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Payload, Processor,
    post::document,
    processor::Destination,
    queue::{Counted, Waiting},
};
use crate::{offload, watch::name_of};

/// Payloads that are posted to one service at a time.
const AT_ONCE: usize = 8;

/// The longest that a service may take for one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time for payloads that wait when the gateway ends; shorter than the time that connections get then.
const LAST: Duration = Duration::from_secs(3);

/// The least time between two messages about a service that fails.
const BETWEEN: Duration = Duration::from_secs(60);

/// The end of one processor's queue.
#[derive(Debug)]
pub(crate) struct Delivery {
    name: String,
    to: Destination,
    waiting: mpsc::Receiver<Waiting>,
    counted: Counted,
}

impl Delivery {
    pub(super) fn new(processor: &Processor, waiting: mpsc::Receiver<Waiting>, counted: Counted) -> Self {
        Self { name: processor.to_string(), to: processor.to.clone(), waiting, counted }
    }

    /// Delivers until `stop`, and then what waits, as long as there is time.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { name, to, waiting, counted } = self;
        let last = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST).await;
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
                            log(&waiting.payload);
                            counted.delivered.inc();
                        })
                        .await;
                }
                Destination::Http(url) => match Service::new(&name, url, counted) {
                    Ok(service) => payloads.for_each_concurrent(AT_ONCE, |waiting| service.post(waiting)).await,
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

fn log(payload: &Payload) {
    tracing::info!(
        event = "payload",
        id = payload.id.as_str(),
        model = &*payload.model,
        alias = payload.alias.as_deref(),
        method = &*payload.method,
        kind = if payload.code.is_some() { "response" } else { "request" },
        status = payload.code.map(name_of),
        bytes = payload.length(),
        "payload"
    );
}

/// A service that takes payloads by HTTP.
struct Service {
    name: String,
    url: Url,
    client: Client,
    counted: Counted,
    /// The time of the last message, and failures since.
    told: Mutex<(Option<Instant>, u64)>,
}

impl Service {
    fn new(name: &str, url: Url, counted: Counted) -> Result<Self, reqwest::Error> {
        // Payloads go where somebody said, and nowhere else.
        let client = Client::builder().timeout(PATIENCE).redirect(Policy::none()).build()?;
        Ok(Self { name: name.to_owned(), url, client, counted, told: Mutex::default() })
    }

    async fn post(&self, waiting: Waiting) {
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
        if told.0.is_none_or(|at| at.elapsed() >= BETWEEN) {
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
    if error.is_timeout() { format!("it took longer than {PATIENCE:?}") } else { cause.to_string() }
}
