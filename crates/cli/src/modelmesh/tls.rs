//! TLS of the port for clients, from ModelMesh's environment variables.

use std::path::{Path, PathBuf};

/// File of CAs below the instance's folder, where several are named.
const CA_BUNDLE: &str = "client-ca.pem";

/// Names of one variable, the newest first.
type Names<const N: usize> = [&'static str; N];

/// The chain of the server's certificate.
const CERTIFICATE: Names<3> = ["MM_TLS_KEY_CERT_PATH", "MM_SVC_GRPC_CA_CERT_PATH", "TAS_SVC_GRPC_CA_CERT_PATH"];
const KEY: Names<3> = ["MM_TLS_PRIVATE_KEY_PATH", "MM_SVC_GRPC_PRIVATE_KEY_PATH", "TAS_SVC_GRPC_PRIVATE_KEY_PATH"];
/// The passphrase of the key.
const PASSPHRASE: Names<2> = ["MM_TLS_PRIVATE_KEY_PASSPHRASE", "MM_SVC_GRPC_PRIVATE_KEY_PASSPHRASE"];

/// Files of the port's TLS.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tls {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// `None`: clients are not asked for certificates.
    pub(super) clients: Option<Clients>,
}

/// Handling of client certificates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Clients {
    /// The same in the words of `--tls-clients`.
    pub(super) how: &'static str,
    trusted: Vec<PathBuf>,
}

