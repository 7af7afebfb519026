//! Whether a webhook proves that it knows the secret, in the ways of GitHub, GitLab, Gitea, Forgejo and Bitbucket, and in
//! our own.

use aws_lc_rs::{constant_time::verify_slices_are_equal, hmac};
use axum::http::HeaderMap;

use crate::source::Hook;

/// Headers with `sha256=HEX` or `HEX`: the HMAC-SHA-256 of the body.
const SIGNATURES: [&str; 4] = ["x-hub-signature-256", "x-hub-signature", "x-gitea-signature", "x-berth-signature"];

/// Whether it does; where no secret is configured everybody does.
pub(crate) fn proved(hook: &Hook, headers: &HeaderMap, body: &[u8]) -> bool {
    let Some(secret) = &hook.secret else { return true };
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
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    (0..32).map(|at| u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::{HeaderName, HeaderValue};
    use berth_spec::Secret;

    use super::*;
    use crate::source::git::herald::sign;

    #[test]
    fn only_who_knows_the_secret_is_heard() {
        let secret = Secret::new("hunter2");
        let good = sign(&secret, b"{}");
        let hook = Hook { secret: Some(Arc::new(secret)), ..Hook::default() };
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
            assert_eq!(proved(&hook, &with(name, &value), b"{}"), passes, "{name}: {value}");
        }
        assert!(!proved(&hook, &with("x-hub-signature-256", &format!("sha256={good}")), b"{ }"), "another body");
        assert!(proved(&Hook::default(), &HeaderMap::new(), b""), "no secret is configured");
    }
}
