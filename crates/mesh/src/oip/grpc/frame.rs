//! The framing of gRPC messages: a flag, a length, the message.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

/// A flag that says whether the message is compressed, and its length.
pub(crate) const PREFIX: usize = 5;

/// A message as a body.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode(&mut framed).expect("there is room for it");
    framed.freeze()
}
