//! ModelMesh's environment variables, and their meaning here.
//!
//! ```text
//! variables ─▶ understood: settings of a node, of one runtime, of the probes
//!           └▶ the others that are ModelMesh's: one warning each, with Berth's own setting where there is one
//! ```

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use berth_mesh::payload::{self, Processor};
use berth_modelmesh::Registration;
use berth_worker::runtime::spi::{self, InFlight, Reserve, address::Address};
use http::HeaderName;

use super::{
    etcd::KvStore,
    tls::{self, Tls},
    type_constraints::{self, TypeConstraints},
};
use crate::modelmesh_metrics::{self, Info};

/// The port for clients where nobody says.
pub(super) const CLIENTS: u16 = 8033;
/// The port of the runtime where nobody says, and there is no socket.
const RUNTIME: u16 = 8085;
/// The socket of the runtime where nobody says.
const SOCKET: &str = "/tmp/mmesh/grpc.sock";
/// The prefix of keys in the store.
const PREFIX: &str = "tas-runtime";
/// The port that tells when this instance has stopped.
const PRESTOP: u16 = 8090;
/// The time to stop: what Kubernetes gives a pod by default.
const SHUTDOWN: Duration = Duration::from_secs(30);
/// The part of the time to stop that is left for what follows the move of models: requests in flight, and the store.
const AFTER_MOVE: Duration = Duration::from_secs(5);
/// The least rate that makes more copies, in requests per minute: below it each request would.
const LEAST_RATE: u64 = 10;
/// The most payloads that may wait: the queue's own bound is in bytes.
const MOST_PAYLOADS: usize = 1 << 20;
/// The largest message: ModelMesh's default.
const MESSAGE: u64 = 16 << 20;

/// Variables of ModelMesh and of `berth node` that mean nothing here, with what to do instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("MM_SVC_GRPC_MAX_HEADERS_SIZE", "headers are bounded by 64 KiB"),
    ("MM_SVC_GRPC_MAX_CONNECTION_AGE_SECS", "connections are not ended by age; a node that leaves ends them"),
    ("MM_SVC_GRPC_MAX_CONNECTION_AGE_GRACE_SECS", "connections are not ended by age"),
    ("MM_CONC_SCALEUP_BANDWIDTH_PCT", "set spec.scaling.targetConcurrency of deployments"),
    ("MM_SEND_DEST_ID", "answers do not say who gave them; traces do: set OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("MM_MULTI_PARALLELISM", "calls for several models run all at once"),
    ("MM_PAYLOAD_PROCESSORS_THREADS", "up to eight payloads are posted to each service at once"),
    ("MM_INTERNAL_TRUST_CERTS", "nodes trust the cluster's own CA, which they find in the store"),
    ("MM_INTRACLUSTER_CLIENTAUTH", "between nodes both sides always show certificates"),
    ("MM_ENABLE_SSL", "between nodes there is always TLS"),
    ("MM_FAILFAST_UPGRADE_ENABLED", "a revision that fails leaves the old one serving"),
    ("BOOTSTRAP_CLEARANCE_PERIOD_MS", "a revision that fails leaves the old one serving"),
    ("MM_TRUST_CERTS", "nodes trust the cluster's own CA, which they find in the store"),
    ("MM_METRICS_STATSD_PORT", "use MM_METRICS=statsd:port=PORT"),
    ("MM_METRICS_PROMETHEUS_PORT", "use MM_METRICS=prometheus:port=PORT"),
    ("CUSTOM_JVM_ARGS", "there is no Java virtual machine, and no system properties such as tas.janitor_freq_secs"),
    ("HEAP_SIZE_MB", "there is no heap to size"),
    ("BERTH_CONFIG", "set each setting by its own variable"),
    ("BERTH_HTTP_ADDR", "set MM_SVC_GRPC_PORT"),
];

