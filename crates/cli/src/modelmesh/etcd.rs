//! The store as `KV_STORE` names it: `etcd:` and addresses, or `etcd:` and a file in JSON.

use std::path::{Path, PathBuf};

use berth_control::store::etcd::{EtcdConfig, EtcdCredentials, EtcdTls};
use serde::Deserialize;

/// The etcd of an instance, with the prefix and the credentials that ModelMesh's file gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KvStore {
    /// `HOST:PORT` of members.
    pub(super) endpoints: Vec<String>,
    tls: bool,
    login: Option<(String, String)>,
    root: String,
    authority: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<String>,
}

/// The file, in the words of IBM's client of etcd.
#[derive(Debug, Deserialize)]
struct File {
    endpoints: String,
    userid: Option<String>,
    password: Option<String>,
    root_prefix: Option<String>,
    #[serde(alias = "certificate")]
    certificate_file: Option<String>,
    #[serde(alias = "client_key")]
    client_key_file: Option<String>,
    #[serde(alias = "client_certificate")]
    client_certificate_file: Option<String>,
    override_authority: Option<String>,
}

impl KvStore {
    /// Reads `KV_STORE`, and the file that it names.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let Some(config) = text.trim().strip_prefix("etcd:") else {
            return Err(format!("KV_STORE is {text:?}: only etcd: is known here, as in etcd:http://HOST:2379"));
        };
        if config.starts_with("http://") || config.starts_with("https://") {
            return Self::of_endpoints(config);
        }
        let path = Path::new(config);
        let text = fs_err::read_to_string(path).map_err(|error| format!("KV_STORE: {error}"))?;
        let file: File = serde_json::from_str(&text)
            .map_err(|error| format!("KV_STORE: {} is no configuration of etcd: {error}", path.display()))?;
        // Named files lie beside it.
        let beside = |name: String| path.parent().unwrap_or(Path::new("")).join(name);
        let login = file.userid.filter(|user| !user.is_empty());
        Ok(Self {
            login: login.map(|user| (user, file.password.unwrap_or_default())),
            root: file.root_prefix.unwrap_or_default().trim_matches('/').to_owned(),
            authority: file.certificate_file.map(beside),
            identity: file.client_certificate_file.map(beside).zip(file.client_key_file.map(beside)),
            server_name: file.override_authority,
            ..Self::of_endpoints(&file.endpoints)?
        })
    }

    fn of_endpoints(list: &str) -> Result<Self, String> {
        let mut secured = Vec::new();
        let mut endpoints = Vec::new();
        for endpoint in list.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty()) {
            let (tls, rest) = match endpoint.split_once("://") {
                Some(("http", rest)) => (false, rest),
                Some(("https", rest)) => (true, rest),
                _ => return Err(format!("{endpoint:?} is not a valid address of etcd: write http://HOST:2379")),
            };
            let host = rest.trim_end_matches('/');
            endpoints.push(if has_port(host) { host.to_owned() } else { format!("{host}:2379") });
            secured.push(tls);
        }
        let tls = *secured.first().ok_or("KV_STORE names no address of etcd: write etcd:http://HOST:2379")?;
        if secured.iter().any(|one| *one != tls) {
            return Err("KV_STORE names addresses with and without TLS: use one of both".to_owned());
        }
        let (login, root, authority, identity, server_name) = Default::default();
        Ok(Self { endpoints, tls, login, root, authority, identity, server_name })
    }

    /// The client's settings for keys below `prefix`. Reads the files of certificates.
    pub(super) fn config(&self, prefix: &str) -> Result<EtcdConfig, String> {
        let tls = self.tls.then(|| {
            let identity = self.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
            let read = EtcdTls::read(self.authority.as_deref(), identity);
            read.map(|tls| EtcdTls { server_name: self.server_name.clone(), ..tls })
        });
        let parts = [self.root.as_str(), prefix.trim_matches('/')];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        Ok(EtcdConfig {
            endpoints: self.endpoints.clone(),
            prefix: parts.fold(String::new(), |prefix, part| format!("{prefix}/{part}")),
            tls: tls.transpose().map_err(|error| format!("KV_STORE: {error}"))?,
            credentials: self.login.clone().map(|(user, password)| EtcdCredentials { user, password }),
            patience: Default::default(),
        })
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_files() {
        let store = KvStore::parse("etcd:http://a:2379,http://b").expect("a store");
        let config = store.config("tas-runtime/svc").expect("settings");
        assert_eq!(
            (config.endpoints, config.prefix),
            (vec!["a:2379".to_owned(), "b:2379".to_owned()], "/tas-runtime/svc".to_owned())
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("etcd_connection");
        let text = r#"{"endpoints": "http://e:1", "userid": "u", "password": "p", "root_prefix": "/root/"}"#;
        fs_err::write(&path, text).expect("written");
        let store = KvStore::parse(&format!("etcd:{}", path.display())).expect("a store");
        let config = store.config("mm").expect("settings");
        assert_eq!(config.prefix, "/root/mm");
        assert_eq!(config.credentials.map(|login| login.user).as_deref(), Some("u"));
        for wrong in ["zookeeper:x", "etcd:", "etcd:/nonexistent", "etcd:http://a,https://b"] {
            assert!(KvStore::parse(wrong).is_err(), "{wrong}");
        }
    }
}
