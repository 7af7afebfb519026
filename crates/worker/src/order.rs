//! The order of work on this worker: which fetches and loads to start now. Pure.
//!
//! * Frees go before loads: they are never held back, and a load starts only when its claim fits beside all that is
//!   resident or draining, and beside what is being unloaded as far as that exceeds the reserve for it.
//! * Replicas that requests wait for go first, then the order in which they were assigned (the plan assigns by priority).
//! * What does not fit yet keeps its place: its claim is set aside before the next is looked at, so that a stream of
//!   small loads cannot starve a large one.
//! * What does not fit and cannot come to fit, because nothing is on its way out, is told apart: the plan decides, and the
//!   agent refuses only what it was not given room for in time.
//! * The count is kept like the memory, but what is above it waits and is not refused: a plan that lowers it also says who
//!   leaves.
//! * A load that claims GPUs waits until nothing that has some is on its way out. What stays has its own, so no device is
//!   claimed twice, whatever kinds there are.
//! * A card's code and environment come before its artifact: what cannot be made is known before gigabytes are fetched.
//! * One fetch per location and one load per model at a time; a second replica of the model waits for it and shares it.

use std::collections::BTreeSet;

use berth_spec::{ByteSize, Digest, Revision, RevisionId};

/// Bounds on what goes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory that models may take.
    pub memory: ByteSize,
    /// Memory beyond that, for models that are being unloaded: a load does not wait for the end of unloads that fit in here.
    pub unload_reserve: ByteSize,
    /// Models in memory at once; `None`: as many as fit.
    pub models: Option<u32>,
    /// The loads and validations at once. With one, a large model holds up every small one; with many, loads slow each
    /// other and the requests beside them.
    pub parallel_loads: usize,
    /// Fetches at once. Each has several connections of its own.
    pub parallel_fetches: usize,
}

/// The next thing that a waiting replica needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Its code and environment to be made.
    Prepare,
    /// To be fetched from this location.
    Fetch {
        /// The location; never fetched twice at once.
        uri: String,
    },
    /// To be loaded.
    Load {
        /// The memory that it needs; nothing where another replica already holds the weights.
        claim: ByteSize,
        /// True if it claims GPUs.
        gpus: bool,
        /// Names the loaded model: replicas with the same key share one.
        key: ModelKey,
        /// The model in another replica of the same revision or bytes.
        shared: SharedLoad,
    },
}

/// All that decides what is in memory once a revision is loaded: the bytes, the format, the engine's settings, and the
/// deployment, because queue, limits and metrics of a loaded model are the deployment's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelKey(String);

/// The cards that are prepared at once: one that builds a package from its source does not hold up the others, and the
/// models that answer keep their cores.
pub const PARALLEL_PREPARATIONS: usize = 2;

impl ModelKey {
    /// The key of `revision` loaded from bytes that hash to `digest`.
    #[must_use]
    pub fn of(revision: &Revision, digest: &Digest) -> Self {
        let Revision { id, format, signature, runtime, card, .. } = revision;
        // A card's code makes another model of the same bytes: only the same revision is the same model.
        let code = card.as_ref().map(|_| id.hash());
        Self(format!("{} {} {digest} {runtime:?} {signature:?} {code:?}", id.deployment(), format.as_str()))
    }
}

/// The same model in another replica: not there, being loaded, or in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedLoad {
    /// No other replica has it: load it.
    Absent,
    /// The same content is being loaded: wait for it.
    OnItsWay,
    /// The same content is in memory: share it.
    Loaded,
}

/// A replica that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingReplica {
    /// The replica's revision: its key on this worker, and the last tie-breaker of the order.
    pub revision: RevisionId,
    /// Requests are parked for it.
    pub urgent: bool,
    /// When it was assigned among others.
    pub arrival: u64,
    /// The next thing that it needs.
    pub next_step: NextStep,
}

