//! Conversion of inventories: the replicas that a worker reports.

use std::sync::Arc;

use berth_spec::{
    Breaker, ByteSize, Digest, Failure, FailureCategory, Generation, GpuLoad, InventoryChange, Load, Residency,
    RevisionId, Time, Usage, WorkerId, WorkerState,
    residency::{Attempt, Deaths, Phases, Preparing, Ready},
    shortened,
    worker::{BreakerState, DependencyKind},
};
use prost::Message;

use super::{
    name::{digest_of, digest_to, name_of, name_to, signature_of, signature_to},
    parts::{Budget, InParts, Numbering, fill},
    v1::{self, replica::Detail},
};

/// Worker whose reports arrive on a stream, as its first message said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reporter {
    /// Name of the worker, which its certificate allows.
    pub worker: WorkerId,
    /// Start of its process, as a number.
    pub incarnation: u64,
}

impl InParts for InventoryChange {
    type Part = v1::InventoryPart;
    type Context = Reporter;

    fn in_parts(self) -> impl Iterator<Item = v1::InventoryPart> + Send + 'static {
        let Self { seen, whole, state, mut load, mut breakers, credentials, overhead, replicas, usage, .. } = self;
        let mut replicas = replicas.into_iter().map(|(id, residency)| replica_to(&id, residency)).peekable();
        let mut usage = usage.into_iter().map(usage_to).peekable();
        let mut numbering = Numbering::default();
        std::iter::from_fn(move || {
            let (part, mut budget) = (numbering.next()?, Budget::default());
            Some(v1::InventoryPart {
                part,
                seen: seen.0,
                whole,
                state: state_to(state).into(),
                load: load.take().map(load_to),
                breakers: breakers.take().map(breakers_to),
                credentials: credentials.0,
                overhead: overhead.0,
                replicas: fill(&mut replicas, &mut budget, Message::encoded_len),
                usage: fill(&mut usage, &mut budget, Message::encoded_len),
                more: numbering.more(replicas.peek().is_some() || usage.peek().is_some()),
            })
        })
    }

    fn place(part: &v1::InventoryPart) -> (u32, bool) {
        (part.part, part.more)
    }

    fn begin(reporter: &Reporter, first: &mut v1::InventoryPart) -> Self {
        Self {
            worker: reporter.worker.clone(),
            incarnation: reporter.incarnation,
            seen: Generation(first.seen),
            whole: first.whole,
            state: state_of(first.state),
            load: first.load.take().map(load_of),
            breakers: first.breakers.take().map(breakers_of),
            credentials: Generation(first.credentials),
            overhead: ByteSize(first.overhead),
            replicas: Vec::new(),
            usage: Vec::new(),
        }
    }

    fn add(&mut self, part: v1::InventoryPart) -> usize {
        let listed = part.replicas.len() + self.replicas.len() + part.usage.len() + self.usage.len();
        self.replicas.extend(part.replicas.into_iter().filter_map(replica_of));
        self.usage.extend(part.usage.into_iter().filter_map(usage_of));
        listed - self.replicas.len() - self.usage.len()
    }
}

fn usage_to((id, usage): (RevisionId, Usage)) -> v1::Usage {
    v1::Usage { name: Some(name_to(&id)), requests: usage.requests, last: usage.last.map(|at| at.0) }
}

/// `None`: it has no name that can be understood.
fn usage_of(usage: v1::Usage) -> Option<(RevisionId, Usage)> {
    Some((name_of(usage.name?)?, Usage { requests: usage.requests, last: usage.last.map(Time) }))
}

const fn state_to(state: WorkerState) -> v1::WorkerState {
    match state {
        WorkerState::Serving => v1::WorkerState::Serving,
        WorkerState::Leaving => v1::WorkerState::Leaving,
    }
}

fn state_of(state: i32) -> WorkerState {
    match v1::WorkerState::try_from(state) {
        Ok(v1::WorkerState::Leaving) => WorkerState::Leaving,
        Ok(v1::WorkerState::Serving) | Err(_) => WorkerState::Serving,
    }
}