/// The settings of an instance.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) service: String,
    pub(super) store: KvStore,
    pub(super) prefix: String,
    pub(super) clients: u16,
    /// TLS of the port for clients.
    pub(super) tls: Option<Tls>,
    pub(super) prestop: u16,
    /// The time for models to move before it stops.
    pub(super) drain: Duration,
    pub(super) max_message: u64,
    pub(super) labels: Vec<(String, String)>,
    pub(super) types: TypeConstraints,
    /// The file that they are in, as it was read.
    pub(super) types_file: Option<(PathBuf, String)>,
    /// Requests per minute that one copy should have at most.
    pub(super) target_rate: Option<f32>,
    /// The time after which a failed load is tried again.
    pub(super) failure_expiry: Option<Duration>,
    pub(super) management: berth_modelmesh::Options,
    pub(super) runtime: spi::Settings,
    /// The data plane's configuration, in JSON.
    pub(super) data_plane: Option<String>,
    pub(super) data_plane_file: Option<PathBuf>,
    pub(super) payloads: payload::Settings,
    /// Metrics under ModelMesh's names.
    pub(super) metrics: Option<modelmesh_metrics::Settings>,
    /// Models that it registers before it is ready.
    pub(super) registrations: Vec<Registration>,
    pub(super) warnings: Vec<String>,
}

/// Variables by name.
pub(super) type Variables = BTreeMap<String, String>;

/// Reads them. `service` is from the command line.
pub(super) fn read(variables: &Variables, service: Option<&str>) -> Result<Environment, String> {
    let text = |name: &str| variables.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let number = |name: &str, otherwise: u64| match text(name) {
        None => Ok(otherwise),
        Some(digits) => digits.trim().parse().map_err(|_| format!("{name} is {digits:?}: it must be a whole number")),
    };
    let port = |name: &str, otherwise: u16| {
        let port = number(name, otherwise.into())?;
        u16::try_from(port).map_err(|_| format!("{name} is {port}: a port has at most 65535"))
    };
    let named = service.or(text("MM_SERVICE_NAME")).or(text("TAS_SERVICE_NAME"));
    let service = named.ok_or("no service is named: give -n NAME or MM_SERVICE_NAME")?;
    let store = text("KV_STORE").ok_or("no store is named: set KV_STORE to etcd:http://HOST:2379")?;
    let shutdown = Duration::from_millis(number("SHUTDOWN_TIMEOUT_MS", SHUTDOWN.as_millis() as u64)?);
    let document = |name: &str, file: &str| match (text(name), text(file)) {
        (Some(_), Some(_)) => Err(format!("{name} and {file} are both set: leave one of them out")),
        (Some(json), None) => Ok(Some(json.to_owned())),
        (None, Some(path)) => fs_err::read_to_string(path).map(Some).map_err(|error| format!("{file}: {error}")),
        (None, None) => Ok(None),
    };
    let data_plane = document("MM_DATAPLANE_CONFIG", "MM_DATAPLANE_CONFIG_PATH")?;
    let read_types = document("MM_TYPE_CONSTRAINTS", "MM_TYPE_CONSTRAINTS_PATH")?;
    let types = read_types.as_deref().map_or_else(|| Ok(TypeConstraints::default()), TypeConstraints::parse);
    let read_only = text("KV_READ_ONLY").is_some_and(|said| said.eq_ignore_ascii_case("true"));
    let rate = text("MM_SCALEUP_RPM_THRESHOLD").map(|_| number("MM_SCALEUP_RPM_THRESHOLD", 0)).transpose()?;
    let expiry =
        text("MM_LOAD_FAILURE_EXPIRY_TIME_MS").map(|_| number("MM_LOAD_FAILURE_EXPIRY_TIME_MS", 0)).transpose()?;
    let (mut processors, unread) = processors(text("MM_PAYLOAD_PROCESSORS").unwrap_or_default());
    let mut warnings = warnings(variables);
    warnings.extend(unread);
    let log_headers = log_headers(&text, &mut processors, &mut warnings)?;
    let metrics = metrics(&text)?;
    let mut registrations = registrations(&text)?;
    if read_only && !registrations.is_empty() {
        warnings.push("MM_AUTO_REGISTER_MODELS is not done: KV_READ_ONLY is set".to_owned());
        registrations.clear();
    }
    let max_message = number("MM_SVC_GRPC_MAX_MSG_SIZE", MESSAGE)?;
    let waiting = number("MM_PAYLOAD_PROCESSORS_CAPACITY", payload::Settings::default().waiting as u64)?;
    let waiting = usize::try_from(waiting).unwrap_or(usize::MAX).clamp(1, MOST_PAYLOADS);
    let places = [("zone", "MM_ZONE"), ("location", "MM_LOCATION")];
    let places = places.into_iter().filter_map(|(key, name)| Some((key.to_owned(), text(name)?.to_owned())));
    Ok(Environment {
        service: service.to_owned(),
        store: KvStore::parse(store)?,
        prefix: text("MM_KVSTORE_PREFIX").unwrap_or(PREFIX).trim_matches('/').to_owned(),
        clients: port("MM_SVC_GRPC_PORT", port("TAS_SVC_GRPC_PORT", CLIENTS)?)?,
        tls: tls::of(&text)?,
        prestop: port("MM_PRESTOP_WAIT_PORT", PRESTOP)?,
        drain: shutdown.saturating_sub(AFTER_MOVE).max(Duration::from_secs(1)),
        max_message,
        labels: places.chain(labels(text("MM_LABELS").unwrap_or_default())).collect(),
        types: types.map_err(|error| format!("MM_TYPE_CONSTRAINTS: {error}"))?,
        types_file: text("MM_TYPE_CONSTRAINTS_PATH").map(PathBuf::from).zip(read_types),
        #[expect(clippy::cast_precision_loss, reason = "requests per minute are few")]
        target_rate: rate.map(|rate| rate.max(LEAST_RATE) as f32),
        failure_expiry: expiry.map(Duration::from_millis),
        management: berth_modelmesh::Options {
            default_owner: text("MM_DEFAULT_VMODEL_OWNER").unwrap_or_default().to_owned(),
            read_only,
        },
        runtime: spi::Settings {
            // What clients may send is repeated if the runtime has lost the model.
            kept: usize::try_from(max_message).unwrap_or(usize::MAX),
            ..runtime(&text, &port)?
        },
        data_plane,
        data_plane_file: text("MM_DATAPLANE_CONFIG_PATH").map(PathBuf::from),
        payloads: payload::Settings { processors, waiting, log_headers, ..payload::Settings::default() },
        metrics,
        registrations,
        warnings,
    })
}

