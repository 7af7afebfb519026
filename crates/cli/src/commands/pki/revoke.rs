//! `berth pki revoke`, `revocations`, `reinstate`: certificates that no node takes any more.

use std::path::PathBuf;

use berth_wire::api::{NewRevocation, RevocationSpec, RevocationView, Timestamp};
use clap::Args;
use reqwest::Method;

use super::certificate::Certificate;
use crate::{
    client::ApiArgs,
    commands::output::{Form, Row, creator, or_dash, print_list},
    failure::Failure,
    terminal::{self, age},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki revoke gpu-1 --reason 'stolen'                all certificates of gpu-1 so far
  berth pki revoke --certificate ./pki/gpu-1/node.pem     this one alone
  berth pki revoke --serial 1f:a0:33

Within seconds every node refuses the certificates and cuts connections that were made with them.
The revocation goes when they have ended. A node that was stolen also knows the gossip key, and a
controller the store's credentials: change them, too (docs/cluster.md, \"A node was stolen\").")]
pub(super) struct RevokeArgs {
    /// Node whose certificates are revoked
    #[arg(value_name = "NODE", conflicts_with_all = ["serial", "certificate"], required_unless_present_any = ["serial", "certificate"])]
    node: Option<String>,
    /// Serial number of the certificate, as `berth pki show` prints it
    #[arg(long, value_name = "HEX", conflicts_with = "certificate")]
    serial: Option<String>,
    /// File with the certificate
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Reason, for the list and the audit log
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki revocations                      refused nodes and certificates, and until when")]
pub(super) struct RevocationsArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki reinstate kq3vbn2xwp             a name that `berth pki revocations` shows")]
pub(super) struct ReinstateArgs {
    /// Names of revocations, as `berth pki revocations` shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

impl RevokeArgs {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let file = self.certificate.as_deref().map(Certificate::read).transpose()?;
        let until = file.as_ref().map(|certificate| Timestamp(certificate.until));
        let serial = self.serial.clone().or_else(|| file.map(|certificate| certificate.serial));
        let spec = RevocationSpec { node: self.node.clone(), serial, reason: self.reason.clone() };
        let client = self.api.client()?;
        let new = NewRevocation { spec, until };
        let made: RevocationView = client.json(client.request(Method::POST, &["revocations"], &[]).json(&new)).await?;
        let (name, of) = (&made.metadata.name, of(&made));
        Ok(terminal::print(&format!(
            "revocation/{name} made: no node takes {of} any more\n`berth pki reinstate {name}` takes it back"
        ))?)
    }
}

impl RevocationsArgs {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let all = self.api.client()?.list::<RevocationView>(&["revocations"], &[]).await?;
        print_list("revocation", &all, self.output)
    }
}

impl ReinstateArgs {
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let client = self.api.client()?;
        for name in &self.names {
            let name = name.strip_prefix("revocation/").unwrap_or(name);
            let gone: RevocationView = client.json(client.request(Method::DELETE, &["revocations", name], &[])).await?;
            terminal::print(&format!("revocation/{name} taken back: nodes take {} again", of(&gone)))?;
        }
        Ok(())
    }
}

/// The certificates that a revocation is about, for people.
fn of(revocation: &RevocationView) -> String {
    match (&revocation.spec.node, &revocation.spec.serial) {
        (Some(node), _) => format!("the certificates of the node {node} from before"),
        (None, Some(serial)) => format!("the certificate with the serial number {serial}"),
        (None, None) => "certificates".to_owned(),
    }
}

impl Row for RevocationView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "NODE", "SERIAL", "REVOKED", "BY", "REASON"], &["UNTIL"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let (spec, status) = (&self.spec, &self.status);
        vec![
            self.metadata.name.clone(),
            spec.node.clone().unwrap_or_else(|| "-".to_owned()),
            spec.serial.clone().unwrap_or_else(|| "-".to_owned()),
            age(status.created_at),
            creator(&status.created_by),
            or_dash(&spec.reason),
            status.until.map_or_else(|| "-".to_owned(), |until| until.to_string()),
        ]
    }
}
