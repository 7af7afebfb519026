//! Follows the access file and the keys of its issuers while ports serve.

use std::{sync::Arc, time::Duration};

use berth_wire::access::{Access, Issuer};
use futures::future::join_all;
use prometheus_client::registry::Registry;

use crate::{
    fetch::IssuerAddress,
    file::{AccessFile, FileError},
    metrics::Metrics,
    schedule::Schedule,
};

/// Interval between checks of the file, as for the files of TLS.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Follower of one access file.
#[derive(Debug)]
pub struct Follower {
    file: AccessFile,
    insecure: bool,
    access: Arc<Access>,
    metrics: Metrics,
}

impl Follower {
    /// Puts the rules of a file into force. `insecure` is what the file was read with.
    #[must_use]
    pub fn new(file: AccessFile, insecure: bool, access: Arc<Access>, registry: &mut Registry) -> Self {
        access.rule(file.rules.clone());
        Self { file, insecure, access, metrics: Metrics::register(registry) }
    }

    /// Uses the file as it changes, for as long as it is polled. A change that cannot be used is warned of once, and the rules
    /// from before stay in force.
    pub async fn run(mut self) {
        loop {
            let (issuers, addresses) = (self.access.issuers(), self.file.addresses.clone());
            let kept = issuers.iter().zip(&addresses).map(|(issuer, address)| keep(issuer, address, &self.metrics));
            let kept = async {
                join_all(kept).await;
                std::future::pending::<()>().await;
            };
            let file = tokio::select! {
                file = self.changed() => file,
                () = kept => return,
            };
            self.access.rule(file.rules.clone());
            self.file = file;
            let path = self.file.path().display();
            tracing::info!(event = "access_file_changed", %path, "the changed access file is in use");
        }
    }

    /// The file, once it is another one that can be used.
    async fn changed(&self) -> AccessFile {
        let mut told = String::new();
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let (path, insecure) = (self.file.path().to_owned(), self.insecure);
            let read = tokio::task::spawn_blocking(move || AccessFile::read(&path, insecure)).await;
            let Ok(read) = read else { continue };
            self.metrics.usable(read.is_ok());
            match read {
                Ok(file) if file.digest == self.file.digest => told.clear(),
                Ok(file) => return file,
                Err(error) => warn(&error, &mut told),
            }
        }
    }
}

fn warn(error: &FileError, told: &mut String) {
    let error = error.to_string();
    if *told != error {
        tracing::warn!(event = "access_file_unusable", %error, "the changed access file cannot be used; keeping the rules from before");
        *told = error;
    }
}

/// Keeps the keys of an issuer, for as long as it is polled.
async fn keep(issuer: &Issuer, address: &IssuerAddress, metrics: &Metrics) {
    let client = match address.client() {
        Ok(client) => client,
        Err(error) => {
            let issuer = issuer.url();
            tracing::error!(
                event = "issuer_unreadable",
                issuer,
                error,
                "no client for the issuer: its tokens are refused"
            );
            return std::future::pending().await;
        }
    };
    let (mut schedule, mut told) = (Schedule::default(), String::new());
    let url = address.url();
    metrics.keys(url, issuer.keys());
    loop {
        let fetched = address.fetch(&client).await;
        metrics.fetched(url, fetched.is_ok());
        let pause = match fetched {
            Ok(fetched) => {
                let keys = fetched.keys.len();
                metrics.keys(url, keys);
                if issuer.learn(fetched.keys) || !told.is_empty() {
                    tracing::info!(event = "issuer_keys", issuer = url, keys, "the keys of the issuer are known");
                }
                told.clear();
                schedule.fetched(fetched.max_age)
            }
            Err(error) => {
                if told != error {
                    let known = issuer.keys();
                    tracing::warn!(
                        event = "issuer_unreadable",
                        issuer = url,
                        error,
                        known,
                        "the issuer's keys cannot be fetched: those that are known go on"
                    );
                    told = error;
                }
                schedule.failed()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = issuer.sought() => {}
        }
    }
}
