//! Settings that `berth up` and `berth node` share, parsed once and typed from here on.
//!
//! ```text
//! flag ─▶ environment ─▶ file (--config) ─▶ default          the first that says something wins
//!                          │
//!   clap's definitions ◀───┘  a file's values become defaults of the same definitions, so that each
//!        │                    is read by one parser and has one help text     (file, layers)
//!        ├──▶ UpArgs, NodeArgs ──▶ checked ──▶ Settings, NodeSettings
//!        └──▶ effective: every value and where it came from       (berth config show)
//! ```

pub(crate) mod audit;
pub(crate) mod effective;
mod environment;
mod file;
mod from_context;
pub(crate) mod functions;
mod kubernetes;
pub(crate) mod layers;
pub(crate) mod model_types;
mod payload;
pub(crate) mod planning;
pub(crate) mod principals;
mod protocol;
mod request_memory;
pub(crate) mod runtime;
pub(crate) mod source;
pub(crate) mod storages;
pub(crate) mod store;
mod tips;
pub(crate) mod tls;
pub(crate) mod values;

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use berth_access::AccessFile;
use berth_plan::Policy;
use berth_spec::{ByteSize, Isolation, UseLimits, WorkerId, deployment::Selector};
use berth_wire::access::Access;
use berth_worker::{
    config::{IsolationSettings, SandboxNetwork},
    prepare::SystemPackages,
};
use clap::{Args, ValueEnum};
use url::Url;

pub(crate) use self::values::{duration, size};
use self::{
    audit::{AuditArgs, AuditSettings},
    model_types::TypeLabel,
    payload::PayloadArgs,
    planning::Planning,
    principals::PrincipalArgs,
    protocol::ProtocolArgs,
    storages::StorageArgs,
    tls::{ClientTls, TlsArgs},
};
use crate::{failure::Failure, modelmesh_metrics};

