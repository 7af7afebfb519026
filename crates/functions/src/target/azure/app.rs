//! A function app as Resource Manager knows it: paths, bodies, settings. Pure.
//!
//! Source: the REST reference of App Service, version 2023-12-01 (learn.microsoft.com/rest/api/appservice: Web Apps Create Or
//! Update, Create Or Update Slot, Update Application Settings, List Application Settings, List Host Keys, Swap Slot; App Service
//! Plans Create Or Update), the app settings of Azure Functions (learn.microsoft.com/azure/azure-functions/functions-app-settings), and
//! `host.json` with its overrides (learn.microsoft.com/azure/azure-functions/functions-host-json).

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::config::AzureConfig;
use crate::{
    deployment::{AzureApp, FunctionName, FunctionSpec, Language},
    status::ArtifactStatus,
};

/// Version of the API of App Service.
const WEB: &str = "api-version=2023-12-01";

/// Version of the API of resource groups.
const GROUPS: &str = "api-version=2021-04-01";

/// The slot that a new version is proved in.
pub(super) const SLOT: &str = "berth";

/// Tag of an app: the key of the function that it belongs to.
const OWNER: &str = "berth-function";

/// Tag of an app that Berth has created, and may delete.
const CREATED: &str = "berth-created";

/// Version of the API of tags.
const TAGS: &str = "api-version=2021-04-01";

/// Setting that names the artifact of a slot.
const ARTIFACT: &str = "BERTH_ARTIFACT";

/// Setting that names the place of the package.
const PACKAGE: &str = "WEBSITE_RUN_FROM_PACKAGE";

/// Settings that override `host.json`, whether Berth or the code has brought it. A change of a limit needs no build.
const TIMEOUT: &str = "AzureFunctionsJobHost__functionTimeout";
const CONCURRENCY: &str = "AzureFunctionsJobHost__extensions__http__maxConcurrentRequests";

/// Setting for the threads that Azure's Python worker calls functions on.
const THREADS: &str = "PYTHON_THREADPOOL_THREAD_COUNT";

/// The most threads of a Python worker: further ones wait for the same processor.
const MOST_THREADS: usize = 32;

/// The longest that Azure's load balancer waits for the answer to a request, by Azure's documentation.
const LONGEST_ANSWER: Duration = Duration::from_secs(230);

/// Versions that are used where the spec names none.
const PYTHON: &str = "3.11";
const NODE: &str = "20";

/// Path below an app of its keys. A slot has keys of its own.
pub(super) const KEYS: &str = "/host/default/listkeys";

/// A deployment slot of a function app; production is one, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeploymentSlot {
    Production,
    Slot,
}

/// Paths of a function app.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    group: String,
    app: String,
}

impl Paths {
    pub(super) fn of(config: &AzureConfig, app: &AzureApp) -> Self {
        let group = format!("/subscriptions/{}/resourceGroups/{}", config.subscription, app.group);
        Self { group, app: app.app.clone() }
    }

    pub(super) fn group(&self) -> String {
        format!("{}?{GROUPS}", self.group)
    }

    /// The plan of an app that Berth creates.
    pub(super) fn plan(&self) -> String {
        format!("{}?{WEB}", self.plan_id())
    }

    fn plan_id(&self) -> String {
        format!("{}/providers/Microsoft.Web/serverfarms/{}-plan", self.group, self.app)
    }

    /// The tags of the app.
    pub(super) fn tags(&self) -> String {
        format!(
            "{}/providers/Microsoft.Web/sites/{}/providers/Microsoft.Resources/tags/default?{TAGS}",
            self.group, self.app
        )
    }

    /// The app or its slot, or what is below it.
    pub(super) fn site(&self, slot: DeploymentSlot, below: &str) -> String {
        let path = if slot == DeploymentSlot::Slot { format!("/slots/{SLOT}") } else { String::new() };
        format!("{}/providers/Microsoft.Web/sites/{}{path}{below}?{WEB}", self.group, self.app)
    }
}

/// The consumption plan for Linux.
pub(super) fn plan(location: &str) -> Value {
    json!({
        "location": location, "kind": "functionapp", "sku": {"name": "Y1", "tier": "Dynamic"}, "properties": {"reserved": true},
    })
}

