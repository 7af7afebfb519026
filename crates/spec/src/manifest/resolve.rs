//! From the fields of a manifest that is right in form to what the system holds: defaults applied, locations absolute,
//! and the rules that concern more than one field.

mod alias;
mod estimator;
mod runtime;

use std::{collections::BTreeMap, sync::Arc};

use super::{
    claim, copies, endpoint,
    raw::{
        RawBatching, RawCard, RawDeployment, RawLimits, RawModel, RawScaling, RawSecondCopy, RawSelector, RawSpec,
        RawSpread, RawStrategy, RawWarmup, RawWhenFull, WarmupWord,
    },
    scalar::{Label, Problem, Whole},
    uri,
};
use crate::{
    ModelFormat, PinnedCard, Replicas, Signature, Spec, UseLimits,
    deployment::{
        Batching, Concurrency, ModelDetails, ModelSource, Percent, Rollout, Scaling, SecondCopy, Selector, Settings,
        Spread, Strategy, Warmup, WhenFull,
    },
};

pub(super) use alias::resolve as alias;

/// Problems by the path of the field that they are reported at.
pub(super) type Problems = Vec<(&'static str, Problem)>;

/// The most labels or annotations of a deployment, and the most bytes of one key: room for the generated labels of other
/// systems, and a bound on the memory of 100,000 deployments.
const MAX_LABELS: usize = 64;
const MAX_KEY: usize = 253;

/// Builds the spec, or says all that is wrong with it.
pub(super) fn resolve(document: &RawDeployment, base: Option<&str>) -> Result<Spec, Problems> {
    let mut problems = Problems::new();
    check_keys("metadata.labels", document.metadata.labels.keys(), &mut problems);
    check_keys("metadata.annotations", document.metadata.annotations.keys(), &mut problems);
    let raw = &document.spec;
    let (replicas, regions) = copies::replicas(&raw.replicas, &mut problems);
    check_times(raw, replicas, &mut problems);
    let model = model(&raw.model, base, &mut problems);
    let claim = claim::claim(&raw.resources, model.card.as_deref(), &mut problems);
    let settings = Settings {
        replicas,
        idle_after: raw.idle_after.as_ref().map(|span| span.0),
        priority: u8::try_from(raw.priority.get()).unwrap_or(u8::MAX),
        memory: claim.memory,
        cpu: claim.cpu,
        selector: selector(&raw.selector, &mut problems),
        rollout: Rollout {
            strategy: match raw.rollout.strategy {
                RawStrategy::BlueGreen => Strategy::BlueGreen,
            },
            when_full: match raw.rollout.when_full {
                RawWhenFull::Wait => WhenFull::Wait,
                RawWhenFull::Recreate => WhenFull::Recreate,
            },
            drain_timeout: raw.rollout.drain_timeout.0,
            deadline: raw.rollout.deadline.0,
            canary: raw.rollout.canary.and_then(|percent| Percent::new(percent.get())),
        },
        warmup: match warmup(&raw.warmup, &mut problems) {
            // How many numbers a row of it has is known to nobody.
            Warmup::Generated if raw.model.environment.is_some() => Warmup::Off,
            warmup => {
                if warmup == Warmup::Required && raw.model.environment.is_some() {
                    let message = "no request can be generated: nobody knows how many numbers a row has";
                    problems.push(("spec.warmup", Problem::new(message, "give a request: warmup: {inputs: [...]}")));
                }
                warmup
            }
        },
        timeout: raw.timeout.0,
        concurrency: Concurrency { max: raw.concurrency.max.map(Whole::get), queue: raw.concurrency.queue.get() },
        limits: limits(&raw.limits, &mut problems),
        batching: batching(&raw.batching, model.card.as_deref()),
        runtime: runtime::resolve(&raw.runtime, &model.format, &mut problems),
        gpu: claim.gpu,
        model_type: raw.model.kind.as_ref().map(|kind| kind.0.as_str().into()),
        regions,
        spread: match raw.placement.spread {
            RawSpread::Zone => Spread::Zone,
            RawSpread::Worker => Spread::Worker,
        },
        pinned: raw.pinned,
        scaling: scaling(&raw.scaling),
        idempotent: raw.idempotent,
        restart: raw.restart.as_ref().map(|word| word.0.as_str().into()),
        endpoint: endpoint(raw, &mut problems),
    };
    if problems.is_empty() { Ok(Spec::new(model, settings)) } else { Err(problems) }
}

pub(super) fn labels(raw: &BTreeMap<String, Label>) -> BTreeMap<String, String> {
    raw.iter().map(|(key, Label(value))| (key.clone(), value.clone())).collect()
}

fn check_keys<'a>(path: &'static str, keys: impl ExactSizeIterator<Item = &'a String>, problems: &mut Problems) {
    if keys.len() > MAX_LABELS {
        problems.push((
            path,
            Problem::new(format!("{} entries are too many", keys.len()), format!("keep at most {MAX_LABELS}")),
        ));
    }
    for key in keys {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        if key.is_empty() || key.len() > MAX_KEY || !key.chars().all(plain) {
            let remedy = format!("use 1 to {MAX_KEY} letters, digits, '.', '_', '-' and '/'");
            problems.push((path, Problem::new(format!("{key:?} is not a key"), remedy)));
        }
    }
}

