//! The property of a request that an alias keeps requests together by, as a hash.

use std::{fmt, net::IpAddr};

use berth_audit::AuditLog;
use berth_spec::{NameKey, routes::Stickiness};
use berth_wire::access::{Access, Action, Asker, Resource};
use http::{Extensions, HeaderMap};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::{rendezvous::hash, trail};

/// The client's address, among the extensions of a request's head. Only there while an alias asks for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client(pub(crate) IpAddr);

/// The properties of a request by which an alias may keep requests together, and its sender.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller<'a> {
    pub(crate) headers: Option<&'a HeaderMap>,
    pub(crate) extensions: Option<&'a Extensions>,
    pub(crate) client: Option<Client>,
    /// The hash of the field that the alias names, where the body has it.
    pub(crate) field: Option<u64>,
    /// Sender of the request; `None`: nobody was asked.
    pub(crate) asker: Option<&'a Asker>,
}

impl<'a> Caller<'a> {
    /// The properties that a request's head tells: all but the field of the body.
    pub(crate) fn of(head: &'a http::request::Parts) -> Self {
        let client = head.extensions.get().copied();
        let (headers, extensions) = (Some(&head.headers), Some(&head.extensions));
        Self { headers, extensions, client, field: None, asker: head.extensions.get() }
    }

    /// True if the sender may ask this model; that it may not is recorded.
    pub(crate) fn may_infer(&self, access: &Access, log: &AuditLog, model: NameKey<'_>) -> bool {
        let Some(asker) = self.asker else { return !access.is_required() };
        let allowed = asker.may(Action::Infer, Resource::Model(model)).is_ok();
        if !allowed {
            let resource = trail::resource("Model", model);
            trail::out_of_reach(log, asker, self.headers, self.extensions, Action::Infer, resource);
        }
        allowed
    }

    /// The hash of the property; `None` where the request lacks it.
    pub(crate) fn key(&self, sticky: &Stickiness) -> Option<u64> {
        match sticky {
            Stickiness::None => None,
            Stickiness::Header(name) => self.headers?.get(name.as_str()).map(|value| hash(value.as_bytes())),
            Stickiness::Client => self.client.map(|Client(address)| match address.to_canonical() {
                IpAddr::V4(address) => hash(&address.octets()),
                IpAddr::V6(address) => hash(&address.octets()),
            }),
            Stickiness::Field(_) => self.field,
        }
    }
}

/// The hash of a field of a JSON text: a string, a number or a truth value. `None` where there is none, or the text is no
/// JSON. `path` has dots between the names.
pub(crate) fn json_field(text: &[u8], path: &str) -> Option<u64> {
    let names: Vec<&str> = path.split('.').collect();
    let mut reader = serde_json::Deserializer::from_slice(text);
    FieldSeed(&names).deserialize(&mut reader).ok().flatten()
}

/// Reads a value and hashes what is at the path in it.
struct FieldSeed<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Option<u64>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl FieldSeed<'_> {
    fn leaf(&self, text: &str) -> Option<u64> {
        self.0.is_empty().then(|| hash(text.as_bytes()))
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.0.split_first() {
                Some((first, rest)) if *key == **first => found = map.next_value_seed(FieldSeed(rest))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<u64>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<u64>, E> {
        Ok(self.leaf(text))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Option<u64>, E> {
        Ok(self.leaf(if value { "true" } else { "false" }))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Option<u64>, E> {
        Ok(self.leaf(&value.to_string()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Option<u64>, E> {
        Ok(self.leaf(&value.to_string()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Option<u64>, E> {
        Ok(self.leaf(&value.to_string()))
    }

    fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_wherever_it_is_and_whatever_is_around_it() {
        let found = Some(hash(b"alice"));
        for (text, path, expected) in [
            (r#"{"user": "alice"}"#, "user", found),
            (r#"{"inputs": [{"user": "bob"}], "parameters": {"a": [1], "user": "alice"}}"#, "parameters.user", found),
            (r#"{"user": "al\u0069ce"}"#, "user", found),
            (r#"{"us\u0065r": "alice"}"#, "user", found),
            (r#"{"user": 7}"#, "user", Some(hash(b"7"))),
            (r#"{"user": true}"#, "user", Some(hash(b"true"))),
            (r#"{"user": null}"#, "user", None),
            (r#"{"user": {"name": "alice"}}"#, "user", None),
            (r#"{"user": ["alice"]}"#, "user", None),
            (r#"{"user": "alice"}"#, "user.name", None),
            ("[1, 2]", "user", None),
            (r#"{"user": "al"#, "user", None),
            ("", "user", None),
        ] {
            assert_eq!(json_field(text.as_bytes(), path), expected, "{path} in {text}");
        }
    }

    #[test]
    fn an_address_is_one_however_it_is_written() {
        let client = |text: &str| {
            let address = text.parse().expect("an address");
            Caller { client: Some(Client(address)), ..Caller::default() }.key(&Stickiness::Client)
        };
        assert_eq!(client("10.0.0.7"), client("::ffff:10.0.0.7"));
        assert_ne!(client("10.0.0.7"), client("10.0.0.8"));
        assert_eq!(Caller::default().key(&Stickiness::Client), None);
        let mut headers = HeaderMap::new();
        headers.insert("x-user", http::HeaderValue::from_static("alice"));
        let caller = Caller { headers: Some(&headers), ..Caller::default() };
        assert_eq!(caller.key(&Stickiness::Header("x-user".to_owned())), Some(hash(b"alice")));
        assert_eq!(caller.key(&Stickiness::Header("x-other".to_owned())), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_text_comes_is_read_or_not(text in "\\PC{0,80}", path in "[a-z.]{0,8}") {
            let _read = json_field(text.as_bytes(), &path);
        }
    }
}
