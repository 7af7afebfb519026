//! The frames between the worker and a model's process.
//!
//! ```text
//! u32 kind | u32 length of the head | u64 length of the body | head: JSON | body: bytes
//! ```
//! Large bodies go the same way: a memfd for each, mapped by the process, took 1.7 to 6 times as long for 256 KiB to
//! 64 MiB, as its pages are made anew each time.
//!
//! All numbers are little-endian; the head says what the body holds. The other end is `berth/frames.py`, in the same
//! words. The process runs somebody else's code: nothing that it sends is trusted to be well-formed.

use std::io::{self, Read};

use bytes::Bytes;

/// The bytes before the head, little-endian: kind (4), length of the head (4), length of the body (8).
pub const PREFIX: usize = 16;

/// The largest head: a batch of a thousand failures with their tracebacks fits, and a broken process cannot make us
/// allocate more.
pub const MAX_HEAD: usize = 32 << 20;

/// The largest body that a process may send: the answers of one run. It is this process's memory, where no limit of the
/// model's holds.
pub const MAX_BODY: usize = 128 << 20;

/// The kind of a frame. Numbers from 16 on come from the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// To the process, as the first frame: the model to load.
    Load = 1,
    /// To the process: the requests of one run.
    Run = 2,
    /// To the process: it is to end by itself.
    Shutdown = 3,
    /// To the process: nobody waits for a run any more.
    Stop = 4,
    /// From the process: which step of the load begins.
    Step = 16,
    /// From the process: the model is loaded and takes runs.
    Loaded = 17,
    /// From the process: the load has failed, for the reason in the head.
    Failed = 18,
    /// From the process: the answers of one run.
    Result = 19,
    /// From the process: a line for the log.
    Log = 20,
    /// From the process: a run is computed, its answers are being written, and the next run may come.
    Computed = 21,
}

impl Kind {
    /// Every kind, to find one by its number.
    pub const ALL: [Self; 10] = [
        Self::Load,
        Self::Run,
        Self::Shutdown,
        Self::Stop,
        Self::Step,
        Self::Loaded,
        Self::Failed,
        Self::Result,
        Self::Log,
        Self::Computed,
    ];
}

/// A message between the worker and a model's process: a prefix of [`PREFIX`] bytes, a head and a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The kind, which says how head and body are read.
    pub kind: Kind,
    /// JSON, of at most [`MAX_HEAD`] bytes.
    pub head: Bytes,
    /// The data that the head describes.
    pub body: Bytes,
}

/// The end of a stream of frames: its bytes are no frame, or nothing comes any more.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The other side is gone.
    #[error("the line is closed")]
    Closed,
    /// The line broke.
    #[error("the line broke: {0}")]
    Io(io::Error),
    /// There is no such kind.
    #[error("there is no kind of frame {0}")]
    Kind(u32),
    /// The frame is larger than any may be.
    #[error("a frame with a head of {head} and a body of {body} bytes is too large")]
    TooLarge {
        /// Length of the head in bytes, as the prefix says.
        head: u64,
        /// Length of the body in bytes, as the prefix says.
        body: u64,
    },
}

/// The first bytes of a frame, before its head and body of the given lengths.
#[must_use]
pub fn prefix(kind: Kind, head: usize, body: usize) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&(kind as u32).to_le_bytes());
    prefix[4..8].copy_from_slice(&u32::try_from(head).unwrap_or(u32::MAX).to_le_bytes());
    prefix[8..].copy_from_slice(&(body as u64).to_le_bytes());
    prefix
}

/// The largest body that is copied into one piece with its head: one system call instead of two, for a short copy.
const SMALL: usize = 64 << 10;

