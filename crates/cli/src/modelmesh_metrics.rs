//! Metrics under ModelMesh's names: `--modelmesh-metrics`, `MM_METRICS`.
//!
//! ```text
//! registry ─▶ text ─▶ families by name ─▶ ModelMesh's names and units ─▶ GET /metrics, http or https, on a port of its own
//!                                                                     └▶ datagrams to a StatsD server
//! ```
//! The counts of calls have ModelMesh's names already ([`berth_mesh::calls`]). All others are Berth's own, translated.

mod info;
mod port;
mod statsd;
mod table;
mod text;

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

use berth_control::api::MetricsSource;
use berth_wire::access::Access;

use self::statsd::Statsd;
pub(crate) use self::{info::Info, port::Scrape};
use crate::{failure::Failure, settings::ServerSettings};

/// Default port for Prometheus: ModelMesh's.
const PORT: u16 = 2112;

/// Default port of a StatsD server.
const STATSD: u16 = 8126;

/// Metrics under ModelMesh's names, and the way in which they leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) calls: berth_mesh::calls::Settings,
    pub(crate) way: Way,
}

/// The way in which metrics leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// Prometheus asks for them.
    Scraped(Scrape),
    /// Sent to StatsD.
    Sent(Statsd),
}

impl Settings {
    /// Refuses a port that others reach without TLS: scrapers send tokens to it.
    pub(crate) fn check_exposed(&self, address: IpAddr, insecure: bool) -> Result<(), Failure> {
        let Way::Scraped(scrape) = &self.way else { return Ok(()) };
        if scrape.tls || insecure || address.is_loopback() {
            return Ok(());
        }
        let at = SocketAddr::new(address, scrape.port);
        Err(Failure::Usage(format!(
            "--modelmesh-metrics {at} can be reached by others and has no TLS: leave scheme=http out; behind a proxy that has TLS, \
             --insecure does without"
        )))
    }

    /// The same for an instance of ModelMesh: its port asks nobody for a certificate, and may tell an information metric.
    pub(crate) fn of_instance(mut self, info: Option<Info>) -> Self {
        if let Way::Scraped(scrape) = &mut self.way {
            (scrape.asks_clients, scrape.info) = (false, info);
        }
        self
    }

    /// Lets metrics leave until the process ends.
    ///
    /// # Errors
    /// [`Failure`]: a port is taken, or its certificate cannot be used.
    pub(crate) fn serve(
        &self,
        server: &ServerSettings,
        metrics: MetricsSource,
        access: Arc<Access>,
    ) -> Result<(), Failure> {
        match &self.way {
            Way::Scraped(scrape) => port::serve(scrape, server, metrics, access),
            Way::Sent(statsd) => statsd::send(*statsd, metrics),
        }
    }
}

impl FromStr for Settings {
    type Err = String;

    /// Reads `prometheus:port=2112;scheme=https;fq_names=false;per_model_metrics=false` or
    /// `statsd:port=8126;fq_names=false;legacy=false`; parameters may be left out.
    fn from_str(said: &str) -> Result<Self, String> {
        let (kind, parameters) = said.split_once(':').unwrap_or((said, ""));
        let parameters = parameters.split(';').filter(|parameter| !parameter.is_empty());
        match kind.to_ascii_lowercase().as_str() {
            "prometheus" => scraped(parameters),
            "statsd" => sent(parameters),
            _ => Err(format!(
                "{kind:?} is not known: give prometheus or statsd, as in prometheus:port=2112;scheme=https"
            )),
        }
    }
}

fn flag(value: &str) -> Option<bool> {
    value.to_ascii_lowercase().parse().ok()
}

fn scraped<'s>(parameters: impl Iterator<Item = &'s str>) -> Result<Settings, String> {
    let mut calls = berth_mesh::calls::Settings::default();
    let mut scrape = Scrape { port: PORT, tls: true, asks_clients: true, info: None };
    for parameter in parameters {
        let mut take = || {
            match parameter.split_once('=')? {
                ("port", port) => scrape.port = port.parse().ok()?,
                ("scheme", "http") => scrape.tls = false,
                ("scheme", "https") => scrape.tls = true,
                ("fq_names", value) => calls.full_names = flag(value)?,
                ("per_model_metrics", value) => calls.per_model = flag(value)?,
                // The detail of a Java heap.
                ("mem_detail", _) => {}
                _ => return None,
            }
            Some(())
        };
        take().ok_or_else(|| {
            format!(
                "{parameter:?} is not understood: give port=PORT, scheme=http or https, fq_names=BOOL, per_model_metrics=BOOL"
            )
        })?;
    }
    Ok(Settings { calls, way: Way::Scraped(scrape) })
}

fn sent<'s>(parameters: impl Iterator<Item = &'s str>) -> Result<Settings, String> {
    let mut calls = berth_mesh::calls::Settings::default();
    let mut statsd = Statsd { port: STATSD, legacy: false };
    for parameter in parameters {
        let mut take = || {
            match parameter.split_once('=')? {
                ("port", port) => statsd.port = port.parse().ok()?,
                ("legacy", value) => statsd.legacy = flag(value)?,
                ("fq_names", value) => calls.full_names = flag(value)?,
                _ => return None,
            }
            Some(())
        };
        take().ok_or_else(|| format!("{parameter:?} is not understood: give port=PORT, fq_names=BOOL, legacy=BOOL"))?;
    }
    Ok(Settings { calls, way: Way::Sent(statsd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_reach_it_over_tls_alone() {
        let settings = |said: &str| said.parse::<Settings>().expect("a setting");
        for (said, address, insecure, is_good) in [
            ("prometheus", "0.0.0.0", false, true),
            ("prometheus:scheme=http", "127.0.0.1", false, true),
            ("prometheus:scheme=http", "10.0.0.7", true, true),
            ("prometheus:scheme=http", "10.0.0.7", false, false),
        ] {
            let checked = settings(said).check_exposed(address.parse().expect("an address"), insecure);
            assert_eq!(checked.is_ok(), is_good, "{said} {address} {insecure}");
            assert!(checked.is_ok() || checked.is_err_and(|error| error.to_string().contains("10.0.0.7:2112")));
        }
    }

    #[test]
    fn the_setting_is_modelmeshs() {
        let of = |said: &str| said.parse::<Settings>().map_err(|_| ());
        let calls = berth_mesh::calls::Settings::default();
        let scrape = Scrape { port: 2112, tls: true, asks_clients: true, info: None };
        assert_eq!(of("prometheus"), Ok(Settings { calls, way: Way::Scraped(scrape.clone()) }));
        let all = berth_mesh::calls::Settings { full_names: true, per_model: true };
        let way = Way::Scraped(Scrape { port: 9, tls: false, ..scrape });
        assert_eq!(
            of("prometheus:port=9;scheme=http;fq_names=true;per_model_metrics=TRUE;mem_detail=all"),
            Ok(Settings { calls: all, way })
        );
        assert_eq!(of("statsd"), Ok(Settings { calls, way: Way::Sent(Statsd { port: 8126, legacy: false }) }));
        let full = berth_mesh::calls::Settings { full_names: true, per_model: false };
        let way = Way::Sent(Statsd { port: 9, legacy: true });
        assert_eq!(of("StatsD:port=9;legacy=true;fq_names=true"), Ok(Settings { calls: full, way }));
        for wrong in [
            "graphite",
            "statsd:scheme=http",
            "statsd:port=70000",
            "prometheus:port=x",
            "prometheus:scheme=ftp",
            "prometheus:x=y",
            "prometheus:port",
        ] {
            assert_eq!(of(wrong), Err(()), "{wrong}");
        }
    }
}
