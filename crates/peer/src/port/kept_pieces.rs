//! Pieces of a body that are kept while it passes, so that it can be sent again.
//!
//! A piece is a part of the buffer that a connection has read into, 8 KiB or more, and keeps all of it. Of a body that comes byte by byte a
//! thousand times of what it counts as would be kept: small pieces are copied together.

use bytes::{Bytes, BytesMut};

/// Pieces below this are copied: others keep twice their size at most.
const MIN_PIECE_BYTES: usize = 4 << 10;

/// Bytes of small pieces that make a piece together.
const JOINED_BYTES: usize = 16 << 10;

/// The part of a body that has passed.
#[derive(Debug, Default)]
pub struct KeptPieces {
    pieces: Vec<Bytes>,
    /// The begin of each piece but the first: a retry looks for one piece after the other.
    begins: Vec<usize>,
    /// Small ones that came last.
    together: BytesMut,
    length: usize,
}

impl KeptPieces {
    /// Keeps one more. The first is kept as it is: most bodies have no other.
    pub fn add(&mut self, piece: &Bytes) {
        if piece.is_empty() {
            return;
        }
        let first = self.length == 0;
        self.length += piece.len();
        if !first && piece.len() < MIN_PIECE_BYTES {
            self.together.extend_from_slice(piece);
            if self.together.len() < JOINED_BYTES {
                return;
            }
        }
        self.close();
        if first || piece.len() >= MIN_PIECE_BYTES {
            self.push(piece.clone());
        }
    }

    /// Sum of the bytes that are kept.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The part after so many bytes, up to the end of a piece; `None`: it is not here.
    #[must_use]
    pub fn after(&self, bytes: usize) -> Option<Bytes> {
        if bytes >= self.length {
            return None;
        }
        let at = self.begins.partition_point(|begin| *begin <= bytes);
        let inside = bytes - at.checked_sub(1).map_or(0, |before| self.begins[before]);
        let piece = self.pieces.get(at)?;
        Some(match inside.checked_sub(piece.len()) {
            None => piece.slice(inside..),
            Some(inside) => Bytes::copy_from_slice(&self.together[inside..]),
        })
    }

    /// All of them.
    pub fn pieces(&mut self) -> &[Bytes] {
        self.close();
        &self.pieces
    }

    fn close(&mut self) {
        if !self.together.is_empty() {
            let piece = std::mem::take(&mut self.together).freeze();
            self.push(piece);
        }
    }

    fn push(&mut self, piece: Bytes) {
        if let Some(last) = self.pieces.last() {
            let begin = self.begins.last().copied().unwrap_or_default();
            self.begins.push(begin + last.len());
        }
        self.pieces.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A piece as a connection has read it: a part of a buffer.
    fn read(bytes: &[u8]) -> (Bytes, Bytes) {
        let buffer = Bytes::from([bytes, &[0; 8 << 10]].concat());
        (buffer.slice(..bytes.len()), buffer)
    }

    #[test]
    fn small_pieces_do_not_keep_what_they_were_read_into() {
        let mut kept = KeptPieces::default();
        let (first, buffer) = read(b"x");
        kept.add(&first);
        drop(first);
        assert!(!buffer.is_unique(), "the only piece of most bodies is not copied");
        for _ in 0..20_000 {
            let (piece, buffer) = read(b"y");
            kept.add(&piece);
            drop(piece);
            assert!(buffer.is_unique());
        }
        assert_eq!((kept.length(), kept.pieces().len()), (20_001, 1 + 20_000_usize.div_ceil(JOINED_BYTES)));
        let (large, buffer) = read(&[0; MIN_PIECE_BYTES]);
        kept.add(&large);
        drop(large);
        assert!(!buffer.is_unique(), "what is about as large is not copied either");
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_came(
            sizes in proptest::collection::vec(prop_oneof![0_usize..10, 0..2 * JOINED_BYTES], 0..20),
            at in any::<prop::sample::Index>(),
        ) {
            let (mut kept, mut all) = (KeptPieces::default(), Vec::new());
            for (number, size) in sizes.into_iter().enumerate() {
                let piece = vec![number as u8; size];
                kept.add(&Bytes::copy_from_slice(&piece));
                all.extend(piece);
            }
            prop_assert_eq!(kept.length(), all.len());
            let mut at = at.index(all.len() + 1);
            let (begun, mut again) = (at, Vec::new());
            while let Some(piece) = kept.after(at) {
                prop_assert!(!piece.is_empty());
                at += piece.len();
                again.extend_from_slice(&piece);
            }
            prop_assert_eq!(&again, &all[begun..]);
            prop_assert_eq!(kept.pieces().concat(), all);
        }
    }
}