/// A whole frame in one piece, so that one write wakes the other side once; `None`: its body is too large to be copied.
pub(super) fn in_one_piece(kind: Kind, head: &[u8], body: &[impl AsRef<[u8]>]) -> Option<Vec<u8>> {
    let length: usize = body.iter().map(|part| part.as_ref().len()).sum();
    if length > SMALL {
        return None;
    }
    let mut frame = Vec::with_capacity(PREFIX + head.len() + length);
    frame.extend_from_slice(&prefix(kind, head.len(), length));
    frame.extend_from_slice(head);
    body.iter().for_each(|part| frame.extend_from_slice(part.as_ref()));
    Some(frame)
}

/// Reads the first bytes of a frame: what it is, and how long its parts are; the body has at most `most` bytes.
pub fn parse(prefix: [u8; PREFIX], most: usize) -> Result<(Kind, usize, usize), Broken> {
    let [a, b, c, d, e, f, g, h, body @ ..] = prefix;
    let number = u32::from_le_bytes([a, b, c, d]);
    let kind = Kind::ALL.into_iter().find(|kind| *kind as u32 == number).ok_or(Broken::Kind(number))?;
    let (head, body) = (u64::from(u32::from_le_bytes([e, f, g, h])), u64::from_le_bytes(body));
    match (usize::try_from(head), usize::try_from(body)) {
        (Ok(head), Ok(body)) if head <= MAX_HEAD && body <= most => Ok((kind, head, body)),
        _ => Err(Broken::TooLarge { head, body }),
    }
}

/// Waits for the next frame of a process. Memory is taken as bytes come, not as the prefix says.
pub fn read(from: &mut impl Read) -> Result<Frame, Broken> {
    read_within(from, MAX_BODY)
}

/// The same, where a body may have up to `most` bytes.
pub fn read_within(from: &mut impl Read, most: usize) -> Result<Frame, Broken> {
    let mut first = [0; PREFIX];
    fill(from, &mut first)?;
    let (kind, head, body) = parse(first, most)?;
    Ok(Frame { kind, head: part(from, head)?, body: part(from, body)? })
}

fn part(from: &mut impl Read, length: usize) -> Result<Bytes, Broken> {
    // The usual frame in one piece; a large one grows.
    let mut part = Vec::with_capacity(length.min(1 << 20));
    from.take(length as u64).read_to_end(&mut part).map_err(Broken::Io)?;
    if part.len() < length { Err(Broken::Closed) } else { Ok(part.into()) }
}

fn fill(from: &mut impl Read, into: &mut [u8]) -> Result<(), Broken> {
    from.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Broken::Closed,
        _ => Broken::Io(error),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        proptest::sample::select(Kind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(kind in kinds(), head: Vec<u8>, body: Vec<u8>, rest: Vec<u8>) {
            let mut bytes = prefix(kind, head.len(), body.len()).to_vec();
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&body);
            let whole = bytes.len();
            bytes.extend_from_slice(&rest);
            let mut from = &bytes[..];
            let frame = read(&mut from).expect("a frame");
            prop_assert_eq!(frame, Frame { kind, head: head.into(), body: body.into() });
            prop_assert_eq!(from, &rest[..], "and no more");
            for cut in 0..whole {
                prop_assert!(matches!(read(&mut &bytes[..cut]), Err(Broken::Closed)), "cut at {}", cut);
            }
        }

        #[test]
        fn noise_is_refused_or_read_and_takes_no_memory_that_it_did_not_send(noise: Vec<u8>) {
            let taken = read(&mut &noise[..]).map_or(0, |frame| frame.head.len() + frame.body.len());
            prop_assert!(taken <= noise.len());
        }
    }

    #[test]
    fn frames_without_end_are_refused() {
        for (head, body) in [(MAX_HEAD + 1, 0), (0, MAX_BODY + 1), (usize::MAX, usize::MAX)] {
            let refused = parse(prefix(Kind::Result, head, body), MAX_BODY);
            assert!(matches!(refused, Err(Broken::TooLarge { .. })), "{head} {body}: {refused:?}");
        }
        let mut unknown = prefix(Kind::Load, 0, 0);
        unknown[0] = 99;
        assert!(matches!(parse(unknown, MAX_BODY), Err(Broken::Kind(99))));
    }
}
