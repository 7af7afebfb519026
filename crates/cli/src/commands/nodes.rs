//! Nodes on the terminal: a row of the capacity table, and one with all that is known about it.

use std::time::Duration;

use berth_wire::api::{
    BreakerView, Capacity, DrainStep, EventView, GpuView, MassLossView, NodeView, ReplicaView, RuntimeView, TermsView,
};
use clap::Args;

use super::{
    describe::{facts, labels, memory, section},
    output::{Form, Row, or_dash, table},
};
use crate::{
    client::Client,
    failure::Failure,
    files::plural,
    terminal::{Rows, age, short, size},
};

/// Nodes, written `node/a`, `node a` or `a`.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeTarget {
    /// One or more nodes: NAME or node/NAME
    #[arg(value_name = "NODE", required = true, add = super::completing::nodes())]
    nodes: Vec<String>,
}

impl NodeTarget {
    /// The names, each once.
    pub(crate) fn names(&self) -> Result<Vec<&str>, Failure> {
        let kind = |word: &str| matches!(word, "node" | "nodes" | "worker" | "workers");
        let words = match self.nodes.as_slice() {
            [first, rest @ ..] if kind(first) && !rest.is_empty() => rest,
            words => words,
        };
        let mut names: Vec<&str> = Vec::new();
        for word in words {
            let name = match word.split_once('/') {
                Some((of, name)) if kind(of) => name,
                Some((other, _)) => {
                    return Err(Failure::Usage(format!("{other:?} is not a node: write node/NAME")));
                }
                None => word,
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }
}

/// Above the table, while many nodes that were lost at once are waited for.
pub(crate) fn mass_loss(loss: &MassLossView) -> String {
    let MassLossView { lost, known, since, until } = loss;
    format!(
        "{lost} of {known} workers were lost at once since {since}: until {until} only what requests wait for is placed \
         elsewhere\n"
    )
}

impl Row for NodeView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "STATE", "ROLES", "MEMORY", "CPU", "GPU", "MODELS", "LAST SEEN"],
        &[
            "QUEUE",
            "REQ/MIN",
            "CPU 1M/5M",
            "HEALTH",
            "REGION",
            "ZONE",
            "ADDRESS",
            "VERSION",
            "RUNTIMES",
            "LABELS",
            "NOTE",
        ],
    );

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let of = |show: &dyn Fn(&Capacity) -> String| status.capacity.as_ref().map_or_else(|| "-".to_owned(), show);
        let others = self.metadata.labels.iter().filter(|(key, _)| !matches!(key.as_str(), "region" | "zone"));
        let others: Vec<String> = others.map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            self.metadata.name.clone(),
            state(self),
            roles(self),
            of(&|c| format!("{}/{}", size(c.memory.used), size(c.memory.total))),
            of(&|c| format!("{:.0}% of {}", c.cpus.used_percent, c.cpus.total)),
            of(&|c| or_dash(&gpus(&c.gpus))),
            of(&models),
            last_seen(self),
            of(&|c| c.load_queue.to_string()),
            of(&|c| c.requests_per_minute.to_string()),
            of(&|c| format!("{:.0}%/{:.0}%", c.cpus.used_percent_1m, c.cpus.used_percent_5m)),
            or_dash(&status.health),
            or_dash(status.region.as_deref().unwrap_or_default()),
            or_dash(status.zone.as_deref().unwrap_or_default()),
            or_dash(&status.address),
            or_dash(&status.version),
            of(&|c| or_dash(&runtimes(&c.runtimes).join(","))),
            or_dash(&others.join(",")),
            or_dash(&status.message),
        ]
    }
}

/// State of a node, for example `Ready` or `Ready,cordoned`.
fn state(node: &NodeView) -> String {
    match node.spec.cordon.as_str() {
        "cordoned" => format!("{},cordoned", node.status.state),
        _ => node.status.state.clone(),
    }
}

/// `leader,worker,gateway` for the controller that leads.
fn roles(node: &NodeView) -> String {
    let role =
        |role: &String| if node.status.leader && role == "controller" { "leader".to_owned() } else { role.clone() };
    node.status.roles.iter().map(role).collect::<Vec<_>>().join(",")
}

