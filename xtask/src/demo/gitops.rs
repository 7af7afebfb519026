//! `cargo xtask demo gitops`: from a Git commit to a running fleet. A model repository and a registry are hosted with the
//! validating hook; two workers follow the registry. What people do is pushed: a deployment, a new version, the way back, an
//! emergency, and a mistake that is refused.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    fleet::{Fleet, PATIENCE, Process},
    free_port, show,
};
use crate::{
    debian,
    python::{self, Environment},
    run::{run as execute, run_quiet, step},
    workspace::Workspace,
};

/// The workers, as the registry names them.
const WORKERS: [&str; 2] = ["worker-eu-west-1a", "worker-eu-west-1b"];

/// Users of the Git host and their roles.
const USERS: [(&str, &str); 4] = [("ops", "ops"), ("ml", "ml"), ("broker", "controller"), ("worker", "worker")];

/// The deployment of the example.
const MANIFEST: &str = "models/production/sentiment-prod-euwest.yaml";

/// The actual state, as the broker writes it down.
const ACTUAL_STATE: &str = "berth/actual-state:transactions/actual-state.yaml";

/// Starts everything, shows it, stops it.
pub(super) fn run(workspace: &Workspace, engine: &Path, exit: bool) -> Result<()> {
    debian::ensure(&[debian::ETCD, debian::GIT])?;
    let mut demo = Demo::start(workspace, engine)?;
    demo.deploy()?;
    demo.update()?;
    demo.mistake()?;
    demo.back()?;
    demo.emergency()?;
    step("All of it is on record: in the registry, on a branch of its own, and in the events.");
    demo.registry.git(&["--no-pager", "log", "--oneline", "main"])?;
    demo.until_written()?;
    let Demo { fleet, registry, .. } = demo;
    registry.show(ACTUAL_STATE)?;
    fleet.berth(&["get", "events"])?;
    let hints = [
        format!("cd {}   # change something, commit, push", registry.work.display()),
        "berth get sources                # which commit is applied, and what is wrong with a later one".to_owned(),
        "berth describe deployment sentiment-prod-euwest".to_owned(),
        "docs/models.md, docs/registry.md, docs/gitops.md   # for ML teams and for operations".to_owned(),
    ];
    fleet.farewell(exit, &hints.each_ref().map(String::as_str))
}

/// A clone to work in, and what stands beside it.
struct Clone {
    work: PathBuf,
}

impl Clone {
    /// Makes a repository of `content` and pushes it to `url`.
    fn of(content: &Path, work: PathBuf, url: &str) -> Result<Self> {
        let copy = Command::new("cp").arg("-R").arg(content).arg(&work).status()?;
        ensure!(copy.success(), "cannot copy {}", content.display());
        let clone = Self { work };
        clone.quiet(&["init", "--quiet", "--initial-branch=main"])?;
        clone.quiet(&["remote", "add", "origin", url])?;
        Ok(clone)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.current_dir(&self.work).args(arguments);
        for (name, value) in [("NAME", "Ops"), ("EMAIL", "ops@example.com")] {
            git.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
        }
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null());
        git
    }

    fn quiet(&self, arguments: &[&str]) -> Result<String> {
        run_quiet(&mut self.command(arguments))
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut git = self.command(arguments);
        eprintln!("$ git {}", arguments.join(" "));
        execute(&mut git)
    }

    /// Replaces text in a file; it must be there.
    fn edit(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let path = self.work.join(file);
        let text = fs_err::read_to_string(&path)?;
        ensure!(text.contains(from), "{file} does not say {from:?}");
        eprintln!("$ edit {file}   # {from} -> {to}");
        Ok(fs_err::write(path, text.replace(from, to))?)
    }

    /// Commits all and pushes it; what the hook says is shown.
    fn push(&self, message: &str, tag: Option<&str>) -> Result<()> {
        self.quiet(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "-m", message])?;
        if let Some(tag) = tag {
            self.git(&["tag", tag])?;
            self.git(&["push", "--quiet", "origin", "main", tag])
        } else {
            self.git(&["push", "--quiet", "origin", "main"])
        }
    }

    /// Shows a file of a branch of the remote.
    fn show(&self, what: &str) -> Result<()> {
        self.quiet(&["fetch", "--quiet", "origin", "+refs/heads/*:refs/heads/remote/*"])?;
        self.git(&["--no-pager", "show", &format!("remote/{what}")])
    }
}

struct Demo<'a> {
    fleet: Fleet<'a>,
    python: Environment,
    artifacts: PathBuf,
    model: Clone,
    registry: Clone,
    tokens: Tokens,
    _servers: Vec<Process>,
}

/// The tokens of the users of the Git host, each in a file.
struct Tokens {
    folder: PathBuf,
}

