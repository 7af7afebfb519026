//! `berth top`: a live view of models, as a table once or on the whole terminal.

mod screen;

use std::{io::IsTerminal, time::Duration};

use berth_spec::{DeploymentName, Namespace};
use berth_wire::api::{ModelTop, TopView};
use clap::Args;

use super::output::{Form, print_value};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    files::plural,
    terminal::{self, Rows, size},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth top                                  live; q leaves, arrows scroll
  berth top -n team                          the models of a namespace
  berth top --once                           one table, the default if the output is not a terminal
  berth top --once -o json                   the same for programs

READY: replicas that answer. IN FLIGHT: requests that are being answered, or wait. REQ/S, FAIL/S,
MISS/S: requests, failed ones, and misses, which found no replica and waited for a load. P50, P90,
P99: percentiles of the latency. The overhead in the first line is the memory of the servers'
processes beside their models.")]
pub(crate) struct TopArgs {
    /// Only models of this namespace [default: all]
    #[arg(short = 'n', long, value_name = "NAMESPACE", add = super::completing::namespaces())]
    namespace: Option<Namespace>,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Output format with --once
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::settings::duration)]
    interval: Duration,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &TopArgs) -> Result<(), Failure> {
    let models = Models { client: args.api.client()?, namespace: args.namespace.clone() };
    let first = models.look().await?;
    if !args.once && std::io::stdout().is_terminal() {
        return screen::run(models, first, args.interval).await;
    }
    match args.output {
        Form::Json | Form::Yaml => print_value(&first, args.output),
        _ => {
            let mut rows = Rows::new(&HEADS);
            first.models.iter().for_each(|model| rows.add(cells(model)));
            Ok(terminal::print(&format!("{}\n\n{}", summary(&first), rows.render()))?)
        }
    }
}

/// Models of a server: all of them, or those of a namespace.
struct Models {
    client: Client,
    namespace: Option<Namespace>,
}

impl Models {
    async fn look(&self) -> Result<TopView, Failure> {
        let view: TopView = self.client.get(&["top"]).await?;
        Ok(match &self.namespace {
            Some(namespace) => within(view, namespace),
            None => view,
        })
    }
}

/// The view without models of other namespaces.
fn within(mut view: TopView, namespace: &Namespace) -> TopView {
    view.models.retain(|model| {
        DeploymentName::new(&model.deployment).is_ok_and(|name| name.namespace() == namespace.as_str())
    });
    view
}

/// The columns of the table.
const HEADS: [&str; 11] =
    ["MODEL", "PHASE", "READY", "MEMORY", "IN FLIGHT", "REQ/S", "FAIL/S", "MISS/S", "P50", "P90", "P99"];

/// Cells of one model's row.
fn cells(model: &ModelTop) -> [String; 11] {
    let rate = |per_second: f64| if per_second == 0.0 { "0".to_owned() } else { format!("{per_second:.1}") };
    let latency = |pick: fn(&berth_wire::api::LatencyMs) -> f64| {
        model.latency.as_ref().map_or_else(|| "-".to_owned(), |latency| format!("{:.2}ms", pick(latency)))
    };
    [
        model.deployment.clone(),
        model.phase.clone(),
        model.ready.to_string(),
        if model.memory == 0 { "-".to_owned() } else { size(model.memory) },
        model.in_flight.to_string(),
        rate(model.requests_per_second),
        rate(model.failures_per_second),
        rate(model.misses_per_second),
        latency(|l| l.p50),
        latency(|l| l.p90),
        latency(|l| l.p99),
    ]
}

/// The line above the table. Warnings come first: a narrow terminal cuts off its end.
fn summary(view: &TopView) -> String {
    let sum = |pick: fn(&ModelTop) -> f64| view.models.iter().map(pick).fold(0.0, |sum, rate| sum + rate);
    let warning = match view.missing.as_slice() {
        [] => String::new(),
        missing => format!("no answer from {} | ", missing.join(", ")),
    };
    let gateways = match view.gateways {
        0 | 1 if view.missing.is_empty() => String::new(),
        some => format!(" | {}", plural(some as usize, "gateway")),
    };
    // Rates need two looks, and nobody has looked for a while.
    let over = match view.window_ms {
        0 => "rates at the next look".to_owned(),
        window => format!("over {}", terminal::short(Duration::from_millis(window))),
    };
    let overhead = match view.memory.overhead {
        0 => String::new(),
        overhead => format!(" + {} overhead", size(overhead)),
    };
    format!(
        "{warning}{} loaded | memory {}{overhead} of {} | {:.1} requests/s, {:.1} misses/s | {over}{gateways}",
        plural(view.models.iter().filter(|model| model.ready > 0).count(), "model"),
        size(view.memory.used),
        size(view.memory.total),
        sum(|model| model.requests_per_second),
        sum(|model| model.misses_per_second),
    )
}

#[cfg(test)]
mod tests {
    use berth_wire::api::Memory;

    use super::*;

    fn view(gateways: u32, missing: &[&str]) -> TopView {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1", "kind": "Top", "at": "2026-11-18T00:00:00.000Z", "windowMs": 9_000,
            "gateways": gateways, "missing": missing, "memory": {"total": 0, "used": 0, "free": 0}, "models": []
        }))
        .expect("a view")
    }

    #[test]
    fn gateways_that_do_not_answer_are_named() {
        for (gateways, missing, start, end) in [
            (1, &[][..], "0 models loaded", "over 9s"),
            (3, &[], "0 models loaded", "over 9s | 3 gateways"),
            (1, &["b", "c"], "no answer from b, c | 0 models loaded", "over 9s | 1 gateway"),
        ] {
            let line = summary(&view(gateways, missing));
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_namespace_leaves_out_the_models_of_others() {
        let model = |name: &str| ModelTop { deployment: name.to_owned(), ..ModelTop::default() };
        let models = ["iris", "team/iris", "default/a/b", "team/a/b"].map(model).to_vec();
        let all = TopView { models, ..view(1, &[]) };
        for (namespace, shown) in [("default", ["iris", "default/a/b"]), ("team", ["team/iris", "team/a/b"])] {
            let found = within(all.clone(), &Namespace::new(namespace).expect("a namespace"));
            assert_eq!(found.models.iter().map(|model| model.deployment.as_str()).collect::<Vec<_>>(), shown);
        }
    }

    #[test]
    fn memory_is_told_with_what_the_processes_take() {
        for (overhead, words) in [(0, "memory 3MiB of 8MiB |"), (4 << 20, "memory 3MiB + 4MiB overhead of 8MiB |")] {
            let memory = Memory { total: 8 << 20, used: 3 << 20, overhead, free: (5 << 20) - overhead };
            let line = summary(&TopView { memory, ..view(1, &[]) });
            assert!(line.contains(words), "{line}");
        }
    }
}
