//! Settings: what counts where flag, environment, file and default disagree, and what is told of it.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A file with settings; arguments and environment beside it.
struct Case {
    file: &'static str,
    environment: &'static [(&'static str, &'static str)],
    arguments: &'static [&'static str],
    /// Setting, value, source, place.
    says: &'static [(&'static str, &'static str, &'static str, &'static str)],
}

const CASES: &[Case] = &[
    Case {
        file: "memory: 1GiB\nhttp: :9001\n",
        environment: &[("BERTH_MEMORY", "2GiB"), ("BERTH_THREADS", "3")],
        arguments: &["up", "--memory", "4GiB"],
        says: &[
            ("memory", "4GiB", "flag", "--memory"),
            ("threads", "3", "environment", "BERTH_THREADS"),
            ("http", ":9001", "file", "berth.yaml:2"),
            ("cache", "20GiB", "default", ""),
            ("parallel-loads", "", "default", ""),
        ],
    },
    Case {
        file: "memory: 1GiB\n",
        environment: &[("BERTH_MEMORY", "2GiB")],
        arguments: &[],
        says: &[("memory", "2GiB", "environment", "BERTH_MEMORY")],
    },
    Case {
        file: "# comments\n\nlabels:\n  pool: production\n  zone: a\ninsecure: true\nfolder: models\n",
        environment: &[],
        arguments: &[],
        says: &[
            ("labels", "pool=production,zone=a", "file", "berth.yaml:3"),
            ("insecure", "true", "file", "berth.yaml:6"),
            ("folder", "models", "file", "berth.yaml:7"),
        ],
    },
    Case {
        file: "labels: [a=b]\ninsecure: true\nfolder: models\n",
        environment: &[],
        arguments: &["up", "--label", "c=d", "--labels", "e=f,g=h", "--insecure=false", "elsewhere"],
        says: &[
            ("labels", "c=d,e=f,g=h", "flag", "--labels"),
            ("insecure", "false", "flag", "--insecure"),
            ("folder", "elsewhere", "flag", "FOLDER"),
        ],
    },
    Case {
        file: "store: etcd://a,b\njoin: [c, d:1]\nmax-models: 7\n",
        environment: &[("BERTH_LABELS", "region=eu"), ("BERTH_ROLES", "worker")],
        arguments: &["node", "--insecure"],
        says: &[
            ("store", "etcd://a,b", "file", "berth.yaml:1"),
            ("join", "c,d:1", "file", "berth.yaml:2"),
            ("max-models", "7", "file", "berth.yaml:3"),
            ("labels", "region=eu", "environment", "BERTH_LABELS"),
            ("roles", "worker", "environment", "BERTH_ROLES"),
            ("insecure", "true", "flag", "--insecure"),
            ("gossip", "127.0.0.1:7946", "default", ""),
        ],
    },
    Case {
        file: "model-type:\n  - onnx:required:pool=production\n  - ranker:preferred:disk=nvme\n",
        environment: &[],
        arguments: &["node"],
        says: &[("model-type", "onnx:required:pool=production,ranker:preferred:disk=nvme", "file", "berth.yaml:1")],
    },
    Case {
        file: "otlp: http://me:secret@collector:4317\n",
        environment: &[],
        arguments: &[],
        says: &[("otlp", "http://me:REDACTED@collector:4317/", "file", "berth.yaml:1")],
    },
];

fn folder(file: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs_err::write(folder.path().join("berth.yaml"), file).expect("written");
    folder
}

fn show(folder: &TempDir, case: &Case, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env_clear().envs(case.environment.iter().copied()).current_dir(folder.path()).stdin(Stdio::null());
    command.env("BERTH_CONFIG", "berth.yaml").args(["config", "show"]).args(case.arguments).args(more);
    command.output().expect("berth runs")
}

fn json(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("no JSON: {e}; {error}"))
}

fn value(setting: &Value) -> String {
    match &setting["value"] {
        Value::Array(values) => values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        value => value.as_str().unwrap_or_default().to_owned(),
    }
}

#[test]
fn flags_come_before_the_environment_before_the_file_before_defaults() {
    for case in CASES {
        let folder = folder(case.file);
        let shown = json(&show(&folder, case, &["-o", "json"]));
        for (name, wanted, source, place) in case.says {
            let settings = shown["settings"].as_array().expect("settings");
            let setting = settings.iter().find(|setting| setting["setting"] == *name).expect("it is a setting");
            let found = (value(setting), setting["source"].as_str(), setting["from"].as_str().unwrap_or_default());
            assert_eq!(found, ((*wanted).to_owned(), Some(*source), *place), "{name} of {}", case.file);
        }
    }
}

/// The output is a configuration file with the same meaning.
#[test]
fn what_is_shown_can_be_used_as_a_file() {
    let same = |shown: &Value| -> Vec<(String, String)> {
        let settings = shown["settings"].as_array().expect("settings").iter();
        settings.map(|setting| (setting["setting"].to_string(), value(setting))).collect()
    };
    for case in CASES {
        let first = folder(case.file);
        let printed = show(&first, case, &[]);
        let second = folder(&String::from_utf8_lossy(&printed.stdout));
        let kind: &[&str] = if case.arguments.first() == Some(&"node") { &["node"] } else { &[] };
        let alone = Case { file: "", environment: &[], arguments: kind, says: &[] };
        let (before, after) = (show(&first, case, &["-o", "json"]), show(&second, &alone, &["-o", "json"]));
        assert_eq!(same(&json(&after)), same(&json(&before)), "{}", String::from_utf8_lossy(&printed.stdout));
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_with_its_place() {
    for (file, arguments, code, says) in [
        ("memroy: 1GiB\n", &["up"][..], 4, "did you mean \"memory\"?"),
        ("a: 1\nmemory: much\n", &["up"], 4, "berth.yaml:2:9"),
        ("memory: much\n", &["up"], 4, "help: write for example 512MiB"),
        ("join: a\n", &["up"], 4, "it is one of `berth node`"),
        ("folder: a\n", &["node"], 4, "it is one of `berth up`"),
        ("http: [a, b]\n", &["up"], 4, "takes one value"),
        ("log-format: pretty\n", &["up"], 4, "write one of auto, text, json"),
        ("threads: 0\n", &["up"], 4, "write a number from 1"),
        ("a: 1\nmodel-type: [onnx:wanted:pool=a]\n", &["up"], 4, "berth.yaml:2:"),
        ("model-type: [onnx:required:pool]\n", &["node"], 4, "TYPE:required:KEY=VALUE"),
        ("model-type: {onnx: {required: {pool: a}}}\n", &["node"], 4, "deeper than one level"),
        ("model-type: [onnx:required:p=a, onnx:required:p=b]\n", &["up"], 2, "the label p is both"),
        ("memory:\n", &["up"], 4, "there is no value"),
        ("- memory\n", &["up"], 4, "one setting to a line"),
        ("http: 0.0.0.0:1\n", &["up"], 2, "--insecure"),
        ("config: other.yaml\n", &["up"], 4, "is not a setting"),
    ] {
        let folder = folder(file);
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.env_clear().current_dir(folder.path()).stdin(Stdio::null());
        let done = command.args(arguments).args(["--config", "berth.yaml"]).output().expect("berth runs");
        let error = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{file}: {error}");
        assert!(error.contains(says), "{file}: {says:?} is not in {error}");
    }
}
