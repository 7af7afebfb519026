//! Logs of models: each node keeps the recent lines of its own replicas, and the node that decides asks all of them.

use std::{collections::BTreeMap, sync::Arc};

use berth_spec::DeploymentName;
use berth_wire::api::{API_VERSION, Kind, LogLine, LogView, NodeLog};

/// The most lines in one answer: more than anybody reads at once.
pub const MOST_LINES: usize = 1_000;

/// Bytes of the lines of one node in an answer, less than what one node takes from another at once.
const MOST_BYTES: usize = 1 << 20;

/// Question for recent log lines of a model's replicas on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    /// Deployment whose replicas have written them.
    pub deployment: DeploymentName,
    /// Only lines after this number.
    pub after: u64,
    /// The most lines, the latest.
    pub limit: usize,
}

/// The recent lines of this node's replicas. Called on a thread that must not wait.
pub type LogSource = Arc<dyn Fn(&LogQuery) -> NodeLog + Send + Sync>;

/// The last line of each node that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cursor(BTreeMap<String, u64>);

impl Cursor {
    /// Reads `a:17,b:30`; what is not readable counts as not read yet.
    pub(crate) fn read(text: &str) -> Self {
        let part = |part: &str| {
            let (node, number) = part.rsplit_once(':')?;
            Some((node.to_owned(), number.parse().ok()?))
        };
        Self(text.split(',').filter_map(part).collect())
    }

    /// The last line of a node that was read.
    pub(crate) fn of(&self, node: &str) -> u64 {
        self.0.get(node).copied().unwrap_or_default()
    }

    /// Notes how far a node was read.
    pub(crate) fn read_to(&mut self, node: String, last: u64) {
        self.0.insert(node, last);
    }

    /// The text that a client sends back to read on: `a:17,b:30`.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(node, number)| format!("{node}:{number}")).collect::<Vec<_>>().join(",")
    }
}

/// The last lines of a node that fit an answer.
pub(crate) fn bounded(mut log: NodeLog) -> NodeLog {
    let mut bytes = 0;
    let fits = |line: &&LogLine| {
        bytes += line.text.len() + 256;
        bytes <= MOST_BYTES
    };
    let kept = log.lines.iter().rev().take_while(fits).count();
    log.lines.drain(..log.lines.len() - kept);
    log
}

/// One log of many nodes: by time, at most `limit` lines, the latest.
pub(crate) fn together(logs: Vec<NodeLog>, mut cursor: Cursor, missing: Vec<String>, limit: usize) -> LogView {
    let mut lines = Vec::new();
    for log in logs {
        cursor.read_to(log.node, log.last);
        lines.extend(log.lines);
    }
    lines.sort_by(|a, b| (a.at, &a.node, a.number).cmp(&(b.at, &b.node, b.number)));
    lines.drain(..lines.len().saturating_sub(limit));
    let (api_version, kind) = (API_VERSION.to_owned(), LogView::KIND.to_owned());
    LogView { api_version, kind, lines, cursor: cursor.text(), missing }
}

#[cfg(test)]
mod tests {
    use berth_spec::Time;
    use berth_wire::api::Timestamp;

    use super::*;

    fn line(node: &str, number: u64, text: &str) -> LogLine {
        let (level, event) = ("INFO".to_owned(), "model_output".to_owned());
        LogLine { node: node.to_owned(), number, at: Timestamp(Time(number)), level, event, text: text.to_owned() }
    }

    #[test]
    fn lines_of_nodes_are_one_log_that_can_be_followed() {
        let log = |node: &str, numbers: &[u64]| NodeLog {
            node: node.to_owned(),
            lines: numbers.iter().map(|number| line(node, *number, "x")).collect(),
            last: 9,
        };
        let before = Cursor::read("a:1,c:4,nonsense");
        assert_eq!((before.of("a"), before.of("b")), (1, 0));
        let view = together(vec![log("a", &[2, 5]), log("b", &[3])], before, vec!["c".to_owned()], 2);
        let told: Vec<_> = view.lines.iter().map(|line| (line.node.as_str(), line.number)).collect();
        assert_eq!(told, [("b", 3), ("a", 5)], "the latest two, by time");
        assert_eq!(view.cursor, "a:9,b:9,c:4", "what c has is still to be read");
        let long = NodeLog { node: "a".to_owned(), lines: vec![line("a", 1, &"x".repeat(MOST_BYTES)); 2], last: 2 };
        assert!(bounded(long).lines.is_empty());
    }
}
