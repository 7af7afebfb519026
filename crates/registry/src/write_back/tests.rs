//! The brain in its tables.

use super::*;
use crate::{
    actual::{CapacityUsed, ModelEntry, ModelState, WorkerEntry, WorkerHealth},
    error_file::{IncidentKind, IncidentSeverity},
};

fn at(seconds: u64) -> Time {
    Time(1_761_648_000_000_000_000) + Duration::from_secs(seconds)
}

fn observed(status: ModelState, failures: &[&str]) -> Observed {
    let model = ModelEntry::new("iris".to_owned(), "1.0.0".to_owned(), status);
    let worker = WorkerEntry {
        worker_id: "a".to_owned(),
        status: WorkerHealth::Healthy,
        last_heartbeat: None,
        capacity: CapacityUsed::default(),
        models: vec![model],
    };
    let incident = |deployment: &&str| Incident {
        subject: Subject {
            kind: IncidentKind::LoadFailure,
            deployment: Some((*deployment).to_owned()),
            worker: Some("a".to_owned()),
            commit: None,
        },
        severity: IncidentSeverity::High,
        at: at(0),
        card: None,
        worker_status: None,
        author: None,
        category: "code".to_owned(),
        message: "it raised".to_owned(),
        details: String::new(),
        trace: None,
        attempts: 1,
        next_retry: None,
        actions: Vec::new(),
    };
    Observed {
        state: ActualState { workers: vec![worker] },
        incidents: failures.iter().map(incident).collect(),
        open: BTreeSet::new(),
        desired: Some("c".repeat(40)),
    }
}

fn paths(change: &Change) -> Vec<(&str, bool)> {
    change.edits.iter().map(|edit| (edit.path.as_str(), edit.content.is_some())).collect()
}

#[test]
fn it_waits_for_quiet_writes_once_and_keeps_its_distance() {
    let mut brain = WriteBack::new(Duration::from_secs(30));
    brain.observed(observed(ModelState::Loading, &[]), at(0));
    assert!(brain.wants_branch() && brain.wake_at().is_none(), "nobody knows what is there");
    brain.found(BranchContents::default(), at(0));
    assert_eq!(brain.wake_at(), Some(at(10)));
    brain.observed(observed(ModelState::Ready, &[]), at(6));
    assert_eq!((brain.take(at(10)), brain.wake_at()), (None, Some(at(16))));
    let change = brain.take(at(16)).expect("a change");
    assert_eq!(paths(&change), [("transactions/history/2025-10-28T10-40-16-state.yaml", true), (ACTUAL_STATE, true)]);
    assert!(change.message.starts_with("state: a is healthy, iris 1.0.0 is ready on a"), "{}", change.message);
    assert_eq!(change.trailers, [(DESIRED_COMMIT.to_owned(), "c".repeat(40))]);
    assert!(brain.take(at(17)).is_none(), "one at a time");
    brain.done(&change, at(17));
    assert_eq!(brain.wake_at(), None, "nothing differs");
    brain.observed(observed(ModelState::Failed, &["iris"]), at(20));
    assert_eq!(brain.wake_at(), Some(at(47)), "30 s after the last one");
}

#[test]
fn heartbeats_are_no_reason_and_restlessness_no_excuse() {
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(BranchContents::default(), at(0));
    brain.observed(observed(ModelState::Ready, &[]), at(0));
    let change = brain.take(at(10)).expect("a change");
    brain.done(&change, at(10));
    let mut next = observed(ModelState::Ready, &[]);
    next.state.workers[0].last_heartbeat = Some("later".to_owned());
    next.state.workers[0].models[0].request_count = Some(7);
    brain.observed(next, at(20));
    assert_eq!(brain.wake_at(), None);
    for second in 0..40 {
        let state = if second % 2 == 0 { ModelState::Loading } else { ModelState::Failed };
        brain.observed(observed(state, &[]), at(100 + second));
    }
    assert_eq!(brain.wake_at(), Some(at(130)));
}

