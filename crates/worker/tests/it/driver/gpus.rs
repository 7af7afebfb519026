//! GPUs, on machines that have none: a library with NVML's interface and two devices stands in for the driver.

use std::{path::Path, process::Command};

use berth_spec::deployment::GpuNeed;
use berth_worker::gpu::Gpus;

use super::{cards::start_on, *};
use crate::prepare::World;

const FIRST: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
const SECOND: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000000";

/// Compiles the library into a folder.
fn nvml(dir: &Path) -> std::path::PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvml.c");
    let library = dir.join("libnvidia-ml.so.1");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.expect("a C compiler (apt-get install gcc)").success());
    library
}

#[test]
fn devices_are_found_and_looked_at() {
    let dir = tempfile::tempdir().expect("a folder");
    let gpus = Gpus::find(Some(&nvml(dir.path()))).expect("it works");
    let found: Vec<_> = gpus.devices().iter().map(|gpu| (gpu.id.as_str(), gpu.kind.as_str(), gpu.memory)).collect();
    assert_eq!(found, [(FIRST, "nvidia-l4", ByteSize::gib(24)), (SECOND, "nvidia-l4", ByteSize::gib(24))]);
    let load: Vec<_> = gpus.load().iter().map(|gpu| (gpu.memory_used, gpu.utilization_percent)).collect();
    assert_eq!(load, [(ByteSize::gib(3), 40), (ByteSize::gib(1), 0)]);
}

#[test]
fn none_is_fine_unless_the_library_was_named() {
    let error = Gpus::find(Some(Path::new("/nowhere/libnvidia-ml.so.1"))).err().expect("it was named");
    assert!(error.to_string().contains("--nvml-library"), "{error}");
}

#[tokio::test]
async fn each_replica_gets_devices_of_its_own_and_one_too_many_is_refused() {
    let world = World::new();
    let dir = tempfile::tempdir().expect("a folder");
    let library = nvml(dir.path());
    let (mut bench, cards) = start_on(dir, &world, Some(library));
    let with_gpu = |mut placed: Placed| {
        placed.gpu = Some(GpuNeed { count: 1, kind: None, memory: Some(ByteSize::gib(16)) });
        placed
    };
    let [a, b, c, none] = ["a", "b", "c", "none"].map(|name| bench.carded(&world, name, 1, &["a==1.0.0"]));
    let ids = [&a, &b, &c, &none].map(|placed| placed.revision.id.clone());
    let [a, b, c] = [a, b, c].map(with_gpu);
    bench.assign(vec![a.clone(), b.clone(), none.clone()]).await;
    for at in [0, 1, 3] {
        bench.until(&ids[at], |r| r.is_some_and(Residency::is_ready)).await;
    }
    let mut given = cards.devices();
    given.sort();
    assert_eq!(given, [vec![], vec![FIRST.to_owned()], vec![SECOND.to_owned()]]);
    // The plan would not: it counts them too.
    bench.assign(vec![a, b.clone(), none, c.clone()]).await;
    bench.until(&ids[2], |r| matches!(r, Some(Residency::Failed(why)) if why.message.contains("GPUs that suit"))).await;
    bench.assign(vec![b, c]).await;
    bench.until(&ids[2], |r| r.is_some_and(Residency::is_ready)).await;
    assert_eq!(
        cards.devices().last(),
        cards.devices().iter().find(|devices| !devices.is_empty()),
        "the one that is free"
    );
}
