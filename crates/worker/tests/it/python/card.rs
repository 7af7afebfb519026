//! A card on disk, and the runtime that loads it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use berth_spec::{
    ByteSize, DeploymentName, Digest, InferError, PinnedCard, Revision, RevisionId, Serving,
    deployment::{Batching, Concurrency, ModelFormat, RuntimeOptions, Warmup},
};
use berth_worker::{
    artifacts::Source,
    config::IsolationSettings,
    prepare::Prepared,
    runtime::{LoadError, LoadRequest, Loaded, LoadedModel, Runtime as _, metrics::Families, python::PythonRuntime},
};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Python, from the path. These tests are about it: without it they fail and say so.
pub(crate) fn python() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND
        .get_or_init(|| find("python3", "import sys; assert sys.version_info >= (3, 8); print(sys.executable)"))
        .clone()
}

/// The environment with scikit-learn and its friends, which `cargo xtask test` makes.
pub(crate) fn with_packages() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/python/models/bin/python");
    if !python.exists() {
        let required = std::env::var_os("BERTH_REQUIRE_TOOLS").is_some();
        assert!(!required, "there is no {}: `cargo xtask test` makes it", python.display());
        eprintln!("skipped: there is no {}; `cargo xtask setup` makes it", python.display());
        return None;
    }
    std::path::absolute(python).ok()
}

fn find(program: &str, script: &str) -> PathBuf {
    let found = Command::new(program).args(["-c", script]).output();
    let found = found.unwrap_or_else(|error| panic!("{program} is needed (apt-get install python3): {error}"));
    assert!(found.status.success(), "Python 3.8 or later is needed: {}", String::from_utf8_lossy(&found.stderr));
    PathBuf::from(String::from_utf8(found.stdout).expect("a path").trim())
}

/// A card and its code.
pub(crate) struct Card {
    pub(crate) json: Value,
    pub(crate) python: PathBuf,
    pub(crate) warmup: Warmup,
    pub(crate) concurrency: Option<u32>,
    pub(crate) artifact: Vec<u8>,
    pub(crate) artifact_name: &'static str,
    pub(crate) files: Vec<(String, String)>,
    pub(crate) devices: Vec<Arc<str>>,
}

/// Numbers in, numbers out.
pub(crate) const DOUBLES: &str = "
def load(path):
    return lambda x: x * 2
def pre(request, config):
    return request['x']
def post(output, config):
    return {'y': output}
";

impl Card {
    /// A card whose code is `source`, one module with `load`, `pre` and `post`; it takes `{x}` and gives `{y}`.
    pub(crate) fn new(source: &str) -> Self {
        let object =
            |name: &str| json!({"type": "object", "required": [name], "properties": {name: {"type": "number"}}});
        let function = |function: &str| json!({"module": "src.model", "function": function});
        let json = json!({
            "schemaVersion": "3.0.0",
            "metadata": {"name": "m", "version": "1.2.3", "description": "a model of a test", "owner": "a@example.com"},
            "runtime": {
                "framework": "custom", "framework_version": "1.0.0", "python_version": "3.11", "dependencies": [],
            },
            "artifacts": {"storage_type": "http", "model_path": "https://example.com/model.bin"},
            "code": {
                "repository": "https://example.com/m.git", "path": "src/", "ref": "v1.2.3", "entrypoint": "src.model",
            },
            "preprocessing": function("pre"),
            "postprocessing": function("post"),
            "interface": {"input_schema": object("x"), "output_schema": object("y")},
            "resources": {"cpu": 1.0, "memory": "512Mi"},
        });
        Self {
            json,
            python: python(),
            warmup: Warmup::Required,
            concurrency: None,
            artifact: b"weights".to_vec(),
            artifact_name: "model.bin",
            files: vec![("src/__init__.py".to_owned(), String::new()), ("src/model.py".to_owned(), source.to_owned())],
            devices: Vec::new(),
        }
    }

    /// With something else in the card.
    pub(crate) fn with(mut self, pointer: &str, value: Value) -> Self {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let parent = self.json.pointer_mut(parent).expect("a place in the card");
        parent.as_object_mut().expect("an object").insert(name.to_owned(), value);
        self
    }

    pub(crate) fn with_warmup(self, warmup: Warmup) -> Self {
        Self { warmup, ..self }
    }

