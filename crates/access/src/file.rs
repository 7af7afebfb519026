//! The access file: its form, and what is wrong with one.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{SHA256, digest};
use berth_spec::Namespace;
use berth_wire::access::{CertificateRule, Claim, ClaimRule, Grant, IssuerRules, Role, Rules, SubjectPattern};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, Visitor},
};
use serde_saphyr::{Location, Spanned};

use crate::fetch::IssuerAddress;

/// Most namespaces, and patterns, of one rule: rights travel in a header between nodes. As with tokens.
const MOST_PLACES: usize = 16;

/// Longest pattern, in bytes: longer than the longest name, a DNS name of 253, and short enough for a header.
const MAX_PATTERN_BYTES: usize = 256;

/// Words that begin the names of other principals.
const TAKEN: [&str; 5] = ["token", "certificate", "server", "nobody", "anybody"];

/// An access file that was read, with what it names.
#[derive(Debug, Clone)]
pub struct AccessFile {
    pub(crate) path: PathBuf,
    pub(crate) rules: Rules,
    /// The addresses of each issuer's keys, in the order of the rules.
    pub(crate) addresses: Vec<IssuerAddress>,
    pub(crate) digest: Vec<u8>,
}

/// Reason why an access file cannot be used, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FileError {
    file: PathBuf,
    at: Option<(u64, u64)>,
    message: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.at {
            Some((line, column)) => write!(f, "{file}:{line}:{column}: {}", self.message),
            None => write!(f, "{file}: {}", self.message),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    certificates: Vec<Spanned<RawCertificate>>,
    #[serde(default)]
    issuers: Vec<Spanned<RawIssuer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCertificate {
    dns: Option<Pattern>,
    uri: Option<Pattern>,
    email: Option<Pattern>,
    role: RawRole,
    #[serde(default)]
    namespaces: Vec<RawNamespace>,
    #[serde(default)]
    models: Vec<Pattern>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIssuer {
    url: String,
    audiences: Vec<Pattern>,
    #[serde(default)]
    ca: Option<PathBuf>,
    #[serde(default)]
    prefix: Option<String>,
    #[serde(default)]
    principal: Option<Pattern>,
    roles: Vec<Spanned<RawClaimRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClaimRule {
    claims: BTreeMap<String, Pattern>,
    role: RawRole,
    #[serde(default)]
    namespaces: Vec<RawNamespace>,
    #[serde(default)]
    models: Vec<Pattern>,
}

/// Text that is not empty. Numbers and truth values stand for their words.
struct Pattern(String);

struct RawRole(Role);

struct RawNamespace(String);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl Visitor<'_> for Words {
            type Value = Pattern;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Pattern, E> {
                Ok(Pattern(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Pattern, E> {
                Ok(Pattern(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Pattern, E> {
                Ok(Pattern(value.to_string()))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pattern, E> {
                match text.len() {
                    0 => Err(E::custom("an empty text matches nothing: write a name, or a pattern with *")),
                    1..=MAX_PATTERN_BYTES => Ok(Pattern(text.to_owned())),
                    _ => Err(E::custom(format!("the text is longer than {MAX_PATTERN_BYTES} bytes"))),
                }
            }
        }
        deserializer.deserialize_any(Words)
    }
}

impl<'de> Deserialize<'de> for RawRole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for RawNamespace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Namespace::new(&text).map_err(|error| D::Error::custom(error.to_string()))?;
        Ok(Self(text))
    }
}

impl AccessFile {
    /// Reads a file and the CA certificates that it names. `insecure` lets issuers be asked over plain HTTP. Blocking.
    ///
    /// # Errors
    /// [`FileError`] with the place.
    pub fn read(path: &Path, insecure: bool) -> Result<Self, FileError> {
        let unreadable =
            |error: std::io::Error| FileError { file: path.to_owned(), at: None, message: error.to_string() };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        Self::parse(path, &text, insecure)
    }

    pub(crate) fn parse(path: &Path, text: &str, insecure: bool) -> Result<Self, FileError> {
        let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
        let raw = serde_saphyr::from_str_with_options::<Option<RawFile>>(text, options).map_err(|error| {
            let message = error.without_snippet().to_string();
            // The library ends its messages with the place, which the error has already.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            FileError { file: path.to_owned(), at: error.location().and_then(place), message }
        })?;
        let raw = raw.unwrap_or_default();
        let mut sum = digest(&SHA256, text.as_bytes()).as_ref().to_vec();
        let (mut rules, mut addresses) = (Rules::default(), Vec::new());
        for Spanned { value, referenced, .. } in raw.certificates {
            rules.certificates.push(value.rule().map_err(|message| wrong(path, referenced, message))?);
        }
        for Spanned { value, referenced, .. } in raw.issuers {
            let told = |message| wrong(path, referenced, message);
            let beside = path.parent().unwrap_or(Path::new(""));
            let address = IssuerAddress::new(&value.url, value.ca.as_ref().map(|ca| beside.join(ca)), insecure);
            let address = address.map_err(told)?;
            sum.extend_from_slice(digest(&SHA256, &address.authorities).as_ref());
            let issuer = value.rules(referenced).map_err(|(at, message)| wrong(path, at, message))?;
            if rules.issuers.iter().any(|other| other.url == issuer.url) {
                return Err(told(format!("there are two issuers {}: put all roles below one", issuer.url)));
            }
            if rules.issuers.iter().any(|other| other.prefix == issuer.prefix) {
                let message = "two issuers would give the same names to their principals: give one another `prefix`";
                return Err(told(message.to_owned()));
            }
            rules.issuers.push(issuer);
            addresses.push(address);
        }
        Ok(Self { path: path.to_owned(), rules, addresses, digest: sum })
    }

    /// The path that it is read from, as the operator gave it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn place(at: Location) -> Option<(u64, u64)> {
    let known = |n: u64| (1..u64::from(u32::MAX)).contains(&n);
    (known(at.line()) && known(at.column())).then(|| (at.line(), at.column()))
}

fn wrong(path: &Path, at: Location, message: String) -> FileError {
    FileError { file: path.to_owned(), at: place(at), message }
}

impl RawCertificate {
    fn rule(self) -> Result<CertificateRule, String> {
        let name = match (self.dns, self.uri, self.email) {
            (Some(name), None, None) => SubjectPattern::Dns(name.0),
            (None, Some(name), None) => SubjectPattern::Uri(name.0),
            (None, None, Some(name)) => SubjectPattern::Email(name.0),
            _ => return Err("a certificate is known by one name: write one of dns, uri and email".to_owned()),
        };
        Ok(CertificateRule { name, grant: grant(self.role, self.namespaces, self.models)? })
    }
}

impl RawIssuer {
    /// Checks the fields together; the error has the place of the issuer and says what is wrong.
    fn rules(self, at: Location) -> Result<IssuerRules, (Location, String)> {
        let told = |message: &str| (at, message.to_owned());
        let prefix = self.prefix.unwrap_or_else(|| "oidc".to_owned());
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if prefix.is_empty() || prefix.len() > 63 || !prefix.chars().all(plain) {
            return Err(told("prefix takes lower-case letters, digits and '-'"));
        }
        if TAKEN.contains(&prefix.as_str()) {
            return Err((at, format!("prefix {prefix:?} begins the names of other principals: choose another")));
        }
        if self.audiences.is_empty() {
            return Err(told(
                "audiences is empty: a token for any other service would open this one. Name the audience of Berth's tokens",
            ));
        }
        if self.roles.is_empty() {
            return Err(told("roles is empty: nobody may do anything with tokens of this issuer"));
        }
        let mut roles = Vec::new();
        for Spanned { value, referenced, .. } in self.roles {
            let grant = grant(value.role, value.namespaces, value.models).map_err(|message| (referenced, message))?;
            let claims = value.claims.into_iter().map(|(claim, pattern)| (Claim(claim), pattern.0));
            roles.push(ClaimRule { claims: claims.collect(), grant });
        }
        Ok(IssuerRules {
            url: self.url,
            prefix,
            audiences: self.audiences.into_iter().map(|audience| audience.0).collect(),
            principal: Claim(self.principal.map_or_else(|| "sub".to_owned(), |claim| claim.0)),
            roles,
        })
    }
}

fn grant(role: RawRole, namespaces: Vec<RawNamespace>, models: Vec<Pattern>) -> Result<Grant, String> {
    if namespaces.len().max(models.len()) > MOST_PLACES {
        return Err(format!("one rule has at most {MOST_PLACES} namespaces and {MOST_PLACES} models: write several"));
    }
    let namespaces = namespaces.into_iter().map(|namespace| namespace.0).collect();
    Ok(Grant { role: role.0, namespaces, models: models.into_iter().map(|pattern| pattern.0).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AccessFile, String> {
        AccessFile::parse(Path::new("access.yaml"), text, false).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_of_the_docs() {
        let text = "certificates:
  - uri: spiffe://example.org/billing/*
    role: caller
    models: [fraud-*]
  - dns: ci.example.org
    role: deployer
    namespaces: [team]
issuers:
  - url: https://login.example.org/realms/ml
    audiences: [berth]
    principal: preferred_username
    roles:
      - claims: {groups: ml-platform}
        role: admin
      - claims: {/realm_access/roles: caller, email_verified: true}
        role: caller
";
        let file = read(text).expect("it is right");
        let grant = |role, namespaces: &[&str], models: &[&str]| {
            let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            Grant { role, namespaces: own(namespaces), models: own(models) }
        };
        let expected = [
            CertificateRule {
                name: SubjectPattern::Uri("spiffe://example.org/billing/*".to_owned()),
                grant: grant(Role::Caller, &[], &["fraud-*"]),
            },
            CertificateRule {
                name: SubjectPattern::Dns("ci.example.org".to_owned()),
                grant: grant(Role::Deployer, &["team"], &[]),
            },
        ];
        assert_eq!(file.rules.certificates, expected);
        let [issuer] = &*file.rules.issuers else { panic!("one issuer") };
        assert_eq!((&*issuer.prefix, &*issuer.principal.0, issuer.roles.len()), ("oidc", "preferred_username", 2));
        let claim = |name: &str, pattern: &str| (Claim(name.to_owned()), pattern.to_owned());
        assert_eq!(issuer.roles[1].claims, [claim("/realm_access/roles", "caller"), claim("email_verified", "true")]);
        for nothing in ["", "# nobody\n", "certificates: []\n"] {
            assert_eq!(read(nothing).expect("no rules").rules, Rules::default());
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let issuer =
            "issuers:\n  - url: https://a.example\n    audiences: [b]\n    roles: [{claims: {}, role: caller}]\n";
        let changed = |from: &str, to: &str| issuer.replace(from, to);
        for (text, place, says) in [
            ("certificates:\n  - dns: a\n    role: root\n".to_owned(), ":3:", "viewer, caller"),
            ("certificates:\n  - cn: a\n    role: admin\n".to_owned(), ":2:", "cn"),
            ("certificates:\n  - {dns: a, uri: b, role: admin}\n".to_owned(), ":2:", "one of dns, uri and email"),
            ("certificates:\n  - {role: admin}\n".to_owned(), ":2:", "one of dns, uri and email"),
            ("certificates:\n  - {dns: '', role: admin}\n".to_owned(), ":2:", "matches nothing"),
            ("certificates:\n  - {dns: a, role: admin, namespaces: [A B]}\n".to_owned(), ":2:", "in a namespace"),
            ("certificate: []\n".to_owned(), ":1:", "certificate"),
            (changed("https", "http"), ":2:", "https://"),
            (changed("https://a.example", "a.example"), ":2:", "https://"),
            (changed("https://a.example", "https://a.example?x=1"), ":2:", "https://"),
            (changed("[b]", "[]"), ":2:", "audiences is empty"),
            (changed("[{claims: {}, role: caller}]", "[]"), ":2:", "roles is empty"),
            (changed("claims: {}, ", ""), ":4:", "claims"),
            (changed("    roles", "    prefix: token\n    roles"), ":2:", "choose another"),
            (changed("    roles", "    ca: none.pem\n    roles"), ":2:", "none.pem"),
            (format!("{issuer}{}", issuer.replace("issuers:\n", "")), ":5:", "two issuers"),
            (format!("{issuer}{}", issuer.replace("issuers:\n", "").replace("a.ex", "b.ex")), ":5:", "prefix"),
        ] {
            let error = read(&text).expect_err(&text);
            assert!(error.starts_with(&format!("access.yaml{place}")) && error.contains(says), "{text}\n{error}");
        }
        assert!(read(&changed("https://a.example", "http://127.0.0.1:5556/dex")).is_ok(), "loopback needs no TLS");
        assert!(AccessFile::parse(Path::new("a"), &changed("https", "http"), true).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn whatever_text_comes_is_a_file_or_an_error(text in "(certificates|issuers)?:?\\PC{0,80}") {
            let _read = read(&text);
        }
    }
}
