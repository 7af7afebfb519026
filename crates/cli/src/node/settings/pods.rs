//! Settings of nodes that are pods of Kubernetes: the token by which they join, and those whom controllers let join so.

use std::path::{Path, PathBuf};

use berth_kubernetes::JoiningPods;
use berth_peer::pki::JoinToken;
use clap::Args;
use fs_err as fs;

use crate::{failure::Failure, settings::values::HostPort};

/// Port for connections from other nodes where none is written.
const PEER_PORT: u16 = 7947;

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct PodArgs {
    /// File with a token of this pod's service account for the audience berth-join: the node asks the cluster for its certificate with it,
    /// and keeps that in the folder --pki or in its data folder. Needs --join-ca and --join-at
    #[arg(long, value_name = "FILE", env = "BERTH_POD_TOKEN_FILE", conflicts_with = "join_token")]
    pod_token: Option<PathBuf>,
    /// Fingerprint of the cluster's CA, for a pod that joins: SHA-256 in hexadecimal digits
    #[arg(long, value_name = "FINGERPRINT", env = "BERTH_JOIN_CA", value_parser = fingerprint)]
    join_ca: Option<String>,
    /// Address of a controller (its --peer), for a pod that joins. Repeatable
    #[arg(long, value_name = "HOST[:PORT],…", env = "BERTH_JOIN_AT", value_delimiter = ',', value_parser = controller)]
    join_at: Vec<HostPort>,
    /// Pods that get certificates with these roles from this controller: those of the service account NAME-nodes that the StatefulSet NAME
    /// made, as the API server of Kubernetes attests. Needs --authority
    #[arg(long, value_name = "NAMESPACE/ACCOUNT=ROLE,…", env = "BERTH_JOIN_PODS")]
    join_pods: Option<JoiningPods>,
}

fn controller(text: &str) -> Result<HostPort, String> {
    HostPort::parse(text, PEER_PORT)
}

/// Reads 64 digits, also as `openssl x509 -fingerprint -sha256` writes them, with colons between.
fn fingerprint(text: &str) -> Result<String, String> {
    let digits = text.trim().replace(':', "").to_ascii_lowercase();
    if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(digits);
    }
    Err("write the 64 digits that `openssl x509 -in ca.pem -noout -fingerprint -sha256` prints".to_owned())
}

impl PodArgs {
    /// The file with the pod's token.
    pub(super) fn token(&self) -> Option<&Path> {
        self.pod_token.as_deref()
    }

    /// The pods that may join.
    pub(super) fn joining(self) -> Option<JoiningPods> {
        self.join_pods
    }

    /// Reads the pod's token, with which the node asks as with a join token.
    ///
    /// # Errors
    /// The file cannot be read, or nobody says whom to ask.
    pub(super) fn read(&self, file: &Path) -> Result<JoinToken, Failure> {
        let Some(ca) = self.join_ca.clone().filter(|_| !self.join_at.is_empty()) else {
            let error =
                "--pod-token needs --join-ca FINGERPRINT, the cluster's CA, and --join-at HOST:PORT, its controllers";
            return Err(Failure::Usage(error.to_owned()));
        };
        let secret = fs::read_to_string(file).map_err(|error| Failure::Usage(format!("--pod-token: {error}")))?;
        let at = self.join_at.iter().map(ToString::to_string).collect();
        Ok(JoinToken { secret: secret.trim().to_owned(), ca, at, roles: None })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArgs {
        /// As in the settings of a node.
        #[arg(long)]
        join_token: Option<PathBuf>,
        #[command(flatten)]
        pods: PodArgs,
    }

    fn pods(words: &str) -> Result<PodArgs, String> {
        let words = std::iter::once("node").chain(words.split_whitespace());
        let args = TestArgs::try_parse_from(words).map_err(|error| error.to_string())?;
        assert_eq!(args.join_token, None);
        Ok(args.pods)
    }

    #[test]
    fn a_pod_asks_with_the_token_that_it_has_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let colons = "AB:".repeat(31);
        let words = format!("--pod-token {} --join-ca {colons}AB --join-at fleet.svc,10.0.0.2:80", file.display());
        let pods = pods(&words).expect("settings");
        let file = pods.token().expect("a file");
        let error = pods.read(file).expect_err("it is not there").to_string();
        assert!(error.contains("--pod-token"), "{error}");
        for text in ["a.b.c\n", "d.e.f"] {
            fs::write(file, text).expect("written");
            let at = vec!["fleet.svc:7947".to_owned(), "10.0.0.2:80".to_owned()];
            let (secret, ca) = (text.trim().to_owned(), "ab".repeat(32));
            assert_eq!(pods.read(file).expect("read"), JoinToken { secret, ca, at, roles: None });
        }
    }

    #[test]
    fn a_pod_has_to_know_whom_it_asks() {
        let ca = "ab".repeat(32);
        for words in [format!("--join-ca {ca}"), "--join-at a".to_owned(), String::new()] {
            let pods = pods(&format!("--pod-token t {words}")).expect("settings");
            let error = pods.read(Path::new("t")).expect_err("it does not know").to_string();
            assert!(error.contains("--join-ca") && error.contains("--join-at"), "{words}: {error}");
        }
        for (words, says) in [
            ("--join-ca abcd", "64 digits"),
            ("--join-at a:b:c", "--join-at"),
            ("--join-pods fleet=worker", "NAMESPACE/SERVICEACCOUNT"),
            ("--pod-token t --join-token j", "cannot be used with"),
        ] {
            let error = pods(words).err().unwrap_or_default();
            assert!(error.contains(says), "{words}: {error}");
        }
    }
}
