//! The Helm chart and the Kustomize base: the objects of `berth operator manifests`, as files. `UPDATE=1` writes them.

use std::{collections::BTreeMap, path::PathBuf};

use berth_operator::install::{FailurePolicy, Part, Settings, everything, with_schema_rules};
use serde_json::{Value, json};

/// Words in the objects, and what a chart has in their places.
const NAMESPACE: (&str, &str) = ("NAMESPACE-OF-THE-RELEASE", "{{ .Release.Namespace | quote }}");
const IMAGE: (&str, &str) = (
    "IMAGE-OF-BERTH",
    r#"{{ required "set image: an image of Berth that your nodes can pull" .Values.image | quote }}"#,
);
const FAILURE: (&str, &str) = ("failurePolicy: Ignore", "failurePolicy: {{ .Values.webhookFailure }}");
const REPLICAS: (&str, &str) = ("COUNT-OF-OPERATORS", "{{ .Values.replicas }}");

const EXECUTOR: (&str, &str) = ("IMAGE-OF-EXECUTORS", "{{ .Values.executorImage | quote }}");
const SIDECARS: (&str, &str) = ("FORM-OF-EXECUTORS", "{{ .Values.sidecars }}");

/// The end of what is there under a condition.
const END: &str = "{{- end }}";

/// The condition of clusters whose API servers check rules in schemas.
const KNOWS_RULES: &str = r#"semverCompare ">=1.25-0" .Capabilities.KubeVersion.Version"#;

/// A part's file of the chart, and the condition under which it is there.
const TEMPLATES: [(Part, &str, Option<&str>); 7] = [
    (Part::CustomResources, "custom-resources", None),
    (Part::Rights, "rights", None),
    (Part::Workload, "operator", None),
    (Part::Webhook, "webhook", None),
    (Part::NetworkPolicy, "network-policy", Some(".Values.networkPolicy")),
    (Part::DisruptionBudget, "disruption-budget", Some("gt (int .Values.replicas) 1")),
    (Part::ServiceMonitor, "service-monitor", Some(".Values.serviceMonitor")),
];

const VALUES: &str = "# The image of Berth, also for the init containers and the executors of models. Your nodes must be able to pull it.
image: \"\"
# Another image of the executors.
executorImage: \"\"
# The form of executors: native is an init container that stays, which all nodes must know (1.29); container; auto asks the API server.
sidecars: auto
# Operators; one of them leads. Two or more have a PodDisruptionBudget (Kubernetes 1.21 or newer).
replicas: 1
# Handling of objects that the webhook cannot be asked about: Ignore lets them through, Fail refuses them.
webhookFailure: Ignore
# Nobody reaches more of the operator than its metrics and its webhook.
networkPolicy: true
# For clusters with the Prometheus operator.
serviceMonitor: false
";

const KUSTOMIZATION: &str = "apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
  - custom-resources.yaml
  - operator.yaml
";

/// In the chart, the custom resources outlive it, and with them the models.
const KEPT: &str = "helm.sh/resource-policy";

fn settings(namespace: &str, image: &str, replicas: u16) -> Settings {
    Settings {
        namespace: namespace.to_owned(),
        image: image.to_owned(),
        executor_image: (image == IMAGE.0).then(|| EXECUTOR.0.to_owned()),
        sidecars: if image == IMAGE.0 { SIDECARS.0 } else { "auto" }.to_owned(),
        replicas,
        service_monitor: replicas > 1,
        webhook_failure: FailurePolicy::Ignore,
    }
}

fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| serde_saphyr::to_string(object).expect("YAML")).collect::<Vec<_>>().join("---\n")
}

fn begin(condition: &str) -> String {
    format!("{{{{- if {condition} }}}}")
}

/// The documents of a chart, with the rules of schemas only for clusters that know them.
fn guarded(documents: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (mut lines, mut within) = (Vec::new(), None);
    for line in documents.lines() {
        let goes_on = |depth| indent(line) > depth || indent(line) == depth && line.trim_start().starts_with("- ");
        if within.is_some_and(|depth| !goes_on(depth)) {
            lines.push(END.to_owned());
            within = None;
        }
        if line.trim_start().starts_with("x-kubernetes-validations:") {
            lines.push(begin(KNOWS_RULES));
            within = Some(indent(line));
        }
        lines.push(line.to_owned());
    }
    assert!(within.is_none(), "rules are no last part of a document");
    lines.join("\n") + "\n"
}

fn template(part: Part, condition: Option<&str>) -> String {
    let mut objects = with_schema_rules(part.objects(&settings(NAMESPACE.0, IMAGE.0, 1)));
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("Deployment") => object["spec"]["replicas"] = json!(REPLICAS.0),
            Some("CustomResourceDefinition") => object["metadata"]["annotations"] = json!({ KEPT: "keep" }),
            _ => {}
        }
    }
    let text = documents(&objects);
    assert!(!text.contains("{{"), "Helm would read it");
    let text = guarded(&text);
    let text = [NAMESPACE, EXECUTOR, SIDECARS, IMAGE, FAILURE, REPLICAS]
        .into_iter()
        .fold(text, |text, (word, place)| text.replace(word, place));
    match condition {
        Some(condition) => format!("{}\n{text}{END}\n", begin(condition)),
        None => text,
    }
}