fn check_times(raw: &RawSpec, replicas: Replicas, problems: &mut Problems) {
    if raw.idle_after.is_some() && replicas.min > 0 {
        let message = format!("idleAfter has no meaning while {} replicas are always kept", replicas.min);
        let remedy = "set spec.replicas to {min: 0}, or leave idleAfter out";
        problems.push(("spec.idleAfter", Problem::new(message, remedy)));
    }
    let nothing = |span: Option<&super::scalar::Span>| span.is_some_and(|span| span.0.is_zero());
    for (path, zero) in [
        ("spec.idleAfter", nothing(raw.idle_after.as_ref())),
        ("spec.timeout", nothing(Some(&raw.timeout))),
        ("spec.rollout.deadline", nothing(Some(&raw.rollout.deadline))),
    ] {
        if zero {
            problems.push((path, Problem::new("no time at all", "give a time above 0, for example 30s")));
        }
    }
    if raw.batching.max_delay.0.as_secs() > 10 {
        let remedy = "give at most 10s; usual values are 1ms to 20ms";
        problems.push(("spec.batching.maxDelay", Problem::new("every request would wait that long", remedy)));
    }
}

fn model(raw: &RawModel, base: Option<&str>, problems: &mut Problems) -> ModelSource {
    let format = raw.format.format().unwrap_or_else(|problem| {
        problems.push(("spec.model.format", problem));
        ModelFormat::ONNX
    });
    let card = card(raw, &format, problems);
    let uri = location(raw, &format, card.as_deref(), problems).to_owned();
    let estimator = estimator::card(raw, &format, problems);
    let format = if estimator.is_some() { ModelFormat::PYTHON } else { format };
    // Of an estimator nothing but the manifest says its version.
    let card_version = card.as_ref().map(|card| card.card.metadata.version.clone());
    let card = card.or(estimator);
    let uri = uri::resolve(&uri, base).unwrap_or_else(|problem| {
        problems.push(("spec.model.uri", problem));
        uri
    });
    for (path, tensors) in [("spec.model.inputs", &raw.inputs), ("spec.model.outputs", &raw.outputs)] {
        check_names(path, tensors.iter().map(|tensor| tensor.name.as_str()), problems);
        if let Some(tensor) = tensors.iter().find(|tensor| tensor.shape.iter().any(|&dim| dim < -1)) {
            let message = format!("tensor {:?} has shape {:?}", tensor.name, tensor.shape);
            problems.push((path, Problem::new(message, "use sizes from 0, and -1 where any size goes")));
        }
    }
    let said = !raw.inputs.is_empty() || !raw.outputs.is_empty();
    let details = ModelDetails {
        format,
        sha256: raw.sha256.as_ref().map(|digest| digest.0).or_else(|| card.as_ref()?.card.artifacts.digest()),
        version: raw.version.as_ref().map(|word| word.0.clone()).or(card_version),
        signature: said.then(|| {
            Box::new(Signature { inputs: raw.inputs.clone(), outputs: raw.outputs.clone(), ..Signature::default() })
        }),
        card,
    };
    ModelSource::new(uri, details)
}

/// The batching of a deployment; the card's where the deployment says nothing.
fn batching(raw: &RawBatching, card: Option<&PinnedCard>) -> Batching {
    /// Most of the gain under load, while one run stays short for a single request that waits for it.
    const MAX_ROWS: u32 = 64;
    let of_card = card.map(|card| card.card.interface.batch_size.unwrap_or(1).max(1));
    Batching { max_rows: raw.max_rows.map(Whole::get).or(of_card).unwrap_or(MAX_ROWS), max_delay: raw.max_delay.0 }
}

