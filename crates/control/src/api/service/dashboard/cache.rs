//! One value that is expensive to compute, for many who ask: computed by one of them, given to all.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, time::Instant};

/// Times its own duration that a value is kept. At most a tenth of one core is spent on recomputing it.
const SPARES: u32 = 10;

/// A value and when it was computed.
#[derive(Debug)]
struct Computed<T> {
    value: Arc<T>,
    at: Instant,
    took: Duration,
}

/// Cache of one value that costs much to compute, shared by all who ask for it.
#[derive(Debug)]
pub(super) struct Cached<T>(Mutex<Option<Computed<T>>>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Cached<T> {
    /// The value, unless it is older than `fresh_for` and than [`SPARES`] times what it cost; then it is computed anew. Who
    /// asks meanwhile waits for that one.
    pub(super) async fn get<E, F>(&self, fresh_for: Duration, compute: impl FnOnce() -> F) -> Result<Arc<T>, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut kept = self.0.lock().await;
        if let Some(kept) = kept.as_ref()
            && kept.at.elapsed() < fresh_for.max(kept.took * SPARES)
        {
            return Ok(Arc::clone(&kept.value));
        }
        let began = Instant::now();
        let value = Arc::new(compute().await?);
        let at = Instant::now();
        *kept = Some(Computed { value: Arc::clone(&value), at, took: at - began });
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn many_who_ask_cost_one_and_a_dear_value_is_kept_longer() {
        let (cached, computed) = (Cached::<u32>::default(), std::sync::atomic::AtomicU32::new(0));
        let compute = |costs: u64| {
            let computed = &computed;
            move || async move {
                sleep(Duration::from_millis(costs)).await;
                Ok::<_, ()>(computed.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
            }
        };
        let fresh = Duration::from_secs(1);
        let asked = futures::future::join_all((0..8).map(|_| cached.get(fresh, compute(300)))).await;
        assert!(asked.iter().all(|value| value.as_ref().is_ok_and(|value| **value == 0)), "{asked:?}");
        sleep(Duration::from_millis(2_500)).await;
        assert_eq!(cached.get(fresh, compute(1)).await.map(|value| *value), Ok(0), "it cost 300 ms");
        sleep(Duration::from_millis(600)).await;
        assert_eq!(cached.get(fresh, compute(1)).await.map(|value| *value), Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_not_kept() {
        let cached = Cached::<u32>::default();
        assert_eq!(cached.get(Duration::MAX, || async { Err("no") }).await, Err("no"));
        assert_eq!(cached.get(Duration::MAX, || async { Ok::<_, &str>(7) }).await.map(|value| *value), Ok(7));
    }
}
