//! Taking off OAEP padding (RFC 8017, 7.1.2) where an HSM only does the power: many know OAEP with SHA-1 alone.
//!
//! No step says which part was wrong, nor takes longer for one: an attacker who can have many files opened must not
//! learn from failures (Manger, 2001).

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{SHA256, digest},
};
use zeroize::Zeroizing;

const HASH: usize = 32;

/// The message in a padded block that is as long as the key's modulus; `None` if it is none.
pub(super) fn unpad(block: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    // The length is no secret.
    if block.len() < 2 * HASH + 2 {
        return None;
    }
    let (first, rest) = block.split_at(1);
    let (seed, masked) = rest.split_at(HASH);
    let seed = masked_with(seed, masked);
    let data = masked_with(masked, &seed);
    let (hash, rest) = data.split_at(HASH);
    let mut bad = first[0] | u8::from(verify_slices_are_equal(hash, digest(&SHA256, b"").as_ref()).is_err());
    // Zeros, a one, the message: all bytes are looked at, wherever the one is.
    let (mut begin, mut found) = (0usize, 0u8);
    for (index, byte) in rest.iter().enumerate() {
        let (one, zero) = (u8::from(*byte == 1), u8::from(*byte == 0));
        let here = one & (1 - found);
        begin |= (index + 1) & usize::from(here).wrapping_neg();
        bad |= (1 - found) & (1 - one) & (1 - zero);
        found |= one;
    }
    bad |= 1 - found;
    (bad == 0).then(|| Zeroizing::new(rest[begin..].to_vec()))
}

/// `data` xor MGF1-SHA256 of `seed`.
fn masked_with(data: &[u8], seed: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut out = Zeroizing::new(data.to_vec());
    for (counter, chunk) in (0u32..).zip(out.chunks_mut(HASH)) {
        let mut input = Zeroizing::new(seed.to_vec());
        input.extend_from_slice(&counter.to_be_bytes());
        let mask = digest(&SHA256, &input);
        chunk.iter_mut().zip(mask.as_ref()).for_each(|(byte, mask)| *byte ^= mask);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other direction, as the RFC says it.
    fn pad(message: &[u8], length: usize, seed: [u8; HASH]) -> Vec<u8> {
        let mut data = digest(&SHA256, b"").as_ref().to_vec();
        data.resize(length - HASH - 2 - message.len(), 0);
        data.push(1);
        data.extend(message);
        let masked = masked_with(&data, &seed);
        let seed = masked_with(&seed, &masked);
        [&[0][..], &seed, &masked].concat()
    }

    #[test]
    fn what_was_padded_comes_back_and_nothing_else_does() {
        for message in [&b""[..], b"x", &[1; 32], &[0; 32], &[7; 446]] {
            let block = pad(message, 512, [9; HASH]);
            assert_eq!(block.len(), 512);
            assert_eq!(unpad(&block).as_deref().map(Vec::as_slice), Some(message));
            for at in [0, 1, 40, 100, 511] {
                let mut changed = block.clone();
                changed[at] ^= 0x10;
                // What changes the message's own bytes alone is for the AEAD to see; the padding is checked here.
                let seen = unpad(&changed);
                assert_ne!(seen.as_deref().map(Vec::as_slice), Some(message), "{at}");
            }
        }
        assert_eq!(unpad(&[0; 10]), None);
        assert_eq!(unpad(&[0; 512]), None);
    }
}
