//! The spec of a function (`v1alpha1`).

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use berth_spec::{DeploymentName, network::Destination};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    FunctionName,
    entry::{self, AzureEntry},
    field::{Mistakes, Object},
    network, parts_of,
    source::CodeUri,
};

/// A function as a person wants it.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionSpec {
    /// Name and namespace, from the key of the object.
    pub name: FunctionName,
    /// `spec.type`, as written: `keras`, `tfjs`.
    pub kind: String,
    /// The language that the type stands for.
    pub language: Language,
    /// `spec.sourceUri`: the place of the code.
    pub source: CodeUri,
    /// `spec.sourceSha256`: the digest that the archive has to have; `None`: nothing is compared.
    pub sha256: Option<String>,
    /// The function that is called.
    pub entrypoint: Entrypoint,
    /// `runtime.pythonVersion` or `runtime.nodeVersion`.
    pub version: Option<String>,
    /// The bundler of a JavaScript build; `None`: nothing is bundled.
    pub bundler: Option<Bundler>,
    /// The platform that runs it.
    pub platform: Platform,
    /// `target.programmingModel` and `target.authLevel`.
    pub entry: AzureEntry,
    /// Variables of its environment.
    pub env: BTreeMap<String, String>,
    /// Hosts that it reaches.
    pub hosts: Vec<Destination>,
    /// Bounds of its processes and requests.
    pub limits: Limits,
    /// The bounds that the spec itself names: a cloud has defaults of its own for the others.
    pub named_limits: NamedLimits,
    /// JSON that a new version has to answer before it takes over.
    pub probe: Option<Value>,
}

/// Language of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python, with packages of `requirements.txt`.
    Python,
    /// JavaScript on Node.js, with packages of `package.json`.
    JavaScript,
}

/// The function that is called: an attribute of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrypoint {
    /// The module: dotted for Python, a path without its ending for JavaScript.
    pub module: String,
    /// The name that the module gives it.
    pub function: String,
}

/// The program that bundles a JavaScript project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bundler {
    /// Rollup, with its configuration file.
    Rollup {
        /// The file, relative to the code.
        config: String,
    },
    /// esbuild.
    Esbuild {
        /// A script that calls it, relative to the code. `None`: it is called with what fits a function.
        config: Option<String>,
    },
}

/// The platform that runs a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platform {
    /// Processes of this machine, behind the gateway.
    Local,
    /// Azure Functions.
    Azure(AzureApp),
    /// Replicas on workers.
    Replica {
        /// The number of replicas, up to 1,000.
        count: u32,
    },
}

/// The function app of a function, which shares it with no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AzureApp {
    /// `target.resourceGroup`.
    pub group: String,
    /// `target.appName`.
    pub app: String,
}

/// Bounds of the processes and requests of a function on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The longest that one request may take.
    pub timeout: Duration,
    /// Requests that run at once.
    pub concurrency: usize,
    /// Time without a request after which its process ends.
    pub idle: Duration,
    /// Memory of its process, in MiB.
    pub memory_mib: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self { timeout: Duration::from_secs(30), concurrency: 8, idle: minutes(10), memory_mib: 2048 }
    }
}

/// The fields of `spec.limits` that are there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedLimits {
    /// `timeoutSeconds`.
    pub timeout: Option<Duration>,
    /// `concurrency`.
    pub concurrency: Option<usize>,
    /// `idleSeconds`.
    pub idle: Option<Duration>,
    /// `memoryMiB`.
    pub memory_mib: Option<u64>,
}

impl NamedLimits {
    /// These limits, with Berth's defaults for the others.
    fn complete(&self) -> Limits {
        let otherwise = Limits::default();
        Limits {
            timeout: self.timeout.unwrap_or(otherwise.timeout),
            concurrency: self.concurrency.unwrap_or(otherwise.concurrency),
            idle: self.idle.unwrap_or(otherwise.idle),
            memory_mib: self.memory_mib.unwrap_or(otherwise.memory_mib),
        }
    }
}

/// Fields of `spec`. docs/dialects.md has them with those below them (`berth_spec::dialect::etcd_v1alpha1`).
pub(super) const FIELDS: [&str; 11] = [
    "type",
    "sourceUri",
    "sourceSha256",
    "entrypoint",
    "runtime",
    "build",
    "target",
    "env",
    "network",
    "limits",
    "probe",
];

/// The most replicas of a function: those of a model's deployment.
const MOST_REPLICAS: u64 = 1_000;

