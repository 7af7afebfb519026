//! The section `access`, and `tls` of a port.

use std::path::PathBuf;

use berth_peer::port::{ClientAuth, TlsSettings, TlsVersion};
use berth_spec::{DeploymentName, UseLimits};
use serde::Deserialize;

use super::{Size, Template};
use crate::access::AccessSettings;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccess {
    file: Option<PathBuf>,
    tokens: Option<PathBuf>,
    model: String,
    #[serde(default)]
    open: Vec<Template>,
    #[serde(default)]
    limits: RawLimits,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawLimits {
    rate: Option<u32>,
    burst: Option<u32>,
    in_flight: Option<u32>,
    bytes_per_second: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawPortTls {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    clients: Option<RawClients>,
    min: Option<RawVersion>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawClients {
    Off,
    Optional,
    Required,
}

#[derive(Clone, Copy, Deserialize)]
enum RawVersion {
    #[serde(rename = "1.2")]
    V1_2,
    #[serde(rename = "1.3")]
    V1_3,
}

impl RawAccess {
    pub(super) fn checked(self) -> Result<AccessSettings, String> {
        if self.file.is_none() && self.tokens.is_none() {
            return Err("access names neither tokens nor file: nobody could be let in".to_owned());
        }
        let model = DeploymentName::new(&self.model).map_err(|error| format!("access.model: {error}"))?;
        let RawLimits { rate, burst, in_flight, bytes_per_second } = self.limits;
        let bytes_per_second = bytes_per_second.map(|size| berth_spec::ByteSize(size.0));
        let limits = UseLimits { rate, burst, in_flight, bytes_per_second, max_wait: None };
        limits.check().map_err(|(field, message)| format!("access.limits.{field}: {message}"))?;
        let open = self.open.into_iter().map(|path| path.0).collect();
        Ok(AccessSettings { file: self.file, tokens: self.tokens, model, open, limits })
    }
}

impl RawPortTls {
    pub(super) fn checked(self) -> Result<TlsSettings, String> {
        let clients = match (self.client_ca, self.clients) {
            (None, None | Some(RawClients::Off)) => ClientAuth::Off,
            (None, Some(_)) => {
                return Err("tls.clients needs tls.clientCa: the CAs of clients' certificates".to_owned());
            }
            (Some(_), Some(RawClients::Off)) => {
                return Err("tls.clientCa is of no use where tls.clients is off".to_owned());
            }
            (Some(ca), None | Some(RawClients::Optional)) => ClientAuth::Optional(ca),
            (Some(ca), Some(RawClients::Required)) => ClientAuth::Required(ca),
        };
        let oldest = match self.min {
            None | Some(RawVersion::V1_3) => TlsVersion::V1_3,
            Some(RawVersion::V1_2) => TlsVersion::V1_2,
        };
        Ok(TlsSettings { certificate: self.certificate, key: self.key, clients, oldest })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    fn read(port: &str, more: &str) -> Result<Config, String> {
        let text = format!("ports: [{{name: a, listen: 8081, upstream: 8080{port}}}]\n{more}");
        Config::parse(Path::new("executor.yaml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (port, more, expected) in [
            ("", "access: {model: iris}", "neither tokens nor file"),
            ("", "access: {tokens: /t}", "missing field `model`"),
            ("", "access: {tokens: /t, model: ''}", "access.model"),
            ("", "access: {tokens: /t, model: iris, limits: {rate: 0}}", "access.limits.rate"),
            (", tls: {certificate: /c}", "", "missing field `key`"),
            (", tls: {certificate: /c, key: /k, clients: required}", "", "needs tls.clientCa"),
            (", tls: {certificate: /c, key: /k, clientCa: /a, clients: off}", "", "of no use"),
            (", tls: {certificate: /c, key: /k, min: '1.1'}", "", "1.2"),
        ] {
            let error = read(port, more).expect_err(more);
            assert!(error.contains(expected), "{port}{more}: {error}");
        }
        let port = ", tls: {certificate: /c, key: /k, clientCa: /a}";
        let config = read(port, "access: {file: /a, model: team/iris, open: [/health], limits: {inFlight: 3}}");
        let config = config.expect("it is right");
        assert_eq!(config.access.map(|access| access.model.to_string()).as_deref(), Some("team/iris"));
        assert!(config.ports[0].tls.as_ref().is_some_and(|tls| tls.clients.ca().is_some()));
    }
}
