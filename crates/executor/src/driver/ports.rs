//! The ports of an executor: they are bound, changed and ended together.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::port::{PortTls, Room};
use berth_wire::byte_budget::ByteBudget;
use tokio_util::task::TaskTracker;

use crate::{
    access::Guard,
    config::{Config, DrainConfig, PortConfig},
    files::Shares,
    health,
    jobs::{JobQueue, Jobs},
    log::{Logger, Sink},
    metrics::Metrics,
    port::{self, Shutdown},
    proxy::Proxy,
    upstream::Upstream,
    window::Windows,
};

/// Interval between looks at the requests in flight, while the end of the last one is awaited.
const LOOK_IDLE: Duration = Duration::from_millis(20);

/// Longest wait for the last lines of logs: a slow receiver does not keep the process from ending.
const LAST_LINES: Duration = Duration::from_secs(5);

/// The ports of an executor.
pub(crate) struct Ports {
    running: Mutex<BTreeMap<String, RunningPort>>,
    tasks: TaskTracker,
    guard: Option<Arc<Guard>>,
    /// Writers of logs. They outlive the ports.
    logs: TaskTracker,
    metrics: Arc<Metrics>,
    /// Connections of all ports.
    room: Room,
    /// Windows of these connections.
    windows: Arc<Windows>,
    /// Memory for the bodies of their requests.
    memory: Arc<ByteBudget>,
    shares: Shares,
    is_draining: AtomicBool,
    drain: Mutex<DrainConfig>,
}

/// A port that serves.
struct RunningPort {
    proxy: Arc<Proxy>,
    shutdown: Shutdown,
    listen: SocketAddr,
    /// The address that it has, where port 0 was asked for.
    bound: SocketAddr,
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

impl Ports {
    pub(super) fn new(
        metrics: Arc<Metrics>,
        guard: Option<Arc<Guard>>,
        room: Room,
        shares: Shares,
        drain: DrainConfig,
    ) -> Self {
        Self {
            running: Mutex::default(),
            tasks: TaskTracker::new(),
            guard,
            logs: TaskTracker::new(),
            metrics,
            room,
            windows: Windows::new(shares.windows),
            memory: ByteBudget::new(shares.bodies),
            shares,
            is_draining: AtomicBool::new(false),
            drain: Mutex::new(drain),
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, RunningPort>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ports by name, with the address that each has.
    pub(super) fn addresses(&self) -> Vec<(String, SocketAddr)> {
        self.running().values().map(|port| (port.proxy.name().to_string(), port.bound)).collect()
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The reason why requests should go elsewhere; `None`: they may come.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.is_draining.load(Relaxed) {
            return Some("draining: this executor ends".to_owned());
        }
        let ports = self.running();
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
        self.running().get(port)?.proxy.jobs.get().cloned()
    }

    pub(super) fn change(&self, before: &Config, after: &Config) -> Result<(), String> {
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
        let proxies: Vec<_> =
            self.running().values().map(|port| (Arc::clone(&port.proxy), port.shutdown.clone())).collect();
        if !proxies.iter().all(|(proxy, _)| is_healthy(proxy)) {
            // No requests come to an unready pod, and those in a server that hangs may never end.
            return true;
        }
        let _leaving: Vec<DrainGuard> = proxies.iter().map(|(proxy, _)| DrainGuard::begin(Arc::clone(proxy))).collect();
        tokio::time::sleep(delay).await;
        for (_, shutdown) in &proxies {
            shutdown.leave.notify_waiters();
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
    pub(super) fn apply(&self, wanted: &[PortConfig]) -> io::Result<()> {
        let wanted = self.within_files(wanted);
        let wanted = wanted.as_slice();
        let mut ports = self.running();
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
                running.shutdown.stopping.cancel();
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
            let (bound, listen, shutdown) = (listener.local_addr()?, config.listen, Shutdown::default());
            let name = config.name.clone();
            let logger = loggers.remove(&name).flatten();
            let (metrics, memory) = (Arc::clone(&self.metrics), Arc::clone(&self.memory));
            let proxy = Proxy::new(config, upstream, metrics, logger, self.guard.clone(), memory);
            if let Some(tls) = tls.clone() {
                let stopping = shutdown.stopping.clone();
                self.tasks.spawn(async move { stopping.run_until_cancelled_owned(tls.follow()).await });
            }
            let (room, windows) = (self.room.clone(), Arc::clone(&self.windows));
            let accepting = port::run(listener, tls, Arc::clone(&proxy), shutdown.clone(), room, windows);
            match jobs {
                None => drop(self.tasks.spawn(accepting)),
                Some(queue) => {
                    drop(self.tasks.spawn(Jobs::run(queue, Arc::clone(&proxy), shutdown.clone(), accepting)))
                }
            }
            let (asked, stopping) = (health::follow(Arc::clone(&proxy)), shutdown.stopping.clone());
            self.tasks.spawn(async move { stopping.run_until_cancelled_owned(asked).await });
            ports.insert(name, RunningPort { proxy, shutdown, listen, bound });
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
    pub(super) async fn close_logs(&self) {
        self.running().values().for_each(close);
        self.logs.close();
        if tokio::time::timeout(LAST_LINES, self.logs.wait()).await.is_err() {
            tracing::warn!(
                event = "executor_log_cut",
                "some requests were not logged: the place of the log did not take them in time"
            );
        }
    }

    /// Ends the ports in the order that loses no request. The number of those that were cut off.
    pub(super) async fn drain(&self, delay: Duration, limit: Duration) -> usize {
        self.is_draining.store(true, Relaxed);
        tracing::info!(event = "executor_draining", delay_s = delay.as_secs_f64(), "unready; still serving");
        for port in self.running().values() {
            port.proxy.leaving.fetch_add(1, Relaxed);
        }
        tokio::time::sleep(delay).await;
        let ports: Vec<_> =
            self.running().values().map(|port| (Arc::clone(&port.proxy), port.shutdown.clone())).collect();
        for (_, shutdown) in &ports {
            shutdown.stopping.cancel();
        }
        self.tasks.close();
        let all_ended = async {
            self.tasks.wait().await;
            for (proxy, _) in &ports {
                proxy.upgraded.close();
                proxy.upgraded.wait().await;
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_ok() {
            return 0;
        }
        let left = ports.iter().map(|(proxy, _)| proxy.in_flight()).sum();
        tracing::warn!(
            event = "executor_requests_cut",
            left,
            "requests did not end in time (drain.timeout); closing their connections"
        );
        for (proxy, shutdown) in &ports {
            proxy.cut.cancel();
            shutdown.cut.cancel();
        }
        self.tasks.wait().await;
        left
    }
}