impl Tokens {
    /// Makes a token for everybody, and the file by which the host knows them.
    fn make(fleet: &Fleet<'_>) -> Result<Self> {
        let tokens = Self { folder: fleet.folder.join("tokens") };
        fs_err::create_dir_all(&tokens.folder)?;
        let mut users = String::new();
        for (name, role) in USERS {
            let mut make = fleet.command(&["registry", "token", name, "--role", role]);
            show(&make);
            let made = make.stdin(Stdio::null()).output()?;
            let told = String::from_utf8_lossy(&made.stderr);
            let token = told.split_whitespace().last().filter(|_| made.status.success());
            let token = token.with_context(|| format!("no token for {name}: {told}"))?;
            fs_err::write(tokens.file(name), token)?;
            users.push_str(&String::from_utf8_lossy(&made.stdout));
        }
        fs_err::write(tokens.users(), users)?;
        Ok(tokens)
    }

    fn file(&self, user: &str) -> PathBuf {
        self.folder.join(user)
    }

    fn users(&self) -> PathBuf {
        self.folder.join("users.yaml")
    }

    fn of(&self, user: &str) -> Result<String> {
        Ok(fs_err::read_to_string(self.file(user))?)
    }
}

impl<'a> Demo<'a> {
    fn start(workspace: &'a Workspace, engine: &Path) -> Result<Self> {
        let python = Environment::ensure(workspace, "sentiment", "examples/sentiment-model/requirements.txt")?;
        let mut fleet = Fleet::prepare(workspace, engine, "demo-gitops", &WORKERS)?;
        step("a Git host with roles and the validating hook, and a web server for weights");
        let (git, web) = (free_port(0)?, free_port(0)?);
        let (repositories, artifacts) = (fleet.folder.join("repositories"), fleet.folder.join("artifacts"));
        fs_err::create_dir_all(artifacts.join("sentiment"))?;
        let tokens = Tokens::make(&fleet)?;
        let servers = vec![host(&fleet, &tokens, &repositories, git)?, serve(&python, &artifacts, web)?];
        let url = |user: &str, name: &str| {
            Ok::<_, anyhow::Error>(format!("http://{user}:{}@127.0.0.1:{git}/{name}.git", tokens.of(user)?))
        };
        let (model, registry) = (url("ml", "sentiment-model")?, url("ops", "model-registry")?);
        let example = |name: &str| workspace.path(&format!("examples/{name}"));
        let (model_work, registry_work) = (fleet.folder.join("sentiment-model"), fleet.folder.join("model-registry"));
        let model = Clone::of(&example("sentiment-model"), model_work, &model)?;
        let registry = Clone::of(&example("model-registry"), registry_work, &registry)?;
        // The example names hosts of a company; here they are on this machine.
        let here = [
            ("https://git.example.com/acme/", format!("http://127.0.0.1:{git}/")),
            ("https://artifacts.example.com/", format!("http://127.0.0.1:{web}/")),
        ];
        for (file, clone) in [("model-card.yaml", &model), (MANIFEST, &registry)] {
            let path = clone.work.join(file);
            let text = here.iter().fold(fs_err::read_to_string(&path)?, |text, (from, to)| text.replace(from, to));
            fs_err::write(path, text)?;
        }
        // Nobody who watches a demo waits for half a minute.
        fs_err::write(registry.work.join("registry.yaml"), "writeBack: {interval: 1s}\n")?;
        python_of(&python, &model)?;
        let key = secrets(&fleet, &tokens, &registry, git)?;
        step("two workers that follow the registry");
        let source = format!("git=http://127.0.0.1:{git}/model-registry.git#main");
        let (uv, token) = (python::uv(workspace)?, tokens.file("broker"));
        let (uv, token) = (uv.to_string_lossy(), token.to_string_lossy());
        for node in 0..WORKERS.len() {
            let more =
                ["--source", &source, "--source-interval", "1s", "--memory", "2GiB", "--log", "warn", "--uv", &uv];
            let access = ["--source-user", "broker", "--source-token-file", &token, "--registry-key", &key];
            fleet.start_node(node, &[&more[..], &access].concat())?;
        }
        let mut demo = Self { fleet, python, artifacts, model, registry, tokens, _servers: servers };
        demo.fleet.until_ready()?;
        Ok(demo)
    }

    /// The ML team's part: train, write the card, tag.
    fn release(&self, version: &str) -> Result<()> {
        let mut train = Command::new(self.python.program("python"));
        train.current_dir(&self.model.work).arg("release.py").arg(version).arg(self.artifacts.join("sentiment"));
        train.env("PYTHONDONTWRITEBYTECODE", "1");
        execute(&mut train)?;
        self.model.push(&format!("Release v{version}"), Some(&format!("v{version}")))
    }

