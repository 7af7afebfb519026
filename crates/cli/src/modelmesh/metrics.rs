//! Metrics under ModelMesh's names, on a port of their own: `MM_METRICS`.
//!
//! ```text
//! registry ─▶ text ─▶ families by name ─▶ ModelMesh's names and units ─▶ GET /metrics, http or https
//! ```
//! The counts of calls have ModelMesh's names already ([`berth_mesh::calls`]). All others are Berth's own, told in its words.

mod port;
mod table;
mod text;

pub(super) use self::port::start;

/// The port where nobody says.
const PORT: u16 = 2112;

/// The settings of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) port: u16,
    /// TLS, with the certificate of the port for clients, or one that is made.
    pub(super) tls: bool,
    pub(super) calls: berth_mesh::calls::Settings,
}

/// Reads `MM_METRICS`: the settings of the port, if there is to be one, and what is said about what is not read.
///
/// # Errors
/// For people: what is wrong in it.
pub(super) fn read(said: Option<&str>) -> Result<(Option<Settings>, Option<String>), String> {
    let Some(said) = said else { return Ok((None, None)) };
    let (kind, parameters) = said.split_once(':').unwrap_or((said, ""));
    match kind.to_ascii_lowercase().as_str() {
        "disabled" => return Ok((None, None)),
        "statsd" => {
            let instead = "MM_METRICS: statsd is not there: prometheus is, and the control API serves /metrics";
            return Ok((None, Some(instead.to_owned())));
        }
        "prometheus" => {}
        _ => return Err(format!("MM_METRICS is {said:?}: it begins with prometheus, statsd or disabled")),
    }
    let mut settings = Settings { port: PORT, tls: true, calls: berth_mesh::calls::Settings::default() };
    let mut unread = None;
    for parameter in parameters.split(';').filter(|parameter| !parameter.is_empty()) {
        let wrong = || format!("MM_METRICS: {parameter:?} is not understood");
        let (name, value) = parameter.split_once('=').ok_or_else(wrong)?;
        let yes = value.eq_ignore_ascii_case("true");
        match (name, value) {
            ("port", port) => settings.port = port.parse().map_err(|_| wrong())?,
            ("scheme", "http") => settings.tls = false,
            ("scheme", "https") => settings.tls = true,
            ("fq_names", _) => settings.calls.full_names = yes,
            ("per_model_metrics", _) => settings.calls.per_model = yes,
            ("mem_detail", _) => unread = Some("MM_METRICS: mem_detail is not read: there is no heap".to_owned()),
            _ => return Err(wrong()),
        }
    }
    Ok((Some(settings), unread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_modelmeshs() {
        let of = |said| read(Some(said)).map(|(settings, _)| settings);
        let plain = Settings { port: 2112, tls: true, calls: berth_mesh::calls::Settings::default() };
        assert_eq!(of("prometheus"), Ok(Some(plain)));
        let calls = berth_mesh::calls::Settings { full_names: true, per_model: true };
        let all = Settings { port: 9, tls: false, calls };
        assert_eq!(
            of("prometheus:port=9;scheme=http;fq_names=true;per_model_metrics=true;mem_detail=all"),
            Ok(Some(all))
        );
        assert_eq!((of("disabled"), read(None)), (Ok(None), Ok((None, None))));
        assert!(read(Some("statsd:port=8126")).is_ok_and(|(settings, said)| settings.is_none() && said.is_some()));
        for wrong in ["graphite", "prometheus:port=x", "prometheus:scheme=ftp", "prometheus:x=y", "prometheus:port"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
