//! The Helm chart and the Kustomize base: the objects of `berth operator manifests`, as files. `UPDATE=1` writes them. Helm itself reads
//! the chart in `tests/kubernetes/test_helm.py`.

use std::{collections::BTreeMap, path::PathBuf};

use berth_operator::install::{
    Callers, FailurePolicy, InstallPart, SCRAPERS, Settings, everything, namespace_labels, picker_rules, rules,
    with_schema_rules,
};
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

const WATCHED: (&str, &str) = ("NAMESPACE-OF-THE-MODELS", "{{ .Values.watchNamespace | quote }}");
const WITH_POLICY: (&str, &str) = ("NAMESPACE-WITH-A-POLICY", "{{ . | quote }}");
const METRICS: (&str, &str) = ("READERS-OF-METRICS", "{{ $.Values.metricsFrom | toJson }}");
const CLIENTS: (&str, &str) = ("CLIENTS-OF-MODELS", "{{ $.Values.clientsFrom | toJson }}");

/// The same for each namespace whose models have policies.
const EACH: &str = "{{- range .Values.modelPolicies }}";

/// The other case of a condition, and the end of what is there under it.
const ELSE: &str = "{{- else }}";
const END: &str = "{{- end }}";

/// Policies that are asked for while all of them are off.
const REFUSED: &str =
    r#"{{- fail "modelPolicies are NetworkPolicies, and networkPolicy is false: change one of them" }}"#;

/// The condition of an operator of one namespace.
const IS_LIMITED: &str = ".Values.watchNamespace";

/// The condition of clusters whose API servers check rules in schemas.
const KNOWS_RULES: &str = r#"semverCompare ">=1.25-0" .Capabilities.KubeVersion.Version"#;

