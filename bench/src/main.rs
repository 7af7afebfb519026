//! Measures Berth beside its peers, beside bare echo servers and beside the engine alone, in one run on one machine,
//! and writes `docs/benchmarks.md`. Started by `cargo xtask bench`.
//!
//! Servers are processes of their own; the load comes from this process, which uses one thread. On a machine with few
//! cores they share them, so compare rows of one run with each other, not with other machines.

#![expect(clippy::print_stdout, reason = "a program for people")]

mod auth;
mod cluster;
mod cores;
mod density;
mod echo;
mod engine;
mod executor;
mod load;
mod memory;
mod miss;
mod overload;
mod page;
mod payload;
mod planning;
mod python;
mod restart;
mod server;
mod throughput;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks to run.
#[derive(Parser)]
pub(crate) struct Arguments {
    /// The release binary of `berth`.
    #[arg(long, default_value = "target/release-lto/berth")]
    berth: PathBuf,
    /// Another binary of `berth`, measured beside the first: before and after a change, in one run.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Only the lines of the throughput table with all of these, e.g. `iris,gRPC,64`: model, protocol, callers.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The `plan_bench` example of the plan crate.
    #[arg(long)]
    plan_bench: Option<PathBuf>,
    /// The `bin` folder of an environment with MLServer.
    #[arg(long)]
    mlserver: Option<PathBuf>,
    /// The `bin` folder of an environment with Triton.
    #[arg(long)]
    triton: Option<PathBuf>,
    /// The `bin` folder of an environment with Envoy.
    #[arg(long)]
    envoy: Option<PathBuf>,
    /// The `bin` folder of an environment with BentoML and the frameworks of the Python models.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Numbers of models for `density`, to run it smaller. The page is written only where none is given.
    #[arg(long, value_delimiter = ',')]
    models: Vec<usize>,
    /// Calls per second of `density`.
    #[arg(long, default_value_t = 1_000.0)]
    rate: f64,
    /// Requests of `restart`, through which the model server is killed and the executor ends.
    #[arg(long, default_value_t = restart::REQUESTS)]
    requests: u64,
    /// The parts to run; all of one machine, and the page is written, when none is given. `cluster` measures a cluster
    /// instead, or some of its parts: hop, stream, recovery, registered, change; `density` many models in two model servers, or some
    /// of its parts: hits, cost.
    parts: Vec<String>,
    #[command(subcommand)]
    role: Option<Role>,
}

/// This program is also the echo servers that it compares with.
#[derive(Subcommand)]
enum Role {
    /// A bare axum server that parses a JSON inference request and answers with its inputs.
    EchoHttp {
        address: SocketAddr,
        /// Folder with `server.pem` and `server.key`: serves over TLS
        #[arg(long)]
        tls: Option<PathBuf>,
    },
    /// A bare tonic server that answers an inference request with its raw contents.
    EchoGrpc { address: SocketAddr },
    /// A bare proxy to another server.
    Proxy {
        address: SocketAddr,
        behind: SocketAddr,
        /// Threads that serve connections.
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::EchoHttp { address, tls }) => return runtime(2)?.block_on(echo::http(address, tls.as_deref())),
        Some(Role::EchoGrpc { address }) => return runtime(2)?.block_on(echo::grpc(address)),
        Some(Role::Proxy { address, behind, threads }) => {
            return runtime(threads)?.block_on(cluster::proxy::serve(address, behind));
        }
        None => {}
    }
    if arguments.parts.iter().any(|part| part == "cluster") {
        let text = runtime(2)?.block_on(cluster::measure(&arguments))?;
        println!("{text}");
        if arguments.parts.len() == 1 {
            fs_err::write("docs/benchmarks-cluster.md", text)?;
        }
        return Ok(());
    }
    if arguments.parts.iter().any(|part| part == "density") {
        let text = runtime(1)?.block_on(density::measure(&arguments))?;
        println!("{text}");
        if arguments.models.is_empty() && arguments.parts.len() == 1 {
            fs_err::write("docs/benchmarks-density.md", text)?;
        }
        return Ok(());
    }
    let wants = |part: &str| arguments.parts.is_empty() || arguments.parts.iter().any(|wanted| wanted == part);
    let load = runtime(1)?;
    let mut page = page::Page::new()?;
    if wants("throughput") {
        let engine = engine::measure()?;
        page.throughput(&load.block_on(throughput::measure(&arguments))?, &engine);
    }
    if wants("memory") {
        page.memory(&load.block_on(memory::measure(&arguments))?);
    }
    if wants("miss") {
        page.miss(&load.block_on(miss::measure(&arguments))?);
    }
    if wants("plan") {
        page.plan(&planning::measure(&arguments)?);
    }
    if wants("python") {
        page.python(&load.block_on(python::measure(&arguments))?);
    }
    if wants("overload") {
        page.overload(&load.block_on(overload::measure(&arguments))?);
    }
    if wants("auth") {
        page.auth(&load.block_on(auth::measure(&arguments))?);
    }
    if wants("executor") {
        page.executor(&load.block_on(executor::measure(&arguments))?);
    }
    if wants("restart") {
        page.restart(&load.block_on(restart::measure(&arguments))?);
    }
    let text = page.finish();
    println!("{text}");
    if arguments.parts.is_empty() {
        fs_err::write("docs/benchmarks.md", text)?;
    }
    Ok(())
}

fn runtime(threads: usize) -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}
