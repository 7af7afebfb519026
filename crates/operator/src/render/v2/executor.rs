//! The executor of a model: its configuration, and its container.

use std::path::Path;

use berth_executor::{Config, ConfigError};
use serde_json::{Map, Value, json};

use super::super::{EXECUTOR, EXECUTOR_PORT};
use super::{GRACE, Identity, Record, digest, v1};
use crate::api::{
    ModelDeployment,
    model_deployment::{self, Port},
};

/// The file of the configuration, also its place in the ConfigMap.
const FILE: &str = "executor.yaml";

/// The folder of the configuration.
const FOLDER: &str = "/etc/berth";

/// The folder of Secrets.
const SECRETS: &str = "/var/run/secrets/berth";

/// Fields of a configuration that name files.
const FILES: [&str; 10] = [
    "ca",
    "certificate",
    "clientCa",
    "credentialsFile",
    "file",
    "key",
    "passwordFile",
    "secretFile",
    "tokenFile",
    "tokens",
];

/// The first port that executors listen at: below those that nodes give to connections, above those of most programs.
pub(crate) const FIRST_PORT: u16 = 29_001;

/// The port of probes and metrics where nobody says another.
pub(crate) const ADMIN: u16 = 9_901;

/// Threads of an executor: one per core of a large node would be more than a model has.
const THREADS: &str = "4";

/// Memory of an executor without jobs, and more for each port with them, in Mi.
const MEMORY: u32 = 256;
const MEMORY_OF_JOBS: u32 = 384;

/// An executor, as a spec has it.
pub(in super::super) struct Executor<'a> {
    model: &'a ModelDeployment,
    settings: model_deployment::Executor,
    /// Ports that it stands before, with the number that it listens at.
    ports: Vec<(&'a Port, u16)>,
    /// The port of its probes and metrics.
    admin: u16,
}

/// The reason why a model's executor cannot be configured.
pub(in super::super) fn check(model: &ModelDeployment) -> Result<(), String> {
    let Some(settings) = &model.spec.executor else { return Ok(()) };
    if let Some(port) = model.spec.container.ports.iter().find(|port| Some(port.port) == settings.admin_port) {
        return Err(format!("spec.executor.adminPort: {} is the container's port {}", port.port, port.name));
    }
    let names: Vec<&str> = model.spec.container.ports.iter().map(|port| port.name.as_str()).collect();
    for port in &settings.ports {
        let place = format!("spec.executor.ports[{}]", port.name);
        if !names.contains(&port.name.as_str()) {
            return Err(format!("{place}: the container has no port of this name, but {}", names.join(", ")));
        }
        let fields = port.settings.as_ref().and_then(Value::as_object);
        if let Some(ours) =
            ["name", "listen", "upstream"].into_iter().find(|name| fields.is_some_and(|all| all.contains_key(*name)))
        {
            return Err(format!("{place}.settings.{ours}: it follows from the container's port; leave it out"));
        }
    }
    let Some(executor) = Executor::of(model) else { return Ok(()) };
    let config = executor.config();
    read(&config).map_err(|error| match error.message() {
        message if message.starts_with("access") => format!("spec.executor.{message}"),
        message => format!("spec.executor.ports[{}].settings: {message}", wrong_port(&config).unwrap_or_default()),
    })?;
    executor.check_files(&config)
}

/// Reads a configuration as an executor does.
fn read(config: &Value) -> Result<(), ConfigError> {
    Config::parse(Path::new("spec.executor"), &config.to_string()).map(drop)
}

/// The name of the first port with which alone the configuration is wrong, too.
fn wrong_port(config: &Value) -> Option<&str> {
    let is_wrong = |port: &&Value| {
        let mut alone = config.clone();
        alone["ports"] = json!([port]);
        read(&alone).is_err()
    };
    config["ports"].as_array()?.iter().find(is_wrong)?["name"].as_str()
}

