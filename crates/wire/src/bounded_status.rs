//! Errors, bounded: they may repeat what a client sent, and over gRPC they are headers, of which clients take few (8 KiB is common). A node
//! that is sent far more of them ends a connection that many requests share.

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http::HeaderMap;
use tonic::Status;

/// Longest text and longest details, in bytes of the header. More of a text is cut; longer details are left out.
pub const MAX_STATUS_BYTES: usize = 6 << 10;

const MESSAGE: &str = "grpc-message";
const DETAILS: &str = "grpc-status-details-bin";

/// Details as readers of statuses take them. They panic on others.
const DETAILS_CODING: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bounds the status in a head or in trailers.
pub fn bound(headers: &mut HeaderMap) {
    let details = headers.get(DETAILS).map(|value| value.as_bytes());
    if details.is_some_and(|details| details.len() > MAX_STATUS_BYTES || DETAILS_CODING.decode(details).is_err()) {
        headers.remove(DETAILS);
    }
    if headers.get(MESSAGE).is_none_or(|message| message.len() <= MAX_STATUS_BYTES) {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else {
        headers.remove(MESSAGE);
        return;
    };
    let cut = text(status.message().to_owned());
    headers.remove(MESSAGE);
    // Its text is encoded for headers.
    let _ = Status::new(status.code(), cut).add_header(headers);
}

/// Cuts the text of an error, and says by an ellipsis that it did.
#[must_use]
pub fn text(mut text: String) -> String {
    let end = beginning(&text).len();
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The part of a text that is no longer than [`MAX_STATUS_BYTES`] in a header, where the bytes of other scripts take three each.
fn beginning(text: &str) -> &str {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"#%<>`?{}".contains(byte);
    let mut length = 0;
    let end = text.bytes().position(|byte| {
        length += if is_plain(&byte) { 1 } else { 3 };
        length > MAX_STATUS_BYTES
    });
    &text[..text.floor_char_boundary(end.unwrap_or(text.len()))]
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tonic::Code;

    use super::*;

    fn bounded(status: &Status) -> HeaderMap {
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).expect("it fits");
        bound(&mut headers);
        headers
    }

    #[test]
    fn a_long_text_is_cut_and_its_code_stays() {
        let short = Status::invalid_argument("no such input: größe");
        assert_eq!(Status::from_header_map(&bounded(&short)).expect("a status").message(), short.message());
        for long in ["n", "é", "{\"a\": 1}"] {
            let headers = bounded(&Status::invalid_argument(long.repeat(2 * MAX_STATUS_BYTES)));
            let status = Status::from_header_map(&headers).expect("a status");
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with(long) && status.message().ends_with('…'), "{long}");
            let length = headers[MESSAGE].len();
            assert!(
                (MAX_STATUS_BYTES..MAX_STATUS_BYTES + 3 * '…'.len_utf8() + 1).contains(&length),
                "{long}: {length}"
            );
        }
        let nothing = HeaderValue::from_bytes(&[b'x'; 2 * MAX_STATUS_BYTES]).expect("a value");
        let mut headers: HeaderMap = [(http::HeaderName::from_static(MESSAGE), nothing)].into_iter().collect();
        bound(&mut headers);
        assert!(headers.is_empty(), "a text without a status says nothing");
    }

    #[test]
    fn details_that_nobody_could_read_are_left_out() {
        let details = |bytes: Vec<u8>| Status::with_details(Code::Internal, "x", bytes.into());
        assert!(bounded(&details(vec![1, 2, 3, 4])).contains_key(DETAILS));
        assert!(!bounded(&details(vec![0; MAX_STATUS_BYTES])).contains_key(DETAILS));
        for wrong in ["?", "abcde", "====", "é"] {
            let mut headers = HeaderMap::new();
            Status::internal("x").add_header(&mut headers).expect("it fits");
            headers.insert(DETAILS, HeaderValue::from_bytes(wrong.as_bytes()).expect("a value"));
            bound(&mut headers);
            assert_eq!(Status::from_header_map(&headers).expect("a status").message(), "x", "{wrong}");
        }
    }
}