/// `12/14`, `12/14 (max 20)`: ready of held.
fn models(capacity: &Capacity) -> String {
    let models = &capacity.models;
    let max = models.max.map_or_else(String::new, |max| format!(" (max {max})"));
    format!("{}/{}{max}", models.ready, models.held)
}

/// `2 nvidia-l4 12GiB/48GiB`, kinds joined by commas.
fn gpus(gpus: &[GpuView]) -> String {
    let mut kinds: Vec<(&str, usize, u64, u64)> = Vec::new();
    for gpu in gpus {
        match kinds.iter_mut().find(|(kind, ..)| *kind == gpu.kind) {
            Some((_, count, used, memory)) => {
                (*count, *used, *memory) = (*count + 1, *used + gpu.used, *memory + gpu.memory)
            }
            None => kinds.push((&gpu.kind, 1, gpu.used, gpu.memory)),
        }
    }
    let shown =
        kinds.iter().map(|(kind, count, used, memory)| format!("{count} {kind} {}/{}", size(*used), size(*memory)));
    shown.collect::<Vec<_>>().join(", ")
}

fn last_seen(node: &NodeView) -> String {
    let none = if node.status.expected.is_some() { "never" } else { "-" };
    node.status.last_seen_age_ms.map_or_else(
        || none.to_owned(),
        |ms| match Duration::from_millis(ms) {
            age if age < Duration::from_secs(1) => "now".to_owned(),
            age => short(age),
        },
    )
}

/// A node with all that is known about it.
pub(crate) async fn describe(client: &Client, name: &str) -> Result<String, Failure> {
    /// Events that are shown, the latest.
    const EVENTS: usize = 20;
    let node: NodeView = client.get(&["nodes", name]).await?;
    let mut text = facts(&about(&node));
    if let Some(drain) = &node.status.drain {
        let mut block = format!("{} left\n", plural(usize::try_from(drain.left).unwrap_or(usize::MAX), "replica"));
        block.extend(steps("moving", &drain.waiting_for));
        block.extend(steps("blocked", &drain.blocked));
        section(&mut text, "Draining", &block);
    }
    if let Some(capacity) = node.status.capacity.as_ref().filter(|capacity| !capacity.gpus.is_empty()) {
        section(&mut text, "GPUs", &devices(&capacity.gpus));
    }
    if !node.status.breakers.is_empty() {
        section(&mut text, "Circuit breakers", &breakers(&node.status.breakers));
    }
    if node.status.capacity.is_some() {
        let mut replicas = client.list::<ReplicaView>(&["replicas"], &[]).await?.items;
        replicas.retain(|replica| replica.status.worker == name);
        let block = if replicas.is_empty() { "none\n".to_owned() } else { table(&replicas, Form::Wide) };
        section(&mut text, "Replicas", &block);
    }
    let mut events = client.list::<EventView>(&["events"], &[]).await?.items;
    events.retain(|event| event.worker.as_deref() == Some(name));
    let events = &events[events.len().saturating_sub(EVENTS)..];
    let block = if events.is_empty() { "none lately\n".to_owned() } else { table(events, Form::Table) };
    section(&mut text, "Events", &block);
    Ok(text)
}

