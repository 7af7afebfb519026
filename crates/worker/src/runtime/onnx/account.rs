//! Accounts for the memory of the engine's models, and of the process beside them.
//!
//! Sessions are made, measured and freed one at a time ([`EngineLock`]): what the heap grows by is then that session's, and what
//! is resident beside all of them is nobody's: program, libraries, requests in flight, what the allocator holds back, and what a
//! load has taken that is stuck.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_spec::{ByteSize, Digest, InferError, Tensor};
use tokio_util::sync::CancellationToken;

use super::{
    engine_lock::{EngineGuard, EngineLock},
    memory,
};
use crate::runtime::batch::{Engine, StopCondition, View};

/// Contents that are remembered, so that a model that is paged in again is not tried out again: three runs, and a size that
/// nothing disturbs. It takes a few hundred kilobytes.
const MAX_REMEMBERED: usize = 4096;

/// The memory of one engine's models: measured sizes by content, their sum, and what the process takes beside it.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Held while a session is made or freed.
    lock: EngineLock,
    state: Mutex<AccountState>,
    overhead: AtomicU64,
}

/// A load that took less for a moment leaves it to the allocator, which it costs a millisecond to give back.
const GIVEN_BACK_FROM: u64 = 4 << 20;

/// Freed models that together took less stay with the allocator: a load that waits for the room of a small model does not wait a
/// millisecond more for that memory to be given back. Until then it counts as the process's, which is told in steps as large.
const FREED_GIVEN_BACK_FROM: u64 = 1 << 20;

/// Of what loads take for a moment beside the model the most counts, and fades with each load: after 32 loads a third of it is
/// left.
const FADES: u64 = 32;

/// The entries. Locked for a moment.
#[derive(Debug, Default)]
struct AccountState {
    /// Bytes of the sessions that there are.
    live: u64,
    /// Bytes that a load takes for a moment beside the model: the graph as it is read.
    passing: u64,
    /// Bytes of models that were freed since memory was given back last.
    freed: u64,
    known: HashMap<Digest, Measurements>,
}

/// Measurements of an artifact, remembered by its digest.
#[derive(Debug, Clone)]
pub(super) struct Measurements {
    /// The reason why its rows may not be joined; `None`: they may.
    pub(super) verdict: Option<String>,
    /// Bytes of memory that a session of it takes; `None`: not measured yet.
    pub(super) measured: Option<ByteSize>,
}

impl AccountState {
    /// Takes a model out that was freed; true if memory is to be given back now.
    fn take_out(&mut self, memory: ByteSize) -> bool {
        self.live = self.live.saturating_sub(memory.0);
        self.freed += memory.0;
        let much = self.freed >= FREED_GIVEN_BACK_FROM || self.live == 0;
        if much {
            self.freed = 0;
        }
        much
    }

    fn remember(&mut self, digest: Digest, known: Measurements) {
        if self.known.len() < MAX_REMEMBERED || self.known.contains_key(&digest) {
            self.known.insert(digest, known);
        }
    }
}

impl Account {
    /// Waits until no session is being made or freed; `None`: the load was given up before.
    pub(super) fn for_load(&self, given_up: &CancellationToken) -> Option<EngineGuard<'_>> {
        self.lock.for_load(given_up)
    }

    /// The measurements of a content, if there are any.
    pub(super) fn known(&self, digest: &Digest) -> Option<Measurements> {
        self.state().known.get(digest).cloned()
    }

    /// Remembers what was found out.
    pub(super) fn remember(&self, digest: Digest, known: Measurements) {
        self.state().remember(digest, known);
    }

    /// The memory of the process beside the models, the making of another one included; while a session is being made
    /// or freed, the last figure before that.
    pub(super) fn overhead(&self) -> ByteSize {
        self.lock.if_idle(|| self.settle());
        ByteSize(self.overhead.load(Relaxed))
    }

    fn settle(&self) {
        if let Some(resident) = memory::resident() {
            let state = self.state();
            self.overhead.store(resident.saturating_sub(state.live) + state.passing, Relaxed);
        }
    }

    fn state(&self) -> MutexGuard<'_, AccountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An engine's session that is accounted for until it is dropped.