/// The payload processors, and what is said about others. ModelMesh starts without those that it does not know.
fn processors(list: &str) -> (Vec<Processor>, Vec<String>) {
    let (mut known, mut unread) = (Vec::new(), Vec::new());
    for read in list.split_whitespace().map(str::parse) {
        match read {
            Ok(processor) => known.push(processor),
            Err(error) => unread.push(format!("MM_PAYLOAD_PROCESSORS: {error}")),
        }
    }
    (known, unread)
}

/// The headers that lines of the log have, with their names there. `MM_LOG_EACH_INVOKE` adds these lines: a processor that logs all calls.
fn log_headers<'v>(
    text: &impl Fn(&str) -> Option<&'v str>,
    processors: &mut Vec<Processor>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(HeaderName, String)>, String> {
    let logger = |uri: &str| uri.parse::<Processor>().map_err(|error| error.to_string());
    let all = logger("logger://*")?;
    let each = text("MM_LOG_EACH_INVOKE").is_some_and(|said| said.eq_ignore_ascii_case("true"));
    if each && !processors.contains(&all) {
        processors.push(all);
    }
    let Some(json) = text("MM_LOG_REQUEST_HEADERS") else { return Ok(Vec::new()) };
    let wrong = |why: String| format!("MM_LOG_REQUEST_HEADERS: {why}: write {{\"HEADER\": \"NAME IN THE LOG\"}}");
    let named: BTreeMap<String, String> = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
    if !processors.iter().any(|processor| processor.to_string() == "logger") {
        let without = "no line of the log is of one request without MM_LOG_EACH_INVOKE=true";
        warnings.push(format!("MM_LOG_REQUEST_HEADERS has no effect: {without}"));
    }
    let header = |(header, name): (String, String)| match header.parse::<HeaderName>() {
        Ok(parsed) => Ok((parsed, name)),
        Err(_) => Err(wrong(format!("{header:?} is no name of a header"))),
    };
    named.into_iter().map(header).collect()
}