fn about(node: &NodeView) -> Vec<(&'static str, String)> {
    let status = &node.status;
    let place = [&status.region, &status.zone].into_iter().flatten().cloned().collect::<Vec<_>>().join(", ");
    let mut facts = vec![
        ("Name", node.metadata.name.clone()),
        ("State", state(node)),
        ("Roles", roles(node)),
        ("Health", or_dash(&status.health)),
        ("Labels", labels(&node.metadata.labels)),
        ("Region, zone", or_dash(&place)),
        ("Address", or_dash(&status.address)),
        ("Last seen", last_seen(node)),
    ];
    if !status.version.is_empty() {
        facts.push(("Version", format!("{}, incarnation {}", status.version, status.incarnation)));
    }
    if !status.message.is_empty() {
        facts.push(("Note", status.message.clone()));
    }
    if let Some(capacity) = &status.capacity {
        let cpus = &capacity.cpus;
        facts.extend([
            ("Memory", memory(&capacity.memory)),
            ("Machine", format!("{} of memory in use", size(capacity.machine_memory_used))),
            (
                "CPUs",
                format!(
                    "{}, {:.0}% in use ({:.0}% over 1m, {:.0}% over 5m)",
                    cpus.total, cpus.used_percent, cpus.used_percent_1m, cpus.used_percent_5m
                ),
            ),
            ("GPUs", or_dash(&gpus(&capacity.gpus))),
            ("Models", format!("{} (ready/held)", models(capacity))),
            ("Load", format!("{} requests/min, {} loads wait", capacity.requests_per_minute, capacity.load_queue)),
            ("Runtimes", or_dash(&runtimes(&capacity.runtimes).join(", "))),
            ("Isolation", or_dash(&isolation(&capacity.runtimes).join("; "))),
            ("Model cards", or_dash(&capacity.schema_versions.join(", "))),
        ]);
    }
    if let Some(terms) = &status.terms {
        facts.push(("Registry", in_words(terms)));
    }
    if status.credentials > 0 {
        facts.push(("Credentials", format!("generation {}", status.credentials)));
    }
    facts
}

/// The GPUs of a node, one line for each.
fn devices(gpus: &[GpuView]) -> String {
    let mut rows = Rows::new(&["ID", "KIND", "MEMORY", "IN USE", "BUSY", "REVISION"]);
    for gpu in gpus {
        rows.add([
            gpu.id.clone(),
            gpu.kind.clone(),
            size(gpu.memory),
            gpu.memory_used.map_or_else(|| "-".to_owned(), size),
            gpu.utilization_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%")),
            or_dash(gpu.revision.as_deref().unwrap_or_default()),
        ]);
    }
    rows.render()
}

/// The runtimes of a node with their formats, labels and own limits: `onnx (onnx)`, `triton (onnx, tensorrt; tier=gold; at most 4GiB)`.
fn runtimes(runtimes: &[RuntimeView]) -> Vec<String> {
    let one = |runtime: &RuntimeView| {
        let limits = [
            runtime.memory.map(size),
            runtime.max_models.map(|models| format!("{models} models")),
            runtime.device_memory.map(|memory| format!("{} on devices", size(memory))),
        ];
        let limits: Vec<String> = limits.into_iter().flatten().collect();
        let limits = if limits.is_empty() { String::new() } else { format!("; at most {}", limits.join(", ")) };
        let labels: Vec<String> = runtime.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("; {}", labels.join(", ")) };
        format!("{} ({}{labels}{limits})", runtime.name, runtime.formats.join(", "))
    };
    runtimes.iter().map(one).collect()
}

/// The strongest isolation of each runtime's models: `python up to sandbox; mlserver none (…)`.
fn isolation(runtimes: &[RuntimeView]) -> Vec<String> {
    let one = |runtime: &RuntimeView| {
        let most = match runtime.isolation.as_deref()? {
            "none" => "none".to_owned(),
            most => format!("up to {most}"),
        };
        let lacks = runtime.isolation_lacks.as_ref().map(|lacks| format!(" ({lacks})")).unwrap_or_default();
        Some(format!("{} {most}{lacks}", runtime.name))
    };
    runtimes.iter().filter_map(one).collect()
}

/// Registry's terms in words: `at most 5 models, 16GiB; evicts by lru`.
fn in_words(terms: &TermsView) -> String {
    let most = [
        terms.max_models.map(|models| format!("{models} models")),
        terms.memory.map(size),
        terms.cpus.map(|cpus| format!("{cpus} cores")),
        terms.max_gpus.map(|gpus| format!("{gpus} GPUs")),
    ];
    let most: Vec<String> = most.into_iter().flatten().collect();
    let most = if most.is_empty() { "as much as it has".to_owned() } else { format!("at most {}", most.join(", ")) };
    let room = if terms.evicts { format!("by {}", terms.eviction_strategy) } else { "by nobody".to_owned() };
    format!("{most}; room is made {room}")
}

