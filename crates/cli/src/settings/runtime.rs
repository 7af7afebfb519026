//! Model servers that a worker uses beside its built-in runtimes: objects of kind `Runtime`, one file each, or `ServingRuntime` of
//! KServe.

mod health;
mod places;
mod serving_runtime;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use berth_spec::{
    ByteSize, FormatSupport,
    dialect::kserve::serving_runtime::ServingRuntime,
    member::{REGION, ZONE},
};
use berth_worker::runtime::spi::{
    self, Layout, OneModel, Program, Protocol, Repository, Reserve, SettingsFactory, address::Address,
};
use serde::{Deserialize, Serialize};

use self::{
    health::RawHealth,
    places::{ARTIFACT, Places},
};
use super::values;
use crate::failure::Failure;

/// The file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawRuntime {
    #[serde(rename = "apiVersion")]
    _api_version: ApiVersion,
    #[serde(rename = "kind")]
    _kind: Kind,
    metadata: Metadata,
    spec: RawSpec,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
enum ApiVersion {
    #[serde(rename = "berth.dev/v1")]
    V1,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
enum Kind {
    Runtime,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSpec {
    #[serde(default)]
    protocol: RawProtocol,
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    environment: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_directory: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inference_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rest_address: Option<String>,
    formats: Vec<RawFormat>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_models: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    models_per_process: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unload_reserve: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<RawHealth>,
}

/// The kind of the object, whosever it is.
#[derive(Debug, Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

/// The protocol by which a runtime is told what to hold.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
enum RawProtocol {
    /// `mmesh.ModelRuntime`.
    #[default]
    #[serde(rename = "spi")]
    Spi,
    /// The Open Inference Protocol, with a model repository.
    #[serde(rename = "v2")]
    V2,
    /// TensorFlow Serving's own, with a model repository.
    #[serde(rename = "tensorflow")]
    TensorFlow,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
enum RawFormat {
    Name(String),
    Versions(FormatSupport),
}

/// Reads the file of one runtime. What it keeps goes below `data`.
pub(crate) fn read(path: &Path, data: &Path) -> Result<spi::Settings, Failure> {
    let text = fs_err::read_to_string(path).map_err(|error| Failure::Usage(format!("--runtime: {error}")))?;
    parse(&text, data).map_err(|reason| Failure::Usage(format!("--runtime {}: {reason}", path.display())))
}

/// The `Runtime` that a `ServingRuntime` of KServe is for a worker, with the words in braces that it fills in.
///
/// # Errors
/// The field that keeps it from being one.
pub(crate) fn of_kserve(object: &serde_json::Value) -> Result<serde_json::Value, Failure> {
    let converted = || {
        let object = ServingRuntime::deserialize(object).map_err(|error| error.to_string())?;
        let runtime = serving_runtime::convert(object)?;
        // As a worker does: what is printed can be used.
        settings(runtime.clone(), Path::new("."), None)?;
        serde_json::to_value(runtime).map_err(|error| error.to_string())
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    converted().map_err(|reason| Failure::Invalid(format!("runtime {name}: {reason}")))
}

fn parse(text: &str, data: &Path) -> Result<spi::Settings, String> {
    settings(raw(text)?, data, None)
}

/// Reads either form of the file.
fn raw(text: &str) -> Result<RawRuntime, String> {
    let head: Head = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    if serving_runtime::KINDS.contains(&head.kind.as_str()) {
        return serving_runtime::convert(serde_saphyr::from_str(text).map_err(|error| error.to_string())?);
    }
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

/// The settings of a runtime, or of one of its processes.
fn settings(raw: RawRuntime, data: &Path, one: Option<OneModel<'_>>) -> Result<spi::Settings, String> {
    let name = raw.metadata.name.clone();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.is_empty() || name.len() > 63 || !name.chars().all(plain) || name.starts_with('.') {
        return Err(format!(
            "metadata.name is {name:?}: use 1 to 63 lower-case letters, digits, '-', '_' and '.', which is not the first"
        ));
    }
    if ["onnx", "python"].contains(&name.as_str()) {
        return Err(format!("metadata.name is {name:?}, which is a built-in runtime: choose another name"));
    }
    let labels = labels(&raw.metadata)?;
    let per_model = per_model(&raw, data, one)?;
    let spec = raw.spec;
    let mut places = Places::new(data, &name, spec.repository.as_deref(), one);
    let started = !spec.command.is_empty();
    let command = spec.command.iter().map(|word| places.filled(word)).collect::<Result<Vec<_>, _>>()?;
    let environment = spec.environment.iter();
    let environment = environment
        .map(|(key, value)| places.filled(value).map(|value| (key.clone(), value)))
        .collect::<Result<BTreeMap<_, _>, _>>()?;
    if !started && (!environment.is_empty() || spec.working_directory.is_some()) {
        return Err("spec.environment and spec.workingDirectory belong to spec.command: there is none".to_owned());
    }
    let own = match (&spec.address, started) {
        (Some(text), _) => places.filled(text)?,
        (None, true) => places.filled("{port}")?,
        (None, false) => {
            return Err(
                "spec.address is missing: say where it listens, or with spec.command how to start it".to_owned()
            );
        }
    };
    let protocol = protocol(&spec, &places)?;
    let rest = rest_address(&spec, &protocol, &mut places)?;
    if protocol != Protocol::Spi && spec.memory.is_none() && spec.models_per_process.is_none() {
        return Err("spec.memory is missing: servers of this protocol do not say how much they hold".to_owned());
    }
    let size = |field: &str, text: Option<&String>| -> Result<Option<ByteSize>, String> {
        text.map(|text| values::size(text).map_err(|error| format!("spec.{field} is {text:?}: {error}"))).transpose()
    };
    let start = spec.start_timeout.as_deref().map(values::duration).transpose();
    if spec.formats.is_empty() {
        return Err("spec.formats is empty: list what it takes, or \"*\" for everything".to_owned());
    }
    let reserve = size("unloadReserve", spec.unload_reserve.as_ref())?;
    let inference = spec.inference_address.as_deref().map(|text| places.filled(text)).transpose()?;
    // No runtime has this sign in its name.
    let log = one.map_or_else(|| name.clone(), |one| format!("{name}@{}", one.name));
    Ok(spi::Settings {
        inference: inference.map(|text| address("inferenceAddress", &text)).transpose()?,
        rest,
        per_model,
        formats: spec.formats.into_iter().map(format).collect::<Result<_, _>>()?,
        labels,
        health: spec.health.unwrap_or_default().times()?,
        memory: size("memory", spec.memory.as_ref())?,
        max_models: spec.max_models,
        device_memory: size("deviceMemory", spec.device_memory.as_ref())?,
        start: start.map_err(|error| format!("spec.startTimeout: {error}"))?.unwrap_or(spi::START),
        unload_reserve: reserve.map_or(Reserve::None, Reserve::Bytes),
        protocol,
        program: started.then(|| Program {
            command,
            environment,
            folder: spec.working_directory,
            log: data.join("runtimes").join(format!("{log}.log")),
            launcher: std::env::current_exe().ok(),
        }),
        ..spi::Settings::new(name, address("address", &own)?)
    })
}

/// The labels of a runtime, which selectors match.
fn labels(of: &Metadata) -> Result<BTreeMap<String, String>, String> {
    for key in of.labels.keys() {
        if key.trim().is_empty() {
            return Err("metadata.labels has an empty key: write KEY: VALUE".to_owned());
        }
        if [REGION, ZONE].contains(&key.as_str()) {
            return Err(format!("metadata.labels has {key}, which is the worker's: give it to that by --labels"));
        }
    }
    Ok(of.labels.clone())
}

/// Makes the settings of the process that each model has to itself; `None`: one process has them all, or this is such a process.
fn per_model(raw: &RawRuntime, data: &Path, one: Option<OneModel<'_>>) -> Result<Option<SettingsFactory>, String> {
    let spec = &raw.spec;
    match spec.models_per_process {
        None => return Ok(None),
        Some(1) => {}
        Some(other) => {
            return Err(format!(
                "spec.modelsPerProcess is {other}: write 1, or leave it out for one process of all models"
            ));
        }
    }
    if spec.command.is_empty() {
        return Err("spec.modelsPerProcess belongs to spec.command: there is none".to_owned());
    }
    if spec.repository.is_some() {
        return Err("spec.repository is one for all: leave it out, so that each process has its own".to_owned());
    }
    for (field, said) in
        [("address", &spec.address), ("inferenceAddress", &spec.inference_address), ("restAddress", &spec.rest_address)]
    {
        if let Some(said) = said.as_ref().filter(|said| !said.contains('{')) {
            return Err(format!(
                "spec.{field} is {said}, the same for all processes: use {{port}}, {{port.NAME}} or {{model}}"
            ));
        }
    }
    if one.is_some() {
        return Ok(None);
    }
    let (raw, data) = (raw.clone(), data.to_owned());
    Ok(Some(SettingsFactory::new(move |one| settings(raw.clone(), &data, Some(one)))))
}

/// True for a server that is started with its model.
fn takes_artifact(spec: &RawSpec) -> Result<bool, String> {
    if !spec.command.iter().chain(spec.environment.values()).any(|word| word.contains(ARTIFACT)) {
        return Ok(false);
    }
    if spec.models_per_process.is_none() {
        return Err(
            "{artifact} belongs to spec.modelsPerProcess: 1: a process of all models has no one artifact".to_owned()
        );
    }
    if !matches!(spec.protocol, RawProtocol::V2) || spec.layout.is_some() {
        return Err("{artifact} belongs to protocol v2 without a layout: servers of others are told which models to \
                    load"
            .to_owned());
    }
    Ok(true)
}

/// The protocol of the runtime, and where its model repository is.
fn protocol(spec: &RawSpec, places: &Places<'_>) -> Result<Protocol, String> {
    let owned = spec.repository.is_none();
    let given = if takes_artifact(spec)? { places.given() } else { None };
    Ok(match spec.protocol {
        RawProtocol::Spi if spec.layout.is_some() || !owned => {
            return Err("spec.layout and spec.repository belong to protocols v2 and tensorflow".to_owned());
        }
        RawProtocol::Spi => Protocol::Spi,
        RawProtocol::V2 => {
            let layout = spec.layout.as_deref().unwrap_or("mlserver");
            let layout = layout.parse::<Layout>().map_err(|error| format!("spec.layout is {layout:?}: {error}"))?;
            Protocol::V2(Repository { folder: places.repository(), layout, owned, given })
        }
        RawProtocol::TensorFlow if spec.layout.is_some() => {
            return Err("spec.layout belongs to protocol v2: TensorFlow Serving has one of its own".to_owned());
        }
        RawProtocol::TensorFlow => {
            Protocol::TensorFlow(Repository { folder: places.repository(), layout: Layout::TensorFlow, owned, given })
        }
    })
}

/// Where a server that is told over REST to read its list of models is told so.
fn rest_address(spec: &RawSpec, protocol: &Protocol, places: &mut Places<'_>) -> Result<Option<Address>, String> {
    let is_open_vino = matches!(protocol, Protocol::V2(repository) if repository.layout == Layout::OpenVino);
    let text = match (&spec.rest_address, is_open_vino) {
        (Some(_), false) => return Err("spec.restAddress belongs to layout openvino".to_owned()),
        (Some(text), true) => places.filled(text)?,
        (None, true) if !spec.command.is_empty() => places.filled("{port.http}")?,
        (None, true) => {
            return Err(
                "spec.restAddress is missing: OpenVINO Model Server is told over REST to read its list".to_owned()
            );
        }
        (None, false) => return Ok(None),
    };
    let rest = address("restAddress", &text)?;
    if rest.to_string().starts_with("unix:") {
        return Err("spec.restAddress is a socket: write HOST:PORT, or a PORT of this machine".to_owned());
    }
    Ok(Some(rest))
}

fn address(field: &str, text: &str) -> Result<Address, String> {
    text.parse::<Address>().map_err(|error| format!("spec.{field}: {error}"))
}

fn format(raw: RawFormat) -> Result<FormatSupport, String> {
    let support = match raw {
        RawFormat::Name(text) => match text.split_once(':') {
            Some((name, version)) => FormatSupport { name: name.to_owned(), versions: vec![version.to_owned()] },
            None => FormatSupport { name: text, versions: Vec::new() },
        },
        RawFormat::Versions(support) => support,
    };
    if support.name != FormatSupport::ANY {
        let check = |version| berth_spec::ModelFormat::new(&support.name, version).map(drop);
        check(None).map_err(|error| format!("spec.formats: {error}"))?;
        for version in &support.versions {
            check(Some(version)).map_err(|error| format!("spec.formats: {error}"))?;
        }
    }
    Ok(support)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FULL: &str = "
apiVersion: berth.dev/v1
kind: Runtime
metadata: {name: mlserver, labels: {tier: gold}}
spec:
  protocol: spi
  address: unix:/run/adapter.sock
  inferenceAddress: 8001
  formats: [sklearn, 'xgboost:1', {name: lightgbm, versions: ['3', '4']}]
  memory: 4GiB
  maxModels: 100
  startTimeout: 1m
  health: {interval: 5s, lostAfter: 10m}
";

    #[test]
    fn a_file_declares_a_runtime() {
        let settings = parse(FULL, Path::new("data")).expect("a runtime");
        assert_eq!(settings.name, "mlserver");
        assert_eq!(settings.address.to_string(), "unix:/run/adapter.sock");
        assert_eq!(settings.inference.map(|address| address.to_string()).as_deref(), Some("8001"));
        let formats: Vec<String> = settings.formats.iter().map(ToString::to_string).collect();
        assert_eq!(formats, ["sklearn", "xgboost:1", "lightgbm:3,4"]);
        assert_eq!((settings.memory, settings.max_models), (Some(ByteSize::gib(4)), Some(100)));
        assert_eq!(settings.start, Duration::from_secs(60));
        assert_eq!(settings.labels, BTreeMap::from([("tier".to_owned(), "gold".to_owned())]));
        let [interval, timeout, lost_after] = [5, 10, 600].map(Duration::from_secs);
        let times = spi::HealthCheck { interval, timeout, lost_after, busy_timeout: lost_after };
        assert_eq!(settings.health, times, "one at work has no less than another");
        let usual = parse(&FULL.replace("  health: {interval: 5s, lostAfter: 10m}", ""), Path::new("data"));
        assert_eq!(usual.expect("a runtime").health, spi::HealthCheck::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, problem) in [
            ("kind: Runtime", "kind: Model", "Model"),
            ("name: mlserver", "name: onnx", "built-in"),
            ("name: mlserver", "name: ML Server", "metadata.name"),
            ("name: mlserver", "name: '..'", "metadata.name"),
            ("unix:/run/adapter.sock", "adapter.sock", "spec.address"),
            ("formats: [sklearn,", "formats: [SKLearn,", "spec.formats"),
            ("memory: 4GiB", "memory: lots", "spec.memory"),
            ("maxModels", "maxModel", "maxModel"),
            ("protocol: spi", "layout: triton", "protocols v2"),
            ("protocol: spi", "protocol: v2\n  layout: openvino", "spec.restAddress"),
            ("protocol: spi", "restAddress: 8000", "layout openvino"),
            ("protocol: spi", "protocol: tensorflow\n  layout: triton", "spec.layout"),
            ("protocol: spi", "environment: {A: b}", "spec.command"),
            ("address: unix:/run/adapter.sock", "unloadReserve: 1GiB", "spec.address"),
            ("startTimeout: 1m", "startTimeout: soon", "spec.startTimeout"),
            ("interval: 5s", "interval: often", "spec.health.interval"),
            ("interval: 5s", "timeout: 10ms", "from 1s to 1d"),
            ("interval: 5s", "busyTimeout: 5s", "spec.health.busyTimeout is 5s, and lostAfter 600s"),
            ("interval: 5s", "failureThreshold: 3", "failureThreshold"),
            ("tier: gold", "region: eu", "--labels"),
            ("tier: gold", "'': gold", "KEY: VALUE"),
            ("maxModels: 100", "modelsPerProcess: 2", "write 1"),
            ("maxModels: 100", "modelsPerProcess: 1", "belongs to spec.command"),
            ("maxModels: 100", "command: [serve]\n  modelsPerProcess: 1", "the same for all processes"),
            ("maxModels: 100", "command: [serve, '{artifact}']", "modelsPerProcess: 1"),
            (
                "address: unix:/run/adapter.sock\n  inferenceAddress: 8001",
                "command: [serve, '{artifact.folder}']\n  modelsPerProcess: 1",
                "protocol v2",
            ),
        ] {
            let error = parse(&FULL.replace(from, to), Path::new("data")).expect_err(to);
            assert!(error.contains(problem), "{to}: {error}");
        }
    }

    #[test]
    fn each_model_has_a_process_with_ports_a_folder_and_a_log_of_its_own() {
        let text = "
apiVersion: berth.dev/v1
kind: Runtime
metadata: {name: one}
spec:
  protocol: v2
  command: [serve, '{repository}', '--name={model}']
  environment: {PORT: '{port}', DATA: '{port.data}'}
  inferenceAddress: '127.0.0.1:{port.data}'
  modelsPerProcess: 1
  formats: [sklearn]
  memory: 8GiB
";
        let settings = parse(text, Path::new("/data")).expect("a runtime");
        let factory = settings.per_model.expect("settings of each process");
        let [first, second] = ["iris@a.0", "iris@b.1"]
            .map(|process| factory.make(OneModel { process, name: "iris", artifact: None }).expect("a process"));
        let [one, other] = [&first, &second].map(|settings| settings.program.as_ref().expect("a program"));
        assert_eq!(one.command, ["serve", "/data/runtimes/one/iris@a.0", "--name=iris@a.0"]);
        assert_eq!(other.command[1], "/data/runtimes/one/iris@b.1");
        assert_eq!(one.log, Path::new("/data/runtimes/one@iris.log"));
        assert_eq!(first.address.to_string(), one.environment["PORT"]);
        let data = first.inference.as_ref().map(ToString::to_string);
        assert_eq!(data.as_deref(), Some(&*format!("127.0.0.1:{}", one.environment["DATA"])));
        assert!(first.per_model.is_none() && settings.memory == Some(ByteSize::gib(8)));
    }

    #[test]
    fn a_server_may_be_started_with_its_model() {
        let text = "
apiVersion: berth.dev/v1
kind: Runtime
metadata: {name: one}
spec:
  protocol: v2
  command: [serve, '--model_name={name}', '--model_dir={artifact.folder}', '--grpc_port={port}']
  environment: {FILE: '{artifact}', LIST: '{\"models\": [{\"at\": \"{artifact}\"}]}'}
  modelsPerProcess: 1
  formats: [sklearn]
";
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("4f2a");
        fs_err::write(&file, "weights").expect("an artifact");
        let factory = parse(text, Path::new("/data")).expect("a runtime").per_model.expect("settings of each process");
        let own = Path::new("/data/runtimes/one/iris.0");
        let at = own.join("model.joblib");
        for (artifact, within) in [(&*file, own), (folder.path(), &*at)] {
            let one = OneModel { process: "iris.0", name: "iris", artifact: Some((artifact, "model.joblib")) };
            let made = factory.make(one).expect("a process");
            let program = made.program.expect("a program");
            assert_eq!(
                program.command[1..3],
                ["--model_name=iris".to_owned(), format!("--model_dir={}", within.display())]
            );
            assert_eq!(program.environment["FILE"], at.to_string_lossy());
            assert_eq!(program.environment["LIST"], format!("{{\"models\": [{{\"at\": \"{}\"}}]}}", at.display()));
            let Protocol::V2(repository) = made.protocol else { panic!("v2") };
            assert_eq!(repository.given, Some(spi::StartModel { artifact: artifact.to_owned(), at: at.clone() }));
        }
    }

    #[test]
    fn a_program_is_told_its_ports_and_folders() {
        let text = "
apiVersion: berth.dev/v1
kind: Runtime
metadata: {name: mlserver}
spec:
  protocol: v2
  command: [mlserver, start, '{repository}']
  environment: {MLSERVER_GRPC_PORT: '{port}', MLSERVER_HTTP_PORT: '{port.http}', X: '{\"a\": 1}'}
  formats: [sklearn]
  memory: 1GiB
";
        let settings = parse(text, Path::new("/data")).expect("a runtime");
        let program = settings.program.expect("a program");
        assert_eq!(program.command, ["mlserver", "start", "/data/runtimes/mlserver"]);
        assert_eq!(settings.address.to_string(), program.environment["MLSERVER_GRPC_PORT"]);
        assert_ne!(program.environment["MLSERVER_GRPC_PORT"], program.environment["MLSERVER_HTTP_PORT"]);
        assert_eq!(program.environment["X"], "{\"a\": 1}");
        let Protocol::V2(repository) = settings.protocol else { panic!("v2") };
        assert_eq!(repository.folder, Path::new("/data/runtimes/mlserver"));
        assert!(
            parse(&text.replace("memory: 1GiB", ""), Path::new("/data")).is_err_and(|error| error.contains("memory"))
        );
    }
}
