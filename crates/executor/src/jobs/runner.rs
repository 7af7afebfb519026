//! Takes tasks from the queue and carries them out.
//!
//! ```text
//! a place is free ──▶ take ──▶ ask the model server (or tell the receiver) ──▶ end | again
//!                               └ meanwhile the lease is renewed
//! ```
//! One loop takes runs, another one callbacks: a receiver that hangs holds up no model.

use std::{sync::Arc, time::Duration};

use berth_peer::port::Damped;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::request;
use tokio::{
    sync::{
        Semaphore,
        broadcast::{self, error::RecvError},
    },
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    attempt::{Next, Outcome, RetryPolicy},
    callback::Receiver,
    job::{Answer, JobId, State},
    metrics::JobMetrics,
    queue::{Completion, Depth, Kind, LEASE, Lease, Queue, QueueError, Task},
};

/// Pause after the queue could not be asked: it is back within seconds, and each runner asks.
const QUEUE_AGAIN: Duration = Duration::from_secs(1);

/// Pause between two looks at the health of the model server: jobs go on as soon as it is back.
const HEALTH_AGAIN: Duration = Duration::from_millis(100);

/// Callbacks that are told at once: they wait for other hosts, and one that hangs does not hold up the rest.
const CALLBACKS_AT_ONCE: usize = 16;

/// Asks the model server: the answer, or why there is none.
pub(crate) type AskModel =
    Arc<dyn Fn(request::Parts, Bytes) -> BoxFuture<'static, Result<Answer, String>> + Send + Sync>;

/// Runs the jobs of one port.
pub(crate) struct Runner {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) ask: AskModel,
    /// True while the model server is well: jobs wait for it in the queue.
    pub(crate) is_healthy: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) receiver: Receiver,
    pub(crate) concurrency: usize,
    pub(crate) runs: RetryPolicy,
    pub(crate) callbacks: RetryPolicy,
    pub(crate) metrics: JobMetrics,
    pub(crate) told: DampedLines,
}

/// Lines about jobs, which clients can cause at any rate: one a minute of each kind, with the number of jobs.
#[derive(Default)]
pub(crate) struct DampedLines {
    given_up: Damped,
    not_stored: Damped,
    lost: Damped,
    not_renewed: Damped,
}

