//! Changes of every shape.

use std::{sync::Arc, time::Duration};

use berth_spec::{
    AssignmentChange, Breaker, ByteSize, Datatype, Demand, DeploymentName, Digest, Failure, FailureCategory,
    FormatSupport, Generation, Gpu, GpuLoad, InventoryChange, Isolation, IsolationOffer, Load, PinnedCard, Placed,
    Residency, Revision, RevisionId, Route, RouteChange, RuntimeInfo, Serving, Signature, TensorSpec, Time, Usage,
    UseLimits, WorkerId, WorkerInfo, WorkerLimits, WorkerState,
    deployment::{Batching, Concurrency, GpuNeed, ModelFormat, RuntimeOptions, Warmup},
    network::Network,
    residency::{Attempt, Deaths, Phases, Preparing, Ready},
    routes::{AliasRoute, OnMiss, Readiness, Stickiness, Version},
    worker::{BreakerState, DependencyKind},
};
use berth_wire::fleet::Reporter;
use proptest::{collection::vec, option, prelude::*, sample::select};

fn name() -> impl Strategy<Value = DeploymentName> {
    "[a-z][a-z0-9.-]{0,8}[a-z0-9]".prop_map(|name| DeploymentName::new(&name).expect("a name"))
}

fn worker() -> impl Strategy<Value = WorkerId> {
    "w-[a-c]".prop_map(|name| WorkerId::new(&name).expect("a name"))
}

fn id() -> impl Strategy<Value = RevisionId> {
    (name(), any::<[u8; 6]>()).prop_map(|(name, hash)| RevisionId::with_hash(name, hash))
}

fn text() -> impl Strategy<Value = String> {
    "[ -~äß]{0,12}"
}

fn time() -> impl Strategy<Value = Time> {
    any::<u64>().prop_map(Time)
}

