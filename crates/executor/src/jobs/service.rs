//! Asynchronous serving of one port: the front, the queue and the runner, and the order in which they end.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use futures::FutureExt as _;
use http::{Request, Response};
use tokio_util::sync::CancellationToken;

use super::{
    api::{JobApi, JobRequest},
    callback::Receiver,
    jetstream::JetStreamQueue,
    job::JobId,
    memory::MemoryQueue,
    queue::{Queue, QueueError},
    redis::RedisQueue,
    runner::{DampedLines, Runner},
    settings::{JobSettings, QueueSettings},
};
use crate::{BoxError, body::Body, port::Shutdown, proxy::Proxy};

/// A queue that can be used, before its port serves.
pub(crate) struct JobQueue {
    settings: JobSettings,
    queue: Arc<dyn Queue>,
    receiver: Receiver,
}

impl JobQueue {
    /// Makes the queue. In a runtime; reads small files.
    ///
    /// # Errors
    /// The reason why it cannot be used.
    pub(crate) fn open(settings: JobSettings) -> Result<Self, String> {
        let queue: Arc<dyn Queue> = match &settings.queue {
            QueueSettings::Memory => Arc::new(MemoryQueue::new(settings.bounds)),
            QueueSettings::Redis { broker, key } => {
                let queue = RedisQueue::new(broker, key, settings.bounds);
                Arc::new(queue.map_err(|error| format!("async.queue: {error}"))?)
            }
            QueueSettings::Nats { broker, key, replicas } => {
                broker.check().map_err(|error| format!("async.queue: {error}"))?;
                Arc::new(JetStreamQueue::new(broker.clone(), key, *replicas, settings.bounds))
            }
        };
        let receiver = Receiver::new(&settings.callbacks)?;
        receiver.secret()?;
        Ok(Self { settings, queue, receiver })
    }
}

/// The jobs of a port that serves.
pub(crate) struct Jobs {
    api: JobApi,
    queue: Arc<dyn Queue>,
}

impl Jobs {
    /// Serves a port that has jobs: `accepting` is done when its last connection has ended. Jobs of a queue that ends with this
    /// process run on after that, since one may have been accepted last; others are left to other executors.
    pub(crate) async fn run(
        open: JobQueue,
        proxy: Arc<Proxy>,
        shutdown: Shutdown,
        accepting: impl Future<Output = ()>,
    ) {
        let JobQueue { settings, queue, receiver } = open;
        let metrics = proxy.metrics().jobs().of(Arc::clone(proxy.name()));
        let (asked, healthy, most) = (Arc::downgrade(&proxy), Arc::downgrade(&proxy), settings.max_body);
        let runner = Runner {
            queue: Arc::clone(&queue),
            ask: Arc::new(move |head, body| {
                let proxy = asked.upgrade();
                async move {
                    let proxy = proxy.ok_or_else(|| "the executor ends".to_owned())?;
                    proxy.run_job(head, body, most).await
                }
                .boxed()
            }),
            is_healthy: Box::new(move || healthy.upgrade().is_some_and(|proxy| proxy.is_healthy.load(Relaxed))),
            receiver,
            concurrency: settings.concurrency,
            runs: settings.runs,
            callbacks: settings.callbacks.patience,
            metrics: metrics.clone(),
            told: DampedLines::default(),
        };
        let stop = if queue.ends_with_process() { CancellationToken::new() } else { shutdown.stopping.clone() };
        let cut = proxy.metrics().unread(proxy.name(), "event");
        let api = JobApi::new(settings, Arc::clone(&queue), metrics, cut, shutdown.stopping.clone());
        let jobs = Arc::new(Self { api, queue });
        // It is set here and nowhere else.
        let _ = proxy.jobs.set(Arc::clone(&jobs));
        let running = Arc::new(runner).run(stop.clone());
        let accepting = async {
            accepting.await;
            jobs.api.unfollowed().await;
            stop.cancel();
        };
        tokio::join!(accepting, shutdown.cut.run_until_cancelled(running));
    }

    /// Question of a request about jobs; `None`: it is for the model server, now.
    pub(crate) fn asked<B>(&self, request: &Request<B>) -> Option<JobRequest> {
        self.api.asked(request)
    }

    /// Answers such a request, from this address.
    pub(crate) async fn serve<B>(&self, asked: JobRequest, request: Request<B>, from: IpAddr) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes, Error: Into<BoxError>>,
    {
        self.api.serve(asked, request, from).await
    }

    /// True while jobs have not ended that nobody runs after this process.
    pub(crate) async fn are_left(&self) -> bool {
        let left = self.queue.depth().await.map(|depth| depth.jobs.iter().sum::<u64>());
        self.queue.ends_with_process() && left.is_ok_and(|left| left > 0)
    }

    /// Dead letters.
    pub(crate) async fn dead(&self) -> Result<Vec<JobId>, QueueError> {
        self.queue.dead().await
    }

    /// Makes a dead letter a job again. False: it is none.
    pub(crate) async fn revive(&self, id: &JobId) -> Result<bool, QueueError> {
        self.queue.revive(id).await
    }
}
