//! The reasons for which a node returns a forwarded request without running it.

/// The reason why an endpoint did not run a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotRun {
    /// The replica drains: it takes no new request, and another one takes its place.
    Draining,
    /// There is no such replica.
    Absent,
    /// The replica has all the requests that it takes.
    Full,
    /// The node stops: none of its replicas takes a request.
    Stopping,
}

impl NotRun {
    pub(crate) const ALL: [Self; 4] = [Self::Draining, Self::Absent, Self::Full, Self::Stopping];

    /// The word in the header and in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Absent => "absent",
            Self::Full => "full",
            Self::Stopping => "stopping",
        }
    }
}
