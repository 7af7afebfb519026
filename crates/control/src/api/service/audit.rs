//! Recent records of the audit log.

use berth_audit::Query;
use berth_wire::api::AuditView;

use super::Service;
use crate::api::{audit, log::Cursor};

impl Service {
    /// Recent records of all nodes after a cursor.
    pub(crate) async fn audit(&self, after: &str, query: Query) -> AuditView {
        let cursor = Cursor::read(after);
        let (mut logs, missing) = self.peer_queries.audits(&query, &cursor).await;
        let own = self.audit.read(&Query { after: 0, limit: 0, ..Query::default() }).node;
        logs.push(self.audit.read(&Query { after: cursor.of(&own), ..query.clone() }));
        audit::together(logs, cursor, missing, query.limit)
    }
}
