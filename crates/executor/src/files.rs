//! Open files, shared out: however many connections clients open, there are some for the admin port, queues and logs.
//!
//! ```text
//! all files ── own ── the rest: half for connections of clients, half for connections to model servers
//! ```

/// Most files that this process keeps for itself: 256 connections of the admin port, and what queues, logs and certificates take.
const OWN: usize = 512;

/// The least of a share, however few files there are.
const LEAST: usize = 8;

/// Most connections of clients at a time, each some 30 KiB at rest.
const CONNECTIONS: usize = 16_384;

/// Shares of the files, for all ports together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileShares {
    /// Connections of clients.
    pub(crate) connections: usize,
    /// Requests in flight: each may have a connection to a model server.
    pub(crate) requests: usize,
}

impl FileShares {
    /// Shares of so many files; `None`: there is no limit.
    pub(crate) fn of(files: Option<u64>) -> Self {
        let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
        let own = (files / 4).min(OWN);
        let half = ((files - own) / 2).max(LEAST);
        Self { connections: half.min(CONNECTIONS), requests: half }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_out_leaves_some() {
        for (files, connections, requests) in [
            (Some(20), 8, 8),
            (Some(1_024), 384, 384),
            (Some(4_096), 1_792, 1_792),
            (Some(1 << 20), CONNECTIONS, 524_032),
            (None, CONNECTIONS, (usize::MAX - OWN) / 2),
        ] {
            assert_eq!(FileShares::of(files), FileShares { connections, requests }, "{files:?}");
        }
    }
}