/// Settings of every server.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// YAML file of settings, with the names of the flags; flags and the environment take precedence
    #[arg(long, value_name = "FILE", env = "BERTH_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Folder for state and fetched artifacts
    #[arg(long, value_name = "DIR", env = "BERTH_DATA", default_value = "./.berth")]
    pub(crate) data: PathBuf,
    /// Address for inference: REST and gRPC of the Open Inference Protocol
    #[arg(long, value_name = "ADDR", env = "BERTH_HTTP_ADDR", default_value = "127.0.0.1:8080", value_parser = values::socket)]
    pub(crate) http: SocketAddr,
    /// More addresses for inference, the same as --http: for example 127.0.0.1:8033, which clients of ModelMesh call
    #[arg(long, value_name = "ADDR,…", env = "BERTH_ALSO_HTTP_ADDR", value_delimiter = ',', value_parser = values::socket)]
    pub(crate) also_http: Vec<SocketAddr>,
    /// Address of the control API
    #[arg(long, value_name = "ADDR", env = "BERTH_API_ADDR", default_value = "127.0.0.1:8081", value_parser = values::socket)]
    pub(crate) api: SocketAddr,
    /// Allow inference, the control API and the store without TLS, and clients without authentication, on addresses that
    /// other machines can reach
    #[arg(long, value_name = "BOOL", env = "BERTH_INSECURE", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) insecure: bool,
    /// Authentication of clients: off, tokens (docs/security.md). Must be the same on all nodes
    #[arg(long, value_enum, value_name = "HOW", env = "BERTH_AUTH", default_value_t)]
    pub(crate) auth: Auth,
    /// YAML file with the roles of client certificates and of OpenID issuers' tokens, for --auth tokens; reread when it
    /// changes (docs/security.md)
    #[arg(long, value_name = "FILE", env = "BERTH_ACCESS_FILE")]
    pub(crate) access_file: Option<PathBuf>,
    /// Memory for all models together [default: 80 % of the machine's or control group's limit]
    #[arg(long, value_name = "SIZE", env = "BERTH_MEMORY", value_parser = values::size)]
    pub(crate) memory: Option<ByteSize>,
    /// Disk space for artifacts; code and environments of model cards may each use as much again
    #[arg(long, value_name = "SIZE", env = "BERTH_CACHE", default_value = "20GiB", value_parser = values::size)]
    pub(crate) cache: ByteSize,
    /// Name of this node and its worker [default: local; for a node, the name in its certificate]
    #[arg(long, value_name = "NAME", env = "BERTH_NAME", value_parser = values::worker_id)]
    pub(crate) name: Option<WorkerId>,
    /// Labels of this worker, for selectors; `region` and `zone` give its location. Repeatable
    #[arg(long, visible_alias = "label", value_name = "KEY=VALUE,…", env = "BERTH_LABELS", value_delimiter = ',', value_parser = values::label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Worker label for all models of a type: TYPE:required:KEY=VALUE or TYPE:preferred:KEY=VALUE. Repeatable; must
    /// be the same on all controllers
    #[arg(long, value_name = "TYPE:WISH:KEY=VALUE,…", env = "BERTH_MODEL_TYPE", value_delimiter = ',', value_parser = TypeLabel::parse)]
    pub(crate) model_type: Vec<TypeLabel>,
    /// File of a model server that this worker uses, an object of kind Runtime. Repeatable
    #[arg(long, value_name = "FILE,…", env = "BERTH_RUNTIME", value_delimiter = ',')]
    pub(crate) runtime: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) storages: StorageArgs,
    /// ONNX Runtime library, or the folder of its Python package [default: ORT_DYLIB_PATH, then the usual places]
    #[arg(long, value_name = "PATH", env = "BERTH_ONNXRUNTIME")]
    pub(crate) onnxruntime: Option<PathBuf>,
    /// NVIDIA driver library (NVML), which finds GPUs [default: libnvidia-ml.so.1 where the system has it]
    #[arg(long, value_name = "PATH", env = "BERTH_NVML_LIBRARY")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// uv program, which creates the environments of models in Python [default: beside this program, then the PATH]
    #[arg(long, value_name = "PATH", env = "BERTH_UV")]
    pub(crate) uv: Option<PathBuf>,
    /// Package index for models in Python [default: UV_DEFAULT_INDEX, then PIP_INDEX_URL, then PyPI]
    #[arg(long, value_name = "URL", env = "BERTH_PACKAGE_INDEX", hide_env_values = true)]
    pub(crate) package_index: Option<Url>,
    /// Handling of operating system packages in model cards: check, install (as root), ignore
    #[arg(long, value_name = "WHAT", env = "BERTH_SYSTEM_PACKAGES", default_value_t)]
    pub(crate) system_packages: SystemPackages,
    /// Allow model cards to use Git repositories on this machine. Authors of cards can then read every file that this
    /// process can [default: only if --source is a registry on this machine]
    #[arg(long, value_name = "BOOL", env = "BERTH_LOCAL_REPOSITORIES", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) local_repositories: bool,
    /// Allow model cards to use Git repositories over http on other machines. Whoever is between can change the code
    #[arg(long, value_name = "BOOL", env = "BERTH_HTTP_REPOSITORIES", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    pub(crate) http_repositories: bool,
    /// Least isolation of models in Python: none, process, sandbox; a deployment may ask for more (runtime.isolation). What is set
    /// here is required: models are not loaded where the machine lacks a part of it. Functions run in a sandbox as far as this machine allows;
    /// with sandbox, in a whole one or not at all [default: sandbox, as far as this machine allows]
    #[arg(long, value_name = "LEVEL", env = "BERTH_ISOLATION")]
    pub(crate) isolation: Option<Isolation>,
    /// Least isolation of ONNX models: none (in the worker's process), process, sandbox; a deployment may ask for more
    /// (runtime.isolation) [default: none]
    #[arg(long, value_name = "LEVEL", env = "BERTH_ONNX_ISOLATION")]
    pub(crate) onnx_isolation: Option<Isolation>,
    /// Files and folders that models in a sandbox may read, beside their own and the system's
    #[arg(long, value_name = "PATH,…", env = "BERTH_SANDBOX_READ", value_delimiter = ',')]
    pub(crate) sandbox_read: Vec<PathBuf>,
    /// The most of the network that models in a sandbox reach: none (a loopback of their own), declared (also the hosts that their
    /// card or deployment declares), machine (everything, also what listens on loopback)
    #[arg(long, value_name = "WHICH", env = "BERTH_SANDBOX_NETWORK", default_value_t)]
    pub(crate) sandbox_network: SandboxNetwork,
    /// Models loaded at a time [default: half the cores, at most 4]
    #[arg(long, value_name = "N", env = "BERTH_PARALLEL_LOADS", value_parser = values::count)]
    pub(crate) parallel_loads: Option<NonZeroUsize>,
    /// Threads for requests [default: one per core]
    #[arg(long, value_name = "N", env = "BERTH_THREADS", value_parser = values::count)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Largest request body
    #[arg(long, value_name = "SIZE", env = "BERTH_MAX_BODY", default_value = "64MiB", value_parser = values::size)]
    pub(crate) max_body: ByteSize,
    /// Memory for all requests together: bodies, decompressed and decoded; at least four times --max-body
    /// [default: a tenth of the machine's]
    #[arg(long, value_name = "SIZE", env = "BERTH_REQUEST_MEMORY", value_parser = values::size)]
    pub(crate) request_memory: Option<ByteSize>,
    /// Connections to the inference port at once; never more than half of the files that the system lets this process open
    #[arg(long, value_name = "N", env = "BERTH_MAX_CONNECTIONS", default_value = "16384")]
    pub(crate) max_connections: NonZeroU32,
    /// Inferences at once, those that wait included; a quarter more is kept for callers and models that have few
    #[arg(long, value_name = "N", env = "BERTH_MAX_REQUESTS", default_value = "32768")]
    pub(crate) max_requests: NonZeroU32,
    /// Requests that wait for loads of models at once; a quarter more is kept for callers and models that have few
    #[arg(long, value_name = "N", env = "BERTH_MAX_PARKED", default_value = "8192")]
    pub(crate) max_parked: NonZeroU32,
    #[command(flatten)]
    pub(crate) principals: PrincipalArgs,
    /// Time for requests in flight to end, once the server is told to stop
    #[arg(long, value_name = "TIME", env = "BERTH_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
    /// Send traces to this OpenTelemetry collector (OTLP over gRPC)
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide_env_values = true)]
    pub(crate) otlp: Option<Url>,
    /// Log levels: for all (warn), for Berth (berth=info), for a part of it (berth_worker=debug)
    #[arg(long, value_name = "FILTER", env = "BERTH_LOG", default_value = "warn,berth=info")]
    pub(crate) log: String,
    /// Log format on standard error
    #[arg(long, value_enum, value_name = "FORM", env = "BERTH_LOG_FORMAT", default_value_t)]
    pub(crate) log_format: LogFormat,
    /// Serve metrics under ModelMesh's names as well, at the address of --http: prometheus, or
    /// prometheus:port=2112;scheme=https;fq_names=false;per_model_metrics=false; or send them to a StatsD server on this machine:
    /// statsd, or statsd:port=8126;fq_names=false;legacy=false (docs/from-modelmesh.md)
    #[arg(long, value_name = "SETTING", env = "BERTH_MODELMESH_METRICS")]
    pub(crate) modelmesh_metrics: Option<modelmesh_metrics::Settings>,
    #[command(flatten)]
    pub(crate) audit: AuditArgs,
    #[command(flatten)]
    pub(crate) protocol: ProtocolArgs,
    #[command(flatten)]
    pub(crate) payloads: PayloadArgs,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// Authentication of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Auth {
    /// Whoever reaches the ports may do everything
    #[default]
    Off,
    /// Requests need a token with the right role
    Tokens,
}

