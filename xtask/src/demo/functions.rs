//! `cargo xtask demo functions`: from `etcdctl put` to an answer, an update, a mistake, the way back, and the same by `berth apply`.

use std::{
    io::{BufRead as _, BufReader, IsTerminal as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    fleet::{PATIENCE, Process},
    free_port, show,
};
use crate::{
    debian, python,
    run::{run as execute, run_quiet, step},
    workspace::Workspace,
};

/// Starts everything, shows it, stops it.
pub(super) fn run(workspace: &Workspace, engine: &Path, exit: bool) -> Result<()> {
    debian::ensure(&[debian::ETCD, debian::ETCDCTL, debian::NODE, debian::NPM, debian::BUBBLEWRAP])?;
    let demo = Demo::start(workspace, engine)?;
    step("A function: an object in etcd names its code. It is built, started, asked once, and answers.");
    let words = workspace.path("examples/functions/words");
    demo.put("words", 1, &words, "handler.predict")?;
    demo.berth(&["rollout", "status", "function/words"])?;
    demo.ask("words", r#"{"text": "to be or not to be"}"#)?;
    demo.etcdctl(&["get", "/models/deployments/words", "--print-value-only"])?;

    step("A mistake: what serves goes on serving, and the object says what is wrong.");
    demo.put("words", 2, &words, "handler.predicct")?;
    // It fails: that is what is shown.
    demo.berth(&["rollout", "status", "function/words"]).ok();
    demo.ask("words", r#"{"text": "still here"}"#)?;
    demo.berth(&["explain", "function/words"])?;
    demo.berth(&["rollout", "undo", "function/words"])?;
    demo.berth(&["rollout", "status", "function/words"])?;

    step("The same by berth apply: the words again, and a model that Keras has saved, with its packages.");
    demo.berth(&["apply", "-f", "examples/functions/functions.yaml"])?;
    demo.berth(&["rollout", "status", "function/words", "function/sentiment", "--timeout", "10m"])?;
    demo.ask("sentiment", r#"{"text": "a good, good film"}"#)?;
    demo.berth(&["logs", "function/sentiment"])?;
    demo.berth(&["get", "functions"])?;
    step("What is in the artifact, and where it came from.");
    demo.curl(&format!("http://127.0.0.1:{}/v1/functions/sentiment/sbom", demo.api))?;
    demo.farewell(exit)
}

/// An etcd and a server that follows it.
struct Demo<'a> {
    workspace: &'a Workspace,
    berth: PathBuf,
    etcd: String,
    http: u16,
    api: u16,
    _processes: Vec<Process>,
}

impl<'a> Demo<'a> {
    fn start(workspace: &'a Workspace, engine: &Path) -> Result<Self> {
        let folder = workspace.cache("demo-functions");
        if folder.exists() {
            fs_err::remove_dir_all(&folder)?;
        }
        fs_err::create_dir_all(&folder)?;
        let (client, peer) = (free_port(2379)?, free_port(0)?);
        let (http, api) = (free_port(8080)?, free_port(8081)?);
        let etcd = format!("http://127.0.0.1:{client}");
        step("an etcd, and berth up that follows it");
        let mut store = Command::new("etcd");
        store
            .args(["--data-dir"])
            .arg(folder.join("etcd"))
            .args(["--listen-client-urls", &etcd, "--advertise-client-urls", &etcd])
            .args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")])
            .args(["--unsafe-no-fsync", "--log-level", "error", "--logger", "zap"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut server = Command::new(workspace.target("debug").join("berth"));
        server
            .current_dir(workspace.root())
            .args(["up", "--source", &format!("etcd={etcd}"), "--function-target", "local", "--log", "warn", "--data"])
            .arg(folder.join("data"))
            .args(["--http", &format!("127.0.0.1:{http}"), "--api", &format!("127.0.0.1:{api}")])
            .env("ORT_DYLIB_PATH", engine)
            .env("BERTH_UV", python::uv(workspace)?);
        show(&server);
        let processes = vec![Process::spawn(&mut store)?, Process::spawn(&mut server)?];
        let berth = workspace.target("debug").join("berth");
        let demo = Self { workspace, berth, etcd, http, api, _processes: processes };
        let end = Instant::now() + PATIENCE;
        while run_quiet(&mut demo.command(&["get", "functions"])).is_err() {
            ensure!(Instant::now() < end, "berth did not answer within {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
        Ok(demo)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.berth);
        command
            .current_dir(self.workspace.root())
            .args(arguments)
            .env("BERTH_API", format!("http://127.0.0.1:{}", self.api))
            .env("BERTH_HTTP", format!("http://127.0.0.1:{}", self.http));
        command
    }

    fn berth(&self, arguments: &[&str]) -> Result<()> {
        let mut command = self.command(arguments);
        show(&command);
        execute(&mut command)
    }

    fn etcdctl(&self, arguments: &[&str]) -> Result<()> {
        eprintln!("$ etcdctl {}", arguments.join(" "));
        let mut command = Command::new("etcdctl");
        execute(command.env("ETCDCTL_API", "3").args(["--endpoints", &self.etcd]).args(arguments))
    }

    fn put(&self, name: &str, generation: u32, code: &Path, entrypoint: &str) -> Result<()> {
        let object = format!(
            r#"{{"apiVersion":"v1alpha1","kind":"ModelDeployment","metadata":{{"name":"{name}","generation":{generation}}},"spec":{{"type":"python","sourceUri":"file:{}","entrypoint":"{entrypoint}","target":{{"platform":"local"}},"probe":{{"text":"one"}}}}}}"#,
            code.display()
        );
        self.etcdctl(&["put", &format!("/models/deployments/{name}"), &object])
    }

    fn ask(&self, name: &str, body: &str) -> Result<()> {
        let url = format!("http://127.0.0.1:{}/functions/{name}", self.http);
        eprintln!("$ curl -d '{body}' {url}");
        execute(Command::new("curl").args(["-sS", "--fail-with-body", "-w", "\n", "-d", body, &url]))
    }

    fn curl(&self, url: &str) -> Result<()> {
        eprintln!("$ curl {url}");
        execute(Command::new("curl").args(["-sS", "--fail-with-body", url]))
    }

    fn farewell(self, exit: bool) -> Result<()> {
        step("What to try next");
        #[expect(clippy::print_stdout, reason = "for people to copy")]
        {
            println!("  export BERTH_API=http://127.0.0.1:{} ETCDCTL_ENDPOINTS={}", self.api, self.etcd);
            println!("  export PATH={}:$PATH", self.workspace.target("debug").display());
            println!("  etcdctl get --prefix /models/deployments/");
            println!("  berth describe function sentiment");
            println!("  docs/functions.md                          # the object, builds, Azure");
        }
        if !exit && std::io::stdin().is_terminal() {
            eprintln!("\nThe server is running; press Enter to stop it.");
            BufReader::new(std::io::stdin()).read_line(&mut String::new())?;
        }
        self.berth(&["delete", "function/words", "function/sentiment"])
    }
}
