//! Reasons for and against each place: each worker that could hold a replica, beside the best of them.

use berth_spec::WorkerId;

use super::{WorkerVerdict, WorkerView};
use crate::{
    Replica, Score,
    draft::{Draft, Work},
    place::{self, HomeRegion, PlacementRequest},
};

/// Says of each worker that could hold a replica what it is better than, or what is better than it; and of each that
/// holds one whether it would be chosen again.
pub(super) fn compare(
    draft: &mut Draft<'_>,
    work: &mut Work<'_>,
    request: &PlacementRequest<'_>,
    views: &mut [WorkerView],
) {
    let mut fitting: Vec<Score> = views
        .iter()
        .filter_map(|view| match &view.verdict {
            WorkerVerdict::Fits { score, .. } => Some(score.clone()),
            _ => None,
        })
        .collect();
    fitting.sort();
    for view in views.iter_mut() {
        match &view.verdict {
            WorkerVerdict::Fits { score, .. } => view.why = beside(score, &fitting),
            WorkerVerdict::Holds { revision, .. } if *revision == request.revision.id => {
                view.why = again(draft, work, request, &view.worker);
            }
            WorkerVerdict::Holds { .. } | WorkerVerdict::Rejected(_) => {}
        }
    }
}

/// `sorted` begins with the best.
fn beside(score: &Score, sorted: &[Score]) -> Option<String> {
    let (best, second) = (sorted.first()?, sorted.get(1));
    if score.worker != best.worker {
        return Some(format!("{} comes before it: {}", best.worker, best.beats(score)));
    }
    Some(match second {
        Some(second) => format!("the next one goes here rather than to {}: {}", second.worker, score.beats(second)),
        None => "the next one goes here: no other worker can take it".to_owned(),
    })
}

/// The place that a replica would get now. Nothing moves for it.
fn again(
    draft: &mut Draft<'_>,
    work: &mut Work<'_>,
    request: &PlacementRequest<'_>,
    worker: &WorkerId,
) -> Option<String> {
    let here = |replica: &&Replica| replica.worker == *worker && replica.revision == request.revision.id;
    let replica = work.replicas.iter().find(here)?.clone();
    draft.drop_replicas(work, |other| *other == replica);
    let free = PlacementRequest { home: &HomeRegion::Anywhere, ..*request };
    let views: Vec<_> = draft.world.workers.keys().map(|id| (id, place::view(draft, work, &free, id))).collect();
    let mut others: Vec<Score> = views
        .iter()
        .filter(|(id, _)| *id != worker)
        .filter_map(|(_, view)| Some(view.as_ref().ok()?.score.clone()))
        .collect();
    others.sort();
    let ours = views.iter().find(|(id, _)| *id == worker).map(|(_, view)| view);
    let said = match (ours, others.first()) {
        (Some(Err(rejection)), _) => format!("it stays where it is, though the worker {rejection}"),
        (Some(Ok(ours)), Some(best)) if *best < ours.score => {
            let why = best.beats(&ours.score);
            format!("placed now it would go to {}: {why}; nothing moves for that", best.worker)
        }
        (Some(Ok(ours)), Some(best)) => format!("better than {}: {}", best.worker, ours.score.beats(best)),
        (_, None) | (None, _) => "no other worker can take it".to_owned(),
    };
    draft.put(work, replica);
    Some(said)
}