    fn deploy(&mut self) -> Result<()> {
        step("The ML team releases a version: train, write its digest into the card, tag, push.");
        self.fleet.berth(&["card", "check", &self.model.work.to_string_lossy()])?;
        self.release("1.2.3")?;
        step(
            "Operations deploy it: a manifest in the registry names the tag. The push is validated before it is taken.",
        );
        self.registry.push("Deploy sentiment v1.2.3 to production", None)?;
        self.until("1.2.3", Duration::from_secs(180))?;
        self.fleet.berth(&["get", "sources"])?;
        self.fleet.berth(&["get", "replicas"])?;
        step("It answers in its own JSON at the path of its endpoint, on every gateway ...");
        self.ask(0, r#"{"text": "A great film, I loved every minute"}"#)?;
        self.ask(1, r#"{"text": "Awful and boring"}"#)?;
        step("... says what is wrong with a request ...");
        self.ask(0, r#"{"text": ""}"#)?;
        step("... and speaks the Open Inference Protocol, too.");
        self.infer()
    }

    fn update(&mut self) -> Result<()> {
        step("A new version. What would it change? Nothing is touched yet.");
        self.release("1.3.0")?;
        self.registry.edit(MANIFEST, "ref: v1.2.3", "ref: v1.3.0")?;
        self.registry.quiet(&["commit", "--quiet", "--all", "-m", "Deploy sentiment v1.3.0"])?;
        let access = format!("ops@127.0.0.1={}", self.tokens.file("ops").display());
        self.fleet.berth(&["plan", "--registry", &self.registry.work.to_string_lossy(), "--git-token", &access])?;
        step("Push it: on each worker the new version is loaded and tried beside the old one, then it takes over.");
        let pushed = Instant::now();
        self.registry.git(&["push", "--quiet", "origin", "main"])?;
        self.until("1.3.0", Duration::from_secs(120))?;
        eprintln!("from the push to ready on both workers: {:.1} s", pushed.elapsed().as_secs_f64());
        self.ask(0, r#"{"text": "A great film, I loved every minute"}"#)
    }

    fn mistake(&mut self) -> Result<()> {
        step("A mistake: a branch instead of a tag. The push is refused, and nothing changes.");
        self.registry.edit(MANIFEST, "ref: v1.3.0", "ref: main")?;
        ensure!(self.registry.push("Follow main", None).is_err(), "the hook took a branch");
        self.registry.quiet(&["reset", "--quiet", "--hard", "origin/main"])?;
        Ok(())
    }

    fn back(&mut self) -> Result<()> {
        step("The way back is a commit like any other.");
        self.registry.edit(MANIFEST, "ref: v1.3.0", "ref: v1.2.3")?;
        self.registry.push("Back to sentiment v1.2.3", None)?;
        self.until("1.2.3", Duration::from_secs(60))
    }

    fn emergency(&mut self) -> Result<()> {
        step("An emergency: the model is disabled everywhere.");
        self.registry.edit(MANIFEST, "enabled: true", "enabled: false")?;
        self.registry.push("EMERGENCY: disable sentiment", None)?;
        self.wait("no replica is left", Duration::from_secs(60), |table| !table.contains("sentiment-prod-euwest"))?;
        self.ask(1, r#"{"text": "A great film"}"#)
    }

    /// Waits until both workers are ready with this version, and with no other.
    fn until(&mut self, version: &str, patience: Duration) -> Result<()> {
        let ready = |line: &&str| line.contains("Ready") && line.contains(version);
        self.wait(&format!("both workers have {version}"), patience, |table| {
            let mut lines = table.lines().skip(1).filter(|line| !line.is_empty()).peekable();
            lines.peek().is_some()
                && table.lines().filter(ready).count() == WORKERS.len()
                && lines.all(|line| ready(&line))
        })
    }

    fn wait(&mut self, what: &str, patience: Duration, done: impl Fn(&str) -> bool) -> Result<()> {
        let end = Instant::now() + patience;
        loop {
            let table = run_quiet(&mut self.fleet.command(&["get", "replicas", "-o", "wide"])).unwrap_or_default();
            if done(&table) {
                return Ok(());
            }
            self.fleet.all_alive()?;
            if Instant::now() > end {
                self.fleet.berth(&["get", "events"])?;
                bail!("never came: {what}; there is\n{table}");
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until it is written down that nothing is loaded any more: a while after it has become so.
    fn until_written(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.registry.quiet(&["fetch", "--quiet", "origin", "+refs/heads/*:refs/heads/remote/*"])?;
            let state = self.registry.quiet(&["show", &format!("remote/{ACTUAL_STATE}")]).unwrap_or_default();
            if state.contains("worker_id") && !state.contains("deployment_id") {
                return Ok(());
            }
            ensure!(Instant::now() < end, "never written down: that nothing is loaded; there is\n{state}");
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn ask(&self, node: usize, request: &str) -> Result<()> {
        let url = format!("http://127.0.0.1:{}/v1/sentiment", self.fleet.nodes[node].http);
        eprintln!("$ curl {url} -d '{request}'");
        let script = "import sys, urllib.request as u, urllib.error as e\n\
                      q = u.Request(sys.argv[1], sys.argv[2].encode(), {'content-type': 'application/json'})\n\
                      try: a = u.urlopen(q)\n\
                      except e.HTTPError as error: a = error\n\
                      print(a.status, a.read().decode())";
        execute(Command::new(self.python.program("python")).args(["-c", script, &url, request]))
    }

    fn infer(&self) -> Result<()> {
        let request =
            r#"{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["wonderful", "terrible"]}]}"#;
        let file = self.fleet.folder.join("request.json");
        fs_err::write(&file, request)?;
        let mut infer = self.fleet.command(&["infer", "sentiment-prod-euwest", "-f", &file.to_string_lossy()]);
        infer.env("BERTH_HTTP", format!("http://127.0.0.1:{}", self.fleet.nodes[0].http));
        show(&infer);
        execute(&mut infer)
    }
}

/// A key for the registry's secrets, and in the registry, encrypted for each worker, what it reads model repositories with. Gives
/// what opens them.
fn secrets(fleet: &Fleet<'_>, tokens: &Tokens, registry: &Clone, port: u16) -> Result<String> {
    step("a key for secrets; each worker's access to model repositories, encrypted for it in the registry");
    let keys = fleet.folder.join("keys");
    fleet.berth(&["secrets", "keygen", "--out", &keys.to_string_lossy()])?;
    let files: Vec<PathBuf> = fs_err::read_dir(&keys)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let is_public = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "pub");
    let public = files.iter().find(is_public).context("there is no public key")?;
    let private = files.iter().find(|path| !is_public(path)).context("there is no private key")?;
    let plain = format!(
        "secrets:\n  models:\n    type: git_token\n    token: {}\n    username: worker\n    hosts: ['127.0.0.1:{port}']\n",
        tokens.of("worker")?
    );
    let file = fleet.folder.join("plain.yaml");
    fs_err::write(&file, plain)?;
    for worker in WORKERS {
        let out = registry.work.join(format!("workers/secrets/{worker}-secrets.yaml"));
        let (public, file, out) = (public.to_string_lossy(), file.to_string_lossy(), out.to_string_lossy());
        fleet.berth(&["secrets", "encrypt", "--key", &public, "--worker", worker, "--file", &file, "--out", &out])?;
    }
    fs_err::remove_file(file)?;
    Ok(format!("file:{}", private.display()))
}

/// `berth registry serve`: Git over HTTP, with the hook in each repository.
fn host(fleet: &Fleet<'_>, tokens: &Tokens, root: &Path, port: u16) -> Result<Process> {
    let mut serve = fleet.command(&["registry", "serve", "--listen", &format!("127.0.0.1:{port}"), "--root"]);
    fs_err::create_dir_all(root)?;
    serve.arg(root).args(["--create", "model-registry", "--create", "sentiment-model", "--users"]).arg(tokens.users());
    serve.args(["--git-token", &format!("broker@127.0.0.1={}", tokens.file("broker").display())]);
    // The nodes poll every second.
    serve.arg("--no-announce");
    serve.arg("--cache").arg(fleet.folder.join("git-cache")).stdout(Stdio::null());
    show(&serve);
    let process = Process::spawn(&mut serve)?;
    listening(port)?;
    Ok(process)
}

fn serve(python: &Environment, folder: &Path, port: u16) -> Result<Process> {
    let mut serve = Command::new(python.program("python"));
    serve.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1", "--directory"]).arg(folder);
    let process = Process::spawn(serve.stdout(Stdio::null()).stderr(Stdio::null()))?;
    listening(port)?;
    Ok(process)
}

fn listening(port: u16) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(Instant::now() < end, "nobody listens on port {port}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The card names the version of Python that is here, so that the demo runs where there is only one.
fn python_of(python: &Environment, model: &Clone) -> Result<()> {
    let script = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = run_quiet(Command::new(python.program("python")).args(["-c", script]))?;
    let path = model.work.join("model-card.yaml");
    let card = fs_err::read_to_string(&path)?;
    let line = card.lines().find(|line| line.trim_start().starts_with("python_version:"));
    let line = line.context("the card names no version of Python")?;
    Ok(fs_err::write(&path, card.replace(line, &format!("  python_version: \"{}\"", version.trim())))?)
}