/// A new app, or a new slot of an app, which is on its plan.
pub(super) fn site(paths: &Paths, location: &str, spec: &FunctionSpec, app: Option<&Value>) -> Value {
    let plan = app.and_then(|app| app.pointer("/properties/serverFarmId")?.as_str().map(str::to_owned));
    let mut tags = app.and_then(|app| app.get("tags")?.as_object().cloned()).unwrap_or_default();
    tags.insert(OWNER.to_owned(), spec.name.as_str().into());
    if app.is_none() {
        tags.insert(CREATED.to_owned(), "true".into());
    }
    json!({
        "location": location,
        "kind": "functionapp,linux",
        "tags": tags,
        "identity": app.and_then(|app| app.get("identity").cloned()).unwrap_or(json!({"type": "SystemAssigned"})),
        "properties": {
            "serverFarmId": plan.unwrap_or_else(|| paths.plan_id()),
            "reserved": true,
            "httpsOnly": true,
            "siteConfig": {"linuxFxVersion": runtime(spec), "ftpsState": "Disabled", "minTlsVersion": "1.2"},
        },
    })
}

/// The runtime of a spec, in the words of Azure.
pub(super) fn runtime(spec: &FunctionSpec) -> String {
    match spec.language {
        Language::Python => format!("Python|{}", spec.version.as_deref().unwrap_or(PYTHON)),
        Language::JavaScript => {
            let version = spec.version.as_deref().unwrap_or(NODE);
            format!("Node|{}", version.split('.').next().unwrap_or(version))
        }
    }
}

/// The function that an app belongs to.
pub(super) fn owner(app: &Value) -> Option<&str> {
    app.get("tags")?.get(OWNER)?.as_str()
}

/// True if Berth has created the app.
pub(super) fn is_created(app: &Value) -> bool {
    app.pointer(&format!("/tags/{CREATED}")).and_then(Value::as_str) == Some("true")
}

/// The body that adds an owner to the tags of an app.
pub(super) fn owned_by(function: &str) -> Value {
    json!({"operation": "Merge", "properties": {"tags": {OWNER: function}}})
}

/// Settings that a spec asks for: its limits, and over them its variables.
pub(super) fn wanted(spec: &FunctionSpec) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    if let Some(timeout) = spec.named_limits.timeout {
        let seconds = timeout.as_secs();
        let text = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
        settings.insert(TIMEOUT.to_owned(), text);
    }
    if let Some(concurrency) = spec.named_limits.concurrency {
        settings.insert(CONCURRENCY.to_owned(), concurrency.to_string());
        if spec.language == Language::Python {
            settings.insert(THREADS.to_owned(), concurrency.min(MOST_THREADS).to_string());
        }
    }
    settings.extend(spec.env.clone());
    settings
}

/// Sentences about the limits of a spec that Azure does not take; empty: there are none.
pub(super) fn limits_left_out(spec: &FunctionSpec) -> String {
    let named = &spec.named_limits;
    let mut left_out = Vec::new();
    if named.idle.is_some() {
        left_out.push("Azure does not take spec.limits.idleSeconds: its plan decides when an idle instance ends.");
    }
    if named.memory_mib.is_some() {
        left_out.push("Azure does not take spec.limits.memoryMiB: its plan sets the memory of an instance.");
    }
    if named.timeout.is_some_and(|timeout| timeout > LONGEST_ANSWER) {
        left_out.push("Azure waits 230 s at most for an answer, and spec.limits.timeoutSeconds is longer.");
    }
    left_out.join(" ")
}

