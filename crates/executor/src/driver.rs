//! The process: ports, the configuration that it follows, and its end.
//!
//! ```text
//! start: file read, ports bound ──▶ serving ──stop──▶ unready, still serving (drain.delay)
//!                                    ▲    │ file changed                  │
//!                                    └────┘                               ▼
//!                       ended ◀── all answered, or drain.timeout ◀── no new connections
//! ```
//! A change is taken whole or not at all: new ports are bound before anything else changes.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::port::{Bounds, PortTls, Room};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    access::{Followed, Guard},
    admin,
    config::{Config, ConfigError, DrainConfig, PortConfig},
    files::{Limits, Shares},
    health,
    jobs::{JobQueue, Jobs},
    log::{Logger, Sink},
    metrics::Metrics,
    port::{self, Ends},
    proxy::Proxy,
    upstream::Upstream,
    window::Windows,
};

/// Interval between looks at the file. The kubelet brings a changed ConfigMap within a minute or so.
const LOOK: Duration = Duration::from_secs(2);

/// Interval between looks at the requests in flight, while the end of the last one is awaited.
const LOOK_IDLE: Duration = Duration::from_millis(20);

/// Longest wait for the last lines of logs: a slow receiver does not keep the process from ending.
const LAST_LINES: Duration = Duration::from_secs(5);

/// Reason why an executor cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port cannot be had.
    #[error("{0}")]
    Port(#[source] io::Error),
}

/// An executor whose ports are bound.
pub struct Executor {
    path: PathBuf,
    config: Config,
    admin: TcpListener,
    fleet: Arc<Fleet>,
    followed: Option<Followed>,
}

/// The ports of an executor.
pub(crate) struct Fleet {
    ports: Mutex<BTreeMap<String, RunningPort>>,
    tasks: TaskTracker,
    guard: Option<Arc<Guard>>,
    /// Writers of logs. They outlive the ports.
    logs: TaskTracker,
    metrics: Arc<Metrics>,
    /// Connections of all ports.
    room: Room,
    /// Windows of these connections.
    windows: Arc<Windows>,
    shares: Shares,
    is_draining: AtomicBool,
    drain: Mutex<DrainConfig>,
}

/// A port that serves.
struct RunningPort {
    proxy: Arc<Proxy>,
    ends: Ends,
    listen: SocketAddr,
    /// The address that it has, where port 0 was asked for.
    bound: SocketAddr,
}

impl Executor {
    /// Reads the file and binds its ports. In a runtime; blocks on the file.
    ///
    /// # Errors
    /// [`StartError`]: nothing runs then.
    pub fn start(path: &Path) -> Result<Self, StartError> {
        Self::start_within(path, Limits::default())
    }

    /// The same, with limits of the process.
    ///
    /// # Errors
    /// [`StartError`]: nothing runs then.
    pub fn start_within(path: &Path, limits: Limits) -> Result<Self, StartError> {
        let config = Config::read(path)?;
        let shares = Shares::of(limits);
        let connections = shares.connections;
        let per_address = config.max_connections_per_address.unwrap_or(connections / 2).min(connections);
        let admin = port::bind(config.admin).map_err(StartError::Port)?;
        let metrics = Arc::new(Metrics::new());
        let open = |settings| metrics.with_registry(|registry| Guard::open(settings, registry));
        let opened = config.access.clone().map(open).transpose();
        let (guard, followed) = opened.map_err(|error| StartError::Port(io::Error::other(error)))?.unzip();
        let fleet = Arc::new(Fleet {
            ports: Mutex::default(),
            tasks: TaskTracker::new(),
            logs: TaskTracker::new(),
            metrics,
            guard,
            room: Room::new(Bounds { connections, per_address }),
            windows: Windows::new(shares.windows),
            shares,
            is_draining: AtomicBool::new(false),
            drain: Mutex::new(config.drain),
        });
        fleet.apply(&config.ports).map_err(StartError::Port)?;
        Ok(Self { path: path.to_owned(), config, admin, fleet, followed })
    }

    /// Address of the admin port.
    ///
    /// # Errors
    /// The system does not say.
    pub fn admin(&self) -> io::Result<SocketAddr> {
        self.admin.local_addr()
    }

    /// Ports by name, with the address that each has.
    #[must_use]
    pub fn ports(&self) -> Vec<(String, SocketAddr)> {
        self.fleet.ports().values().map(|port| (port.proxy.name().to_string(), port.bound)).collect()
    }

