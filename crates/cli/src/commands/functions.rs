//! Functions: their rows, what `berth describe function` tells, and their logs.

use std::time::Duration;

use berth_wire::api::FunctionView;
use reqwest::Method;

use super::{
    describe::{facts, section},
    output::{Row, or_dash},
    resource::{Resource, not_found},
};
use crate::{
    client::Client,
    failure::Failure,
    terminal::{self, Rows, size},
};

/// Interval at which a followed log is read again.
const FOLLOW: Duration = Duration::from_millis(500);

/// Prints the log of a function: its last build, then the end of its output.
pub(super) async fn print_log(client: &Client, name: &str, follow: bool) -> Result<(), Failure> {
    let mut printed = String::new();
    loop {
        let asked = client.send(client.request(Method::GET, &[Resource::Functions.plural(), name, "log"], &[])).await;
        let text = match asked {
            Err(Failure::NotFound(_)) => return Err(not_found(client, Resource::Functions, name).await),
            answer => answer?.text().await.map_err(|e| Failure::doing("the log broke off", e))?,
        };
        // Another build has begun, or only the end of a long output is kept: all of it is new.
        let new = text.strip_prefix(printed.as_str()).unwrap_or(&text);
        if !new.is_empty() {
            terminal::print(new.trim_end_matches('\n'))?;
        }
        if !follow {
            return Ok(());
        }
        printed = text;
        tokio::time::sleep(FOLLOW).await;
    }
}

/// All that is known about a function.
pub(super) async fn described(client: &Client, name: &str) -> Result<String, Failure> {
    let function: FunctionView = client.get(&[Resource::Functions.plural(), name]).await?;
    let (spec, status) = (&function.spec, &function.status);
    let artifact = status.artifact.as_ref().map(|artifact| format!("{} ({})", artifact.digest, size(artifact.size)));
    let mut text = facts(&[
        ("Name", function.metadata.name.clone()),
        ("Type", or_dash(&spec.r#type)),
        ("Source", or_dash(&spec.source_uri)),
        ("Platform", or_dash(&spec.platform)),
        ("Generation", format!("{} (status speaks of {})", spec.generation, status.observed_generation)),
        ("Phase", status.phase.clone()),
        ("Message", status.message.clone()),
        ("Endpoint", or_dash(status.endpoint.as_deref().unwrap_or_default())),
        ("Artifact", or_dash(artifact.as_deref().unwrap_or_default())),
    ]);
    let mut rows = Rows::new(&["CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for fact in &status.conditions {
        rows.add(
            [&fact.r#type, &fact.status, &fact.reason, &fact.last_transition_time, &fact.message].map(Clone::clone),
        );
    }
    section(&mut text, "Conditions", &rows.render());
    if let Some(build) = &status.build {
        let how = if build.cached { ", the same inputs were built before" } else { "" };
        let took = if build.took.is_empty() { String::new() } else { format!(", took {}{how}", build.took) };
        let head = format!("{} began at {}{took}\n", build.id, build.started);
        section(&mut text, "Build", &format!("{head}{}\n", build.log_tail.trim_end()));
    }
    Ok(text)
}

impl Row for FunctionView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "TYPE", "PHASE", "GENERATION", "ENDPOINT", "MESSAGE"], &["PLATFORM", "SOURCE", "ARTIFACT"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let (spec, status) = (&self.spec, &self.status);
        let artifact = status.artifact.as_ref().map(|artifact| artifact.digest.clone()).unwrap_or_default();
        vec![
            self.metadata.name.clone(),
            or_dash(&spec.r#type),
            status.phase.clone(),
            spec.generation.to_string(),
            or_dash(status.endpoint.as_deref().unwrap_or_default()),
            status.message.lines().next().unwrap_or_default().chars().take(80).collect(),
            or_dash(&spec.platform),
            or_dash(&spec.source_uri),
            or_dash(artifact.get(..19).unwrap_or(&artifact)),
        ]
    }
}