/// Settings of an app for an artifact: those of Azure Functions, Berth's, and the spec's.
pub(super) fn settings(
    config: &AzureConfig,
    spec: &FunctionSpec,
    artifact: &ArtifactStatus,
    package: &str,
) -> BTreeMap<String, String> {
    let mut settings = wanted(spec);
    let worker = if spec.language == Language::Python { "python" } else { "node" };
    let mut add = |name: &str, value: String| drop(settings.insert(name.to_owned(), value));
    add("FUNCTIONS_EXTENSION_VERSION", "~4".to_owned());
    add("FUNCTIONS_WORKER_RUNTIME", worker.to_owned());
    add(PACKAGE, package.to_owned());
    add(ARTIFACT, artifact.digest.clone());
    match &config.account_key {
        Some(key) => {
            let place = match config.variables.get("AZURE_STORAGE_ENDPOINT") {
                Some(endpoint) => format!("BlobEndpoint={endpoint}"),
                None => "EndpointSuffix=core.windows.net".to_owned(),
            };
            let account = &config.account;
            add(
                "AzureWebJobsStorage",
                format!("DefaultEndpointsProtocol=https;AccountName={account};AccountKey={key};{place}"),
            );
        }
        None => {
            add("AzureWebJobsStorage__accountName", config.account.clone());
            add("WEBSITE_RUN_FROM_PACKAGE_BLOB_MI_RESOURCE_ID", "SystemAssigned".to_owned());
        }
    }
    settings
}

/// The settings that an app has, from the answer to a listing.
pub(super) fn listed(answer: &Value) -> BTreeMap<String, String> {
    let fields = answer.get("properties").and_then(Value::as_object).into_iter().flatten();
    fields.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

/// Settings of an app with ours over them: what others have set stays. Settings of an earlier spec go.
pub(super) fn merged(
    found: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    earlier: &[String],
) -> BTreeMap<String, String> {
    let mut merged = found.clone();
    merged.retain(|name, _| !earlier.contains(name));
    merged.extend(ours.iter().map(|(name, value)| (name.clone(), value.clone())));
    merged
}

/// Differences between an app and what is wanted; empty: none. `earlier` are settings of the spec before.
pub(super) fn drift(
    app: &Value,
    found: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    earlier: &[String],
    spec: &FunctionSpec,
) -> Vec<String> {
    let left = earlier.iter().filter(|name| found.contains_key(*name) && !ours.contains_key(*name));
    let mut differs: Vec<String> = left.map(|name| format!("its setting {name} is not in the spec any more")).collect();
    let text = |pointer: &str| app.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/properties/state") != "Running" {
        differs.push("it does not run".to_owned());
    }
    let runs = text("/properties/siteConfig/linuxFxVersion");
    // A listing of apps leaves the runtime out.
    if !runs.is_empty() && !runs.eq_ignore_ascii_case(&runtime(spec)) {
        differs.push(format!("its runtime is {runs}"));
    }
    for (name, value) in ours {
        // A signature is another one each time.
        let place = |text: &str| text.split('?').next().unwrap_or(text).to_owned();
        let same = found.get(name).is_some_and(|found| match name.as_str() {
            PACKAGE => place(found) == place(value),
            _ => found == value,
        });
        if !same {
            differs.push(format!("its setting {name} differs"));
        }
    }
    differs
}

/// True if these settings of a place are for an artifact.
pub(super) fn runs(found: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) -> bool {
    found.get(ARTIFACT) == ours.get(ARTIFACT)
}

/// The reason why Azure does not take the name of a function.
pub(super) fn misnamed(name: &FunctionName) -> Option<String> {
    let text = name.name();
    let fine = text.starts_with(|c: char| c.is_ascii_alphabetic()) && !text.contains('.');
    (!fine).then(|| format!("Azure takes no function of the name {text:?}: begin it with a letter, and use no dots"))
}

/// Address of the function in an app.
pub(super) fn endpoint(config: &AzureConfig, app: &Value, spec: &FunctionSpec) -> Option<String> {
    let host = app.pointer("/properties/defaultHostName")?.as_str()?;
    Some(format!("{}://{host}/api/{}", config.scheme(), spec.name.name()))
}

/// A key that lets callers through to each function of an app, from the answer to a listing; not the one that may do everything.
pub(super) fn key(answer: &Value) -> Option<String> {
    let keys = answer.get("functionKeys")?.as_object()?;
    keys.get("default").or_else(|| keys.values().next())?.as_str().map(str::to_owned)
}

/// The body of a swap of the slot with production.
pub(super) fn swap() -> Value {
    json!({"targetSlot": "production", "preserveVnet": true})
}

