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

use std::str::FromStr;

pub(crate) use self::{info::Info, port::serve};

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
