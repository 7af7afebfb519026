//! Incidents and files for worlds that the planner's own fixtures make.

use std::{sync::Arc, time::Duration};

use berth_plan::{
    fixture::{Fixture, gib, name, world},
    world::Liveness,
};
use berth_registry::error_file::{IncidentKind, IncidentSeverity};
use berth_spec::{
    deployment::WhenFull,
    residency::{Deaths, FailureCategory},
};

use super::*;

/// Looks at the world once.
fn look(memory: &mut IncidentTracker, w: &Fixture, named: Option<&BTreeSet<String>>, synced: bool) -> Observed {
    look_without(&[], memory, w, named, synced)
}

/// The same of a controller that has never heard the workers `absent`.
fn look_without(
    absent: &[AbsentWorker],
    memory: &mut IncidentTracker,
    w: &Fixture,
    named: Option<&BTreeSet<String>>,
    synced: bool,
) -> Observed {
    let known = |deployment: &Arc<berth_spec::Deployment>| KnownDeployment {
        deployment: Arc::clone(deployment),
        rev: berth_control::store::Rev(1),
        status: Some(w.status(deployment.name.as_str())),
    };
    let deployments: Vec<KnownDeployment> = w.world.deployments().map(known).collect();
    let workers: Vec<WorkerView> = w
        .world
        .workers()
        .filter_map(|(_, tracked)| view(tracked))
        .filter(|worker| absent.iter().all(|absent| absent.id != worker.info.id))
        .collect();
    let fleet = FleetSnapshot {
        workers: &workers,
        absent,
        deployments: &deployments,
        secrets: &[],
        refusal: None,
        applied: None,
        synced,
        named,
    };
    memory.observe(&fleet, w.now)
}

fn view(tracked: &berth_plan::world::TrackedWorker) -> Option<WorkerView> {
    Some(WorkerView {
        info: tracked.info.clone()?,
        terms: None,
        unlisted: false,
        credentials: tracked.credentials,
        breakers: Vec::new(),
        state: match tracked.liveness {
            Liveness::Alive => WorkerState::Ready,
            Liveness::Lost { .. } => WorkerState::Lost,
            _ => WorkerState::Joining,
        },
        cordon: tracked.cordon,
        claimed: tracked.used,
        overhead: tracked.overhead,
        load: tracked.load.clone(),
        leaving: tracked.state == berth_spec::WorkerState::Leaving,
        leaves_first: None,
        drain: None,
        gpus_claimed: Vec::new(),
        gpus_given: std::collections::BTreeMap::new(),
        assigned: u32::try_from(tracked.assigned.len()).ok()?,
        ready: 0,
        reported: None,
    })
}

fn kinds(observed: &Observed) -> Vec<(IncidentKind, IncidentSeverity)> {
    observed.incidents.iter().map(|incident| (incident.subject.kind, incident.severity)).collect()
}

#[test]
fn a_failed_model_is_listed_until_it_is_over_though_its_worker_has_let_go_of_it() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.advance();
    w.fail("iris", "a", FailureCategory::Code, None);
    w.advance();
    let revision = w.revision("iris");
    w.report("a", false, vec![(revision, None)]);
    w.advance();
    let observed = look(&mut memory, &w, None, false);
    let worker = &observed.state.workers[0];
    let listed: Vec<_> = worker.models.iter().map(|model| (model.status, model.error.as_deref())).collect();
    assert_eq!((worker.status, &listed[..]), (WorkerHealth::Degraded, &[(ModelState::Failed, Some("it broke"))][..]));
    let incident = &observed.incidents[0];
    assert_eq!(incident.worker_status.as_deref(), Some("degraded"));
    assert!(incident.actions.contains(&"Marked a as degraded".to_owned()), "{:?}", incident.actions);
    assert_eq!(kinds(&observed), [(IncidentKind::LoadFailure, IncidentSeverity::Critical)]);
    w.world.remove_deployment(&name("iris"));
    assert!(look(&mut memory, &w, None, false).incidents.is_empty());
}

#[test]
fn that_the_old_revision_goes_on_serving_is_said_only_where_it_does() {
    for (room, when_full, kept) in [(gib(4), WhenFull::Wait, true), (gib(1), WhenFull::Recreate, false)] {
        let mut w = world().worker("a", room).deploy("iris", |spec| {
            spec.memory = Some(gib(1));
            spec.rollout.when_full = when_full;
        });
        w.settle();
        let old = w.revision("iris");
        w.update("iris", "2");
        while w.plan().decided() {}
        w.fail("iris", "a", FailureCategory::Network, Some(Duration::from_secs(30)));
        w.advance();
        let incident = look(&mut IncidentTracker::default(), &w, None, false).incidents.remove(0);
        assert_eq!(w.status("iris").serving.as_ref(), Some(&old));
        let said = format!("Kept {old} serving when the load failed");
        assert_eq!(incident.actions.contains(&said), kept, "{:?}", incident.actions);
    }
}

