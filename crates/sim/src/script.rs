//! Stories as text: commands, each followed by what was seen (lines that begin with `|`). Running one gives the text
//! with what is seen now; a test compares, and rewrites the file when `UPDATE=1`.
//!
//! ```text
//! model iris/1 memory=1GiB load=2s
//! worker a memory=4GiB
//! apply iris uri=iris/1
//! run 10s
//! |     0.013s Placed: …
//! status iris
//! | Available: 1 of 1 replicas answer
//! ```

use std::{collections::BTreeMap, time::Duration};

use berth_plan::{fixture, report};
use berth_spec::{ByteSize, Deployment, FailureCategory, WorkerInfo, deployment::WhenFull};

use crate::{cluster::Cluster, node::Model};

/// Runs a script and returns it with what was seen. `Err`: the line that is wrong, and how.
pub fn run(script: &str) -> Result<String, String> {
    let mut cluster = Cluster::new(1);
    let mut text = String::new();
    for line in script.lines().filter(|line| !line.starts_with('|')) {
        text.push_str(line);
        text.push('\n');
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let seen = command(&mut cluster, line).map_err(|why| format!("{line:?}: {why}"))?;
        for line in cluster.log.drain(..).chain(seen) {
            text.push_str(&format!("| {line}\n"));
        }
    }
    Ok(text)
}

type Options<'a> = BTreeMap<&'a str, &'a str>;

fn command(cluster: &mut Cluster, line: &str) -> Result<Vec<String>, String> {
    let mut words = line.split_whitespace();
    let (verb, subject) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let options: Options<'_> = words.map(|word| word.split_once('=').unwrap_or((word, ""))).collect();
    match verb {
        "model" => model(cluster, subject, &options)?,
        "worker" => {
            let memory: ByteSize = size(&options, "memory")?.ok_or("memory= is missing")?;
            cluster.start(fixture::worker(subject, memory));
        }
        "crash" => cluster.crash(&fixture::worker_id(subject)),
        "start" => {
            let incarnation = cluster.posted_so_far();
            let memory = size(&options, "memory")?.ok_or("memory= is missing")?;
            cluster.start(WorkerInfo { incarnation, ..fixture::worker(subject, memory) });
        }
        "apply" => apply(cluster, subject, &options)?,
        "delete" => {
            let known = cluster.state.deployment(&fixture::name(subject)).cloned().ok_or("no such deployment")?;
            cluster.declare(Deployment { deleting: true, ..known.as_ref().clone() });
        }
        "infer" => cluster.infer(&fixture::name(subject), number(&options, "requests")?.unwrap_or(1)),
        "restart" => cluster.restart_controller(),
        "run" => {
            let broken = cluster.run_for(duration(subject)?);
            return Ok(broken.into_iter().map(|violation| format!("VIOLATION {}", violation.0)).collect());
        }
        "status" => return status(cluster, subject),
        "explain" => return explain(cluster, subject),
        _ => return Err("no such command".to_owned()),
    }
    Ok(Vec::new())
}

fn model(cluster: &mut Cluster, uri: &str, options: &Options<'_>) -> Result<(), String> {
    let fails = match options.get("fails").copied() {
        None => None,
        Some("network") => Some(FailureCategory::Network),
        Some("invalid") => Some(FailureCategory::InvalidModel),
        Some("runtime") => Some(FailureCategory::Runtime),
        Some(other) => return Err(format!("no such failure: {other}")),
    };
    let time = |key| options.get(key).map_or(Ok(Duration::ZERO), |text| duration(text));
    let memory = size(options, "memory")?.ok_or("memory= is missing")?;
    let model = Model { memory, fetch: time("fetch")?, load: time("load")?, fails };
    cluster.models.insert(format!("file:///{uri}"), model);
    Ok(())
}

fn apply(cluster: &mut Cluster, called: &str, options: &Options<'_>) -> Result<(), String> {
    let name = fixture::name(called);
    let mut deployment = match cluster.state.deployment(&name) {
        Some(known) => Deployment { generation: known.generation.next(), ..known.as_ref().clone() },
        None => fixture::deployment(called),
    };
    let spec = &mut deployment.spec;
    if let Some(uri) = options.get("uri") {
        spec.model.uri = format!("file:///{uri}");
    }
    if let Some(min) = number(options, "min")? {
        spec.replicas.min = min;
        spec.replicas.max = spec.replicas.max.max(min);
    }
    if let Some(priority) = number(options, "priority")? {
        spec.priority = u8::try_from(priority).map_err(|_| "priority is 1 to 100".to_owned())?;
    }
    if let Some(idle) = options.get("idle") {
        spec.idle_after = Some(duration(idle)?);
    }
    if options.contains_key("recreate") {
        spec.rollout.when_full = WhenFull::Recreate;
    }
    cluster.declare(deployment);
    Ok(())
}

fn status(cluster: &Cluster, called: &str) -> Result<Vec<String>, String> {
    let status = report::status(cluster.world(), &fixture::name(called), cluster.now).ok_or("no such deployment")?;
    let mut lines = vec![format!("{} {} of {} ready", status.phase.as_str(), status.ready, status.desired)];
    for condition in &status.conditions {
        lines.push(format!(
            "  {}={} {}: {}",
            condition.kind,
            condition.status.as_str(),
            condition.reason,
            condition.message
        ));
    }
    Ok(lines)
}

fn explain(cluster: &Cluster, called: &str) -> Result<Vec<String>, String> {
    let name = fixture::name(called);
    let explained = report::explain(cluster.world(), &name, cluster.now).ok_or("no such deployment")?;
    let mut lines = vec![format!("needs {} ({})", explained.need, explained.basis.as_str()), explained.summary];
    for view in explained.workers {
        let verdict = match view.verdict {
            report::WorkerVerdict::Holds { revision, claim, residency } => {
                format!("holds {revision}, {claim}, {}", residency.unwrap_or_else(|| "not reported".to_owned()))
            }
            report::WorkerVerdict::Fits { evicts, .. } if evicts.is_empty() => "fits".to_owned(),
            report::WorkerVerdict::Fits { evicts, .. } => format!("fits after evicting {evicts:?}"),
            report::WorkerVerdict::Rejected(rejection) => rejection.to_string(),
        };
        lines.push(format!("  {}: {} of {} claimed, {verdict}", view.worker, view.used, view.memory));
    }
    Ok(lines)
}

fn size(options: &Options<'_>, key: &str) -> Result<Option<ByteSize>, String> {
    options.get(key).map(|text| text.parse().map_err(|error| format!("{error}"))).transpose()
}

fn number(options: &Options<'_>, key: &str) -> Result<Option<u32>, String> {
    options.get(key).map(|text| text.parse().map_err(|_| format!("{key}={text} is no number"))).transpose()
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no duration"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("{text:?} is no duration: write 200ms, 5s or 10m")),
    }
}
