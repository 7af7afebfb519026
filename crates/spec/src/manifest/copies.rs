//! Number of replicas, in all and in each region: the rules that concern more than one field.

use std::collections::BTreeMap;

use super::{
    raw::{RawRegion, RawReplicas, ReplicaRange},
    resolve::Problems,
    scalar::{Label, Problem, Whole},
};
use crate::Replicas;

/// The most that a deployment has in all its regions together, as in one.
const MAX_REPLICAS: u32 = 1000;

/// The number of replicas in all, and per region; the latter is empty where none is given.
pub(super) fn replicas(raw: &RawReplicas, problems: &mut Problems) -> (Replicas, BTreeMap<String, Replicas>) {
    match raw {
        RawReplicas::Exactly(n) => (Replicas { min: n.get(), max: n.get() }, BTreeMap::new()),
        RawReplicas::Between(range) if range.regions.is_empty() => (in_all(range, problems), BTreeMap::new()),
        RawReplicas::Between(range) => by_region(range, problems),
    }
}

fn in_all(range: &ReplicaRange, problems: &mut Problems) -> Replicas {
    let Some(min) = range.min.map(Whole::get) else {
        let problem = Problem::new("the field \"min\" is missing", "add `min: 0` for on demand, or `regions`");
        problems.push(("spec.replicas.min", problem));
        return Replicas { min: 0, max: 1 };
    };
    let max = range.max.map_or(min.max(1), Whole::get);
    if max < min {
        problems.push(("spec.replicas.max", upside_down(min, max)));
    }
    Replicas { min, max }
}

fn upside_down(min: u32, max: u32) -> Problem {
    let remedy = format!("set max to at least {min}, or min to at most {max}");
    Problem::new(format!("max ({max}) is less than min ({min})"), remedy)
}

fn by_region(range: &ReplicaRange, problems: &mut Problems) -> (Replicas, BTreeMap<String, Replicas>) {
    let mut regions = BTreeMap::new();
    for (region, raw) in &range.regions {
        if let Err(problem) = Label::read(region) {
            problems.push(("spec.replicas.regions", problem));
        } else if region.is_empty() {
            let problem = Problem::new("a region has no name", "write the `region` label of its workers");
            problems.push(("spec.replicas.regions", problem));
        }
        let replicas = match raw {
            RawRegion::Exactly(n) => Replicas { min: n.get(), max: n.get() },
            RawRegion::Between(range) => {
                let min = range.min.get();
                Replicas { min, max: range.max.map_or(min.max(1), Whole::get) }
            }
        };
        if replicas.max < replicas.min {
            let Problem { message, remedy } = upside_down(replicas.min, replicas.max);
            problems.push(("spec.replicas.regions", Problem::new(format!("in {region} {message}"), remedy)));
        }
        regions.insert(region.clone(), replicas);
    }
    let total = |of: fn(&Replicas) -> u32| regions.values().map(of).fold(0_u32, u32::saturating_add);
    let sums = Replicas { min: total(|each| each.min), max: total(|each| each.max) };
    if sums.max > MAX_REPLICAS {
        let problem =
            Problem::new(format!("{} replicas in all regions", sums.max), format!("keep at most {MAX_REPLICAS}"));
        problems.push(("spec.replicas.regions", problem));
    }
    for (path, word, said, sum) in
        [("spec.replicas.min", "min", range.min, sums.min), ("spec.replicas.max", "max", range.max, sums.max)]
    {
        if let Some(said) = said.map(Whole::get).filter(|said| *said != sum) {
            let message = format!("{word} is {said}, and the regions have {sum} together");
            let remedy = format!("leave {word} out, or change the regions so that they add up to {said}");
            problems.push((path, Problem::new(message, remedy)));
        }
    }
    (sums, regions)
}
