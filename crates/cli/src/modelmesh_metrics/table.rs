//! Berth's metrics in ModelMesh's names and units.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{SystemTime, UNIX_EPOCH},
};

use super::text::{Sample, samples};

/// Milliseconds in a second.
const MILLIS: f64 = 1e3;

/// The beginning of the names that are ModelMesh's already.
const SAME: &str = "modelmesh_";

/// A histogram: Berth's name, the phase whose samples count, the factor between units, and ModelMesh's name and help.
struct Histogram {
    from: &'static str,
    phase: Option<&'static str>,
    scale: f64,
    to: &'static str,
    help: &'static str,
}

const HISTOGRAMS: &[Histogram] = &[
    Histogram {
        from: "worker_models_load_duration_seconds",
        phase: None,
        scale: MILLIS,
        to: "modelmesh_loadmodel_milliseconds",
        help: "Time taken to load model",
    },
    Histogram {
        from: "worker_models_unload_duration_seconds",
        phase: None,
        scale: MILLIS,
        to: "modelmesh_unloadmodel_milliseconds",
        help: "Time taken to unload model",
    },
    Histogram {
        from: "berth_load_phase_seconds",
        phase: Some("queued"),
        scale: MILLIS,
        to: "modelmesh_loading_queue_delay_milliseconds",
        help: "Time spent in model loading queue",
    },
    Histogram {
        from: "berth_queue_seconds",
        phase: None,
        scale: MILLIS,
        to: "modelmesh_req_queue_delay_milliseconds",
        help: "Time spent in inference request queue",
    },
    Histogram {
        from: "berth_server_sizing_seconds",
        phase: None,
        scale: MILLIS,
        to: "modelmesh_model_sizing_milliseconds",
        help: "Time taken to perform model sizing",
    },
    Histogram {
        from: "berth_eviction_age_seconds",
        phase: None,
        scale: MILLIS,
        to: "modelmesh_age_at_eviction_milliseconds",
        help: "Time since model was last used when evicted",
    },
    Histogram {
        from: "berth_model_bytes",
        phase: None,
        scale: 1.0,
        to: "modelmesh_loaded_model_size_bytes",
        help: "Reported size of loaded model",
    },
];

/// Counters: Berth's name, and ModelMesh's name and help.
const COUNTERS: &[(&str, &str, &str)] = &[
    ("worker_models_load_failures_total", "modelmesh_loadmodel_failure", "Model load failures"),
    (
        "berth_server_unloads_stuck_total",
        "modelmesh_unloadmodel_failure",
        "Unload model failures (not counting multiple attempts for same copy)",
    ),
    ("berth_server_unload_failures_total", "modelmesh_unloadmodel_attempt_failure", "Unload model attempt failures"),
];

/// Gauges of the cluster; only the leader has them.
const CLUSTER: &[(&str, &str, &str)] = &[
    (
        "berth_deployments_loaded",
        "modelmesh_models_loaded_total",
        "Total number of models with at least one loaded copy",
    ),
    (
        "system_deployments_failed_count",
        "modelmesh_models_with_failure_total",
        "Total number of models with one or more recent load failures",
    ),
    ("system_deployments_total_count", "modelmesh_models_managed_total", "Total number of models managed"),
];

/// The metrics under ModelMesh's names. `text` has the process's own.
pub(super) fn translated(text: &str, now: SystemTime) -> String {
    let samples = samples(text);
    let sum = |name: &str| samples.get(name).map_or(0.0, |all| all.iter().map(|sample| sample.value).sum());
    let mut out = String::with_capacity(text.len() / 2);
    same(text, &mut out);
    for histogram in HISTOGRAMS {
        histogram.write(&samples, &mut out);
    }
    for (from, to, help) in COUNTERS {
        single(&mut out, to, help, "counter", sum(from));
    }
    if sum("berth_leader") > 0.0 {
        for (from, to, help) in CLUSTER {
            single(&mut out, to, help, "gauge", sum(from));
        }
        // The cluster's age: dashboards take the largest of all instances.
        let age = sum("berth_lru_age_seconds");
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let help = "Last used age of least recently used model in pod (secs ago)";
        single(&mut out, "modelmesh_instance_lru_age_seconds", help, "gauge", age.floor());
        let help = "Last used time of least recently used model in pod (in secs since epoch)";
        single(&mut out, "modelmesh_instance_lru_seconds", help, "gauge", (now - age).floor());
    }
    let (used, free) = (sum("worker_memory_used_bytes"), sum("worker_memory_available_bytes"));
    let capacity = used + free;
    let help = "Effective model capacity of pod excluding unload buffer";
    single(&mut out, "modelmesh_instance_capacity_bytes", help, "gauge", capacity);
    let help = "Amount of capacity currently in use by loaded models";
    single(&mut out, "modelmesh_instance_used_bytes", help, "gauge", used);
    let help = "Amount of capacity used in basis points (100ths of percent)";
    let part = if capacity > 0.0 { (used / capacity * 10_000.0).floor() } else { 0.0 };
    single(&mut out, "modelmesh_instance_used_bps", help, "gauge", part);
    let help = "Number of model copies loaded in pod";
    single(&mut out, "modelmesh_instance_models_total", help, "gauge", sum("worker_models_loaded_count"));
    out
}

