//! HTTP/2 flow control between nodes, at both ends.

/// What one stream may send ahead. Halved: large tensors wait for window updates. Doubled: memory per slow reader.
pub(crate) const STREAM: u32 = 2 << 20;

/// What one line may send ahead: 64 streams' worth, as clients that read slowly hold what their streams have sent, and
/// all others on the line wait when it is full. Halved: fewer such clients hold up the others. Doubled: memory per line.
pub(crate) const CONNECTION: u32 = 128 << 20;

/// The largest frame. The least allowed is 16 KiB: a tensor of 48 KiB then comes in four pieces, which are copied
/// together. Doubled: a large frame keeps the other streams of its line waiting longer.
pub(crate) const FRAME: u32 = 256 << 10;

/// Bytes of a body that wait inside a line. Halved: a fast sender is woken more often. Doubled: memory per stream.
pub(crate) const SEND_BUFFER: usize = 1 << 20;

/// Requests that may be cancelled at about the same time. The defaults are against strangers who cancel to keep a server
/// busy, and would end a line with all its requests; here the other end is a gateway whose clients went away.
/// Halved: a burst of them may end a line. Doubled: memory.
pub(crate) const CANCELLED: usize = 4_096;

/// What is read from a connection at once. TLS alone reads 4 KiB at a time. Halved: more system calls for tensors.
/// Doubled: more memory per line.
pub(crate) const READ: usize = 32 << 10;
