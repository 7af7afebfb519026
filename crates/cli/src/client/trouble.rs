//! Remedies for connections that TLS ended.

use std::error::Error;

const OTHER_CA: &str =
    "its certificate is of a CA that is not trusted here: name the CA's certificate with --ca FILE or BERTH_CA";
const OTHER_NAMES: &str = "its certificate is for other names: call it by one of them";

/// Parts of the words of TLS, and what a person does about them.
const REMEDIES: [(&str, &str); 12] = [
    ("UnknownIssuer", OTHER_CA),
    // Another CA of the same name.
    ("BadSignature", OTHER_CA),
    ("not valid for name", OTHER_NAMES),
    ("NotValidForName", OTHER_NAMES),
    ("certificate expired", "its certificate expired: the server needs a new one"),
    ("certificate not valid yet", "its certificate is not valid yet: compare the clocks"),
    ("InvalidContentType", "it does not speak TLS: write http:// in the address"),
    ("CertificateRequired", "it asks for a client certificate: give --client-cert and --client-key"),
    ("alert: UnknownCA", "it does not trust the CA of --client-cert"),
    ("alert: DecryptError", "it does not trust the CA of --client-cert"),
    ("alert: BadCertificate", "it refuses the certificate of --client-cert"),
    ("ProtocolVersion", "it speaks no TLS version that this program speaks"),
];

/// The reason and the remedy for a connection that failed, if TLS was it.
pub(crate) fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut at = Some(error);
    while let Some(error) = at {
        let words = error.to_string();
        if let Some((_, remedy)) = REMEDIES.iter().find(|(part, _)| words.contains(part)) {
            return Some(remedy);
        }
        at = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

    use super::*;

    #[test]
    fn the_words_of_tls_lead_to_a_remedy() {
        for (error, says) in [
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), "--ca FILE"),
            (Error::InvalidCertificate(CertificateError::BadSignature), "--ca FILE"),
            (Error::InvalidCertificate(CertificateError::NotValidForName), "other names"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "http://"),
            (Error::AlertReceived(AlertDescription::CertificateRequired), "--client-cert"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "--client-cert"),
        ] {
            let words = error.to_string();
            let found = of(&io::Error::other(error)).unwrap_or_default();
            assert!(found.contains(says), "{words}: {found}");
        }
        assert_eq!(of(&io::Error::other("the cable is out")), None);
    }
}