/// Log format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON otherwise
    #[default]
    Auto,
    /// For people
    Text,
    /// One object per line: timestamp, component, level, event, context
    Json,
}

/// Settings of every server, validated.
#[derive(Debug)]
pub(crate) struct ServerSettings {
    /// Folder for state and fetched artifacts.
    pub(crate) data: PathBuf,
    /// `--http`: the address for inference.
    pub(crate) http: SocketAddr,
    /// More addresses for inference.
    pub(crate) also_http: Vec<SocketAddr>,
    /// `--api`: the address of the control API.
    pub(crate) api: SocketAddr,
    /// TLS of both; `None`: they have none.
    pub(crate) tls: Option<ClientTls>,
    /// Authentication of clients.
    pub(crate) auth: Auth,
    /// Roles of principals that Berth did not make.
    pub(crate) access_file: Option<AccessFile>,
    /// True if clients and issuers may do without TLS.
    pub(crate) insecure: bool,
    /// Audit log: its file or standard output, its size, and the choice to refuse changes without it.
    pub(crate) audit: AuditSettings,
    /// Memory that models may take; `None`: a share of the machine's.
    pub(crate) memory: Option<ByteSize>,
    /// Disk that fetched artifacts may take.
    pub(crate) cache: ByteSize,
    /// The name of the node and its worker.
    pub(crate) name: WorkerId,
    /// `--labels`: the labels of the worker, by which deployments select it.
    pub(crate) labels: BTreeMap<String, String>,
    /// Label requirements by model type, for the controller.
    pub(crate) types: BTreeMap<String, Selector>,
    /// Other differences to the planner's defaults.
    pub(crate) planning: Planning,
    /// Model servers that the worker uses.
    pub(crate) runtimes: Vec<berth_worker::runtime::spi::Settings>,
    /// The ONNX Runtime library; `None`: the usual places.
    pub(crate) onnx_library: Option<PathBuf>,
    /// NVIDIA driver library; `None`: where the system has it.
    pub(crate) nvml_library: Option<PathBuf>,
    /// Preparation of code and environments of model cards.
    pub(crate) cards: berth_worker::prepare::Settings,
    /// The isolation of models' processes.
    pub(crate) isolation: IsolationSettings,
    /// Models that are loaded at once; `None`: half the cores, at most 4.
    pub(crate) parallel_loads: Option<usize>,
    /// Threads of the data path; `None`: one per core.
    pub(crate) threads: Option<usize>,
    /// The largest request body, in bytes.
    pub(crate) max_body: usize,
    /// Memory that all requests may take together, in bytes.
    pub(crate) request_memory: usize,
    /// Connections to the inference port at once, as far as there are files.
    pub(crate) max_connections: usize,
    /// Inferences at once.
    pub(crate) max_requests: u32,
    /// Requests that wait for loads at once.
    pub(crate) max_parked: u32,
    /// Further parts of the inference port.
    pub(crate) protocol: ProtocolArgs,
    /// Payload processors.
    pub(crate) payloads: berth_mesh::payload::Settings,
    /// Metrics under ModelMesh's names; `None`: there are none.
    pub(crate) modelmesh_metrics: Option<modelmesh_metrics::Settings>,
    /// Limits of principals that have none of their own.
    pub(crate) principal_limits: UseLimits,
    /// Time for requests in flight after the request to stop.
    pub(crate) drain_timeout: Duration,
    /// Credentials of object stores from the environment.
    pub(crate) credentials: BTreeMap<String, String>,
    /// Storages that models name.
    pub(crate) storages: berth_worker::artifacts::StorageSettings,
    /// Logs and traces.
    pub(crate) telemetry: TelemetrySettings,
}

