//! Payload processors: requests and answers of models, told to the log or to an HTTP service beside the data path.
//!
//! ```text
//! request ─▶ RequestTap ──┐ first message                    ┌─▶ queue ─▶ log
//!                         ├─▶ Payload ─▶ processors that ask ┤
//! answer  ─▶ ResponseTap ─┘ first message, status            └─▶ queue ─▶ HTTP POST
//! ```
//! Pieces are shared, not copied. A queue that is full drops what comes, and counts it: no request waits for a processor.
//! The JSON that is posted is ModelMesh's (`RemotePayloadProcessor`).

mod collector;
mod delivery;
mod post;
mod processor;
mod queue;
mod tap;

use std::sync::Arc;

use berth_spec::DeploymentName;
use berth_wire::request_id::RequestId;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header, request::Parts};
use prometheus_client::registry::Registry;
use tonic::Code;

pub(crate) use self::{
    delivery::Delivery,
    tap::{RequestTap, Tap},
};
use self::{
    queue::{Counts, Queue},
    tap::Exchange,
};

pub use self::processor::Processor;

/// The most that a payload's names and metadata are counted as, in bytes.
const MAX_METADATA_BYTES: usize = 1 << 10;

/// Headers with credentials: never passed to payload processors.
static SECRET_HEADERS: [HeaderName; 4] =
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE, header::SET_COOKIE];

/// The processors that get copies of requests and answers, and the memory that these may take.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The processors; none: nothing is told, and requests pay nothing.
    pub processors: Vec<Processor>,
    /// Bytes that wait for one processor at most.
    pub memory: usize,
    /// Payloads that wait for one processor at most.
    pub waiting: usize,
    /// Metadata of requests that lines of the log have, with their names there.
    pub log_headers: Vec<(HeaderName, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { processors: Vec::new(), memory: 64 << 20, waiting: 1_024, log_headers: Vec::new() }
    }
}

/// The copy of one request or of one answer, for processors.
#[derive(Debug)]
pub(crate) struct Payload {
    /// The same of a request and its answer.
    id: RequestId,
    model: Arc<str>,
    /// The alias that the model was asked by.
    alias: Option<Arc<str>>,
    /// The path without its first slash: `pkg.Service/Method`.
    method: Arc<str>,
    metadata: HeaderMap,
    data: Vec<Bytes>,
    /// Of an answer; `None`: it is a request.
    code: Option<Code>,
}

impl Payload {
    fn length(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}

/// Every processor, with its queue.
#[derive(Debug)]
pub(crate) struct Payloads {
    queues: Vec<Arc<Queue>>,
}

impl Payloads {
    /// The processors, and what delivers to them; `None`: there are none.
    pub(crate) fn build(settings: &Settings, registry: &mut Registry) -> Option<(Arc<Self>, Vec<Delivery>)> {
        if settings.processors.is_empty() {
            return None;
        }
        let counts = Counts::register(registry);
        let made = settings.processors.iter().map(|processor| {
            let counted = counts.of(&processor.to_string());
            let (queue, waiting) = Queue::new(processor.clone(), settings.memory, settings.waiting, counted.clone());
            (Arc::new(queue), Delivery::new(processor, &settings.log_headers, waiting, counted))
        });
        let (queues, deliveries) = made.unzip();
        Some((Arc::new(Self { queues }), deliveries))
    }

    /// The tap of a request; `None`: no processor asks for it.
    pub(crate) fn tap(&self, model: &DeploymentName, alias: Option<&DeploymentName>, head: &Parts) -> Option<Tap> {
        let method = head.uri.path().trim_start_matches('/');
        let (model, alias) = (model.model_id(), alias.map(DeploymentName::model_id));
        let wanted: Vec<_> =
            self.queues.iter().filter(|queue| queue.processor.wants(model, alias, method)).cloned().collect();
        if wanted.is_empty() {
            return None;
        }
        let metadata = head.headers.clone();
        let exchange = Exchange {
            queues: wanted,
            id: RequestId::generate(),
            model: model.into(),
            alias: alias.map(Into::into),
            method: method.into(),
        };
        Some(Tap { exchange: Arc::new(exchange), metadata })
    }
}
