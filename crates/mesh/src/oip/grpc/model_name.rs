//! The names in a `ModelInferRequest`, read without decoding its tensors.

use std::collections::HashMap;

use berth_wire::oip::{InferParameter, infer_parameter::ParameterChoice};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint};

use crate::rendezvous::hash;

/// The fields of `model_name`, `model_version`, `id` and `parameters`.
const NAME: u32 = 1;
const VERSION: u32 = 2;
const ID: u32 = 3;
const PARAMETERS: u32 = 4;

/// The parameter that asks that the last answer say that it is the last.
const ASKS_LAST: &str = "triton_enable_empty_final_response";

/// The names in a request, and what its answer needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names<'a> {
    pub(crate) model: &'a str,
    /// Name of the version; empty: whichever there is.
    pub(crate) version: &'a str,
    /// The caller's id of the request; empty: it has none.
    pub(crate) id: &'a str,
    /// True if the last answer is to say that it is the last ([`ASKS_LAST`]).
    pub(crate) asks_last: bool,
}

/// The part of a message whose end has not come yet that holds its names; `None` while more of them may follow.
pub(crate) fn leading(start: &[u8]) -> Option<&[u8]> {
    let mut at = start;
    while !at.is_empty() {
        let before = at;
        let (field, wire) = decode_key(&mut at).ok()?;
        if wire != WireType::LengthDelimited {
            return None;
        }
        if field > PARAMETERS {
            // Writers put the fields in order: the names are complete.
            let leading = &start[..start.len() - before.len()];
            return names(leading).filter(|names| !names.model.is_empty()).map(|_| leading);
        }
        let length = usize::try_from(decode_varint(&mut at).ok()?).ok()?;
        at = at.split_at_checked(length)?.1;
    }
    None
}

/// `None` where the message is none. Of a field that comes twice the last counts, as protobuf has it.
pub(crate) fn names(mut message: &[u8]) -> Option<Names<'_>> {
    let mut names = Names::default();
    while !message.is_empty() {
        let (field, wire) = decode_key(&mut message).ok()?;
        let length = match wire {
            WireType::Varint => {
                decode_varint(&mut message).ok()?;
                continue;
            }
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => usize::try_from(decode_varint(&mut message).ok()?).ok()?,
            // Groups are in no version of the protocol.
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        let (content, rest) = message.split_at_checked(length)?;
        message = rest;
        match field {
            NAME => names.model = str::from_utf8(content).ok()?,
            VERSION => names.version = str::from_utf8(content).ok()?,
            ID => names.id = str::from_utf8(content).ok()?,
            PARAMETERS => names.asks_last = asks_last(content).unwrap_or(names.asks_last),
            _ => {}
        }
    }
    Some(names)
}

/// The hash of a field of a request: `id`, or `parameters.NAME`. `None` where it has none.
pub(crate) fn field(message: &[u8], path: &str) -> Option<u64> {
    /// The fields of `ModelInferRequest` that requests may keep together by; all others are passed over.
    #[derive(prost::Message)]
    struct Fields {
        #[prost(string, tag = "3")]
        id: String,
        #[prost(map = "string, message", tag = "4")]
        parameters: HashMap<String, InferParameter>,
    }
    let fields = <Fields as prost::Message>::decode(message).ok()?;
    if path == "id" {
        return Some(hash(fields.id.as_bytes())).filter(|_| !fields.id.is_empty());
    }
    let parameter = fields.parameters.get(path.strip_prefix("parameters.")?)?;
    // As JSON writes them: REST and gRPC lead to the same target.
    let text = match parameter.parameter_choice.as_ref()? {
        ParameterChoice::StringParam(text) => text.clone(),
        ParameterChoice::BoolParam(value) => value.to_string(),
        ParameterChoice::Int64Param(value) => value.to_string(),
        ParameterChoice::Uint64Param(value) => value.to_string(),
        ParameterChoice::DoubleParam(value) => value.to_string(),
    };
    Some(hash(text.as_bytes()))
}

/// The value of the parameter [`ASKS_LAST`], if the entry is that one.
fn asks_last(entry: &[u8]) -> Option<bool> {
    // Most parameters are others.
    memchr::memmem::find(entry, ASKS_LAST.as_bytes())?;
    let mut entries = HashMap::new();
    // A map entry is a message of its own, which prost reads with its length before it.
    let mut delimited = Vec::with_capacity(entry.len() + 10);
    prost::encode_length_delimiter(entry.len(), &mut delimited).ok()?;
    delimited.extend_from_slice(entry);
    prost::encoding::hash_map::merge(
        prost::encoding::string::merge,
        prost::encoding::message::merge::<InferParameter, _>,
        &mut entries,
        &mut delimited.as_slice(),
        DecodeContext::default(),
    )
    .ok()?;
    let value = entries.remove(ASKS_LAST)?;
    Some(matches!(value.parameter_choice, Some(ParameterChoice::BoolParam(true))))
}

#[cfg(test)]
mod tests {
    use berth_wire::oip::ModelInferRequest;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    proptest! {
        #[test]
        fn what_is_peeked_is_what_decoding_finds(
            model in ".{0,40}",
            version in ".{0,10}",
            id in ".{0,10}",
            asks in proptest::option::of(any::<bool>()),
            blob in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let message = ModelInferRequest {
                model_name: model.clone(),
                model_version: version.clone(),
                id: id.clone(),
                parameters: asks.map(|asks| (ASKS_LAST.to_owned(), InferParameter {
                    parameter_choice: Some(ParameterChoice::BoolParam(asks)),
                })).into_iter().collect(),
                raw_input_contents: vec![blob.into()],
                ..ModelInferRequest::default()
            };
            let bytes = message.encode_to_vec();
            let found = names(&bytes);
            prop_assert_eq!(found, Some(Names { model: &model, version: &version, id: &id, asks_last: asks == Some(true) }));
        }

        #[test]
        fn what_leads_is_what_the_whole_says(model in "[a-z]{1,40}", version in ".{0,10}", blob in 1..300_usize, cut in 0..400_usize) {
            let message = ModelInferRequest {
                model_name: model.clone(),
                model_version: version.clone(),
                raw_input_contents: vec![vec![7; blob].into()],
                ..ModelInferRequest::default()
            };
            let bytes = message.encode_to_vec();
            if let Some(found) = leading(&bytes[..cut.min(bytes.len())]).and_then(names) {
                prop_assert_eq!((found.model, found.version), (&*model, &*version));
            }
            prop_assert!(leading(&bytes).is_some());
        }

        /// Whatever comes: where both read it they agree, and neither panics.
        #[test]
        fn garbage_is_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let (Some(names), Ok(message)) = (names(&bytes), ModelInferRequest::decode(bytes.as_slice())) {
                prop_assert_eq!(names.model, message.model_name);
                prop_assert_eq!(names.version, message.model_version);
                prop_assert_eq!(names.id, message.id);
            }
        }
    }
}
