//! The network of steps that fetch packages: the registries of this server through a proxy, and nothing else.
//!
//! ```text
//! uv, pip, npm ─▶ 127.0.0.1:3128 of a network of their own ─▶ proxy in this process ─▶ a registry
//!                   ▲ made by the launcher within bubblewrap, or without it, and handed over
//! ```
//! Where this machine allows no such network, the step has that of the machine, and the log says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_sandbox::OwnNetwork;
use berth_spec::network::Destination;
use berth_worker::{
    cgroup::Cgroup,
    egress::{self, Allowed, Client, EgressPolicy, Outcome, Refusal, Upstream},
};
use tokio::sync::OnceCell;

use super::{Bubblewrap, NetworkReach, Walls};
use crate::build::{BuildError, registries::Registries};

/// The longest time until a step has its network: milliseconds, and seconds on a machine that does a hundred other things.
const LISTENER_WITHIN: Duration = Duration::from_secs(30);

/// Connections of one step at once: uv has 50 downloads, npm 15, and both ask for more than downloads.
const CONNECTIONS: usize = 256;

/// Hosts that are remembered of a step, and told: more are no better explanation.
const MAX_HOSTS: usize = 4;

/// Variables that name the proxy, as uv, pip, git and npm read them. Those of npm win over an `.npmrc` of the code.
const PROXIES: [&str; 8] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "npm_config_proxy",
    "npm_config_https_proxy",
];

/// Hosts that npm would ask for without the proxy: none. An empty variable would not count.
const DIRECT: (&str, &str) = ("npm_config_noproxy", "berth.invalid");

/// The program that puts a step on a network of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(super) program: PathBuf,
    /// [`OwnNetwork::Given`]: it runs in bubblewrap, which makes the network; else it makes one, and starts bubblewrap there.
    pub(super) network: OwnNetwork,
}

/// The network of all steps that fetch packages.
#[derive(Debug)]
pub(super) struct FetchNetwork {
    /// A program that calls [`berth_sandbox::entered`] before anything else; `None`: there is none.
    launcher: Option<PathBuf>,
    registries: Arc<Registries>,
    /// The launch that works here, or the reason why none does.
    found: OnceCell<Result<Launch, String>>,
}

impl FetchNetwork {
    pub(super) fn new(launcher: Option<PathBuf>, registries: Registries) -> Self {
        Self { launcher, registries: Arc::new(registries), found: OnceCell::new() }
    }

    /// The launch of a step, or the reason why it has the network of the machine. Tried at the first call.
    pub(super) async fn launch(&self, bubblewrap: &Arc<Bubblewrap>) -> Result<&Launch, &str> {
        let found = self.found.get_or_init(|| self.find(Arc::clone(bubblewrap))).await;
        found.as_ref().map_err(String::as_str)
    }

    async fn find(&self, bubblewrap: Arc<Bubblewrap>) -> Result<Launch, String> {
        let found = match (self.launcher.clone(), self.registries.foreign_proxy()) {
            (None, _) => Err("there is no program that makes a network for it".to_owned()),
            (_, Some(scheme)) => Err(format!("the proxy of this machine is asked by {scheme}, not by http")),
            (Some(program), None) => {
                let tried = tokio::task::spawn_blocking(move || first_that_works(&program, &bubblewrap)).await;
                let none = || "this machine allows no network of its own (network namespace)".to_owned();
                tried.ok().flatten().ok_or_else(none)
            }
        };
        match &found {
            Ok(_) => tracing::info!(event = "function_fetch_network", network = "registries"),
            Err(why) => tracing::warn!(
                event = "function_fetch_network",
                network = "machine",
                why,
                "steps that fetch packages reach the whole network of this machine"
            ),
        }
        found
    }

    /// A proxy to the registries for one step.
    pub(super) fn open(&self) -> io::Result<RegistryProxy> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(LISTENER_WITHIN))?;
        let requests = Requests { registries: Arc::clone(&self.registries), hosts: Mutex::default() };
        Ok(RegistryProxy { ours, theirs: Some(theirs.into()), requests: Arc::new(requests) })
    }
}

