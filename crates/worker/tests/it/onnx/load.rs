//! Loading: signatures, notes, errors, memory.

use std::{
    io::Write as _,
    sync::{Arc, mpsc},
    thread,
};

use berth_spec::{
    ByteSize, Datatype, Digest, FailureCategory, Revision, Serving, Signature, TensorSpec, deployment::Warmup,
};
use berth_worker::{
    artifacts::Source,
    runtime::{LoadError, LoadRequest, Loaded, Runtime, Validation, onnx::OnnxEngine},
};

use super::{engine, load, request};
use crate::spi::PATIENCE;

fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

fn changed(name: &str, change: impl FnOnce(&mut Revision)) -> LoadRequest {
    let mut request = request(name);
    change(Arc::make_mut(&mut request.revision));
    request
}

fn refused(result: Result<Loaded, LoadError>) -> LoadError {
    result.map(|_| ()).expect_err("it is not loadable")
}

#[test]
fn a_model_knows_its_signature_and_its_memory() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "mlp").expect("it loads");
    let signature = loaded.model.signature();
    assert_eq!(signature.inputs, [spec("x", Datatype::Fp32, &[-1, 4])]);
    assert_eq!(signature.outputs, [spec("label", Datatype::Int64, &[-1]), spec("p", Datatype::Fp32, &[-1, 3])]);
    assert!(loaded.memory >= ByteSize(64 << 10) && loaded.memory < ByteSize::mib(64), "{}", loaded.memory);
    assert_eq!((loaded.note, loaded.model.batching().max_rows), (None, 32));
    assert_eq!(loaded.model.validate(&Warmup::Generated), Ok(Validation::Passed));
}

#[test]
fn batching_is_only_for_models_whose_rows_are_independent() {
    let Some(engine) = engine() else { return };
    let cases = [
        ("fixed", "the first dimension of \"x\" [2, 4] is not variable"),
        ("mixes", "output \"y\" of a row depends on the other rows of its batch"),
    ];
    for (name, want) in cases {
        let loaded = load(engine, name).expect(name);
        assert_eq!(loaded.model.batching().max_rows, 1, "{name}");
        assert!(loaded.note.as_deref().is_some_and(|note| note.contains(want)), "{name}: {:?}", loaded.note);
    }
    for name in ["add", "strings", "flip", "half", "bfloat", "lookup", "wide"] {
        let loaded = load(engine, name).expect(name);
        assert_eq!((loaded.note, loaded.model.batching().max_rows), (None, 32), "{name}");
    }
}

#[test]
fn what_cannot_be_served_says_what_to_do() {
    let Some(engine) = engine() else { return };
    let error = refused(load(engine, "zipmap"));
    assert_eq!(error.category, FailureCategory::InvalidModel);
    assert!(error.message.contains("options={\"zipmap\": False}"), "{error}");

    let mut broken = request("add");
    let directory = tempfile::tempdir().expect("a folder");
    let graph = directory.path().join("broken.onnx");
    broken.artifact = Source::File(graph.clone());
    fs_err::write(&graph, "this is no protobuf").expect("a file");
    let error = refused(engine.load(&broken));
    assert_eq!(error.category, FailureCategory::InvalidModel);
    assert!(!error.message.contains(&*directory.path().to_string_lossy()), "{error}");

    let error =
        refused(engine.load(&changed("add", |revision| revision.runtime.execution_provider = "tpu".to_owned())));
    assert_eq!(error.category, FailureCategory::Runtime);
    assert!(error.message.contains("\"tpu\"") && error.message.contains("cpu"), "{error}");
}

#[test]
fn a_load_that_nobody_waits_for_ends_and_leaves_nothing() {
    let Some(engine) = engine() else { return };
    let given_up = request("mlp");
    given_up.cancel.cancel();
    let error = refused(engine.load(&given_up));
    assert_eq!((error.category, &*error.message), (FailureCategory::Internal, "the load was given up"));
    load(engine, "mlp").map(drop).expect("the next one is another load");
}

/// Loads on a thread of its own, which nobody waits for longer than [`PATIENCE`].
fn loading(engine: &'static OnnxEngine, request: LoadRequest) -> mpsc::Receiver<Option<LoadError>> {
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(engine.load(&request).err()));
    end
}

