//! The proof that a webhook knows the secret, in the ways of GitHub, GitLab, Gitea, Forgejo and Bitbucket, and in our own.

use std::sync::Arc;

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};
use axum::http::HeaderMap;
use berth_control::source::Webhook;
use berth_spec::Secret;

use crate::SourceMetrics;

/// Headers with `sha256=HEX` or `HEX`: the HMAC-SHA-256 of the body.
const SIGNATURES: [&str; 4] = ["x-hub-signature-256", "x-hub-signature", "x-gitea-signature", "x-berth-signature"];

/// Checks webhooks, and counts them.
pub(crate) struct WebhookCheck {
    /// The signing secret; `None`: every webhook is taken.
    pub(crate) secret: Option<Arc<Secret>>,
    pub(crate) metrics: SourceMetrics,
}

impl Webhook for WebhookCheck {
    fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
        let proved = self.secret.as_ref().is_none_or(|secret| verify_webhook(secret, headers, body));
        self.metrics.webhook(if proved { "taken" } else { "refused" });
        if proved {
            Ok(())
        } else {
            Err("the webhook does not prove that it knows the secret: give both sides the same".to_owned())
        }
    }
}

/// True if the headers prove that the sender knows the secret.
fn verify_webhook(secret: &Secret, headers: &HeaderMap, body: &[u8]) -> bool {
    let secret = secret.expose().trim().as_bytes();
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(token) = text("x-gitlab-token").or_else(|| text("authorization")?.strip_prefix("Bearer ")) {
        return verify_slices_are_equal(token.as_bytes(), secret).is_ok();
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = SIGNATURES.iter().find_map(|name| bytes(text(name)?));
    signature.is_some_and(|signature| hmac::verify(&key, body, &signature).is_ok())
}

/// `sha256=HEX` or `HEX`.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("sha256=").unwrap_or(text);
    if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..32).map(|at| u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::{GitMetrics, mutator, notify::sign};

    /// A line with a header, then the body: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one). A webhook is
    /// taken for the secret itself or for the body's signature, and for nothing else.
    #[test]
    fn fuzz_webhook() {
        let secret = Secret::new("hunter2");
        let halves = |data: &[u8], by: u8| {
            let at = data.iter().position(|&byte| byte == by)?;
            Some((data[..at].to_vec(), data[at + 1..].to_vec()))
        };
        mutator::run("webhook", |data| {
            let Some((head, body)) = halves(data, b'\n') else { return };
            let Some((name, value)) = halves(&head, b':') else { return };
            let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&name), HeaderValue::from_bytes(&value)) else {
                return;
            };
            let text = value.to_str().unwrap_or_default();
            let proves = match name.as_str() {
                "x-gitlab-token" => text == "hunter2",
                "authorization" => text == "Bearer hunter2",
                other => {
                    let digits = text.strip_prefix("sha256=").unwrap_or(text);
                    SIGNATURES.contains(&other) && digits.eq_ignore_ascii_case(&sign(&secret, &body))
                }
            };
            let headers = HeaderMap::from_iter([(name.clone(), value.clone())]);
            assert_eq!(verify_webhook(&secret, &headers, &body), proves);
        });
    }

    #[test]
    fn only_who_knows_the_secret_is_heard() {
        let secret = Secret::new("hunter2");
        let good = sign(&secret, b"{}");
        let metrics = GitMetrics::register(&mut Registry::default()).of("git");
        let check = WebhookCheck { secret: Some(Arc::new(secret)), metrics: metrics.clone() };
        let with = |name: &'static str, value: &str| {
            let value = HeaderValue::from_str(value).expect("a value");
            [(HeaderName::from_static(name), value)].into_iter().collect::<HeaderMap>()
        };
        for (name, value, passes) in [
            ("x-hub-signature-256", format!("sha256={good}"), true),
            ("x-hub-signature", format!("sha256={good}"), true),
            ("x-gitea-signature", good.clone(), true),
            ("x-gitlab-token", "hunter2".to_owned(), true),
            ("authorization", "Bearer hunter2".to_owned(), true),
            ("x-gitlab-token", "hunter".to_owned(), false),
            ("x-hub-signature-256", format!("sha256={}", "0".repeat(64)), false),
            ("x-hub-signature", "sha1=abcdef".to_owned(), false),
            ("x-hub-signature-256", "é".repeat(32), false),
            ("user-agent", "curl".to_owned(), false),
        ] {
            let Ok(_) = HeaderValue::from_str(&value) else { continue };
            assert_eq!(check.verify(&with(name, &value), b"{}").is_ok(), passes, "{name}: {value}");
        }
        assert!(check.verify(&with("x-hub-signature-256", &format!("sha256={good}")), b"{ }").is_err(), "another body");
        assert!(
            WebhookCheck { secret: None, metrics }.verify(&HeaderMap::new(), b"").is_ok(),
            "no secret is configured"
        );
    }
}