#[test]
fn an_update_without_room_beside_the_old_revision_is_an_incident_until_there_is_room() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(3)).resident("iris", gib(2));
    w.settle();
    w.update("iris", "2");
    w.settle();
    assert_eq!(kinds(&look(&mut memory, &w, None, true)), [(IncidentKind::Capacity, IncidentSeverity::Medium)]);
    w.after(Duration::from_secs(600));
    w.settle();
    let observed = look(&mut memory, &w, None, true);
    assert_eq!(kinds(&observed), [(IncidentKind::Capacity, IncidentSeverity::High)]);
    let file = observed.incidents[0].details.clone();
    assert!(file.contains("rollout.deadline") && file.contains("whenFull: recreate"), "{file}");
    let mut next = IncidentTracker::default();
    next.inherit([observed.incidents[0].subject.clone()]);
    let mut w = w.worker("b", gib(3));
    w.settle();
    let observed = look(&mut next, &w, None, true);
    assert!(observed.incidents.is_empty() && observed.open.is_empty(), "{observed:?}");
}

#[test]
fn a_process_that_dies_again_and_again_is_told_once_until_it_has_lived_for_long() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.settle();
    let mut told = Vec::new();
    for _ in 0..Deaths::CRASH_LOOP_DEATHS + 2 {
        for again in [Some(Duration::from_secs(30)), None] {
            w.die("iris", "a", again);
            w.advance();
            let observed = look(&mut memory, &w, None, false);
            told.push((
                kinds(&observed),
                observed.state.meaning(),
                observed.incidents.first().map(Incident::file_name),
            ));
            w.after(Duration::from_secs(30));
        }
    }
    let (before, after) = told.split_at(2 * Deaths::CRASH_LOOP_DEATHS as usize - 2);
    assert!(
        before
            .iter()
            .all(|(kinds, state, _)| { kinds.is_empty() && state.workers[0].models[0].status == ModelState::Ready })
    );
    let (first, since, _) = &after[0];
    assert_eq!(first[..], [(IncidentKind::RuntimeFailure, IncidentSeverity::Critical)]);
    assert_eq!(
        (since.workers[0].status, since.workers[0].models[0].status),
        (WorkerHealth::Degraded, ModelState::Failed)
    );
    assert!(after.iter().all(|each| *each == after[0]), "its being up for a moment is no news: {after:#?}");
    let mut next = IncidentTracker::default();
    next.inherit([look(&mut memory, &w, None, false).incidents[0].subject.clone()]);
    w.after(Deaths::CRASH_LOOP_RESET);
    let observed = look(&mut next, &w, None, false);
    assert_eq!((observed.incidents.len(), observed.open.len()), (0, 0));
    assert_eq!(observed.state.workers[0].models[0].status, ModelState::Ready);
}

#[test]
fn what_was_given_up_is_not_better_while_it_is_tried_once_more() {
    let one = |severity, attempts| Incident {
        severity,
        attempts,
        ..super::super::incident::blank(IncidentKind::LoadFailure, Some("iris".to_owned()), Some("a".to_owned()))
    };
    let before = one(IncidentSeverity::High, 4);
    let now = incident_since(one(IncidentSeverity::Medium, 1), &before);
    assert_eq!((now.severity, now.attempts), (IncidentSeverity::High, 4));
    let worse = incident_since(one(IncidentSeverity::Critical, 1), &before);
    assert_eq!(worse.severity, IncidentSeverity::Critical);
}

