//! The brain as a table of stories: events in, effects out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_control::store::Rev;
use berth_functions::{
    controller::{Built, Controller, Deployed, Effect, Event, Failure, Policy, Retry, Served, TaskId},
    deployment::Declared,
    status::{ArtifactStatus, Phase, Revision, SpecText, Status},
    writer::Written,
};
use berth_spec::Time;
use serde_json::{Value, json};

/// A controller with a store of one object's statuses.
struct Play {
    brain: Controller,
    now: Time,
    rev: u64,
    effects: Vec<Effect>,
}

fn object(name: &str, code: &str, generation: Option<i64>) -> Value {
    let mut object = json!({
        "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": name},
        "spec": {"type": "python", "sourceUri": format!("file:/code/{code}"), "entrypoint": "handler.predict",
                 "target": {"platform": "local"}},
        "status": {"phase": "Pending", "observedGeneration": 0},
    });
    if let Some(generation) = generation {
        object["metadata"]["generation"] = generation.into();
    }
    object
}

fn artifact(digit: u64) -> ArtifactStatus {
    ArtifactStatus { digest: format!("sha256:{digit:064}"), size: 7 }
}

impl Play {
    fn new() -> Self {
        Self { brain: Controller::new(Policy::default(), 1, BTreeMap::new()), now: Time(1), rev: 1, effects: vec![] }
    }

    fn declared(&mut self, object: &Value) -> (String, Declared) {
        self.rev += 1;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let declared = Declared::read(&name, object.to_string().as_bytes(), Rev(self.rev));
        (name, declared)
    }

    fn on(&mut self, event: Event) {
        let effects = self.brain.on(event, self.now);
        self.effects.extend(effects);
    }

    fn put(&mut self, object: &Value) {
        let (name, declared) = self.declared(object);
        self.on(Event::Put(name, Box::new(declared)));
    }

    /// Answers every write as a store would that nobody else writes to, with its echo.
    fn settle(&mut self) -> Option<Status> {
        let mut last = None;
        while let Some(at) = self.effects.iter().position(|effect| matches!(effect, Effect::Write(..))) {
            let Effect::Write(key, _, status) = self.effects.remove(at) else { continue };
            self.rev += 1;
            last = Some((*status).clone());
            self.on(Event::Written(key, status, Written::Done(Rev(self.rev))));
        }
        last
    }

    /// A write that is on its way.
    fn take_write(&mut self) -> (String, Arc<Status>) {
        let at = self.effects.iter().position(|effect| matches!(effect, Effect::Write(..))).expect("a write");
        let Effect::Write(key, _, status) = self.effects.remove(at) else { panic!("a write") };
        (key, status)
    }

    fn builds(&self) -> Vec<u64> {
        let id = |effect: &Effect| if let Effect::Build(id, _) = effect { Some(id.0) } else { None };
        self.effects.iter().filter_map(id).collect()
    }

    fn built(&mut self, task: u64) {
        let built = Built {
            artifact: artifact(task),
            cached: false,
            restored: false,
            took: Duration::from_secs(1),
            log_tail: "done".to_owned(),
            notes: vec![],
        };
        self.on(Event::Built(TaskId(task), Box::new(Ok(built))));
    }

    fn deployed(&mut self, task: u64) {
        let deployed = Deployed { endpoint: "http://h/functions/f".to_owned(), note: String::new() };
        self.on(Event::Deployed(TaskId(task), Ok(deployed)));
    }

    fn failed(&mut self, task: u64, retry: Retry) {
        let message = "npm ci failed".to_owned();
        let failure =
            Failure { reason: "BuildFailed", message, retry, log_tail: "words".to_owned(), took: Duration::ZERO };
        self.on(Event::Built(TaskId(task), Box::new(Err(failure))));
    }

    fn status(&self, name: &str) -> Status {
        Status::clone(self.brain.view().find(|view| view.name == name).expect("a function").status)
    }
}

#[test]
fn a_put_is_built_deployed_and_told() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    assert_eq!(play.builds(), [1]);
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Building));
    play.built(1);
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Deploying));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Deploy(TaskId(1), ..))));
    play.deployed(1);
    let status = play.settle().expect("a status");
    assert_eq!((status.phase, status.observed_generation), (Phase::Succeeded, 1));
    assert_eq!((status.endpoint.as_deref(), status.artifact), (Some("http://h/functions/f"), Some(artifact(1))));
    assert_eq!(status.build.map(|build| (build.took, build.log_tail)), Some(("1.0s".into(), "done".into())));
    play.effects.clear();
    play.put(&object("f", "a.zip", None));
    assert!(play.builds().is_empty(), "the same spec is not built again");
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Succeeded), "the status of a person is mended");
}