/// Open circuit breakers of a node, with the time of the next trial.
fn breakers(breakers: &[BreakerView]) -> String {
    let mut rows = Rows::new(&["DEPENDENCY", "KIND", "STATE", "FAILURES", "OPENED", "TRIES AGAIN"]);
    for breaker in breakers {
        rows.add([
            breaker.dependency.clone(),
            breaker.kind.clone(),
            breaker.state.clone(),
            breaker.failures.to_string(),
            breaker.opened_at.map_or_else(|| "-".to_owned(), |at| format!("{} ago", age(Some(at)))),
            breaker.retry_at.map_or_else(|| "-".to_owned(), String::from),
        ]);
    }
    rows.render()
}

/// A line for each step of a drain.
pub(crate) fn steps<'a>(what: &'a str, steps: &'a [DrainStep]) -> impl Iterator<Item = String> + 'a {
    steps.iter().map(move |step| format!("{what}  {}: {}\n", step.revision, step.message))
}

#[cfg(test)]
mod tests {
    use berth_wire::api::{Cpus, Memory, Metadata, Models, NodeSpec, NodeStatus};

    use super::*;

    fn node() -> NodeView {
        NodeView {
            api_version: String::new(),
            kind: String::new(),
            metadata: Metadata {
                name: "a".to_owned(),
                labels: [("region", "eu"), ("pool", "prod")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            },
            spec: NodeSpec { cordon: "cordoned".to_owned() },
            status: NodeStatus {
                leader: true,
                roles: ["controller", "worker"].map(str::to_owned).to_vec(),
                health: "Alive".to_owned(),
                state: "Ready".to_owned(),
                region: Some("eu".to_owned()),
                last_seen_age_ms: Some(2_500),
                capacity: Some(Capacity {
                    memory: Memory { total: 8 << 30, used: 3 << 29, overhead: 1 << 29, free: 6 << 30 },
                    cpus: Cpus { total: 8.0, used_percent: 34.6, used_percent_1m: 20.0, used_percent_5m: 9.9 },
                    gpus: vec![
                        GpuView {
                            kind: "nvidia-l4".to_owned(),
                            memory: 24 << 30,
                            used: 6 << 30,
                            ..GpuView::default()
                        };
                        2
                    ],
                    models: Models { held: 14, ready: 12, max: Some(20) },
                    requests_per_minute: 800,
                    ..Capacity::default()
                }),
                ..NodeStatus::default()
            },
        }
    }

    #[test]
    fn a_loss_of_many_is_one_line_above_the_table() {
        let at = |seconds: u64| berth_wire::api::Timestamp(berth_spec::Time(seconds * 1_000_000_000));
        let loss = MassLossView { lost: 6, known: 10, since: at(1_795_000_000), until: at(1_795_000_030) };
        let line = mass_loss(&loss);
        assert!(line.starts_with("6 of 10 workers were lost at once since 2026-11-18T"), "{line}");
        assert!(line.ends_with("placed elsewhere\n") && line.lines().count() == 1, "{line}");
    }

    #[test]
    fn the_capacity_table() {
        assert_eq!(
            table(&[node()], Form::Table),
            "NAME  STATE           ROLES          MEMORY       CPU       GPU                      MODELS          LAST SEEN\n\
             a     Ready,cordoned  leader,worker  1.5GiB/8GiB  35% of 8  2 nvidia-l4 12GiB/48GiB  12/14 (max 20)  2s\n"
        );
        let wide = node().cells();
        assert_eq!(wide.len(), NodeView::HEADS.0.len() + NodeView::HEADS.1.len());
        assert_eq!(wide[wide.len() - 2..], ["pool=prod", "-"]);
        let mut bare = node();
        bare.status.capacity = None;
        assert_eq!(bare.cells()[3], "-");
    }

    #[test]
    fn nodes_are_named_in_several_ways() {
        let names = |words: &[&str]| {
            let target = NodeTarget { nodes: words.iter().map(|&word| word.to_owned()).collect() };
            target.names().map(|names| names.join(" ")).map_err(|e| e.to_string())
        };
        for words in [&["node/a", "b", "node/a"][..], &["node", "a", "b"], &["workers/a", "node/b"]] {
            assert_eq!(names(words).as_deref(), Ok("a b"), "{words:?}");
        }
        assert_eq!(names(&["node"]).as_deref(), Ok("node"), "a node may have that name");
        assert!(names(&["deployment/a"]).is_err_and(|error| error.contains("node/NAME")));
    }
}