/// Files that a model's executor needs and that are in no Secret, so that its image must have them.
pub(in super::super) fn files_of_image(model: &ModelDeployment) -> Vec<String> {
    let config = Executor::of(model).map(|executor| executor.config());
    let is_elsewhere = |file: &str| ["/dev", SECRETS].iter().any(|folder| Path::new(file).starts_with(folder));
    let named = config.iter().flat_map(files);
    named.filter(|&file| file.starts_with('/') && !is_elsewhere(file)).map(str::to_owned).collect()
}

/// The files that a configuration names, and some words that are none.
fn files(config: &Value) -> Vec<&str> {
    match config {
        Value::Object(fields) => {
            let of_field = fields.iter().flat_map(|(name, value)| match value.as_str() {
                Some(file) if FILES.contains(&name.as_str()) => vec![file],
                _ => files(value),
            });
            of_field.collect()
        }
        Value::Array(items) => items.iter().flat_map(files).collect(),
        _ => Vec::new(),
    }
}

/// The Secret that a file of the configuration is in, if it is none of these.
fn missing_secret<'c>(config: &'c Value, secrets: &[String]) -> Option<&'c str> {
    match config {
        Value::String(text) => {
            let (secret, _) = text.strip_prefix(SECRETS)?.strip_prefix('/')?.split_once('/')?;
            (!secrets.iter().any(|mounted| mounted == secret)).then_some(secret)
        }
        Value::Array(items) => items.iter().find_map(|item| missing_secret(item, secrets)),
        Value::Object(fields) => fields.values().find_map(|field| missing_secret(field, secrets)),
        _ => None,
    }
}

impl<'a> Executor<'a> {
    /// The executor of a model, unless it has none.
    pub(in super::super) fn of(model: &'a ModelDeployment) -> Option<Self> {
        let settings = model.spec.executor.clone().unwrap_or_default();
        let is_direct =
            |port: &Port| settings.ports.iter().any(|one| one.name == port.name && one.direct == Some(true));
        let all = &model.spec.container.ports;
        let is_free = |number: &u16| all.iter().all(|port| port.port != *number);
        let admin = settings.admin_port.or_else(|| (ADMIN..).find(is_free)).unwrap_or(ADMIN);
        let free = (FIRST_PORT..).filter(|number| is_free(number) && *number != admin);
        let ports: Vec<_> = all.iter().filter(|port| !is_direct(port)).zip(free).collect();
        (settings.enabled != Some(false) && !ports.is_empty()).then_some(Self { model, settings, ports, admin })
    }

    /// The ports that take asynchronous requests, each with the section `async` of its settings.
    pub(in super::super) fn asynchronous(&self) -> Vec<(&'a Port, Value)> {
        let section = |port: &Port| self.settings_of(port).remove("async").filter(Value::is_object);
        self.ports.iter().filter_map(|(port, _)| Some((*port, section(port)?))).collect()
    }