#[test]
fn functions_of_one_name_in_two_namespaces_have_nothing_to_do_with_each_other() {
    let mut play = Play::new();
    for key in ["f", "team/f"] {
        play.rev += 1;
        let value = object("f", "a.zip", None).to_string();
        let declared = Declared::read(key, value.as_bytes(), Rev(play.rev));
        play.on(Event::Put(key.to_owned(), Box::new(declared)));
    }
    let log = |play: &Play, key: &str| play.status(key).build.map(|build| build.log);
    assert_eq!(log(&play, "f").as_deref(), Some("/v1/functions/f/log"));
    assert_eq!(log(&play, "team/f").as_deref(), Some("/v1/namespaces/team/functions/f/log"));
    for task in [1, 2] {
        play.built(task);
        play.deployed(task);
    }
    play.settle();
    play.on(Event::Deleted("team/f".to_owned()));
    let removes = |effect: &Effect| matches!(effect, Effect::Remove(key) if key == "team/f");
    assert!(play.effects.iter().any(removes), "{:?}", play.effects);
    play.on(Event::Removed("team/f".to_owned()));
    let left: Vec<&str> = play.brain.view().map(|view| view.name).collect();
    assert_eq!((left, play.status("f").phase), (vec!["f"], Phase::Succeeded));
}

#[test]
fn the_generation_of_a_person_counts_and_content_where_there_is_none() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", Some(7)));
    play.built(1);
    play.deployed(1);
    assert_eq!(play.status("f").observed_generation, 7);
    play.put(&object("f", "b.zip", Some(9)));
    assert_eq!(play.status("f").observed_generation, 7, "not carried out yet");
    play.built(2);
    play.deployed(2);
    assert_eq!(play.status("f").observed_generation, 9);
    play.put(&object("f", "c.zip", None));
    play.built(3);
    play.deployed(3);
    assert_eq!(play.status("f").observed_generation, 10);
    // None comes after the highest.
    play.put(&object("f", "d.zip", Some(i64::MAX)));
    play.put(&object("f", "e.zip", None));
    play.built(5);
    play.deployed(5);
    assert_eq!((play.status("f").observed_generation, play.status("f").artifact), (i64::MAX, Some(artifact(5))));
}

#[test]
fn the_newest_spec_wins() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.put(&object("f", "b.zip", None));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Cancel(TaskId(1)))));
    assert_eq!(play.builds(), [1, 2]);
    play.built(1);
    assert!(!play.effects.iter().any(|effect| matches!(effect, Effect::Deploy(..))), "the answer of a cancelled build");
    play.built(2);
    play.deployed(2);
    assert_eq!((play.status("f").phase, play.status("f").artifact), (Phase::Succeeded, Some(artifact(2))));
}

#[test]
fn a_broken_build_leaves_the_old_version_serving() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    play.deployed(1);
    play.put(&object("f", "b.zip", None));
    play.failed(2, Retry::Never);
    let status = play.status("f");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 2));
    assert_eq!(status.message, "npm ci failed. The previous version keeps serving.");
    assert_eq!((status.endpoint.is_some(), status.artifact), (true, Some(artifact(1))));
    assert_eq!(play.brain.wake_at(), None, "a broken build waits for a change");
}

#[test]
fn the_failure_of_an_earlier_generation_is_not_told_of_a_later_one() {
    let facts = |play: &Play| -> Vec<(String, String)> {
        let conditions = play.status("f").conditions;
        let facts = conditions.iter().map(|fact| (fact.kind().to_owned(), fact.status().to_owned()));
        facts.filter(|(name, _)| name != "SpecValid").collect()
    };
    let fact = |name: &str, status: &str| (name.to_owned(), status.to_owned());
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    let failure = Failure {
        reason: "StartFailed",
        message: "its process ended".to_owned(),
        retry: Retry::Never,
        log_tail: "words".to_owned(),
        took: Duration::ZERO,
    };
    play.on(Event::Deployed(TaskId(1), Err(failure)));
    assert_eq!(facts(&play), [fact("Built", "True"), fact("Deployed", "False"), fact("Ready", "False")]);
    assert_eq!(play.status("f").build.map(|build| build.log_tail), Some("done".into()));
    play.put(&object("f", "b.zip", None));
    play.failed(2, Retry::Never);
    assert_eq!(facts(&play), [fact("Built", "False"), fact("Ready", "False")]);
}

#[test]
fn failures_that_pass_are_tried_again_with_pauses() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    let mut pauses = vec![];
    for task in 1..=9 {
        play.failed(task, Retry::Later);
        let at = play.brain.wake_at().expect("another attempt");
        pauses.push(at.since(play.now).as_secs());
        play.now = at;
        play.on(Event::Tick);
        assert_eq!(play.builds().last(), Some(&(task + 1)));
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_bad_spec_is_told_and_not_built() {
    let mut play = Play::new();
    let mut bad = object("f", "a.zip", Some(3));
    bad["spec"]["type"] = "pytorch".into();
    play.put(&bad);
    let status = play.settle().expect("a status");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 3));
    assert!(status.message.contains("spec.type \"pytorch\" is unknown"), "{}", status.message);
    assert!(play.builds().is_empty());
    play.on(Event::Put("x".to_owned(), Box::new(Declared::read("x", b"{", Rev(9)))));
    assert!(play.effects.is_empty(), "nothing is written over text that is no object");
    assert_eq!(play.status("x").phase, Phase::Failed);
}