/// The first launch that works: within bubblewrap, where that works; else around it. Blocks.
fn first_that_works(program: &Path, bubblewrap: &Bubblewrap) -> Option<Launch> {
    let within = bubblewrap.program().is_some().then_some(OwnNetwork::Given);
    let networks = within.into_iter().chain([OwnNetwork::New, OwnNetwork::NewForUser]);
    let mut launches = networks.map(|network| Launch { program: program.to_owned(), network });
    launches.find(|launch| works(bubblewrap, launch))
}

/// True if a program that is started so hands its listener over, and runs.
fn works(bubblewrap: &Bubblewrap, launch: &Launch) -> bool {
    let Ok((ours, theirs)) = UnixStream::pair() else { return false };
    let reach = NetworkReach::Registries(launch);
    let walls = Walls { readable: Vec::new(), writable: Vec::new(), reach, at: Path::new("/") };
    let mut command = bubblewrap.command(Path::new("/bin/true"), &Cgroup::default(), None, walls).into_std();
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    // It holds a copy of the other end.
    drop(command);
    let received = ours.set_read_timeout(Some(LISTENER_WITHIN)).and_then(|()| berth_sandbox::receive(&ours));
    if received.is_err() {
        // It may have ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait();
    received.is_ok() && status.is_ok_and(|status| status.success())
}

/// Proxy of one step to the registries.
pub(super) struct RegistryProxy {
    ours: UnixStream,
    theirs: Option<OwnedFd>,
    requests: Arc<Requests>,
}

impl RegistryProxy {
    /// Standard input of the step: the launcher sends the listener over it.
    pub(super) fn input(&mut self) -> Stdio {
        self.theirs.take().map_or_else(Stdio::null, Stdio::from)
    }

    /// The requests of the step.
    pub(super) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Takes the listener and serves it. Resolves with the reason if that ends.
    async fn serve(self) -> String {
        let Self { ours, requests, .. } = self;
        let received = tokio::task::spawn_blocking(move || berth_sandbox::receive(&ours)).await;
        match received.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(listener) => {
                let allowed = Allowed::by_operator(requests.registries.hosts());
                egress::serve(listener, Arc::new(EgressPolicy::new(allowed, CONNECTIONS, requests))).await;
                "their proxy has ended".to_owned()
            }
            // The launcher has ended, and with it the step: its last words say why.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => std::future::pending().await,
            Err(error) => error.to_string(),
        }
    }
}

/// Serves the proxy of a step, where it has one. Resolves with the reason if that ends before the step.
pub(super) async fn serve(proxy: Option<RegistryProxy>) -> String {
    match proxy {
        Some(proxy) => proxy.serve().await,
        None => std::future::pending().await,
    }
}

/// Requests of one step for hosts.
pub(super) struct Requests {
    registries: Arc<Registries>,
    hosts: Mutex<Hosts>,
}

/// Hosts that a step has asked for in vain.
#[derive(Default)]
struct Hosts {
    refused: BTreeMap<Destination, Refusal>,
    away: BTreeSet<Destination>,
}

impl Requests {
    /// A sentence for each host that was refused, with the remedy.
    pub(super) fn refusals(&self) -> Vec<String> {
        self.hosts().refused.iter().map(|(host, why)| refusal(host, *why)).collect()
    }

