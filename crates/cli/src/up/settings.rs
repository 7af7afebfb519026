//! What `berth up` is told, by flags and by the environment: parsed and checked once, typed from here on.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use berth_spec::{ByteSize, WorkerId};
use clap::{Args, ValueEnum};
use url::Url;

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth up ./models                          serve what the folder declares, and follow its changes
  berth up                                   serve what is declared through the API (`berth apply`)
  berth up ./models --memory 4GiB            models together take at most this much
  berth up --data /var/lib/berth --log-format json
  curl http://127.0.0.1:8080/v2/models/iris  where models answer; the control API is on 8081

SIGTERM or Ctrl-C refuses new requests, finishes those in flight, and exits with 0; a second one exits at once.
It listens on loopback unless told otherwise; there is no TLS yet, so other addresses need --insecure.")]
pub(crate) struct UpArgs {
    /// A folder of manifests to serve and to follow
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Where state and fetched artifacts are kept
    #[arg(long, value_name = "DIR", env = "BERTH_DATA", default_value = "./.berth")]
    data: PathBuf,
    /// Where models answer: REST and gRPC of the Open Inference Protocol
    #[arg(long, value_name = "ADDR", env = "BERTH_HTTP_ADDR", default_value = "127.0.0.1:8080", value_parser = socket)]
    http: SocketAddr,
    /// Where the control API answers
    #[arg(long, value_name = "ADDR", env = "BERTH_API_ADDR", default_value = "127.0.0.1:8081", value_parser = socket)]
    api: SocketAddr,
    /// Listen on addresses that others can reach, without TLS or tokens
    #[arg(long)]
    insecure: bool,
    /// Memory that models may take together [default: 80 % of what the machine or control group allows]
    #[arg(long, value_name = "SIZE", env = "BERTH_MEMORY", value_parser = size)]
    memory: Option<ByteSize>,
    /// Disk that fetched artifacts may take
    #[arg(long, value_name = "SIZE", env = "BERTH_CACHE", default_value = "20GiB", value_parser = size)]
    cache: ByteSize,
    /// The name of this worker
    #[arg(long, value_name = "NAME", env = "BERTH_NAME", default_value = "local", value_parser = worker_id)]
    name: WorkerId,
    /// A label of this worker, for selectors; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// The ONNX Runtime library [default: ORT_DYLIB_PATH, then the usual places]
    #[arg(long, value_name = "PATH", env = "BERTH_ONNXRUNTIME")]
    onnxruntime: Option<PathBuf>,
    /// Models that are loaded at once [default: half the cores, at most 4]
    #[arg(long, value_name = "N", env = "BERTH_PARALLEL_LOADS")]
    parallel_loads: Option<NonZeroUsize>,
    /// Threads for requests [default: one per core]
    #[arg(long, value_name = "N", env = "BERTH_THREADS")]
    threads: Option<NonZeroUsize>,
    /// The largest request body
    #[arg(long, value_name = "SIZE", env = "BERTH_MAX_BODY", default_value = "64MiB", value_parser = size)]
    max_body: ByteSize,
    /// How long requests in flight have once it is told to stop
    #[arg(long, value_name = "TIME", env = "BERTH_DRAIN_TIMEOUT", default_value = "30s", value_parser = duration)]
    drain_timeout: Duration,
    /// Send traces to this OpenTelemetry collector (OTLP over gRPC)
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide_env_values = true)]
    otlp: Option<Url>,
    /// What is logged: levels for all (warn), for Berth (berth=info), for a part of it (berth_worker=debug)
    #[arg(long, value_name = "FILTER", env = "BERTH_LOG", default_value = "warn,berth=info")]
    log: String,
    /// How logs are written to standard error
    #[arg(long, value_enum, value_name = "FORM", env = "BERTH_LOG_FORMAT", default_value_t)]
    log_format: LogFormat,
}

/// How logs are written.
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

