//! Commands that need no server, run as processes: what they print where, and with which exit code.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

const IRIS: &str = "apiVersion: berth.dev/v1
kind: ModelDeployment
metadata:
  name: iris
spec:
  model:
    format: onnx
    uri: file:iris.onnx
";

/// An object of KServe with a setting of pods.
const SERVICE: &str = "apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    serviceAccountName: sa
    model: {modelFormat: {name: sklearn}, storageUri: 's3://b/iris'}
";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("its parent");
        fs_err::write(&path, text).expect("written");
    }
    folder
}

fn berth(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).env("NO_COLOR", "1");
    for name in ["BERTH_API", "BERTH_HTTP", "BERTH_DATA", "BERTH_LOG", "BERTH_CONFIG"] {
        command.env_remove(name);
    }
    command.output().expect("berth runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("its address"))
}

/// Files; arguments; exit code; what standard output and standard error must hold.
type Case = (
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
    i32,
    &'static [&'static str],
    &'static [&'static str],
);

/// WRONG stands for a manifest with a wrong field, AWAY for an address where nobody listens.
const CASES: &[Case] = &[
    (&[("a/iris.yaml", IRIS)], &["validate", "-f", "."], 0, &["1 manifest in 1 file valid"], &[]),
    (
        &[("iris.yaml", "WRONG")],
        &["validate", "-f", "iris.yaml"],
        4,
        &[],
        &["--> iris.yaml:8:5", "8 |     url: file:iris.onnx\n  |     ^", "did you mean \"uri\"?", "1 error"],
    ),
    (
        &[("iris.yaml", "WRONG")],
        &["validate", "-f", ".", "-o", "json"],
        4,
        &["\"line\": 8", "\"path\": \"spec.model.url\""],
        &["1 error"],
    ),
    (&[("a.yaml", IRIS), ("b.json", IRIS)], &["validate", "-f", "."], 4, &[], &["iris is declared in more than one"]),
    (
        &[("isvc.yaml", SERVICE)],
        &["convert", "-f", "isvc.yaml"],
        0,
        &["kind: ModelDeployment", "uri: s3://b/iris/", "kserve.berth.dev/ignored: spec.predictor.serviceAccountName"],
        &[],
    ),
    (&[("isvc.yaml", SERVICE)], &["validate", "-f", "."], 0, &["1 manifest in 1 file valid"], &[]),
    (&[], &["validate", "-f", "none.yaml"], 3, &[], &["none.yaml"]),
    (&[], &["validate", "-f", "."], 3, &[], &["has no *.yaml"]),
    (&[("notes.yaml", "a: note\n")], &["apply", "-f", "."], 3, &[], &["only 1 file without an apiVersion"]),
    (&[], &["validate"], 2, &[], &["--filename"]),
    (&[("iris.yaml", "WRONG")], &["apply", "-f", "iris.yaml"], 4, &[], &["spec.model.url"]),
    (
        &[("iris.yaml", IRIS)],
        &["apply", "-f", "iris.yaml", "--api", "AWAY"],
        1,
        &[],
        &["nothing answers at", "`berth up`"],
    ),
    // A bare word that is no kind is a name, of which only the server knows.
    (&[], &["get", "deploymints", "--api", "AWAY"], 1, &[], &["nothing answers"]),
    (&[], &["get", "deployments", "--api", "ftp://x"], 2, &[], &["is not an address"]),
    (&[], &["get", "deployments,nodes", "iris", "--api", "AWAY"], 2, &[], &["write KIND/NAME for each thing"]),
    (&[], &["get", "nodes,depolyments", "--api", "AWAY"], 2, &[], &["did you mean deployments?"]),
    (&[], &["get", "deployments,workers", "-l", "a=b", "--api", "AWAY"], 2, &[], &["not for workers"]),
    (&[], &["explain", "iris", "-o", "name"], 2, &[], &["possible values: table, json, yaml"]),
    (&[], &["scale", "iris", "--replicas", "-1"], 2, &[], &["-1 is not in 0..=1000"]),
    (&[], &["get", "workers", "-l", "a=b", "--api", "AWAY"], 2, &[], &["--selector"]),
    (&[], &["wait", "deployment/iris", "--for=Ready=1"], 2, &[], &["condition=TYPE"]),
    (&[], &["wait", "deployment/iris", "--timeout=10ms", "--api", "AWAY"], 5, &[], &["(after", "nothing answers"]),
    (&[("x.json", "\n")], &["infer", "iris", "-f", "x.json"], 4, &[], &["x.json is empty"]),
    (&[("x.json", "{}")], &["infer", "iris", "-f", "x.json"], 4, &[], &["has no list \"inputs\""]),
    (
        &[("x.json", "{\"inputs\": []}")],
        &["infer", "iris", "-f", "x.json", "--http", "AWAY"],
        1,
        &[],
        &["nothing answers"],
    ),
    (
        &[("x.json", "{\"inputs\": []}")],
        &["infer", "iris", "-f", "x.json", "--grpc", "--http", "AWAY"],
        1,
        &[],
        &["nothing answers"],
    ),
    (
        &[],
        &["doctor", "--http", "127.0.0.1:0", "--api", "127.0.0.1:0", "--onnxruntime", "/nonexistent"],
        1,
        &[
            "onnx engine",
            "missing",
            "ORT_DYLIB_PATH",
            "data folder",
            "127.0.0.1:0 is free",
            "bwrap",
            "node",
            "npm",
            "python",
        ],
        &["models cannot be served yet: onnx engine"],
    ),
    (&[], &["delete", "worker", "a"], 2, &[], &["takes deployments, aliases, functions, not workers"]),
    (&[], &["up", "--memory", "much"], 2, &[], &["512MiB"]),
    (
        &[],
        &["up", "--request-memory", "2MiB"],
        2,
        &[],
        &["--request-memory 2MiB", "--max-body 64MiB", "--request-memory 256MiB or more"],
    ),
    (&[], &["up", "--http", "0.0.0.0:8080"], 2, &[], &["--insecure"]),
    (&[], &["up", "--http", ":9", "--api", ":9"], 2, &[], &["two ports"]),
    (
        &[],
        &["up", "./nothing", "--data", "data", "--http", "127.0.0.1:0", "--api", "127.0.0.1:0"],
        2,
        &[],
        &["nothing cannot be served: it is not there: make it, or name another"],
    ),
    (&[("iris.yaml", IRIS)], &["up", "iris.yaml"], 2, &[], &["iris.yaml is a file", "`berth apply -f iris.yaml`"]),
    (&[("m.joblib", "")], &["serve", "m.joblib"], 4, &[], &["m.joblib is empty"]),
    (&[], &["version"], 0, &["berth "], &[]),
    (&[], &["help"], 0, &["Exit codes:", "5  timed out"], &[]),
    (&[], &["man", "infer"], 0, &[".TH berth-infer"], &[]),
    (&[], &["man", "nothing"], 2, &[], &["is not a command"]),
    (&[], &["schema", "manifest"], 0, &["\"idleAfter\""], &[]),
    (&[], &["completions", "bash"], 0, &["-F _clap_complete_berth berth"], &[]),
    (&[], &["completions", "zsh"], 0, &["#compdef berth"], &[]),
    (&[], &["completions", "fish"], 0, &["complete --keep-order --exclusive --command berth"], &[]),
    (&[], &["completions", "powershell"], 0, &["Register-ArgumentCompleter"], &[]),
    (&[], &["node"], 2, &[], &["berth pki init"]),
    (&[], &["node", "--pki", "none", "--store", "etcd://a"], 2, &[], &["none/"]),
    (&[], &["node", "--store", "redis://a"], 2, &[], &["is not an address of etcd"]),
    (&[], &["config", "show"], 0, &["# threads:", "one per core", "http: 127.0.0.1:8080"], &[]),
    (&[], &["config", "show", "node", "-o", "table"], 0, &["SETTING", "lame-duck", "default"], &[]),
    (&[], &["config", "show", "--config", "none.yaml"], 3, &[], &["none.yaml"]),
    (&[], &["drain", "node/a", "--api", "AWAY,AWAY"], 1, &[], &["nothing answers at http://", ", http://"]),
    (&[], &["drain", "deployment/a", "--api", "AWAY"], 2, &[], &["write node/NAME"]),
    (&[], &["cordon"], 2, &[], &["NODE"]),
    (&[], &["pki", "issue", "none", "a"], 1, &[], &["berth pki init"]),
    (&[], &["pki", "show", "none"], 3, &[], &["none"]),
    (&[], &["pki", "show", "."], 3, &[], &["holds neither"]),
];