fn load_to(load: Load) -> v1::Load {
    let [cpu_now, cpu_one_minute, cpu_five_minutes] = load.cpu_percent;
    v1::Load {
        at: load.at.0,
        cpu_now,
        cpu_one_minute,
        cpu_five_minutes,
        memory_used: load.memory_used.0,
        queue: load.queue,
        requests_per_minute: load.requests_per_minute,
        degraded: load.degraded,
        gpus: load.gpus.iter().map(gpu_to).collect(),
    }
}

fn gpu_to(gpu: &GpuLoad) -> v1::GpuLoad {
    v1::GpuLoad { id: gpu.id.to_string(), memory_used: gpu.memory_used.0, utilization_percent: gpu.utilization_percent }
}

fn gpu_of(gpu: v1::GpuLoad) -> GpuLoad {
    let v1::GpuLoad { id, memory_used, utilization_percent } = gpu;
    GpuLoad { id: id.into(), memory_used: ByteSize(memory_used), utilization_percent }
}

fn load_of(load: v1::Load) -> Load {
    Load {
        at: Time(load.at),
        cpu_percent: [load.cpu_now, load.cpu_one_minute, load.cpu_five_minutes],
        memory_used: ByteSize(load.memory_used),
        queue: load.queue,
        requests_per_minute: load.requests_per_minute,
        degraded: load.degraded,
        gpus: load.gpus.into_iter().map(gpu_of).collect(),
    }
}

fn breakers_to(breakers: Vec<Breaker>) -> v1::Breakers {
    let one = |breaker: Breaker| v1::Breaker {
        dependency: breaker.dependency.to_string(),
        kind: match breaker.kind {
            DependencyKind::Storage => v1::DependencyKind::Storage,
            DependencyKind::Git => v1::DependencyKind::Git,
            DependencyKind::Packages => v1::DependencyKind::Packages,
        }
        .into(),
        state: match breaker.state {
            BreakerState::Closed => v1::BreakerState::Closed,
            BreakerState::Open => v1::BreakerState::Open,
            BreakerState::HalfOpen => v1::BreakerState::HalfOpen,
        }
        .into(),
        failures: breaker.failures,
        opened_at: breaker.opened_at.map(|at| at.0),
        retry_at: breaker.retry_at.map(|at| at.0),
    };
    v1::Breakers { breakers: breakers.into_iter().map(one).collect() }
}

fn breakers_of(breakers: v1::Breakers) -> Vec<Breaker> {
    let one = |breaker: v1::Breaker| Breaker {
        kind: match breaker.kind() {
            v1::DependencyKind::Storage => DependencyKind::Storage,
            v1::DependencyKind::Git => DependencyKind::Git,
            v1::DependencyKind::Packages => DependencyKind::Packages,
        },
        state: match breaker.state() {
            v1::BreakerState::Closed => BreakerState::Closed,
            v1::BreakerState::Open => BreakerState::Open,
            v1::BreakerState::HalfOpen => BreakerState::HalfOpen,
        },
        failures: breaker.failures,
        opened_at: breaker.opened_at.map(Time),
        retry_at: breaker.retry_at.map(Time),
        dependency: breaker.dependency.into(),
    };
    breakers.breakers.into_iter().map(one).collect()
}

const fn preparing_to(preparing: &Preparing) -> v1::Preparing {
    match preparing {
        Preparing::Artifact => v1::Preparing::Artifact,
        Preparing::Code => v1::Preparing::Code,
        Preparing::SystemPackages => v1::Preparing::SystemPackages,
        Preparing::Environment(_) => v1::Preparing::Environment,
    }
}

fn preparing_of(preparing: i32, activity: String) -> Preparing {
    match v1::Preparing::try_from(preparing) {
        Ok(v1::Preparing::Artifact) => Preparing::Artifact,
        Ok(v1::Preparing::Code) => Preparing::Code,
        Ok(v1::Preparing::SystemPackages) => Preparing::SystemPackages,
        Ok(v1::Preparing::Environment) | Err(_) => {
            let activity = Some(activity).filter(|text| !text.is_empty());
            Preparing::Environment(activity.map(|text| shortened(text, Preparing::MAX_ACTIVITY).into()))
        }
    }
}