/// All files, below packaging/kubernetes.
fn files() -> BTreeMap<String, String> {
    let chart = format!(
        "apiVersion: v2\nname: berth-operator\ndescription: Runs model applications from one object each.\nversion: {0}\nappVersion: {0}\n",
        env!("CARGO_PKG_VERSION")
    );
    let base = everything(&Settings { image: IMAGE.0.to_owned(), ..settings("berth", "", 1) });
    let (definitions, rest): (Vec<Value>, Vec<Value>) =
        base.into_iter().partition(|object| object["kind"] == "CustomResourceDefinition");
    let mut files = BTreeMap::from([
        ("chart/Chart.yaml".to_owned(), chart),
        ("chart/values.yaml".to_owned(), VALUES.to_owned()),
        ("base/kustomization.yaml".to_owned(), KUSTOMIZATION.to_owned()),
        ("base/custom-resources.yaml".to_owned(), documents(&definitions)),
        ("base/operator.yaml".to_owned(), documents(&rest)),
    ]);
    for (part, name, condition) in TEMPLATES {
        files.insert(format!("chart/templates/{name}.yaml"), template(part, condition));
    }
    files
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes"))
}

#[test]
fn the_chart_and_the_base_are_up_to_date() {
    let mut old = Vec::new();
    for (name, text) in files() {
        let path = folder().join(&name);
        if option_env!("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::File::create(&path)
                .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
                .expect("written");
        }
        if std::fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            old.push(name);
        }
    }
    assert!(old.is_empty(), "UPDATE=1 cargo test -p berth-operator writes {old:?}");
}

/// The lines that Helm leaves: `knows_rules` is its condition of that name, all others hold.
fn rendered(text: &str, knows_rules: bool) -> String {
    let (mut lines, mut leaves_out) = (Vec::new(), false);
    for line in text.lines() {
        match line {
            END => leaves_out = false,
            _ if line == begin(KNOWS_RULES) => leaves_out = !knows_rules,
            _ if leaves_out || line.starts_with("{{-") => {}
            _ => lines.push(line),
        }
    }
    lines.join("\n")
}

/// Helm's part in it, for the few expressions that the chart has.
fn helm(replicas: u16, knows_rules: bool) -> Vec<Value> {
    let mut objects = Vec::new();
    for (part, name, _) in TEMPLATES {
        if replicas == 1 && matches!(part, Part::DisruptionBudget | Part::ServiceMonitor) {
            continue;
        }
        let text = std::fs::read_to_string(folder().join(format!("chart/templates/{name}.yaml"))).expect("the file");
        let text = text.replace(NAMESPACE.1, "berth").replace(IMAGE.1, "\"berth:1\"");
        let text = text.replace(EXECUTOR.1, "\"\"").replace(SIDECARS.1, "auto");
        let text = text.replace(FAILURE.1, FAILURE.0).replace(REPLICAS.1, &replicas.to_string());
        let documents = rendered(&text, knows_rules);
        assert!(!documents.contains("{{"), "an expression that nobody expects in {name}");
        objects.extend(documents.split("\n---\n").map(|one| serde_saphyr::from_str::<Value>(one).expect("YAML")));
    }
    for object in &mut objects {
        if object["kind"] == "CustomResourceDefinition" {
            object["metadata"].as_object_mut().expect("it").remove("annotations");
        }
    }
    objects
}

#[test]
fn the_chart_installs_what_the_command_prints() {
    for replicas in [1, 2] {
        let printed: Vec<Value> = everything(&settings("berth", "berth:1", replicas))
            .into_iter()
            .filter(|object| object["kind"] != "Namespace")
            .collect();
        assert_eq!(helm(replicas, false), printed);
        // What a cluster checks by itself is in the chart alone: Helm asks it for its version.
        assert_eq!(helm(replicas, true), with_schema_rules(printed));
    }
}

#[test]
fn the_operator_asks_for_no_more_than_it_needs() {
    let rights = documents(&Part::Rights.objects(&settings("berth", "berth:1", 2)));
    for word in ["secrets", "pods\n", "deletecollection", "'*'", "\"*\""] {
        assert!(!rights.contains(&format!("- {word}")), "{word}");
    }
    assert_eq!(rights.matches("- delete\n").count(), 1, "autoscalers");
    let text = documents(&everything(&settings("berth", "berth:1", 2)));
    for expected in ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "type: RuntimeDefault", "minAvailable: 1"] {
        assert!(text.contains(expected), "{expected}");
    }
}
