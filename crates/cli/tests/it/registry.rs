//! The registry's commands as processes, with the real git on both sides.

mod ci;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

fn run(program: &str, folder: &Path, arguments: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(folder).env_clear().args(arguments).stdin(Stdio::null());
    command.envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LD_LIBRARY_PATH"));
    let home = folder.display().to_string();
    command.envs([
        ("HOME", home.as_str()),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_AUTHOR_NAME", "Ada"),
        ("GIT_AUTHOR_EMAIL", "ada@example.com"),
        ("GIT_COMMITTER_NAME", "Ada"),
        ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ("LC_ALL", "C"),
    ]);
    command.envs(env.iter().copied()).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn berth(folder: &Path, arguments: &[&str]) -> Output {
    run(env!("CARGO_BIN_EXE_berth"), folder, arguments, &[])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let out = run("git", folder, arguments, &[]);
    assert!(out.status.success(), "git {arguments:?}: {}", text(&out.stderr));
    text(&out.stdout).trim().to_owned()
}

fn right(out: &Output) -> String {
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// A registry of `berth registry init`, a model of `berth card new` in a repository, and a deployment of it.
struct World {
    root: TempDir,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        right(&berth(root.path(), &["card", "new", "iris-model"]));
        right(&berth(root.path(), &["registry", "init", "registry"]));
        let world = Self { root };
        git(&world.model(), &["init", "-q", "-b", "main"]);
        git(&world.registry(), &["init", "-q", "-b", "main"]);
        let card = world.model().join("model-card.yaml");
        let here = fs::read_to_string(&card)
            .expect("a card")
            .replace("https://git.example.com/ml-team/iris-model.git", &world.url());
        fs_err::write(card, here).expect("written");
        git(&world.model(), &["add", "-A"]);
        git(&world.model(), &["commit", "-q", "-m", "first"]);
        git(&world.model(), &["tag", "v0.1.0"]);
        let example = |name: &str| fs::read_to_string(world.registry().join(name)).expect("an example");
        let manifest = example("models/staging/example.yaml.txt")
            .replace("https://git.example.com/acme/iris-model.git", &world.url())
            .replace("v1.0.0", "v0.1.0");
        world.write("models/staging/iris-staging.yaml", &manifest);
        world.write("workers/worker-eu-west-1a.yaml", &example("workers/worker-example.yaml.txt"));
        world
    }

    fn model(&self) -> PathBuf {
        self.root.path().join("iris-model")
    }

    fn registry(&self) -> PathBuf {
        self.root.path().join("registry")
    }

    fn url(&self) -> String {
        format!("file://{}", self.model().display())
    }

    fn write(&self, file: &str, text: &str) {
        fs_err::write(self.registry().join(file), text).expect("written");
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let before = fs::read_to_string(self.registry().join(file)).expect("a file");
        assert!(before.contains(from), "{before}");
        self.write(file, &before.replace(from, to));
    }

    fn commit(&self, message: &str) {
        git(&self.registry(), &["add", "-A"]);
        git(&self.registry(), &["commit", "-q", "-m", message]);
    }

    fn validate(&self, more: &[&str]) -> Output {
        berth(&self.registry(), &[&["registry", "validate", ".", "--local-repositories"], more].concat())
    }
}

const MANIFEST: &str = "models/staging/iris-staging.yaml";

#[test]
fn a_new_registry_with_a_new_model_is_right() {
    let world = World::new();
    assert!(right(&world.validate(&[])).contains("accepted: 1 manifest, 1 worker, 1 model card"));
    assert!(right(&world.validate(&["--offline"])).contains("cards not looked at"));
    world.commit("first");
    assert!(right(&world.validate(&["--commit", "HEAD"])).contains("accepted "));
    // A second time changes nothing, and keeps what somebody wrote.
    world.edit("README.md", "# model-registry", "# ours");
    assert!(right(&berth(world.root.path(), &["registry", "init", "registry"])).contains("made 0 files"));
}

#[test]
fn what_is_wrong_is_shown_and_ends_with_1() {
    let world = World::new();
    world.edit(MANIFEST, "v0.1.0", "main");
    let out = world.validate(&[]);
    assert_eq!(out.status.code(), Some(1));
    let told = text(&out.stderr);
    assert!(told.contains("--> models/staging/iris-staging.yaml:7:8") && told.contains("is not pinned"), "{told}");
    for (form, part) in [
        ("json", "\"outcome\": \"unpinned_ref\""),
        ("sarif", "\"ruleId\": \"unpinned\""),
        ("junit", "type=\"unpinned_ref\""),
    ] {
        let out = world.validate(&["-o", form]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stdout).contains(part), "{}", text(&out.stdout));
    }
    let out = world.validate(&["--previous", "HEAD"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    let out = world.validate(&["--commit", "nowhere"]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    // Repositories of this machine are only looked at where somebody says so.
    world.edit(MANIFEST, "ref: main", "ref: v0.1.0");
    let out = berth(&world.registry(), &["registry", "validate", "."]);
    assert!(text(&out.stderr).contains("not allowed here"), "{}", text(&out.stderr));
}

#[test]
fn cards_of_every_framework_are_right() {
    for framework in ["sklearn", "pytorch", "xgboost", "tensorflow", "onnx", "custom"] {
        let folder = tempfile::tempdir().expect("a folder");
        right(&berth(folder.path(), &["card", "new", "My_Model", "--framework", framework]));
        // What is set for `berth up` is no word about this check.
        let set = [("BERTH_UV", "/opt/uv")];
        let out = right(&run(env!("CARGO_BIN_EXE_berth"), folder.path(), &["card", "check", "My_Model"], &set));
        assert!(out.contains("my 0.1.0 is valid; 1 warning") && out.contains("checksum"), "{out}");
    }
}

#[test]
fn code_that_a_card_names_must_be_there() {
    let folder = tempfile::tempdir().expect("a folder");
    right(&berth(folder.path(), &["card", "new", "m"]));
    let card = folder.path().join("m/model-card.yaml");
    let text_of = fs::read_to_string(&card).expect("a card");
    for (from, to, part) in [
        ("function: to_features", "function: to_feature", "did you mean to_features?"),
        ("module: src.postprocessing", "module: src.post", "there is no module src.post"),
        ("entrypoint: src.model", "entrypoint: model2", "there is no module model2"),
        ("entrypoint: src.model", "entrypoint: src.model:lod", "did you mean load?"),
        ("framework: sklearn", "framework: sklern", "did you mean sklearn?"),
    ] {
        fs_err::write(&card, text_of.replace(from, to)).expect("written");
        let out = berth(folder.path(), &["card", "check", "m"]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains(part), "{}", text(&out.stderr));
    }
    // A function that is made in one of two ways is there.
    fs_err::write(&card, text_of.replace("entrypoint: src.model", "entrypoint: src.model:load")).expect("written");
    let code = "try:\n    from fast import to_features\nexcept ImportError:\n    def to_features(request):\n        return []\n";
    fs_err::write(folder.path().join("m/src/preprocessing.py"), code).expect("written");
    right(&berth(folder.path(), &["card", "check", "m"]));
}

#[test]
fn schemas_are_published() {
    let folder = tempfile::tempdir().expect("a folder");
    for (arguments, part) in [
        (&["model-card"][..], "\"title\": \"ModelCard\""),
        (&["model-card", "--version", "3.0.0", "-o", "yaml"], "schemaVersion: \"3.0.0\""),
        (&["deployment"], "\"title\": \"ModelDeployment\""),
        (&["deployment", "--version", "3.0.0", "-o", "yaml"], "schemaVersion: \"3.0.0\""),
        (&["worker-config", "-o", "yaml"], "title: WorkerConfig"),
        (&["registry-settings"], "unknownWorkers"),
        (&["matrix"], "sunset_date: \"2026-01-01\""),
        (&["matrix", "-o", "json"], "\"compatible_with\""),
        (&["manifest"], "berth.dev/v1"),
        (&[], "berth.dev/v1"),
    ] {
        let out = right(&berth(folder.path(), &[&["schema"], arguments].concat()));
        assert!(out.contains(part), "{arguments:?}: {out}");
    }
    assert_eq!(berth(folder.path(), &["schema", "model-card", "--version", "9"]).status.code(), Some(2));
}

/// Pushes; what git said, and whether it was taken.
fn push(folder: &Path, what: &[&str]) -> (bool, String) {
    let out = run("git", folder, &[&["push", "-q"], what].concat(), &[("GIT_SSL_NO_VERIFY", "0")]);
    (out.status.success(), text(&out.stderr))
}

#[test]
fn the_hook_keeps_bad_pushes_out() {
    let world = World::new();
    let server = world.root.path().join("server.git");
    git(world.root.path(), &["init", "-q", "--bare", "-b", "main", "server.git"]);
    right(&berth(
        world.root.path(),
        &["registry", "hook", "install", "server.git", "--local-repositories", "--writer", "berth"],
    ));
    git(&world.registry(), &["remote", "add", "origin", "../server.git"]);

    world.edit(MANIFEST, "v0.1.0", "main");
    world.commit("bad");
    let (taken, told) = push(&world.registry(), &["origin", "main"]);
    assert!(!taken);
    for part in [
        "remote: ",
        "is not pinned",
        "models/staging/iris-staging.yaml:7:8",
        "by: Ada",
        "nothing of this push is taken",
        "pre-receive hook declined",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(git(&server, &["count-objects"]), "0 objects, 0 kilobytes");
    assert_eq!(git(&server, &["for-each-ref"]), "");

    world.edit(MANIFEST, "ref: main", "ref: v0.1.0");
    world.commit("good");
    let (taken, told) = push(&world.registry(), &["origin", "main"]);
    assert!(taken && told.contains("remote: accepted"), "{told}");

    // Of a push of several refs everything is taken, or nothing.
    let (taken, told) = push(&world.registry(), &["origin", "main:other", ":main"]);
    assert!(!taken && told.contains("nothing of this push is taken: 1 ref rejected"), "{told}");
    assert_eq!(git(&server, &["for-each-ref", "refs/heads/other"]), "");
    let (taken, told) = push(&world.registry(), &["-f", "origin", "HEAD^:main"]);
    assert!(!taken && told.contains("only grows"), "{told}");
    let (taken, told) = push(&world.registry(), &["origin", ":main"]);
    assert!(!taken && told.contains("it is not deleted"), "{told}");
    let (taken, told) = push(&world.registry(), &["origin", "main:berth/actual-state"]);
    assert!(!taken && told.contains("written by berth alone"), "{told}");
    let out = run(
        "git",
        &world.registry(),
        &["push", "-q", "origin", "main:berth/actual-state"],
        &[("REMOTE_USER", "berth")],
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    // Another branch is somebody's work: it is not looked at.
    assert!(push(&world.registry(), &["origin", "main:wip"]).0);
}

#[test]
fn a_version_is_tagged_once_and_has_a_right_card() {
    let world = World::new();
    git(world.root.path(), &["init", "-q", "--bare", "-b", "main", "model.git"]);
    right(&berth(
        world.root.path(),
        &["registry", "hook", "install", "model.git", "--kind", "model", "--local-repositories"],
    ));
    git(&world.model(), &["remote", "add", "origin", "../model.git"]);
    assert!(push(&world.model(), &["origin", "main", "v0.1.0"]).0);
    git(&world.model(), &["commit", "-q", "--allow-empty", "-m", "later"]);
    git(&world.model(), &["tag", "-f", "v0.1.0"]);
    let (taken, told) = push(&world.model(), &["-f", "origin", "v0.1.0"]);
    assert!(!taken && told.contains("a version never changes"), "{told}");
    git(&world.model(), &["tag", "-a", "-m", "x", "v0.2.0"]);
    let (taken, told) = push(&world.model(), &["origin", "v0.2.0"]);
    assert!(!taken && told.contains("tag it v0.1.0"), "{told}");
    let card = world.model().join("model-card.yaml");
    let wrong = fs::read_to_string(&card).expect("a card").replace("cpu: 0.5", "cpu: lots").replace("0.1.0", "0.3.0");
    fs_err::write(card, wrong).expect("written");
    git(&world.model(), &["commit", "-q", "-a", "-m", "wrong"]);
    git(&world.model(), &["tag", "v0.3.0"]);
    let (taken, told) = push(&world.model(), &["origin", "v0.3.0"]);
    assert!(!taken && told.contains("is not a number"), "{told}");
}

#[test]
fn a_hook_of_somebody_else_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    git(folder.path(), &["init", "-q", "--bare", "server.git"]);
    fs_err::create_dir_all(folder.path().join("server.git/hooks")).expect("a folder");
    fs_err::write(folder.path().join("server.git/hooks/pre-receive"), "#!/bin/sh\n").expect("written");
    let out = berth(folder.path(), &["registry", "hook", "install", "server.git"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("hook of another program"), "{}", text(&out.stderr));
}

/// A server that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(root: &Path, users: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command
            .args(["registry", "serve", "--listen", "127.0.0.1:0"])
            .arg("--root")
            .arg(root)
            .arg("--users")
            .arg(users);
        let mut child =
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("berth runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("serving http://").unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, address }
    }

    fn url(&self, user: &str, token: &str, name: &str) -> String {
        format!("http://{user}:{token}@{}/{name}.git", self.address)
    }
}

/// A user of the file, and their token.
fn user(file: &Path, name: &str, role: &str) -> String {
    let folder = file.parent().expect("a folder");
    let out = berth(folder, &["registry", "token", name, "--role", role]);
    let before = fs::read_to_string(file).unwrap_or_default();
    fs_err::write(file, before + &right(&out)).expect("written");
    text(&out.stderr).trim().rsplit(' ').next().expect("a token").to_owned()
}

#[test]
fn a_server_has_roles_hooks_and_no_anonymous_readers() {
    let world = World::new();
    let root = world.root.path();
    let users = root.join("users.yaml");
    let [ops, ml, berth_token] =
        [("ada", "ops"), ("mel", "ml"), ("berth", "controller")].map(|(name, role)| user(&users, name, role));
    let served = root.join("served");
    let server = Server::start(
        &served,
        &users,
        &[
            "--create",
            "model-registry",
            "--create",
            "iris-model",
            "--local-repositories",
            "--announce",
            "http://127.0.0.1:1",
        ],
    );
    let at = |name: &str, token: &str, repository: &str| server.url(name, token, repository);

    assert!(push(&world.model(), &[&at("mel", &ml, "iris-model"), "main", "v0.1.0"]).0);
    let (taken, told) = push(&world.model(), &[&at("ada", &ops, "iris-model"), "main:other"]);
    assert!(!taken && told.contains("403"), "{told}");

    world.edit(MANIFEST, "v0.1.0", "main");
    world.commit("bad");
    let (taken, told) = push(&world.registry(), &[&at("ada", &ops, "model-registry"), "main"]);
    assert!(!taken && told.contains("remote: ") && told.contains("is not pinned"), "{told}");
    assert_eq!(git(&served.join("model-registry.git"), &["count-objects"]), "0 objects, 0 kilobytes");
    world.edit(MANIFEST, "ref: main", "ref: v0.1.0");
    world.commit("good");
    let (taken, told) = push(&world.registry(), &[&at("mel", &ml, "model-registry"), "main"]);
    assert!(!taken && told.contains("403"), "{told}");
    // Pushes to the registry are announced; that nobody listens is no reason to refuse them.
    let (taken, told) = push(&world.registry(), &[&at("ada", &ops, "model-registry"), "main"]);
    assert!(taken && told.contains("no server was told") && told.contains("127.0.0.1:1"), "{told}");
    assert!(!served.join("iris-model.git/hooks/post-receive").exists());
    assert!(!push(&world.registry(), &[&at("ada", &ops, "model-registry"), "main:berth/actual-state"]).0);
    assert!(push(&world.registry(), &[&at("berth", &berth_token, "model-registry"), "main:berth/actual-state"]).0);

    for (name, token) in [("ada", "wrong"), ("nobody", ops.as_str())] {
        let out = run("git", root, &["ls-remote", &at(name, token, "model-registry")], &[]);
        assert!(!out.status.success(), "{}", text(&out.stdout));
    }
    let out = run("git", root, &["ls-remote", &format!("http://{}/model-registry.git", server.address)], &[]);
    assert!(!out.status.success());

    // A card that is read over HTTP with a token of its reader.
    let plain = format!("http://{}/iris-model.git", server.address);
    world.edit(MANIFEST, &world.url(), &plain);
    let out = world.validate(&[]);
    assert!(!out.status.success() && text(&out.stderr).contains("credentials"), "{}", text(&out.stderr));
    fs_err::write(root.join("token"), &ml).expect("written");
    let out = world.validate(&["--git-token", "127.0.0.1=../token"]);
    assert!(!out.status.success(), "the server wants the user's name, too");
    let out = world.validate(&["--git-token", "mel@127.0.0.1=../token"]);
    assert!(right(&out).contains("accepted"));
}

#[test]
fn tokens_do_not_cross_the_network_in_the_clear() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users.yaml");
    user(&users, "ada", "ops");
    let out =
        berth(folder.path(), &["registry", "serve", "--root", "x", "--users", "users.yaml", "--listen", "0.0.0.0:0"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("--tls-cert"), "{}", text(&out.stderr));
}