/// The library reads the graph of the first load from a pipe: that is a step which it does not end before the pipe is closed. Where a
/// library reads files otherwise, this fails and leaves its threads behind.
#[test]
fn a_load_behind_one_that_is_stuck_ends_when_nobody_waits_for_it() {
    let Some(engine) = engine() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let pipe = directory.path().join("stuck.onnx");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let mut writer = fs_err::OpenOptions::new().read(true).write(true).open(&pipe).expect("it opens");
    let stuck = LoadRequest { artifact: Source::File(pipe), digest: Digest([7; 32]), ..request("add") };
    let waiting = request("mlp");
    let (give_up, no_longer_wanted) = (stuck.cancel.clone(), waiting.cancel.clone());
    // If this test fails, the other ones overtake the load.
    let _given_up = give_up.clone().drop_guard();
    let first = loading(engine, stuck);
    // The beginning of a text of 1 MiB. More than a pipe holds is written once the library reads.
    let mut begun = vec![0x12, 0x80, 0x80, 0x40];
    begun.resize(128 << 10, b'a');
    let (written, taken) = mpsc::channel();
    thread::spawn(move || {
        writer.write_all(&begun).expect("it is read");
        written.send(writer)
    });
    let writer = taken.recv_timeout(PATIENCE).expect("the library reads the pipe");
    let second = loading(engine, waiting);
    no_longer_wanted.cancel();
    let error = second.recv_timeout(PATIENCE).expect("it ends").expect("it was given up");
    assert_eq!(error.message, "the load was given up");
    give_up.cancel();
    assert!(matches!(first.try_recv(), Err(mpsc::TryRecvError::Empty)), "it waits for the rest of its text");
    drop(writer);
    let error = first.recv_timeout(PATIENCE).expect("it ends").expect("it was given up");
    assert_eq!(error.message, "the load was given up");
    load(engine, "mlp").map(drop).expect("nobody is in the way");
}

#[test]
fn a_declared_signature_must_agree() {
    let Some(engine) = engine() else { return };
    let declared = |inputs: Vec<TensorSpec>| {
        let signature = Signature { inputs, ..Signature::default() };
        engine.load(&changed("wide", |revision| revision.signature = Some(Box::new(signature))))
    };
    let loaded = declared(vec![spec("x", Datatype::Fp32, &[-1, 5])]).expect("it agrees");
    assert_eq!(loaded.model.signature().inputs[0].shape, [-1, 5]);
    for (inputs, want) in [
        (vec![spec("x", Datatype::Fp64, &[-1, 5])], "declared as FP64 [-1, 5], and the artifact has FP32 [-1, -1]"),
        (vec![spec("x", Datatype::Fp32, &[-1])], "declared as FP32 [-1]"),
        (vec![spec("y", Datatype::Fp32, &[-1, 5])], "\"y\" is declared, and the artifact has only [\"x\"]"),
    ] {
        let error = refused(declared(inputs));
        assert!(error.category == FailureCategory::InvalidModel && error.message.contains(want), "{error}");
    }
}

#[test]
fn serving_changes_without_a_load() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "mlp").expect("it loads");
    let mut serving = Serving::clone(&request("mlp").serving);
    serving.batching.max_rows = 7;
    loaded.model.set_serving(&serving);
    assert_eq!(loaded.model.batching().max_rows, 7);
}

#[test]
fn a_validation_that_fails_says_why() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "lookup").expect("it loads");
    assert_eq!(loaded.model.validate(&Warmup::Off), Ok(Validation::NotRun));
    let given = |index: i64| {
        let json = format!(r#"{{"inputs":[{{"name":"i","shape":[1],"datatype":"INT64","data":[{index}]}}]}}"#);
        loaded.model.validate(&Warmup::Given(json.into_boxed_str()))
    };
    assert_eq!(given(2), Ok(Validation::Passed));
    let error = given(9).expect_err("there are three rows");
    assert!(error.category == FailureCategory::Validation && error.message.contains("out of data bounds"), "{error}");
    let json = Warmup::Given("{}".into());
    assert_eq!(loaded.model.validate(&json).expect_err("no inputs").category, FailureCategory::Validation);
}

#[test]
fn a_made_up_request_that_is_refused_keeps_a_model_from_nothing_unless_proof_is_required() {
    let Some(engine) = engine() else { return };
    let loaded = load(engine, "numbers").expect("it loads");
    let validation = loaded.model.validate(&Warmup::Generated).expect("an empty text is no number: it may serve");
    assert!(matches!(&validation, Validation::Inconclusive(why) if why.contains("spec.warmup")), "{validation:?}");
    let error = loaded.model.validate(&Warmup::Required).expect_err("no proof");
    assert!(error.category == FailureCategory::Validation && error.message.contains("spec.warmup"), "{error}");
}
