//! Registry's terms for workers.

use std::sync::Arc;

use berth_spec::{Time, UnknownWorkers, WorkerId, WorkerTerms, event::Severity};

use super::{Controller, Effect, event};

impl Controller {
    pub(super) fn terms(
        &mut self,
        worker: &WorkerId,
        terms: Option<Arc<WorkerTerms>>,
        now: Time,
        out: &mut Vec<Effect>,
    ) {
        if self.world.terms(worker) == terms.as_ref() {
            return;
        }
        let message = match &terms {
            Some(terms) => format!("the registry says of {worker}: {}", in_words(terms)),
            None => format!("the registry says nothing of {worker} any more"),
        };
        self.named_since.set(worker, terms.is_some(), now);
        self.world.set_terms(worker, terms);
        out.push(Effect::Emit(event::worker(worker, Severity::Normal, "TermsChanged", message, now)));
        self.due.change(now);
    }

    pub(super) fn unknown_workers(&mut self, unknown: UnknownWorkers, now: Time, out: &mut Vec<Effect>) {
        if self.world.unknown_workers() == unknown {
            return;
        }
        self.world.set_unknown_workers(unknown);
        for (worker, tracked) in self.world.workers().filter(|(_, tracked)| tracked.unlisted) {
            let held = tracked.assigned.len();
            let message = format!("{worker} is not named by the registry, and gets no models; {held} move elsewhere");
            out.push(Effect::Emit(event::worker(worker, Severity::Warning, "WorkerUnlisted", message, now)));
        }
        self.due.change(now);
    }

    /// After a plan: workers that are attached, would not be let in if they came now, and hold nothing any more are turned
    /// away. What they held has moved elsewhere first. The worker of a process that is alone stays: nobody would attach it
    /// again when it is named.
    pub(super) fn turn_away(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.members.is_empty() || self.world.unknown_workers() != UnknownWorkers::Refuse {
            return;
        }
        let is_empty = |worker: &WorkerId| {
            self.world.worker(worker).is_some_and(|tracked| tracked.assigned.is_empty() && tracked.inventory.is_empty())
        };
        let attached = self.workers.iter().filter(|(_, attached)| attached.reported).map(|(worker, _)| worker);
        let away: Vec<WorkerId> =
            attached.filter(|worker| self.world.refuses(worker) && is_empty(worker)).cloned().collect();
        for worker in away {
            self.workers.remove(&worker);
            self.emptying.remove(&worker);
            self.world.turn_away(&worker);
            let message = format!("{worker} is not named by the registry, holds nothing any more, and is turned away");
            out.push(Effect::Emit(event::worker(&worker, Severity::Warning, "WorkerTurnedAway", message, now)));
            out.push(Effect::HangUp(worker));
        }
    }
}

/// For people: `at most 5 models, 16GiB of memory; evicts nothing by itself`.
fn in_words(terms: &WorkerTerms) -> String {
    let most = [
        terms.max_models.map(|models| format!("{models} models")),
        terms.memory.map(|memory| format!("{memory} of memory")),
        terms.cpus.map(|cpus| format!("{cpus} cores")),
        terms.max_gpus.map(|gpus| format!("{gpus} GPUs")),
    ];
    let most: Vec<String> = most.into_iter().flatten().collect();
    let most = if most.is_empty() { "as much as it has".to_owned() } else { format!("at most {}", most.join(", ")) };
    let evicts = if terms.eviction.automatic { "" } else { "; evicts nothing by itself" };
    format!("{most}; model cards {}{evicts}", terms.schema_versions.join(", "))
}