    /// The error of a step, which has failed with `failed`.
    pub(super) fn error(&self, failed: BuildError) -> BuildError {
        let refused = self.refusals().join("; ");
        if !refused.is_empty() {
            return BuildError::passing("HostRefused", format!("{refused}; {}", failed.message));
        }
        match self.hosts().away.first() {
            Some(host) if failed.reason == "BuildFailed" => {
                BuildError::away("RegistryUnreachable", format!("{}; {host} cannot be reached", failed.message))
            }
            _ => failed,
        }
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client for Requests {
    fn note(&self, outcome: Outcome, wanted: Option<&Destination>) {
        let Some(wanted) = wanted else { return };
        let mut hosts = self.hosts();
        match outcome {
            Outcome::Refused(why) if hosts.refused.len() < MAX_HOSTS => {
                hosts.refused.insert(wanted.clone(), why);
            }
            Outcome::Unresolved | Outcome::Unreachable if hosts.away.len() < MAX_HOSTS => {
                hosts.away.insert(wanted.clone());
            }
            _ => {}
        }
    }

    fn refusal(&self, why: Refusal, wanted: &Destination) -> String {
        refusal(wanted, why)
    }

    fn upstream(&self, wanted: &Destination, tunnels: bool) -> Option<Upstream> {
        self.registries.upstream(wanted, tunnels)
    }
}

fn refusal(host: &Destination, why: Refusal) -> String {
    match why {
        Refusal::Undeclared => format!(
            "the build asked for {host}, which is no registry of this server: add it with --function-build-hosts {host}"
        ),
        // Link-local addresses, where clouds tell machines their credentials.
        Refusal::Forbidden | Refusal::Private | Refusal::OwnPort => {
            format!("the build asked for {host}, whose address no build gets to")
        }
    }
}

/// The variables of a step, with those that name the proxy in place of those that name proxies of the operator.
pub(super) fn environment(variables: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let names_proxy = |name: &OsStr| {
        let name = name.to_string_lossy().to_ascii_lowercase();
        // npm reads its variables in letters of any size.
        name.ends_with("_proxy") || name.ends_with("_noproxy")
    };
    let kept = variables.iter().filter(|(name, _)| !names_proxy(name)).cloned();
    let ours = PROXIES.map(|name| (name.into(), egress::address().into()));
    kept.chain(ours).chain([(DIRECT.0.into(), DIRECT.1.into())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Requests {
        Requests { registries: Arc::new(Registries::find(&[], None, &[])), hosts: Mutex::default() }
    }

    fn host(text: &str) -> Destination {
        text.parse().expect("a host")
    }

    #[test]
    fn a_host_that_is_no_registry_is_told_with_the_remedy() {
        let requests = requests();
        let failed = || BuildError::lasting("BuildFailed", "npm install failed: 403 Forbidden");
        assert_eq!(requests.error(failed()).reason, "BuildFailed", "nothing was refused");
        requests.note(Outcome::Connected, Some(&host("registry.npmjs.org:443")));
        requests.note(Outcome::Refused(Refusal::Undeclared), Some(&host("127.0.0.1:2379")));
        requests.note(Outcome::Refused(Refusal::Undeclared), Some(&host("127.0.0.1:2379")));
        requests.note(Outcome::Unreachable, Some(&host("registry.npmjs.org:443")));
        let error = requests.error(failed());
        assert_eq!((error.reason, error.retry, error.away), ("HostRefused", crate::controller::Retry::Later, false));
        assert_eq!(
            error.message,
            "the build asked for 127.0.0.1:2379, which is no registry of this server: add it with \
             --function-build-hosts 127.0.0.1:2379; npm install failed: 403 Forbidden"
        );
    }

    #[test]
    fn a_registry_that_is_away_is_asked_again() {
        let requests = requests();
        requests.note(Outcome::Unresolved, Some(&host("pypi.org:443")));
        let error = requests.error(BuildError::lasting("BuildFailed", "uv pip install failed"));
        assert!(error.away && error.reason == "RegistryUnreachable" && error.message.contains("pypi.org:443"));
        let wheel = requests.error(BuildError::lasting("TooLarge", "too large"));
        assert_eq!(wheel.reason, "TooLarge");
    }

    #[test]
    fn as_many_hosts_are_remembered_as_explain_something() {
        let requests = requests();
        for port in 1..100 {
            requests.note(Outcome::Refused(Refusal::Undeclared), Some(&host(&format!("10.0.0.1:{port}"))));
        }
        assert_eq!(requests.refusals().len(), MAX_HOSTS);
    }

    #[test]
    fn a_step_knows_one_proxy() {
        let variables: [(OsString, OsString); 5] = [
            ("PATH", "/bin"),
            ("https_proxy", "http://u:p@proxy.corp"),
            ("NO_PROXY", "*"),
            ("UV_HTTP_PROXY", "x"),
            ("NPM_CONFIG_NOPROXY", "corp"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let found = environment(&variables);
        let value = |name: &str| found.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.to_str());
        assert_eq!(value("PATH"), Some("/bin"));
        for name in ["https_proxy", "HTTPS_PROXY", "npm_config_proxy"] {
            assert_eq!(value(name), Some("http://127.0.0.1:3128"), "{name}");
        }
        for name in ["NO_PROXY", "no_proxy", "UV_HTTP_PROXY", "NPM_CONFIG_NOPROXY"] {
            assert_eq!(value(name), None, "{name}");
        }
        assert_eq!(value("npm_config_noproxy"), Some("berth.invalid"));
    }
}
