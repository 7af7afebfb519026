//! `berth modelmesh`: an instance as ModelMesh's launcher starts it, from the same arguments and environment variables.
//!
//! ```text
//! variables ─▶ environment ─▶ bootstrap: authority and other instances, through the store ─▶ a node of a cluster
//!                   └──────── one runtime beside it (SPI), the probe port, the termination message
//! ```
//! An instance is a [`node`](crate::node) with all roles, without built-in runtimes. It reads the `BERTH_*` variables as `berth node`
//! does.

mod address;
mod bootstrap;
mod environment;
mod etcd;
mod followed;
mod instance_folder;
mod probe;
mod tls;
mod type_constraints;

use std::{
    ffi::OsString,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    num::ParseIntError,
    path::Path,
    str::FromStr,
    sync::Arc,
};

use berth_mesh::data_plane::{CurrentDataPlane, DataPlane};
use berth_modelmesh::Registration;
use berth_plan::TypeRules;
use berth_spec::WorkerId;
use clap::{ArgAction, Args};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    address::of_everybody,
    bootstrap::{Bootstrap, FAREWELL},
    environment::{CLIENTS, Environment},
    instance_folder::InstanceFolder,
    probe::{ProbeState, start as start_probe},
    type_constraints::TypeConstraints,
};
use crate::{
    failure::Failure,
    node::{self, Hooks, ServingHook, Started, running::spawn, settings::NodeSettings},
    settings::{ServerSettings, planning::Planning},
};

/// The probe port where nobody says: ModelMesh's.
const PROBE: u16 = 8089;

/// The variable with the address of the control API.
const API: &str = "BERTH_API_ADDR";

/// The most characters of an instance's name.
const LONGEST_NAME: usize = 60;

#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  KV_STORE=etcd:http://localhost:2379 INTERNAL_GRPC_PORT=8085 berth modelmesh -n my-service
  KV_STORE=etcd:http://localhost:2379 MM_SVC_GRPC_PORT=9000 INTERNAL_GRPC_PORT=9002 \\
    berth modelmesh -n my-service -v 1 -i instance-0 -h 9001

