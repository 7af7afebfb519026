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
    for name in ["BERTH_API", "BERTH_HTTP", "BERTH_DATA", "BERTH_LOG"] {
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
    (&[("a/iris.yaml", IRIS)], &["validate", "-f", "."], 0, &["1 manifest in 1 file right"], &[]),
    (
        &[("iris.yaml", "WRONG")],
        &["validate", "-f", "iris.yaml"],
        4,
        &[],
        &["--> iris.yaml:8:5", "8 |     url: file:iris.onnx\n  |     ^", "did you mean \"uri\"?", "2 errors"],
    ),
    (
        &[("iris.yaml", "WRONG")],
        &["validate", "-f", ".", "-o", "json"],
        4,
        &["\"line\": 8", "\"path\": \"spec.model.url\""],
        &["2 errors"],
    ),
    (&[("a.yaml", IRIS), ("b.json", IRIS)], &["validate", "-f", "."], 4, &[], &["iris is declared in more than one"]),
    (&[], &["validate", "-f", "none.yaml"], 3, &[], &["none.yaml"]),
    (&[], &["validate", "-f", "."], 3, &[], &["has no *.yaml"]),
    (&[], &["validate"], 2, &[], &["--filename"]),
    (&[("iris.yaml", "WRONG")], &["apply", "-f", "iris.yaml"], 4, &[], &["spec.model.url"]),
    (
        &[("iris.yaml", IRIS)],
        &["apply", "-f", "iris.yaml", "--api", "AWAY"],
        1,
        &[],
        &["nothing answers at", "`berth up`"],
    ),
    (&[], &["get", "deploymints", "--api", "AWAY"], 2, &[], &["did you mean deployments?"]),
    (&[], &["get", "deployments", "--api", "ftp://x"], 2, &[], &["is not an address"]),
    (&[], &["get", "workers", "-l", "a=b", "--api", "AWAY"], 2, &[], &["--selector"]),
    (&[], &["wait", "deployment/iris", "--for=Ready=1"], 2, &[], &["condition=TYPE"]),
    (&[], &["wait", "deployment/iris", "--timeout=10ms", "--api", "AWAY"], 5, &[], &["(after", "nothing answers"]),
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
    (&[], &["delete", "worker", "a"], 2, &[], &["only deployments"]),
    (&[], &["up", "--memory", "much"], 2, &[], &["512MiB"]),
    (&[], &["up", "--http", "0.0.0.0:8080"], 2, &[], &["--insecure"]),
    (&[], &["up", "--http", ":9", "--api", ":9"], 2, &[], &["two ports"]),
    (&[], &["version"], 0, &["berth "], &[]),
    (&[], &["help"], 0, &["Exit codes:", "5  timed out"], &[]),
    (&[], &["man", "infer"], 0, &[".TH berth-infer"], &[]),
    (&[], &["man", "nothing"], 2, &[], &["is not a command"]),
    (&[], &["schema", "deployment"], 0, &["\"idleAfter\""], &[]),
    (&[], &["completions", "bash"], 0, &["complete -F _berth"], &[]),
    (&[], &["completions", "zsh"], 0, &["#compdef berth"], &[]),
    (&[], &["completions", "fish"], 0, &["complete -c berth"], &[]),
];

#[test]
fn exit_codes_and_words() {
    let (wrong, away) = (IRIS.replace("uri", "url"), nobody());
    for (files, arguments, code, out, err) in CASES {
        let files: Vec<_> =
            files.iter().map(|(name, text)| (*name, if *text == "WRONG" { &wrong } else { *text })).collect();
        let arguments: Vec<_> = arguments.iter().map(|word| if *word == "AWAY" { &away } else { *word }).collect();
        let folder = folder(&files);
        let done = berth(folder.path(), &arguments);
        let (stdout, stderr) = (text(&done.stdout), text(&done.stderr));
        let shown = format!("berth {}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", arguments.join(" "));
        assert_eq!(done.status.code(), Some(*code), "{shown}");
        out.iter().for_each(|word| assert!(stdout.contains(word), "{word:?} is not on stdout: {shown}"));
        err.iter().for_each(|word| assert!(stderr.contains(word), "{word:?} is not on stderr: {shown}"));
        assert!(*code != 0 || stderr.is_empty(), "{shown}");
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["schema", "deployment"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("berth runs");
    drop(child.stdout.take());
    let done = child.wait_with_output().expect("it ends");
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
}
