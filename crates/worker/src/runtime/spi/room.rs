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
    models: Mutex<Models>,
    changed: Notify,
}

/// The models, and sums over them: a runtime may hold thousands, and each load asks for the sums.
#[derive(Debug, Default)]
struct Models {
    by_name: HashMap<String, HeldModel>,
    /// Bytes of all of them. Wider than a size: what a runtime says of one is not believed to be true.
    held: u128,
    /// Bytes of those that are leaving.
    leaving: u128,
}

#[derive(Debug, Clone)]
struct HeldModel {
    size: u64,
    /// Set while it is being unloaded; cancelled when the same model is wanted again.
    leaving: Option<CancellationToken>,
}

impl Models {
    /// Notes how a model stands now; `None`: it is gone.
    fn set(&mut self, name: &str, now: Option<HeldModel>) {
        if let Some(now) = &now {
            self.held += u128::from(now.size);
            self.leaving += u128::from(now.leaving_size());
        }
        let before = match now {
            Some(now) => self.by_name.insert(name.to_owned(), now),
            None => self.by_name.remove(name),
        };
        if let Some(before) = before {
            self.held -= u128::from(before.size);
            self.leaving -= u128::from(before.leaving_size());
        }
    }

    /// Changes how a model stands, if it is there.
    fn change(&mut self, name: &str, change: impl FnOnce(HeldModel) -> HeldModel) {
        if let Some(standing) = self.by_name.get(name).cloned() {
            self.set(name, Some(change(standing)));
        }
    }
}

impl HeldModel {
    fn leaving_size(&self) -> u64 {
        if self.leaving.is_some() { self.size } else { 0 }
    }
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
        self.reserve > 0 && self.locked().leaving <= u128::from(self.reserve)
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
        let is_free = |name: &&str| models.by_name.get(*name).is_none_or(|standing| standing.leaving.is_some());
        let name = names.into_iter().find(is_free).unwrap_or(names[1]);
        match models.by_name.get(name) {
            Some(HeldModel { leaving: Some(again), .. }) => {
                again.cancel();
                return Err(format!("model {name:?}"));
            }
            Some(_) => return Err(format!("model {name:?}, which is loaded twice")),
            None => {}
        }
        if models.leaving > 0 && self.capacity > 0 && models.held + u128::from(size) > u128::from(self.capacity) {
            let leaving = ByteSize(u64::try_from(models.leaving).unwrap_or(u64::MAX));
            return Err(format!("{leaving} of models that it was told to unload"));
        }
        models.set(name, Some(HeldModel { size, leaving: None }));
        Ok(name)
    }

    /// The model's size is known better.
    pub(super) fn measured(&self, name: &str, size: u64) {
        self.locked().change(name, |standing| HeldModel { size, ..standing });
    }

    /// The model is to leave. Gives what ends the attempts.
    pub(super) fn leave(&self, name: &str) -> CancellationToken {
        let token = CancellationToken::new();
        self.locked().change(name, |standing| HeldModel { leaving: Some(token.clone()), ..standing });
        token
    }

    /// The model has gone, or its place is taken over.
    pub(super) fn gone(&self, name: &str) {
        self.locked().set(name, None);
        self.changed.notify_waiters();
    }

    fn locked(&self) -> MutexGuard<'_, Models> {
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
    async fn the_sums_are_those_of_the_models() {
        let room = Room::new(1_000, 100);
        let sums = |room: &Room| {
            let models = room.locked();
            let sum = |of: fn(&HeldModel) -> u64| models.by_name.values().map(|one| u128::from(of(one))).sum::<u128>();
            assert_eq!((models.held, models.leaving), (sum(|one| one.size), sum(HeldModel::leaving_size)));
            (models.held, models.leaving)
        };
        for name in ["a", "b"] {
            room.enter([name, name], 20).await.expect("room");
        }
        room.measured("a", 30);
        room.measured("gone", 30);
        assert_eq!(sums(&room), (50, 0));
        let _leaves = (room.leave("a"), room.leave("a"), room.leave("gone"));
        room.measured("a", 40);
        assert_eq!(sums(&room), (60, 40));
        room.gone("a");
        room.gone("a");
        assert_eq!(sums(&room), (20, 0));
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