fn replica_to(id: &RevisionId, residency: Option<Residency>) -> v1::Replica {
    use v1::Residency as Word;
    let activity = match &residency {
        Some(Residency::Preparing(Preparing::Environment(Some(activity)))) => activity.to_string(),
        _ => String::new(),
    };
    let (word, detail) = match residency {
        None => (Word::Gone, None),
        Some(Residency::Queued) => (Word::Queued, None),
        Some(Residency::Fetching { done, total }) => {
            let fetching = v1::Fetching { done: done.0, total: total.map(|total| total.0) };
            (Word::Fetching, Some(Detail::Fetching(fetching)))
        }
        Some(Residency::Preparing(what)) => (Word::Preparing, Some(Detail::Preparing(preparing_to(&what).into()))),
        Some(Residency::Loading) => (Word::Loading, None),
        Some(Residency::Validating) => (Word::Validating, None),
        Some(Residency::Ready(ready)) => (Word::Ready, Some(Detail::Ready(ready_to(&ready)))),
        Some(Residency::Draining { since, in_flight }) => {
            (Word::Draining, Some(Detail::Draining(v1::Draining { since: since.0, in_flight })))
        }
        Some(Residency::Failed(failure)) => (Word::Failed, Some(Detail::Failed(failed_to(&failure)))),
    };
    v1::Replica { name: Some(name_to(id)), residency: word.into(), detail, activity }
}

/// `None`: it has no name that can be understood.
fn replica_of(replica: v1::Replica) -> Option<(RevisionId, Option<Residency>)> {
    use v1::Residency as Word;
    let id = name_of(replica.name?)?;
    let residency = match (v1::Residency::try_from(replica.residency), replica.detail) {
        (Ok(Word::Gone), _) => return Some((id, None)),
        (Ok(Word::Queued), _) => Residency::Queued,
        (Ok(Word::Fetching), Some(Detail::Fetching(fetching))) => {
            Residency::Fetching { done: ByteSize(fetching.done), total: fetching.total.map(ByteSize) }
        }
        (Ok(Word::Fetching), _) => Residency::Fetching { done: ByteSize::ZERO, total: None },
        (Ok(Word::Preparing), Some(Detail::Preparing(what))) => {
            Residency::Preparing(preparing_of(what, replica.activity))
        }
        (Ok(Word::Preparing), _) => Residency::Preparing(Preparing::Environment(None)),
        (Ok(Word::Validating), _) => Residency::Validating,
        (Ok(Word::Ready), Some(Detail::Ready(ready))) => Residency::Ready(Arc::new(ready_of(ready))),
        (Ok(Word::Draining), Some(Detail::Draining(draining))) => {
            Residency::Draining { since: Time(draining.since), in_flight: draining.in_flight }
        }
        (Ok(Word::Failed), Some(Detail::Failed(failed))) => Residency::Failed(Arc::new(failed_of(failed))),
        // Whatever a later version calls it: it takes up memory and does not answer.
        (Ok(Word::Loading | Word::Ready | Word::Draining | Word::Failed) | Err(_), _) => Residency::Loading,
    };
    Some((id, Some(residency)))
}

fn ready_to(ready: &Ready) -> v1::Ready {
    v1::Ready {
        since: ready.since.0,
        memory: ready.memory.0,
        measured: ready.measured,
        digest: digest_to(Some(ready.digest)),
        signature: ready.signature.as_deref().map(signature_to),
        queued_ms: ready.phases.queued_ms,
        fetch_ms: ready.phases.fetch_ms,
        load_ms: ready.phases.load_ms,
        validate_ms: ready.phases.validate_ms,
        note: ready.note.clone(),
        unvalidated: ready.unvalidated.clone(),
        deaths: ready.deaths.as_deref().map(deaths_to),
        devices: ready.devices.iter().map(ToString::to_string).collect(),
    }
}

fn deaths_to(deaths: &Deaths) -> v1::Deaths {
    let Deaths { count, in_a_row, at, cause, again_at } = deaths;
    v1::Deaths {
        count: *count,
        in_a_row: *in_a_row,
        at: at.0,
        how: cause.clone(),
        back: again_at.is_none(),
        again_at: again_at.map(|at| at.0),
    }
}

fn deaths_of(deaths: v1::Deaths) -> Deaths {
    let v1::Deaths { count, in_a_row, at, how, back, again_at } = deaths;
    // An earlier version does not say when.
    let again_at = (!back).then(|| Time(again_at.unwrap_or(at)));
    Deaths { count, in_a_row, at: Time(at), cause: how, again_at }
}