/// The settings of a server.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(super) folder: Option<PathBuf>,
    pub(super) data: PathBuf,
    pub(super) http: SocketAddr,
    pub(super) api: SocketAddr,
    pub(super) memory: Option<ByteSize>,
    pub(super) cache: ByteSize,
    pub(super) name: WorkerId,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) onnx_library: Option<PathBuf>,
    pub(super) parallel_loads: Option<usize>,
    pub(super) threads: Option<usize>,
    pub(super) max_body: usize,
    pub(super) drain_timeout: Duration,
    pub(super) credentials: BTreeMap<String, String>,
    pub(super) telemetry: TelemetrySettings,
}

/// What is told to the outside.
#[derive(Debug)]
pub(crate) struct TelemetrySettings {
    pub(crate) filter: String,
    pub(crate) json: bool,
    pub(crate) otlp: Option<Url>,
    pub(crate) worker: WorkerId,
}

impl Settings {
    /// Checks what one flag alone cannot know, and reads the rest of the environment.
    pub(super) fn new(args: UpArgs) -> Result<Self, Failure> {
        for (flag, address) in [("--http", args.http), ("--api", args.api)] {
            if !address.ip().is_loopback() && !args.insecure {
                return Err(Failure::Usage(format!(
                    "{flag} {address} can be reached by others, and there is no TLS yet: \
                     listen on 127.0.0.1 behind a proxy that has it, or say --insecure"
                )));
            }
        }
        if args.http == args.api && args.http.port() != 0 {
            return Err(Failure::Usage(format!("--http and --api are both {}: give them two ports", args.http)));
        }
        let json = match args.log_format {
            LogFormat::Auto => !std::io::stderr().is_terminal(),
            LogFormat::Text => false,
            LogFormat::Json => true,
        };
        let named = args.onnxruntime.or_else(|| std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from));
        Ok(Self {
            folder: args.folder,
            data: args.data,
            http: args.http,
            api: args.api,
            memory: args.memory,
            cache: args.cache,
            labels: args.labels.into_iter().collect(),
            onnx_library: named.filter(|path| !path.as_os_str().is_empty()),
            parallel_loads: args.parallel_loads.map(NonZeroUsize::get),
            threads: args.threads.map(NonZeroUsize::get),
            max_body: usize::try_from(args.max_body.0).unwrap_or(usize::MAX),
            drain_timeout: args.drain_timeout,
            credentials: credentials(),
            telemetry: TelemetrySettings { filter: args.log, json, otlp: args.otlp, worker: args.name.clone() },
            name: args.name,
        })
    }
}

/// What object stores find in the environment by the names of their own tools.
fn credentials() -> BTreeMap<String, String> {
    let text =
        |(name, value): (std::ffi::OsString, std::ffi::OsString)| name.into_string().ok().zip(value.into_string().ok());
    std::env::vars_os().filter_map(text).filter(|(name, _)| berth_worker::Config::is_credential(name)).collect()
}

fn size(text: &str) -> Result<ByteSize, String> {
    match text.parse() {
        Ok(ByteSize::ZERO) => Err("give at least 1 byte".to_owned()),
        Ok(size) => Ok(size),
        Err(_) => Err("write for example 512MiB, 1.5GiB or 200MB".to_owned()),
    }
}

/// A length of time on the command line: `30s`, `500ms`, `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    berth_spec::manifest::parse_duration(text)
}

fn worker_id(text: &str) -> Result<WorkerId, String> {
    WorkerId::new(text).map_err(|e| e.to_string())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, `:8080`; with or without `http://`.
fn socket(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').unwrap_or((bare, ""));
    match (host, port.parse()) {
        ("" | "localhost", Ok(port)) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ => bare.parse().map_err(|_| "write IP:PORT, for example 127.0.0.1:8080".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            (":8080", "127.0.0.1:8080"),
            ("localhost:1", "127.0.0.1:1"),
            ("[::1]:2", "[::1]:2"),
            ("http://0.0.0.0:3/", "0.0.0.0:3"),
        ] {
            assert_eq!(socket(text).map(|address| address.to_string()).as_deref(), Ok(address));
        }
        for bad in ["", "8080", "example.org:80", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(socket(bad).is_err(), "{bad}");
        }
    }
}
