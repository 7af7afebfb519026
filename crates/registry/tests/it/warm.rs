//! What has not changed is not looked at again.

use crate::fixture::{World, git, told};

#[test]
fn only_files_that_changed_are_parsed_again() {
    let world = World::new();
    for n in 0..20 {
        let id = format!("d{n}");
        world.write(&format!("models/staging/{id}.yaml"), &world.manifest(&id, "v1.2.3"));
    }
    assert_eq!(world.validate().counts.parsed, 23, "manifests, a worker and a card");
    assert_eq!(world.validate().counts.parsed, 0);
    world.write("models/staging/d7.yaml", &world.manifest("d7", "v1.2.3").replace("priority: 80", "priority: 70"));
    assert_eq!(world.validate().counts.parsed, 1);
    world.restart();
    assert_eq!(world.validate().counts.parsed, 23);
}

/// The figure for docs/registry.md: `cargo test -p berth-registry --test it -- --ignored --nocapture thousand`.
#[test]
#[ignore = "measures"]
fn a_thousand_manifests() {
    let world = World::new();
    for n in 0..1_000 {
        let id = format!("d{n}");
        world.write(&format!("models/production/{id}.yaml"), &world.manifest(&id, &format!("v1.2.{}", n % 100)));
    }
    for n in 0..100 {
        let card = world.card().replace("1.2.3", &format!("1.2.{n}"));
        world.release(&format!("v1.2.{n}"), &card);
    }
    git(&world.model(), &["gc", "-q"]);
    for name in ["cold", "warm", "after a restart"] {
        if name == "after a restart" {
            world.restart();
        }
        let commit = world.commit(name);
        let start = std::time::Instant::now();
        let report = world.validate_commit(commit);
        println!("{name}: {:?}, parsed {}", start.elapsed(), report.counts.parsed);
        assert!(report.is_accepted(), "{}", told(&report));
    }
}
