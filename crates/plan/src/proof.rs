//! Proof that a revision works: its validation inference.
//!
//! A request that is made of a signature alone shows little when it is refused: a model that turns text into numbers is
//! right to refuse `""`. So it keeps nobody from a first revision. It does show something when the revision that serves
//! answers it and its successor does not; that successor is not let in.

use std::{cell::OnceCell, sync::Arc};

use berth_spec::{Deployment, Placed, Residency, RevisionId, Serving, deployment::Warmup};

use crate::{Record, World};

/// The reason why the validation inference of the revision that serves proves nothing, if so.
pub(crate) fn lacking<'a>(world: &'a World, record: &Record) -> Option<&'a str> {
    let serving = record.rollout.serving()?;
    record.replicas.iter().filter(|replica| replica.revision == *serving).find_map(|replica| {
        match world.workers.get(&replica.worker)?.inventory.get(serving)? {
            Residency::Ready(ready) => ready.unvalidated.as_deref(),
            _ => None,
        }
    })
}

/// Serving settings of a deployment's replicas.
pub(crate) struct Settings {
    /// Settings of all other revisions.
    plain: Arc<Serving>,
    /// True where a revision has to answer what its predecessor answers.
    tries: bool,
    /// Settings of such a revision, made when the first one is met: nearly always there is none.
    on_trial: OnceCell<Arc<Serving>>,
    /// The revision that is to replace the one that serves.
    challenger: Option<RevisionId>,
}

impl Settings {
    /// Derives the settings of a deployment's replicas from its spec and its record.
    pub(crate) fn of(world: &World, deployment: &Deployment, record: &Record) -> Self {
        let asked = &deployment.spec.warmup;
        let plain = Arc::new(Serving {
            deployment: deployment.name.clone(),
            warmup: asked.clone(),
            concurrency: deployment.spec.concurrency,
            batching: deployment.spec.batching,
            drain_timeout: deployment.spec.rollout.drain_timeout,
        });
        let tries = *asked == Warmup::Generated && lacking(world, record).is_none();
        Self { plain, tries, on_trial: OnceCell::new(), challenger: record.rollout.challenger().cloned() }
    }

    /// The settings of one revision; shared with what was assigned before where they are equal.
    pub(crate) fn for_replica(&self, revision: &RevisionId, before: Option<&Placed>) -> Arc<Serving> {
        let before = before.map(|before| &before.serving);
        let was_tried = |before: &Arc<Serving>| before.warmup == Warmup::Required && **before == **self.on_trial();
        // That a trial is over is no news for the worker.
        let is_tried = self.tries && (self.challenger.as_ref() == Some(revision) || before.is_some_and(was_tried));
        let serving = if is_tried { self.on_trial() } else { &self.plain };
        Arc::clone(before.filter(|before| ***before == **serving).unwrap_or(serving))
    }

    fn on_trial(&self) -> &Arc<Serving> {
        self.on_trial.get_or_init(|| Arc::new(Serving { warmup: Warmup::Required, ..Serving::clone(&self.plain) }))
    }
}
