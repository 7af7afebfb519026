//! Targets of a request: by a replica of this process, or by one on another node.

use std::sync::Arc;

use berth_spec::RevisionId;

use crate::endpoint::{Endpoint, Endpoints, fleet::NodeInstance};

/// The replica that a request is given to next.
pub(crate) enum NextTarget {
    /// The own replica; `None`: of whichever revision the route says when it is leased.
    Local(Option<LocalTarget>),
    /// A replica on another node.
    Remote(RemoteTarget),
}

/// The own replica of a revision.
pub(crate) struct LocalTarget {
    pub(crate) revision: RevisionId,
    pub(crate) version: Arc<str>,
}

/// A revision on another node.
pub(crate) struct RemoteTarget {
    pub(crate) revision: RevisionId,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) known: Arc<NodeInstance>,
    /// The endpoints that it was chosen from.
    pub(crate) endpoints: Arc<Endpoints>,
    /// The own replica could have answered, too.
    pub(crate) or_here: bool,
}