impl ServerSettings {
    /// Warning for ports that others can reach; `None`: there is nothing to say.
    pub(crate) fn warning(&self) -> Option<String> {
        let listens: Vec<_> = self.inference_addresses().chain([("--api", self.api)]).collect();
        tls::warning(&listens, self.tls.as_ref(), self.auth == Auth::Tokens)
    }

    /// Addresses for inference, with the flags that name them.
    pub(crate) fn inference_addresses(&self) -> impl Iterator<Item = tls::Listens> {
        inference_addresses(self.http, &self.also_http)
    }

    /// Settings of the planner.
    pub(crate) fn policy(&self) -> Policy {
        self.planning.apply(Policy { types: self.types.clone(), ..Policy::default() })
    }

    /// Tokens, and if one is needed.
    pub(crate) fn access(&self) -> Access {
        match self.auth {
            Auth::Off => Access::open(),
            Auth::Tokens => Access::required(),
        }
    }

    /// File for the first admin's token, where tokens are needed.
    pub(crate) fn admin_token(&self) -> Option<PathBuf> {
        (self.auth == Auth::Tokens).then(|| self.data.join("admin.token"))
    }

    /// Settings that all controllers must share, as `--model-type` takes them, in a fixed order.
    pub(crate) fn rules(&self) -> String {
        model_types::as_text(&self.types)
    }
}

/// Settings of logs and traces.
#[derive(Debug)]
pub(crate) struct TelemetrySettings {
    pub(crate) filter: String,
    pub(crate) json: bool,
    pub(crate) otlp: Option<Url>,
    pub(crate) worker: WorkerId,
}

