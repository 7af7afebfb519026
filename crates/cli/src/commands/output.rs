//! The forms in which results are printed, and the columns of every kind of thing.

use berth_spec::DeploymentName;
use berth_wire::{
    access::Asker,
    api::{
        AliasTarget, AliasView, DeploymentView, EventView, List, Progress, ReplicaView, RevisionView, SeverityView,
        WorkerView,
    },
};
use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde::Serialize;

use crate::{
    failure::Failure,
    terminal::{self, Rows, age, size},
};

/// Output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A table for people
    #[default]
    Table,
    /// A table with more columns
    Wide,
    /// JSON in the stable shapes of the API
    Json,
    /// The same as YAML; what it prints for a deployment can be applied again
    Yaml,
    /// KIND/NAME, one per line, for scripts
    Name,
}

impl Form {
    /// The forms of a command that lists nothing by name, and has no more columns.
    pub(crate) const NAMELESS: [Self; 3] = [Self::Table, Self::Json, Self::Yaml];

    /// Parser of a command that has only these forms.
    pub(crate) fn among(forms: &'static [Self]) -> impl TypedValueParser<Value = Self> {
        let words = PossibleValuesParser::new(forms.iter().filter_map(Self::to_possible_value));
        words.try_map(|word| Self::from_str(&word, false))
    }
}

/// Prints one value as JSON or YAML.
pub(crate) fn print_value(value: &impl Serialize, form: Form) -> Result<(), Failure> {
    let text = match form {
        Form::Yaml => yaml(value)?,
        _ => serde_json::to_string_pretty(value).map_err(|e| Failure::doing("cannot write JSON", e))?,
    };
    Ok(terminal::print(&text)?)
}

/// YAML by way of JSON, so that both say the same.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Failure> {
    let value = serde_json::to_value(value).map_err(|e| Failure::doing("cannot write JSON", e))?;
    serde_saphyr::to_string(&value).map_err(|e| Failure::doing("cannot write YAML", e))
}

/// Something that has a row in a table.
pub(crate) trait Row {
    /// Columns of the narrow table, then those that the wide one adds.
    const HEADS: (&'static [&'static str], &'static [&'static str]);
    /// The name for `-o name`.
    fn name(&self) -> String;
    /// The namespace; `None` for what is in none.
    fn namespace(&self) -> Option<String> {
        None
    }
    /// The name within the namespace, for the first cell where the namespace is known; `None` where the cell stays as it is.
    fn name_within(&self) -> Option<String> {
        None
    }
    /// A cell per head, both groups.
    fn cells(&self) -> Vec<String>;
}

/// A table of them.
pub(crate) fn table<T: Row>(items: &[T], form: Form) -> String {
    let heads = heads::<T>(form);
    let mut rows = Rows::new(&heads);
    for item in items {
        rows.add(item.cells().into_iter().take(heads.len()));
    }
    rows.render()
}

/// The same of one namespace that was asked for: with the names that `-n` makes whole.
pub(crate) fn table_within<T: Row>(items: &[T], form: Form) -> String {
    let heads = heads::<T>(form);
    let mut rows = Rows::new(&heads);
    for item in items {
        rows.add(cells_within(item).into_iter().take(heads.len()));
    }
    rows.render()
}

/// The same with the namespace of each in front.
pub(crate) fn table_of_namespaces<T: Row>(items: &[T], form: Form) -> String {
    let heads = [&["NAMESPACE"], &*heads::<T>(form)].concat();
    let mut rows = Rows::new(&heads);
    for item in items {
        let cells = std::iter::once(item.namespace().unwrap_or_else(|| "-".to_owned())).chain(cells_within(item));
        rows.add(cells.take(heads.len()));
    }
    rows.render()
}

/// The cells beside a namespace that is known.
fn cells_within<T: Row>(item: &T) -> Vec<String> {
    let mut cells = item.cells();
    if let (Some(first), Some(name)) = (cells.first_mut(), item.name_within()) {
        *first = name;
    }
    cells
}

fn heads<T: Row>(form: Form) -> Vec<&'static str> {
    let (narrow, more) = T::HEADS;
    if form == Form::Wide { [narrow, more].concat() } else { narrow.to_vec() }
}

