//! The same metrics for a StatsD server on this machine: `statsd:port=8126`.
//!
//! ```text
//! text under ModelMesh's names ─▶ the difference to the last look ─▶ lines ─▶ datagrams, every five seconds
//! ```
//! ModelMesh sends a datagram per call. Here a histogram is sent as a line per bucket that grew, with the number of events as
//! its sampling rate; the values lie in their buckets and add up to the real sum where the buckets allow it.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, SystemTime},
};

use berth_control::api::MetricsSource;

use super::{
    table,
    text::{Sample, samples},
};
use crate::failure::Failure;

/// The interval of looks: half of what StatsD servers collect before they pass it on.
const INTERVAL: Duration = Duration::from_secs(5);

/// The most bytes of a datagram: it fits a frame of Ethernet.
const DATAGRAM: usize = 1_432;

/// Settings of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statsd {
    /// Port of the server, on this machine.
    pub(crate) port: u16,
    /// ModelMesh's old names, with the method and the code in them, rather than Sysdig's form with tags.
    pub(crate) legacy: bool,
}

/// A metric's names beside the one that Prometheus has.
struct Names {
    prometheus: &'static str,
    old: &'static str,
    /// The counter that goes with a histogram.
    count: Option<&'static str>,
    /// The divisor of the old unit.
    old_unit: f64,
}

const fn names(prometheus: &'static str, old: &'static str, count: Option<&'static str>) -> Names {
    Names { prometheus, old, count, old_unit: 1.0 }
}

/// The unit of the old names for memory.
const PAGE: f64 = 8_192.0;

/// Names, from ModelMesh's `Metric.java`.
const NAMES: [Names; 24] = [
    names("modelmesh_api_request_milliseconds", "api-", Some("modelmesh_api_request")),
    names("modelmesh_invoke_model_milliseconds", "invoke-", Some("modelmesh_invoke_model")),
    names("modelmesh_request_size_bytes", "reqSize-", None),
    names("modelmesh_response_size_bytes", "respSize-", None),
    names("modelmesh_cache_miss_milliseconds", "cacheMiss", Some("modelmesh_cache_miss")),
    names("modelmesh_loadmodel_milliseconds", "loadModel", Some("modelmesh_loadmodel")),
    names("modelmesh_unloadmodel_milliseconds", "unloadModel", Some("modelmesh_unloadmodel")),
    names("modelmesh_req_queue_delay_milliseconds", "queueDelay", None),
    names("modelmesh_loading_queue_delay_milliseconds", "loadModelQueueDelay", None),
    names("modelmesh_model_sizing_milliseconds", "sizeModel", None),
    names("modelmesh_age_at_eviction_milliseconds", "cache_evictModel", Some("modelmesh_model_evicted")),
    names("modelmesh_loaded_model_size_bytes", "mmModelSizeBytes", None),
    names("modelmesh_loadmodel_failure", "loadModel-failed", None),
    names("modelmesh_unloadmodel_failure", "unloadModel-failure", None),
    names("modelmesh_unloadmodel_attempt_failure", "unloadModel-attemptFailed", None),
    names("modelmesh_models_loaded_total", "modelsLoaded", None),
    names("modelmesh_models_with_failure_total", "modelsWithLoadFailure", None),
    names("modelmesh_models_managed_total", "modelsManaged", None),
    names("modelmesh_instance_lru_seconds", "localLruTimestamp", None),
    names("modelmesh_instance_lru_age_seconds", "localLruAge", None),
    Names { old_unit: PAGE, ..names("modelmesh_instance_capacity_bytes", "totalCapacity", None) },
    Names { old_unit: PAGE, ..names("modelmesh_instance_used_bytes", "totalUsed", None) },
    names("modelmesh_instance_used_bps", "capacityUsage", None),
    names("modelmesh_instance_models_total", "modelCount", None),
];

/// Sends until the process ends, from a thread of its own: translating the metrics of many models takes milliseconds.
///
/// # Errors
/// [`Failure`]: there is no socket or no thread.
pub(crate) fn send(settings: Statsd, metrics: MetricsSource) -> Result<(), Failure> {
    let unusable = |error| Failure::doing("cannot send metrics to StatsD", error);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(unusable)?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, settings.port));
    let mut differences = Differences::new(settings.legacy);
    let run = move || {
        loop {
            let lines = differences.since_last(&table::translated(&metrics(), SystemTime::now()));
            for datagram in datagrams(&lines) {
                // A server that is not there takes nothing, now and later: as StatsD has it.
                let _ = socket.send_to(datagram.as_bytes(), server);
            }
            thread::sleep(INTERVAL);
        }
    };
    thread::Builder::new().name("modelmesh-statsd".to_owned()).spawn(run).map(drop).map_err(unusable)
}