fn duration() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn bytes() -> impl Strategy<Value = ByteSize> {
    any::<u64>().prop_map(ByteSize)
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn float() -> impl Strategy<Value = f32> {
    -1.0e6_f32..1.0e6
}

fn signature() -> impl Strategy<Value = Signature> {
    let datatype = proptest::sample::select(Datatype::ALL.to_vec());
    let tensor = (text(), datatype, vec(-1_i64..i64::MAX, 0..4)).prop_map(|(name, datatype, shape)| TensorSpec {
        name,
        datatype,
        shape,
    });
    let tensors = vec(tensor, 0..3).boxed();
    (tensors.clone(), tensors).prop_map(|(inputs, outputs)| Signature { inputs, outputs, ..Signature::default() })
}

fn limits() -> impl Strategy<Value = UseLimits> {
    let number = || option::of(any::<u32>());
    let (bytes, wait) = (option::of(any::<u64>().prop_map(ByteSize)), option::of(duration()));
    (number(), number(), number(), bytes, wait).prop_map(|(rate, burst, in_flight, bytes_per_second, max_wait)| {
        UseLimits { rate, burst, in_flight, bytes_per_second, max_wait }
    })
}

fn concurrency() -> impl Strategy<Value = Concurrency> {
    (option::of(any::<u32>()), any::<u32>()).prop_map(|(max, queue)| Concurrency { max, queue })
}

fn serving(of: DeploymentName) -> impl Strategy<Value = Serving> {
    let warmup = prop_oneof![
        Just(Warmup::Generated),
        Just(Warmup::Required),
        Just(Warmup::Off),
        text().prop_map(|request| Warmup::Given(request.into()))
    ];
    let batching = (any::<u32>(), duration()).prop_map(|(max_rows, max_delay)| Batching { max_rows, max_delay });
    (prop_oneof![Just(of), name()], warmup, concurrency(), batching, duration()).prop_map(
        |(deployment, warmup, concurrency, batching, drain_timeout)| Serving {
            deployment,
            warmup,
            concurrency,
            batching,
            drain_timeout,
        },
    )
}

/// A card, with what differs from card to card.
fn card() -> impl Strategy<Value = Arc<PinnedCard>> {
    let card = |(version, description, batch_size): (String, String, Option<u32>)| {
        let card = serde_json::json!({
            "card": {
                "schemaVersion": "3.0.0",
                "metadata": {"name": "m", "version": version, "description": description, "owner": "a@example.org"},
                "runtime": {"framework": "sklearn", "framework_version": "1.5.0", "python_version": "3.11",
                            "dependencies": ["numpy==2.0.0"]},
                "artifacts": {"storage_type": "s3", "model_path": "s3://m/m"},
                "code": {"repository": "https://example.org/m.git", "path": "src/", "ref": "v1.0.0"},
                "preprocessing": {"module": "src.pre", "function": "f", "config": {"a": [1, null]}},
                "postprocessing": {"module": "src.post", "function": "f"},
                "interface": {"input_schema": {"type": "object"}, "output_schema": true, "batch_size": batch_size},
            },
            "repository": "https://example.org/m.git", "ref": "v1.0.0", "commit": "0", "codeCommit": "1",
        });
        Arc::new(serde_json::from_value(card).expect("a card"))
    };
    (text(), text(), option::of(any::<u32>())).prop_map(card)
}

fn network() -> impl Strategy<Value = Network> {
    let host = ("[a-z]{1,9}(\\.[a-z]{1,9})?", 1_u16..);
    let host = host.prop_map(|(host, port)| format!("{host}:{port}").parse().expect("a host"));
    proptest::collection::vec(host, 0..3).prop_map(|hosts| Network { hosts })
}

fn revision() -> impl Strategy<Value = Revision> {
    let runtime = (
        prop_oneof![Just("cpu".to_owned()), text()],
        any::<u16>(),
        option::of(proptest::sample::select(berth_spec::Isolation::ALL.to_vec())),
        option::of(network()),
    )
        .prop_map(|(execution_provider, threads, isolation, network)| RuntimeOptions {
            execution_provider,
            threads,
            isolation,
            network,
        });
    (
        id(),
        text(),
        option::of(digest()),
        option::of(text()),
        option::of(signature().prop_map(Box::new)),
        runtime,
        option::of(bytes()),
        option::of(card()),
    )
        .prop_map(|(id, uri, digest, version, signature, runtime, memory, card)| Revision {
            format: if uri.len().is_multiple_of(2) {
                ModelFormat::ONNX
            } else {
                "sklearn:1".parse().expect("a format")
            },
            uri,
            digest,
            version: version.unwrap_or_else(|| id.hash()),
            signature,
            runtime,
            memory,
            card,
            id,
        })
}

fn placed() -> impl Strategy<Value = Placed> {
    revision().prop_flat_map(|revision| {
        let serving = serving(revision.id.deployment().clone());
        let need = (any::<u32>(), option::of(text()), option::of(bytes())).prop_map(|(count, kind, memory)| GpuNeed {
            count,
            kind,
            memory,
        });
        (Just(Arc::new(revision)), bytes(), option::of(need), any::<bool>(), serving).prop_map(
            |(revision, claim, gpu, urgent, serving)| Placed {
                revision,
                claim,
                gpu,
                urgent,
                serving: Arc::new(serving),
            },
        )
    })
}

pub(super) fn assignment() -> impl Strategy<Value = AssignmentChange> {
    let limits =
        (option::of(bytes()), option::of(any::<u32>())).prop_map(|(memory, models)| WorkerLimits { memory, models });
    (any::<u64>(), option::of(any::<u64>()), limits, vec(placed(), 0..6), vec(id(), 0..4)).prop_map(
        |(generation, base, limits, set, unset)| AssignmentChange {
            generation: Generation(generation),
            base: base.map(Generation),
            limits,
            set,
            unset,
        },
    )
}

fn residency() -> impl Strategy<Value = Residency> {
    let phases = (0.0..1e9, 0.0..1e9, 0.0..1e9, 0.0..1e9)
        .prop_map(|(queued_ms, fetch_ms, load_ms, validate_ms)| Phases { queued_ms, fetch_ms, load_ms, validate_ms });
    let deaths = (any::<u32>(), any::<u32>(), time(), text(), option::of(time()))
        .prop_map(|(count, in_a_row, at, cause, again_at)| Arc::new(Deaths { count, in_a_row, at, cause, again_at }));
    let devices = vec(text().prop_map(Into::into), 0..3);
    let words = (option::of(text()), option::of(text()), option::of(deaths), devices);
    let ready = (time(), bytes(), any::<bool>(), digest(), option::of(signature()), phases, words).prop_map(
        |(since, memory, measured, digest, signature, phases, (note, unvalidated, deaths, devices))| {
            let signature = signature.map(Arc::new);
            Residency::Ready(Arc::new(Ready {
                since,
                memory,
                measured,
                digest,
                signature,
                phases,
                note,
                unvalidated,
                deaths,
                devices,
            }))
        },
    );
    let category = proptest::sample::select(FailureCategory::ALL.to_vec());
    let attempt =
        (time(), category.clone(), text()).prop_map(|(at, category, message)| Attempt { at, category, message });
    let before = (option::of(text()), vec(attempt, 0..Failure::MAX_HISTORY), option::of(bytes()));
    let failed = (category, text(), any::<u32>(), time(), option::of(time()), before).prop_map(
        |(category, message, attempts, at, retry_at, (trace, history, needs))| {
            let trace = trace.map(Into::into);
            Residency::Failed(Arc::new(Failure { category, message, attempts, at, retry_at, trace, history, needs }))
        },
    );
    prop_oneof![
        Just(Residency::Queued),
        proptest::sample::select(vec![
            Preparing::Artifact,
            Preparing::Code,
            Preparing::SystemPackages,
            Preparing::Environment(None),
            Preparing::Environment(Some("downloading torch (2.3GiB)".into())),
        ])
        .prop_map(Residency::Preparing),
        Just(Residency::Loading),
        Just(Residency::Validating),
        (bytes(), option::of(bytes())).prop_map(|(done, total)| Residency::Fetching { done, total }),
        (time(), any::<u32>()).prop_map(|(since, in_flight)| Residency::Draining { since, in_flight }),
        ready,
        failed,
    ]
}

fn breaker() -> impl Strategy<Value = Breaker> {
    let kinds = [DependencyKind::Storage, DependencyKind::Git, DependencyKind::Packages];
    let states = [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen];
    let (kind, state) = (proptest::sample::select(kinds.to_vec()), proptest::sample::select(states.to_vec()));
    (text(), kind, state, any::<u32>(), option::of(time()), option::of(time())).prop_map(
        |(dependency, kind, state, failures, opened_at, retry_at)| Breaker {
            dependency: dependency.into(),
            kind,
            state,
            failures,
            opened_at,
            retry_at,
        },
    )
}

pub(super) fn inventory(reporter: Reporter) -> impl Strategy<Value = InventoryChange> {
    let gpu = (text(), bytes(), any::<u32>()).prop_map(|(id, memory_used, utilization_percent)| GpuLoad {
        id: id.into(),
        memory_used,
        utilization_percent,
    });
    let last = (any::<bool>(), vec(gpu, 0..3));
    let load = (time(), [float(), float(), float()], bytes(), any::<u32>(), any::<u32>(), last).prop_map(
        |(at, cpu_percent, memory_used, queue, requests_per_minute, (degraded, gpus))| Load {
            at,
            cpu_percent,
            memory_used,
            queue,
            requests_per_minute,
            degraded,
            gpus: gpus.into(),
        },
    );
    let state = prop_oneof![Just(WorkerState::Serving), Just(WorkerState::Leaving)];
    let replicas = vec((id(), option::of(residency())), 0..6);
    let usage = (any::<u64>(), option::of(time())).prop_map(|(requests, last)| Usage { requests, last });
    let told = (replicas, vec((id(), usage), 0..6));
    let numbers = (any::<u64>(), any::<u64>(), bytes());
    (numbers, any::<bool>(), state, option::of(load), option::of(vec(breaker(), 0..3)), told).prop_map(
        move |((seen, credentials, overhead), whole, state, load, breakers, (replicas, usage))| InventoryChange {
            worker: reporter.worker.clone(),
            incarnation: reporter.incarnation,
            seen: Generation(seen),
            whole,
            state,
            load,
            breakers,
            credentials: Generation(credentials),
            overhead,
            replicas,
            usage,
        },
    )
}

fn route() -> impl Strategy<Value = Route> {
    let on_miss = prop_oneof![
        Just(OnMiss::Park),
        Just(OnMiss::ScaledDown),
        (text(), option::of(time())).prop_map(|(message, retry_at)| OnMiss::NoCapacity { message, retry_at }),
        (text(), option::of(time())).prop_map(|(message, retry_at)| OnMiss::Failed { message, retry_at }),
        (text(), time()).prop_map(|(message, again_at)| OnMiss::Restarting { message, again_at }),
    ]
    .boxed();
    name().prop_flat_map(move |deployment| {
        let own = deployment.clone();
        let id =
            prop_oneof![any::<[u8; 6]>().prop_map(move |hash| RevisionId::with_hash(own.clone(), hash)), id()].boxed();
        let version = (option::of(text()), id.clone(), vec(worker(), 0..4)).prop_map(|(name, revision, ready)| {
            Version { name: name.unwrap_or_else(|| revision.hash()), revision, ready }
        });
        let flags = (any::<bool>(), any::<bool>());
        (
            Just(deployment),
            vec((id, any::<u32>()), 0..3),
            vec(version, 0..3),
            on_miss.clone(),
            flags,
            duration(),
            (concurrency(), limits()),
            option::of(text()),
        )
            .prop_map(
                |(
                    deployment,
                    split,
                    versions,
                    on_miss,
                    (on_demand, idempotent),
                    timeout,
                    (concurrency, limits),
                    endpoint,
                )| {
                    Route {
                        deployment,
                        split,
                        versions,
                        on_miss,
                        on_demand,
                        timeout,
                        concurrency,
                        limits,
                        idempotent,
                        endpoint: endpoint.map(Into::into),
                    }
                },
            )
    })
}

fn alias() -> impl Strategy<Value = AliasRoute> {
    let sticky = prop_oneof![
        Just(Stickiness::None),
        Just(Stickiness::Client),
        text().prop_map(Stickiness::Header),
        text().prop_map(Stickiness::Field),
    ];
    (name(), vec((name(), any::<u32>()), 0..4), sticky).prop_map(|(name, targets, sticky)| AliasRoute {
        name,
        targets,
        sticky,
    })
}

pub(super) fn routes() -> impl Strategy<Value = RouteChange> {
    let readiness = (any::<bool>(), any::<u32>(), any::<u32>(), vec(name(), 0..3))
        .prop_map(|(planned, expected, ready, missing)| Readiness { planned, expected, ready, missing });
    (any::<u64>(), option::of(any::<u64>()), vec(route(), 0..6), vec(name(), 0..4), vec(alias(), 0..4), readiness)
        .prop_map(|(seq, base, set, unset, aliases, readiness)| RouteChange {
            seq,
            base,
            set,
            unset,
            aliases,
            readiness,
        })
}

pub(super) fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let demand = (name(), any::<u32>(), any::<u32>(), time(), any::<u64>()).prop_map(
        |(deployment, waiting, in_flight, last_used, requests)| Demand {
            deployment,
            waiting,
            in_flight,
            last_used,
            requests,
        },
    );
    vec(demand, 0..6)
}

