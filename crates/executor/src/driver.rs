//! The process: ports, the configuration that it follows, and its end.
//!
//! ```text
//! start: file read, ports bound ──▶ serving ──stop──▶ unready, still serving (drain.delay)
//!                                    ▲    │ file changed                  │
//!                                    └────┘                               ▼
//!                       ended ◀── all answered, or drain.timeout ◀── no new connections
//! ```
//! A change is taken whole or not at all: new ports are bound before anything else changes.

mod ports;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_peer::port::{Bounds, Room};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::ports::Ports;
use crate::{
    access::{Followed, Guard},
    admin,
    config::{Config, ConfigError},
    files::{Limits, Shares},
    metrics::Metrics,
    port,
};

/// Interval between looks at the file. The kubelet brings a changed ConfigMap within a minute or so.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

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
    ports: Arc<Ports>,
    followed: Option<Followed>,
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
        let room = Room::new(Bounds { connections, per_address });
        let ports = Arc::new(Ports::new(metrics, guard, room, shares, config.drain));
        ports.apply(&config.ports).map_err(StartError::Port)?;
        Ok(Self { path: path.to_owned(), config, admin, ports, followed })
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
        self.ports.addresses()
    }

    /// Serves until `stop`, then drains. The number of requests that were cut off.
    pub async fn run(self, stop: CancellationToken) -> usize {
        let Self { path, mut config, admin, ports, followed } = self;
        let admin_stop = CancellationToken::new();
        let served = TaskTracker::new();
        served.spawn(admin::run(admin, Arc::clone(&ports), admin_stop.clone()));
        if let Some(followed) = followed {
            let stop = admin_stop.clone();
            served.spawn(async move {
                stop.run_until_cancelled_owned(followed.run()).await;
            });
        }
        served.close();
        let mut told = String::new();
        while stop.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            let file = path.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || Config::read(&file)).await else { continue };
            let used = match read {
                Ok(read) if read == config => {
                    told.clear();
                    continue;
                }
                Ok(read) => {
                    ports.change(&config, &read).map(|()| read).map_err(|error| format!("{}: {error}", path.display()))
                }
                Err(error) => Err(error.to_string()),
            };
            match used {
                Ok(read) => {
                    config = read;
                    told.clear();
                    ports.metrics().reloaded("used");
                    tracing::info!(event = "executor_config_changed", path = %path.display(), "the changed configuration is in use");
                }
                // Told once, not every two seconds.
                Err(error) if error == told => {}
                Err(error) => {
                    ports.metrics().reloaded("refused");
                    tracing::warn!(
                        event = "executor_config_unusable",
                        error,
                        "the changed configuration cannot be used; keeping the one from before"
                    );
                    told = error;
                }
            }
        }
        let cut = ports.drain(config.drain.delay, config.drain.timeout).await;
        ports.close_logs().await;
        admin_stop.cancel();
        served.wait().await;
        cut
    }
}