fn ready_of(ready: v1::Ready) -> Ready {
    Ready {
        since: Time(ready.since),
        memory: ByteSize(ready.memory),
        measured: ready.measured,
        digest: digest_of(&ready.digest).unwrap_or(Digest([0; 32])),
        // Only for people: one that cannot be read is none.
        signature: ready.signature.and_then(signature_of).map(Arc::new),
        devices: ready.devices.into_iter().map(Into::into).collect(),
        phases: Phases {
            queued_ms: ready.queued_ms,
            fetch_ms: ready.fetch_ms,
            load_ms: ready.load_ms,
            validate_ms: ready.validate_ms,
        },
        note: ready.note,
        unvalidated: ready.unvalidated,
        deaths: ready.deaths.map(|deaths| Arc::new(deaths_of(deaths))),
    }
}

fn failed_to(failure: &Failure) -> v1::Failed {
    v1::Failed {
        category: category_to(failure.category).into(),
        message: failure.message.clone(),
        attempts: failure.attempts,
        at: failure.at.0,
        retry_at: failure.retry_at.map(|at| at.0),
        trace: failure.trace.as_deref().map(str::to_owned),
        history: failure.history.iter().map(attempt_to).collect(),
        needs: failure.needs.map(|needs| needs.0),
    }
}

fn failed_of(failed: v1::Failed) -> Failure {
    let category = v1::FailureCategory::try_from(failed.category).unwrap_or_default();
    Failure {
        category: category_of(category),
        message: failed.message,
        attempts: failed.attempts,
        at: Time(failed.at),
        retry_at: failed.retry_at.map(Time),
        trace: failed.trace.map(Into::into),
        history: failed.history.into_iter().map(attempt_of).collect(),
        needs: failed.needs.map(ByteSize),
    }
}

fn attempt_to(attempt: &Attempt) -> v1::Attempt {
    let Attempt { at, category, message } = attempt;
    v1::Attempt { at: at.0, category: category_to(*category).into(), message: message.clone() }
}

fn attempt_of(attempt: v1::Attempt) -> Attempt {
    Attempt { at: Time(attempt.at), category: category_of(attempt.category()), message: attempt.message }
}

const fn category_to(category: FailureCategory) -> v1::FailureCategory {
    match category {
        FailureCategory::Network => v1::FailureCategory::Network,
        FailureCategory::Auth => v1::FailureCategory::Auth,
        FailureCategory::NotFound => v1::FailureCategory::NotFound,
        FailureCategory::Checksum => v1::FailureCategory::Checksum,
        FailureCategory::InvalidModel => v1::FailureCategory::InvalidModel,
        FailureCategory::Memory => v1::FailureCategory::Memory,
        FailureCategory::Disk => v1::FailureCategory::Disk,
        FailureCategory::Validation => v1::FailureCategory::Validation,
        FailureCategory::Runtime => v1::FailureCategory::Runtime,
        FailureCategory::Timeout => v1::FailureCategory::Timeout,
        FailureCategory::Internal => v1::FailureCategory::Internal,
        FailureCategory::Schema => v1::FailureCategory::Schema,
        FailureCategory::Dependencies => v1::FailureCategory::Dependencies,
        FailureCategory::Code => v1::FailureCategory::Code,
    }
}

const fn category_of(category: v1::FailureCategory) -> FailureCategory {
    match category {
        v1::FailureCategory::Network => FailureCategory::Network,
        v1::FailureCategory::Auth => FailureCategory::Auth,
        v1::FailureCategory::NotFound => FailureCategory::NotFound,
        v1::FailureCategory::Checksum => FailureCategory::Checksum,
        v1::FailureCategory::InvalidModel => FailureCategory::InvalidModel,
        v1::FailureCategory::Memory => FailureCategory::Memory,
        v1::FailureCategory::Disk => FailureCategory::Disk,
        v1::FailureCategory::Validation => FailureCategory::Validation,
        v1::FailureCategory::Runtime => FailureCategory::Runtime,
        v1::FailureCategory::Timeout => FailureCategory::Timeout,
        v1::FailureCategory::Internal => FailureCategory::Internal,
        v1::FailureCategory::Schema => FailureCategory::Schema,
        v1::FailureCategory::Dependencies => FailureCategory::Dependencies,
        v1::FailureCategory::Code => FailureCategory::Code,
    }
}
