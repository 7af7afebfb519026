//! The part of a body that a payload holds: of gRPC the first message, of anything else all of it.

use berth_peer::port::KeptPieces;
use bytes::{Buf as _, Bytes};

use super::tap::Kind;

/// A gRPC message's flag and length.
const FRAME_PREFIX: usize = 5;

/// Collects a body, or the first message of it, up to a bound.
#[derive(Debug)]
pub(super) struct Collector {
    kind: Kind,
    kept: KeptPieces,
    length: usize,
    most: usize,
    /// Bytes of the first message with its frame, once its prefix is here.
    needed: Option<usize>,
    too_long: bool,
}

/// The result of a [`Collector`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CollectedBody {
    /// All of it, without its frame.
    Data(Vec<Bytes>),
    /// More than is kept.
    TooLong,
    /// The body ended before the message did.
    Part,
}

impl Collector {
    /// A collector that keeps at most `most` bytes; a longer body counts as too large.
    pub(super) fn new(kind: Kind, most: usize) -> Self {
        Self { kind, kept: KeptPieces::default(), length: 0, most, needed: None, too_long: false }
    }

    /// Takes a piece; true once nothing more is wanted.
    pub(super) fn add(&mut self, piece: &Bytes) -> bool {
        if self.is_full() {
            return true;
        }
        self.length += piece.len();
        self.kept.add(piece);
        if self.kind == Kind::Messages && self.needed.is_none() && self.length >= FRAME_PREFIX {
            let prefix: Vec<u8> = self.kept.pieces().iter().flatten().take(FRAME_PREFIX).copied().collect();
            self.needed = Some(FRAME_PREFIX.saturating_add((&prefix[1..]).get_u32() as usize));
        }
        if self.needed.unwrap_or(self.length) > self.most.saturating_add(FRAME_PREFIX) {
            self.too_long = true;
            self.kept = KeptPieces::default();
        }
        self.is_full()
    }

    fn is_full(&self) -> bool {
        self.too_long || self.needed.is_some_and(|needed| self.length >= needed)
    }

    /// Gives what was collected of a body that is at its end, or of which no more is wanted.
    pub(super) fn finish(&mut self) -> CollectedBody {
        let mut pieces = std::mem::take(&mut self.kept).pieces().to_vec();
        match (self.too_long, self.kind, self.needed) {
            (true, _, _) => CollectedBody::TooLong,
            (false, Kind::Whole, _) => CollectedBody::Data(pieces),
            (false, Kind::Messages, Some(needed)) if self.length >= needed => {
                cut(&mut pieces, needed);
                CollectedBody::Data(pieces)
            }
            (false, Kind::Messages, None) if self.length == 0 => CollectedBody::Data(pieces),
            (false, Kind::Messages, _) => CollectedBody::Part,
        }
    }
}

/// Leaves the message: bytes `FRAME_PREFIX..needed`.
fn cut(pieces: &mut Vec<Bytes>, needed: usize) {
    let (mut skip, mut left) = (FRAME_PREFIX, needed - FRAME_PREFIX);
    for piece in pieces.iter_mut() {
        let skipped = skip.min(piece.len());
        piece.advance(skipped);
        skip -= skipped;
        piece.truncate(left);
        left -= piece.len();
    }
    pieces.retain(|piece| !piece.is_empty());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("a message").to_be_bytes();
        [&[0][..], &length, message].concat()
    }

    proptest! {
        #[test]
        fn the_first_message_is_found_however_it_is_cut(
            first in proptest::collection::vec(any::<u8>(), 0..50),
            second in proptest::collection::vec(any::<u8>(), 0..50),
            size in 1_usize..20,
            most in 0_usize..60,
        ) {
            let body = [framed(&first), framed(&second)].concat();
            let mut collector = Collector::new(Kind::Messages, most);
            for piece in body.chunks(size) {
                if collector.add(&Bytes::copy_from_slice(piece)) {
                    break;
                }
            }
            let expected = (first.len() <= most).then_some(first);
            let found = match collector.finish() {
                CollectedBody::Data(pieces) => Some(pieces.concat()),
                CollectedBody::TooLong => None,
                CollectedBody::Part => panic!("all of it came"),
            };
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn bodies_that_are_no_messages_are_whole() {
        let mut collector = Collector::new(Kind::Whole, 6);
        assert!(!collector.add(&Bytes::from_static(b"ab")) && !collector.add(&Bytes::from_static(b"cd")));
        assert_eq!(collector.finish(), CollectedBody::Data(vec!["ab".into(), "cd".into()]));
        let mut cut = Collector::new(Kind::Messages, 6);
        assert!(!cut.add(&Bytes::from_static(&[0, 0, 0, 0, 2, 1])));
        assert_eq!(cut.finish(), CollectedBody::Part);
        assert_eq!(Collector::new(Kind::Messages, 6).finish(), CollectedBody::Data(Vec::new()), "no message at all");
    }
}