impl Runner {
    /// Runs jobs until `stop`; then ends what it has begun, and all jobs of a queue that ends with this process.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(
            self.take_all(Kind::Run, self.concurrency, &stop),
            self.take_all(Kind::Callback, CALLBACKS_AT_ONCE, &stop),
            self.measure(&stop),
        );
    }

    async fn take_all(self: &Arc<Self>, kind: Kind, at_once: usize, stop: &CancellationToken) {
        let (places, begun) = (Arc::new(Semaphore::new(at_once)), TaskTracker::new());
        let mut told = String::new();
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let stopped = stop.is_cancelled();
            if stopped && !(self.queue.ends_with_process() && self.is_needed(kind).await) {
                break;
            }
            if kind == Kind::Run && !(self.is_healthy)() {
                sleep(HEALTH_AGAIN).await;
                continue;
            }
            let taken = if stopped {
                self.queue.take(kind).await
            } else {
                // A queue loses nothing when a take is dropped: the lease of what was taken runs out.
                match stop.run_until_cancelled(self.queue.take(kind)).await {
                    Some(taken) => taken,
                    None => continue,
                }
            };
            match taken {
                Ok(None) => told.clear(),
                Ok(Some(task)) => {
                    told.clear();
                    let runner = Arc::clone(self);
                    begun.spawn(async move {
                        runner.carry_out(task).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    // Told once, not every second.
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!(error, "no job was taken: trying again");
                        told = error;
                    }
                    sleep(QUEUE_AGAIN).await;
                }
            }
        }
        begun.close();
        begun.wait().await;
    }

    /// True while tasks of a kind may still come.
    async fn is_needed(&self, kind: Kind) -> bool {
        let Ok(Depth { jobs, callbacks, .. }) = self.queue.depth().await else { return false };
        let runs = jobs.iter().sum::<u64>();
        match kind {
            Kind::Run => runs > 0,
            Kind::Callback => runs + callbacks > 0,
        }
    }

    async fn carry_out(&self, task: Task) {
        let Task { lease, request, callback } = task;
        let mut ended = self.queue.ended();
        let attempt = async {
            match lease.kind {
                Kind::Run => match request.head() {
                    None => Outcome::Hopeless("the stored request cannot be read".to_owned()),
                    Some(head) => {
                        (self.ask)(head, request.body.into()).await.map_or_else(Outcome::Failed, Outcome::Answered)
                    }
                },
                Kind::Callback => self.tell(&lease, callback.as_deref()).await,
            }
        };
        let outcome = tokio::select! {
            outcome = attempt => outcome,
            () = self.keep(&lease) => return,
            () = self.cancelled(&mut ended, &lease) => {
                // The task of a job that has ended goes.
                if let Err(error) = self.queue.end(&lease, Completion::Dead { why: String::new(), answer: None }).await {
                    tracing::debug!(job = %lease.id, %error, "the task of a cancelled job stays for the time of its lease");
                }
                return;
            }
        };
        let patience = if lease.kind == Kind::Run { self.runs } else { self.callbacks };
        let next = patience.next(lease.kind, lease.attempt, outcome);
        self.metrics.attempted(lease.kind, &next);
        if let Err(error) = self.settle(&lease, next).await {
            // The lease runs out, and the job is run again.
            if let Some(times) = self.told.not_stored.tell(Instant::now()) {
                tracing::warn!(job = %lease.id, %error, times, "the end of a job could not be stored");
            }
        }
    }

    async fn settle(&self, lease: &Lease, next: Next) -> Result<(), QueueError> {
        match next {
            Next::End(end) => {
                if let Completion::Dead { why, .. } = &end
                    && let Some(times) = self.told.given_up.tell(Instant::now())
                {
                    let attempts = lease.attempt;
                    tracing::warn!(job = %lease.id, kind = ?lease.kind, attempts, why, times, "given up");
                }
                self.queue.end(lease, end).await?;
            }
            Next::Again { after, why } => {
                self.queue.again(lease, after, &why).await?;
            }
        }
        Ok(())
    }

    async fn tell(&self, lease: &Lease, callback: Option<&str>) -> Outcome {
        let Some(callback) = callback else { return Outcome::Hopeless("there is no callback".to_owned()) };
        let told = async {
            let status = self.queue.status(&lease.id).await?;
            Ok::<_, QueueError>((status, self.queue.answer(&lease.id).await?))
        };
        match told.await {
            Err(error) => Outcome::Failed(error.to_string()),
            Ok((None, _)) => Outcome::Hopeless("the job is no longer kept".to_owned()),
            Ok((Some(status), answer)) => self.receiver.tell(callback, &lease.id, &status, answer).await,
        }
    }

    /// Renews a lease until it is lost, or has ended.
    async fn keep(&self, lease: &Lease) {
        let mut ticks = interval(LEASE / 3);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match self.queue.extend(lease).await {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(times) = self.told.lost.tell(Instant::now()) {
                        tracing::warn!(
                            job = %lease.id,
                            times,
                            "the lease of a job was lost: it was cancelled, or another executor runs it"
                        );
                    }
                    return;
                }
                // It may be back before the lease runs out.
                Err(error) => {
                    if let Some(times) = self.told.not_renewed.tell(Instant::now()) {
                        tracing::warn!(job = %lease.id, %error, times, "the lease of a job was not renewed");
                    }
                }
            }
        }
    }

    /// Waits until a client has ended the job. Its request is dropped then, and with it the connection to the model server.
    async fn cancelled(&self, ended: &mut broadcast::Receiver<JobId>, lease: &Lease) {
        if lease.kind == Kind::Callback {
            return std::future::pending().await;
        }
        loop {
            match ended.recv().await {
                Ok(id) if id == lease.id => {
                    let status = self.queue.status(&id).await;
                    if status.is_ok_and(|status| status.is_some_and(|status| status.state == State::Cancelled)) {
                        return;
                    }
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    async fn measure(&self, stop: &CancellationToken) {
        let mut ticks = interval(Duration::from_secs(5));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Ok(depth) = self.queue.depth().await {
                self.metrics.depth(depth);
            }
        }
    }
}