    /// Serves until `stop`, then drains. The number of requests that were cut off.
    pub async fn run(self, stop: CancellationToken) -> usize {
        let Self { path, mut config, admin, fleet, followed } = self;
        let admin_stop = CancellationToken::new();
        let served = TaskTracker::new();
        served.spawn(admin::run(admin, Arc::clone(&fleet), admin_stop.clone()));
        if let Some(followed) = followed {
            let stop = admin_stop.clone();
            served.spawn(async move {
                stop.run_until_cancelled_owned(followed.run()).await;
            });
        }
        served.close();
        let mut told = String::new();
        while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            let file = path.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || Config::read(&file)).await else { continue };
            let used = match read {
                Ok(read) if read == config => {
                    told.clear();
                    continue;
                }
                Ok(read) => {
                    fleet.change(&config, &read).map(|()| read).map_err(|error| format!("{}: {error}", path.display()))
                }
                Err(error) => Err(error.to_string()),
            };
            match used {
                Ok(read) => {
                    config = read;
                    told.clear();
                    fleet.metrics.reloaded("used");
                    tracing::info!(event = "executor_config_changed", path = %path.display(), "the changed configuration is in use");
                }
                // Told once, not every two seconds.
                Err(error) if error == told => {}
                Err(error) => {
                    fleet.metrics.reloaded("refused");
                    tracing::warn!(
                        event = "executor_config_unusable",
                        error,
                        "the changed configuration cannot be used; keeping the one from before"
                    );
                    told = error;
                }
            }
        }
        let cut = fleet.drain(config.drain.delay, config.drain.timeout).await;
        fleet.close_logs().await;
        admin_stop.cancel();
        served.wait().await;
        cut
    }
}

/// Ends the log of a port, once it has written what it has.
fn close(running: &RunningPort) {
    if let Some(logger) = running.proxy.logger() {
        logger.closing.cancel();
    }
}

/// Clients of a port are told to leave, for as long as it lives.
struct DrainGuard(Arc<Proxy>);

impl DrainGuard {
    fn begin(proxy: Arc<Proxy>) -> Self {
        proxy.leaving.fetch_add(1, Relaxed);
        Self(proxy)
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, Relaxed);
    }
}

/// The model servers of the ports that stay, by name.
fn upstreams(
    ports: &BTreeMap<String, RunningPort>,
    wanted: &[PortConfig],
) -> io::Result<BTreeMap<String, Arc<Upstream>>> {
    let stays = |port: &PortConfig| ports.get(&port.name).filter(|running| running.listen == port.listen);
    let both = wanted.iter().filter_map(|port| Some((port, stays(port)?)));
    let upstream = |port: &PortConfig, running: &RunningPort| running.proxy.upstream(port).map_err(io::Error::other);
    both.map(|(port, running)| Ok((port.name.clone(), upstream(port, running)?))).collect()
}

/// True while jobs wait or run that end with this process.
async fn has_jobs(proxy: &Proxy) -> bool {
    match proxy.jobs.get() {
        Some(jobs) => jobs.are_left().await,
        None => false,
    }
}

