//! `cargo xtask test`: everything that CI checks. Tests wait more than they compute, so that most of it runs at the same time:
//!
//! ```text
//! tools:    packages ─ Python environments ─ engine ─ models ─ control plane of Kubernetes
//! compiler: format ─ berth ─────────┬─ tests in Rust ─┬─ lints
//! tests:                            └─ e2e, attack, gitops, cluster, kubernetes, docs, packages, python
//!                                                     └─ programs of tests in Rust
//! ```

mod dependencies;
mod rust;
mod slowest;
mod stages;
mod suites;

use std::{
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, Scope},
};

use anyhow::Result;
use clap::Args;

use self::{
    dependencies::Dependencies,
    slowest::Timed,
    stages::Stages,
    suites::{Suite, Tools},
};
use crate::{
    debian, deny, dist, docs,
    go::{DoesNotCompile, Program},
    kubernetes, python, setup,
    workspace::Workspace,
};

pub(crate) use self::{rust::programs, stages::LIMIT};

/// Suites in Python that run at once, beside the tests in Rust. They have timers: with more of them on two cores, requests to stores
/// and clusters run into their limits. With fewer, cores are idle at the end: suites wait more than they compute.
const SUITES_AT_ONCE: usize = 4;

/// Tests to run; all where nothing is chosen.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only the lints and the tests in Rust.
    #[arg(long, group = "only")]
    rust: bool,
    /// Run only the end-to-end tests with real clients and servers.
    #[arg(long, group = "only")]
    e2e: bool,
    /// Run only the attacks on a server.
    #[arg(long, group = "only")]
    attack: bool,
    /// Run only the tests of clusters in network namespaces (as root).
    #[arg(long, group = "only")]
    cluster: bool,
    /// Run only the tests from a Git commit to a running fleet.
    #[arg(long, group = "only")]
    gitops: bool,
    /// Run only the tests of the operator, against a control plane of Kubernetes that is built first where it is missing.
    #[arg(long, group = "only")]
    kubernetes: bool,
    /// Run only the pages of the documentation, as a reader follows them, and the tests of the site.
    #[arg(long, group = "only")]
    docs: bool,
    /// Run only the tests of packages, installed and started.
    #[arg(long, group = "only")]
    packages: bool,
    /// Run only the tests of the Python package in which models run.
    #[arg(long, group = "only")]
    python: bool,
    /// Arguments for cargo test, or for pytest after the name of a suite.
    #[arg(last = true)]
    rest: Vec<String>,
}

impl Options {
    fn all(&self) -> bool {
        !(self.rust
            || self.e2e
            || self.attack
            || self.cluster
            || self.gitops
            || self.kubernetes
            || self.docs
            || self.packages
            || self.python)
    }

    fn has_rust(&self) -> bool {
        self.all() || self.rust
    }

    /// The one that takes longest first, by what each took with its workers while the others ran: attacks wait out the limits of a server
    /// for a quarter of an hour, and leave the cores to the others.
    fn suites(&self) -> Vec<Suite> {
        let chosen = [
            (self.attack, suites::ATTACK),
            (self.e2e, suites::E2E),
            (self.gitops, suites::GITOPS),
            (self.cluster, suites::CLUSTER),
            (self.kubernetes, suites::KUBERNETES),
            (self.packages, suites::PACKAGES),
            (self.docs, suites::DOCS),
            (self.python, suites::PYTHON),
        ];
        chosen.into_iter().filter(|(chosen, _)| self.all() || *chosen).map(|(_, suite)| suite).collect()
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let stages = Stages::new(workspace.cache("test"))?;
    // Without them the run takes longer, nothing else.
    let dependencies = Dependencies::bring(workspace);
    let run = Run { workspace, options, stages, times: Mutex::default(), plane: Mutex::default() };
    thread::scope(|scope| run.everything(scope));
    let Run { stages, times, .. } = run;
    match dependencies {
        Ok(dependencies) if options.all() => {
            if let Err(error) = dependencies.keep() {
                stages.note(&format!("compiled dependencies are not kept for the next clone: {error:#}"));
            }
        }
        Ok(_) => {}
        Err(error) => stages.note(&format!("dependencies that were compiled before cannot be brought: {error:#}")),
    }
    slowest::print(times.into_inner().unwrap_or_else(PoisonError::into_inner));
    stages.finish()
}

/// One run of the tests.
struct Run<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    stages: Stages,
    times: Mutex<Vec<Timed>>,
    /// Held while the control plane of Kubernetes is built.
    plane: Mutex<()>,
}

