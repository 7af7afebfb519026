//! The line that says what is waited for: on standard error, updated in place, and only where a person looks on. Elsewhere a line
//! is written for each obstacle that stays, or now and then for a load that goes on.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use berth_wire::api::{ConditionView, DeploymentStatus, ReplicaDetail};
use tokio::time::Instant;

use crate::terminal;

/// The width where the terminal does not tell its own.
const WIDTH: u16 = 80;

/// Age from which an obstacle is told where no line is updated in place: most are gone before that.
pub(super) const TELL_AFTER: Duration = Duration::from_secs(2);

/// The shortest time between two lines about progress where no line is updated in place: a log of minutes stays readable.
const TELL_EVERY: Duration = Duration::from_secs(10);

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

    /// True if nobody sees the line.
    const fn is_hidden(&self) -> bool {
        self.name.is_none()
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

/// Progress for output that is no terminal: a line now and then, if something has changed. A load that is short has none.
pub(crate) struct SparseLines {
    last: Instant,
    told: String,
}

impl SparseLines {
    pub(crate) fn since(now: Instant) -> Self {
        Self { last: now, told: String::new() }
    }

    /// True if `text` is to be told now.
    pub(crate) fn is_due(&mut self, text: &str, line: &StatusLine, now: Instant) -> bool {
        if !line.is_hidden() || now.duration_since(self.last) < TELL_EVERY || self.told == text {
            return false;
        }
        (self.last, self.told) = (now, text.to_owned());
        true
    }
}

/// The obstacle that a deployment waits for, for output that is no terminal: told once when it has stayed.
#[derive(Default)]
pub(super) struct Obstacles {
    /// The present one, and since when it is known.
    present: Option<(Obstacle, Instant)>,
    told: Option<Obstacle>,
}

/// An obstacle: the conditions that tell of it, by type and reason. Their messages, and what replicas do meanwhile, hold numbers that
/// move.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Obstacle(Vec<(String, String)>);

impl Obstacles {
    /// The text to tell now, if there is one.
    pub(super) fn note(&mut self, status: &DeploymentStatus, line: &StatusLine, now: Instant) -> Option<String> {
        let standing = line.is_hidden().then(|| standing(status)).flatten();
        let since = match (&self.present, &standing) {
            (Some((before, since)), Some(standing)) if before == standing => *since,
            _ => now,
        };
        self.present = standing.map(|standing| (standing, since));
        let (standing, since) = self.present.as_ref()?;
        if now.duration_since(*since) < TELL_AFTER || self.told.as_ref() == Some(standing) {
            return None;
        }
        self.told = Some(standing.clone());
        Some(match obstacle(status) {
            Some(condition) => format!("{}, {}", status.phase, condition.message),
            None => text(status),
        })
    }

    /// True if one is there that is to be told if it stays.
    pub(super) fn is_pending(&self) -> bool {
        self.present.as_ref().is_some_and(|(standing, _)| self.told.as_ref() != Some(standing))
    }
}

/// The obstacle without whose end nothing moves: no room, no worker that may take a replica, loading that fails and is tried again.
fn standing(status: &DeploymentStatus) -> Option<Obstacle> {
    let is_still = |condition: &&ConditionView| {
        let reason = condition.reason.as_str();
        match condition.kind.as_str() {
            "Scheduled" => condition.status == "False",
            "Progressing" => (condition.status == "False" && reason != "Settled") || reason == "Retrying",
            _ => reason == "MassLoss",
        }
    };
    let still = status.conditions.iter().filter(is_still);
    let facts: Vec<_> = still.map(|condition| (condition.kind.clone(), condition.reason.clone())).collect();
    (!facts.is_empty()).then_some(Obstacle(facts))
}

/// The condition that says why a deployment is not as it should be: the one with the cause, as in `berth explain`.
pub(crate) fn obstacle(status: &DeploymentStatus) -> Option<&ConditionView> {
    let of = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
    let unavailable = of("Available").filter(|found| found.status != "True" || found.reason == "Degraded");
    unavailable.or_else(|| of("Progressing").filter(|found| found.reason != "Settled"))
}

/// Progress of a deployment: its phase, and the activity of its replicas or the obstacle.
pub(crate) fn text(status: &DeploymentStatus) -> String {
    if status.phase.is_empty() {
        return "nothing is known yet".to_owned();
    }
    let busy: Vec<String> = status.replica_details.iter().filter(|one| one.state != "Ready").map(replica).collect();
    let more = match (busy.is_empty(), obstacle(status)) {
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

    #[test]
    fn progress_is_told_now_and_then_where_no_line_is_updated() {
        let (hidden, begin) = (StatusLine { name: None }, Instant::now());
        let mut lines = SparseLines::since(begin);
        for (tenths, text, is_due) in [
            (0, "resolving", false),
            (9, "resolving", false),
            (10, "fetching 1", true),
            (11, "fetching 2", false),
            (20, "fetching 1", false),
            (21, "fetching 3", true),
        ] {
            assert_eq!(lines.is_due(text, &hidden, begin + TELL_EVERY * tenths / 10), is_due, "{tenths} {text}");
        }
        let shown = StatusLine { name: Some("iris".to_owned()) };
        assert!(!lines.is_due("installing", &shown, begin + TELL_EVERY * 5), "the line says it");
    }

    #[test]
    fn an_obstacle_that_stays_is_told_once() {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| ConditionView {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let mut status = DeploymentStatus {
            phase: "Degraded".to_owned(),
            conditions: vec![
                condition("Available", "True", "Degraded", "1 of 2 replicas answer; there is 1 worker"),
                condition("Progressing", "False", "NoCapacity", "nothing moves until a worker can take it"),
                condition("Scheduled", "False", "NoCapacity", "no worker can take it"),
            ],
            ..DeploymentStatus::default()
        };
        let told = "Degraded, 1 of 2 replicas answer; there is 1 worker";
        assert_eq!(text(&status), told, "the cause, not that nothing moves");
        let (hidden, begin, mut obstacles) = (StatusLine { name: None }, Instant::now(), Obstacles::default());
        assert_eq!(obstacles.note(&status, &hidden, begin), None, "it may be gone in a moment");
        assert!(obstacles.is_pending());
        // A replica beside it moves, and so does the number of those that wait.
        let moves = |done: u64| ReplicaDetail {
            worker: "local".to_owned(),
            state: "Fetching".to_owned(),
            progress: Some(Progress { done, total: Some(98 << 20) }),
            ..ReplicaDetail::default()
        };
        status.replica_details = vec![moves(12 << 20)];
        status.conditions[1].message = "nothing moves, 3 wait".to_owned();
        assert_eq!(obstacles.note(&status, &hidden, begin + TELL_AFTER).as_deref(), Some(told));
        status.replica_details = vec![moves(13 << 20)];
        status.conditions[1].message = "nothing moves, 2 wait".to_owned();
        assert_eq!(obstacles.note(&status, &hidden, begin + TELL_AFTER * 2), None, "once");
        assert!(!obstacles.is_pending());
        status.conditions = vec![condition("Progressing", "False", "Settled", "there is nothing to do")];
        assert_eq!(obstacles.note(&status, &hidden, begin + TELL_AFTER * 3), None);
        let shown = StatusLine { name: Some("iris".to_owned()) };
        status.conditions = vec![condition("Scheduled", "False", "NoCapacity", "no worker can take it")];
        assert_eq!(Obstacles::default().note(&status, &shown, begin), None, "the line says it");
    }
}
