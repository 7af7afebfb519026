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
//! A story of one machine begins at once; one of many begins with `fleet`, which names controllers and gateways:
//!
//! ```text
//! fleet controllers=c1,c2,c3 gateways=eu:g1,us:g2
//! worker a memory=4GiB region=eu
//! partition left=a,b right=c1
//! ```

mod ask;
mod fate;
mod options;

use berth_plan::fixture;
use berth_spec::{ByteSize, Cordon, Deployment, FailureCategory, Replicas, WorkerInfo, deployment::WhenFull};

use self::options::Options;
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

fn command(cluster: &mut Cluster, line: &str) -> Result<Vec<String>, String> {
    let (verb, subject, options) = options::parse(line);
    match verb {
        "fleet" => *cluster = fleet(&options.with_subject(subject)),
        "model" => model(cluster, subject, &options)?,
        "worker" | "start" => worker(cluster, subject, &options)?,
        "apply" => apply(cluster, subject, &options)?,
        "delete" => {
            let known = cluster.store.deployment(&fixture::name(subject)).cloned().ok_or("no such deployment")?;
            acknowledged(cluster.declare(Deployment { deleting: true, ..known.as_ref().clone() }))?;
        }
        "cordon" | "drain" | "uncordon" => {
            let cordon = match verb {
                "cordon" => Cordon::Cordoned,
                "drain" => Cordon::Draining,
                _ => Cordon::Open,
            };
            acknowledged(cluster.cordon(&fixture::worker_id(subject), cordon))?;
        }
        "infer" => {
            let (name, count) = (fixture::name(subject), options.number("requests")?.unwrap_or(1));
            match options.text("at") {
                Some(gateway) => cluster.infer_at(&fixture::worker_id(gateway), &name, count),
                None => cluster.infer(&name, count),
            }
        }
        "restart" if subject == "controller" => cluster.restart_controller(),
        "run" => {
            cluster.run_for(options::duration(subject)?);
            return Ok(cluster.broken.drain(..).map(|broken| format!("VIOLATION {broken}")).collect());
        }
        "status" => return ask::status(cluster, subject),
        "explain" => return ask::explain(cluster, subject),
        "where" => return Ok(ask::placement(cluster, subject)),
        "leader" => return Ok(vec![cluster.leader().map_or("nobody leads".to_owned(), ToString::to_string)]),
        "tally" => return Ok(vec![ask::tally(cluster)]),
        "settled" => return Ok(ask::settled(cluster)),
        _ => fate::inject(cluster, verb, subject, &options)?,
    }
    Ok(Vec::new())
}

fn acknowledged(yes: bool) -> Result<(), String> {
    if yes { Ok(()) } else { Err("not acknowledged: nobody leads, or the store takes no writes".to_owned()) }
}

/// `controllers=c1,c2 gateways=eu:g1,g2`.
fn fleet(options: &Options<'_>) -> Cluster {
    let gateways: Vec<(&str, Option<&str>)> = options
        .list("gateways")
        .into_iter()
        .map(|gateway| gateway.split_once(':').map_or((gateway, None), |(region, name)| (name, Some(region))))
        .collect();
    let mut cluster = Cluster::fleet(1, &options.list("controllers"), &gateways);
    cluster.watch.patience = Some(fixture::deployment("any").spec.timeout);
    cluster
}

fn worker(cluster: &mut Cluster, called: &str, options: &Options<'_>) -> Result<(), String> {
    let memory: ByteSize = options.size("memory")?.ok_or("memory= is missing")?;
    let labels = ["region", "zone", "pool"].into_iter();
    let labels = labels.filter_map(|key| options.text(key).map(|value| (key.to_owned(), value.to_owned()))).collect();
    cluster.start(WorkerInfo { labels, ..fixture::worker(called, memory) });
    Ok(())
}

fn model(cluster: &mut Cluster, uri: &str, options: &Options<'_>) -> Result<(), String> {
    let fails = match options.text("fails") {
        None => None,
        Some("network") => Some(FailureCategory::Network),
        Some("invalid") => Some(FailureCategory::InvalidModel),
        Some("runtime") => Some(FailureCategory::Runtime),
        Some(other) => return Err(format!("no such failure: {other}")),
    };
    let memory = options.size("memory")?.ok_or("memory= is missing")?;
    let model = Model { memory, fetch: options.time("fetch")?, load: options.time("load")?, fails };
    cluster.models.insert(format!("file:///{uri}"), model);
    Ok(())
}

fn apply(cluster: &mut Cluster, called: &str, options: &Options<'_>) -> Result<(), String> {
    let name = fixture::name(called);
    let mut deployment = match cluster.store.deployment(&name) {
        Some(known) => Deployment { generation: known.generation.next(), ..known.as_ref().clone() },
        None => fixture::deployment(called),
    };
    let spec = &mut deployment.spec;
    if let Some(uri) = options.text("uri") {
        spec.model.uri = format!("file:///{uri}").into();
    }
    if let Some(min) = options.number("min")? {
        spec.replicas.min = min;
        spec.replicas.max = spec.replicas.max.max(min);
    }
    if let Some(max) = options.number("max")? {
        spec.replicas.max = max;
    }
    for region in options.list("regions") {
        spec.regions.insert(region.to_owned(), Replicas { min: 1, max: 1 });
    }
    if let Some(priority) = options.number("priority")? {
        spec.priority = u8::try_from(priority).map_err(|_| "priority is 1 to 100".to_owned())?;
    }
    spec.memory = options.size("memory")?.or(spec.memory);
    if options.text("idle").is_some() {
        spec.idle_after = Some(options.time("idle")?);
    }
    if options.has("recreate") {
        spec.rollout.when_full = WhenFull::Recreate;
    }
    acknowledged(cluster.declare(deployment))
}
