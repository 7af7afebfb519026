//! Connections to a runtime, one for each thread that serves requests: a request changes no thread on its way.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
    thread::ThreadId,
};

use tonic::transport::{Channel, Endpoint};

/// Threads that have one at once. There are as many as cores; those of threads that ended are let go of beyond this.
const MOST: usize = 256;

/// The connections. Each is made when it is first used, and again when it broke.
pub(super) struct Lines {
    endpoint: Endpoint,
    by_thread: RwLock<HashMap<ThreadId, Channel>>,
}

impl Lines {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, by_thread: RwLock::default() }
    }

    /// The connection of this thread. Must be called within a runtime of tokio.
    pub(super) fn here(&self) -> Channel {
        let thread = std::thread::current().id();
        if let Some(channel) = self.by_thread.read().unwrap_or_else(PoisonError::into_inner).get(&thread) {
            return channel.clone();
        }
        let channel = self.endpoint.connect_lazy();
        let mut by_thread = self.by_thread.write().unwrap_or_else(PoisonError::into_inner);
        if by_thread.len() >= MOST {
            by_thread.clear();
        }
        by_thread.insert(thread, channel.clone());
        channel
    }
}
