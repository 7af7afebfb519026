//! The first words of a client to a server of NATS: who it is.

use aws_lc_rs::signature::Ed25519KeyPair;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use data_encoding::BASE32_NOPAD;
use serde_json::{Map, Value, json};

use crate::broker::Login;

/// The fields of CONNECT, for a server that has sent this nonce.
///
/// # Errors
/// A file that cannot be used.
pub(super) fn connect(login: &Login, nonce: &str, tls: bool) -> Result<Value, String> {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    for (name, is) in [("verbose", false), ("pedantic", false), ("headers", true), ("no_responders", true)] {
        set(name, json!(is));
    }
    set("tls_required", json!(tls));
    for (name, text) in [("lang", "rust"), ("version", env!("CARGO_PKG_VERSION")), ("name", "berth executor")] {
        set(name, json!(text));
    }
    set("protocol", json!(1));
    if let (Some(user), Some(password)) = (&login.user, login.password()?) {
        set("user", json!(user));
        set("pass", json!(password));
    }
    if let Some(token) = login.token()? {
        set("auth_token", json!(token));
    }
    if let Some(text) = login.credentials()? {
        let (token, key) = credentials(&text)
            .ok_or_else(|| "credentialsFile holds no token and key: make it with `nsc generate creds`".to_owned())?;
        set("jwt", json!(token));
        set("sig", json!(BASE64_URL_SAFE_NO_PAD.encode(key.sign(nonce.as_bytes()))));
    }
    Ok(Value::Object(fields))
}

/// Token and key of a `.creds` file.
fn credentials(text: &str) -> Option<(&str, Ed25519KeyPair)> {
    Some((section(text, "NATS USER JWT")?, key(section(text, "USER NKEY SEED")?)?))
}

/// The line of a section.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| !(line.starts_with("---") && line.contains(name)));
    lines.nth(1).filter(|line| !line.is_empty())
}

/// The key of a seed: two bytes of its kind, 32 of the key, two of a checksum, in base 32.
fn key(seed: &str) -> Option<Ed25519KeyPair> {
    let bytes = BASE32_NOPAD.decode(seed.as_bytes()).ok()?;
    Ed25519KeyPair::from_seed_unchecked(bytes.get(2..34).filter(|_| seed.starts_with('S'))?).ok()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::KeyPair as _;

    use super::*;

    #[test]
    fn credentials_are_read() {
        // The example in the documentation of github.com/nats-io/nkeys, with its public key.
        let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
        let text = format!(
            "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let (token, key) = credentials(&text).expect("it is right");
        assert_eq!(token, "a.b.c");
        let public = BASE32_NOPAD.decode(b"UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4").expect("base 32");
        assert_eq!(public.get(1..33), Some(key.public_key().as_ref()));
        for wrong in ["", "a.b.c", &text.replace(seed, "SUAC"), &text.replace("SUAC", "XUAC")] {
            assert!(credentials(wrong).is_none(), "{wrong}");
        }
    }
}