impl Tls {
    /// Checks that the files can be read. What reads them later does not know their variables.
    pub(super) fn check(&self) -> Result<(), String> {
        let trusted = self.clients.iter().flat_map(|clients| &clients.trusted);
        let trusted = trusted.map(|path| ("MM_TLS_TRUST_CERT_PATH", path));
        let own = [("MM_TLS_KEY_CERT_PATH", &self.certificate), ("MM_TLS_PRIVATE_KEY_PATH", &self.key)];
        for (name, path) in own.into_iter().chain(trusted) {
            fs_err::read(path).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(())
    }
}

impl Clients {
    /// One file with all trusted certificates. Several are copied into one below `folder`.
    pub(super) fn file(&self, folder: &Path) -> Result<PathBuf, std::io::Error> {
        let [one] = &self.trusted[..] else {
            let mut together = String::new();
            for each in &self.trusted {
                together.push_str(&fs_err::read_to_string(each)?);
                together.push('\n');
            }
            let file = folder.join(CA_BUNDLE);
            fs_err::write(&file, together)?;
            return Ok(file);
        };
        Ok(one.clone())
    }
}

/// Reads the variables; `text` gives the value of one that is set and not empty.
pub(super) fn of<'v>(text: &impl Fn(&str) -> Option<&'v str>) -> Result<Option<Tls>, String> {
    let how = match text("MM_TLS_CLIENT_AUTH").map(str::to_ascii_uppercase).as_deref() {
        None | Some("NONE") => None,
        Some("OPTIONAL") => Some("optional"),
        Some("REQUIRE") => Some("required"),
        Some(other) => return Err(format!("MM_TLS_CLIENT_AUTH is {other:?}: it must be NONE, OPTIONAL or REQUIRE")),
    };
    let first = |names: &[&str]| names.iter().find_map(|name| text(name));
    let (certificate, key) = match (first(&CERTIFICATE), first(&KEY)) {
        (Some(certificate), Some(key)) => (certificate.into(), key.into()),
        (None, None) if how.is_none() => return Ok(None),
        (None, None) => {
            return Err("MM_TLS_CLIENT_AUTH needs MM_TLS_KEY_CERT_PATH and MM_TLS_PRIVATE_KEY_PATH".to_owned());
        }
        (Some(_), None) => return Err("MM_TLS_KEY_CERT_PATH needs MM_TLS_PRIVATE_KEY_PATH".to_owned()),
        (None, Some(_)) => return Err("MM_TLS_PRIVATE_KEY_PATH needs MM_TLS_KEY_CERT_PATH".to_owned()),
    };
    if first(&PASSPHRASE).is_some() {
        return Err("MM_TLS_PRIVATE_KEY_PASSPHRASE: keys with a passphrase are not read; \
                    `openssl pkcs8 -in KEY -out PLAIN` takes it off"
            .to_owned());
    }
    let trusted = text("MM_TLS_TRUST_CERT_PATH").unwrap_or_default();
    let trusted: Vec<_> =
        trusted.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect();
    let clients = match how {
        None => None,
        Some(_) if trusted.is_empty() => {
            return Err("MM_TLS_CLIENT_AUTH needs MM_TLS_TRUST_CERT_PATH: the certificates to trust".to_owned());
        }
        Some(how) => Some(Clients { how, trusted }),
    };
    Ok(Some(Tls { certificate, key, clients }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: [(&str, &str); 2] = [("MM_TLS_KEY_CERT_PATH", "c"), ("MM_TLS_PRIVATE_KEY_PATH", "k")];

    fn read(pairs: &[&[(&'static str, &'static str)]]) -> Result<Option<Tls>, String> {
        let pairs = pairs.concat();
        of(&|name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value))
    }

    #[test]
    fn tls_as_its_variables_say() {
        let tls = |clients| Some(Tls { certificate: "c".into(), key: "k".into(), clients });
        let trust = ("MM_TLS_TRUST_CERT_PATH", "a.pem, b.pem");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[&SERVER]), Ok(tls(None)));
        let old = [("MM_SVC_GRPC_CA_CERT_PATH", "c"), ("MM_SVC_GRPC_PRIVATE_KEY_PATH", "k")];
        assert_eq!(read(&[&old]), Ok(tls(None)), "it would be served without TLS otherwise");
        assert_eq!(read(&[&SERVER, &[trust]]), Ok(tls(None)), "nobody is asked");
        let clients = Clients { how: "required", trusted: vec!["a.pem".into(), "b.pem".into()] };
        assert_eq!(read(&[&SERVER, &[trust, ("MM_TLS_CLIENT_AUTH", "require")]]), Ok(tls(Some(clients))));
        for (pairs, says) in [
            (&[("MM_TLS_CLIENT_AUTH", "REQUIRE")][..], "MM_TLS_KEY_CERT_PATH"),
            (&SERVER[..1], "MM_TLS_PRIVATE_KEY_PATH"),
            (&[SERVER[0], SERVER[1], ("MM_TLS_CLIENT_AUTH", "always")], "OPTIONAL"),
            (&[SERVER[0], SERVER[1], ("MM_TLS_CLIENT_AUTH", "OPTIONAL")], "MM_TLS_TRUST_CERT_PATH"),
            (&[SERVER[0], SERVER[1], ("MM_TLS_PRIVATE_KEY_PASSPHRASE", "x")], "openssl pkcs8"),
        ] {
            let error = read(&[pairs]).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_by_its_variable() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        fs_err::write(file("there"), "PEM").expect("written");
        let tls = |[certificate, key, trusted]: [&str; 3]| {
            let clients = Clients { how: "required", trusted: vec![file("there"), file(trusted)] };
            Tls { certificate: file(certificate), key: file(key), clients: Some(clients) }.check()
        };
        assert_eq!(tls(["there"; 3]), Ok(()));
        for (files, says) in [
            (["gone", "there", "there"], "MM_TLS_KEY_CERT_PATH"),
            (["there", "gone", "there"], "MM_TLS_PRIVATE_KEY_PATH"),
            (["there", "there", "gone"], "MM_TLS_TRUST_CERT_PATH"),
        ] {
            let error = tls(files).expect_err(says);
            assert!(error.starts_with(says) && error.contains("gone"), "{error}");
        }
    }

    #[test]
    fn several_files_become_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let trusted: Vec<_> = ["a", "b"].map(|name| folder.path().join(name)).into();
        for file in &trusted {
            fs_err::write(file, "PEM").expect("written");
        }
        let file = Clients { how: "optional", trusted }.file(folder.path()).expect("read");
        assert_eq!(fs_err::read_to_string(file).expect("there"), "PEM\nPEM\n");
    }
}