impl Run<'_> {
    /// Compiles one thing after the other, since each takes all cores; tests start as soon as what they need is there.
    fn everything<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let suites = self.options.suites();
        let names: Vec<_> = suites.iter().map(|suite| suite.name).collect();
        let has = move |suite: &Suite| names.contains(&suite.name);
        let tools = scope.spawn(move || {
            let tools = self.stages.step("tools", || self.tools()).map(Arc::new);
            // They take minutes, and cores that the compiler leaves idle. Their suites ask again, and tell why they are not there.
            scope.spawn(move || {
                if has(&suites::E2E) {
                    Program::MlserverAdapter.ensure().ok();
                }
                if has(&suites::KUBERNETES) {
                    self.plane().ok();
                }
            });
            tools
        });
        if self.options.has_rust() {
            self.stages.run("format", cargo(self.workspace).args(["fmt", "--all", "--check"]), str::to_owned);
        }
        let built = suites.is_empty() || self.build();
        let tools = tools.join().unwrap_or_default();
        match &tools {
            Some(tools) if built => self.start(scope, suites, tools),
            _ => suites.iter().for_each(|suite| self.stages.not_run(&named(suite), "berth or the tools are missing")),
        }
        if self.options.has_rust() {
            self.rust(scope, tools);
        }
    }

    /// Starts the suites, [`SUITES_AT_ONCE`] of them at a time.
    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, suites: Vec<Suite>, tools: &Arc<Tools>) {
        let queue = Arc::new(Mutex::new(suites.into_iter()));
        for _ in 0..SUITES_AT_ONCE {
            let (queue, tools) = (Arc::clone(&queue), Arc::clone(tools));
            scope.spawn(move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(suite) = next else { break };
                    self.suite(&named(&suite), suite, &tools);
                }
            });
        }
    }

    /// Installs what the tests need beside cargo.
    fn tools(&self) -> Result<Tools> {
        debian::ensure(&[debian::ETCD, debian::ETCDCTL, debian::GIT, debian::SOFTHSM, debian::IP, debian::IPTABLES])?;
        debian::ensure(&[debian::SSH_KEYGEN, debian::GPG, debian::OPENSSL, debian::PROMTOOL, debian::CHROMIUM])?;
        debian::ensure(&[debian::NODE, debian::NPM, debian::BUBBLEWRAP, debian::REDIS, debian::NATS, debian::CURL])?;
        if self.options.kubernetes {
            self.plane()?;
        }
        let engine = setup::engine_and_models(self.workspace)?.engine;
        Tools::ensure(self.workspace, engine, python::uv(self.workspace)?)
    }

    /// Builds the programs that the suites in Python start.
    fn build(&self) -> bool {
        self.stages.run("build berth", build(self.workspace).arg("--quiet"), str::to_owned).passed
    }

    fn suite(&self, name: &str, suite: Suite, tools: &Tools) {
        if suite.name == suites::PACKAGES.name {
            let options = dist::Options::for_tests(suites::packages(self.workspace));
            if self.stages.step("packages", || dist::make(self.workspace, &options)).is_none() {
                return self.stages.not_run(name, "the packages could not be made");
            }
        }
        if suite.name == suites::E2E.name
            && let Err(error) = Program::MlserverAdapter.ensure()
        {
            self.stages
                .note(&format!("LEFT OUT: tests of KServe's mlserver-adapter, which cannot be built: {error:#}"));
        }
        if suite.name == suites::KUBERNETES.name
            && let Err(error) = self.plane()
        {
            if error.is::<DoesNotCompile>() {
                return self.stages.not_run(name, &format!("{error:#}"));
            }
            return self.stages.note(&format!("LEFT OUT: {name}: its control plane cannot be built: {error:#}"));
        }
        if suite.name == suites::DOCS.name && self.stages.step("site", || docs::make(self.workspace)).is_none() {
            return self.stages.not_run(name, "the site could not be made");
        }
        // Without a choice the arguments are cargo's.
        let rest = if self.options.all() { &[] } else { self.options.rest.as_slice() };
        self.keep(suites::run(&self.stages, name, self.workspace, suite, tools, rest));
    }

    fn rust<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, tools: Option<Arc<Tools>>) {
        match tools {
            Some(tools) if self.options.rest.is_empty() => self.test_programs(scope, tools),
            Some(tools) => {
                let mut tests = cargo(self.workspace);
                tests.args(["test", "--workspace"]).args(&self.options.rest);
                rust::environment(&mut tests, &tools);
                self.stages.run("tests: Rust", &mut tests, str::to_owned);
            }
            None => self.stages.not_run("tests: Rust", "the tools are missing"),
        }
        self.stages.step("dependencies", || deny::check(self.workspace));
        if lints_in_builds() {
            return self.stages.note("lints: in the builds, by RUSTC_WORKSPACE_WRAPPER");
        }
        let mut lints = compiler(self.workspace);
        lints.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        self.stages.run("lints", &mut lints, str::to_owned);
    }

    /// Builds the test programs, and starts them beside the lints.
    fn test_programs<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, tools: Arc<Tools>) {
        let mut build = compiler(self.workspace);
        build.args(["test", "--quiet", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
        let built = self.stages.read("build tests in Rust", &mut build);
        if !built.passed {
            return self.stages.not_run("tests: Rust", "they do not build");
        }
        let programs = rust::programs(&built.output);
        scope.spawn(move || {
            self.keep(rust::run(&self.stages, programs, |command| rust::environment(command, &tools)));
        });
        let mut examples = compiler(self.workspace);
        examples.args(["test", "--quiet", "--workspace", "--doc"]);
        self.stages.run("tests: documentation", &mut examples, str::to_owned);
    }

    /// Builds the control plane of Kubernetes, once for each machine.
    fn plane(&self) -> Result<()> {
        let _alone = self.plane.lock().unwrap_or_else(PoisonError::into_inner);
        kubernetes::ensure().map(drop)
    }

    fn keep(&self, times: Vec<Timed>) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).extend(times);
    }
}