/// The bounds of a process's memory, in MiB: an interpreter fits into the least, and the most is 1 TiB.
const MEMORY: RangeInclusive<u64> = 32..=1 << 20;

/// The most variables of the environment: more than functions have, and a bound on the size of an object.
const MOST_VARIABLES: usize = 100;

/// Reads an object; `None` where something is wrong that has been told.
pub(super) fn read(key: &str, object: &Map<String, Value>, mistakes: &mut Mistakes) -> Option<FunctionSpec> {
    head(key, object, mistakes);
    body(key, object, mistakes)
}

impl FunctionSpec {
    /// Reads once more the text of a spec that was valid.
    ///
    /// # Errors
    /// Every mistake, by its path.
    pub(crate) fn reread(key: &str, text: &str) -> Result<Self, String> {
        let spec: Value = serde_json::from_str(text).map_err(|error| format!("spec is not JSON: {error}"))?;
        let object = Map::from_iter([("spec".to_owned(), spec)]);
        let mut mistakes = Mistakes::default();
        let spec = body(key, &object, &mut mistakes);
        let (wrong, _) = mistakes.done();
        spec.filter(|_| wrong.is_empty()).ok_or_else(|| wrong.join("; "))
    }
}

/// Reads `spec`.
fn body(key: &str, object: &Map<String, Value>, mistakes: &mut Mistakes) -> Option<FunctionSpec> {
    let name = mistakes.check(FunctionName::new(key));
    let spec = Object::of(object, "spec", "spec", mistakes);
    if !spec.is_there() {
        mistakes.add("spec is missing");
        return None;
    }
    spec.only(&FIELDS, mistakes);
    let typed = language(&spec, mistakes);
    let language = typed.as_ref().map(|(_, language)| *language);
    let source = spec.required("sourceUri", "\"azure-blob://CONTAINER/src.zip\"", mistakes);
    let source =
        source.and_then(|text| mistakes.check(CodeUri::parse(text).map_err(|why| format!("spec.sourceUri: {why}"))));
    let sha256 =
        spec.text("sourceSha256", mistakes).map(|text| text.trim_start_matches("sha256:").to_ascii_lowercase());
    if sha256.as_ref().is_some_and(|text| text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        mistakes.add("spec.sourceSha256 must be 64 hexadecimal digits");
    }
    let example =
        if language == Some(Language::JavaScript) { "\"dist/bundle.handler\"" } else { "\"handler.predict\"" };
    let entrypoint = spec.required("entrypoint", example, mistakes);
    // Without a language, it is not known what these may say.
    let entrypoint =
        entrypoint.zip(language).and_then(|(text, language)| mistakes.check(entrypoint_of(text, language)));
    let version = language.and_then(|language| version(&spec, language, mistakes));
    let bundler = language.and_then(|language| bundler(&spec, language, mistakes));
    let target = spec.below("target", "spec.target", mistakes);
    let platform = platform(&target, mistakes);
    let entry = entry::read(&target, language, platform.as_ref(), mistakes);
    let env = environment(&spec, mistakes);
    let hosts = network::read(&spec, mistakes);
    let named_limits = limits(&spec, mistakes);
    if let (Some(Platform::Replica { .. }), Some(language)) = (&platform, language) {
        replica(key, language, &env, mistakes);
    }
    let probe = spec.value("probe").cloned();
    let (kind, language) = typed?;
    Some(FunctionSpec {
        name: name?,
        kind,
        language,
        source: source?,
        sha256,
        entrypoint: entrypoint?,
        version,
        bundler,
        platform: platform?,
        entry,
        env,
        hosts,
        limits: named_limits.complete(),
        named_limits,
        probe,
    })
}

fn head(key: &str, object: &Map<String, Value>, mistakes: &mut Mistakes) {
    match object.get("apiVersion").and_then(Value::as_str) {
        Some("v1alpha1" | "berth.dev/v1") => {}
        Some(other) => mistakes.add(format!("apiVersion {other:?} is unknown: write \"v1alpha1\"")),
        None => mistakes.add("apiVersion is missing: write \"v1alpha1\""),
    }
    match object.get("kind").and_then(Value::as_str) {
        Some("ModelDeployment" | "Function") => {}
        Some(other) => mistakes.add(format!("kind {other:?} is unknown: write \"ModelDeployment\"")),
        None => mistakes.add("kind is missing: write \"ModelDeployment\""),
    }
    let metadata = Object::of(object, "metadata", "metadata", mistakes);
    let (namespace, name) = parts_of(key);
    match metadata.required("name", &format!("{name:?}"), mistakes) {
        Some(given) if given != name => {
            mistakes.add(format!("metadata.name is {given:?}, but the key ends with {name:?}: use one name for both"));
        }
        _ => {}
    }
    match metadata.text("namespace", mistakes) {
        Some(given) if given != namespace => mistakes.add(format!(
            "metadata.namespace is {given:?}, but the key {key:?} is in the namespace {namespace:?}: use the key \"NAMESPACE/NAME\", or leave \
             metadata.namespace out"
        )),
        _ => {}
    }
    if metadata.value("generation").is_some_and(|generation| generation.as_i64().is_none_or(|number| number < 0)) {
        mistakes.add("metadata.generation must be a whole number that grows with each change, or be left out");
    }
}