/// A part's file of the chart, and the condition under which it is there.
const TEMPLATES: [(InstallPart, &str, Option<&str>); 8] = [
    (InstallPart::CustomResources, "custom-resources", None),
    (InstallPart::Rights, "rights", None),
    (InstallPart::Workload, "operator", None),
    (InstallPart::Webhook, "webhook", None),
    (InstallPart::NetworkPolicy, "network-policy", Some(".Values.networkPolicy")),
    (InstallPart::ModelPolicies, "model-policies", Some(".Values.networkPolicy")),
    (InstallPart::DisruptionBudget, "disruption-budget", Some("gt (int .Values.replicas) 1")),
    (InstallPart::ServiceMonitor, "service-monitor", Some(".Values.serviceMonitor")),
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
# The only namespace whose objects the operator looks at, which must be there; empty: all.
watchNamespace: \"\"
# NetworkPolicies: nobody reaches more of the operator than its metrics and its webhook.
networkPolicy: true
# Who may read metrics, as from of a NetworkPolicy has it; []: everybody.
metricsFrom: [{ namespaceSelector: { matchLabels: { berth.dev/metrics: \"true\" } } }]
# Namespaces with models whose pods are reached through their executors alone. A port that has none needs a NetworkPolicy of yours.
modelPolicies: []
# Who may reach these, as from of a NetworkPolicy has it; []: everybody.
clientsFrom: []
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
        watch: None,
        network: Some(Callers::default()),
        model_policies: Vec::new(),
    }
}

/// The settings that a chart is made from: words in the places of its expressions.
fn of_chart(is_limited: bool) -> Settings {
    Settings {
        watch: is_limited.then(|| WATCHED.0.to_owned()),
        network: Some(Callers { clients: Some(clients()), ..Callers::default() }),
        model_policies: vec![WITH_POLICY.0.to_owned()],
        ..settings(NAMESPACE.0, IMAGE.0, 1)
    }
}

/// Labels that stand for the clients of models.
fn clients() -> BTreeMap<String, String> {
    namespace_labels("clients=chosen").expect("labels")
}

/// The callers that a rule of a policy names.
fn peers(labels: &BTreeMap<String, String>) -> Value {
    json!([{ "namespaceSelector": { "matchLabels": labels } }])
}

/// Puts words in the places of those who may connect.
fn name_callers(policy: &mut Value) {
    for rule in policy["spec"]["ingress"].as_array_mut().into_iter().flatten() {
        let from = rule.get("from").cloned();
        if from == Some(peers(&namespace_labels(SCRAPERS).expect("labels"))) {
            rule["from"] = json!(METRICS.0);
        } else if from == Some(peers(&clients())) {
            rule["from"] = json!(CLIENTS.0);
        }
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

fn template(part: InstallPart, condition: Option<&str>) -> String {
    let (limited, everywhere) = (text(part, &of_chart(true)), text(part, &of_chart(false)));
    let text = match part {
        InstallPart::ModelPolicies => {
            let asked = begin(".Values.modelPolicies");
            format!("{EACH}\n---\n{limited}{END}\n{ELSE}\n{asked}\n{REFUSED}\n{END}\n")
        }
        // The namespace is the value of a variable, which may be empty.
        InstallPart::Workload => limited,
        _ if limited == everywhere => limited,
        _ => format!("{}\n{limited}{ELSE}\n{everywhere}{END}\n", begin(IS_LIMITED)),
    };
    match condition {
        Some(condition) => format!("{}\n{text}{END}\n", begin(condition)),
        None => text,
    }
}

/// The objects of a part, with expressions.
fn text(part: InstallPart, settings: &Settings) -> String {
    let mut objects = with_schema_rules(part.objects(settings));
    for object in &mut objects {
        match object["kind"].as_str() {
            Some("Deployment") => object["spec"]["replicas"] = json!(REPLICAS.0),
            Some("CustomResourceDefinition") => object["metadata"]["annotations"] = json!({ KEPT: "keep" }),
            Some("NetworkPolicy") => name_callers(object),
            _ => {}
        }
    }
    let text = documents(&objects);
    assert!(!text.contains("{{"), "Helm would read it");
    let text = guarded(&text);
    [NAMESPACE, EXECUTOR, SIDECARS, IMAGE, FAILURE, REPLICAS, WATCHED, WITH_POLICY, METRICS, CLIENTS]
        .into_iter()
        .fold(text, |text, (word, place)| text.replace(word, place))
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
        if std::env::var_os("UPDATE").is_some() {
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

#[test]
fn an_operator_of_one_namespace_has_rights_there_alone() {
    let limited = Settings { watch: Some("shop".to_owned()), ..settings("berth", "berth:1", 1) };
    let objects = InstallPart::Rights.objects(&limited);
    let rules_of = |kind: &str, name: &str, namespace: Option<&str>| -> Vec<Value> {
        let is_it = |one: &&Value| {
            one["kind"] == kind && one["metadata"]["name"] == name && one["metadata"]["namespace"].as_str() == namespace
        };
        objects.iter().find(is_it).expect("the role")["rules"].as_array().expect("rules").clone()
    };
    let everywhere = rules_of("ClusterRole", "berth-operator", None);
    assert!(everywhere.iter().all(|rule| rule["resourceNames"].is_array()), "{everywhere:?}");
    let here = rules_of("Role", "berth-operator", Some("berth"));
    assert!(here.iter().all(|rule| rule["resourceNames"].is_array() || rule["verbs"] == json!(["create"])), "{here:?}");
    let mut both = rules_of("Role", "berth-operator-models", Some("shop"));
    both.extend(everywhere);
    assert_eq!(json!(both), rules());
    let bound = objects.iter().find(|one| one["kind"] == "RoleBinding" && one["metadata"]["namespace"] == "shop");
    let bound = bound.expect("a binding");
    assert_eq!((&bound["roleRef"]["kind"], &bound["subjects"][0]["namespace"]), (&json!("Role"), &json!("berth")));
    let webhook = &InstallPart::Webhook.objects(&limited)[0]["webhooks"][0];
    assert_eq!(webhook["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "shop");
}

#[test]
fn without_policies_none_is_installed() {
    let open = Settings { network: None, model_policies: vec!["shop".to_owned()], ..settings("berth", "berth:1", 1) };
    assert!(everything(&open).iter().all(|object| object["kind"] != "NetworkPolicy"));
}

#[test]
fn the_operator_asks_for_no_more_than_it_needs() {
    let rights = InstallPart::Rights.objects(&settings("berth", "berth:1", 2));
    let (pickers, rights): (Vec<Value>, Vec<Value>) =
        rights.into_iter().partition(|object| object["metadata"]["name"] == "berth-picker");
    assert!(matches!(pickers.as_slice(), [role] if role["rules"] == picker_rules()), "{pickers:?}");
    let rights = documents(&rights);
    for word in ["secrets", "pods\n", "deletecollection", "'*'", "\"*\""] {
        assert!(!rights.contains(&format!("- {word}")), "{word}");
    }
    assert_eq!(rights.matches("- delete\n").count(), 4, "autoscalers, pools, routes, asynchronous APIs");
    let text = documents(&everything(&settings("berth", "berth:1", 2)));
    for expected in ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "type: RuntimeDefault", "minAvailable: 1"] {
        assert!(text.contains(expected), "{expected}");
    }
}
