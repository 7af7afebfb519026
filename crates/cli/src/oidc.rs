//! Logins at an OpenID issuer from a machine without a browser: the device authorization grant (RFC 8628).
//!
//! ```text
//! issuer ─ discovery ─▶ code for a person ─ polls until that person has agreed ─▶ tokens ─▶ kept
//!                                                                                   ▲       │ shortly before the end
//!                                                                                   └───────┘
//! ```
//! [`issuer`] speaks with the issuer, [`device`] asks for the code and decides when to poll, [`login`] is what is kept of a login
//! and renews its token.

mod device;
mod issuer;
mod login;

pub(crate) use self::login::{Login, OidcArgs};