/// True if what compiles the repository's crates lints them too, and refuses what it finds: `.ci/run` sets it so, for nothing is compiled
/// for lints alone then. All targets are built for the tests.
fn lints_in_builds() -> bool {
    let is =
        |name: &str, end: &[u8]| std::env::var_os(name).is_some_and(|value| value.as_encoded_bytes().ends_with(end));
    is("RUSTC_WORKSPACE_WRAPPER", b"clippy-driver") && is("CLIPPY_ARGS", b"-Dwarnings")
}

/// Name of a suite's stage.
fn named(suite: &Suite) -> String {
    format!("tests: {}", suite.name)
}

pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace.root());
    cargo
}

/// Builds `berth` and the programs beside it that tests start, for whatever needs a binary without optimizations. The whole workspace
/// is named: of another choice cargo would compile the dependencies anew, with the features that it asks for.
pub(crate) fn build(workspace: &Workspace) -> Command {
    let mut build = cargo(workspace);
    build.args(["build", "--workspace", "--bin", "berth", "--example", "s3_server"]);
    build
}

/// Cargo for what is compiled while tests run: they have timers, and get the cores first.
fn compiler(workspace: &Workspace) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "5"]).arg(cargo(workspace).get_program()).current_dir(workspace.root());
    nice
}
