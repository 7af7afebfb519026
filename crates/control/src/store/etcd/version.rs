//! Behaviour of etcd versions that matters here.

/// Reliability of the answer to a progress request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Ordered after all changes that it covers.
    Ordered,
    /// May overtake changes on the same stream (etcd issue 15220, before 3.4.25 and 3.5.8). Proves only that the
    /// stream lives.
    Overtaking,
    /// Ordered, but missing on a watch without events (etcd pull request 17557, before 3.4.31 and 3.5.13). Silence
    /// proves nothing; HTTP/2 pings detect a dead stream.
    Unanswered,
}

impl Progress {
    /// For a version as a member tells it, as in "3.4.23"; what cannot be read is not relied on.
    pub(super) fn of(version: &str) -> Self {
        let numbers = version.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().ok());
        let mut next = || numbers.next().flatten();
        match (next(), next(), next()) {
            (Some(3), Some(4), Some(25..=30)) | (Some(3), Some(5), Some(8..=12)) => Self::Unanswered,
            (Some(3), Some(4), Some(31..)) | (Some(3), Some(5), Some(13..)) => Self::Ordered,
            (Some(3), Some(6..), Some(_)) | (Some(4..), Some(_), Some(_)) => Self::Ordered,
            _ => Self::Overtaking,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for version in ["3.4.31", "3.5.13", "3.5.21", "3.6.0-rc.1", "3.7.1+git", "4.0.0"] {
            assert_eq!(Progress::of(version), Progress::Ordered, "{version}");
        }
        for version in ["3.4.25", "3.4.30", "3.5.8", "3.5.12"] {
            assert_eq!(Progress::of(version), Progress::Unanswered, "{version}");
        }
        for version in ["3.4.23", "3.5.0", "3.3.99", "", "new", "3.6"] {
            assert_eq!(Progress::of(version), Progress::Overtaking, "{version}");
        }
    }
}
