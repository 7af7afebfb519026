//! One suite for every runtime: the scripted one, the built-in ONNX engine, Python model cards, and model servers.

use std::sync::Arc;

use berth_spec::{ByteSize, Digest, ModelFormat, deployment::Warmup};
use berth_worker::{
    artifacts::{Artifact, Source},
    runtime::{
        LoadError, LoadRequest, Runtime,
        fake::{FakeRuntime, Script},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    onnx,
    python::card::{self, Card, DOUBLES},
    spi,
};

/// The suite's needs of a runtime.
struct Subject<'a> {
    runtime: &'a dyn Runtime,
    /// A request that loads.
    good: &'a dyn Fn() -> LoadRequest,
    /// A request that cannot, whatever becomes free.
    broken: LoadRequest,
}

/// Checks what holds for every runtime.
fn conforms(subject: &Subject<'_>) {
    let Subject { runtime, good, broken } = subject;
    let info = runtime.info();
    let request = good();
    assert!(!info.name.is_empty() && info.takes(&request.revision.format), "{info:?}");
    assert!(!info.takes(&"no-such-format".parse().expect("a format")), "{info:?}");

    let loaded = runtime.load(&request).expect("it loads");
    loaded.model.validate(&Warmup::Generated).expect("it answers its validation inference");
    assert!(loaded.model.known_signature().is_none_or(|known| known == *loaded.model.signature()));
    loaded.model.set_serving(&request.serving);
    assert_eq!(loaded.model.health().lost, None, "it is there");

    let second = runtime.load(&good()).expect("beside the first");
    let gone = Arc::downgrade(&second.model);
    second.model.end();
    drop(second);
    assert!(gone.upgrade().is_none(), "dropping the last reference unloads it");
    loaded.model.validate(&Warmup::Generated).expect("the other one is untouched");

    let LoadError { category, message, .. } = runtime.load(broken).err().expect("it cannot be loaded");
    assert!(!category.transient(), "{category:?}: trying again would not help");
    assert!(!message.is_empty() && !message.contains("/tmp/"), "says what is wrong, without paths: {message}");

    let cancelled = good();
    cancelled.cancel.cancel();
    let result = runtime.load(&cancelled);
    assert!(result.is_err() || !runtime.is_interruptible(), "a load that nobody wants ends");
}

#[test]
fn the_scripted_runtime_conforms() {
    let runtime = FakeRuntime::default();
    let failure = LoadError::new(berth_spec::FailureCategory::InvalidModel, "no model");
    runtime.script("file:///broken.onnx", Script { load: Some(failure), ..Script::default() });
    let mut broken = onnx::request("add");
    Arc::make_mut(&mut broken.revision).uri = "file:///broken.onnx".to_owned();
    conforms(&Subject { runtime: &runtime, good: &|| onnx::request("add"), broken });
}

#[test]
fn the_onnx_engine_conforms() {
    let Some(engine) = onnx::engine() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let graph = folder.path().join("broken.onnx");
    fs_err::write(&graph, "this is no protobuf").expect("a file");
    let broken = LoadRequest { artifact: Source::File(graph), digest: Digest([9; 32]), ..onnx::request("add") };
    conforms(&Subject { runtime: engine, good: &|| onnx::request("add"), broken });
}

#[test]
fn the_onnx_engine_takes_folders() {
    let Some(engine) = onnx::engine() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let request = onnx::request("add");
    fs_err::copy(request.artifact.path().expect("a file"), folder.path().join("net.onnx")).expect("copied");
    let whole = LoadRequest { artifact: Source::Folder(folder.path().to_owned()), ..onnx::request("add") };
    assert!(engine.load(&whole).is_ok(), "the only graph in it");
    fs_err::write(folder.path().join("other.onnx"), "graph").expect("written");
    let refused = engine.load(&whole).err().expect("which of two?");
    assert!(refused.message.contains("2 .onnx files"), "{refused}");
    let revision = Arc::clone(&whole.revision);
    let opaque = LoadRequest::new(Arc::clone(&revision), Artifact::opaque(&revision), Arc::clone(&whole.serving));
    assert!(engine.load(&opaque).is_err(), "it reads files");
    assert_eq!(Artifact::opaque(&revision).size, ByteSize::ZERO, "nothing is fetched for it");
    assert_eq!(revision.format, ModelFormat::ONNX);
}

#[test]
fn model_cards_conform() {
    let folder = tempfile::tempdir().expect("a folder");
    let (runtime, _registry) = card::runtime(folder.path());
    let good = Card::new(DOUBLES);
    let requests = folder.path().join("good");
    let other = folder.path().join("broken");
    let broken = Card::new(
        "def load(path):\n    raise ValueError('no weights')\ndef pre(r, c): return r\ndef post(o, c): return o\n",
    );
    let broken = broken.request(&other, CancellationToken::new());
    conforms(&Subject { runtime: &runtime, good: &|| good.request(&requests, CancellationToken::new()), broken });
}

#[test]
fn model_servers_conform() {
    let bench = spi::Bench::start(berth_worker::scripted::Settings::default());
    let broken = spi::request("broken", "REFUSE_no model");
    conforms(&Subject { runtime: &bench.runtime, good: &|| spi::request("good", "SIZE_1000"), broken });
}