#[test]
fn deletion_tears_down_and_a_name_may_come_again() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    play.deployed(1);
    play.settle();
    play.effects.clear();
    play.on(Event::Deleted("f".to_owned()));
    assert!(matches!(play.effects.as_slice(), [Effect::Remove(key)] if key == "f"), "{:?}", play.effects);
    assert_eq!(play.status("f").phase, Phase::Terminating);
    play.put(&object("f", "b.zip", None));
    assert!(play.builds().is_empty(), "what was deleted is removed first");
    play.on(Event::Removed("f".to_owned()));
    assert_eq!(play.builds(), [2]);
    play.on(Event::Deleted("f".to_owned()));
    play.on(Event::Removed("f".to_owned()));
    assert_eq!(play.brain.view().count(), 0);
}

#[test]
fn a_deletion_timestamp_asks_for_the_end() {
    let mut play = Play::new();
    let mut leaving = object("f", "a.zip", None);
    play.put(&leaving);
    play.settle();
    play.effects.clear();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    play.put(&leaving);
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Remove(_))));
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Terminating));
    play.on(Event::Removed("f".to_owned()));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Delete(..))));
    play.on(Event::Deleted("f".to_owned()));
    assert_eq!(play.brain.view().count(), 0);
}

#[test]
fn a_restart_builds_nothing_that_was_built() {
    let mut play = Play::new();
    let before = object("f", "a.zip", None);
    play.put(&before);
    play.built(1);
    play.deployed(1);
    let mut stored = before;
    stored["status"] = serde_json::to_value(play.status("f")).expect("JSON");

    let mut play = Play::new();
    let (name, declared) = play.declared(&stored);
    play.on(Event::Listed(vec![(name, declared)]));
    let known = play.effects.iter().find_map(|effect| match effect {
        Effect::Build(_, task) => task.known.clone(),
        _ => None,
    });
    assert_eq!(known, Some(artifact(1)), "the artifact of the status is asked for");
    let restored = Built {
        artifact: artifact(1),
        cached: true,
        restored: true,
        took: Duration::ZERO,
        log_tail: String::new(),
        notes: vec![],
    };
    play.on(Event::Built(TaskId(1), Box::new(Ok(restored))));
    play.deployed(1);
    assert_eq!(play.settle(), None, "nothing has changed, and nothing is written");
    assert_eq!(play.status("f").phase, Phase::Succeeded);
}

/// A controller that starts while a version serves, and finds `stored`.
fn restarted(play: &mut Play, stored: &Value, served: Served) -> Play {
    let brain = Controller::new(Policy::default(), 1, BTreeMap::from([("f".to_owned(), served)]));
    let mut next = Play { brain, ..Play::new() };
    let (name, declared) = play.declared(stored);
    next.rev = play.rev;
    next.on(Event::Listed(vec![(name, declared)]));
    next
}

fn spec(code: &str) -> SpecText {
    SpecText(object("f", code, None)["spec"].to_string().into())
}

/// The fourth version of `f`, as its target knows it.
fn fourth() -> Served {
    Served {
        endpoint: Some("http://h/functions/f".to_owned()),
        artifact: Some(artifact(1)),
        revision: Some(Revision {
            generation: 4,
            deployed: "2026-01-01T00:00:00.000Z".to_owned(),
            artifact: artifact(1).digest,
            spec: spec("a.zip"),
        }),
    }
}

#[test]
fn a_version_that_serves_is_told_in_an_object_that_was_put_meanwhile() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    play.deployed(1);
    let served = fourth();

    // Somebody has put another spec, without a status, while Berth was away. It does not build.
    let mut next = restarted(&mut play, &object("f", "b.zip", None), served.clone());
    next.failed(1, Retry::Never);
    let status = next.status("f");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 5));
    assert_eq!((status.endpoint, status.artifact), (served.endpoint.clone(), Some(artifact(1))));
    assert_eq!(status.history.iter().map(|past| &past.spec).collect::<Vec<_>>(), [&spec("a.zip")]);
    let ready = status.conditions.iter().find(|fact| fact.kind() == "Ready").expect("a fact");
    assert_eq!((ready.status(), ready.since()), ("True", "2026-01-01T00:00:00.000Z"));

    // It builds: both are in the history.
    let mut next = restarted(&mut play, &object("f", "b.zip", None), served.clone());
    next.built(1);
    next.deployed(1);
    let generations: Vec<_> = next.status("f").history.iter().map(|past| past.generation).collect();
    assert_eq!(generations, [5, 4]);

    // The same spec is the same version, and keeps its number.
    let mut next = restarted(&mut play, &object("f", "a.zip", None), served.clone());
    next.built(1);
    next.deployed(1);
    let status = next.status("f");
    assert_eq!((status.observed_generation, status.history.len()), (4, 1));

    // A status that tells of a version is left as it is: the record of this machine may be the older one.
    let mut stored = object("f", "b.zip", Some(9));
    stored["status"] = serde_json::to_value(play.status("f")).expect("JSON");
    stored["status"]["endpoint"] = "http://other/functions/f".into();
    let next = restarted(&mut play, &stored, served);
    assert_eq!(next.status("f").endpoint.as_deref(), Some("http://other/functions/f"));
}