pub(super) fn worker_info() -> impl Strategy<Value = WorkerInfo> {
    let gpu = (text(), text(), bytes()).prop_map(|(id, kind, memory)| Gpu { id, kind, memory });
    let labels = proptest::collection::btree_map(text(), text(), 0..4);
    let versions = vec(text(), 0..3);
    let support = (text(), vec(text(), 0..3)).prop_map(|(name, versions)| FormatSupport { name, versions });
    let limits = (option::of(bytes()), option::of(any::<u32>()), option::of(bytes()), option::of(bytes()));
    let offer = (select(Isolation::ALL.to_vec()), text()).prop_map(|(most, lacks)| IsolationOffer { most, lacks });
    let own = proptest::collection::btree_map(text(), text(), 0..3);
    let runtime = (text(), vec(support, 0..3), own, limits, option::of(offer)).prop_map(
        |(name, formats, labels, (memory, max_models, device_memory, default_size), isolation)| RuntimeInfo {
            name,
            formats,
            labels,
            memory,
            max_models,
            device_memory,
            default_size,
            isolation,
        },
    );
    let rest = (option::of(any::<u32>()), text(), versions, vec(runtime, 0..3));
    (worker(), any::<u64>(), labels, bytes(), float(), vec(gpu, 0..3), rest).prop_map(
        |(id, incarnation, labels, memory, cpus, gpus, (max_models, version, schema_versions, runtimes))| WorkerInfo {
            id,
            incarnation,
            labels,
            memory,
            cpus,
            gpus,
            max_models,
            runtimes,
            schema_versions,
            version,
        },
    )
}

