//! Reads the messages of a stream, one after the other. A message that came in one piece is not copied.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tonic::Status;

use crate::{
    body::memory::{Charge, RequestMemory},
    ingress::grpc::{message::unframed, status},
    oip::{
        content::Coding,
        grpc::frame::{FRAME_PREFIX, first},
    },
    stack::Stack,
};

/// The most that is set aside for a message before it has come: enough for most tensors, and little for a client that sends nothing.
const FIRST_PIECE: usize = 1 << 20;

/// One `ModelInferRequest` of a stream.
pub(super) struct Message {
    /// Its bytes without the frame, decompressed.
    pub(super) message: Bytes,
    /// As it came, if it was not compressed.
    plain: Option<Bytes>,
}

impl Message {
    /// The message with its frame, not compressed.
    pub(super) fn framed(&self) -> Bytes {
        self.plain.clone().unwrap_or_else(|| {
            let mut framed = BytesMut::with_capacity(FRAME_PREFIX + self.message.len());
            framed.put_u8(0);
            framed.put_u32(u32::try_from(self.message.len()).unwrap_or(u32::MAX));
            framed.extend_from_slice(&self.message);
            framed.freeze()
        })
    }
}

/// The messages of a request's body.
pub(super) struct MessageReader {
    body: Incoming,
    coding: Coding,
    /// The most bytes of a message.
    limit: usize,
    memory: Arc<RequestMemory>,
    /// Bytes that came and were not read yet.
    pending: Bytes,
}

impl MessageReader {
    pub(super) fn new(body: Incoming, coding: Coding, stack: &Stack) -> Self {
        let (limit, memory) = (stack.limits.body, Arc::clone(&stack.memory));
        Self { body, coding, limit, memory, pending: Bytes::new() }
    }

    /// Reads the next message; `None` at the end. Fails if it is larger than bodies may be, or the stream breaks.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, Status> {
        loop {
            let needed = match first(&self.pending) {
                Some((_, length)) if length > self.limit => {
                    return Err(Status::out_of_range(format!(
                        "the message has {length} bytes, and at most {} are taken",
                        self.limit
                    )));
                }
                Some((flag, length)) if self.pending.len() >= FRAME_PREFIX + length => {
                    let framed = self.pending.split_to(FRAME_PREFIX + length);
                    let plain = (flag == 0).then(|| framed.clone());
                    let message = unframed(framed, self.coding, self.limit, &self.memory).await?;
                    return Ok(Some(Message { message, plain }));
                }
                Some((_, length)) => FRAME_PREFIX + length,
                None => FRAME_PREFIX,
            };
            if !self.more(needed).await? {
                return if self.pending.is_empty() {
                    Ok(None)
                } else {
                    Err(Status::internal("the stream ended inside a message"))
                };
            }
        }
    }

    /// Reads until `needed` bytes are here; false at the end.
    async fn more(&mut self, needed: usize) -> Result<bool, Status> {
        let (mut whole, mut charge) = (BytesMut::new(), self.memory.charge());
        loop {
            let frame = match self.body.frame().await {
                None => {
                    self.keep(whole, charge);
                    return Ok(false);
                }
                Some(Ok(frame)) => frame,
                Some(Err(_)) => return Err(Status::cancelled("the client went away")),
            };
            let Ok(data) = frame.into_data() else { continue };
            if whole.is_empty() && self.pending.is_empty() {
                self.pending = data;
                if self.pending.len() >= needed {
                    return Ok(true);
                }
                continue;
            }
            if whole.is_empty() {
                whole.reserve(needed.min(FIRST_PIECE).max(self.pending.len() + data.len()));
                whole.extend_from_slice(&self.pending);
            }
            charge.grow_to(whole.capacity().max(whole.len() + data.len())).map_err(status)?;
            whole.extend_from_slice(&data);
            if whole.len() >= needed {
                self.keep(whole, charge);
                return Ok(true);
            }
        }
    }

    fn keep(&mut self, whole: BytesMut, charge: Charge) {
        if !whole.is_empty() {
            self.pending = charge.hold(whole.freeze());
        }
    }
}
