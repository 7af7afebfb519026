//! The memory that all requests may take together.

use berth_spec::ByteSize;
use berth_worker::capacity::Capacity;

use crate::failure::Failure;

/// Largest bodies that there is always room for: with fewer, one request keeps all others out.
const BODIES: u64 = 4;

/// Bytes for all requests: as many as told, else a tenth of the machine's memory, or more where the largest bodies need it.
///
/// # Errors
/// [`Failure::Usage`]: the largest bodies have no room in what was told.
pub(super) fn bytes(told: Option<ByteSize>, body: ByteSize) -> Result<usize, Failure> {
    let least = ByteSize(body.0.saturating_mul(BODIES));
    let memory = match told {
        Some(told) if told < least => {
            let (told, body, least) = (exact(told), exact(body), exact(least));
            return Err(Failure::Usage(format!(
                "--request-memory {told} has no room for four bodies of --max-body {body}: give --request-memory {least} or \
                 more, or a smaller --max-body"
            )));
        }
        Some(told) => told,
        None => ByteSize(Capacity::probe().memory.0 / 10).max(least),
    };
    Ok(usize::try_from(memory.0).unwrap_or(usize::MAX))
}

/// A size as a flag takes it, not rounded.
fn exact(size: ByteSize) -> String {
    let shown = size.to_string();
    if shown.parse::<ByteSize>() == Ok(size) { shown } else { format!("{}B", size.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn four_of_the_largest_bodies_have_room() {
        let body = ByteSize(64 * MIB);
        assert_eq!(bytes(Some(ByteSize(256 * MIB)), body).ok(), Some(256 << 20));
        assert!(bytes(None, ByteSize(1 << 50)).is_ok_and(|memory| memory == 4 << 50), "a default gives way");
        let error = bytes(Some(ByteSize(2 * MIB)), body).expect_err("too little").to_string();
        for part in ["--request-memory 2MiB", "--max-body 64MiB", "--request-memory 256MiB or more"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let odd = bytes(Some(ByteSize(MIB)), ByteSize(1_000_001)).expect_err("too little").to_string();
        assert!(odd.contains("--request-memory 4000004B or more"), "{odd}");
    }
}