#[test]
fn errors_get_a_file_each_and_lose_it_again_also_under_the_next_controller() {
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(BranchContents::default(), at(0));
    brain.observed(observed(ModelState::Ready, &["iris", "rose"]), at(0));
    let change = brain.take(at(10)).expect("a change");
    let errors: Vec<_> = paths(&change).into_iter().filter(|(path, _)| path.starts_with(ERRORS)).collect();
    let (first, second) =
        ("errors/2025-10-28T10-40-00-load-failure.yaml", "errors/2025-10-28T10-40-00-load-failure-2.yaml");
    assert_eq!(errors, [(first, true), (second, true)]);
    // Another controller reads what this one wrote.
    let text = |edit: &Edit| String::from_utf8(edit.content.clone().expect("a text")).expect("UTF-8");
    let found = BranchContents {
        state: change.edits.iter().find(|edit| edit.path == ACTUAL_STATE).map(text),
        errors: change
            .edits
            .iter()
            .filter(|edit| edit.path.starts_with(ERRORS))
            .map(|edit| (edit.path.clone(), text(edit)))
            .collect(),
        history: vec![],
    };
    let mut next = WriteBack::new(Duration::ZERO);
    next.found(found, at(100));
    let mut same = observed(ModelState::Ready, &["iris", "rose"]);
    same.incidents[0].at = at(99);
    next.observed(same, at(100));
    assert_eq!(next.wake_at(), None, "the same things, first seen later");
    let mut again = observed(ModelState::Ready, &["iris"]);
    again.incidents[0].attempts = 2;
    next.observed(again, at(101));
    let change = next.take(at(111)).expect("a change");
    assert_eq!(paths(&change), [(first, true), (second, false)]);
    assert!(
        text(&change.edits[0]).starts_with("timestamp: ") && text(&change.edits[0]).contains("2025-10-28T10:40:00Z")
    );
    assert!(change.message.contains("model load failure of rose on a is resolved"), "{}", change.message);
}

#[test]
fn failures_are_tried_again_more_and_more_slowly() {
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(BranchContents::default(), at(0));
    brain.observed(observed(ModelState::Ready, &[]), at(0));
    let mut waits = Vec::new();
    for _ in 0..12 {
        let now = brain.wake_at().expect("it is tried again");
        brain.take(now).expect("a change");
        brain.failed(now);
        waits.push(brain.wake_at().expect("again").since(now).as_secs());
    }
    assert_eq!((waits[0], waits[1], waits[11]), (2, 4, 300));
}

#[test]
fn the_past_is_bounded() {
    let mut brain = WriteBack::new(Duration::ZERO);
    let history = (0..HISTORY_KEPT + 5).map(|n| format!("{HISTORY}2024-01-01T00-00-00-{n:04}-state.yaml")).collect();
    brain.found(BranchContents { history, ..BranchContents::default() }, at(0));
    brain.observed(observed(ModelState::Ready, &[]), at(0));
    let change = brain.take(at(10)).expect("a change");
    let gone = change.edits.iter().filter(|edit| edit.content.is_none()).count();
    assert_eq!(gone, 6, "200 with the new one");
    assert!(change.edits.iter().all(|edit| is_own(&edit.path)));
}

#[test]
fn what_the_controller_before_wrote_stays_until_it_is_known_to_be_over() {
    let wrote = observed(ModelState::Ready, &["iris", "rose"]);
    let found = BranchContents {
        state: Some(wrote.state.to_yaml(at(0))),
        errors: vec![
            ("errors/1-load-failure.yaml".to_owned(), wrote.incidents[0].to_yaml()),
            ("errors/2-load-failure.yaml".to_owned(), wrote.incidents[1].to_yaml()),
            ("errors/notes.yaml".to_owned(), "of: a person".to_owned()),
        ],
        history: vec![],
    };
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(found, at(0));
    let open = wrote.incidents.iter().map(|incident| incident.subject.clone()).collect();
    brain.observed(Observed { open, ..observed(ModelState::Ready, &[]) }, at(0));
    assert_eq!(brain.wake_at(), None, "nobody knows yet");
    let open = BTreeSet::from([wrote.incidents[1].subject.clone()]);
    brain.observed(Observed { open, ..observed(ModelState::Ready, &[]) }, at(1));
    assert_eq!(paths(&brain.take(at(11)).expect("a change")), [("errors/1-load-failure.yaml", false)]);
}