impl Fleet {
    fn ports(&self) -> MutexGuard<'_, BTreeMap<String, RunningPort>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The reason why requests should go elsewhere; `None`: they may come.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.is_draining.load(Relaxed) {
            return Some("draining: this executor ends".to_owned());
        }
        let ports = self.ports();
        let ill = ports.values().find(|port| !port.proxy.is_healthy.load(Relaxed))?;
        let upstream = ill.proxy.settings();
        Some(format!(
            "the model server of port {:?} does not answer at {}",
            ill.proxy.name(),
            upstream.upstream.address()
        ))
    }

    /// Asynchronous serving of a port.
    pub(crate) fn jobs(&self, port: &str) -> Option<Arc<Jobs>> {
        self.ports().get(port)?.proxy.jobs.get().cloned()
    }

    fn change(&self, before: &Config, after: &Config) -> Result<(), String> {
        if before.admin != after.admin {
            return Err("admin.listen changes with a restart: start the executor again, or undo it".to_owned());
        }
        if before.max_connections_per_address != after.max_connections_per_address {
            return Err(
                "maxConnectionsPerAddress changes with a restart: start the executor again, or undo it".to_owned()
            );
        }
        if before.access != after.access {
            return Err(
                "access changes with a restart, but for the files that it names: start the executor again, or undo it"
                    .to_owned(),
            );
        }
        let tls = |name: &str| before.ports.iter().find(|port| port.name == name).map(|port| &port.tls);
        if let Some(port) = after.ports.iter().find(|port| tls(&port.name).is_some_and(|tls| *tls != port.tls)) {
            let name = &port.name;
            return Err(format!("tls of port {name:?} changes with a restart: start the executor again, or undo it"));
        }
        let jobs = |name: &str| before.ports.iter().find(|port| port.name == name).map(|port| &port.jobs);
        if let Some(port) = after.ports.iter().find(|port| jobs(&port.name).is_some_and(|jobs| *jobs != port.jobs)) {
            let name = &port.name;
            return Err(format!("async of port {name:?} changes with a restart: start the executor again, or undo it"));
        }
        self.apply(&after.ports).map_err(|error| error.to_string())?;
        *self.drain.lock().unwrap_or_else(PoisonError::into_inner) = after.drain;
        Ok(())
    }

    /// Asks clients to leave their connections, and returns when no request is in flight, or after `drain.timeout`. New requests are
    /// taken as before: the model server is told to end alone, or its pod is, and then others have told clients to go elsewhere.
    pub(crate) async fn settle(&self) -> bool {
        let DrainConfig { delay, timeout } = *self.drain.lock().unwrap_or_else(PoisonError::into_inner);
        let is_healthy = |proxy: &Arc<Proxy>| proxy.is_healthy.load(Relaxed);
        let proxies: Vec<_> = self.ports().values().map(|port| (Arc::clone(&port.proxy), port.ends.clone())).collect();
        if !proxies.iter().all(|(proxy, _)| is_healthy(proxy)) {
            // No requests come to an unready pod, and those in a server that hangs may never end.
            return true;
        }
        let _leaving: Vec<DrainGuard> = proxies.iter().map(|(proxy, _)| DrainGuard::begin(Arc::clone(proxy))).collect();
        tokio::time::sleep(delay).await;
        for (_, ends) in &proxies {
            ends.leave.notify_waiters();
        }
        let idle = async {
            for (proxy, _) in &proxies {
                while proxy.in_flight() > 0 || has_jobs(proxy).await {
                    tokio::time::sleep(LOOK_IDLE).await;
                }
            }
        };
        tokio::time::timeout(timeout, idle).await.is_ok()
    }

    /// Each port with its share of the files for connections to its server: more requests at once would leave none for the admin port.
    fn within_files(&self, wanted: &[PortConfig]) -> Vec<PortConfig> {
        let most = (self.shares.requests / wanted.len().max(1)).max(1);
        let mut wanted = wanted.to_vec();
        for port in wanted.iter_mut().filter(|port| port.max_in_flight > most) {
            tracing::warn!(
                event = "executor_files_short",
                port = %port.name,
                configured = port.max_in_flight,
                most,
                "maxInFlight is lowered to what the limit of open files allows: raise that limit"
            );
            port.max_in_flight = most;
        }
        wanted
    }

    /// Makes the ports what is wanted. Nothing has changed where a new one cannot be bound.
    fn apply(&self, wanted: &[PortConfig]) -> io::Result<()> {
        let wanted = self.within_files(wanted);
        let wanted = wanted.as_slice();
        let mut ports = self.ports();
        let mut new = Vec::new();
        for port in wanted {
            if ports.get(&port.name).is_some_and(|running| running.listen == port.listen) {
                continue;
            }
            if let Some((other, _)) = ports.iter().find(|(_, running)| running.listen == port.listen) {
                let message = format!(
                    "{} is the port {other:?} until this process ends: give {:?} another address, or start the executor again",
                    port.listen, port.name
                );
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            let jobs = port.jobs.clone().map(JobQueue::open).transpose().map_err(io::Error::other)?;
            let tls = port.tls.clone().map(PortTls::load).transpose().map_err(io::Error::other)?;
            let upstream = Upstream::open(&port.upstream, port.upstream_tls.as_ref()).map_err(io::Error::other)?;
            new.push((port::bind(port.listen)?, port.clone(), upstream, jobs, tls));
        }
        let mut upstreams = upstreams(&ports, wanted)?;
        let mut loggers = self.loggers(&ports, wanted)?;
        ports.retain(|name, running| {
            let stays = wanted.iter().any(|port| port.name == *name && port.listen == running.listen);
            if !stays {
                running.ends.stopping.cancel();
                close(running);
            }
            stays
        });
        for port in wanted {
            if let (Some(running), Some(upstream)) = (ports.get(&port.name), upstreams.remove(&port.name)) {
                let logger = loggers.remove(&port.name).flatten();
                if running.proxy.settings().config.log != port.log {
                    close(running);
                }
                running.proxy.change(port.clone(), upstream, logger);
            }
        }
        for (listener, config, upstream, jobs, tls) in new {
            let (bound, listen, ends) = (listener.local_addr()?, config.listen, Ends::default());
            let name = config.name.clone();
            let logger = loggers.remove(&name).flatten();
            let proxy = Proxy::new(config, upstream, Arc::clone(&self.metrics), logger, self.guard.clone());
            if let Some(tls) = tls.clone() {
                let over = ends.stopping.clone();
                self.tasks.spawn(async move { over.run_until_cancelled_owned(tls.follow()).await });
            }
            let room = (self.room.clone(), Arc::clone(&self.windows));
            let accepting = port::run(listener, tls, Arc::clone(&proxy), ends.clone(), room);
            match jobs {
                None => drop(self.tasks.spawn(accepting)),
                Some(queue) => drop(self.tasks.spawn(Jobs::run(queue, Arc::clone(&proxy), ends.clone(), accepting))),
            }
            let (asked, over) = (health::follow(Arc::clone(&proxy)), ends.stopping.clone());
            self.tasks.spawn(async move { over.run_until_cancelled_owned(asked).await });
            ports.insert(name, RunningPort { proxy, ends, listen, bound });
        }
        Ok(())
    }

    /// The log of each port: the one that it has, where that stays, else a new one that writes.
    fn loggers(
        &self,
        ports: &BTreeMap<String, RunningPort>,
        wanted: &[PortConfig],
    ) -> io::Result<BTreeMap<String, Option<Arc<Logger>>>> {
        let mut loggers = BTreeMap::new();
        let mut new = Vec::new();
        for port in wanted {
            let running = ports.get(&port.name).filter(|running| running.listen == port.listen);
            let before = running.and_then(|running| running.proxy.logger());
            let logger = match &port.log {
                None => None,
                Some(settings) => match before.filter(|logger| logger.settings == *settings) {
                    Some(same) => Some(same),
                    None => {
                        let sink = Sink::open(&settings.sink).map_err(io::Error::other)?;
                        let counts = self.metrics.log().clone();
                        let logger = Logger::new(settings.clone(), port.name.as_str().into(), counts);
                        new.push((Arc::clone(&logger), sink));
                        Some(logger)
                    }
                },
            };
            loggers.insert(port.name.clone(), logger);
        }
        for (logger, sink) in new {
            self.logs.spawn(logger.run(sink));
        }
        Ok(loggers)
    }

    /// Writes what is still to be logged.
    async fn close_logs(&self) {
        self.ports().values().for_each(close);
        self.logs.close();
        if tokio::time::timeout(LAST_LINES, self.logs.wait()).await.is_err() {
            tracing::warn!(
                event = "executor_log_cut",
                "some requests were not logged: the place of the log did not take them in time"
            );
        }
    }

    /// Ends the ports in the order that loses no request. The number of those that were cut off.
    async fn drain(&self, delay: Duration, limit: Duration) -> usize {
        self.is_draining.store(true, Relaxed);
        tracing::info!(event = "executor_draining", delay_s = delay.as_secs_f64(), "unready; still serving");
        for port in self.ports().values() {
            port.proxy.leaving.fetch_add(1, Relaxed);
        }
        tokio::time::sleep(delay).await;
        let ends: Vec<_> = self.ports().values().map(|port| (Arc::clone(&port.proxy), port.ends.clone())).collect();
        for (_, ends) in &ends {
            ends.stopping.cancel();
        }
        self.tasks.close();
        let all_ended = async {
            self.tasks.wait().await;
            for (proxy, _) in &ends {
                proxy.upgraded.close();
                proxy.upgraded.wait().await;
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_ok() {
            return 0;
        }
        let left = ends.iter().map(|(proxy, _)| proxy.in_flight()).sum();
        tracing::warn!(
            event = "executor_requests_cut",
            left,
            "requests did not end in time (drain.timeout); closing their connections"
        );
        for (proxy, ends) in &ends {
            proxy.cut.cancel();
            ends.cut.cancel();
        }
        self.tasks.wait().await;
        left
    }
}