/// Families that have ModelMesh's names already.
fn same(text: &str, out: &mut String) {
    for line in text.lines() {
        let name = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
        if name.starts_with(SAME) {
            // ModelMesh's descriptions have no full stop; a sample has none at its end.
            let _ = writeln!(out, "{}", line.trim_end_matches('.'));
        }
    }
}

fn single(out: &mut String, name: &str, help: &str, kind: &str, value: f64) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
}

impl Histogram {
    /// The sum over all models, in the units there.
    fn write(&self, samples: &BTreeMap<&str, Vec<Sample<'_>>>, out: &mut String) {
        let Self { to, help, .. } = self;
        let of = |ending: &str| {
            let all = samples.get(format!("{}{ending}", self.from).as_str()).map_or(&[][..], Vec::as_slice);
            all.iter().filter(|sample| self.phase.is_none_or(|phase| sample.label("phase") == Some(phase)))
        };
        let _ = writeln!(out, "# HELP {to} {help}\n# TYPE {to} histogram");
        // In the order of the bounds: bits of positive numbers are ordered as they are.
        let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
        for bucket in of("_bucket") {
            let bound = bucket.label("le").and_then(|bound| bound.parse::<f64>().ok()).unwrap_or(f64::INFINITY);
            *buckets.entry((bound * self.scale).to_bits()).or_default() += bucket.value;
        }
        buckets.entry(f64::INFINITY.to_bits()).or_default();
        for (bound, count) in buckets {
            let bound = f64::from_bits(bound);
            let bound = if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() };
            let _ = writeln!(out, "{to}_bucket{{le=\"{bound}\"}} {count}");
        }
        let sum: f64 = of("_sum").map(|sample| sample.value * self.scale).sum();
        let count: f64 = of("_count").map(|sample| sample.value).sum();
        let _ = writeln!(out, "{to}_sum {sum}\n{to}_count {count}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OWN: &str = r#"# TYPE worker_models_load_duration_seconds histogram
worker_models_load_duration_seconds_sum 1.5
worker_models_load_duration_seconds_count 2
worker_models_load_duration_seconds_bucket{le="0.5"} 1
worker_models_load_duration_seconds_bucket{le="+Inf"} 2
berth_load_phase_seconds_sum{phase="queued"} 0.25
berth_load_phase_seconds_sum{phase="load"} 9
berth_queue_seconds_count{model="a"} 3
berth_queue_seconds_count{model="b"} 4
worker_models_load_failures_total{category="Memory"} 2
worker_models_load_failures_total{category="Timeout"} 1
worker_memory_used_bytes 25
worker_memory_available_bytes 75
berth_lru_age_seconds 60.5
system_deployments_total_count 7
# HELP modelmesh_request_size_bytes Inference request payload size.
# TYPE modelmesh_request_size_bytes histogram
modelmesh_request_size_bytes_sum{method="predict",code="OK"} 20.0
"#;

    #[test]
    fn values_come_in_modelmeshs_names_and_units() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let text = translated(OWN, now);
        for line in [
            "modelmesh_loadmodel_milliseconds_sum 1500",
            "modelmesh_loadmodel_milliseconds_bucket{le=\"500\"} 1",
            "modelmesh_loadmodel_milliseconds_bucket{le=\"+Inf\"} 2",
            "modelmesh_loading_queue_delay_milliseconds_sum 250",
            "modelmesh_req_queue_delay_milliseconds_count 7",
            "modelmesh_loadmodel_failure 3",
            "modelmesh_instance_capacity_bytes 100",
            "modelmesh_instance_used_bps 2500",
            "# HELP modelmesh_request_size_bytes Inference request payload size",
            "# TYPE modelmesh_request_size_bytes histogram",
            "modelmesh_request_size_bytes_sum{method=\"predict\",code=\"OK\"} 20.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("models_managed"), "only the leader tells of the cluster");
        let leader = translated(&format!("{OWN}berth_leader 1\n"), now);
        for line in [
            "modelmesh_models_managed_total 7",
            "modelmesh_instance_lru_age_seconds 60",
            "modelmesh_instance_lru_seconds 939",
        ] {
            assert!(leader.lines().any(|found| found == line), "{line}\n{leader}");
        }
    }
}
