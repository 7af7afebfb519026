//! Content of the branch, and the changes it needs.

use std::collections::{BTreeMap, BTreeSet};

use berth_git::Edit;
use berth_spec::Time;

use super::{BranchContents, HISTORY_KEPT, MOST_ERRORS, Observed, is_own};
use crate::{
    actual::{ACTUAL_STATE, ActualState, HISTORY, file_stamp},
    error_file::{ERRORS, ErrorFile, Incident, Subject},
};

/// Parsed content of the branch.
#[derive(Debug, Default)]
pub(super) struct Branch {
    pub(super) state: Option<ActualState>,
    /// By what they are about.
    errors: BTreeMap<Subject, ExistingFile>,
    /// Files among the errors that no controller has written: they stay, and their names are not ours to take.
    foreign: BTreeSet<String>,
    history: BTreeSet<String>,
}

/// Error file that is on the branch: its path and content.
#[derive(Debug)]
struct ExistingFile {
    path: String,
    file: ErrorFile,
}

/// Change of one error file.
pub(super) enum FileAction<'a> {
    /// Create the file of a new incident.
    Create(&'a Incident),
    /// Rewrite the file: the incident has changed.
    Update(&'a Incident),
    /// Replace it: the failure is of another version of the model.
    Replace(&'a Incident),
    /// Remove the file: the incident is over.
    Remove(&'a Subject),
}

impl Branch {
    pub(super) fn read(found: BranchContents) -> Self {
        let mut branch = Self {
            state: found.state.as_deref().and_then(ActualState::read),
            history: found.history.into_iter().filter(|path| path.starts_with(HISTORY)).collect(),
            ..Self::default()
        };
        for (path, text) in found.errors {
            branch.keep(path, &text);
        }
        branch
    }

    fn keep(&mut self, path: String, text: &str) {
        match ErrorFile::read(text) {
            Some(file) => drop(self.errors.insert(file.subject(), ExistingFile { path, file })),
            None => drop(self.foreign.insert(path)),
        }
    }

    /// Applies edits that were pushed, so that the copy equals the branch.
    pub(super) fn take_in(&mut self, edits: &[Edit]) {
        for edit in edits.iter().filter(|edit| is_own(&edit.path)) {
            let text = edit.content.as_ref().map(|content| String::from_utf8_lossy(content).into_owned());
            match text {
                Some(text) if edit.path == ACTUAL_STATE => self.state = ActualState::read(&text),
                Some(_) if edit.path.starts_with(HISTORY) => drop(self.history.insert(edit.path.clone())),
                Some(text) => self.keep(edit.path.clone(), &text),
                None => {
                    self.history.remove(&edit.path);
                    self.errors.retain(|_, held| held.path != edit.path);
                }
            }
        }
    }

    /// True if the state differs in meaning from the one on the branch.
    pub(super) fn differs(&self, state: &ActualState) -> bool {
        self.state.as_ref().is_none_or(|before| before.meaning() != state.meaning())
    }

    /// Error files that have to change, and how many incidents have none because there are too many.
    pub(super) fn file_actions<'a>(&'a self, observed: &'a Observed) -> (Vec<FileAction<'a>>, usize) {
        let still = |subject: &Subject| {
            observed.open.contains(subject) || observed.incidents.iter().any(|incident| incident.subject == *subject)
        };
        let over: Vec<FileAction<'_>> =
            self.errors.keys().filter(|subject| !still(subject)).map(FileAction::Remove).collect();
        let mut room = MOST_ERRORS.saturating_sub(self.errors.len() - over.len());
        let (mut actions, mut new) = (Vec::new(), Vec::new());
        for incident in &observed.incidents {
            match self.errors.get(&incident.subject) {
                Some(held) if held.file.means(incident) => {}
                Some(held) if !held.file.is_of_same_version(incident) => actions.push(FileAction::Replace(incident)),
                Some(_) => actions.push(FileAction::Update(incident)),
                None => new.push(incident),
            }
        }
        // What is worst is told first.
        new.sort_by_key(|incident| std::cmp::Reverse(incident.severity));
        let left_out = new.len().saturating_sub(room);
        room = room.min(new.len());
        actions.extend(new.into_iter().take(room).map(FileAction::Create));
        actions.extend(over);
        (actions, left_out)
    }

    /// The edits of error files, and a line about each of them.
    pub(super) fn error_edits(&self, observed: &Observed) -> (Vec<Edit>, Vec<String>) {
        let (mut edits, mut told) = (Vec::new(), Vec::new());
        let mut taken: BTreeSet<String> = self.errors.values().map(|held| held.path.clone()).collect();
        taken.extend(self.foreign.iter().cloned());
        let (actions, left_out) = self.file_actions(observed);
        for action in actions {
            match action {
                FileAction::Create(incident) => {
                    let path = free(&incident.file_name(), &taken);
                    told.push(format!("errors: {}: {}", about(&incident.subject), one_line(&incident.message)));
                    taken.insert(path.clone());
                    edits.push(Edit { path, content: Some(incident.to_yaml().into_bytes()) });
                }
                FileAction::Update(incident) => {
                    let Some(held) = self.errors.get(&incident.subject) else { continue };
                    told.push(format!("errors: {} is now: {}", about(&incident.subject), one_line(&incident.message)));
                    let text = ErrorFile::of(incident).since(&held.file).to_yaml();
                    edits.push(Edit { path: held.path.clone(), content: Some(text.into_bytes()) });
                }
                FileAction::Replace(incident) => {
                    let Some(held) = self.errors.get(&incident.subject) else { continue };
                    let path = free(&incident.file_name(), &taken);
                    told.push(format!("errors: {}: {}", about(&incident.subject), one_line(&incident.message)));
                    taken.insert(path.clone());
                    edits.push(Edit { path: held.path.clone(), content: None });
                    edits.push(Edit { path, content: Some(incident.to_yaml().into_bytes()) });
                }
                FileAction::Remove(subject) => {
                    let Some(held) = self.errors.get(subject) else { continue };
                    told.push(format!("errors: {} is resolved", about(subject)));
                    edits.push(Edit { path: held.path.clone(), content: None });
                }
            }
        }
        if left_out > 0 && !edits.is_empty() {
            told.push(format!("errors: {left_out} more have no file"));
        }
        (edits, told)
    }

    /// Edits that write the state and a snapshot, and remove the oldest snapshots.
    pub(super) fn state_edits(&self, state: &ActualState, now: Time) -> Vec<Edit> {
        let text = state.to_yaml(now).into_bytes();
        let snapshot = format!("{HISTORY}{}-state.yaml", file_stamp(now));
        let others = || self.history.iter().filter(|path| **path != snapshot);
        let too_many = (others().count() + 1).saturating_sub(HISTORY_KEPT);
        let mut edits: Vec<Edit> =
            others().take(too_many).map(|path| Edit { path: path.clone(), content: None }).collect();
        edits.push(Edit { path: snapshot, content: Some(text.clone()) });
        edits.push(Edit { path: ACTUAL_STATE.to_owned(), content: Some(text) });
        edits
    }
}

/// Unused path: two incidents may start in the same second.
fn free(path: &str, taken: &BTreeSet<String>) -> String {
    let stem = path.strip_prefix(ERRORS).unwrap_or(path).trim_end_matches(".yaml");
    let numbered = (2..).map(|n| format!("{ERRORS}{stem}-{n}.yaml"));
    std::iter::once(path.to_owned()).chain(numbered).find(|path| !taken.contains(path)).unwrap_or_default()
}

fn about(subject: &Subject) -> String {
    let mut text = subject.kind.words().to_owned();
    let short = subject.commit.as_ref().map(|sha| sha.chars().take(12).collect::<String>());
    for (word, value) in [(" of ", &subject.deployment), (" on ", &subject.worker), (" ", &short)] {
        if let Some(value) = value {
            text.push_str(word);
            text.push_str(value);
        }
    }
    text
}

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}