/// The models to be registered: of the file, then of the variable. Each has two names, as in ModelMesh.
fn registrations<'v>(text: &impl Fn(&str) -> Option<&'v str>) -> Result<Vec<Registration>, String> {
    let [named, file] = [
        ["MM_AUTO_REGISTER_MODELS", "MM_AUTO_REGISTER_MODEL"],
        ["MM_AUTO_REGISTER_MODEL_PATH", "MM_AUTO_REGISTER_MODELS_PATH"],
    ]
    .map(|names| names.into_iter().find_map(|name| text(name).map(|said| (name, said))));
    let mut all = Vec::new();
    if let Some((name, path)) = file {
        let json = fs_err::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        all.extend(Registration::parse(&json).map_err(|error| format!("{name}: {path}: {error}"))?);
    }
    if let Some((name, json)) = named {
        all.extend(Registration::parse(json).map_err(|error| format!("{name}: {error}"))?);
    }
    Ok(all)
}

/// Metrics under ModelMesh's names.
fn metrics<'v>(text: &impl Fn(&str) -> Option<&'v str>) -> Result<Option<modelmesh_metrics::Settings>, String> {
    let enabled = |said: &&str| !said.split(':').next().unwrap_or_default().eq_ignore_ascii_case("disabled");
    let Some(said) = text("MM_METRICS").filter(enabled) else { return Ok(None) };
    let settings: modelmesh_metrics::Settings = said.parse().map_err(|error| format!("MM_METRICS: {error}"))?;
    let variable = |name: &str| text(name).map(str::to_owned);
    let info = text("MM_INFO_METRICS").map(|said| Info::parse(said, variable)).transpose();
    let info = info.map_err(|error| format!("MM_INFO_METRICS: {error}"))?;
    // ModelMesh's own port for metrics asks nobody.
    Ok(Some(settings.of_instance(info)))
}

/// The labels of the instance: each is there, and has no value of its own.
fn labels(list: &str) -> impl Iterator<Item = (String, String)> {
    list.split(',').map(str::trim).filter(|label| !label.is_empty()).map(type_constraints::label)
}

fn runtime<'v>(
    text: &impl Fn(&str) -> Option<&'v str>,
    port: &impl Fn(&str, u16) -> Result<u16, String>,
) -> Result<spi::Settings, String> {
    let at = |path: &str| format!("unix:{path}").parse::<Address>().map_err(|error| error.to_string());
    let address = |socket: &str, number: &str| match (text(socket), text(number)) {
        (Some(path), _) => at(path).map(Some),
        (None, Some(_)) => Ok(Some(Address::port(port(number, RUNTIME)?))),
        (None, None) => Ok(None),
    };
    // Where nobody says, the runtime may come up at either place after this instance.
    let (control, alternative) = match address("INTERNAL_GRPC_SOCKET_PATH", "INTERNAL_GRPC_PORT")? {
        Some(address) => (address, None),
        None => (at(SOCKET)?, Some(Address::port(RUNTIME))),
    };
    let in_flight = match text("MM_MAX_INFLIGHT_PER_MODEL_COPY").map(|said| (said, said.trim().parse::<i64>())) {
        None | Some((_, Ok(0))) => InFlight::Default,
        Some((_, Ok(most))) => usize::try_from(most).map_or(InFlight::Unlimited, InFlight::Most),
        Some((said, Err(_))) => {
            return Err(format!("MM_MAX_INFLIGHT_PER_MODEL_COPY is {said:?}: it must be a whole number"));
        }
    };
    Ok(spi::Settings {
        inference: address("INTERNAL_SERVING_GRPC_SOCKET_PATH", "INTERNAL_SERVING_GRPC_PORT")?,
        alternative,
        unload_reserve: Reserve::ByLoads,
        wraps_unavailable: true,
        in_flight,
        ..spi::Settings::new("runtime", control)
    })
}