#[test]
fn error_files_are_bounded_and_the_worst_come_first() {
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(BranchContents::default(), at(0));
    let names: Vec<String> = (0..MOST_ERRORS + 3).map(|n| format!("m{n:04}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut many = observed(ModelState::Ready, &names);
    many.incidents[MOST_ERRORS + 2].severity = IncidentSeverity::Critical;
    brain.observed(many.clone(), at(0));
    let change = brain.take(at(10)).expect("a change");
    let files =
        |change: &Change| paths(change).into_iter().filter(|(path, is)| path.starts_with(ERRORS) && *is).count();
    assert_eq!(files(&change), MOST_ERRORS);
    assert!(
        change.message.contains("m0502 on a: it raised") && change.message.ends_with("errors: 3 more have no file")
    );
    brain.done(&change, at(10));
    assert_eq!(brain.wake_at(), None, "those without a file are no reason to write");
    many.incidents.remove(0);
    brain.observed(many, at(20));
    let change = brain.take(at(30)).expect("a change");
    assert_eq!((change.edits.len(), files(&change)), (2, 1), "one goes, one that waited takes its place");
}

#[test]
fn a_name_that_somebody_else_has_is_not_taken() {
    let mut brain = WriteBack::new(Duration::ZERO);
    let theirs = ("errors/2025-10-28T10-40-00-load-failure.yaml".to_owned(), "of: a person".to_owned());
    brain.found(BranchContents { errors: vec![theirs], ..BranchContents::default() }, at(0));
    brain.observed(observed(ModelState::Ready, &["iris"]), at(0));
    let change = brain.take(at(10)).expect("a change");
    assert_eq!(paths(&change)[0], ("errors/2025-10-28T10-40-00-load-failure-2.yaml", true));
}

#[test]
fn another_version_fails_in_a_file_of_its_own() {
    let failing = |reference: &str, second| {
        let mut next = observed(ModelState::Failed, &["iris"]);
        next.incidents[0].card = Some(("https://example.com/iris.git".to_owned(), reference.to_owned()));
        next.incidents[0].at = at(second);
        next
    };
    let mut brain = WriteBack::new(Duration::ZERO);
    brain.found(BranchContents::default(), at(0));
    brain.observed(failing("v1.5.0", 0), at(0));
    let change = brain.take(at(10)).expect("a change");
    brain.done(&change, at(10));
    brain.observed(failing("v1.6.0", 1220), at(1220));
    let change = brain.take(at(1230)).expect("a change");
    let errors: Vec<_> = paths(&change).into_iter().filter(|(path, _)| path.starts_with("errors/")).collect();
    let expected = [
        ("errors/2025-10-28T10-40-00-load-failure.yaml", false),
        ("errors/2025-10-28T11-00-20-load-failure.yaml", true),
    ];
    assert_eq!(errors, expected);
    let text = change.edits.iter().find(|edit| edit.path == expected[1].0).and_then(|edit| edit.content.clone());
    let text = String::from_utf8(text.expect("a file")).expect("text");
    assert!(text.contains("v1.6.0") && text.contains("2025-10-28T11:00:20") && !text.contains("v1.5.0"), "{text}");
    brain.done(&change, at(1230));
    brain.observed(failing("v1.6.0", 1220), at(1300));
    assert_eq!(brain.wake_at(), None, "the file is the one that stays");
}

#[test]
fn the_error_file_of_the_document_is_known() {
    let text = "timestamp: \"2025-10-28T10:40:00Z\"\nerror_type: model_load_failure\nseverity: high\n\
                deployment: {id: iris}\nworker: {id: a}\nerror: {message: it raised}\n";
    assert!(crate::error_file::read_summary(text).is_some());
}