#[test]
fn exit_codes_and_words() {
    let (wrong, away) = (IRIS.replace("uri", "url"), nobody());
    for (files, arguments, code, out, err) in CASES {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (*name, if *text == "WRONG" { &wrong } else { *text })).collect();
        let arguments: Vec<_> = arguments.iter().map(|word| word.replace("AWAY", &away)).collect();
        let folder = folder(&files);
        let done = berth(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
        let shown = format!("berth {}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", arguments.join(" "));
        assert_eq!(done.status.code(), Some(*code), "{shown}");
        out.iter().for_each(|word| assert!(stdout.contains(word), "{word:?} is not on stdout: {shown}"));
        err.iter().for_each(|word| assert!(stderr.contains(word), "{word:?} is not on stderr: {shown}"));
        assert!(*code != 0 || stderr.is_empty(), "{shown}");
    }
}

/// An authority, nodes' certificates, and what is told of them.
#[test]
fn certificates_are_made_renewed_and_shown() {
    let folder = folder(&[]);
    let run = |arguments: &[&str], code: i32| {
        let done = berth(folder.path(), arguments);
        let shown = format!("{}\n{}", text(&done.stdout), text(&done.stderr));
        assert_eq!(done.status.code(), Some(code), "berth {}\n{shown}", arguments.join(" "));
        shown
    };
    assert!(run(&["pki", "init", "pki"], 0).contains("next, for each node: berth pki issue pki NAME"));
    assert!(run(&["pki", "init", "pki"], 1).contains("is there already"));
    assert!(run(&["pki", "issue", "pki", "a", "b"], 0).contains("berth node --pki pki/b"));
    run(&["pki", "issue", "pki", "a", "--host", "a.example.org,10.0.0.2"], 0);
    run(&["pki", "issue", "pki", "c", "--out", "etc/c"], 0);
    assert!(!folder.path().join("pki/c").exists(), "its key is where it was asked for, and nowhere else");
    let shown = run(&["pki", "show", "pki/a"], 0);
    for part in ["a.node.berth, controller.role.berth", "a.example.org, 10.0.0.2", "controller, worker, gateway"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("can start the node a"), "{shown}");
    assert!(run(&["pki", "show", "etc/c", "-o", "json"], 0).contains("\"daysLeft\": 36"));
    assert_eq!(run(&["pki", "show", "pki"], 0).matches("the node ").count(), 2);
    run(&["pki", "issue", "pki", "Not_A_Name"], 4);
    run(&["pki", "issue", "pki", "a", "b", "--out", "x"], 2);
    let other = ["pki", "init", "other"];
    run(&other, 0);
    fs_err::copy(folder.path().join("other/ca.pem"), folder.path().join("pki/a/ca.pem")).expect("copied");
    assert!(run(&["pki", "show", "pki/a"], 1).contains("was not issued by a CA in ca.pem"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["schema", "manifest"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("berth runs");
    drop(child.stdout.take());
    let done = child.wait_with_output().expect("it ends");
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
}
