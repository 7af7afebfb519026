//! Reads the names in the certificate of a client.

use std::{fmt::Write as _, net::IpAddr};

use aws_lc_rs::digest::{SHA256, digest};
use berth_spec::{ClientCertificate, SubjectName};
use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

/// The names in the first certificate of a chain that was verified; `None` if the client showed none.
pub(super) fn of(chain: Option<&[CertificateDer<'static>]>) -> Option<ClientCertificate> {
    let certificate = chain?.first()?;
    // What was verified can be parsed, unless the two parsers disagree: then it has no names here, and means nobody.
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    Some(ClientCertificate {
        sans: names.filter_map(name).collect(),
        subject: parsed.subject().to_string(),
        fingerprint: hexadecimal(digest(&SHA256, certificate).as_ref()),
    })
}

fn name(general: &GeneralName<'_>) -> Option<SubjectName> {
    match general {
        GeneralName::DNSName(name) => Some(SubjectName::Dns((*name).to_owned())),
        GeneralName::URI(uri) => Some(SubjectName::Uri((*uri).to_owned())),
        GeneralName::RFC822Name(address) => Some(SubjectName::Email((*address).to_owned())),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(SubjectName::Ip(IpAddr::from([a, b, c, d]))),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| SubjectName::Ip(bytes.into())),
        },
        _ => None,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Formatting into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn every_name_that_can_be_a_caller_is_read() {
        let mut params = CertificateParams::new(["ada.example.org".to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, "ada");
        let text = |text: &str| text.try_into().expect("ASCII");
        params.subject_alt_names.extend([
            SanType::URI(text("spiffe://example.org/ada")),
            SanType::Rfc822Name(text("ada@example.org")),
            SanType::IpAddress("10.0.0.7".parse().expect("an address")),
            SanType::IpAddress("fd00::7".parse().expect("an address")),
        ]);
        let certificate = params.self_signed(&KeyPair::generate().expect("a key")).expect("a certificate");
        let read = of(Some(&[certificate.der().clone()])).expect("a certificate");
        let names: Vec<_> = read.sans.iter().map(ToString::to_string).collect();
        let expected = [
            "DNS:ada.example.org",
            "URI:spiffe://example.org/ada",
            "email:ada@example.org",
            "IP:10.0.0.7",
            "IP:fd00::7",
        ];
        assert_eq!(names, expected);
        assert!(read.subject.contains("CN=ada"), "{}", read.subject);
        assert_eq!((read.fingerprint.len(), of(None), of(Some(&[]))), (64, None, None));
    }
}
