//! Graphs whose runs may last for ever, and graphs that name files which are not theirs.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use berth_spec::{Datatype, FailureCategory, InferError, InferRequest};
use berth_worker::{
    artifacts::Source,
    runtime::{LoadRequest, Loaded, Runtime},
};

use super::{engine, load, request, tensor};

/// A run that would last for days.
const FOR_EVER: i64 = 9_000_000_000_000;

fn turns(count: i64) -> InferRequest {
    let inputs = vec![tensor("n", Datatype::Int64, &[1], count.to_le_bytes().to_vec())];
    InferRequest { inputs, ..InferRequest::default() }
}

fn note(loaded: &Loaded) -> &str {
    loaded.note.as_deref().unwrap_or_default()
}

#[test]
fn what_depends_on_values_runs_aside() {
    let Some(engine) = engine() else { return };
    for (name, operator) in [("turns", "Loop"), ("range", "Range")] {
        let loaded = load(engine, name).expect(name);
        assert!(note(&loaded).contains("threads of its own") && note(&loaded).contains(operator), "{}", note(&loaded));
    }
    assert!(!note(&load(engine, "zeros").expect("it loads")).contains("threads of its own"), "its shape says it all");
}

#[tokio::test]
async fn a_run_ends_at_its_deadline_and_holds_up_no_thread_that_waits() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "turns").expect("it loads");
    loaded.model.validate(&berth_spec::deployment::Warmup::Generated).expect("no turns are quick");
    for _ in 0..8 {
        let answer =
            loaded.model.infer(turns(3), Instant::now() + Duration::from_secs(120)).await.expect("three turns");
        assert_eq!(super::numbers(&answer[0]), [3.0]);
    }
    let begun = Instant::now();
    let long = Duration::from_millis(300);
    let runs = (0..16).map(|_| loaded.model.infer(turns(FOR_EVER), begun + long));
    let ticks = async {
        let mut ticks = 0;
        while begun.elapsed() < long {
            tokio::time::sleep(Duration::from_millis(1)).await;
            ticks += 1;
        }
        ticks
    };
    let (answers, ticks) = tokio::join!(futures::future::join_all(runs), ticks);
    assert!(answers.iter().all(|answer| matches!(answer, Err(InferError::TimedOut(_)))), "{answers:?}");
    assert!(ticks > 20, "the thread of the connection went on: {ticks}");
    let answer =
        loaded.model.infer(turns(2), Instant::now() + Duration::from_secs(120)).await.expect("threads are free");
    assert_eq!(super::numbers(&answer[0]), [2.0]);
}

#[tokio::test]
async fn a_run_that_nobody_waits_for_ends() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "turns").expect("it loads");
    let far = Instant::now() + Duration::from_secs(3600);
    for _ in 0..4 {
        let run = loaded.model.infer(turns(FOR_EVER), far);
        assert!(tokio::time::timeout(Duration::from_millis(100), run).await.is_err(), "it lasts");
    }
    let run = loaded.model.infer(turns(1), far);
    let answer = tokio::time::timeout(Duration::from_secs(60), run).await.expect("its threads are free again");
    assert_eq!(super::numbers(&answer.expect("it runs")[0]), [1.0]);
}

#[tokio::test]
async fn a_model_that_is_ended_ends_its_runs() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "turns").expect("it loads");
    let model = std::sync::Arc::clone(&loaded.model);
    let run = loaded.model.infer(turns(FOR_EVER), Instant::now() + Duration::from_secs(3600));
    let end = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        model.end();
    };
    let (answer, ()) =
        tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(run, end) }).await.expect("ends");
    assert!(matches!(&answer, Err(InferError::Model(message)) if message.contains("unloaded")), "{answer:?}");
    let answer = loaded.model.infer(turns(1), Instant::now() + Duration::from_secs(60)).await;
    assert!(matches!(answer, Err(InferError::Model(_))), "{answer:?}");
}

fn folder(name: &str, at: &Path) -> LoadRequest {
    let request = request(name);
    let Source::File(file) = &request.artifact else { panic!("a file") };
    fs_err::copy(file, at.join("model.onnx")).expect("a copy");
    LoadRequest { artifact: Source::Folder(at.to_owned()), ..request }
}

#[test]
fn a_graph_reads_no_file_but_its_own() {
    let Some(engine) = engine() else { return };
    let place = tempfile::tempdir().expect("a folder");
    let (own, secret) = (place.path().join("own"), place.path().join("weights.bin"));
    fs_err::create_dir(&own).expect("a folder");
    fs_err::write(&secret, [0; 12]).expect("a file");
    let refused = |request: &LoadRequest| {
        let error = engine.load(request).map(drop).expect_err("it is not to be read");
        assert_eq!(error.category, FailureCategory::InvalidModel);
        error.message
    };
    assert!(refused(&request("beside")).contains("weights are in another file"));
    assert!(refused(&folder("above", &own)).contains("outside of its folder"));
    assert!(refused(&folder("beside", &own)).contains("does not have"));
    std::os::unix::fs::symlink(&secret, own.join("weights.bin")).expect("a link");
    assert!(refused(&folder("beside", &own)).contains("outside of its folder"));
    fs_err::remove_file(own.join("weights.bin")).expect("gone");
    fs_err::write(own.join("weights.bin"), [0; 12]).expect("a file");
    engine.load(&folder("beside", &own)).map(drop).expect("its own weights");
}
