//! The line that says what is waited for: on standard error, updated in place, and only where a person looks on.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use berth_wire::api::{DeploymentStatus, ReplicaDetail};

use crate::terminal;

/// The width where the terminal does not tell its own.
const WIDTH: u16 = 80;

/// Takes the cursor to the beginning of an empty line.
const EMPTY: &str = "\r\x1b[2K";

/// A line stands on the terminal. Changed and read by those who hold standard error.
static STANDS: AtomicBool = AtomicBool::new(false);

/// Beginning of any other line on standard error, such as those of the log: none is to be appended to a status line. The
/// caller holds the lock of standard error.
pub(crate) fn in_its_place() -> &'static str {
    if STANDS.swap(false, Ordering::Relaxed) { EMPTY } else { "" }
}

/// One line of the terminal. Dropping it leaves the terminal clean.
pub(crate) struct StatusLine {
    /// Prefix of the line; `None` if standard error is not a terminal.
    name: Option<String>,
}

impl StatusLine {
    /// For what is written `deployment/iris`.
    pub(crate) fn new(name: &str) -> Self {
        Self { name: io::stderr().is_terminal().then(|| name.to_owned()) }
    }

    /// Replaces what the line says.
    pub(crate) fn show(&self, what: &str) {
        let Some(name) = &self.name else { return };
        let told = ratatui::crossterm::terminal::size().ok().map(|(columns, _)| columns);
        let width = usize::from(told.filter(|&columns| columns > 0).unwrap_or(WIDTH));
        let text: String = format!("{name}: {what}").chars().take(width - 1).collect();
        write(&format!("{EMPTY}{text}"), true);
    }

    /// Leaves the line empty, for other output.
    pub(crate) fn clear(&self) {
        if self.name.is_some() {
            write(EMPTY, false);
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// There is nobody to tell if the terminal is gone.
fn write(text: &str, stands: bool) {
    let mut terminal = io::stderr().lock();
    STANDS.store(stands, Ordering::Relaxed);
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

/// Progress of a deployment: its phase, and the activity of its replicas or the obstacle.
pub(crate) fn text(status: &DeploymentStatus) -> String {
    if status.phase.is_empty() {
        return "nothing is known yet".to_owned();
    }
    let busy: Vec<String> = status.replica_details.iter().filter(|one| one.state != "Ready").map(replica).collect();
    let hindered = || status.conditions.iter().find(|condition| condition.status == "False");
    let more = match (busy.is_empty(), hindered()) {
        (false, _) => busy.join("; "),
        (true, Some(condition)) => condition.message.clone(),
        (true, None) => format!("{} of {} ready", status.replicas.ready, status.replicas.desired),
    };
    format!("{}, {more}", status.phase)
}

fn replica(one: &ReplicaDetail) -> String {
    let mut text = format!("{} on {}", one.state, one.worker);
    if let Some(progress) = one.progress.filter(|progress| progress.done > 0 || progress.total.is_some()) {
        let total = progress.total.map_or_else(String::new, |total| format!(" of {}", terminal::size(total)));
        text.push_str(&format!(" {}{total}", terminal::size(progress.done)));
    } else if !one.message.is_empty() {
        text.push_str(&format!(" ({})", one.message));
    }
    text
}

#[cfg(test)]
mod tests {
    use berth_wire::api::{ConditionView, Progress, ReplicaCount};

    use super::*;

    #[test]
    fn says_what_is_under_way_or_what_hinders() {
        assert_eq!(text(&DeploymentStatus::default()), "nothing is known yet");
        let mut status = DeploymentStatus {
            phase: "Progressing".to_owned(),
            replicas: ReplicaCount { desired: 2, ready: 1 },
            ..DeploymentStatus::default()
        };
        assert_eq!(text(&status), "Progressing, 1 of 2 ready");
        let fetching = ReplicaDetail {
            worker: "local".to_owned(),
            state: "Fetching".to_owned(),
            progress: Some(Progress { done: 12 << 20, total: Some(98 << 20) }),
            ..ReplicaDetail::default()
        };
        let ready = ReplicaDetail { state: "Ready".to_owned(), ..fetching.clone() };
        let begins = ReplicaDetail { progress: Some(Progress { done: 0, total: None }), ..fetching.clone() };
        status.replica_details = vec![begins];
        assert_eq!(text(&status), "Progressing, Fetching on local");
        status.replica_details = vec![ready, fetching];
        assert_eq!(text(&status), "Progressing, Fetching on local 12MiB of 98MiB");
        status.replica_details.clear();
        status.conditions = vec![ConditionView {
            kind: "Available".to_owned(),
            status: "False".to_owned(),
            reason: "NoCapacity".to_owned(),
            message: "needs 9GiB".to_owned(),
        }];
        assert_eq!(text(&status), "Progressing, needs 9GiB");
    }
}