fn language(spec: &Object<'_>, mistakes: &mut Mistakes) -> Option<(String, Language)> {
    let kind = spec.required("type", "\"keras\" or \"tfjs\"", mistakes)?;
    let language = match kind {
        "keras" | "python" => Language::Python,
        "tfjs" | "javascript" => Language::JavaScript,
        other => {
            mistakes.add(format!("spec.type {other:?} is unknown: use keras, python, tfjs or javascript"));
            return None;
        }
    };
    Some((kind.to_owned(), language))
}

fn entrypoint_of(text: &str, language: Language) -> Result<Entrypoint, String> {
    let wrong = |why: &str| Err(format!("spec.entrypoint {text:?}: {why}"));
    let word = |word: &str| {
        let plain = |c: char| c.is_alphanumeric() || c == '_' || (c == '$' && language == Language::JavaScript);
        !word.is_empty() && word.chars().all(plain) && !word.starts_with(|c: char| c.is_ascii_digit())
    };
    let Some((module, function)) = text.rsplit_once('.') else {
        return wrong(match language {
            Language::Python => "write MODULE.FUNCTION, e.g. handler.predict",
            Language::JavaScript => "write FILE.EXPORT without the file's ending, e.g. dist/bundle.handler",
        });
    };
    let fine = match language {
        Language::Python => module.split('.').all(word),
        Language::JavaScript => {
            let inside = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0']);
            module.strip_prefix("./").unwrap_or(module).split('/').all(inside)
        }
    };
    if !fine || !word(function) {
        return wrong("it names no function inside the code");
    }
    let module = module.strip_prefix("./").unwrap_or(module);
    Ok(Entrypoint { module: module.to_owned(), function: function.to_owned() })
}

fn version(spec: &Object<'_>, language: Language, mistakes: &mut Mistakes) -> Option<String> {
    let runtime = spec.below("runtime", "spec.runtime", mistakes);
    runtime.only(&["pythonVersion", "nodeVersion"], mistakes);
    let (field, other) = match language {
        Language::Python => ("pythonVersion", "nodeVersion"),
        Language::JavaScript => ("nodeVersion", "pythonVersion"),
    };
    if runtime.value(other).is_some() {
        mistakes.add(format!("spec.runtime.{other} does not belong to this spec.type"));
    }
    let text = runtime.text(field, mistakes)?;
    let digits = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').collect();
    let fine = parts.iter().all(|part| digits(part))
        && match language {
            Language::Python => parts.len() == 2,
            Language::JavaScript => parts.len() <= 3,
        };
    if !fine {
        let example = if language == Language::Python { "\"3.11\"" } else { "\"20\"" };
        mistakes.add(format!("spec.runtime.{field} {text:?} is no version: write e.g. {example}"));
    }
    Some(text.to_owned())
}

fn bundler(spec: &Object<'_>, language: Language, mistakes: &mut Mistakes) -> Option<Bundler> {
    let build = spec.below("build", "spec.build", mistakes);
    if !build.is_there() {
        return None;
    }
    build.only(&["bundler", "configFile"], mistakes);
    if language == Language::Python {
        mistakes.add("spec.build belongs to JavaScript: a Python function needs none");
        return None;
    }
    let config = build.text("configFile", mistakes);
    let inside = |part: &str| !part.is_empty() && part != ".." && !part.starts_with('-');
    if let Some(config) = config.filter(|config| config.starts_with('/') || !config.split('/').all(inside)) {
        mistakes.add(format!("spec.build.configFile {config:?} must be a path inside the code"));
    }
    match build.text("bundler", mistakes) {
        None | Some("rollup") => Some(Bundler::Rollup { config: config.unwrap_or("rollup.config.js").to_owned() }),
        Some("esbuild") => Some(Bundler::Esbuild { config: config.map(str::to_owned) }),
        Some("none") => None,
        Some(other) => {
            mistakes.add(format!("spec.build.bundler {other:?} is unknown: use rollup, esbuild or none"));
            None
        }
    }
}