/// Lines, joined to datagrams.
fn datagrams(lines: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in lines {
        match all.last_mut().filter(|last| last.len() + 1 + line.len() <= DATAGRAM) {
            Some(last) => {
                last.push('\n');
                last.push_str(line);
            }
            None => all.push(line.clone()),
        }
    }
    all
}

/// Metrics as they were at the last look.
struct Differences {
    legacy: bool,
    /// By the series as it is written.
    last: BTreeMap<String, f64>,
}

/// The method and the code of a series.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
struct Tags {
    method: Option<String>,
    code: Option<String>,
}

/// A bucket that grew: its bounds, and by how much.
struct Grown {
    above: f64,
    upto: f64,
    events: f64,
}

impl Differences {
    fn new(legacy: bool) -> Self {
        Self { legacy, last: BTreeMap::new() }
    }

    /// The lines for all that happened since the last look, and all gauges.
    fn since_last(&mut self, text: &str) -> Vec<String> {
        let samples = samples(text);
        let kinds: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let mut lines = Vec::new();
        for names in &NAMES {
            let of = |ending: &str| {
                samples.get(format!("{}{ending}", names.prometheus).as_str()).map_or(&[][..], Vec::as_slice)
            };
            match kinds.get(names.prometheus) {
                Some(&"histogram") => self.histogram(names, of("_bucket"), of("_sum"), &mut lines),
                Some(&"counter") => {
                    let grown: f64 = of("").iter().map(|sample| self.grown(sample)).sum();
                    lines.extend(self.line(names, names.prometheus, &Tags::default(), grown, "c"));
                }
                Some(_) => {
                    let value: f64 = of("").iter().map(|sample| sample.value).sum();
                    let value = if self.legacy { (value / names.old_unit).floor() } else { value };
                    let name = self.name(names, names.prometheus, &Tags::default(), false);
                    lines.push(format!("{name}:{value}|g"));
                }
                None => {}
            }
        }
        lines
    }

    /// The growth of a series; a series that begins anew has grown by all that it has.
    fn grown(&mut self, sample: &Sample<'_>) -> f64 {
        let series = format!("{}{{{}", sample.name, sample.labels);
        let last = self.last.insert(series, sample.value).unwrap_or_default();
        if sample.value < last { sample.value } else { sample.value - last }
    }

    fn histogram(&mut self, names: &Names, buckets: &[Sample<'_>], sums: &[Sample<'_>], lines: &mut Vec<String>) {
        let mut series: BTreeMap<Tags, (Vec<(f64, f64)>, f64)> = BTreeMap::new();
        for bucket in buckets {
            let bound = bucket.label("le").and_then(|bound| bound.parse().ok()).unwrap_or(f64::INFINITY);
            let grown = self.grown(bucket);
            series.entry(tags(bucket)).or_default().0.push((bound, grown));
        }
        for sum in sums {
            let grown = self.grown(sum);
            series.entry(tags(sum)).or_default().1 += grown;
        }
        for (tags, (buckets, sum)) in series {
            let grown = per_bucket(buckets);
            let events: f64 = grown.iter().map(|bucket| bucket.events).sum();
            if events <= 0.0 {
                continue;
            }
            // Of calls that failed ModelMesh tells no time.
            if names.count.is_none() || tags.code.as_deref().is_none_or(|code| code == "OK") {
                let with_code = names.count.is_none();
                let name = self.name(names, names.prometheus, &tags, with_code);
                lines.extend(valued(&grown, sum).into_iter().map(|(value, events)| timing(&name, value, events)));
            }
            if let Some(count) = names.count {
                lines.extend(self.line(names, count, &tags, events, "c"));
            }
        }
    }

    fn line(&self, names: &Names, name: &str, tags: &Tags, value: f64, kind: &str) -> Option<String> {
        let name = self.name(names, name, tags, true);
        (value > 0.0).then(|| format!("{name}:{value}|{kind}"))
    }

    /// The name with the tags: `modelmesh_api_request_statsd#method=predict,code=OK`, or `model-mesh.api-predict.OK`.
    fn name(&self, names: &Names, name: &str, tags: &Tags, with_code: bool) -> String {
        let Tags { method, code } = tags;
        let code = code.as_ref().filter(|_| with_code || !self.legacy);
        if self.legacy {
            let method = method.as_deref().unwrap_or_default();
            let code = code.map(|code| format!(".{code}")).unwrap_or_default();
            return format!("model-mesh.{}{method}{code}", names.old);
        }
        let tags = [("method", method.as_ref()), ("code", code)];
        let tags: Vec<String> =
            tags.iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?))).collect();
        if tags.is_empty() { format!("{name}_statsd") } else { format!("{name}_statsd#{}", tags.join(",")) }
    }
}

/// Growth of each bucket alone, from growth of those up to each bound.
fn per_bucket(mut upto: Vec<(f64, f64)>) -> Vec<Grown> {
    upto.sort_by(|left, right| left.0.total_cmp(&right.0));
    let (mut above, mut below) = (0.0, 0.0);
    let mut grown = Vec::new();
    for (bound, events) in upto {
        if events > below {
            grown.push(Grown { above, upto: bound, events: events - below });
            below = events;
        }
        above = bound;
    }
    grown
}

