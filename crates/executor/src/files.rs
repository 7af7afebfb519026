//! Open files and memory, shared out: however many connections clients open, there are some files for the admin port, queues and logs, and
//! memory for requests.
//!
//! ```text
//! all files ── own ── the rest: half for connections of clients, half for connections to model servers
//! memory: a quarter for connections of clients, an eighth for their windows, a quarter for bodies of requests, the rest for answers
//! ```

/// Most files that this process keeps for itself: 256 connections of the admin port, and what queues, logs and certificates take.
const OWN: usize = 512;

/// The least of a share, however little there is.
const MIN_SHARE: usize = 8;

/// Most connections of clients at a time, however large the machine is: half a gigabyte at rest.
const CONNECTIONS: usize = 16_384;

/// Bytes that a connection takes at rest.
const AT_REST: u64 = 30 << 10;

/// Limits of this process; `None`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Open files.
    pub files: Option<u64>,
    /// Memory, in bytes: that of its container, or of the machine.
    pub memory: Option<u64>,
}

/// Shares of the limits, for all ports together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Connections of clients.
    pub(crate) connections: usize,
    /// Requests in flight: each may have a connection to a model server.
    pub(crate) requests: usize,
    /// Bytes for the windows of connections.
    pub(crate) windows: u64,
    /// Bytes for bodies of requests until the server has them, and for those of jobs while they run.
    pub(crate) bodies: usize,
}

impl Shares {
    pub(crate) fn of(limits: Limits) -> Self {
        let files = limits.files.map_or(usize::MAX, whole);
        let own = (files / 4).min(OWN);
        let half = ((files - own) / 2).max(MIN_SHARE);
        let memory = limits.memory.unwrap_or(u64::MAX);
        let by_memory = whole(memory / 4 / AT_REST).max(MIN_SHARE);
        Self {
            connections: half.min(by_memory).min(CONNECTIONS),
            requests: half,
            windows: memory / 8,
            bodies: whole(memory / 4),
        }
    }
}

fn whole(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
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
            let shares = Shares::of(Limits { files, memory: None });
            assert_eq!((shares.connections, shares.requests), (connections, requests), "{files:?}");
        }
    }

    #[test]
    fn connections_and_their_windows_leave_memory_for_requests() {
        for (mib, connections) in [(1, 8), (64, 546), (256, 2_184), (1_024, 8_738), (1 << 20, CONNECTIONS)] {
            let memory = mib << 20;
            let shares = Shares::of(Limits { files: None, memory: Some(memory) });
            assert_eq!((shares.connections, shares.windows), (connections, memory / 8), "{mib} MiB");
            assert_eq!(shares.bodies as u64, memory / 4, "{mib} MiB");
        }
        // Fewer files than memory.
        let shares = Shares::of(Limits { files: Some(1_024), memory: Some(256 << 20) });
        assert_eq!((shares.connections, shares.requests), (384, 384));
    }
}
