//! Open files: as many as the system allows, shared out so that no port takes all of them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The least of them, however few files there are.
const MIN_CONNECTIONS: usize = 64;

/// Raises the limit of open files, and returns the connections that the inference port may have: half of the files. The control API, the
/// store, models and logs share the other half. It has no more than `most`: each costs some 30 KiB at rest.
pub(crate) fn raise(most: usize) -> usize {
    shared(raise_limit(), most)
}

/// Raises the limit of open files of this process as far as the system lets it, and returns it; `None`: there is none.
pub(crate) fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if let Err(error) = raised {
        tracing::debug!(event = "files_not_raised", %error);
    }
    if raised.is_ok() { maximum } else { current }
}

fn shared(files: Option<u64>, most: usize) -> usize {
    let half = files.map_or(usize::MAX, |files| usize::try_from(files / 2).unwrap_or(usize::MAX));
    half.min(most).max(MIN_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_has_half_and_no_more_than_it_can_use() {
        let cases = [(Some(1_024), 512), (Some(1 << 20), 16_384), (None, 16_384), (Some(20), MIN_CONNECTIONS)];
        for (files, connections) in cases {
            assert_eq!(shared(files, 16_384), connections, "{files:?}");
        }
    }
}
