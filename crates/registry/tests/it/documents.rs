//! Good and bad documents, rule by rule.

use berth_git::Protocols;
use berth_registry::{CardRules, Matrix, check_card};
use berth_spec::manifest::endpoint_path;

use crate::fixture::{CARD, WORKER, World, told};

/// Replacement in a valid document, and a part of the expected message; empty if it stays valid.
type Case = (&'static str, &'static str, &'static str);

/// Every field of the block `berth` that a deployment with one replica may have.
const WHOLE_BLOCK: &str = "enabled: true
berth:
  minReplicas: 1
  pinned: true
  scaling: {targetRate: 100, targetConcurrency: 2.5, secondCopy: never}
  placement: {spread: worker}
  rollout: {whenFull: recreate, deadline: 5m, drainTimeout: 10s, canary: 10}
  warmup: \"off\"
  timeout: 5s
  idempotent: false
  concurrency: {max: 4, queue: 10}
  limits: {rate: 100, burst: 200, inFlight: 10, bytesPerSecond: 10MiB, maxWait: 2s}
  batching: {maxRows: 8, maxDelay: 2ms}";

const MANIFESTS: &[Case] = &[
    ("", "", ""),
    ("ref: v1.2.3", "ref: 1234567", "put it in quotes: \"1234567\""),
    ("id: iris-prod", "id: Iris", "lower-case letters"),
    ("id: iris-prod", "id: other", "the file is called iris-prod"),
    ("id: iris-prod\n", "", "id is missing"),
    ("enabled: true", "enabled: yes", "true or false"),
    ("region: eu-west-1", "region: europe", "for example us-east-1"),
    ("replicas: 1", "replicas: -1", "too small"),
    ("replicas: 1", "replicas: 1.5", "a whole number"),
    ("replicas: 1", "replicas: 100000", "1000"),
    ("replicas: 1", "replicas: 1.0", ""),
    ("replicas: 1", "replicas: 5000000000", "expected u32 (deployment_config.replicas)"),
    ("priority: 80", "priority: 8.0e1", ""),
    ("replicas: 1", "replicas: 3", "3 replicas are wanted, but only 1 worker of workers/"),
    ("priority: 80", "priority: 0", "too small"),
    ("pool: production", "pool: 1", "put it in quotes: \"1\""),
    ("pool: production", "pool: production\n    region: us-east-1", "asks for us-east-1"),
    ("pool: production", "pool: production\n  endpoint: https://h/v2/x", "the gateway itself answers"),
    ("pool: production", "pool: production\n  endpoint: https://h/v1/x", ""),
    ("enabled: true", "enabled: true\nendpoint: https://h/v1/x", ""),
    ("enabled: true", "enabled: true\nworker_selector: {pool: x}", "is given here and in deployment_config"),
    ("owner: ops@example.com", "owner: ops", "no e-mail address"),
    ("deployed_at: \"2026-10-28T10:30:00Z\"", "deployed_at: yesterday", "no date and time"),
    ("path: model-card.yaml", "path: ../model-card.yaml", "no file of the repository"),
    ("path: model-card.yaml", "path: nowhere.yaml", "has no file nowhere.yaml"),
    ("  path: model-card.yaml\n", "", "path is missing"),
    ("priority: 80", "prioritty: 80\n  priority: 80", "has no effect"),
    ("enabled: true", "enabled: true\nenabled: false", "duplicate"),
    ("enabled: true", WHOLE_BLOCK, ""),
    ("enabled: true", "enabled: true\nberth: {minReplicas: 0, idleAfter: 10m}", ""),
    ("enabled: true", "enabled: true\nberth: {regions: {eu-west-1: {min: 0, max: 1}}}", ""),
    ("enabled: true", "enabled: true\nberth: {whenFull: recreate}", "whenFull is no field here"),
    ("enabled: true", "enabled: true\nberth: {rollout: {whenfull: recreate}}", "did you mean whenFull?"),
    ("enabled: true", "enabled: true\nberth: {rollout: {whenFull: replace}}", "is not one of wait, recreate"),
    ("enabled: true", "enabled: true\nberth: {rollout: {canary: 101}}", "write at most 100"),
    ("enabled: true", "enabled: true\nberth: {timeout: soon}", "(berth.timeout)"),
    ("enabled: true", "enabled: true\nberth: {timeout: 0s}", "no time at all (berth)"),
    ("enabled: true", "enabled: true\nberth: {idleAfter: 10m}", "(berth.idleAfter)"),
    ("enabled: true", "enabled: true\nberth: {minReplicas: 2}", "max (1) is less than min (2)"),
    ("enabled: true", "enabled: true\nberth: {regions: {eu-west-1: 2}}", "the regions have 2 together"),
    ("enabled: true", "enabled: true\nberth: {regions: {us-east-1: 1}}", "has region=us-east-1"),
    (
        "pool: production",
        "pool: production\n    region: eu-west-1\nberth: {regions: {eu-west-1: 1}}",
        "and worker_selector",
    ),
    ("enabled: true", "enabled: [", "nothing after it was read"),
    ("enabled: true", "enabled: true\n---\nid: x", "more than one document"),
];

#[test]
fn manifests() {
    let world = World::new();
    for (from, to, part) in MANIFESTS {
        let text = world.manifest("iris-prod", "v1.2.3");
        assert!(text.contains(from), "{from}");
        world.write("models/production/iris-prod.yaml", &text.replacen(from, to, 1));
        let report = world.validate();
        assert_eq!(report.problems.is_empty(), part.is_empty(), "{to}: {}", told(&report));
        assert!(told(&report).contains(part), "{to}: {}", told(&report));
    }
}

/// Endpoint, and a part of the message of the schema or of the parser; empty if both accept it.
const ENDPOINTS: &[(&str, &str)] = &[
    ("https://h/v1/x", ""),
    ("http://h:8080/v1/x/", ""),
    ("HTTPS://h/v1/x", ""),
    ("/v1/x", ""),
    ("/v1/x/", ""),
    ("nowhere", "neither a path nor the URL of an HTTP endpoint"),
    ("https://h", "neither a path nor"),
    ("ftp://h/v1/x", "neither a path nor"),
    ("https://h/v1/x?q=1", "neither a path nor"),
    ("/v1/x#y", "neither a path nor"),
    ("/v1//x", "no path of plain words"),
    ("/v2/x", "the gateway itself answers"),
];

/// An editor marks no endpoint that Berth accepts, and what is refused is refused in both places.
#[test]
fn the_schema_and_the_parser_agree_on_endpoints() {
    let world = World::new();
    for (endpoint, part) in ENDPOINTS {
        assert_eq!(endpoint_path(endpoint).is_ok(), part.is_empty(), "{endpoint}");
        for (line, indent) in [("pool: production", "  "), ("enabled: true", "")] {
            let text = world.manifest("iris-prod", "v1.2.3");
            assert!(text.contains(line), "{line}");
            let text = text.replacen(line, &format!("{line}\n{indent}endpoint: {endpoint}"), 1);
            world.write("models/production/iris-prod.yaml", &text);
            let report = world.validate();
            assert_eq!(report.problems.is_empty(), part.is_empty(), "{endpoint}: {}", told(&report));
            assert!(told(&report).contains(part), "{endpoint}: {}", told(&report));
        }
    }
}

#[test]
fn a_repository_is_named_safely() {
    let world = World::new();
    for (url, part) in [
        ("git.example.com/x", "no URL"),
        ("https://u:secret@h/x", "holds a password"),
        ("ext::sh", "remote helpers"),
        ("ssh://-oProxyCommand=x/y", "no proper host"),
        ("git://h/x", "not allowed"),
    ] {
        let text = world.manifest("iris-prod", "v1.2.3").replace(&world.url(), url);
        world.write("models/production/iris-prod.yaml", &text);
        let report = world.validate();
        assert!(!report.is_accepted() && told(&report).contains(part), "{url}: {}", told(&report));
    }
}

const WORKERS: &[Case] = &[
    ("", "", ""),
    ("worker_id: worker-a", "worker_id: a", "begin it with worker-"),
    ("worker_id: worker-a", "worker_id: worker-b", "the file is called worker-a"),
    ("[\"3.0.0\", \"3.1.0\"]", "[]", "too short"),
    ("[\"3.0.0\", \"3.1.0\"]", "[\"3\"]", "MAJOR.MINOR.PATCH"),
    ("max_models: 5", "max_models: 0", "too small"),
    ("max_models: 5", "max_models: 5.0", ""),
    ("max_models: 5", "max_models: 5000000000", "expected u32 (capacity.max_models)"),
    ("max_cpu: 8.0", "max_cpu: 0", "too small"),
    ("max_gpu: 0", "max_gpu: -1", "too small"),
    ("pool: production", "pool: prod", "did you mean production?"),
    ("  region: eu-west-1\n", "", "region is missing"),
    ("zone: eu-west-1a", "zone: 1", "put it in quotes"),
    ("zone: eu-west-1a", "instance_type: c5.2xlarge", ""),
    ("labels:", "eviction_policy: {strategy: fifo}\nlabels:", "is not one of lru, priority"),
    ("labels:", "broker_endpoint: nowhere\nlabels:", "no URL"),
    ("labels:", "eviction_policy: {strategy: priority, enable_auto_eviction: false}\nlabels:", ""),
];

#[test]
fn workers() {
    let world = World::new();
    for (from, to, part) in WORKERS {
        assert!(WORKER.contains(from), "{from}");
        world.write("workers/worker-a.yaml", &WORKER.replacen(from, to, 1));
        let report = world.validate();
        assert_eq!(report.problems.is_empty(), part.is_empty(), "{to}: {}", told(&report));
        assert!(told(&report).contains(part), "{to}: {}", told(&report));
    }
}

const CARDS: &[Case] = &[
    ("", "", ""),
    ("schemaVersion: \"3.1.0\"", "schemaVersion: \"3.0.0\"", ""),
    ("schemaVersion: \"3.1.0\"", "schemaVersion: \"2.2.0\"", "out of use since 2026-01-01"),
    ("schemaVersion: \"3.1.0\"", "schemaVersion: \"2.0.0\"", "out of use since 2026-01-01"),
    ("schemaVersion: \"3.1.0\"", "schemaVersion: \"9.0.0\"", "is not one that Berth reads"),
    ("schemaVersion: \"3.1.0\"\n", "", "schemaVersion is missing"),
    ("name: iris", "name: Iris", "lower-case letters"),
    ("version: 1.2.3", "version: 1.2", "put it in quotes"),
    ("description: Tells three kinds of iris from each other", "description: short", "too short"),
    ("owner: ml@example.com", "owner: nobody", "no e-mail address"),
    ("python_version: \"3.11\"", "python_version: 3.11", "put it in quotes: \"3.11\""),
    ("python_version: \"3.11\"", "python_version: 3.10", "3.10 is not text"),
    ("python_version: \"3.11\"", "python_version: 3.10 # old", "put it in quotes: \"3.10\""),
    ("numpy==2.3.4", "numpy>=2", "for example numpy==1.26.4"),
    ("numpy==2.3.4", "numpy==2.3.4\n    - NumPy==2.0.0", "numpy is named twice"),
    ("storage_type: s3", "storage_type: ftp", "is not one of"),
    ("storage_type: s3", "storage_type: gcs", "gs://bucket/model.pt"),
    ("model_path: s3://models/iris/v1.2.3/model.joblib", "model_path: model.joblib", "does not fit the storage type"),
    ("checksum: a3f5e8c9", "checksum: zzzz", "64 hexadecimal digits"),
    ("  checksum: a3f5e8c9d2b1f4a7e6c8d9f0a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6e7f8a9b0\n", "", "without a checksum"),
    ("size_bytes: 4389", "size_bytes: many", "a whole number"),
    ("ref: v1.2.3", "ref: main", "never a branch"),
    ("ref: v1.2.3", "ref: v1.2.2", "tag the code v1.2.3"),
    ("ref: v1.2.3", "ref: 0123456789abcdef", ""),
    ("path: src/", "path: ../src", "leads out of the repository"),
    ("entrypoint: src.model", "entrypoint: src/model.py", "no name of a Python module"),
    ("entrypoint: src.model", "entrypoint: src.model:make", ""),
    ("entrypoint: src.model", "entrypoint: src.model:1", "no name of a Python function"),
    ("batch_size: 32", "batch_size: 32.0", ""),
    ("function: to_label", "function: src.to_label", "no name of a Python function"),
    ("module: src.preprocessing", "module: src.pre-processing", "no name of a Python module"),
    ("type: number", "type: numbr", "this is no JSON schema"),
    ("type: number", "$ref: https://example.com/schema.json", "this is no JSON schema"),
    ("batch_size: 32", "batch_size: 2048", "too large"),
    ("cpu: 0.5", "cpu: 0", "too small"),
    ("memory: 512Mi", "memory: 512MB", "for example 4Gi"),
    ("memory: 512Mi", "memory: 512Mi\n  gpu: 1\n  gpu_type: A100", ""),
    ("memory: 512Mi", "memory: 512Mi\n  gpu: 1\n  gpu_type: B200", "is not one of"),
    ("memory: 512Mi", "memory: 512Mi\n  gpu_type: A100", "gpu"),
    ("memory: 512Mi", "memory: 512Mi\n  gpu: 0\n  gpu_type: A100", "too small"),
    ("interface:", "interfaces:", "interface is missing"),
    ("batch_size: 32", "batchsize: 32", "did you mean batch_size?"),
];

#[test]
fn cards() {
    let matrix = Matrix::embedded();
    let rules = CardRules { matrix: &matrix, today: "2026-11-22", protocols: Protocols::default() };
    for (from, to, part) in CARDS {
        assert!(CARD.contains(from), "{from}");
        let checked = check_card(&CARD.replacen(from, to, 1), "model-card.yaml", &rules);
        let told: String = checked.problems.iter().map(|problem| problem.render() + "\n").collect();
        assert_eq!(checked.problems.is_empty(), part.is_empty(), "{to}: {told}");
        assert!(told.contains(part), "{to}: {told}");
        assert_eq!(
            checked.card.is_some(),
            !checked.problems.iter().any(berth_registry::Problem::is_error),
            "{to}: {told}"
        );
    }
}

#[test]
fn version_3_0_asks_for_less() {
    let matrix = Matrix::embedded();
    let rules = CardRules { matrix: &matrix, today: "2026-11-22", protocols: Protocols::default() };
    let gpu = CARD.replace("memory: 512Mi", "memory: 512Mi\n  gpu_type: A100");
    assert!(check_card(&gpu, "c", &rules).card.is_none());
    let old = gpu.replace("schemaVersion: \"3.1.0\"", "schemaVersion: \"3.0.0\"");
    assert!(check_card(&old, "c", &rules).card.is_some(), "{:?}", check_card(&old, "c", &rules).problems);
}

#[test]
fn settings() {
    let world = World::new();
    for (text, part) in [
        ("", ""),
        ("unknownWorkers: refuse\n", ""),
        ("unknownWorkers: never\n", "is not one of"),
        ("unkownWorkers: allow\n", "--> registry.yaml:1:1"),
        ("allowEmpty: true\nunkownWorkers: allow\n", "--> registry.yaml:2:1"),
        ("unkownWorkers: allow\n", "did you mean unknownWorkers?"),
        ("signatures: {requird: true}\n", "did you mean required?"),
        ("notifications: [{type: slack, secretRef: x, minSeverty: error}]\n", "did you mean minSeverity?"),
        ("signatures: {required: true}\n", "no keys are named"),
        ("signatures: {required: true, allowedSigners: keys/allowed}\n", "has no keys/allowed"),
        ("notifications: [{type: slack}]\n", "not said where to send it"),
        ("notifications: [{type: email, url: \"smtps://h\"}]\n", "the email has no receivers"),
        ("notifications: [{type: webhook, url: \"https://h/x\", minSeverity: error}]\n", ""),
        ("writeBack: {branch: a..b}\n", "no name of a branch"),
        ("writeBack: {mode: branch, branch: actual, interval: 1m}\n", ""),
        ("commitStatus: {provider: github, repository: acme/registry, secretRef: token}\n", ""),
    ] {
        world.write("registry.yaml", text);
        let report = world.validate();
        assert_eq!(report.is_accepted(), part.is_empty(), "{text}: {}", told(&report));
        assert!(told(&report).contains(part), "{text}: {}", told(&report));
    }
}

#[test]
fn settings_have_a_meaning() {
    let text = "notifications: [{type: slack, secretRef: hook}]\ncommitStatus: {provider: gitlab}\n";
    let settings = berth_registry::Settings::read(text).expect("right");
    assert_eq!(settings.write_back.interval(), std::time::Duration::from_secs(30));
    assert_eq!(settings.commit_status.expect("one").context, "berth/registry");
    assert_eq!(settings.notifications[0].min_severity, berth_registry::settings::NotificationSeverity::Warning);
}
