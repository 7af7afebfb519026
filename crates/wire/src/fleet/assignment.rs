//! Conversion of assignments: the replicas that a worker should hold.

use std::{sync::Arc, time::Duration};

use berth_spec::{
    AssignmentChange, ByteSize, DeploymentName, Generation, PinnedCard, Placed, Revision, RevisionId, Serving,
    WorkerLimits,
    deployment::{Batching, Concurrency, GpuNeed, RuntimeOptions, Warmup},
    network::{Network, NoDestination},
};
use bytes::Bytes;
use prost::Message;

use super::{
    name::{digest_of, digest_to, name_of, name_to, nanos, signature_of, signature_to},
    parts::{Budget, InParts, Numbering, fill},
    v1,
};

/// The execution provider that need not be named.
const CPU: &str = "cpu";

impl InParts for AssignmentChange {
    type Part = v1::AssignmentPart;
    type Context = ();

    fn in_parts(self) -> impl Iterator<Item = v1::AssignmentPart> + Send + 'static {
        let Self { generation, base, limits, set, unset } = self;
        let mut set = set.into_iter().map(|placed| placed_to(&placed)).peekable();
        let mut unset = unset.into_iter().map(|id| name_to(&id)).peekable();
        let mut numbering = Numbering::default();
        std::iter::from_fn(move || {
            let (part, mut budget) = (numbering.next()?, Budget::default());
            Some(v1::AssignmentPart {
                part,
                generation: generation.0,
                base: base.map(|base| base.0),
                memory_limit: limits.memory.map(|memory| memory.0),
                model_limit: limits.models,
                set: fill(&mut set, &mut budget, Message::encoded_len),
                unset: fill(&mut unset, &mut budget, Message::encoded_len),
                more: numbering.more(set.peek().is_some() || unset.peek().is_some()),
            })
        })
    }

    fn place(part: &v1::AssignmentPart) -> (u32, bool) {
        (part.part, part.more)
    }

    fn begin((): &(), first: &mut v1::AssignmentPart) -> Self {
        let base = first.base.map(Generation);
        let limits = WorkerLimits { memory: first.memory_limit.map(ByteSize), models: first.model_limit };
        Self { generation: Generation(first.generation), base, limits, set: Vec::new(), unset: Vec::new() }
    }

    fn add(&mut self, part: v1::AssignmentPart) -> usize {
        let listed = part.set.len() + part.unset.len() + self.set.len() + self.unset.len();
        self.set.extend(part.set.into_iter().filter_map(placed_of));
        self.unset.extend(part.unset.into_iter().filter_map(name_of));
        listed - self.set.len() - self.unset.len()
    }
}

fn placed_to(placed: &Placed) -> v1::Placed {
    let Revision { id, format, uri, digest, version, signature, runtime, memory, card } = &*placed.revision;
    v1::Placed {
        name: Some(name_to(id)),
        format: format.to_string(),
        uri: uri.clone(),
        digest: digest_to(*digest),
        version: (*version != id.hash()).then(|| version.clone()),
        signature: signature.as_deref().map(signature_to),
        execution_provider: (runtime.execution_provider != CPU).then(|| runtime.execution_provider.clone()),
        threads: runtime.threads.into(),
        isolation: runtime.isolation.map(|level| level.as_str().to_owned()),
        network: runtime.network.as_ref().map(network_to),
        memory: memory.map(|memory| memory.0),
        claim: placed.claim.0,
        gpu: placed.gpu.as_ref().map(|need| v1::GpuNeed {
            count: need.count,
            kind: need.kind.clone(),
            memory: need.memory.map(|memory| memory.0),
        }),
        urgent: placed.urgent,
        serving: Some(serving_to(&placed.serving, id)),
        card: card.as_ref().map(|card| card_to(card)).unwrap_or_default(),
    }
}

fn network_to(network: &Network) -> v1::Network {
    v1::Network { hosts: network.hosts.iter().map(ToString::to_string).collect() }
}

fn network_of(network: v1::Network) -> Result<Network, NoDestination> {
    Ok(Network { hosts: network.hosts.iter().map(|host| host.parse()).collect::<Result<_, _>>()? })
}

fn card_to(card: &PinnedCard) -> Bytes {
    serde_json::to_vec(card).expect("texts, numbers and JSON").into()
}

/// `None`: it cannot be understood. Such a replica is not held; the controller sees that it is not there.
fn placed_of(placed: v1::Placed) -> Option<Placed> {
    let id = name_of(placed.name?)?;
    let serving = serving_of(placed.serving.unwrap_or_default(), &id)?;
    let signature = match placed.signature {
        Some(signature) => Some(Box::new(signature_of(signature)?)),
        None => None,
    };
    let card = if placed.card.is_empty() { None } else { Some(Arc::new(serde_json::from_slice(&placed.card).ok()?)) };
    let revision = Revision {
        format: placed.format.parse().ok()?,
        uri: placed.uri,
        digest: digest_of(&placed.digest),
        version: placed.version.unwrap_or_else(|| id.hash()),
        signature,
        runtime: RuntimeOptions {
            execution_provider: placed.execution_provider.unwrap_or_else(|| CPU.to_owned()),
            threads: u16::try_from(placed.threads).unwrap_or(u16::MAX),
            isolation: placed.isolation.map(|word| word.parse()).transpose().ok()?,
            network: placed.network.map(network_of).transpose().ok()?,
        },
        memory: placed.memory.map(ByteSize),
        card,
        id,
    };
    let gpu = placed.gpu.map(|need| GpuNeed { count: need.count, kind: need.kind, memory: need.memory.map(ByteSize) });
    let (claim, urgent) = (ByteSize(placed.claim), placed.urgent);
    Some(Placed { revision: Arc::new(revision), claim, gpu, urgent, serving: Arc::new(serving) })
}

fn serving_to(serving: &Serving, id: &RevisionId) -> v1::Serving {
    let (warmup, warmup_request) = match &serving.warmup {
        Warmup::Generated => (v1::Warmup::Generated, String::new()),
        Warmup::Required => (v1::Warmup::Required, String::new()),
        Warmup::Given(request) => (v1::Warmup::Given, request.to_string()),
        Warmup::Off => (v1::Warmup::Off, String::new()),
    };
    v1::Serving {
        deployment: (serving.deployment != *id.deployment()).then(|| serving.deployment.to_string()),
        warmup: warmup.into(),
        warmup_request,
        max: serving.concurrency.max,
        queue: serving.concurrency.queue,
        max_rows: serving.batching.max_rows,
        max_delay: nanos(serving.batching.max_delay),
        drain_timeout: nanos(serving.drain_timeout),
    }
}

fn serving_of(serving: v1::Serving, id: &RevisionId) -> Option<Serving> {
    let warmup = match v1::Warmup::try_from(serving.warmup) {
        Ok(v1::Warmup::Given) => Warmup::Given(serving.warmup_request.into()),
        Ok(v1::Warmup::Off) => Warmup::Off,
        Ok(v1::Warmup::Required) => Warmup::Required,
        // An unknown way to prove itself: the one that needs nothing.
        Ok(v1::Warmup::Generated) | Err(_) => Warmup::Generated,
    };
    let deployment = match serving.deployment {
        Some(name) => DeploymentName::new(&name).ok()?,
        None => id.deployment().clone(),
    };
    Some(Serving {
        deployment,
        warmup,
        concurrency: Concurrency { max: serving.max, queue: serving.queue },
        batching: Batching { max_rows: serving.max_rows, max_delay: Duration::from_nanos(serving.max_delay) },
        drain_timeout: Duration::from_nanos(serving.drain_timeout),
    })
}