pub(super) struct Accounted<E: Engine> {
    engine: Option<E>,
    memory: ByteSize,
    account: Arc<Account>,
}

impl<E: Engine> Accounted<E> {
    /// Accounts for a session, and for what its making took for a moment beside it. The engine's lock is held.
    pub(super) fn enter(
        engine: E,
        memory: ByteSize,
        passing: ByteSize,
        account: &Arc<Account>,
        _held: &EngineGuard<'_>,
    ) -> Self {
        {
            let mut state = account.state();
            state.live += memory.0;
            state.passing = passing.0.max(state.passing - state.passing / FADES);
        }
        // What the allocator keeps of it would else count as taken.
        if passing.0 > GIVEN_BACK_FROM {
            memory::give_back();
        }
        account.settle();
        Self { engine: Some(engine), memory, account: Arc::clone(account) }
    }
}

impl<E: Engine> Engine for Accounted<E> {
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        match &self.engine {
            Some(engine) => engine.run(inputs, outputs, stop),
            None => Err(InferError::Internal("the session is gone".to_owned())),
        }
    }

    fn is_bounded(&self) -> bool {
        self.engine.as_ref().is_none_or(Engine::is_bounded)
    }

    fn end(&self) {
        if let Some(engine) = &self.engine {
            engine.end();
        }
    }
}

impl<E: Engine> Drop for Accounted<E> {
    fn drop(&mut self) {
        let _held = self.account.lock.for_unload();
        drop(self.engine.take());
        if self.account.state().take_out(self.memory) {
            memory::give_back();
        }
        self.account.settle();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Block(#[expect(dead_code, reason = "it only takes memory")] Vec<u8>);

    impl Engine for Block {
        fn run(&self, _: &[View<'_>], _: &[usize], _: &StopCondition) -> Result<Vec<Tensor>, InferError> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn what_is_entered_is_no_overhead_and_leaves_with_its_session() {
        let account = Arc::new(Account::default());
        let before = account.overhead();
        assert!(before > ByteSize::mib(1), "the program itself");
        let size = ByteSize::mib(64);
        let held = account.for_load(&CancellationToken::new()).expect("nobody holds it");
        let entered = Accounted::enter(Block(vec![1; size.0 as usize]), size, ByteSize::ZERO, &account, &held);
        assert_eq!(account.overhead(), ByteSize(account.overhead.load(Relaxed)), "a load is not waited for");
        drop(held);
        let after = account.overhead();
        assert!(after.0 < before.0 + size.0 / 2, "{after} after {before}");
        let stop = StopCondition::at(std::time::Instant::now());
        assert!(entered.run(&[], &[], &stop).is_ok_and(|outputs| outputs.is_empty()));
        drop(entered);
        assert_eq!(account.state().live, 0);
    }

    #[test]
    fn memory_is_given_back_when_much_was_freed_or_no_model_is_left() {
        let (small, large) = (ByteSize(FREED_GIVEN_BACK_FROM / 4), ByteSize(FREED_GIVEN_BACK_FROM));
        let mut state = AccountState { live: large.0 + 6 * small.0, ..AccountState::default() };
        assert_eq!([(); 4].map(|()| state.take_out(small)), [false, false, false, true]);
        assert!(state.take_out(large));
        assert_eq!([(); 2].map(|()| state.take_out(small)), [false, true], "the last one");
        assert_eq!(state.live, 0);
    }

    #[test]
    fn contents_are_remembered_up_to_a_bound() {
        let mut state = AccountState::default();
        let known = |bytes| Measurements { verdict: None, measured: Some(ByteSize(bytes)) };
        let digest = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            Digest(bytes)
        };
        (0..MAX_REMEMBERED).for_each(|n| state.remember(digest(n), known(1)));
        state.remember(digest(MAX_REMEMBERED), known(1));
        state.remember(digest(0), known(2));
        assert!(!state.known.contains_key(&digest(MAX_REMEMBERED)));
        assert_eq!(state.known.get(&digest(0)).and_then(|known| known.measured), Some(ByteSize(2)));
    }
}
