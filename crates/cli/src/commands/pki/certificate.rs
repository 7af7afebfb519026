//! One certificate as a person wants to see it: whose, by whom, until when.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_peer::pki::{DOMAIN, ROLE_DOMAIN};
use berth_spec::Time;
use berth_wire::api::Timestamp;
use fs_err as fs;
use serde_json::json;
use x509_parser::{extensions::GeneralName, pem::Pem};

use crate::{
    failure::Failure,
    terminal::{now, short},
};

/// Description of a certificate.
#[derive(Debug)]
pub(super) struct Certificate {
    file: PathBuf,
    /// The node that it is for, if it is for one.
    node: Option<String>,
    /// DNS names and addresses in it.
    names: Vec<String>,
    subject: String,
    issuer: String,
    from: Time,
    /// End of its validity.
    pub(super) until: Time,
    /// Serial number in hexadecimal digits, without leading zeros.
    pub(super) serial: String,
}

impl Certificate {
    /// Reads the first certificate of a file.
    pub(super) fn read(file: &Path) -> Result<Self, Failure> {
        let text = fs::read(file)?;
        let wrong = |what: &str| Failure::Failed(format!("{} {what}", file.display()));
        let pem = Pem::iter_from_buffer(&text).flatten().find(|pem| pem.label == "CERTIFICATE");
        let pem = pem.ok_or_else(|| wrong("holds no certificate: expected PEM with BEGIN CERTIFICATE"))?;
        let parsed = pem.parse_x509().map_err(|error| wrong(&format!("is no certificate ({error})")))?;
        let general = parsed.subject_alternative_name().ok().flatten();
        let names: Vec<String> =
            general.iter().flat_map(|names| &names.value.general_names).filter_map(shown).collect();
        let at = |seconds: i64| Time(u64::try_from(seconds).unwrap_or_default().saturating_mul(1_000_000_000));
        Ok(Self {
            file: file.to_owned(),
            node: names.iter().find_map(|name| name.strip_suffix(DOMAIN).map(str::to_owned)),
            names,
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            from: at(parsed.validity().not_before.timestamp()),
            until: at(parsed.validity().not_after.timestamp()),
            serial: format!("{:x}", parsed.serial),
        })
    }

    /// The day on which it ends.
    pub(super) fn until(&self) -> String {
        day(self.until)
    }

    fn roles(&self) -> Vec<&str> {
        self.names.iter().filter_map(|name| name.strip_suffix(ROLE_DOMAIN)).collect()
    }

    /// Some lines for a person.
    pub(super) fn shown(&self) -> String {
        let mut text = format!("{}\n", self.file.display());
        let who = match &self.node {
            Some(node) => {
                let (names, roles) = (self.names.join(", "), self.roles().join(", "));
                let roles = if roles.is_empty() { "none: issue it again" } else { &roles };
                format!("  for        the node {node}\n  roles      {roles}\n  names      {names}\n")
            }
            None => format!("  for        {}\n", self.subject),
        };
        text.push_str(&who);
        text.push_str(&format!("  serial     {}\n  issued by  {}\n", self.serial, self.issuer));
        text.push_str(&format!("  holds      {} to {}, {}\n", day(self.from), day(self.until), self.left(now())));
        text
    }

    /// The same for programs.
    pub(super) fn machine(&self) -> serde_json::Value {
        let left = self.until.since(now()).as_secs() / 86_400;
        json!({
            "file": self.file.display().to_string(),
            "node": self.node,
            "roles": self.roles(),
            "names": self.names,
            "serial": self.serial,
            "subject": self.subject,
            "issuer": self.issuer,
            "notBefore": Timestamp(self.from).to_string(),
            "notAfter": Timestamp(self.until).to_string(),
            "daysLeft": left,
        })
    }

    fn left(&self, now: Time) -> String {
        /// From then on it should be renewed: a tenth of a year.
        const SOON: Duration = Duration::from_secs(36 * 86_400);
        match self.until.since(now) {
            Duration::ZERO => format!("expired {} ago: `berth pki issue` renews it", short(now.since(self.until))),
            left if left < SOON => format!("{} left: `berth pki issue` renews it", short(left)),
            left => format!("{} days left", left.as_secs() / 86_400),
        }
    }
}

/// Date of a time, for example `2027-11-21`.
fn day(at: Time) -> String {
    let text = at.to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

fn shown(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(IpAddr::from([a, b, c, d]).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    }
}
