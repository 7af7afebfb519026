//! The models of one runtime and the memory that they take there, those included that it has not let go of yet.
//!
//! ```text
//! enter ─▶ loaded ─▶ leave ─▶ leaving ─┬─ unloaded ─▶ (gone)
//!   ▲ waits while what leaves is in the way │ failed: again, after a while
//!   └── the same id is loaded again: the attempts end, and its room is taken over
//! ```

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_spec::{ByteSize, FailureCategory};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::runtime::LoadError;

/// The wait of a load for room that is being freed: ModelMesh's figure.
const PATIENCE: Duration = Duration::from_secs(180);

/// The models of a runtime by their ids there.
pub(super) struct Room {
    /// In bytes; 0: not known.
    capacity: u64,
    /// The part of it that is kept for models that are leaving.
    reserve: u64,
    models: Mutex<HashMap<String, Standing>>,
    changed: Notify,
}

#[derive(Debug, Clone)]
struct Standing {
    size: u64,
    /// Set while it is being unloaded; cancelled when the same model is wanted again.
    leaving: Option<CancellationToken>,
}

impl Room {
    pub(super) fn new(capacity: u64, reserve: u64) -> Self {
        Self { capacity, reserve, models: Mutex::default(), changed: Notify::new() }
    }

    /// The bytes that models may take; 0: not known.
    pub(super) fn for_models(&self) -> u64 {
        self.capacity.saturating_sub(self.reserve)
    }

    /// True if what is leaving fits into the part that is kept for it: then nobody waits for it.
    pub(super) fn leaves_beside(&self) -> bool {
        let leaving: u64 = self.locked().values().filter(|one| one.leaving.is_some()).map(|one| one.size).sum();
        self.reserve > 0 && leaving <= self.reserve
    }

    /// Takes the first of `names` that is free, and room for `size` bytes. One that is just leaving is waited for. Gives the
    /// name.
    pub(super) async fn enter<'n>(&self, names: [&'n str; 2], size: u64) -> Result<&'n str, LoadError> {
        let end = Instant::now() + PATIENCE;
        loop {
            let changed = self.changed.notified();
            let in_the_way = match self.look(names, size) {
                Ok(name) => return Ok(name),
                Err(in_the_way) => in_the_way,
            };
            if tokio::time::timeout_at(end, changed).await.is_err() {
                let seconds = PATIENCE.as_secs();
                let message = format!(
                    "the runtime has not let go of {in_the_way} within {seconds} s: see its log for unloads that fail"
                );
                return Err(LoadError::new(FailureCategory::Memory, message));
            }
        }
    }

    /// A name, or what is in the way.
    fn look<'n>(&self, names: [&'n str; 2], size: u64) -> Result<&'n str, String> {
        let mut models = self.locked();
        let free = names.into_iter().find(|name| models.get(*name).is_none_or(|standing| standing.leaving.is_some()));
        let name = free.unwrap_or(names[1]);
        match models.get(name) {
            Some(Standing { leaving: Some(again), .. }) => {
                again.cancel();
                return Err(format!("model {name:?}"));
            }
            Some(_) => return Err(format!("model {name:?}, which is loaded twice")),
            None => {}
        }
        let leaving: u64 = models.values().filter(|standing| standing.leaving.is_some()).map(|one| one.size).sum();
        let held: u64 = models.values().map(|standing| standing.size).sum();
        if leaving > 0 && self.capacity > 0 && held.saturating_add(size) > self.capacity {
            return Err(format!("{} of models that it was told to unload", ByteSize(leaving)));
        }
        models.insert(name.to_owned(), Standing { size, leaving: None });
        Ok(name)
    }

    /// The model's size is known better.
    pub(super) fn measured(&self, name: &str, size: u64) {
        if let Some(standing) = self.locked().get_mut(name) {
            standing.size = size;
        }
    }

    /// The model is to leave. Gives what ends the attempts.
    pub(super) fn leave(&self, name: &str) -> CancellationToken {
        let token = CancellationToken::new();
        if let Some(standing) = self.locked().get_mut(name) {
            standing.leaving = Some(token.clone());
        }
        token
    }

    /// The model has gone, or its place is taken over.
    pub(super) fn gone(&self, name: &str) {
        self.locked().remove(name);
        self.changed.notify_waiters();
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Standing>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_not_left_counts() {
        let room = Room::new(100, 0);
        assert_eq!(room.enter(["a", "a@1"], 60).await.ok(), Some("a"));
        assert_eq!(room.enter(["a", "a@2"], 60).await.ok(), Some("a@2"), "what the plan wants is not refused here");
        let _again = room.leave("a");
        assert!(room.enter(["b", "b@1"], 10).now_or_never().is_none(), "there is no room until it has left");
        room.gone("a");
        assert_eq!(room.enter(["b", "b@1"], 10).await.ok(), Some("b"));
        let _stuck = room.leave("b");
        let refused = room.enter(["c", "c@1"], 90).await.expect_err("it never leaves");
        assert_eq!(refused.category, FailureCategory::Memory);
    }

    #[tokio::test(start_paused = true)]
    async fn what_leaves_has_a_place_of_its_own() {
        let room = Room::new(100, 20);
        assert_eq!(room.for_models(), 80);
        for name in ["a", "b", "c", "d"] {
            room.enter([name, name], 20).await.expect("room");
        }
        let _leaves = room.leave("a");
        assert!(room.leaves_beside());
        assert_eq!(room.enter(["e", "e"], 20).await.ok(), Some("e"), "nobody waits for it");
        let _leaves = room.leave("b");
        assert!(!room.leaves_beside(), "two of them do not fit");
        assert!(room.enter(["f", "f"], 20).now_or_never().is_none());
        room.gone("a");
        assert_eq!(room.enter(["f", "f"], 20).await.ok(), Some("f"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_that_comes_back_ends_the_attempts_to_unload_it() {
        let room = Room::new(0, 0);
        room.enter(["a", "a@1"], 1).await.expect("a name");
        let again = room.leave("a");
        let mut back = Box::pin(room.enter(["a", "a@1"], 1));
        assert!(back.as_mut().now_or_never().is_none());
        assert!(again.is_cancelled());
        room.gone("a");
        assert_eq!(back.await.ok(), Some("a"));
    }
}