#[test]
fn a_status_speaks_of_a_generation_that_was_looked_at() {
    let mut play = Play::new();
    let put = object("f", "a.zip", None);
    let number = |play: &Play| play.brain.view().next().expect("a function").generation;
    let mut next = restarted(&mut play, &put, fourth());
    assert_eq!((next.status("f").observed_generation, number(&next)), (0, 4));
    next.settle();

    // The next leader finds that status, and the version under the same number.
    let mut stored = put.clone();
    stored["status"] = serde_json::to_value(next.status("f")).expect("JSON");
    let mut next = restarted(&mut play, &stored, fourth());
    assert_eq!((next.status("f").observed_generation, number(&next)), (0, 4));

    // It has no artifact and no lock file: other packages, the same version.
    let built = Built {
        artifact: artifact(9),
        cached: false,
        restored: false,
        took: Duration::ZERO,
        log_tail: String::new(),
        notes: vec![],
    };
    next.on(Event::Built(TaskId(1), Box::new(Ok(built))));
    next.deployed(1);
    let status = next.status("f");
    assert_eq!((status.observed_generation, status.history.len()), (4, 1));
    assert_eq!(status.history[0].artifact, artifact(9).digest);

    // A target that knows of a version and nothing about it: nobody can say that it answers.
    let mut next = restarted(&mut play, &put, Served::default());
    next.failed(1, Retry::Never);
    let status = next.status("f");
    assert!(status.conditions.iter().all(|fact| fact.kind() != "Ready"), "{:?}", status.conditions);
    assert!(status.message.ends_with("The previous version keeps serving."), "{}", status.message);
}

#[test]
fn an_artifact_that_is_not_kept_any_more_is_told_in_the_status() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", Some(1)));
    play.built(1);
    play.deployed(1);
    let mut back = object("f", "a.zip", Some(2));
    back["metadata"]["annotations"]["berth.dev/artifact"] = format!("{} 2", artifact(1).digest).into();
    play.put(&back);
    let note = "The artifact is not kept any more: the code at its sourceUri was built.".to_owned();
    let built = Built {
        artifact: artifact(2),
        cached: false,
        restored: false,
        took: Duration::ZERO,
        log_tail: String::new(),
        notes: vec![note.clone()],
    };
    play.on(Event::Built(TaskId(2), Box::new(Ok(built))));
    play.deployed(2);
    let status = play.status("f");
    let fact = status.conditions.iter().find(|fact| fact.kind() == "Built").expect("a fact");
    assert_eq!((fact.reason(), fact.message()), ("Built", note.as_str()));
    assert_eq!(status.history.iter().map(|past| past.generation).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn an_object_may_ask_for_the_artifact_of_an_earlier_deployment_of_its_spec() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", Some(1)));
    play.built(1);
    play.deployed(1);
    // The code at the same place changes, and is built again.
    play.put(&object("f", "a.zip", Some(2)));
    play.built(2);
    play.deployed(2);
    let past = play.status("f").history;
    assert_eq!(past.iter().map(|past| past.generation).collect::<Vec<_>>(), [2, 1], "the code differs");

    let kept = |play: &Play| match play.effects.last() {
        Some(Effect::Write(..)) | None => None,
        Some(Effect::Build(_, task)) => task.kept.clone(),
        Some(other) => panic!("{other:?}"),
    };
    let mut asked = |code: &str, generation: i64, annotation: String| {
        let mut back = object("f", code, Some(generation));
        back["metadata"]["annotations"]["berth.dev/artifact"] = annotation.into();
        play.settle();
        play.effects.clear();
        play.put(&back);
        play.effects.retain(|effect| matches!(effect, Effect::Build(..)));
        kept(&play)
    };
    let first = artifact(1).digest;
    assert_eq!(asked("a.zip", 3, format!("{first} 3")), Some(first.clone()));
    assert_eq!(asked("a.zip", 4, format!("{first} 3")), None, "a later generation is built from its code");
    assert_eq!(asked("b.zip", 5, format!("{first} 5")), None, "another spec never had it");
    assert_eq!(asked("a.zip", 6, format!("{} 6", artifact(9).digest)), None, "no deployment had it");

    let restored = Built {
        artifact: artifact(1),
        cached: true,
        restored: true,
        took: Duration::ZERO,
        log_tail: String::new(),
        notes: vec![],
    };
    let mut back = object("f", "a.zip", Some(7));
    back["metadata"]["annotations"]["berth.dev/artifact"] = format!("{first} 7").into();
    play.put(&back);
    let task = *play.builds().last().expect("a turn");
    play.on(Event::Built(TaskId(task), Box::new(Ok(restored))));
    let deploys = |effect: &Effect| matches!(effect, Effect::Deploy(_, work, it) if !work.proved && *it == artifact(1));
    assert!(play.effects.iter().any(deploys), "it has to answer as a new version does");
    play.deployed(task);
    let status = play.status("f");
    let built = status.conditions.iter().find(|fact| fact.kind() == "Built").expect("a fact");
    assert_eq!((built.reason(), status.artifact), ("Kept", Some(artifact(1))));
}

