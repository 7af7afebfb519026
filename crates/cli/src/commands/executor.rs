//! `berth executor`: a proxy before one model server.

use std::path::PathBuf;

use berth_executor::{Config, Executor, Limits, StartError};
use berth_spec::WorkerId;
use berth_worker::capacity::Capacity;
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::signal;
use crate::{descriptors, failure::Failure, settings::TelemetrySettings, telemetry::Telemetry, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth executor --config executor.yaml            run it
  berth executor --config executor.yaml --check    check the file, and run nothing

The file is read again when it changes. On SIGTERM or Ctrl-C the executor reports that it is not
ready, keeps serving for drain.delay, lets requests in flight end, and exits with 0; with 1 if it
had to cut some off. docs/executor.md tells more.")]
pub(crate) struct ExecutorArgs {
    /// File that says which ports to serve, and what is behind them
    #[arg(long, value_name = "FILE", env = "BERTH_EXECUTOR_CONFIG", value_hint = clap::ValueHint::FilePath)]
    config: PathBuf,
    /// Only check the file
    #[arg(long)]
    check: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N", env = "BERTH_THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Log filter
    #[arg(long, value_name = "FILTER", env = "BERTH_LOG", default_value = "warn,berth=info,berth_executor=info")]
    log: String,
}

pub(super) fn run(args: &ExecutorArgs) -> Result<(), Failure> {
    if args.check {
        Config::read(&args.config).map_err(|error| Failure::Invalid(error.to_string()))?;
        return Ok(terminal::print(&format!("{}: valid\n", args.config.display()))?);
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = args.threads {
        runtime.worker_threads(threads.into());
    }
    let runtime = runtime.enable_all().build().map_err(|e| Failure::doing("cannot start the runtime", e))?;
    runtime.block_on(serve(args))
}

async fn serve(args: &ExecutorArgs) -> Result<(), Failure> {
    let worker: WorkerId = "executor".parse().map_err(|e| Failure::doing("no name for the log", e))?;
    let json = !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let telemetry = Telemetry::start(&TelemetrySettings { filter: args.log.clone(), json, otlp: None, worker })?;
    let limits = Limits { files: descriptors::raise_limit(), memory: Some(Capacity::probe().memory.0) };
    let executor = Executor::start_within(&args.config, limits).map_err(|error| match error {
        StartError::Config(error) => Failure::Invalid(error.to_string()),
        StartError::Port(error) => Failure::Failed(error.to_string()),
    })?;
    let admin = executor.admin().map_err(|e| Failure::doing("the admin port has no address", e))?;
    for (port, address) in executor.ports() {
        tracing::info!(event = "executor_listening", port, %address, %admin, "serving");
    }
    let stop = CancellationToken::new();
    let signalled = async {
        signal::stopped().await;
        stop.cancel();
        std::future::pending().await
    };
    let cut = tokio::select! {
        cut = executor.run(stop.clone()) => cut,
        () = signalled => 0,
    };
    telemetry.stop();
    if cut > 0 {
        return Err(Failure::Failed(format!("{cut} requests did not end within drain.timeout and were cut off")));
    }
    Ok(())
}
