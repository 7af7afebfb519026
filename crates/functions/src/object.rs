//! The text of an object with another status: everything else stays byte for byte as a person wrote it.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::status::Status;

/// Fields of an object in their order, values as text.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// The object with this status; `None` where the text is no object.
pub(crate) fn with_status(object: &[u8], status: &Status) -> Option<Vec<u8>> {
    let Fields(mut fields) = serde_json::from_slice(object).ok()?;
    let status = serde_json::value::to_raw_value(status).ok()?;
    // Of a field that is written twice, the last one counts, for others as for us.
    let before = fields.iter().position(|(name, _)| name == "status");
    fields.retain(|(name, _)| name != "status");
    let at = before.unwrap_or(fields.len()).min(fields.len());
    fields.insert(at, ("status".to_owned(), status));
    let mut text = Vec::with_capacity(object.len() + 1_024);
    for (at, (name, value)) in fields.iter().enumerate() {
        text.push(if at == 0 { b'{' } else { b',' });
        serde_json::to_writer(&mut text, name).ok()?;
        text.push(b':');
        text.extend_from_slice(value.get().as_bytes());
    }
    text.push(b'}');
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Phase;

    #[test]
    fn all_but_the_status_stays_as_it_was() {
        let mut status = Status::default();
        status.say(Phase::Failed, "no");
        let text = r#"{"z": [1,  2.50], "status":{"phase":"Pending"}, "a":12345678901234567890123}"#;
        let now = String::from_utf8(with_status(text.as_bytes(), &status).expect("an object")).expect("UTF-8");
        assert!(
            now.starts_with(r#"{"z":[1,  2.50],"status":{"phase":"Failed","message":"no","observedGeneration":0}"#),
            "{now}"
        );
        assert!(now.ends_with(r#","a":12345678901234567890123}"#), "{now}");
        let bare = with_status(b"{}", &status).expect("an object");
        assert!(bare.starts_with(br#"{"status":"#));
        assert!(with_status(b"[]", &status).is_none());
    }
}
