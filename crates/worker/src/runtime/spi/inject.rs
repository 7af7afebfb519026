//! Puts the model's id into the messages of a request without reading them.
//!
//! The bytes of a protobuf message may be followed by more fields of it: the last value of a field counts, and parts of an
//! inner message add up. So the field with the id goes behind each message, and only the message's length in its gRPC
//! frame changes:
//!
//! ```text
//! 0 ┊ length ┊ message                 ──▶   0 ┊ length + n ┊ message ┊ field with the id (n bytes)
//! ```
//! A message costs a few bytes more, whatever its size, and streams pass as they come.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use berth_mesh::exchange::{self, BoxError};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

/// A flag and a length.
const PREFIX: usize = 5;

/// The field with the id: field numbers from the message down to the string.
pub(super) fn field(path: &[u32], id: &str) -> Bytes {
    let mut value = Bytes::copy_from_slice(id.as_bytes());
    for &number in path.iter().rev() {
        let length = value.len() as u64;
        let mut outer = BytesMut::with_capacity(key_len(number) + encoded_len_varint(length) + value.len());
        encode_key(number, WireType::LengthDelimited, &mut outer);
        encode_varint(length, &mut outer);
        outer.put(value);
        value = outer.freeze();
    }
    value
}

/// The status of a request into whose messages the field cannot be put. HTTP/2 carries no reason of a body that ends so: the call
/// fails, and who made it looks here.
pub(super) type Refusal = Arc<OnceLock<Status>>;

/// A body whose messages end with `field`.
pub(super) struct Injecting {
    inner: exchange::Body,
    field: Bytes,
    refusal: Refusal,
    at: At,
    ready: VecDeque<Bytes>,
}

/// The part that the next byte of the body belongs to.
enum At {
    /// In the flag and length of a message, of which these are here.
    Prefix([u8; PREFIX], usize),
    /// In a message of which so many bytes are to come.
    Message(usize),
}

const START: At = At::Prefix([0; PREFIX], 0);

impl Injecting {
    pub(super) fn new(inner: exchange::Body, field: Bytes, refusal: Refusal) -> Self {
        Self { inner, field, refusal, at: START, ready: VecDeque::new() }
    }

    fn take(&mut self, mut data: Bytes) -> Result<(), Status> {
        while data.has_remaining() {
            match &mut self.at {
                At::Prefix(prefix, here) => {
                    let more = data.len().min(PREFIX - *here);
                    data.copy_to_slice(&mut prefix[*here..*here + more]);
                    *here += more;
                    if *here == PREFIX {
                        let [flag, length @ ..] = *prefix;
                        self.begin(flag, u32::from_be_bytes(length))?;
                    }
                }
                At::Message(left) => {
                    let part = data.split_to(data.len().min(*left));
                    *left -= part.len();
                    let over = *left == 0;
                    self.ready.push_back(part);
                    if over {
                        self.finish();
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, flag: u8, length: u32) -> Result<(), Status> {
        if flag != 0 {
            return Err(Status::unimplemented(
                "the model's id cannot be put into a compressed message: send it uncompressed",
            ));
        }
        let whole = u32::try_from(self.field.len()).ok().and_then(|more| length.checked_add(more));
        let whole = whole.ok_or_else(|| Status::resource_exhausted("the message is too long"))?;
        let mut prefix = BytesMut::with_capacity(PREFIX);
        prefix.put_u8(0);
        prefix.put_u32(whole);
        self.ready.push_back(prefix.freeze());
        self.at = At::Message(length as usize);
        if length == 0 {
            self.finish();
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.ready.push_back(self.field.clone());
        self.at = START;
    }
}

impl Body for Injecting {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(status) = self.take(data) {
                            let status = self.refusal.get_or_init(|| status).clone();
                            return Poll::Ready(Some(Err(Box::new(status))));
                        }
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::mmesh::{LoadModelRequest, RuntimeStatusResponse};
    use futures::{FutureExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};
    use proptest::{collection::vec, prelude::*};
    use prost::Message as _;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
            bytes.extend_from_slice(message);
        }
        bytes
    }

    fn pass(body: &[u8], cuts: &[usize], field: Bytes) -> Result<Vec<u8>, BoxError> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).collect();
        cuts.extend([0, body.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| Bytes::copy_from_slice(&body[cut[0]..cut[1]]));
        let pieces: Vec<Result<_, BoxError>> = pieces.map(|piece| Ok(Frame::data(piece))).collect();
        let body = StreamBody::new(stream::iter(pieces)).boxed_unsync();
        let refusal = Refusal::default();
        let passed = Injecting::new(body, field, refusal.clone()).collect().now_or_never().expect("nothing waits");
        assert_eq!(passed.is_err(), refusal.get().is_some());
        passed.map(|collected| collected.to_bytes().to_vec())
    }

    fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_be_bytes(bytes[1..5].try_into().expect("four")) as usize;
            messages.push(bytes[5..5 + length].to_vec());
            bytes = &bytes[5 + length..];
        }
        messages
    }

    proptest! {
        #[test]
        fn every_message_names_the_model_however_it_is_cut(
            models in vec(("[a-z]{0,9}", ".{0,40}", vec(any::<u8>(), 0..300)), 0..4),
            cuts in vec(any::<usize>(), 0..9),
        ) {
            let of = |(id, path, key): &(String, String, Vec<u8>)| LoadModelRequest {
                model_id: id.clone(), model_path: path.clone(), model_key: format!("{key:?}"), ..LoadModelRequest::default()
            };
            let messages: Vec<Vec<u8>> = models.iter().map(|model| of(model).encode_to_vec()).collect();
            let passed = split(&pass(&framed(&messages), &cuts, field(&[1], "the id")).expect("passed"));
            prop_assert_eq!(passed.len(), messages.len());
            for (model, message) in models.iter().zip(passed) {
                let read = LoadModelRequest::decode(&message[..]).expect("a message");
                prop_assert_eq!(read, LoadModelRequest { model_id: "the id".to_owned(), ..of(model) });
            }
        }
    }

    #[test]
    fn inner_messages_add_up() {
        // Field 8 is a map: its entries are messages with the key in field 1.
        let bytes = field(&[8, 1], "method");
        let read = RuntimeStatusResponse::decode(bytes).expect("a message");
        assert_eq!(read.method_infos.keys().collect::<Vec<_>>(), ["method"]);
    }

    #[test]
    fn compressed_messages_are_refused() {
        let mut body = framed(&[b"zip".to_vec()]);
        body[0] = 1;
        let error = pass(&body, &[], field(&[1], "id")).expect_err("refused");
        assert!(error.to_string().contains("uncompressed"), "{error}");
    }
}
