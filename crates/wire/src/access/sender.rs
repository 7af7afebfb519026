//! Name of a request's sender in the audit log.

use std::sync::Arc;

use berth_spec::ClientCertificate;
use http::Extensions;

use super::Asker;

/// Holder of the certificate that came with a request which another node relayed. It gives no right: on a server that asks for no
/// token, the audit log names the sender by it. Travels among the extensions of the request.
#[derive(Debug, Clone)]
pub struct CertificateHolder(pub Arc<str>);

/// The kind of name that a certificate gives.
const PREFIX: &str = "certificate:";

/// Characters of a certificate's name that are kept: more than any that is in use.
const MAX_NAME_CHARS: usize = 256;

impl CertificateHolder {
    /// By the name that a node gives. `None`: a node that was taken over writes no other kind of name into the audit log.
    #[must_use]
    pub fn relayed(name: Arc<str>) -> Option<Self> {
        name.strip_prefix(PREFIX).is_some_and(|rest| rest == plain(rest)).then_some(Self(name))
    }

    /// Of a request to a server that asks for no token; `None`: it came without a certificate.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        let certificate = || extensions.get::<Arc<ClientCertificate>>().map(|certificate| Self(named(certificate)));
        extensions.get::<Self>().cloned().or_else(certificate)
    }
}

/// Name of a sender in the audit log: of its principal, else of the certificate that it showed, else `anybody`.
#[must_use]
pub fn sender_name(asker: &Asker, extensions: &Extensions) -> Arc<str> {
    match (&asker.0, CertificateHolder::of(extensions)) {
        (Some(principal), _) => Arc::clone(&principal.name),
        (None, Some(CertificateHolder(name))) => name,
        (None, None) => asker.name().into(),
    }
}

/// The first name in a certificate, as its principal is called; the subject of one without names.
fn named(certificate: &ClientCertificate) -> Arc<str> {
    let name = certificate.sans.first().map_or_else(|| certificate.subject.clone(), ToString::to_string);
    format!("{PREFIX}{}", plain(&name)).into()
}

/// A name that is shown on terminals and kept in records: it commands none, and fills none.
fn plain(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use berth_spec::SubjectName;

    use super::*;
    use crate::access::Principal;

    fn certificate(sans: Vec<SubjectName>) -> Arc<ClientCertificate> {
        Arc::new(ClientCertificate { sans, subject: "CN=ada".to_owned(), fingerprint: "f".to_owned() })
    }

    #[test]
    fn who_showed_a_certificate_is_called_by_it_where_no_token_is_asked_for() {
        let mut extensions = Extensions::new();
        assert_eq!(&*sender_name(&Asker::OPEN, &extensions), "anybody");
        extensions.insert(certificate(Vec::new()));
        assert_eq!(&*sender_name(&Asker::OPEN, &extensions), "certificate:CN=ada");
        let names = ["ada@example.org", "other@example.org"].map(|name| SubjectName::Email(name.to_owned()));
        extensions.insert(certificate(names.to_vec()));
        assert_eq!(&*sender_name(&Asker::OPEN, &extensions), "certificate:email:ada@example.org");
        assert!(CertificateHolder::relayed("token:ada".into()).is_none(), "no node speaks for a token");
        extensions.insert(CertificateHolder::relayed("certificate:DNS:relayed".into()).expect("a certificate"));
        assert_eq!(&*sender_name(&Asker::OPEN, &extensions), "certificate:DNS:relayed");
        // A node that was taken over, and a CA that looks at nothing.
        for name in ["certificate:\x1b[2Jgone".to_owned(), format!("certificate:{}", "n".repeat(MAX_NAME_CHARS + 1))] {
            assert!(CertificateHolder::relayed(name.into()).is_none());
        }
        let mut loud = Extensions::new();
        loud.insert(certificate(vec![SubjectName::Email(format!("\x1b[2J{}", "n".repeat(64 << 10)))]));
        let shown = sender_name(&Asker::OPEN, &loud);
        assert!(shown.starts_with("certificate:email:[2Jn") && shown.len() < 2 * MAX_NAME_CHARS, "{shown}");
        assert!(CertificateHolder::relayed(shown).is_some(), "it is the same at the leader");
        let asker = Asker(Some(Arc::new(Principal::of("token:x", Vec::new()))));
        assert_eq!(&*sender_name(&asker, &extensions), "token:x");
    }
}
