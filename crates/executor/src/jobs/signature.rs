//! Signatures of callbacks, in the form of Standard Webhooks (github.com/standard-webhooks/standard-webhooks): the receiver checks
//! them with any library for that.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::{Engine as _, prelude::BASE64_STANDARD};

/// Begin of a secret that is written in base64.
const PREFIX: &str = "whsec_";

/// Least bytes of a secret, as the specification wants them.
const MIN_SECRET_BYTES: usize = 24;

/// The secret that receivers know.
#[derive(Clone)]
pub(crate) struct Secret(hmac::Key);

impl Secret {
    /// Reads a secret: `whsec_` and base64.
    ///
    /// # Errors
    /// The reason why it is none. The secret is not in it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.trim().strip_prefix(PREFIX).and_then(|text| BASE64_STANDARD.decode(text).ok());
        let remedy = "make one with: echo whsec_$(openssl rand -base64 32)";
        let bytes = bytes.ok_or_else(|| format!("the secret is not {PREFIX} and base64: {remedy}"))?;
        if bytes.len() < MIN_SECRET_BYTES {
            return Err(format!("the secret has {} bytes; the least are {MIN_SECRET_BYTES}: {remedy}", bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The signature of one message.
    pub(crate) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
    }
}

/// Seconds since 1970.
pub(crate) fn timestamp(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn the_known_example() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a secret");
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn weak_secrets_are_refused() {
        for text in ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_!!!"] {
            assert!(Secret::parse(text).is_err(), "{text}");
        }
    }
}
