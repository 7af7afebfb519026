//! GPUs, on machines that have none: a library with NVML's interface and two devices stands in for the driver.

use std::{path::Path, process::Command};

use berth_spec::deployment::GpuNeed;
use berth_worker::{
    build_with_servers,
    gpu::Gpus,
    runtime::spi,
    scripted::{self, Listen, Server},
};

use super::{cards::start_on, *};
use crate::{prepare::World, spi::declared};

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

/// The model server that answers is in this process; the program that is started beside it tells what it sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_model_server_that_is_started_sees_the_gpus_of_its_worker() {
    let dir = tempfile::tempdir().expect("a folder");
    let (socket, seen) = (dir.path().join("server.sock"), dir.path().join("seen"));
    let listen = Listen::Unix(socket.clone());
    let server = Server::bind(&listen, scripted::Settings::default()).await.expect("it listens");
    drop(TaskTracker::new().spawn(server.run()));
    let file = seen.display();
    let script = format!("printf %s \"$CUDA_VISIBLE_DEVICES\" > {file}.new && mv {file}.new {file}; exec sleep 600");
    let mut settings = declared(format!("unix:{}", socket.display()).parse().expect("an address"));
    settings.program = Some(spi::Program {
        command: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
        log: dir.path().join("server.log"),
        ..spi::Program::default()
    });
    let mut config = Bench::config(&dir, prepare::Settings::default());
    config.nvml_library = Some(nvml(dir.path()));
    config.runtimes = vec![settings];
    let worker = build_with_servers(config, Arc::default(), &mut Registry::default()).expect("built");
    assert_eq!(worker.info().gpus.len(), 2);
    let end = std::time::Instant::now() + PATIENCE;
    while !seen.exists() {
        assert!(std::time::Instant::now() < end, "the program does not run");
        tokio::task::yield_now().await;
    }
    // Where the tests themselves are to use some GPUs, so is the program.
    let own = std::env::var_os("CUDA_VISIBLE_DEVICES").and_then(|own| own.into_string().ok());
    let expected = own.unwrap_or_else(|| format!("{FIRST},{SECOND}"));
    assert_eq!(fs_err::read_to_string(&seen).expect("written"), expected);
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
    let mut waiting = vec![&ids[0], &ids[1], &ids[3]];
    while !waiting.is_empty() {
        let report = bench.word().await.expect("the worker lives");
        let ready = |id: &RevisionId| {
            report.replicas.iter().any(|(named, is)| named == id && is.as_ref().is_some_and(Residency::is_ready))
        };
        waiting.retain(|id| !ready(id));
    }
    let (first, second) = (cards.devices(&ids[0]), cards.devices(&ids[1]));
    let mut given = [first.clone(), second.clone()].concat();
    given.sort();
    assert_eq!(given, [FIRST, SECOND]);
    assert!(cards.devices(&ids[3]).is_empty(), "it asked for none");
    // The plan would not: it counts them too.
    bench.assign(vec![a, b.clone(), none, c.clone()]).await;
    bench
        .until(
            &ids[2],
            |r| matches!(r, Some(Residency::Failed(why)) if why.message.contains("0 of the 2 that suit are free")),
        )
        .await;
    bench.assign(vec![b, c]).await;
    bench.until(&ids[2], |r| r.is_some_and(Residency::is_ready)).await;
    assert_eq!(cards.devices(&ids[2]), first, "the one that is free");
}