    /// The number that it listens at for a port of the container; `None` where it does not stand before that.
    pub(super) fn listens_at(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|(port, _)| port.name == name).map(|(_, number)| *number)
    }

    /// The reason why a file that its configuration names cannot be there: it would end at its start, again and again.
    fn check_files(&self, config: &Value) -> Result<(), String> {
        if let Some(secret) = missing_secret(config, &self.settings.secrets) {
            return Err(format!(
                "spec.executor.secrets: {SECRETS}/{secret} is named, and {secret} is not among them: add it"
            ));
        }
        for (port, _) in &self.ports {
            let fields = self.settings_of(port);
            let file = fields.get("log").and_then(|log| log["to"]["file"].as_str());
            // Devices are there: /dev/stdout.
            if file.is_some_and(|file| !file.starts_with("/dev/")) {
                return Err(format!(
                    "spec.executor.ports[{}].settings.log.to.file: the container has no folder to write to; name http, nats or kafka",
                    port.name
                ));
            }
        }
        Ok(())
    }

    fn grace(&self) -> u32 {
        self.model.spec.pod.termination_grace_period_seconds.unwrap_or(GRACE)
    }

    fn settings_of(&self, port: &Port) -> Map<String, Value> {
        let found = self.settings.ports.iter().find(|one| one.name == port.name);
        let settings = found.and_then(|one| one.settings.as_ref()?.as_object()).cloned().unwrap_or_default();
        // Fields that are taken out of an applied object may be null.
        settings
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect()
    }

    fn config(&self) -> Value {
        let port = |(port, listen): &(&Port, u16)| {
            let mut settings = self.settings_of(port);
            let own = [("name", json!(port.name)), ("listen", json!(listen)), ("upstream", json!(port.port))];
            settings.extend(own.map(|(name, value)| (name.to_owned(), value)));
            if let Some(health) = self.health(port) {
                settings.entry("health").or_insert(health);
            }
            Value::Object(settings)
        };
        let grace = self.grace();
        // The rest is the model's own.
        let drain = json!({ "delay": format!("{}s", (grace / 12).min(5)), "timeout": format!("{}s", grace / 2) });
        let ports: Vec<Value> = self.ports.iter().map(port).collect();
        let mut config = json!({ "ports": ports, "admin": { "listen": self.admin }, "drain": drain });
        if let Some(access) = self.access() {
            config["access"] = access;
        }
        config
    }

    /// Access rules, with the name of the model.
    fn access(&self) -> Option<Value> {
        let Value::Object(mut access) = without_nulls(self.settings.access.clone()?) else { return None };
        let metadata = &self.model.metadata;
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        let model = format!("{}/{}", namespace.unwrap_or("default"), name.unwrap_or_default());
        access.entry("model").or_insert(json!(model));
        Some(Value::Object(access))
    }

    /// The model's own readiness probe, where it is a plain request to this port, or one of gRPC.
    fn health(&self, port: &Port) -> Option<Value> {
        let probe = self.model.spec.container.readiness_probe.as_ref()?;
        if probe["grpc"]["port"] == json!(port.port) {
            return Some(json!({ "grpc": probe["grpc"]["service"].as_str().unwrap_or_default() }));
        }
        let get = &probe["httpGet"];
        let scheme = if self.settings_of(port).contains_key("upstreamTls") { "HTTPS" } else { "HTTP" };
        let is_same = get["port"] == json!(port.name) || get["port"] == json!(port.port);
        let is_plain =
            get["httpHeaders"].is_null() && get["host"].is_null() && get["scheme"].as_str().unwrap_or("HTTP") == scheme;
        let path = get["path"].as_str().filter(|path| path.starts_with('/') && !path.contains(['{', '}', '?']))?;
        (is_same && is_plain).then(|| json!({ "path": path }))
    }

    /// Another one for settings that a running executor does not take: old pods keep theirs until they are replaced.
    fn config_name(&self, name: &str) -> String {
        let config = self.config();
        let fixed = |port: &Value| {
            let mut fixed = json!([port["name"], port["listen"], port["upstream"], port["async"]]);
            // Only where it is there: the names of before stay.
            if let (Some(tls), Some(fixed)) = (port.get("tls"), fixed.as_array_mut()) {
                fixed.push(tls.clone());
            }
            fixed
        };
        let ports: Vec<Value> = config["ports"].as_array().into_iter().flatten().map(fixed).collect();
        let mut all = vec![json!(ports), config["admin"].clone()];
        all.extend(config.get("access").cloned());
        format!("{name}{EXECUTOR}{}", digest(&json!(all), 4))
    }

    pub(super) fn config_map(&self, identity: &Identity) -> Value {
        let mut metadata = v1::metadata(identity);
        metadata["name"] = json!(self.config_name(&identity.name));
        // JSON is YAML, and written the same way for ever.
        let text = serde_json::from_str::<Value>(&super::super::canonical(&self.config()));
        let text = text.and_then(|sorted| serde_json::to_string_pretty(&sorted)).unwrap_or_default();
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { FILE: format!("{text}\n") } })
    }

    /// Puts it into a pod of version 1.
    pub(super) fn put_into(&self, pod: &mut Value, name: &str, record: &Record) {
        self.change_model(&mut pod["containers"][0]);
        pod["terminationGracePeriodSeconds"] = json!(self.grace());
        let mut volumes = vec![json!({ "name": "berth-executor", "configMap": { "name": self.config_name(name) } })];
        volumes.extend(
            self.settings.secrets.iter().enumerate().map(
                |(at, secret)| json!({ "name": format!("berth-secret-{at}"), "secret": { "secretName": secret } }),
            ),
        );
        append(&mut pod["volumes"], volumes);
        let mut container = self.container(record);
        let list = match record.native_sidecars {
            true => {
                container["restartPolicy"] = json!("Always");
                "initContainers"
            }
            false => "containers",
        };
        append(&mut pod[list], vec![container]);
    }

    /// The executor has the names of the ports; probes go to the numbers, past it: an executor that refuses because the model is
    /// busy must not restart it.
    fn change_model(&self, container: &mut Value) {
        let number = |name: &Value| {
            self.model.spec.container.ports.iter().find(|port| *name == json!(port.name)).map(|port| port.port)
        };
        for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
            for action in ["httpGet", "tcpSocket"] {
                if let Some(number) = container.get(probe).and_then(|probe| number(&probe[action]["port"])) {
                    container[probe][action]["port"] = json!(number);
                }
            }
        }
        for port in container["ports"].as_array_mut().into_iter().flatten() {
            if self.ports.iter().any(|(own, _)| port["name"] == json!(own.name)) {
                port["name"] = json!(format!("direct-{}", port["containerPort"]));
            }
        }
        let own = self
            .ports
            .iter()
            .map(|(port, listen)| json!({ "name": port.name, "containerPort": listen, "protocol": "TCP" }));
        append(&mut container["ports"], own.collect());
        // All containers are told to end at once: the model waits for the requests that are on their way to it.
        // The scheme is said, so that nothing of the hook is a default of the API server's, which would stay where the hook goes.
        let ask = json!({ "path": "/drain", "port": self.admin, "scheme": "HTTP" });
        container["lifecycle"] = json!({ "preStop": { "httpGet": ask } });
    }

    fn container(&self, record: &Record) -> Value {
        let image = self.settings.image.as_ref().or(record.executor_image.as_ref()).unwrap_or(&record.image);
        let probe = |path: &str| json!({ "httpGet": { "path": path, "port": self.admin }, "periodSeconds": 5 });
        let mut mounts = vec![json!({ "name": "berth-executor", "mountPath": FOLDER, "readOnly": true })];
        mounts.extend(self.settings.secrets.iter().enumerate().map(|(at, secret)| {
            json!({ "name": format!("berth-secret-{at}"), "mountPath": format!("{SECRETS}/{secret}"), "readOnly": true })
        }));
        let jobs = self.ports.iter().filter(|(port, _)| self.settings_of(port).contains_key("async")).count();
        let memory = MEMORY + MEMORY_OF_JOBS * u32::try_from(jobs).unwrap_or_default();
        let least =
            json!({ "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": format!("{memory}Mi") } });
        json!({
            "name": "executor",
            "image": image,
            "command": ["berth"],
            "args": ["executor", "--config", format!("{FOLDER}/{FILE}"), "--threads", THREADS],
            "ports": [{ "name": EXECUTOR_PORT, "containerPort": self.admin, "protocol": "TCP" }],
            "readinessProbe": probe("/ready"),
            "livenessProbe": probe("/live"),
            "resources": self.settings.resources.clone().unwrap_or(least),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
                "runAsUser": v1::NOBODY,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "volumeMounts": mounts,
        })
    }
}

/// Puts items at the end of a list, which may not be there.
fn append(list: &mut Value, items: Vec<Value>) {
    match list.as_array_mut() {
        Some(list) => list.extend(items),
        None => *list = Value::Array(items),
    }
}

/// The same without fields that are null.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(said.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        other => other,
    }
}
