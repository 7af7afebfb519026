//! One at a time per key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets one holder per key through; the others wait in order.
#[derive(Debug, Default)]
pub(crate) struct KeyLock {
    keys: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl KeyLock {
    /// Waits until nobody else holds `key`. Dropping the permit lets the next one through.
    pub(crate) async fn acquire(&self, key: &str) -> OwnedSemaphorePermit {
        let semaphore = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.retain(|_, semaphore| semaphore.strong_count() > 0);
            match keys.get(key).and_then(Weak::upgrade) {
                Some(semaphore) => semaphore,
                None => {
                    let semaphore = Arc::new(Semaphore::new(1));
                    keys.insert(key.to_owned(), Arc::downgrade(&semaphore));
                    semaphore
                }
            }
        };
        semaphore.acquire_owned().await.expect("the semaphore is never closed")
    }
}
