//! Principals by client certificate: names in a verified certificate, and the roles that they have.

use serde::{Deserialize, Serialize};

use super::{Grant, Principal};

/// Role of the holder of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateGrant {
    /// Subject alternative name as the certificate has it: a DNS name, a URI or an e-mail address.
    pub name: String,
    /// The role and where it holds.
    #[serde(flatten)]
    pub grant: Grant,
}

/// The principal of a certificate with these names; `None`: nothing is granted to any of them.
pub(super) fn principal<'a>(grants: &[CertificateGrant], names: impl Iterator<Item = &'a str>) -> Option<Principal> {
    let mut found: Option<Principal> = None;
    for name in names {
        for one in grants.iter().filter(|grant| grant.name == name) {
            let principal = found
                .get_or_insert_with(|| Principal { name: format!("certificate:{name}").into(), grants: Vec::new() });
            principal.grants.push(one.grant.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    #[test]
    fn a_certificate_has_the_roles_of_all_its_names_and_is_called_by_the_first() {
        let grant = |name: &str, role| CertificateGrant { name: name.to_owned(), grant: Grant::everywhere(role) };
        let grants = [grant("ci.example.com", Role::Deployer), grant("spiffe://x/ci", Role::Viewer)];
        let found = principal(&grants, ["other", "ci.example.com", "spiffe://x/ci"].into_iter()).expect("two grants");
        assert_eq!((&*found.name, found.grants.len()), ("certificate:ci.example.com", 2));
        assert_eq!(principal(&grants, ["ci.example.com.evil"].into_iter()), None);
    }
}