#[test]
fn a_listing_removes_what_is_gone_and_turns_are_few() {
    let serving = ["old", "c"].map(|name| (name.to_owned(), Served::default()));
    let brain = Controller::new(Policy::default(), 1, BTreeMap::from(serving));
    let mut play = Play { brain, ..Play::new() };
    let objects = ["a", "b", "c"].map(|name| play.declared(&object(name, "a.zip", None)));
    play.on(Event::Listed(objects.into()));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Remove(key) if key == "old")));
    assert_eq!(play.builds(), [1, 2], "two turns");
    play.failed(1, Retry::Never);
    assert_eq!(play.builds(), [1, 2, 3]);
    play.failed(3, Retry::Never);
    assert!(play.status("c").message.ends_with("The previous version keeps serving."), "{}", play.status("c").message);
    play.on(Event::Listed(vec![]));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Cancel(TaskId(2)))));
}

#[test]
fn a_status_that_a_person_overwrites_during_a_write_is_written_again() {
    let mut play = Play::new();
    let put = object("f", "a.zip", None);
    play.put(&put);
    let (key, status) = play.take_write();
    let written = Rev(play.rev + 1);
    play.rev += 1;
    // The person's put comes after ours, and is heard of before ours is acknowledged.
    play.put(&put);
    play.on(Event::Written(key, status, Written::Done(written)));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Write(..))), "{:?}", play.effects);
}

#[test]
fn two_controllers_of_the_same_objects_do_not_write_without_end() {
    let mut play = Play::new();
    let put = object("f", "a.zip", None);
    play.put(&put);
    play.built(1);
    play.deployed(1);
    play.settle();
    play.effects.clear();
    // The other one answers each write with its own.
    let mut writes = 0;
    loop {
        play.put(&put);
        if play.settle().is_none() {
            break;
        }
        writes += 1;
    }
    assert_eq!(writes, 3, "at once, as long as it may be a person");
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Contended(key) if key == "f")));
    play.effects.clear();
    let at = play.brain.wake_at().expect("another attempt");
    play.on(Event::Tick);
    assert!(play.effects.is_empty(), "it is not its time");
    play.now = at;
    play.on(Event::Tick);
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Succeeded));
    play.put(&put);
    assert!(play.effects.is_empty() && play.brain.wake_at() > Some(at), "told once, and later again");
    // What changes is written at once.
    play.put(&object("f", "b.zip", None));
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Building));
    assert_eq!(play.brain.wake_at(), Some(at + Duration::from_secs(60)));
    play.now = at + Duration::from_secs(60);
    play.effects.clear();
    play.on(Event::Tick);
    assert!(play.effects.is_empty(), "of the earlier one nothing is left");
}

#[test]
fn one_who_puts_the_same_object_now_and_then_is_answered_at_once() {
    let mut play = Play::new();
    let put = object("f", "a.zip", None);
    play.put(&put);
    play.built(1);
    play.deployed(1);
    play.settle();
    play.effects.clear();
    for hour in 1..=6 {
        play.now = play.now + Duration::from_secs(3_600);
        play.put(&put);
        assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Succeeded), "hour {hour}");
    }
    assert!(play.effects.is_empty(), "nobody contends: {:?}", play.effects);
    // Somebody who contends after all is told, and told again where it had been over.
    for _ in 0..2 {
        for _ in 0..4 {
            play.put(&put);
            play.settle();
        }
        assert!(matches!(play.effects.as_slice(), [Effect::Contended(_)]), "{:?}", play.effects);
        play.effects.clear();
        play.now = play.brain.wake_at().expect("another attempt");
        play.on(Event::Tick);
        play.settle();
        play.now = play.now + Duration::from_secs(3_600);
    }
}

