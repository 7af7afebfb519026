//! Keys that all tests share (making one takes a second), and secrets in the clear.

use std::{path::PathBuf, sync::OnceLock};

use berth_secrets::{
    Document, Keyring, Plain, encrypt,
    keys::{Decrypt, File, PublicKey, generate},
    plain_of,
};
use berth_spec::{Time, WorkerId};

/// Two pairs: `one` and `other`.
pub(crate) fn folder() -> &'static PathBuf {
    static FOLDER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        for name in ["one", "other"] {
            generate(&path.join(format!("{name}.key")), &path.join(format!("{name}.pub"))).expect("keys");
        }
        (folder, path)
    });
    path
}

pub(crate) fn public(name: &str) -> PublicKey {
    PublicKey::read(&folder().join(format!("{name}.pub"))).expect("a public key")
}

pub(crate) fn keyring(names: &[&str]) -> Keyring {
    let open = |name: &&str| {
        let key = File::open(&folder().join(format!("{name}.key"))).expect("a private key");
        Box::new(key) as Box<dyn Decrypt>
    };
    Keyring::new(names.iter().map(open).collect())
}

pub(crate) fn worker() -> WorkerId {
    WorkerId::new("worker-us-east-1a").expect("a name")
}

pub(crate) const NOW: Time = Time(1_761_648_300_000_000_000);

/// Plain text for the tests. Values with `SECRET` must appear nowhere else.
pub(crate) const PLAIN: &str = "\
secrets:
  s3_access:
    type: s3_credentials
    access_key_id: AKIA-SECRET
    secret_access_key: s3-SECRET
    region: us-east-1
  gcs_access:
    type: gcs_service_account
    credentials_json: |
      {
        \"type\": \"service_account\", \"client_email\": \"a@b\", \"private_key\": \"k-SECRET\"
      }
  model_registry_token:
    type: git_token
    token: \"123-SECRET\"
    scopes:
      - repo:read
    hosts: [git.acme.com]
";

pub(crate) fn plain(text: &str) -> Plain {
    plain_of(text, "-").expect("secrets")
}

pub(crate) fn encrypted() -> Document {
    encrypt(&worker(), &plain(PLAIN), &[public("one")], None, NOW).expect("a file")
}

pub(crate) fn again(document: &Document) -> Document {
    Document::parse(&document.to_yaml(), "worker-us-east-1a-secrets.yaml").expect("what was written can be read")
}
