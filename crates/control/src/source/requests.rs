//! Requests to a source: look now, a webhook came, pause, resume.

use axum::http::HeaderMap;
use tokio::sync::{mpsc, watch};

/// A request to a running source, from people or a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// A person asks for a look now.
    Sync,
    /// A webhook came: something may have changed.
    Webhook,
    /// A person pauses the source: what it declared stays, and nothing new is taken.
    Pause,
    /// A person resumes the source, which reads at once.
    Resume,
}

/// Decides which webhooks of a source are genuine.
pub trait Webhook: Send + Sync {
    /// Checks the proof that a webhook carries; the error says what is missing.
    ///
    /// # Errors
    /// What the sender has to mend.
    fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), String>;
}

/// The sending end: one slot for each kind, so that a storm of webhooks cannot hide a person's request.
#[derive(Debug, Clone)]
pub(super) struct RequestSender {
    sync: mpsc::Sender<()>,
    webhook: mpsc::Sender<()>,
    pub(super) paused: watch::Sender<bool>,
}

impl RequestSender {
    /// False once the source has ended.
    pub(super) fn send(&self, request: Request) -> bool {
        let slot = match request {
            Request::Sync => &self.sync,
            Request::Webhook => &self.webhook,
            Request::Pause | Request::Resume => {
                self.paused.send_replace(request == Request::Pause);
                return self.paused.receiver_count() > 0;
            }
        };
        // A full slot holds the same request already.
        !matches!(slot.try_send(()), Err(mpsc::error::TrySendError::Closed(())))
    }
}

/// The source's end of its requests. Equal ones that wait are one.
#[derive(Debug)]
pub struct Requests {
    sync: mpsc::Receiver<()>,
    webhook: mpsc::Receiver<()>,
    paused: watch::Receiver<bool>,
}

impl Requests {
    /// The next request; pending for ever once nobody can ask.
    pub async fn next(&mut self) -> Request {
        let Self { sync, webhook, paused } = self;
        tokio::select! {
            biased;
            Ok(()) = paused.changed() => if *paused.borrow_and_update() { Request::Pause } else { Request::Resume },
            Some(()) = sync.recv() => Request::Sync,
            Some(()) = webhook.recv() => Request::Webhook,
            else => std::future::pending().await,
        }
    }

    /// True while a person has paused the source.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }
}

/// Makes both ends for a source that begins, paused or not.
pub(super) fn requests(paused: bool) -> (RequestSender, Requests) {
    let ((syncs, sync), (webhooks, webhook)) = (mpsc::channel(1), mpsc::channel(1));
    let (pauses, paused) = watch::channel(paused);
    (RequestSender { sync: syncs, webhook: webhooks, paused: pauses }, Requests { sync, webhook, paused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_person_is_heard_in_a_storm_of_webhooks() {
        let (sender, mut requests) = requests(false);
        for _ in 0..100 {
            assert!(sender.send(Request::Webhook));
        }
        assert!(sender.send(Request::Sync) && sender.send(Request::Pause));
        assert_eq!(requests.next().await, Request::Pause);
        assert_eq!((requests.next().await, requests.next().await), (Request::Sync, Request::Webhook), "each once");
        assert!(requests.is_paused());
        drop(requests);
        assert!(!sender.send(Request::Sync) && !sender.send(Request::Resume), "the source has ended");
    }
}
