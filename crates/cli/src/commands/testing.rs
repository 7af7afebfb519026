//! Parts for the tests of those who build on Berth.

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf};

use berth_spec::ByteSize;
use berth_worker::scripted::{Listen, Server, Settings, StandsFor};
use clap::{Args, Subcommand, ValueEnum};

use crate::{failure::Failure, settings::values, terminal};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TestingArgs {
    #[command(subcommand)]
    command: TestingCommand,
}

#[derive(Debug, Subcommand)]
enum TestingCommand {
    /// Run a model server that does what its models' paths say
    #[command(after_help = EXAMPLES)]
    Runtime(RuntimeArgs),
}

const EXAMPLES: &str = "Examples:
  berth testing runtime --listen 127.0.0.1:8085
  berth testing runtime --listen unix:/tmp/mmesh/grpc.sock --capacity 100MiB
  berth testing runtime --listen 8085 --method my.Service/predict=1 --any-method
  berth testing runtime --listen 8001 --repository ./models

A model whose path is SIZE_50000000_200_30 has 50,000,000 bytes, takes 200 ms to load and 30 ms to
unload; FAIL_text, ONCE_text, REFUSE_text, HANG and STAY_2 fail in their ways. Any gRPC method is
answered with its own messages.";

#[derive(Debug, Args)]
struct RuntimeArgs {
    /// Address to listen on: a port of this machine, IP:PORT, or unix:/PATH. Port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8085", value_parser = listen)]
    listen: Listen,
    /// Memory for models that it reports
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = values::size)]
    capacity: ByteSize,
    /// Size of a model whose path gives none
    #[arg(long, value_name = "SIZE", default_value = "50MiB", value_parser = values::size)]
    default_size: ByteSize,
    /// Loads at a time that it reports
    #[arg(long, value_name = "N", default_value_t = 6)]
    parallel_loads: u32,
    /// Time for a load that it reports, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 90_000)]
    load_timeout: u32,
    /// Method that it lists, with the field numbers down to the model's id if it wants it there: pkg.Service/method=1.2.
    /// Repeatable
    #[arg(long, value_name = "METHOD=PATH", value_parser = method)]
    method: Vec<(String, Vec<u32>)>,
    /// Allow methods that are not listed
    #[arg(long)]
    any_method: bool,
    /// Requests at once per model that it reports; 0 reports none
    #[arg(long, value_name = "N", default_value_t = 0)]
    concurrency: u32,
    /// Speak the Open Inference Protocol with this model repository in place of mmesh.ModelRuntime: the first line of a model's
    /// file says what it does. What it reports about itself is not asked then
    #[arg(long, value_name = "DIR")]
    repository: Option<PathBuf>,
    /// Server that it stands for, with --repository: oip (as Triton and MLServer), openvino or tensorflow
    #[arg(long, value_enum, value_name = "SERVER", default_value_t, requires = "repository")]
    stands_for: StandsForArg,
    /// Fail every load with this text
    #[arg(long, value_name = "TEXT")]
    refuse: Option<String>,
    /// Answers of STARTING before it is ready
    #[arg(long, value_name = "N", default_value_t = 0)]
    starting: u32,
}

/// Server that it stands for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum StandsForArg {
    /// Models are loaded one by one
    #[default]
    Oip,
    /// OpenVINO Model Server: a file lists the models
    Openvino,
    /// TensorFlow Serving: a call lists the models
    Tensorflow,
}

impl From<StandsForArg> for StandsFor {
    fn from(said: StandsForArg) -> Self {
        match said {
            StandsForArg::Oip => Self::Oip,
            StandsForArg::Openvino => Self::OpenVino,
            StandsForArg::Tensorflow => Self::TensorFlow,
        }
    }
}

fn listen(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return if path.is_empty() {
            Err("write unix:/PATH".to_owned())
        } else {
            Ok(Listen::Unix(PathBuf::from(path)))
        };
    }
    match text.parse::<u16>() {
        Ok(port) => Ok(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))),
        Err(_) => values::socket(text).map(Listen::Tcp),
    }
}

fn method(text: &str) -> Result<(String, Vec<u32>), String> {
    let (name, path) = text.split_once('=').unwrap_or((text, ""));
    let numbers = path.split('.').filter(|number| !number.is_empty()).map(str::parse);
    let path = numbers.collect::<Result<_, _>>().map_err(|_| format!("{path:?} is no path: write numbers, as 1.2"))?;
    Ok((name.to_owned(), path))
}

/// Runs until it is stopped.
pub(crate) async fn run(args: TestingArgs) -> Result<(), Failure> {
    let TestingCommand::Runtime(args) = args.command;
    let settings = Settings {
        capacity: args.capacity.0,
        default_size: args.default_size.0,
        parallel_loads: args.parallel_loads,
        load_timeout_ms: args.load_timeout,
        methods: args.method,
        any_method: args.any_method,
        concurrency: args.concurrency,
        starting: args.starting,
        repository: args.repository,
        stands_for: args.stands_for.into(),
    };
    let server = Server::bind(&args.listen, settings).await;
    let server =
        server.map_err(|error| Failure::Failed(format!("cannot listen: {error}; --listen takes another address")))?;
    if let Some(text) = &args.refuse {
        server.counts().refuse(text);
    }
    let mut word = "listening".to_owned();
    if let Some(port) = server.port() {
        let _ = write!(word, " on port {port}");
    }
    terminal::print(&format!("{word}\n"))?;
    tokio::select! {
        ended = server.run() => Ok(ended?),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
