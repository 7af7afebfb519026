//! The names in a `ModelInferRequest`, read without decoding its tensors.

use prost::encoding::{WireType, decode_key, decode_varint};

/// The fields of `model_name` and `model_version`.
const NAME: u32 = 1;
const VERSION: u32 = 2;

/// What a request says it is for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names<'a> {
    pub(crate) model: &'a str,
    /// Empty: none.
    pub(crate) version: &'a str,
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
            _ => {}
        }
    }
    Some(names)
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
            blob in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let message = ModelInferRequest {
                model_name: model.clone(),
                model_version: version.clone(),
                id,
                raw_input_contents: vec![blob.into()],
                ..ModelInferRequest::default()
            };
            let bytes = message.encode_to_vec();
            let found = names(&bytes);
            prop_assert_eq!(found, Some(Names { model: &model, version: &version }));
        }

        /// Whatever comes: where both read it they agree, and neither panics.
        #[test]
        fn garbage_is_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let (Some(names), Ok(message)) = (names(&bytes), ModelInferRequest::decode(bytes.as_slice())) {
                prop_assert_eq!(names.model, message.model_name);
                prop_assert_eq!(names.version, message.model_version);
            }
        }
    }
}