/// A value for the events of each bucket: its middle, all of them scaled to add up to `sum`, within the bucket.
fn valued(grown: &[Grown], sum: f64) -> Vec<(f64, f64)> {
    let middle = |bucket: &Grown| {
        if bucket.upto.is_finite() { f64::midpoint(bucket.above, bucket.upto) } else { bucket.above.max(1.0) * 2.0 }
    };
    let guessed: f64 = grown.iter().map(|bucket| middle(bucket) * bucket.events).sum();
    let scale = if guessed > 0.0 { sum / guessed } else { 1.0 };
    let within = |bucket: &Grown| (middle(bucket) * scale).clamp(bucket.above, bucket.upto);
    grown.iter().map(|bucket| (within(bucket), bucket.events)).collect()
}

fn timing(name: &str, value: f64, events: f64) -> String {
    let value = (value * 1e3).round() / 1e3;
    if events > 1.0 { format!("{name}:{value}|ms|@{}", events.recip()) } else { format!("{name}:{value}|ms") }
}

/// The method and code of a series, in characters that StatsD leaves alone.
fn tags(sample: &Sample<'_>) -> Tags {
    let plain = |value: &str| {
        let keep = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        value.replace('/', ".").chars().map(keep).collect()
    };
    Tags { method: sample.label("method").map(plain), code: sample.label("code").map(plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls with 1 and 3 ms, then `more` of 3 ms.
    fn text(more: u32) -> String {
        let labels = r#"method="a.B/predict",code="OK""#;
        let all = 2 + more;
        let sum = 4.0 + 3.0 * f64::from(more);
        format!(
            "# TYPE modelmesh_api_request_milliseconds histogram\n\
             modelmesh_api_request_milliseconds_sum{{{labels}}} {sum}\n\
             modelmesh_api_request_milliseconds_bucket{{le=\"2.0\",{labels}}} 1\n\
             modelmesh_api_request_milliseconds_bucket{{le=\"5.0\",{labels}}} {all}\n\
             modelmesh_api_request_milliseconds_bucket{{le=\"+Inf\",{labels}}} {all}\n\
             # TYPE modelmesh_loadmodel_failure counter\nmodelmesh_loadmodel_failure {more}\n\
             # TYPE modelmesh_instance_used_bytes gauge\nmodelmesh_instance_used_bytes 16384\n"
        )
    }

    #[test]
    fn what_happened_since_the_last_look_is_sent() {
        let mut differences = Differences::new(false);
        let tags = "#method=a.B.predict,code=OK";
        let time = format!("modelmesh_api_request_milliseconds_statsd{tags}");
        assert_eq!(
            differences.since_last(&text(0)),
            [
                format!("{time}:0.889|ms"),
                format!("{time}:3.111|ms"),
                format!("modelmesh_api_request_statsd{tags}:2|c"),
                "modelmesh_instance_used_bytes_statsd:16384|g".to_owned(),
            ]
        );
        assert_eq!(
            differences.since_last(&text(4)),
            [
                format!("{time}:3|ms|@0.25"),
                format!("modelmesh_api_request_statsd{tags}:4|c"),
                "modelmesh_loadmodel_failure_statsd:4|c".to_owned(),
                "modelmesh_instance_used_bytes_statsd:16384|g".to_owned(),
            ]
        );
        assert_eq!(differences.since_last(&text(4)).len(), 1, "gauges alone");
    }

    #[test]
    fn the_old_names_have_method_and_code_in_them() {
        let failed = text(0).replace("OK", "DATA_LOSS").replace("a.B/predict", "a:b|c");
        let mut differences = Differences::new(true);
        assert_eq!(
            differences.since_last(&failed),
            ["model-mesh.api-a_b_c.DATA_LOSS:2|c", "model-mesh.totalUsed:2|g"],
            "no time of what failed, and no characters of the protocol"
        );
        assert!(differences.since_last(&text(0)).contains(&"model-mesh.api-a.B.predict:3.111|ms".to_owned()));
    }

    #[test]
    fn values_stay_in_their_buckets() {
        let grown = |above, upto, events| Grown { above, upto, events };
        let values = valued(&[grown(0.0, 1.0, 1.0), grown(300.0, f64::INFINITY, 2.0)], 5_000.0);
        assert_eq!(values[0], (1.0, 1.0));
        assert!(values[1].0 > 300.0 && values[1].0.is_finite(), "{values:?}");
    }

    #[test]
    fn datagrams_are_bounded() {
        let lines = vec!["x".repeat(700); 5];
        let lengths: Vec<usize> = datagrams(&lines).iter().map(String::len).collect();
        assert_eq!(lengths, [1_401, 1_401, 700]);
    }
}