/// The card of a model that has one, and only of such.
fn card(raw: &RawModel, format: &ModelFormat, problems: &mut Problems) -> Option<Arc<PinnedCard>> {
    let mut wrong = |message: String, remedy: &str| {
        problems.push(("spec.model.card", Problem::new(message, remedy)));
        None
    };
    match (format.is_python(), &raw.card) {
        (false, None) => None,
        (false, Some(_)) => {
            wrong("a card belongs to format python".to_owned(), "write format: python, or remove the card")
        }
        (true, None) => wrong(
            "the card is missing".to_owned(),
            "declare the model in a Git registry, which adds it (docs/registry.md)",
        ),
        (true, Some(RawCard::Pinned(card))) => Some(Arc::clone(card)),
        (true, Some(RawCard::Unreadable(reason))) => {
            wrong(format!("this is no pinned card: {reason}"), "see `berth schema model-card`")
        }
    }
}

/// The artifact's location: a card says it too, and they must agree.
fn location<'r>(
    raw: &'r RawModel,
    format: &ModelFormat,
    card: Option<&'r PinnedCard>,
    problems: &mut Problems,
) -> &'r str {
    let own = raw.uri.as_ref().map(|uri| uri.0.as_str());
    let of_card = card.map(|card| card.card.artifacts.model_path.as_str());
    let problem = match (own, of_card) {
        (Some(own), Some(of_card)) if own != of_card => {
            Problem::new(format!("{own:?} here and {of_card:?} in the card"), "leave uri out")
        }
        (None, None) if !format.is_python() => {
            Problem::new("the field \"uri\" is missing", "add `uri: file:iris.onnx`")
        }
        (Some(uri), _) | (None, Some(uri)) => return uri,
        (None, None) => return "",
    };
    problems.push(("spec.model.uri", problem));
    own.or(of_card).unwrap_or_default()
}

/// The path that is meant.
fn endpoint(raw: &RawSpec, problems: &mut Problems) -> Option<Box<str>> {
    let text = raw.endpoint.as_deref()?;
    match endpoint::path(text) {
        Ok(_)
            if raw.model.environment.is_none() && raw.model.format.format().is_ok_and(|format| !format.is_python()) =>
        {
            let problem =
                Problem::new("only a model card answers in its own JSON", "remove it: /v2/models/NAME/infer is there");
            problems.push(("spec.endpoint", problem));
            None
        }
        Ok(path) => Some(path.into()),
        Err(problem) => {
            problems.push(("spec.endpoint", problem));
            None
        }
    }
}

fn limits(raw: &RawLimits, problems: &mut Problems) -> UseLimits {
    if raw.burst.is_some() && raw.rate.is_none() {
        problems.push(("spec.limits.burst", Problem::new("a burst needs a rate", "give spec.limits.rate too")));
    }
    UseLimits {
        rate: raw.rate.map(Whole::get),
        burst: raw.burst.map(Whole::get),
        in_flight: raw.in_flight.map(Whole::get),
        bytes_per_second: raw.bytes_per_second.as_ref().map(|size| size.0),
        max_wait: raw.max_wait.as_ref().map(|span| span.0),
    }
}

fn scaling(raw: &RawScaling) -> Scaling {
    Scaling {
        target_rate: raw.target_rate.map(|rate| rate.0),
        target_concurrency: raw.target_concurrency.map(|target| target.0),
        second_copy: match raw.second_copy {
            RawSecondCopy::RegularUse => SecondCopy::InRegularUse,
            RawSecondCopy::Never => SecondCopy::Never,
        },
    }
}

fn selector(raw: &RawSelector, problems: &mut Problems) -> Selector {
    let mut required = labels(&raw.required);
    for (key, Label(value)) in &raw.match_labels {
        if let Some(other) = required.insert(key.clone(), value.clone()).filter(|other| other != value) {
            let message = format!("{key} is {value:?} here and {other:?} in required: no worker has both");
            problems.push(("spec.selector.matchLabels", Problem::new(message, "say it once, in required")));
        }
    }
    Selector { required, preferred: labels(&raw.preferred) }
}

fn warmup(raw: &RawWarmup, problems: &mut Problems) -> Warmup {
    match raw {
        RawWarmup::Word(WarmupWord::Generated) => Warmup::Generated,
        RawWarmup::Word(WarmupWord::Required) => Warmup::Required,
        RawWarmup::Word(WarmupWord::Off) => Warmup::Off,
        RawWarmup::Given(request) => {
            check_names("spec.warmup.inputs", request.inputs.iter().map(|tensor| tensor.name.as_str()), problems);
            let text = serde_json::to_string(request).expect("a request of texts and numbers is JSON");
            Warmup::Given(text.into())
        }
    }
}

fn check_names<'a>(path: &'static str, names: impl Iterator<Item = &'a str>, problems: &mut Problems) {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            let what = if name.is_empty() { "a tensor has no name" } else { "a name is there twice" };
            problems.push((path, Problem::new(format!("{what}: {name:?}"), "give every tensor a name of its own")));
        }
    }
}
