//! Aliases: their routes, and the state of their targets.

use std::{collections::BTreeMap, sync::Arc};

use berth_plan::{Policy, World, fixture::deployment, report};
use berth_spec::{Alias, DeploymentName, Generation, Origin, Time, routes::Stickiness};

fn name(text: &str) -> DeploymentName {
    DeploymentName::new(text).expect("a name")
}

fn alias(targets: &[(&str, u32)]) -> Alias {
    Alias {
        name: name("iris"),
        generation: Generation(1),
        labels: BTreeMap::new(),
        origin: Origin::API,
        created: Time::ZERO,
        targets: targets.iter().map(|(target, weight)| (name(target), *weight)).collect(),
        sticky: Stickiness::Client,
    }
}

#[test]
fn gateways_hear_of_every_alias_and_not_of_targets_without_a_weight() {
    let mut world = World::new(Policy::default());
    world.set_alias(Arc::new(alias(&[("v1", 90), ("v2", 0), ("v3", 10)])));
    let routes = world.whole_routes(Time(1));
    let [route] = routes.aliases.as_slice() else { panic!("{routes:?}") };
    assert_eq!((&route.name, &route.sticky), (&name("iris"), &Stickiness::Client));
    assert_eq!(route.targets, [(name("v1"), 90), (name("v3"), 10)]);
    assert_eq!((world.aliases_of(&name("v2")), world.aliases_of(&name("v4"))), (vec![name("iris")], vec![]));
    world.remove_alias(&name("iris"));
    assert!(world.aliases_of(&name("v1")).is_empty());
    assert!(world.whole_routes(Time(1)).aliases.is_empty());
}

#[test]
fn the_share_of_a_target_that_does_not_exist_goes_to_the_others() {
    let mut world = World::new(Policy::default());
    world.set_deployment(Arc::new(deployment("v1")));
    let alias = alias(&[("v1", 30), ("v2", 70)]);
    let states = report::alias_targets(&world, &alias, Time(1));
    let told: Vec<_> = states.iter().map(|state| (state.weight, state.share, state.phase.is_some())).collect();
    assert_eq!(told, [(30, 100, true), (70, 0, false)]);
    world.set_deployment(Arc::new(deployment("v2")));
    let shares: Vec<_> = report::alias_targets(&world, &alias, Time(1)).iter().map(|state| state.share).collect();
    assert_eq!(shares, [30, 70]);
}
