//! The Prometheus collector of the gateway: reads the counters of every deployment when somebody scrapes.

mod forwarding;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_spec::{NameKey, UseLimit, traffic::LATENCY_BOUNDS};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

use crate::{
    admission::Admission,
    body::memory::RequestMemory,
    deployment::{DeploymentState, HotState},
    endpoint::forwarding::Forwarding,
    metrics::{Outcome, Protocol, SHEDS, Scope, Stats, Totals, counter, forward::ServedHops},
    routes::Routes,
    routes::alias::AliasCounters,
};

/// Writes the gateway's metrics when they are scraped: reads the counters that requests write.
pub(crate) struct Exporter {
    pub(crate) routes: Arc<Routes>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) memory: Arc<RequestMemory>,
    /// The way to other nodes; `None`: there are none.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// Requests that other nodes sent here.
    pub(crate) served: Arc<ServedHops>,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("gateway metrics")
    }
}

/// The label of requests for undeclared models.
const UNKNOWN: NameKey<'_> = NameKey { namespace: "", name: "" };

impl Exporter {
    /// Calls `each` for every deployment that had a request, by name, and for the unknown ones together.
    fn stats(
        &self,
        used: &[Arc<DeploymentState>],
        mut each: impl FnMut(NameKey<'_>, &Stats) -> fmt::Result,
    ) -> fmt::Result {
        for entry in used {
            each(entry.name.key(), &entry.hot().stats)?;
        }
        each(UNKNOWN, &self.totals.unknown)
    }

    fn used(&self) -> Vec<Arc<DeploymentState>> {
        let mut used = Vec::new();
        self.routes.each_live(|entry| used.extend(entry.used().map(|_| Arc::clone(entry))));
        used.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        used
    }

    fn requests(&self, used: &[Arc<DeploymentState>], mut family: MetricEncoder<'_>) -> fmt::Result {
        self.stats(used, |name, stats| {
            for protocol in Protocol::ALL {
                let Some(numbers) = stats.of(protocol) else { continue };
                for outcome in Outcome::ALL {
                    let count = numbers.outcomes[outcome as usize].load(Relaxed);
                    if count > 0 {
                        let code = outcome.code(protocol);
                        let [namespace, deployment] = labels(name);
                        let labels = [namespace, deployment, ("protocol", protocol.as_str()), ("code", code.as_str())];
                        counter(&mut family.encode_family(&labels)?, count)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn seconds(&self, used: &[Arc<DeploymentState>], mut family: MetricEncoder<'_>) -> fmt::Result {
        self.stats(used, |name, stats| {
            for protocol in Protocol::ALL {
                let Some(numbers) = stats.of(protocol) else { continue };
                let latency = numbers.latency.snapshot();
                if latency.count() > 0 {
                    let [namespace, deployment] = labels(name);
                    let labels = [namespace, deployment, ("protocol", protocol.as_str())];
                    family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                        latency.sum_seconds(),
                        latency.count(),
                        &latency.coarse(),
                        None,
                    )?;
                }
            }
            Ok(())
        })
    }
}

/// The labels that say which deployment a sample is about.
fn labels(name: NameKey<'_>) -> [(&'static str, &str); 2] {
    [("namespace", name.namespace), ("deployment", name.name)]
}

/// The results of each revision.
fn revision_requests(used: &[Arc<DeploymentState>], mut family: MetricEncoder<'_>) -> fmt::Result {
    for entry in used {
        for counters in entry.hot().outcomes.all().iter() {
            let (sums, revision) = (counters.sums(), counters.revision.hash());
            let results = [("ok", sums.ok), ("client_error", sums.client_errors), ("server_error", sums.server_errors)];
            for (result, count) in results {
                let [namespace, deployment] = labels(entry.name.key());
                let labels = [namespace, deployment, ("revision", revision.as_str()), ("result", result)];
                counter(&mut family.encode_family(&labels)?, count)?;
            }
        }
    }
    Ok(())
}

/// The latency of each revision.
fn revision_seconds(used: &[Arc<DeploymentState>], mut family: MetricEncoder<'_>) -> fmt::Result {
    for entry in used {
        for counters in entry.hot().outcomes.all().iter() {
            let (sums, revision) = (counters.sums(), counters.revision.hash());
            let bounds = LATENCY_BOUNDS.iter().map(Duration::as_secs_f64).chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(sums.latency).collect();
            let [namespace, deployment] = labels(entry.name.key());
            let labels = [namespace, deployment, ("revision", revision.as_str())];
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                counters.seconds(),
                sums.latency.iter().sum(),
                &buckets,
                None,
            )?;
        }
    }
    Ok(())
}

/// The results of each target of each alias.
fn alias_requests(routes: &Routes, mut family: MetricEncoder<'_>) -> fmt::Result {
    let mut aliases = routes.aliases();
    aliases.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    for alias in aliases {
        for target in alias.targets().list.iter() {
            let counts = target.counters.counts();
            for (result, count) in AliasCounters::RESULTS.iter().zip(counts).filter(|(_, count)| *count > 0) {
                let (NameKey { namespace, name }, deployment) = (alias.name.key(), target.name.name());
                let labels =
                    [("namespace", namespace), ("alias", name), ("deployment", deployment), ("result", *result)];
                counter(&mut family.encode_family(&labels)?, count)?;
            }
        }
    }
    Ok(())
}

/// A counter per deployment.
fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    used: &[Arc<DeploymentState>],
    name: &str,
    help: &str,
    read: impl Fn(&HotState) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for entry in used {
        counter(&mut family.encode_family(&labels(entry.name.key()))?, read(entry.hot()))?;
    }
    Ok(())
}

/// A gauge per deployment.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    used: &[Arc<DeploymentState>],
    name: &str,
    help: &str,
    read: impl Fn(&HotState) -> u32,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for entry in used {
        family.encode_family(&labels(entry.name.key()))?.encode_gauge(&read(entry.hot()))?;
    }
    Ok(())
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let used = self.used();
        let of =
            |encoder: &mut DescriptorEncoder<'_>, name, help, kind, fill: &dyn Fn(MetricEncoder<'_>) -> fmt::Result| {
                fill(encoder.encode_descriptor(name, help, None, kind)?)
            };
        let help = "Inference requests by deployment, protocol and status code";
        of(&mut encoder, "berth_gateway_requests", help, MetricType::Counter, &|family| self.requests(&used, family))?;
        let help = "Seconds from the request's head to its answer, parked time included";
        of(&mut encoder, "berth_gateway_request_seconds", help, MetricType::Histogram, &|family| {
            self.seconds(&used, family)
        })?;
        let help = "Requests by the revision that answered and by result: ok, client_error or server_error";
        of(&mut encoder, "berth_gateway_revision_requests", help, MetricType::Counter, &|family| {
            revision_requests(&used, family)
        })?;
        let help = "Seconds from the request's head to its answer, by the revision that answered";
        of(&mut encoder, "berth_gateway_revision_seconds", help, MetricType::Histogram, &|family| {
            revision_seconds(&used, family)
        })?;
        let help = "Requests that found no ready replica";
        counters(&mut encoder, &used, "berth_gateway_misses", help, |hot| hot.stats.misses())?;
        let (name, help) = ("berth_gateway_request_bytes", "Bytes of inference request bodies");
        counters(&mut encoder, &used, name, help, |hot| hot.stats.request_bytes.load(Relaxed))?;
        let (name, help) = ("berth_gateway_response_bytes", "Bytes of inference response bodies");
        counters(&mut encoder, &used, name, help, |hot| hot.stats.response_bytes.load(Relaxed))?;
        let help = "Requests that hold a replica";
        gauges(&mut encoder, &used, "berth_gateway_in_flight", help, |hot| hot.usage.in_flight.load(Relaxed))?;
        let help = "Requests that wait for a replica";
        gauges(&mut encoder, &used, "berth_gateway_parked", help, |hot| hot.queue.waiting())?;
        let help = "Requests at once while the model is overloaded; 0: it is not";
        gauges(&mut encoder, &used, "berth_gateway_overload_bound", help, |hot| hot.pressure.bound().unwrap_or(0))?;
        of(&mut encoder, "berth_gateway_shed", "Requests refused, by reason", MetricType::Counter, &|mut family| {
            for (shed, count) in SHEDS.iter().zip(&self.totals.shed) {
                counter(&mut family.encode_family(&[("reason", shed.as_str())])?, count.load(Relaxed))?;
            }
            Ok(())
        })?;
        let help = "Requests refused because of a limit on use, by the owner of the limit: model or principal";
        of(&mut encoder, "berth_gateway_limited", help, MetricType::Counter, &|mut family| {
            for (scope, counts) in Scope::ALL.iter().zip(&self.totals.limited) {
                for (limit, count) in UseLimit::ALL.iter().zip(counts) {
                    let labels = [("scope", scope.as_str()), ("limit", limit.as_str())];
                    counter(&mut family.encode_family(&labels)?, count.load(Relaxed))?;
                }
            }
            Ok(())
        })?;
        of(&mut encoder, "berth_gateway_requests_inside", "Inferences inside now", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&self.admission.inside())
        })?;
        let (used, most) = ("berth_gateway_request_memory_bytes", "berth_gateway_request_memory_limit_bytes");
        of(&mut encoder, used, "Memory that requests hold now", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&(self.memory.used() as u64))
        })?;
        of(&mut encoder, most, "Memory that requests may hold together", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&(self.memory.most() as u64))
        })?;
        of(&mut encoder, "berth_gateway_connections", "Open connections", MetricType::Gauge, &|mut gauge| {
            gauge.encode_gauge(&self.totals.connections.load(Relaxed))
        })?;
        let help = "Answers over HTTP/2 that were cut, since their clients left them unread";
        of(&mut encoder, "berth_gateway_answers_unread", help, MetricType::Counter, &|mut metric| {
            counter(&mut metric, self.totals.unread.get())
        })?;
        let help =
            "Requests to aliases by the deployment that answered and by result: ok, client_error or server_error";
        of(&mut encoder, "berth_gateway_alias_requests", help, MetricType::Counter, &|family| {
            alias_requests(&self.routes, family)
        })?;
        self.served.encode(&mut encoder)?;
        self.forwarding.as_ref().map_or(Ok(()), |forwarding| forwarding::encode(forwarding, &mut encoder))
    }
}