Reads the environment variables of ModelMesh; docs/from-modelmesh.md lists them."
)]
pub(crate) struct ModelMeshArgs {
    /// Name of the service: instances of one name and one store form a cluster [default: MM_SERVICE_NAME]
    #[arg(short = 'n', long, value_name = "NAME")]
    service_name: Option<String>,
    /// Version of the service, for people
    #[arg(short = 'v', long, value_name = "VERSION")]
    service_version: Option<String>,
    /// Name of this instance in the cluster [default: the host's name, and the port for clients if it is not 8033]
    #[arg(short = 'i', long, value_name = "ID", env = "MM_INSTANCE_ID")]
    instance_id: Option<String>,
    /// Port for /ready, /live and /prestop; NONE: no such port [default: 8089]
    #[arg(short = 'h', long, value_name = "PORT", env = "MM_PROBE_PORT")]
    probe_port: Option<ProbePort>,
    /// Words of ModelMesh's launcher that mean nothing here: the class of the service
    #[arg(short = 's', hide = true)]
    _class: Option<String>,
    /// TLS between instances
    #[arg(short = 'e', hide = true)]
    _ssl_mode: Option<String>,
    /// The port between instances
    #[arg(short = 'p', hide = true)]
    _port: Option<String>,
    /// The port between instances, as others reach it
    #[arg(short = 'r', hide = true)]
    _public_port: Option<String>,
    /// A file that is there while the instance runs
    #[arg(short = 'a', hide = true)]
    _anchor: Option<String>,
    /// Seconds that a start may take
    #[arg(short = 't', hide = true)]
    _start_timeout: Option<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The port of the probes, or `NONE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProbePort(Option<u16>);

impl FromStr for ProbePort {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.eq_ignore_ascii_case("none") { Ok(Self(None)) } else { text.parse().map(|port| Self(Some(port))) }
    }
}

/// Starts an instance and serves until it is told to stop.
pub(crate) fn run(args: ModelMeshArgs) -> Result<(), Failure> {
    let text = |(name, value): (OsString, OsString)| name.into_string().ok().zip(value.into_string().ok());
    let variables = std::env::vars_os().filter_map(text).collect();
    let environment = environment::read(&variables, args.service_name.as_deref()).map_err(Failure::Usage);
    let termination = std::env::var_os("LL_TERMINATION_MSG_PATH");
    let done = environment.and_then(|environment| serve(args, environment));
    if let (Err(failure), Some(path)) = (&done, termination) {
        // The one who reads it asks nobody else; that it cannot be written is no second error.
        let _ = fs_err::write(Path::new(&path), format!("{failure}\n"));
    }
    done
}

fn serve(args: ModelMeshArgs, mut environment: Environment) -> Result<(), Failure> {
    let name = instance(args.instance_id.as_deref(), environment.clients)?;
    let standing = Arc::new(ProbeState::default());
    let everybody = of_everybody();
    let clients = SocketAddr::new(everybody, environment.clients);
    check_free(clients)?;
    let ports = probe_ports(everybody, args.probe_port, environment.prestop, &mut environment.warnings);
    start_probe(everybody, &ports, &standing)
        .map_err(|error| Failure::Failed(format!("cannot listen: {error}; -h takes another port")))?;

    let folder = InstanceFolder::create(&std::env::temp_dir())?;
    folder.remove_others();
    let prefix = format!("{}/{}/berth", environment.prefix, environment.service);
    let config = |part: &str| environment.store.config(&format!("{prefix}/{part}")).map_err(Failure::Usage);
    let ip = address::own(&environment.store.endpoints).unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let gossip = address::free_udp(ip)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (bootstrap, pki, (lease, key, others)) = runtime.block_on(async {
        let bootstrap = Bootstrap::connect(config("instances")?).await?;
        let pki = bootstrap.certificate(folder.path(), &name).await?;
        let met = bootstrap.meet(&name, gossip).await?;
        Ok::<_, Failure>((bootstrap, pki, met))
    })?;
    // The connection's tasks are of the runtime that goes: the thread that stays makes its own.
    drop((bootstrap, runtime));
    let stays = CancellationToken::new();
    let gone = Bootstrap::stay(config("instances")?, lease, key, gossip, stays.clone())?;

    let own = Instance { name: &name, clients, gossip, others: &others, pki: &pki, folder: folder.path() };
    let mut settings = NodeSettings::from_words(words(&environment, own)?)?;
    settings.server.runtimes = vec![environment.runtime.clone()];
    settings.built_in = false;
    let data_plane = environment.data_plane.as_deref().map_or(Ok(DataPlane::default()), DataPlane::parse);
    let data_plane = data_plane.map_err(|error| Failure::Usage(format!("MM_DATAPLANE_CONFIG: {error}")))?;
    let data_plane = CurrentDataPlane::from(data_plane);
    if let (Some(path), Some(read)) = (&environment.data_plane_file, &environment.data_plane) {
        followed::follow(path.clone(), read.clone(), "MM_DATAPLANE_CONFIG_PATH", {
            let data_plane = data_plane.clone();
            move |json| DataPlane::parse(json).map(|methods| data_plane.set(methods))
        })?;
    }
    settings.data_plane = Some(data_plane);
    if let Some(cluster) = &mut settings.cluster {
        cluster.etcd = Some(config("cluster")?);
    }
    if environment.metrics.is_some() {
        settings.server.modelmesh_metrics = environment.metrics.clone();
    }
    settings.management = environment.management.clone();
    if !environment.payloads.processors.is_empty() {
        settings.server.payloads = environment.payloads.clone();
    }
    settings.server.labels.extend(environment.labels.clone());
    settings.server.planning = Planning {
        target_rate: environment.target_rate,
        failure_expiry: environment.failure_expiry,
        ..Planning::default()
    };
    constrain_types(&environment, &mut settings.server)?;
    let ready = Arc::clone(&standing);
    let Environment { warnings, registrations, .. } = environment;
    let hooks = Hooks {
        logging: Some(Box::new(move || {
            for warning in &warnings {
                tracing::warn!(event = "setting_not_read", "{warning}");
            }
        })),
        prepare: Some(Box::new(|| {
            let serving: ServingHook = Box::new(move |started| {
                // Ends with the runtime.
                let _registering = spawn(register(started, registrations, ready));
            });
            Ok(serving)
        })),
        quiet: false,
    };
    let done = node::start(settings, hooks);
    stays.cancel();
    standing.stopped.cancel();
    // Its end is the word.
    let _ = gone.recv_timeout(FAREWELL);
    done
}

/// Has models of a type go where the labels of the type are. Constraints of a file are followed, so they are no setting that all
/// instances must share: each reads a change of the file at its own time.
fn constrain_types(environment: &Environment, server: &mut ServerSettings) -> Result<(), Failure> {
    let TypeConstraints { types, others } = environment.types.clone();
    let Some((path, read)) = &environment.types_file else {
        server.types.extend(types);
        server.planning.other_types = others;
        return Ok(());
    };
    let declared = server.types.clone();
    let with = move |TypeConstraints { types, others }| {
        let types = declared.iter().map(|(name, selector)| (name.clone(), selector.clone())).chain(types).collect();
        TypeRules { types, others }
    };
    let (rules, followed) = watch::channel(with(TypeConstraints { types, others }));
    server.planning.type_rules = Some(followed);
    followed::follow(path.clone(), read.clone(), "MM_TYPE_CONSTRAINTS_PATH", move |json| {
        rules.send_replace(with(TypeConstraints::parse(json)?));
        Ok(())
    })
}

/// Registers the models of the configuration; then the instance is ready, or it ends.
async fn register(started: Started, registrations: Vec<Registration>, standing: Arc<ProbeState>) {
    match berth_modelmesh::register(&started.control, &registrations).await {
        Ok(()) => {
            let _set_before = standing.gateway.set(started.gateway).is_err();
        }
        Err(problem) => {
            let _ending_already = started.abort.try_send(Failure::Failed(problem)).is_err();
        }
    }
}

/// An instance's own name, addresses and folders: all that is not in its environment.
struct Instance<'a> {
    name: &'a WorkerId,
    /// The address of the port for clients.
    clients: SocketAddr,
    gossip: SocketAddr,
    /// Where the other instances gossip.
    others: &'a [SocketAddr],
    /// The folder with its certificate.
    pki: &'a Path,
    folder: &'a Path,
}

/// The words by which `berth node` is told the same.
fn words(environment: &Environment, instance: Instance<'_>) -> Result<Vec<OsString>, Failure> {
    let Instance { name, clients, gossip, others, pki, folder } = instance;
    let mut words: Vec<OsString> = vec!["node".into()];
    let mut say =
        |flag: &str, value: &dyn AsRef<std::ffi::OsStr>| words.extend([flag.into(), value.as_ref().to_owned()]);
    let millis = |time: std::time::Duration| format!("{}ms", time.as_millis());
    say("--name", &name.as_str());
    // The address is said again below with all that belongs to it.
    say("--store", &format!("etcd://{}", environment.store.endpoints.join(",")));
    say("--pki", &pki);
    say("--data", &folder.join("data"));
    say("--http", &clients.to_string());
    if std::env::var_os(API).is_none_or(|address| address.is_empty()) {
        // Any port: instances on one machine have one each.
        say("--api", &"127.0.0.1:0");
    }
    say("--gossip", &gossip.to_string());
    say("--peer", &SocketAddr::new(gossip.ip(), 0).to_string());
    say("--max-body", &environment.max_message.to_string());
    say("--drain-timeout", &millis(environment.drain));
    say("--lame-duck", &"1s");
    if let Some(tls) = &environment.tls {
        tls.check().map_err(Failure::Usage)?;
        say("--tls-cert", &tls.certificate);
        say("--tls-key", &tls.key);
        // Java's and Go's clients of ModelMesh may be old.
        say("--tls-min", &"1.2");
        if let Some(clients) = &tls.clients {
            say("--tls-client-ca", &clients.file(folder)?);
            say("--tls-clients", &clients.how);
        }
    }
    for other in others {
        say("--join", &other.to_string());
    }
    words.push("--insecure".into());
    Ok(words)
}

/// Checks that the port for clients can be had. The node that listens there later would tell of flags, not of variables.
fn check_free(clients: SocketAddr) -> Result<(), Failure> {
    TcpListener::bind(clients).map(drop).map_err(|error| {
        Failure::Failed(format!("cannot listen on {clients}: {error}; MM_SVC_GRPC_PORT takes another port"))
    })
}

/// The ports on which probes are answered. Those that nobody named may be another instance's of this machine.
fn probe_ports(at: IpAddr, said: Option<ProbePort>, prestop: u16, warnings: &mut Vec<String>) -> Vec<u16> {
    let is_free = |port: u16| TcpListener::bind((at, port)).is_ok();
    let mut ports = Vec::new();
    match said {
        Some(ProbePort(port)) => ports.extend(port),
        None if is_free(PROBE) => ports.push(PROBE),
        None => {
            warnings.push(format!("port {PROBE} is taken, so this instance answers no probes: -h takes another port"));
        }
    }
    // Then that one answers for all of them.
    if !ports.contains(&prestop) && is_free(prestop) {
        ports.push(prestop);
    }
    ports
}

/// The instance as a name of a node. Where nobody says, it is the host's; the port for clients tells instances of one machine apart.
fn instance(said: Option<&str>, clients: u16) -> Result<WorkerId, Failure> {
    let host = || {
        let host = fs_err::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        if clients == CLIENTS { host } else { format!("{}-{clients}", host.trim()) }
    };
    let said = said.filter(|said| !said.is_empty()).map_or_else(host, str::to_owned);
    let said = said.trim();
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = said.chars().map(plain).collect();
    if name.len() > LONGEST_NAME {
        // Long names differ at their ends. FNV-1a: the same number in each version, and short.
        let number =
            said.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        name = format!("{}-{number:08x}", &name[..LONGEST_NAME - 9]);
    }
    let edges = |c: char| !c.is_ascii_alphanumeric();
    name = name.trim_matches(edges).to_owned();
    WorkerId::new(&name).map_err(|error| Failure::Usage(format!("-i {said:?} cannot name an instance: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_have_names_of_nodes() {
        for (said, name) in [("9000", "9000"), ("MM_Instance_1", "mm-instance-1"), ("-pod-abc12-", "pod-abc12")] {
            assert_eq!(instance(Some(said), CLIENTS).expect("a name").as_str(), name);
        }
        assert!(instance(Some("---"), CLIENTS).is_err());
        let long = |end: &str| instance(Some(&format!("{}-{end}", "x".repeat(70))), CLIENTS).expect("a name");
        assert_ne!(long("9000"), long("9004"), "long ids are told apart");
    }

    #[test]
    fn instances_of_one_machine_have_names_of_their_own() {
        let [usual, first, second] =
            [CLIENTS, 9000, 9004].map(|port| instance(None, port).expect("the host has a name"));
        assert!(usual != first && first != second && usual != second, "{usual} {first} {second}");
    }

    #[test]
    fn probes_are_answered_where_that_was_asked_for() {
        let said = |text: &str| Some(text.parse::<ProbePort>().expect("a port"));
        let at = of_everybody();
        let taken = TcpListener::bind((at, 0)).expect("a free port");
        let prestop = taken.local_addr().expect("bound").port();
        let mut warnings = Vec::new();
        assert!(probe_ports(at, said("NONE"), prestop, &mut warnings).is_empty());
        // An error tells of it when it listens there.
        assert_eq!(probe_ports(at, said(&prestop.to_string()), prestop, &mut warnings), [prestop]);
        drop(taken);
        assert_eq!(probe_ports(at, said("1"), prestop, &mut warnings), [1, prestop]);
        assert!(warnings.is_empty() && "port".parse::<ProbePort>().is_err());
    }
}