/// The namespace in the written form of a deployment's name.
fn namespace_of(written: &str) -> Option<String> {
    written.parse::<DeploymentName>().ok().map(|name| name.namespace().to_owned())
}

pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// Prints a list in a form. `kind` stands before each name: `token/kq3vbn2xwp`.
pub(crate) fn print_list<T: Row + Serialize>(kind: &str, list: &List<T>, form: Form) -> Result<(), Failure> {
    match form {
        Form::Json | Form::Yaml => print_value(list, form),
        Form::Name => {
            let names: String = list.items.iter().map(|item| format!("{kind}/{}\n", item.name())).collect();
            Ok(terminal::print(&names)?)
        }
        Form::Table | Form::Wide => Ok(terminal::print(&table(&list.items, form))?),
    }
}

/// Creator of a token or a revocation, in a table. A server that asks for no token does not know it.
pub(crate) fn creator(name: &str) -> String {
    if name == Asker::OPEN.name() { "unknown (--auth off)".to_owned() } else { or_dash(name) }
}

impl Row for DeploymentView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "PHASE", "READY", "WANTED", "MEMORY", "LAST USED", "AGE"],
        &["REVISION", "SERVING", "WORKERS", "ORIGIN", "MODEL"],
    );

    fn name(&self) -> String {
        self.metadata.written()
    }

    fn namespace(&self) -> Option<String> {
        Some(self.metadata.namespace.clone())
    }

    fn name_within(&self) -> Option<String> {
        Some(self.metadata.name.clone())
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let memory: u64 = status.replica_details.iter().map(|replica| replica.memory).sum();
        let workers: Vec<&str> = status.replica_details.iter().map(|replica| replica.worker.as_str()).collect();
        let model = model(&self.spec);
        vec![
            self.metadata.written(),
            or_dash(&status.phase),
            status.replicas.ready.to_string(),
            wanted(self),
            if memory == 0 { "-".to_owned() } else { size(memory) },
            age(status.last_used),
            age(self.metadata.creation_timestamp),
            or_dash(&status.revision.wanted),
            or_dash(status.revision.serving.as_deref().unwrap_or_default()),
            or_dash(&workers.join(",")),
            or_dash(&self.metadata.origin),
            or_dash(&model),
        ]
    }
}

/// Origin of the model: its URI, or `REPOSITORY@REF` of its card.
fn model(spec: &serde_json::Value) -> String {
    let text = |pointer| spec.pointer(pointer).and_then(serde_json::Value::as_str);
    match (text("/model/uri"), text("/model/card/repository"), text("/model/card/ref")) {
        (Some(uri), ..) => uri.to_owned(),
        (None, Some(repository), Some(reference)) => format!("{repository}@{reference}"),
        _ => String::new(),
    }
}

/// Replicas that are wanted; for an on-demand deployment, that it is one.
fn wanted(deployment: &DeploymentView) -> String {
    let range = |field| deployment.spec.pointer(field).and_then(serde_json::Value::as_u64);
    match (range("/replicas/min"), range("/replicas/max")) {
        (Some(0), None | Some(1..)) => "on demand".to_owned(),
        _ => deployment.status.replicas.desired.to_string(),
    }
}

impl Row for WorkerView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "STATE", "MEMORY", "USED", "FREE", "REPLICAS", "READY", "FORMATS"],
        &["OVERHEAD", "CPUS", "CORDONED", "LABELS", "VERSION"],
    );

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let labels: Vec<String> = self.metadata.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            self.metadata.name.clone(),
            status.state.clone(),
            size(status.memory.total),
            size(status.memory.used),
            size(status.memory.free),
            status.replicas.to_string(),
            status.ready.to_string(),
            or_dash(&status.formats.join(",")),
            size(status.memory.overhead),
            status.cpus.to_string(),
            if self.spec.cordoned { "yes" } else { "no" }.to_owned(),
            or_dash(&labels.join(",")),
            or_dash(&status.version),
        ]
    }
}

impl Row for ReplicaView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["REVISION", "WORKER", "STATE", "MEMORY", "READY FOR"], &["VERSION", "MEASURED", "MESSAGE"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn namespace(&self) -> Option<String> {
        namespace_of(&self.status.deployment)
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        vec![
            status.revision.clone(),
            status.worker.clone(),
            status.state.clone() + &progress(status.progress),
            size(status.memory),
            age(status.ready_since),
            or_dash(&status.version),
            if status.measured { "yes" } else { "no" }.to_owned(),
            or_dash(&status.message),
        ]
    }
}

