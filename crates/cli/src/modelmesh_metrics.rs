//! Metrics under ModelMesh's names, on a port of their own: `--modelmesh-metrics`, `MM_METRICS`.
//!
//! ```text
//! registry ─▶ text ─▶ families by name ─▶ ModelMesh's names and units ─▶ GET /metrics, http or https
//! ```
//! The counts of calls have ModelMesh's names already ([`berth_mesh::calls`]). All others are Berth's own, translated.

mod info;
mod port;
mod table;
mod text;

use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

pub(crate) use self::{info::Info, port::serve};
use crate::failure::Failure;

/// Default port.
const PORT: u16 = 2112;

/// Settings of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    /// TLS, with the certificate of the port for inference, or a self-made one.
    pub(crate) tls: bool,
    /// True if clients show the certificates that the port for inference asks for.
    pub(crate) asks_clients: bool,
    pub(crate) calls: berth_mesh::calls::Settings,
    /// A sample with constant labels.
    pub(crate) info: Option<Info>,
}

impl Settings {
    /// Refuses a port that others reach without TLS: scrapers send tokens to it.
    pub(crate) fn check_exposed(&self, address: IpAddr, insecure: bool) -> Result<(), Failure> {
        if self.tls || insecure || address.is_loopback() {
            return Ok(());
        }
        let at = SocketAddr::new(address, self.port);
        Err(Failure::Usage(format!(
            "--modelmesh-metrics {at} can be reached by others and has no TLS: leave scheme=http out; behind a proxy that has TLS, \
             --insecure does without"
        )))
    }
}

impl FromStr for Settings {
    type Err = String;

    /// Reads `prometheus`, or `prometheus:port=2112;scheme=https;fq_names=false;per_model_metrics=false`.
    fn from_str(said: &str) -> Result<Self, String> {
        let (kind, parameters) = said.split_once(':').unwrap_or((said, ""));
        if !kind.eq_ignore_ascii_case("prometheus") {
            return Err(format!("{kind:?} is not known: give prometheus, or prometheus:port=2112;scheme=https"));
        }
        let calls = berth_mesh::calls::Settings::default();
        let mut settings = Self { port: PORT, tls: true, asks_clients: true, calls, info: None };
        for parameter in parameters.split(';').filter(|parameter| !parameter.is_empty()) {
            let wrong = || {
                format!(
                    "{parameter:?} is not understood: give port=PORT, scheme=http or https, fq_names=BOOL, per_model_metrics=BOOL"
                )
            };
            let (name, value) = parameter.split_once('=').ok_or_else(wrong)?;
            let flag = || value.to_ascii_lowercase().parse::<bool>().map_err(|_| wrong());
            match (name, value) {
                ("port", port) => settings.port = port.parse().map_err(|_| wrong())?,
                ("scheme", "http") => settings.tls = false,
                ("scheme", "https") => settings.tls = true,
                ("fq_names", _) => settings.calls.full_names = flag()?,
                ("per_model_metrics", _) => settings.calls.per_model = flag()?,
                // The detail of a Java heap.
                ("mem_detail", _) => {}
                _ => return Err(wrong()),
            }
        }
        Ok(settings)
    }
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
        let plain = Settings { port: 2112, tls: true, asks_clients: true, calls, info: None };
        assert_eq!(of("prometheus"), Ok(plain.clone()));
        let calls = berth_mesh::calls::Settings { full_names: true, per_model: true };
        let all = Settings { port: 9, tls: false, calls, ..plain };
        assert_eq!(of("prometheus:port=9;scheme=http;fq_names=true;per_model_metrics=TRUE;mem_detail=all"), Ok(all));
        for wrong in [
            "graphite",
            "statsd:port=8126",
            "prometheus:port=x",
            "prometheus:scheme=ftp",
            "prometheus:x=y",
            "prometheus:port",
        ] {
            assert_eq!(of(wrong), Err(()), "{wrong}");
        }
    }
}
