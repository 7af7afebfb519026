//! Runtimes of other processes, against the scripted one.

mod calls;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{
    ByteSize, FailureCategory, Isolation, ModelFormat, OpaqueModel, Revision, RevisionId, Serving,
    deployment::Concurrency,
};
use berth_worker::{
    artifacts::Artifact,
    runtime::{
        LoadRequest, Runtime as _,
        metrics::Families,
        spi::{Settings, SpiRuntime, address::Address},
    },
    scripted::{self, Counts, Listen, Server},
};
use prometheus_client::registry::Registry;

use crate::onnx;

/// Longer than anything here may take, also on a machine that compiles beside the tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A scripted server in this process, and the runtime that speaks to it.
pub(crate) struct Bench {
    pub(crate) runtime: SpiRuntime,
    pub(crate) counts: Counts,
    /// Serves the server's connections, and stands for the gateway's threads.
    pub(crate) tokio: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub(crate) fn start(settings: scripted::Settings) -> Self {
        Self::declared(settings, |settings| settings)
    }

    /// The same, with the runtime declared otherwise.
    pub(crate) fn declared(settings: scripted::Settings, otherwise: impl FnOnce(Settings) -> Settings) -> Self {
        let tokio = tokio::runtime::Runtime::new().expect("threads");
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("runtime.sock");
        let server = tokio.block_on(Server::bind(&Listen::Unix(socket.clone()), settings)).expect("it listens");
        let counts = server.counts();
        drop(tokio.spawn(server.run()));
        let address = format!("unix:{}", socket.display()).parse().expect("an address");
        let runtime = SpiRuntime::open(otherwise(declared(address)), Families::register(&mut Registry::default()));
        Self { runtime: runtime.expect("it is ready"), counts, tokio, _folder: folder }
    }
}

pub(crate) fn declared(address: Address) -> Settings {
    Settings {
        formats: vec![berth_spec::FormatSupport { name: "scripted".to_owned(), versions: vec![] }],
        start: PATIENCE,
        ..Settings::new("scripted", address)
    }
}

/// A request to load `name` from `path`, in the words of the scripted server.
pub(crate) fn request(name: &str, path: &str) -> LoadRequest {
    let model = OpaqueModel { kind: "T".to_owned(), path: path.to_owned(), key: String::new() };
    let base = onnx::request("add");
    let revision = Revision {
        id: RevisionId::of(name.parse().expect("a name"), path.as_bytes()),
        format: "scripted".parse().expect("a format"),
        uri: model.to_string(),
        digest: None,
        ..Revision::clone(&base.revision)
    };
    let artifact = Artifact::opaque(&revision);
    LoadRequest::new(Arc::new(revision), artifact, base.serving)
}

#[test]
fn its_limits_are_those_that_it_says() {
    let bench = Bench::start(scripted::Settings { capacity: 123 << 20, starting: 2, ..scripted::Settings::default() });
    let info = bench.runtime.info();
    assert_eq!((info.memory, bench.runtime.parallel_loads()), (Some(ByteSize::mib(123)), 6));
    assert!(info.takes(&"scripted".parse().expect("a format")) && !info.takes(&ModelFormat::ONNX));
}

#[test]
fn a_model_that_should_be_isolated_is_refused() {
    let bench = Bench::start(scripted::Settings::default());
    let offer = bench.runtime.info().isolation.expect("an offer");
    assert!(offer.most == Isolation::None && offer.lacks.contains("all its models in one process"), "{offer:?}");
    for level in Isolation::ALL {
        let mut asked = request("m", "p");
        Arc::make_mut(&mut asked.revision).runtime.isolation = Some(level);
        let loaded = bench.runtime.load(&asked).map(drop);
        match level {
            Isolation::None => assert_eq!(loaded, Ok(())),
            _ => {
                let error = loaded.expect_err("it cannot be given");
                assert!(error.message.contains(&format!("runtime.isolation \"{level}\"")), "{error}");
                assert_eq!(error.category, FailureCategory::Runtime);
            }
        }
    }
}

#[test]
fn the_bound_on_requests_is_the_deployments() {
    let bench = Bench::start(scripted::Settings::default());
    let mut asked = request("m", "p");
    let bounded = |max| Serving { concurrency: Concurrency { max, queue: 0 }, ..Serving::clone(&asked.serving) };
    let (three, none) = (bounded(Some(3)), bounded(None));
    asked.serving = Arc::new(three);
    let model = bench.runtime.load(&asked).expect("loaded").model;
    assert_eq!(model.bound(), Some(3));
    model.set_serving(&none);
    assert_eq!(model.bound(), None);
}

