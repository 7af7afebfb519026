//! Properties that hold for any text that a stranger sends as a token, and for any set of keys of an issuer.

use std::sync::LazyLock;

use berth_wire::access::{Access, Jwt, KeySet, Secret};

/// Knows nobody.
static ACCESS: LazyLock<Access> = LazyLock::new(Access::required);

/// A token names itself and shows no secret; one of an issuer has an algorithm that can be verified.
pub(crate) fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(secret) = Secret::parse(text) {
        assert_eq!(secret.reveal(), text);
        assert!(!format!("{secret:?}").contains(text));
    }
    if let Some(jwt) = Jwt::parse(text) {
        assert!(jwt.claims.is_object() && text.matches('.').count() == 2, "{text}");
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
    }
    if let Ok(value) = http::HeaderValue::from_str(&format!("Bearer {text}")) {
        let headers = http::HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
        assert!(ACCESS.asker(&headers, None).is_err(), "nobody is known here: {text}");
    }
}

/// A text that is taken for keys has some.
pub(crate) fn keys(data: &[u8]) {
    match KeySet::parse(data) {
        Ok(keys) => assert!(!keys.is_empty()),
        Err(error) => assert!(!error.is_empty()),
    }
}