#[test]
fn the_echo_of_an_earlier_write_overwrites_nothing() {
    let mut play = Play::new();
    let mut stored = object("f", "a.zip", None);
    play.put(&stored);
    let earlier = play.settle().expect("a status");
    let rev = Rev(play.rev);
    play.built(1);
    play.deployed(1);
    play.settle();
    play.effects.clear();
    stored["status"] = serde_json::to_value(earlier).expect("JSON");
    let echo = Declared::read("f", stored.to_string().as_bytes(), rev);
    play.on(Event::Put("f".to_owned(), Box::new(echo)));
    assert!(play.effects.is_empty(), "{:?}", play.effects);
}

#[test]
fn a_status_is_told_though_the_write_of_an_earlier_one_was_superseded() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", Some(1)));
    let (key, status) = play.take_write();
    let mut bad = object("f", "a.zip", Some(2));
    bad["spec"]["type"] = "pytorch".into();
    play.put(&bad);
    assert!(!play.effects.iter().any(|effect| matches!(effect, Effect::Write(..))), "one is on its way");
    play.on(Event::Written(key, status, Written::Superseded));
    let status = play.settle().expect("a status");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 2));

    // An object that changed all the time: another attempt, later.
    let mut play = Play::new();
    play.put(&object("f", "a.zip", Some(1)));
    let (key, status) = play.take_write();
    play.on(Event::Written(key, status, Written::Superseded));
    assert!(!play.effects.iter().any(|effect| matches!(effect, Effect::Write(..))), "{:?}", play.effects);
    play.now = play.brain.wake_at().expect("another attempt");
    play.on(Event::Tick);
    assert_eq!(play.settle().map(|status| status.phase), Some(Phase::Building));
}

#[test]
fn what_runs_elsewhere_is_looked_at_again_and_nothing_is_written() {
    let mut play = Play::new();
    play.put(&object("here", "a.zip", None));
    play.built(1);
    play.deployed(1);
    let mut cloud = object("cloud", "a.zip", None);
    cloud["spec"]["target"] = json!({"platform": "azure-function", "resourceGroup": "g", "appName": "cloud"});
    play.put(&cloud);
    play.built(2);
    play.deployed(2);
    play.settle();
    play.effects.clear();
    play.on(Event::Verify);
    let [Effect::Build(TaskId(3), task)] = &play.effects[..] else { panic!("one look: {:?}", play.effects) };
    assert_eq!((task.spec.name.as_str(), task.proved), ("cloud", true));
    let restored = Built {
        artifact: artifact(2),
        cached: true,
        restored: true,
        took: Duration::ZERO,
        log_tail: String::new(),
        notes: vec![],
    };
    play.on(Event::Built(TaskId(3), Box::new(Ok(restored))));
    play.on(Event::Verify);
    play.deployed(3);
    assert_eq!(play.settle(), None, "nothing differed");
    assert_eq!(play.status("cloud").phase, Phase::Succeeded);
}

#[test]
fn an_app_in_a_cloud_serves_on_under_the_next_leader() {
    let cloud = |code: &str| {
        let mut object = object("f", code, None);
        object["spec"]["target"] = json!({"platform": "azure-function", "resourceGroup": "g", "appName": "cloud"});
        object
    };
    let endpoint = "https://cloud.azurewebsites.net/api/f".to_owned();
    let mut play = Play::new();
    play.put(&cloud("a.zip"));
    play.built(1);
    play.on(Event::Deployed(TaskId(1), Ok(Deployed { endpoint: endpoint.clone(), note: String::new() })));
    play.put(&cloud("b.zip"));
    play.failed(2, Retry::Never);
    let mut stored = cloud("b.zip");
    stored["status"] = serde_json::to_value(play.status("f")).expect("JSON");

    // It has deployed nothing itself, and the newest version does not build there, either.
    let mut next = Play { rev: play.rev, ..Play::new() };
    let (name, declared) = next.declared(&stored);
    next.on(Event::Listed(vec![(name, declared)]));
    next.failed(1, Retry::Never);
    let status = next.status("f");
    assert_eq!((status.endpoint, status.artifact), (Some(endpoint), Some(artifact(1))));
    assert_eq!(status.message, "npm ci failed. The previous version keeps serving.");
}

/// The object `f` as it stands in the store after `play`, with another code.
fn left_by(play: &Play, code: &str) -> Value {
    let mut stored = object("f", code, None);
    stored["status"] = serde_json::to_value(play.status("f")).expect("JSON");
    stored
}

/// A leader that has never had `f`, and finds `stored`.
fn elsewhere(stored: &Value) -> Play {
    let mut next = Play { rev: 100, ..Play::new() };
    let (name, declared) = next.declared(stored);
    next.on(Event::Listed(vec![(name, declared)]));
    next
}

