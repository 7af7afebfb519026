//! Principals by client certificate: names in a verified certificate, and the roles that they have.

use std::sync::Arc;

use berth_spec::{ClientCertificate, SubjectName};

use super::{Grant, Principal, known::KnownPrincipals, principal::matches};

/// Role of the holders of some certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRule {
    /// Name that the certificate must have.
    pub name: SubjectPattern,
    /// The role and where it holds.
    pub grant: Grant,
}

/// Subject alternative name of one kind, with `*` for any text. A name of one kind never stands for one of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectPattern {
    /// DNS name, compared without regard to case.
    Dns(String),
    /// URI, such as `spiffe://example.org/billing`.
    Uri(String),
    /// E-mail address.
    Email(String),
}

impl SubjectPattern {
    fn matches(&self, name: &SubjectName) -> bool {
        match (self, name) {
            (Self::Dns(pattern), SubjectName::Dns(name)) => {
                matches(&pattern.to_ascii_lowercase(), &name.to_ascii_lowercase())
            }
            (Self::Uri(pattern), SubjectName::Uri(name)) | (Self::Email(pattern), SubjectName::Email(name)) => {
                matches(pattern, name)
            }
            _ => false,
        }
    }
}

/// The rules, with the certificates that they were held against.
#[derive(Debug, Default)]
pub(super) struct CertificateTable {
    rules: Vec<CertificateRule>,
    known: KnownPrincipals<String>,
}

impl CertificateTable {
    pub(super) fn new(rules: Vec<CertificateRule>) -> Self {
        Self { rules, known: KnownPrincipals::default() }
    }

    /// The principal of a verified certificate: called by its first name that a rule knows, with the roles of all its names.
    /// `None`: nothing is granted to any of them.
    pub(super) fn holder(&self, certificate: &ClientCertificate) -> Option<Arc<Principal>> {
        if self.rules.is_empty() {
            return None;
        }
        if let Some(principal) = self.known.get(certificate.fingerprint.as_str()) {
            return Some(principal);
        }
        let mut name = None;
        let mut grants = Vec::new();
        for san in &certificate.sans {
            for rule in self.rules.iter().filter(|rule| rule.name.matches(san)) {
                name.get_or_insert(san);
                if !grants.contains(&rule.grant) {
                    grants.push(rule.grant.clone());
                }
            }
        }
        let principal = Arc::new(Principal::of(&format!("certificate:{}", name?), grants));
        self.known.keep(certificate.fingerprint.clone(), &principal);
        Some(principal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn certificate(sans: Vec<SubjectName>) -> ClientCertificate {
        let fingerprint = format!("{sans:?}");
        ClientCertificate { sans, subject: "CN=admin.example.com".to_owned(), fingerprint }
    }

    fn table(rules: Vec<(SubjectPattern, Role)>) -> CertificateTable {
        let rule = |(name, role)| CertificateRule { name, grant: Grant::everywhere(role) };
        CertificateTable::new(rules.into_iter().map(rule).collect())
    }

    #[test]
    fn a_certificate_has_the_roles_of_all_its_names_and_is_called_by_the_first() {
        let table = table(vec![
            (SubjectPattern::Uri("spiffe://x/ci".to_owned()), Role::Viewer),
            (SubjectPattern::Dns("ci.example.com".to_owned()), Role::Deployer),
        ]);
        let shown = certificate(vec![
            SubjectName::Dns("other".to_owned()),
            SubjectName::Dns("CI.example.com".to_owned()),
            SubjectName::Uri("spiffe://x/ci".to_owned()),
        ]);
        for _ in 0..2 {
            let found = table.holder(&shown).expect("two rules");
            assert_eq!((&*found.name, found.grants.len()), ("certificate:DNS:CI.example.com", 2));
        }
    }

    #[test]
    fn a_name_of_another_kind_and_the_subject_grant_nothing() {
        let dns = |text: &str| SubjectPattern::Dns(text.to_owned());
        let table = table(vec![
            (dns("*.example.com"), Role::Admin),
            (SubjectPattern::Email("*@example.org".to_owned()), Role::Caller),
        ]);
        for (name, known) in [
            (SubjectName::Dns("a.b.example.com".to_owned()), true),
            (SubjectName::Dns("example.com".to_owned()), false),
            (SubjectName::Dns("a.example.com.evil".to_owned()), false),
            (SubjectName::Uri("a.example.com".to_owned()), false),
            (SubjectName::Dns("ada@example.org".to_owned()), false),
            (SubjectName::Email("ada@example.org".to_owned()), true),
        ] {
            assert_eq!(table.holder(&certificate(vec![name.clone()])).is_some(), known, "{name}");
        }
        assert!(table.holder(&certificate(Vec::new())).is_none(), "a common name is no name");
    }
}