#[test]
fn a_runtime_that_is_not_there_is_named() {
    let open = |alternative: Option<Address>| {
        let address = "unix:/nonexistent/sock".parse().expect("one");
        let settings = Settings { start: Duration::from_millis(100), alternative, ..declared(address) };
        SpiRuntime::open(settings, Families::register(&mut Registry::default())).err().expect("not ready").to_string()
    };
    let error = open(None);
    assert!(error.contains("runtime scripted at unix:/nonexistent/sock was not ready"), "{error}");
    let error = open(Some("unix:/nonexistent/b".parse().expect("one")));
    assert!(error.contains("unix:/nonexistent/sock or unix:/nonexistent/b was not ready"), "{error}");
}

#[test]
fn sizes_come_from_the_runtime() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("myModel", "SIZE_5000000")).expect("it loads");
    assert_eq!((loaded.memory, loaded.measured), (ByteSize(5_000_000), true));
    assert_eq!(bench.counts.loaded(), ["myModel"], "under the deployment's own name");
}

/// Tried again and again, with a larger claim each time, it would keep a worker's memory from others for minutes.
#[test]
fn a_model_that_is_larger_than_the_whole_runtime_is_refused_for_good() {
    let bench = Bench::start(scripted::Settings::default());
    let refused = bench.runtime.load(&request("huge", "SIZE_2000000000")).err().expect("it is too large");
    assert_eq!(refused.category, FailureCategory::Runtime, "{refused}");
    assert!(!refused.category.transient());
    assert!(refused.message.contains("more than the 1GiB of runtime scripted"), "{refused}");
    assert_eq!(refused.needs, Some(ByteSize(2_000_000_000)), "and others like it are not tried");
}

#[test]
fn a_load_that_is_given_up_is_unloaded() {
    let bench = Bench::start(scripted::Settings::default());
    let hangs = request("slow", "HANG");
    let cancel = hangs.cancel.clone();
    let begun = bench.counts.clone();
    let giving_up = std::thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        while begun.loads() == 0 && Instant::now() < end {
            std::thread::yield_now();
        }
        cancel.cancel();
    });
    assert!(bench.runtime.load(&hangs).is_err());
    giving_up.join().expect("it gave up");
    assert!(bench.runtime.load(&request("slow", "SIZE_1")).is_ok(), "its name is free again");
}

#[test]
fn a_load_that_takes_too_long_has_failed() {
    let bench = Bench::start(scripted::Settings { load_timeout_ms: 100, ..scripted::Settings::default() });
    let error = bench.runtime.load(&request("slow", "HANG")).err().expect("too long");
    assert_eq!(error.category, FailureCategory::Timeout, "{error}");
}

#[test]
fn loads_at_once_are_bounded_by_the_runtime() {
    let bench = Bench::start(scripted::Settings { parallel_loads: 2, ..scripted::Settings::default() });
    std::thread::scope(|scope| {
        for n in 0..6 {
            let runtime = &bench.runtime;
            scope.spawn(move || runtime.load(&request(&format!("m{n}"), "SIZE_1_30")).map(drop));
        }
    });
    assert_eq!((bench.counts.loads(), bench.counts.most_at_once()), (6, 2));
}

#[test]
fn a_model_that_cannot_be_unloaded_is_tried_again() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("sticky", "STAY_1")).expect("it loads");
    loaded.model.end();
    assert_eq!(bench.counts.loaded(), ["sticky"], "the first attempt failed");
    drop(loaded);
    let end = Instant::now() + PATIENCE;
    while !bench.counts.loaded().is_empty() && Instant::now() < end {
        std::thread::yield_now();
    }
    assert!(bench.counts.loaded().is_empty(), "the second did not");
}

#[test]
fn artifacts_that_were_fetched_go_by_their_path() {
    let bench = Bench::start(scripted::Settings::default());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.bin");
    fs_err::write(&file, b"12345").expect("written");
    let mut fetched = request("file", "");
    fetched.artifact = berth_worker::artifacts::Source::Folder(folder.path().to_owned());
    assert!(bench.runtime.load(&fetched).is_ok());
}