impl ServerSettings {
    /// Checks what one setting alone cannot know, and reads the rest of the environment. `name` is who it is where
    /// nobody says.
    pub(crate) fn new(args: ServerArgs, name: WorkerId) -> Result<Self, Failure> {
        let listens: Vec<_> = inference_addresses(args.http, &args.also_http).chain([("--api", args.api)]).collect();
        let tls = args.tls.settings(&listens, args.insecure)?;
        tls::authenticated(&listens, tls.as_ref(), args.auth == Auth::Tokens, args.insecure)?;
        check_distinct(&listens)?;
        if let Some(metrics) = &args.modelmesh_metrics {
            metrics.check_exposed(args.http.ip(), args.insecure)?;
        }
        let access_file = access_file(args.access_file, args.auth, args.insecure)?;
        let json = match args.log_format {
            LogFormat::Auto => !std::io::stderr().is_terminal(),
            LogFormat::Text => false,
            LogFormat::Json => true,
        };
        let named = args.onnxruntime.or_else(|| std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from));
        let name = args.name.unwrap_or(name);
        let runtimes =
            args.runtime.iter().map(|path| runtime::read(path, &args.data)).collect::<Result<Vec<_>, _>>()?;
        for (at, one) in runtimes.iter().enumerate() {
            if runtimes[..at].iter().any(|other| other.name == one.name) {
                return Err(Failure::Usage(format!(
                    "two files of --runtime declare {:?}: give them two names",
                    one.name
                )));
            }
        }
        Ok(Self {
            audit: args.audit.settings(&name, &args.data)?,
            runtimes,
            data: args.data,
            http: args.http,
            also_http: args.also_http,
            api: args.api,
            tls,
            auth: args.auth,
            access_file,
            insecure: args.insecure,
            memory: args.memory,
            cache: args.cache,
            labels: unique(args.labels)?,
            types: model_types::by_type(args.model_type)?,
            planning: Planning::default(),
            onnx_library: named.filter(|path| !path.as_os_str().is_empty()),
            nvml_library: args.nvml_library,
            cards: berth_worker::prepare::Settings {
                uv: args.uv,
                package_index: args.package_index.map(String::from),
                system_packages: args.system_packages,
                local_repositories: args.local_repositories,
                http_repositories: args.http_repositories,
                environment: std::env::vars_os().collect(),
            },
            isolation: IsolationSettings {
                level: args.isolation,
                onnx: args.onnx_isolation,
                readable: args.sandbox_read,
                network: args.sandbox_network,
                own_ports: listens.iter().map(|(_, address)| address.port()).collect(),
                ..isolation()
            },
            parallel_loads: args.parallel_loads.map(NonZeroUsize::get),
            threads: args.threads.map(NonZeroUsize::get),
            max_body: usize::try_from(args.max_body.0).unwrap_or(usize::MAX),
            request_memory: request_memory::bytes(args.request_memory, args.max_body)?,
            max_connections: args.max_connections.get() as usize,
            max_requests: args.max_requests.get(),
            max_parked: args.max_parked.get(),
            protocol: args.protocol,
            payloads: args.payloads.settings(),
            modelmesh_metrics: args.modelmesh_metrics,
            principal_limits: args.principals.limits()?,
            drain_timeout: args.drain_timeout,
            credentials: store_credentials(),
            storages: args.storages.settings(),
            telemetry: TelemetrySettings { filter: args.log, json, otlp: args.otlp, worker: name.clone() },
            name,
        })
    }
}

fn inference_addresses(http: SocketAddr, also: &[SocketAddr]) -> impl Iterator<Item = tls::Listens> {
    [("--http", http)].into_iter().chain(also.iter().map(|address| ("--also-http", *address)))
}

/// Reads the access file, which says nothing where nobody is asked.
fn access_file(path: Option<PathBuf>, auth: Auth, insecure: bool) -> Result<Option<AccessFile>, Failure> {
    match (path, auth) {
        (None, _) => Ok(None),
        (Some(_), Auth::Off) => Err(Failure::Usage(
            "--access-file gives roles, and nobody is asked for one: give --auth tokens, too".to_owned(),
        )),
        (Some(path), Auth::Tokens) => {
            AccessFile::read(&path, insecure).map(Some).map_err(|error| Failure::Invalid(error.to_string()))
        }
    }
}

/// Sandboxes are made by this very program, started anew.
pub(crate) fn isolation() -> IsolationSettings {
    IsolationSettings { launcher: Some(PathBuf::from(LAUNCHER)), ..IsolationSettings::default() }
}

/// This program, also where its file was replaced meanwhile.
pub(crate) const LAUNCHER: &str = "/proc/self/exe";

/// Checks that no two of these addresses are equal.
pub(crate) fn check_distinct(addresses: &[(&str, SocketAddr)]) -> Result<(), Failure> {
    for (at, (flag, address)) in addresses.iter().enumerate() {
        let taken = addresses[..at].iter().find(|(_, other)| other == address && address.port() != 0);
        if let Some((other, _)) = taken {
            return Err(Failure::Usage(format!("{other} and {flag} are both {address}: give them two ports")));
        }
    }
    Ok(())
}

/// Labels by key; one key with two values is a mistake.
fn unique(labels: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Failure> {
    let mut by_key = BTreeMap::new();
    for (key, value) in labels {
        let text = value.clone();
        match by_key.insert(key.clone(), value) {
            Some(other) if other != text => {
                return Err(Failure::Usage(format!("the label {key} is both {other:?} and {text:?}: give it once")));
            }
            _ => {}
        }
    }
    Ok(by_key)
}

/// Credentials of object stores, by the variable names of their own tools.
pub(crate) fn store_credentials() -> BTreeMap<String, String> {
    let text =
        |(name, value): (std::ffi::OsString, std::ffi::OsString)| name.into_string().ok().zip(value.into_string().ok());
    std::env::vars_os().filter_map(text).filter(|(name, _)| berth_worker::Config::is_credential(name)).collect()
}