/// Artifact and code of the last build that was asked for.
fn last_build(play: &Play) -> (Option<String>, String) {
    let of_build = |effect: &Effect| match effect {
        Effect::Build(_, task) => Some((task.kept.clone(), task.spec.source.to_string())),
        _ => None,
    };
    play.effects.iter().rev().find_map(of_build).expect("a build")
}

/// `f` whose second version does not build, while its first one serves.
fn with_a_failed_version() -> Play {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    play.deployed(1);
    play.put(&object("f", "b.zip", None));
    play.failed(2, Retry::Never);
    play
}

fn ready(play: &Play) -> (String, String) {
    let conditions = play.status("f").conditions;
    let fact = conditions.iter().find(|fact| fact.kind() == "Ready").expect("a fact");
    (fact.status().to_owned(), fact.reason().to_owned())
}

#[test]
fn a_new_leader_starts_the_version_that_served_before_the_one_that_fails() {
    let before = with_a_failed_version();
    let mut next = elsewhere(&left_by(&before, "b.zip"));
    assert_eq!(last_build(&next), (Some(artifact(1).digest), "file:/code/a.zip".to_owned()));
    assert_eq!(ready(&next), ("False".to_owned(), "TakingOver".to_owned()));
    let message = "Waits for its turn. The version that served last is being started on this node.";
    assert_eq!((next.status("f").phase, next.status("f").message.as_str()), (Phase::Pending, message));

    next.built(1);
    let deploys =
        |effect: &Effect| matches!(effect, Effect::Deploy(_, work, _) if !work.proved && work.generation == 1);
    assert!(next.effects.iter().any(deploys), "it has to answer here");
    next.deployed(1);
    assert_eq!(ready(&next), ("True".to_owned(), "Serving".to_owned()));
    assert_eq!(last_build(&next), (None, "file:/code/b.zip".to_owned()), "then the desired state has its turn");
    next.failed(2, Retry::Never);
    let status = next.status("f");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 2));
    assert_eq!(status.message, "npm ci failed. The previous version keeps serving.");
    assert_eq!((status.endpoint.is_some(), status.artifact), (true, Some(artifact(1))));
    assert_eq!(status.history.iter().map(|past| past.generation).collect::<Vec<_>>(), [1]);
    assert_eq!(next.brain.wake_at(), None);
}

#[test]
fn the_version_that_served_is_started_beside_an_invalid_spec_as_well() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    play.deployed(1);
    let mut bad = left_by(&play, "a.zip");
    bad["spec"]["type"] = "pytorch".into();
    play.put(&bad);
    bad["status"] = serde_json::to_value(play.status("f")).expect("JSON");

    let mut next = elsewhere(&bad);
    let status = next.status("f");
    assert_eq!(status.phase, Phase::Failed);
    assert!(status.message.ends_with("The version that served last is being started on this node."), "{status:?}");
    // A failure that may pass is tried again: nothing else serves.
    next.failed(1, Retry::Later);
    next.now = next.brain.wake_at().expect("another attempt");
    next.on(Event::Tick);
    assert_eq!(next.builds(), [1, 2]);
    next.built(2);
    next.deployed(2);
    let status = next.status("f");
    assert_eq!((status.phase, status.observed_generation), (Phase::Failed, 2));
    assert!(status.message.contains("spec.type \"pytorch\" is unknown"), "{status:?}");
    assert!(status.message.ends_with("The previous version keeps serving."), "{status:?}");
    assert_eq!((next.builds(), next.brain.wake_at()), (vec![1, 2], None), "the spec is not built");
}

#[test]
fn a_version_that_cannot_be_started_again_holds_up_nothing() {
    let before = with_a_failed_version();
    // For good: nothing serves, and the desired state has its turn.
    let mut next = elsewhere(&left_by(&before, "b.zip"));
    next.failed(1, Retry::Never);
    assert_eq!(last_build(&next), (None, "file:/code/b.zip".to_owned()));
    next.failed(2, Retry::Never);
    let status = next.status("f");
    assert_eq!((status.message.as_str(), status.endpoint, status.artifact), ("npm ci failed", None, None));
    assert_eq!(next.brain.wake_at(), None);

    // For now: the desired state has its turn, and where it fails for good the earlier one is tried again alone.
    let mut next = elsewhere(&left_by(&before, "b.zip"));
    next.failed(1, Retry::Later);
    next.failed(2, Retry::Never);
    assert!(next.status("f").message.ends_with("is being started on this node."), "{:?}", next.status("f"));
    next.now = next.brain.wake_at().expect("another attempt");
    next.on(Event::Tick);
    assert_eq!(last_build(&next), (Some(artifact(1).digest), "file:/code/a.zip".to_owned()));
    next.built(3);
    next.deployed(3);
    assert_eq!(next.status("f").message, "npm ci failed. The previous version keeps serving.");
    assert_eq!((next.builds(), next.brain.wake_at()), (vec![1, 2, 3], None));
}