/// The fields of `spec.target`.
const TARGET: [&str; 6] = ["platform", "resourceGroup", "appName", "programmingModel", "authLevel", "replicas"];

fn platform(target: &Object<'_>, mistakes: &mut Mistakes) -> Option<Platform> {
    target.only(&TARGET, mistakes);
    match target.required("platform", "\"azure-function\" or \"local\"", mistakes)? {
        "replica" => {
            let count = target.whole("replicas", 1..=MOST_REPLICAS, mistakes);
            Some(Platform::Replica { count: count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1) })
        }
        "local" => Some(Platform::Local),
        "azure-function" => {
            let group = target.required("resourceGroup", "\"ml-prod-rg\"", mistakes);
            let app = target.required("appName", "\"sentiment-prod\"", mistakes);
            let (group, app) = (group?, app?);
            if !is_group(group) {
                mistakes.add(format!(
                    "spec.target.resourceGroup {group:?} is no name of Azure: use 1 to 90 letters, digits, and any of _ - . ( ), with no dot at \
                     the end"
                ));
            }
            if !is_app(app) {
                mistakes.add(format!(
                    "spec.target.appName {app:?} is no name of Azure: use 2 to 60 letters, digits and dashes, with no dash at either end"
                ));
            }
            Some(Platform::Azure(AzureApp { group: group.to_owned(), app: app.to_owned() }))
        }
        other => {
            mistakes.add(format!("spec.target.platform {other:?} is unknown: use azure-function, local or replica"));
            None
        }
    }
}

/// Limits of workers that serve functions.
fn replica(name: &str, language: Language, env: &BTreeMap<String, String>, mistakes: &mut Mistakes) {
    if language != Language::Python {
        mistakes.add("spec.target.platform replica takes Python: workers run no JavaScript; use local");
    }
    if !env.is_empty() {
        mistakes.add("spec.env does not reach replicas: remove it, or use spec.target.platform local");
    }
    if let Err(error) = DeploymentName::new(name) {
        mistakes.add(format!("{name:?} is no name of a deployment, which a replica needs: {error}"));
    }
}

/// The rule of Azure for names of resource groups.
fn is_group(name: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '(' | ')');
    name.chars().all(plain) && (1..=90).contains(&name.chars().count()) && !name.ends_with('.')
}

/// The rule of Azure for names of apps, which are parts of host names.
fn is_app(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
    (2..=60).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('-') && !name.ends_with('-')
}

fn environment(spec: &Object<'_>, mistakes: &mut Mistakes) -> BTreeMap<String, String> {
    let env = spec.below("env", "spec.env", mistakes);
    if env.fields().count() > MOST_VARIABLES {
        mistakes.add(format!("spec.env has more than {MOST_VARIABLES} variables"));
    }
    let mut variables = BTreeMap::new();
    for (name, value) in env.fields() {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        match value {
            Value::String(text) if begins && name.chars().all(plain) && !text.contains('\0') => {
                variables.insert(name.clone(), text.clone());
            }
            Value::String(_) => {
                mistakes.add(format!("spec.env has the name {name:?}: use letters, digits and underscores"))
            }
            _ => mistakes.add(format!("spec.env.{name} must be a string")),
        }
    }
    variables
}

fn limits(spec: &Object<'_>, mistakes: &mut Mistakes) -> NamedLimits {
    let given = spec.below("limits", "spec.limits", mistakes);
    given.only(&["timeoutSeconds", "concurrency", "idleSeconds", "memoryMiB", "memoryMib"], mistakes);
    let seconds =
        |field, most, mistakes: &mut Mistakes| given.whole(field, 1..=most, mistakes).map(Duration::from_secs);
    let concurrency = given.whole("concurrency", 1..=1_000, mistakes).and_then(|number| usize::try_from(number).ok());
    NamedLimits {
        timeout: seconds("timeoutSeconds", 600, mistakes),
        concurrency,
        idle: seconds("idleSeconds", 86_400, mistakes),
        // Manifests were written with the second name.
        memory_mib: given.whole("memoryMiB", MEMORY, mistakes).or_else(|| given.whole("memoryMib", MEMORY, mistakes)),
    }
}