#[cfg(test)]
mod tests {
    use berth_control::store::Rev;

    use super::*;
    use crate::deployment::Declared;

    fn spec(kind: &str, more: &Value) -> FunctionSpec {
        let mut object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": kind, "sourceUri": "file:/a.zip", "entrypoint": "a.b",
                     "target": {"platform": "azure-function", "resourceGroup": "rg", "appName": "words-prod"}},
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        let declared = Declared::read("words", object.to_string().as_bytes(), Rev(1));
        FunctionSpec::clone(&declared.spec.expect("a spec"))
    }

    #[test]
    fn an_app_belongs_to_a_function_of_one_namespace() {
        let ours = spec("python", &json!({}));
        let of_team = FunctionSpec { name: FunctionName::new("team/words").expect("a name"), ..ours.clone() };
        let paths = Paths { group: "/subscriptions/s/resourceGroups/rg".to_owned(), app: "words-prod".to_owned() };
        for (spec, tag) in [(ours, "words"), (of_team, "team/words")] {
            assert_eq!(owner(&site(&paths, "westeurope", &spec, None)), Some(tag));
            assert_eq!(misnamed(&spec.name), None, "its route is the name alone");
        }
    }

    #[test]
    fn a_key_for_callers_is_chosen_and_never_the_master_key() {
        for (listed, wanted) in [
            (json!({"masterKey": "m", "functionKeys": {"a": "1", "default": "2"}, "systemKeys": {}}), Some("2")),
            (json!({"masterKey": "m", "functionKeys": {"a": "1"}}), Some("1")),
            (json!({"masterKey": "m", "functionKeys": {}}), None),
            (Value::Null, None),
        ] {
            assert_eq!(key(&listed).as_deref(), wanted, "{listed}");
        }
    }

    #[test]
    fn limits_that_a_spec_names_become_settings() {
        let all = json!({"timeoutSeconds": 90, "concurrency": 64, "idleSeconds": 60, "memoryMiB": 512});
        for (kind, more, settings, told) in [
            ("python", json!({}), json!({}), vec![]),
            (
                "python",
                json!({"limits": all}),
                json!({TIMEOUT: "00:01:30", CONCURRENCY: "64", THREADS: "32"}),
                vec!["spec.limits.idleSeconds", "spec.limits.memoryMiB"],
            ),
            (
                "javascript",
                json!({"limits": {"timeoutSeconds": 600, "concurrency": 2}}),
                json!({TIMEOUT: "00:10:00", CONCURRENCY: "2"}),
                vec!["spec.limits.timeoutSeconds"],
            ),
            (
                "python",
                json!({"limits": {"timeoutSeconds": 230, "concurrency": 2}, "env": {THREADS: "7", "WHO": "me"}}),
                json!({TIMEOUT: "00:03:50", CONCURRENCY: "2", THREADS: "7", "WHO": "me"}),
                vec![],
            ),
        ] {
            let spec = spec(kind, &more);
            assert_eq!(json!(wanted(&spec)), settings, "{kind} {more}");
            let left_out = limits_left_out(&spec);
            assert_eq!(left_out.matches("spec.limits.").count(), told.len(), "{left_out}");
            for field in told {
                assert!(left_out.contains(field), "{field}: {left_out}");
            }
        }
    }

    #[test]
    fn settings_of_an_earlier_spec_go() {
        let earlier: Vec<String> =
            wanted(&spec("python", &json!({"limits": {"timeoutSeconds": 9}}))).into_keys().collect();
        let found = [(TIMEOUT, "00:00:09"), ("THEIRS", "stays")];
        let found = BTreeMap::from(found.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let without = spec("python", &json!({}));
        let ours = wanted(&without);
        let merged = merged(&found, &ours, &earlier);
        assert_eq!(json!(merged), json!({"THEIRS": "stays"}));
        let app = json!({"properties": {"state": "Running"}});
        let differs = drift(&app, &found, &ours, &earlier, &without);
        assert_eq!(differs, [format!("its setting {TIMEOUT} is not in the spec any more")]);
    }
}