/// The work in progress, and the memory that is taken. The limits hold for both together with what starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    /// Cards that are being got ready.
    pub preparing: usize,
    /// Locations (URIs) that are being fetched; none is fetched twice at once.
    pub fetching: BTreeSet<String>,
    /// Loads and validations under way.
    pub loading: usize,
    /// Memory that is held: resident, being loaded, draining, being unloaded.
    pub held: ByteSize,
    /// The part of that which is being unloaded: no request uses it any more.
    pub unloading: ByteSize,
    /// Memory that models cannot have, though nobody holds it. It never keeps out what fits into the worker alone: an author's
    /// word counts.
    pub overhead: ByteSize,
    /// Replicas that hold it.
    pub models: u32,
    /// Some of them have GPUs and are on their way out.
    pub freeing_gpus: bool,
    /// Something that holds memory is on its way out, so that what does not fit may come to fit.
    pub freeing: bool,
}

/// The next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Get its card ready.
    Prepare(RevisionId),
    /// Fetch its artifact.
    Fetch(RevisionId),
    /// Load its artifact, for which there is memory and a slot.
    Load(RevisionId),
    /// Tell the controller that it does not fit.
    Refuse {
        /// The replica's revision: its key on this worker.
        revision: RevisionId,
        /// The memory that it needs.
        need: ByteSize,
        /// The memory that is free.
        free: ByteSize,
    },
}