#[test]
fn a_change_of_the_spec_cancels_the_start_of_the_version_that_served_and_that_begins_again() {
    let before = with_a_failed_version();
    let mut next = elsewhere(&left_by(&before, "b.zip"));
    next.put(&object("f", "c.zip", None));
    assert!(next.effects.iter().any(|effect| matches!(effect, Effect::Cancel(TaskId(1)))));
    assert_eq!(last_build(&next), (Some(artifact(1).digest), "file:/code/a.zip".to_owned()));
    next.built(2);
    next.deployed(2);
    next.built(3);
    next.deployed(3);
    let status = next.status("f");
    assert_eq!((status.phase, status.observed_generation, status.artifact), (Phase::Succeeded, 3, Some(artifact(3))));
    next.on(Event::Deleted("f".to_owned()));
    next.on(Event::Removed("f".to_owned()));
    assert_eq!(next.brain.view().count(), 0);
}

#[test]
fn only_a_version_that_is_not_served_here_is_started_again() {
    let before = with_a_failed_version();
    let mut play = Play { rev: 100, ..Play::new() };
    // This node serves it, or has served an earlier one.
    let last = || Served { revision: before.status("f").history.first().cloned(), ..Served::default() };
    for (served, code) in [(last(), "b.zip"), (fourth(), "b.zip")] {
        let next = restarted(&mut play, &left_by(&before, "b.zip"), served);
        assert_eq!(last_build(&next), (None, format!("file:/code/{code}")));
    }
    let mut earlier = last();
    if let Some(revision) = &mut earlier.revision {
        revision.generation = 0;
    }
    let next = restarted(&mut play, &left_by(&before, "b.zip"), earlier);
    assert_eq!(last_build(&next).1, "file:/code/a.zip");
    // Somebody puts an object with the status of another one.
    let mut next = Play { rev: 100, ..Play::new() };
    next.put(&left_by(&before, "c.zip"));
    assert_eq!(last_build(&next), (None, "file:/code/c.zip".to_owned()));
    // A version that the leader before had succeeded with is the desired state.
    let mut served = Play::new();
    served.put(&object("f", "a.zip", None));
    served.built(1);
    served.deployed(1);
    let next = elsewhere(&left_by(&served, "a.zip"));
    assert_eq!(next.builds(), [1]);
    assert_eq!(last_build(&next).0, None);
}

#[test]
fn a_deployment_that_waits_for_a_cloud_holds_no_turn_but_for_those_beyond_a_bound() {
    let brain = Controller::new(Policy { parallel: 1, elsewhere: 1 }, 1, BTreeMap::new());
    let mut play = Play { brain, ..Play::new() };
    for name in ["cloud", "other"] {
        let mut cloud = object(name, "a.zip", None);
        cloud["spec"]["target"] = json!({"platform": "azure-function", "resourceGroup": "g", "appName": name});
        play.put(&cloud);
    }
    play.put(&object("here", "a.zip", None));
    play.put(&object("next", "a.zip", None));
    assert_eq!(play.builds(), [1], "a build holds the turn");
    play.built(1);
    assert_eq!(play.builds(), [1, 2], "its deployment does not");
    play.built(2);
    assert_eq!(play.builds(), [1, 2], "one beyond the bound does");
    play.deployed(1);
    assert_eq!(play.builds(), [1, 2, 3]);
    play.built(3);
    assert_eq!(play.builds(), [1, 2, 3], "a deployment on this machine holds its turn");
    play.deployed(3);
    assert_eq!(play.builds(), [1, 2, 3, 4]);
    play.on(Event::Deleted("other".to_owned()));
    assert!(play.effects.iter().any(|effect| matches!(effect, Effect::Cancel(TaskId(2)))));
    assert_eq!(play.status("here").phase, Phase::Succeeded);
}

#[test]
fn what_a_target_remarks_stands_in_the_condition() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    play.built(1);
    let note = "Azure does not take spec.limits.memoryMiB.".to_owned();
    play.on(Event::Deployed(TaskId(1), Ok(Deployed { endpoint: "http://h/f".to_owned(), note: note.clone() })));
    let conditions = play.status("f").conditions;
    let deployed = conditions.iter().find(|fact| fact.kind() == "Deployed").expect("a fact");
    assert_eq!((deployed.status(), deployed.message()), ("True", note.as_str()));
}

#[test]
fn what_needs_something_that_is_left_alone_waits_until_then() {
    let mut play = Play::new();
    play.put(&object("f", "a.zip", None));
    let until = play.now + Duration::from_secs(42);
    play.failed(1, Retry::At(until));
    let status = play.settle().expect("a status");
    assert_eq!((status.phase, status.message.as_str()), (Phase::Failed, "npm ci failed. Tried again in 42 s."));
    assert_eq!(play.brain.wake_at(), Some(until));
}
