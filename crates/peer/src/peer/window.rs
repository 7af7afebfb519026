//! HTTP/2 flow control between nodes, and other bounds of a line, at both ends.

/// Flow-control window of one stream. Large tensors need not wait for window updates.
pub(crate) const STREAM: u32 = 2 << 20;

/// Flow-control window of one connection: 64 streams' worth, because slow readers hold what their streams have sent
/// and block all others when it is full.
pub(crate) const CONNECTION: u32 = 128 << 20;

/// Largest frame. The minimum of 16 KiB would cut a tensor of 48 KiB into four pieces that must be copied together; a
/// larger one would delay other streams.
pub(crate) const FRAME: u32 = 256 << 10;

/// The bytes of a body that are buffered inside a connection: four frames, so that the line stays busy while the
/// body's next part is made.
pub(crate) const SEND_BUFFER: usize = 1 << 20;

/// Requests that may be cancelled at about the same time. The defaults guard against strangers and would end a
/// connection with all its requests; here the other end is a gateway whose clients went away.
pub(crate) const CANCELLED: usize = 4_096;

/// Bytes read from a connection at a time. TLS alone reads 4 KiB, which costs many system calls for tensors.
pub(crate) const READ: usize = 32 << 10;

/// The longest head of a request or an answer: far longer than any that nodes pass on, which have 64 KiB, or about twice that where a
/// client speaks HTTP/1. HTTP/2 ends a connection on which a much longer one comes, or one in too many frames, with the requests of others
/// on it.
pub(crate) const HEADERS: u32 = 16 << 20;