/// The work to start now, in order.
#[must_use]
pub fn next(mut waiting: Vec<WaitingReplica>, mut busy: Busy, limits: &Limits) -> Vec<Action> {
    waiting.sort_by(|a, b| (!a.urgent, a.arrival, &a.revision).cmp(&(!b.urgent, b.arrival, &b.revision)));
    let mut actions = Vec::new();
    let mut loading_keys = BTreeSet::new();
    let mut free = limits.memory.saturating_sub(busy.held.saturating_sub(busy.unloading.min(limits.unload_reserve)));
    let mut places = limits.models.map_or(u32::MAX, |most| most.saturating_sub(busy.models));
    for WaitingReplica { revision, next_step, .. } in waiting {
        match next_step {
            NextStep::Prepare => {
                if busy.preparing < PARALLEL_PREPARATIONS {
                    busy.preparing += 1;
                    actions.push(Action::Prepare(revision));
                }
            }
            NextStep::Fetch { uri } => {
                if busy.fetching.len() < limits.parallel_fetches && busy.fetching.insert(uri) {
                    actions.push(Action::Fetch(revision));
                }
            }
            NextStep::Load { shared: SharedLoad::OnItsWay, .. } => {}
            NextStep::Load { shared: SharedLoad::Loaded, .. } => actions.push(Action::Load(revision)),
            NextStep::Load { claim, gpus, key, shared: SharedLoad::Absent } => {
                if loading_keys.contains(&key) {
                    continue;
                }
                let free_for_it = free - busy.overhead.min(limits.memory - claim);
                let fits = claim <= free_for_it;
                if !fits && !busy.freeing {
                    actions.push(Action::Refuse { revision, need: claim, free: free_for_it });
                    continue;
                }
                let may = fits && places > 0 && !(gpus && busy.freeing_gpus);
                free -= claim;
                places = places.saturating_sub(1);
                if may && busy.loading < limits.parallel_loads {
                    busy.loading += 1;
                    loading_keys.insert(key);
                    actions.push(Action::Load(revision));
                }
            }
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        memory: ByteSize(100),
        unload_reserve: ByteSize(20),
        models: Some(4),
        parallel_loads: 2,
        parallel_fetches: 2,
    };

    fn id(name: &str) -> RevisionId {
        format!("{name}@000000000000").parse().expect("a revision")
    }

    fn load(name: &str, arrival: u64, claim: u64) -> WaitingReplica {
        let next_step = NextStep::Load {
            claim: ByteSize(claim),
            gpus: name.starts_with("gpu"),
            key: ModelKey(arrival.to_string()),
            shared: SharedLoad::Absent,
        };
        WaitingReplica { revision: id(name), urgent: false, arrival, next_step }
    }

    fn fetch(name: &str, arrival: u64, uri: &str) -> WaitingReplica {
        WaitingReplica {
            revision: id(name),
            urgent: false,
            arrival,
            next_step: NextStep::Fetch { uri: uri.to_owned() },
        }
    }

    fn prepare(name: &str, arrival: u64) -> WaitingReplica {
        WaitingReplica { revision: id(name), urgent: false, arrival, next_step: NextStep::Prepare }
    }

    fn urgent(waiting: WaitingReplica) -> WaitingReplica {
        WaitingReplica { urgent: true, ..waiting }
    }

    fn holding(held: u64) -> Busy {
        Busy { held: ByteSize(held), ..Busy::default() }
    }

    fn with(models: u32, busy: Busy) -> Busy {
        Busy { models, ..busy }
    }

    fn freeing(held: u64) -> Busy {
        Busy { freeing: true, ..holding(held) }
    }

    fn unloading(held: u64, unloading: u64) -> Busy {
        Busy { unloading: ByteSize(unloading), ..freeing(held) }
    }

    fn names(actions: &[Action]) -> String {
        let name = |action: &Action| match action {
            Action::Prepare(id) => format!("prepare {}", id.deployment()),
            Action::Fetch(id) => format!("fetch {}", id.deployment()),
            Action::Load(id) => format!("load {}", id.deployment()),
            Action::Refuse { revision, need, free } => {
                format!("refuse {} {}>{}", revision.deployment(), need.0, free.0)
            }
        };
        actions.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn order_of_work() {
        let shared = |shared| WaitingReplica {
            next_step: NextStep::Load { claim: ByteSize(90), gpus: false, key: ModelKey("1".to_owned()), shared },
            ..load("t", 1, 0)
        };
        let cases = [
            ("the first assigned goes first", vec![load("b", 2, 10), load("a", 1, 10)], holding(0), "load a, load b"),
            ("the urgent one before it", vec![load("a", 1, 60), urgent(load("b", 2, 60))], freeing(0), "load b"),
            ("two slots", vec![load("a", 1, 1), load("b", 2, 1), load("c", 3, 1)], holding(0), "load a, load b"),
            ("a large one is not starved", vec![load("big", 1, 80), load("s", 2, 30)], freeing(60), ""),
            ("beside it is room", vec![load("big", 1, 80), load("s", 2, 30)], freeing(0), "load big"),
            ("what cannot come to fit is refused", vec![load("big", 1, 80)], holding(60), "refuse big 80>40"),
            (
                "and holds up nobody",
                vec![load("big", 1, 80), load("s", 2, 30)],
                holding(60),
                "refuse big 80>40, load s",
            ),
            ("what is being unloaded is not waited for", vec![load("a", 1, 30)], unloading(90, 20), "load a"),
            ("what drains is", vec![load("a", 1, 30)], freeing(90), ""),
            ("so is what exceeds the reserve", vec![load("a", 1, 31)], unloading(90, 40), ""),
            ("the last place", vec![load("a", 1, 1), load("b", 2, 1)], with(3, holding(0)), "load a"),
            ("above the count it waits, and is not refused", vec![load("a", 1, 1)], with(4, holding(0)), ""),
            ("fewer are allowed than are here", vec![load("a", 1, 1)], with(9, freeing(0)), ""),
            (
                "who waits for memory keeps its place in the count, too",
                vec![load("big", 1, 80), load("s", 2, 10)],
                with(3, freeing(60)),
                "",
            ),
            (
                "GPUs are let go of before others are taken",
                vec![load("gpu", 1, 1), load("s", 2, 1)],
                Busy { freeing_gpus: true, ..freeing(10) },
                "load s",
            ),
            ("what leaves without any is not waited for", vec![load("gpu", 1, 1)], freeing(10), "load gpu"),
            (
                "a loaded model is shared where the count is full",
                vec![shared(SharedLoad::Loaded)],
                with(4, holding(90)),
                "load t",
            ),
            ("a loaded model is shared", vec![shared(SharedLoad::Loaded)], holding(90), "load t"),
            ("a load under way is awaited", vec![shared(SharedLoad::OnItsWay)], holding(90), ""),
            (
                "two preparations at once, beside fetches",
                vec![prepare("a", 1), prepare("b", 2), fetch("c", 3, "x"), prepare("d", 4)],
                Busy { preparing: 1, ..holding(0) },
                "prepare a, fetch c",
            ),
            (
                "one fetch per location, two at once",
                vec![fetch("a", 1, "x"), fetch("b", 2, "x"), fetch("c", 3, "y"), fetch("d", 4, "z")],
                holding(0),
                "fetch a, fetch c",
            ),
        ];
        for (what, waiting, busy, expected) in cases {
            assert_eq!(names(&next(waiting, busy, &LIMITS)), expected, "{what}");
        }
    }
}