/// ` 40%` or ` 3MiB` of a fetch.
pub(crate) fn progress(progress: Option<Progress>) -> String {
    match progress {
        None => String::new(),
        Some(Progress { done, total: Some(total) }) if total > 0 => format!(" {}%", done.saturating_mul(100) / total),
        Some(Progress { done, .. }) => format!(" {}", size(done)),
    }
}

impl Row for RevisionView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["REVISION", "DEPLOYMENT", "VERSION", "WANTED", "SERVING", "READY"], &["SHA256", "MODEL"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn namespace(&self) -> Option<String> {
        namespace_of(&self.status.deployment)
    }

    fn cells(&self) -> Vec<String> {
        let status = &self.status;
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let digest = status.sha256.as_deref().unwrap_or_default();
        vec![
            self.metadata.name.clone(),
            status.deployment.clone(),
            or_dash(status.version.as_deref().unwrap_or_default()),
            yes(status.wanted),
            yes(status.serving),
            format!("{}/{}", status.ready, status.replicas),
            or_dash(digest.get(..12).unwrap_or(digest)),
            or_dash(status.uri.as_deref().unwrap_or_default()),
        ]
    }
}

impl Row for AliasView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "TARGETS", "AGE"], &["STICKY", "MISSING"]);

    fn name(&self) -> String {
        self.metadata.written()
    }

    fn namespace(&self) -> Option<String> {
        Some(self.metadata.namespace.clone())
    }

    fn name_within(&self) -> Option<String> {
        Some(self.metadata.name.clone())
    }

    fn cells(&self) -> Vec<String> {
        let share = |target: &AliasTarget| format!("{} {}%", target.deployment, target.share);
        let targets: Vec<String> = self.status.targets.iter().map(share).collect();
        let sticky = match self.spec.get("sticky") {
            Some(serde_json::Value::String(word)) => word.clone(),
            Some(by) => by.as_object().into_iter().flatten().map(|(key, value)| format!("{key} {value}")).collect(),
            None => String::new(),
        };
        vec![
            self.metadata.written(),
            or_dash(&targets.join(", ")),
            age(self.metadata.creation_timestamp),
            or_dash(&sticky),
            or_dash(&self.status.missing.join(", ")),
        ]
    }
}

impl Row for EventView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["AGO", "KIND", "REASON", "ABOUT", "MESSAGE"], &["WORKER", "AT"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn namespace(&self) -> Option<String> {
        namespace_of(self.deployment.as_deref().or(self.function.as_deref())?)
    }

    fn cells(&self) -> Vec<String> {
        let severity = match self.severity {
            SeverityView::Normal => "Normal",
            SeverityView::Warning => "Warning",
        };
        let function = self.function.as_deref().map(|name| format!("function/{name}"));
        let about = self.deployment.as_deref().or(function.as_deref()).or(self.worker.as_deref()).unwrap_or("-");
        vec![
            age(Some(self.at)),
            severity.to_owned(),
            self.reason.clone(),
            about.to_owned(),
            // A row is a line, whatever git or a model wrote.
            self.message.lines().map(str::trim_end).collect::<Vec<_>>().join("; "),
            or_dash(self.worker.as_deref().unwrap_or_default()),
            self.at.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_names_as_they_can_be_typed() {
        let view = |namespace: &str, name: &str| -> DeploymentView {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "berth.dev/v1", "kind": "ModelDeployment",
                "metadata": {"name": name, "namespace": namespace, "generation": 1}, "spec": {}, "status": {}
            }))
            .expect("a deployment")
        };
        let items = [view("default", "iris"), view("default", "a/b"), view("team", "iris")];
        let first = |table: &str| -> Vec<String> {
            table.lines().skip(1).map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(first(&table(&items, Form::Table)), ["iris", "default/a/b", "team/iris"]);
        assert_eq!(first(&table_within(&items, Form::Table)), ["iris", "a/b", "iris"], "-n says the rest");
        let all = table_of_namespaces(&items, Form::Table);
        assert!(all.contains("default    a/b") && all.contains("team       iris"), "{all}");
    }
}