/// Typical replica: an image model in an object store.
pub(super) fn plain_placed(id: &RevisionId) -> Placed {
    let revision = Revision {
        id: id.clone(),
        format: ModelFormat::ONNX,
        uri: "s3://models-production/vision/resnet-50/2026-03-01/model.onnx".to_owned(),
        digest: Some(Digest([3; 32])),
        version: id.hash(),
        signature: None,
        runtime: RuntimeOptions::default(),
        memory: None,
        card: None,
    };
    let serving = Serving {
        deployment: id.deployment().clone(),
        warmup: Warmup::Generated,
        concurrency: Concurrency { max: None, queue: 100 },
        batching: Batching { max_rows: 1, max_delay: Duration::ZERO },
        drain_timeout: Duration::from_secs(30),
    };
    Placed {
        revision: Arc::new(revision),
        claim: ByteSize::mib(190),
        gpu: None,
        urgent: false,
        serving: Arc::new(serving),
    }
}

pub(super) fn plain_signature() -> Signature {
    let tensor = |name: &str, shape: &[i64]| TensorSpec {
        name: name.to_owned(),
        datatype: Datatype::Fp32,
        shape: shape.to_vec(),
    };
    Signature {
        inputs: vec![tensor("data", &[-1, 3, 224, 224])],
        outputs: vec![tensor("logits", &[-1, 1_000])],
        ..Signature::default()
    }
}