    /// Loads it, without the validation inference.
    pub(crate) fn load(&self) -> Result<Running, LoadError> {
        let folder = tempfile::tempdir().expect("a folder");
        let (loaded, runtime, registry) = self.load_in(&folder, CancellationToken::new())?;
        Ok(Running { model: loaded.model, memory: loaded.memory, note: loaded.note, registry, runtime, folder })
    }

    /// Loads it below `folder`.
    pub(crate) fn load_in(
        &self,
        folder: &tempfile::TempDir,
        given_up: CancellationToken,
    ) -> Result<(Loaded, PythonRuntime, Registry), LoadError> {
        let (runtime, registry) = runtime(folder.path());
        let request = self.request(folder.path(), given_up);
        Ok((runtime.load(&request)?, runtime, registry))
    }

    /// The request that loads it, with its files below `folder`.
    pub(crate) fn request(&self, folder: &Path, cancel: CancellationToken) -> LoadRequest {
        let code = folder.join("checkout");
        for (path, text) in &self.files {
            let path = code.join(path);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs_err::write(path, text).expect("written");
        }
        let artifact = folder.join(self.artifact_name);
        fs_err::write(&artifact, &self.artifact).expect("written");
        LoadRequest {
            revision: Arc::new(self.revision()),
            artifact: Source::File(artifact),
            size: berth_spec::ByteSize::ZERO,
            digest: Digest([0; 32]),
            serving: Arc::new(self.serving()),
            prepared: Some(Arc::new(Prepared::of(&code, &self.python))),
            devices: self.devices.clone(),
            pin: None,
            cancel,
        }
    }

    /// Loads it and runs the validation inference.
    pub(crate) fn start(&self) -> Result<Running, LoadError> {
        let running = self.load()?;
        running.model.validate(&self.warmup)?;
        Ok(running)
    }

    pub(crate) fn fails(&self) -> LoadError {
        self.start().err().expect("it does not load")
    }

    fn revision(&self) -> Revision {
        let card = serde_json::from_value(self.json.clone()).expect("a card");
        let pinned = PinnedCard {
            card,
            repository: "https://example.com/m.git".to_owned(),
            reference: "v1.2.3".to_owned(),
            commit: "0".repeat(40),
            code_commit: "0".repeat(40),
        };
        Revision {
            id: RevisionId::of(name(), &pinned.content()),
            format: ModelFormat::PYTHON,
            uri: format!("https://example.com/{}", self.artifact_name),
            digest: None,
            version: "1.2.3".to_owned(),
            signature: None,
            runtime: RuntimeOptions::default(),
            memory: None,
            card: Some(Arc::new(pinned)),
        }
    }

    fn serving(&self) -> Serving {
        Serving {
            deployment: name(),
            warmup: self.warmup.clone(),
            concurrency: Concurrency { max: self.concurrency, queue: 16 },
            batching: Batching { max_rows: 64, max_delay: Duration::ZERO },
            drain_timeout: Duration::from_secs(1),
        }
    }
}

fn name() -> DeploymentName {
    DeploymentName::new("m").expect("a name")
}

pub(crate) fn runtime(data: &Path) -> (PythonRuntime, Registry) {
    let mut registry = Registry::default();
    let families = Families::register(&mut registry);
    (PythonRuntime::open(data, &IsolationSettings::default(), families).expect("opened"), registry)
}

/// A model that runs. Dropping it unloads it.
pub(crate) struct Running {
    pub(crate) model: Arc<dyn LoadedModel>,
    pub(crate) memory: ByteSize,
    pub(crate) note: Option<String>,
    registry: Registry,
    #[expect(dead_code, reason = "a worker keeps it for as long as its models")]
    runtime: PythonRuntime,
    pub(crate) folder: tempfile::TempDir,
}

impl Running {
    /// Its answer to a document.
    pub(crate) async fn call(&self, request: Value) -> Result<Value, InferError> {
        self.call_until(request, Instant::now() + Duration::from_secs(120)).await
    }

    pub(crate) async fn call_until(&self, request: Value, deadline: Instant) -> Result<Value, InferError> {
        let body = Bytes::from(request.to_string());
        self.model.call(body, deadline).await.map(|answer| serde_json::from_slice(&answer).expect("JSON"))
    }

    /// The metrics, as Prometheus reads them.
    pub(crate) fn metrics(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).expect("it encodes");
        text
    }
}
