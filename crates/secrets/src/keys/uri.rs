//! `pkcs11:` URIs (RFC 7512): which key in which token, through which module.

use std::{path::PathBuf, str::FromStr};

use super::KeyError;

/// A `pkcs11:` URI: `pkcs11:token=berth;object=registry?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/run/pin`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pkcs11Uri {
    /// The label of the token; `None`: any.
    pub token: Option<String>,
    /// Serial number of the token.
    pub serial: Option<String>,
    /// The label of the key.
    pub object: Option<String>,
    /// The id of the key (`CKA_ID`), in bytes; `None`: the label says which.
    pub id: Option<Vec<u8>>,
    /// Path of the HSM's library.
    pub module_path: PathBuf,
    /// Source of the PIN: `file:/PATH`, a path, or `env:NAME`.
    pub pin_source: Option<String>,
}

impl FromStr for Pkcs11Uri {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let rest = text.strip_prefix("pkcs11:").unwrap_or(text);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        // For messages: a PIN somebody wrote into the query is not repeated.
        let wrong = |reason: String| KeyError::refused(format!("pkcs11:{path}"), reason);
        let mut uri = Self::default();
        for (part, is_query) in path
            .split(';')
            .map(|part| (part, false))
            .chain(query.split('&').map(|part| (part, true)))
            .filter(|(p, _)| !p.is_empty())
        {
            let Some((name, value)) = part.split_once('=') else {
                return Err(wrong("its parts are NAME=VALUE, as RFC 7512 says".to_owned()));
            };
            let bytes = decoded(value).ok_or_else(|| wrong(format!("the %-escapes in {name} are broken")))?;
            let text = || String::from_utf8(bytes.clone()).map_err(|_| wrong(format!("{name} is not UTF-8")));
            match (name, is_query) {
                ("token", false) => uri.token = Some(text()?),
                ("serial", false) => uri.serial = Some(text()?),
                ("object", false) => uri.object = Some(text()?),
                ("id", false) => uri.id = Some(bytes),
                ("type", false) if bytes == b"private" => {}
                ("module-path", true) => uri.module_path = PathBuf::from(text()?),
                ("pin-source", true) => uri.pin_source = Some(text()?),
                ("pin-value", true) => {
                    let reason =
                        "a PIN does not belong into settings: put it into a file and write pin-source=file:/PATH";
                    return Err(wrong(reason.to_owned()));
                }
                _ => {
                    let reason = format!(
                        "it has {name}, and is told apart by token, serial, object and id, then ?module-path and pin-source"
                    );
                    return Err(wrong(reason));
                }
            }
        }
        if !uri.module_path.is_absolute() {
            return Err(wrong("it needs ?module-path=/PATH of the HSM's library".to_owned()));
        }
        if uri.object.is_none() && uri.id.is_none() {
            return Err(wrong("it names no key: add object=LABEL or id=%01".to_owned()));
        }
        Ok(uri)
    }
}

impl Pkcs11Uri {
    /// For messages: which key.
    #[must_use]
    pub fn name(&self) -> String {
        let id = self.id.as_ref().map(|id| id.iter().map(|byte| format!("%{byte:02x}")).collect::<String>());
        let parts = [("token", &self.token), ("serial", &self.serial), ("object", &self.object), ("id", &id)];
        let parts: Vec<String> =
            parts.iter().filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}={value}"))).collect();
        format!("pkcs11:{}", parts.join(";"))
    }
}

/// Decodes `%XX` into bytes; `None`: a `%` without two hex digits.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read() {
        let uri: Pkcs11Uri = "pkcs11:token=my%20hsm;object=registry;type=private;id=%01%ff?module-path=/usr/lib/x.so&pin-source=file:/run/pin"
            .parse()
            .expect("a URI");
        assert_eq!(uri.token.as_deref(), Some("my hsm"));
        assert_eq!(uri.id, Some(vec![1, 255]));
        assert_eq!(uri.name(), "pkcs11:token=my hsm;object=registry;id=%01%ff");
        for (text, says) in [
            ("pkcs11:object=x", "module-path"),
            ("pkcs11:token=x?module-path=/x.so", "names no key"),
            ("pkcs11:object=x?module-path=/x.so&pin-value=1234", "PIN"),
            ("pkcs11:object=%zz?module-path=/x.so", "broken"),
            ("pkcs11:objekt=x?module-path=/x.so", "objekt"),
            ("pkcs11:object?module-path=/x.so", "NAME=VALUE"),
        ] {
            let error = text.parse::<Pkcs11Uri>().expect_err(text).to_string();
            assert!(error.contains(says) && !error.contains("1234"), "{text}: {error}");
        }
    }
}