#[test]
fn what_the_controller_before_told_of_is_open_until_its_end_is_seen() {
    let subject = |kind, deployment: Option<&str>, worker: Option<&str>, commit: Option<&str>| Subject {
        kind,
        deployment: deployment.map(str::to_owned),
        worker: worker.map(str::to_owned),
        commit: commit.map(str::to_owned),
    };
    let load = subject(IncidentKind::LoadFailure, Some("iris"), Some("a"), None);
    let gone = subject(IncidentKind::LoadFailure, Some("gone"), Some("a"), None);
    let lost = subject(IncidentKind::WorkerFailure, None, Some("b"), None);
    let back = subject(IncidentKind::WorkerFailure, None, Some("a"), None);
    let commit = subject(IncidentKind::ValidationError, None, None, Some("c0ffee"));
    let secret = subject(IncidentKind::Secret, None, Some("a"), None);
    let mut memory = IncidentTracker::default();
    memory.inherit([&load, &gone, &lost, &back, &commit, &secret].map(Clone::clone));
    let mut w = world().worker("a", gib(4)).resident("iris", gib(1));
    w.advance();
    let open = look(&mut memory, &w, None, false).open;
    assert_eq!(
        open,
        BTreeSet::from([load.clone(), lost.clone(), commit.clone(), secret.clone()]),
        "nothing is known yet"
    );
    w.load_all();
    w.advance();
    let named = BTreeSet::from(["b".to_owned()]);
    let open = look(&mut memory, &w, Some(&named), false).open;
    assert_eq!(
        open,
        BTreeSet::from([lost.clone(), commit.clone()]),
        "it is ready; the registry still names the worker"
    );
    let nobody = BTreeSet::new();
    let open = look(&mut memory, &w, Some(&nobody), true).open;
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_lost_worker_is_told_with_what_it_held_and_what_became_of_it() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1)).resident("rose", gib(1));
    w.settle();
    let on_a = w.status("iris").replicas[0].worker.clone();
    w.lose(on_a.as_str());
    let lost = |observed: &Observed| {
        let found = observed.incidents.iter().find(|incident| incident.subject.kind == IncidentKind::WorkerFailure);
        found.cloned().expect("told")
    };
    let first = lost(&look(&mut memory, &w, None, false));
    assert!(first.details.contains("iris"), "{}", first.details);
    w.after(Duration::from_secs(600));
    w.settle();
    let later = lost(&look(&mut memory, &w, None, false));
    assert!(later.details.contains("iris"), "also when its models are elsewhere: {}", later.details);
    let whole = later.actions.iter().any(|line| {
        let held = later.details.matches(", ").count() + 1;
        line.ends_with(&format!("{held} of {held} deployments have all their replicas"))
    });
    assert!(whole, "{:?} {}", later.actions, later.details);
}

#[test]
fn a_worker_that_died_with_the_controller_before_is_told_by_the_next_one() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1)).resident("rose", gib(1));
    w.settle();
    let dead = w.status("iris").replicas[0].worker.clone();
    let held = w.world.deployments().filter(|known| w.placed(known.name.as_str()).contains(&dead.to_string()));
    let absent = AbsentWorker { id: dead.clone(), held: held.map(|known| known.name.clone()).collect() };
    assert!(absent.held.contains(&name("iris")));
    // By the first look its models are elsewhere already.
    w.lose(dead.as_str());
    w.after(Duration::from_secs(600));
    w.settle();
    let observed = look_without(std::slice::from_ref(&absent), &mut memory, &w, None, true);
    let found = observed.incidents.iter().find(|incident| incident.subject.worker.as_deref() == Some(dead.as_str()));
    let found = found.expect("told");
    assert!(found.message.contains("is gone") && found.details.contains("iris"), "{found:?}");
    let all = absent.held.len();
    assert!(found.actions.iter().any(|line| line.contains(&format!("{all} of {all} deployments"))), "{found:?}");
    let listed: Vec<_> = observed.state.workers.iter().map(|entry| (entry.worker_id.as_str(), entry.status)).collect();
    assert_eq!(listed.len(), 2);
    assert!(listed.contains(&(dead.as_str(), WorkerHealth::Failed)), "{listed:?}");
    // One that held nothing is told as well.
    let idle = AbsentWorker { held: BTreeSet::new(), ..absent };
    let observed = look_without(&[idle], &mut memory, &w, None, true);
    let found = observed.incidents.iter().find(|incident| incident.message.contains("is gone")).expect("told");
    assert_eq!((found.details.as_str(), found.actions.len()), ("", 1));
}

#[test]
fn who_left_as_announced_is_missed_by_nobody() {
    let mut memory = IncidentTracker::default();
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("iris", gib(1));
    w.settle();
    let goes = w.status("iris").replicas[0].worker.clone();
    w.leave(goes.as_str());
    w.settle();
    w.lose(goes.as_str());
    w.settle();
    let observed = look(&mut memory, &w, None, true);
    let listed: Vec<_> = observed.state.workers.iter().map(|entry| entry.worker_id.as_str()).collect();
    assert!(observed.incidents.is_empty() && !listed.contains(&goes.as_str()), "{observed:?}");
}