fn warnings(variables: &Variables) -> Vec<String> {
    const READ: [&str; 36] = [
        "MM_LOG_EACH_INVOKE",
        "MM_LOG_REQUEST_HEADERS",
        "MM_AUTO_REGISTER_MODELS",
        "MM_AUTO_REGISTER_MODEL",
        "MM_AUTO_REGISTER_MODEL_PATH",
        "MM_AUTO_REGISTER_MODELS_PATH",
        "MM_INFO_METRICS",
        "MM_METRICS",
        "MM_PAYLOAD_PROCESSORS",
        "MM_PAYLOAD_PROCESSORS_CAPACITY",
        "MM_SERVICE_NAME",
        "MM_KVSTORE_PREFIX",
        "MM_SVC_GRPC_PORT",
        "MM_SVC_GRPC_MAX_MSG_SIZE",
        "MM_PRESTOP_WAIT_PORT",
        "MM_PROBE_PORT",
        "MM_LABELS",
        "MM_DATAPLANE_CONFIG",
        "MM_DATAPLANE_CONFIG_PATH",
        "MM_DEFAULT_VMODEL_OWNER",
        "MM_SCALEUP_RPM_THRESHOLD",
        "MM_MAX_INFLIGHT_PER_MODEL_COPY",
        "MM_LOAD_FAILURE_EXPIRY_TIME_MS",
        "MM_TYPE_CONSTRAINTS",
        "MM_TYPE_CONSTRAINTS_PATH",
        "MM_ZONE",
        "MM_LOCATION",
        "MM_INSTANCE_ID",
        "MM_TLS_KEY_CERT_PATH",
        "MM_TLS_PRIVATE_KEY_PATH",
        "MM_TLS_PRIVATE_KEY_PASSPHRASE",
        "MM_TLS_CLIENT_AUTH",
        "MM_TLS_TRUST_CERT_PATH",
        "MM_SVC_GRPC_CA_CERT_PATH",
        "MM_SVC_GRPC_PRIVATE_KEY_PATH",
        "MM_SVC_GRPC_PRIVATE_KEY_PASSPHRASE",
    ];
    let instead = |name: &str| ELSEWHERE.iter().find(|(known, _)| *known == name).map(|(_, instead)| *instead);
    let one = |(name, value): (&String, &String)| match instead(name) {
        _ if value.is_empty() || READ.contains(&name.as_str()) => None,
        Some(instead) => Some(format!("{name} is not read: {instead}")),
        None if name.starts_with("MM_") => Some(format!("{name} is not read: Berth has no such setting")),
        None => None,
    };
    variables.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modelmesh_metrics::Way;

    fn of(pairs: &[(&str, &str)]) -> Result<Environment, String> {
        let variables = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        read(&variables, Some("svc"))
    }

    const STORE: (&str, &str) = ("KV_STORE", "etcd:http://localhost:2379");

    #[test]
    fn an_instance_as_its_tests_start_it() {
        let read = of(&[
            STORE,
            ("MM_SVC_GRPC_PORT", "9004"),
            ("INTERNAL_GRPC_PORT", "9006"),
            ("INTERNAL_SERVING_GRPC_SOCKET_PATH", "/tmp/serve.sock"),
            ("SHUTDOWN_TIMEOUT_MS", "90000"),
            ("MM_LABELS", "mt:onnx, gpu"),
        ])
        .expect("understood");
        assert_eq!((read.clients, read.prestop, read.prefix.as_str()), (9004, 8090, "tas-runtime"));
        assert_eq!(read.runtime.address.to_string(), "9006");
        assert_eq!(read.runtime.inference.map(|at| at.to_string()).as_deref(), Some("unix:/tmp/serve.sock"));
        let label = |key: &str| (key.to_owned(), "true".to_owned());
        assert_eq!((read.drain.as_secs(), read.labels), (85, vec![label("mt:onnx"), label("gpu")]));
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
    }

    #[test]
    fn an_instance_by_old_names() {
        let old = [STORE, ("TAS_SERVICE_NAME", "old"), ("TAS_SVC_GRPC_PORT", "9004")];
        let old = old.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let read = read(&old.into(), None).expect("understood");
        assert_eq!((read.service.as_str(), read.clients), ("old", 9004));
    }

    #[test]
    fn payload_processors_that_are_not_known_are_left_out_and_named() {
        let list = "logger://*?m#predict http://sink:8080/x kafka://k";
        let read = of(&[STORE, ("MM_PAYLOAD_PROCESSORS", list), ("MM_PAYLOAD_PROCESSORS_CAPACITY", "5")]);
        let read = read.expect("understood");
        let names: Vec<_> = read.payloads.processors.iter().map(ToString::to_string).collect();
        assert_eq!((names, read.payloads.waiting), (vec!["logger".to_owned(), "http://sink:8080".to_owned()], 5));
        assert!(matches!(&read.warnings[..], [one] if one.contains("kafka://k")), "{:?}", read.warnings);
    }

    #[test]
    fn calls_are_logged_with_the_headers_that_were_asked_for() {
        let headers = ("MM_LOG_REQUEST_HEADERS", r#"{"Transaction_id": "txid", "user-bin": "user"}"#);
        let read = of(&[STORE, ("MM_LOG_EACH_INVOKE", "true"), headers]).expect("understood");
        assert_eq!((read.payloads.processors.len(), read.warnings.len()), (1, 0));
        let names: Vec<_> = read.payloads.log_headers.iter().map(|(header, name)| (header.as_str(), &**name)).collect();
        assert_eq!(names, [("transaction_id", "txid"), ("user-bin", "user")]);
        let logs = ("MM_PAYLOAD_PROCESSORS", "logger://*");
        let read = of(&[STORE, ("MM_LOG_EACH_INVOKE", "true"), logs]).expect("understood");
        assert_eq!(read.payloads.processors.len(), 1, "once");
        let read = of(&[STORE, ("MM_LOG_EACH_INVOKE", "false"), headers]).expect("understood");
        assert!(read.payloads.processors.is_empty());
        assert!(
            matches!(&read.warnings[..], [one] if one.contains("without MM_LOG_EACH_INVOKE")),
            "{:?}",
            read.warnings
        );
    }

    #[test]
    fn metrics_are_modelmeshs() {
        let info = ("MM_INFO_METRICS", "info;slot=SLOT");
        let read = of(&[STORE, ("MM_METRICS", "prometheus:port=9;scheme=http"), info, ("SLOT", "ga")]);
        let metrics = read.expect("understood").metrics.expect("metrics");
        let Way::Scraped(scrape) = &metrics.way else { panic!("{metrics:?}") };
        assert_eq!((scrape.port, scrape.asks_clients, scrape.info.is_some()), (9, false, true));
        let read = of(&[STORE, ("MM_METRICS", "disabled")]).expect("understood");
        assert_eq!((read.metrics, read.warnings.len()), (None, 0));
        let read = of(&[STORE, ("MM_METRICS", "statsd:port=8126")]).expect("understood");
        assert!(read.metrics.is_some_and(|metrics| matches!(metrics.way, Way::Sent(_))) && read.warnings.is_empty());
    }

    #[test]
    fn what_is_not_read_is_named_once() {
        let config = ("BERTH_CONFIG", "/etc/berth.yaml");
        let read = of(&[STORE, config, ("MM_MULTI_PARALLELISM", "4"), ("MM_NEW", "1"), ("MM_ZONE", "")]);
        assert_eq!(
            read.expect("understood").warnings,
            [
                "BERTH_CONFIG is not read: set each setting by its own variable",
                "MM_MULTI_PARALLELISM is not read: calls for several models run all at once",
                "MM_NEW is not read: Berth has no such setting"
            ]
        );
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        for (pairs, says) in [
            (&[][..], "set KV_STORE"),
            (&[("KV_STORE", "zookeeper:localhost:2181")], "etcd:"),
            (&[STORE, ("MM_SVC_GRPC_PORT", "http")], "MM_SVC_GRPC_PORT"),
            (&[STORE, ("MM_SVC_GRPC_PORT", "70000")], "65535"),
            (&[STORE, ("MM_TLS_KEY_CERT_PATH", "/c")], "MM_TLS_PRIVATE_KEY_PATH"),
            (&[STORE, ("MM_DATAPLANE_CONFIG_PATH", "/nonexistent")], "MM_DATAPLANE_CONFIG_PATH"),
            (&[STORE, ("MM_DATAPLANE_CONFIG_PATH", "/x"), ("MM_DATAPLANE_CONFIG", "{}")], "both"),
            (&[STORE, ("MM_TYPE_CONSTRAINTS", "[]")], "MM_TYPE_CONSTRAINTS"),
            (&[STORE, ("MM_METRICS", "prometheus:port=x")], "MM_METRICS"),
            (&[STORE, ("MM_METRICS", "prometheus"), ("MM_INFO_METRICS", "i;a=B")], "B is not set"),
            (&[STORE, ("MM_SCALEUP_RPM_THRESHOLD", "many")], "MM_SCALEUP_RPM_THRESHOLD"),
            (&[STORE, ("MM_LOG_REQUEST_HEADERS", "[]")], "MM_LOG_REQUEST_HEADERS"),
            (&[STORE, ("MM_LOG_REQUEST_HEADERS", r#"{"a b": "c"}"#)], "\"a b\" is no name of a header"),
        ] {
            let error = of(pairs).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }
}
