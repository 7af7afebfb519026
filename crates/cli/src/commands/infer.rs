//! `berth infer`: sends requests to a model over REST or gRPC, one or many, and measures.

mod answer;
mod grpc;
mod measure;
mod rest;

use std::{
    io::Read,
    num::{NonZeroU32, NonZeroU64},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use serde_json::Value;

use super::{namespace::NamespaceArgs, resource::model};
use crate::{
    client::{ConnectArgs, DEFAULT_GATEWAY},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth infer iris -f input.json
  berth infer iris -f input.json --grpc
  echo '{\"inputs\": [{\"name\": \"X\", \"datatype\": \"FP32\", \"shape\": [1, 4],
    \"data\": [5.1, 3.5, 1.4, 0.2]}]}' | berth infer iris
  berth infer iris -f input.json --repeat 10000 --concurrency 64
  berth infer team/iris -f input.json        a deployment in the namespace team, as with -n team
  berth infer /v1/sentiment -f request.json  the path of an endpoint takes the model card's own JSON

The input is a JSON request of the Open Inference Protocol, or of a model card at the path of its
endpoint. The request loads the model if needed, and waits for it up to --timeout.

Exit codes:
  3  unknown model or version
  4  invalid request
  5  no answer within --timeout, or the model was still loading
  1  everything else, such as no room for the model or a load that failed")]
pub(crate) struct InferArgs {
    /// Name of a deployment or alias, or the path of an endpoint
    #[arg(value_name = "NAME|/PATH", add = super::completing::deployments())]
    name: String,
    /// JSON file with the request, - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", default_value = "-")]
    filename: PathBuf,
    /// Version of the model, instead of the serving one
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    model_version: String,
    /// Use gRPC instead of REST
    #[arg(long)]
    grpc: bool,
    /// Send the request N times and print latencies
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZeroU64,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", default_value = "1")]
    concurrency: NonZeroU32,
    /// Give up a request after this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::settings::duration)]
    timeout: Duration,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Address of the gateway
    #[arg(long, value_name = "URL", env = "BERTH_HTTP", default_value = DEFAULT_GATEWAY)]
    http: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

impl InferArgs {
    /// True if the argument is the path of an endpoint rather than a name.
    fn is_endpoint(&self) -> bool {
        self.name.starts_with('/')
    }
}

/// Form of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    /// One of the Open Inference Protocol.
    Tensors,
    /// Whatever the model card takes.
    Document,
}

/// One way to send the request.
#[derive(Debug, Clone)]
enum Caller {
    Rest(Arc<rest::Call>),
    Grpc(Arc<grpc::Call>),
}

impl Caller {
    async fn call(&self) -> Result<(), Failure> {
        match self {
            Self::Rest(call) => call.send().await.map(drop),
            Self::Grpc(call) => call.send().await.map(drop),
        }
    }

    async fn answer(&self) -> Result<Value, Failure> {
        match self {
            Self::Rest(call) => {
                let body = call.send().await?;
                serde_json::from_slice(&body).map_err(|e| Failure::doing("the answer is not JSON", e))
            }
            Self::Grpc(call) => Ok(grpc::answer(call.send().await?)),
        }
    }
}

pub(crate) fn run(args: InferArgs) -> Result<(), Failure> {
    let request = read(&args.filename, if args.is_endpoint() { RequestKind::Document } else { RequestKind::Tensors })?;
    if args.is_endpoint() && (args.grpc || !args.model_version.is_empty()) {
        let message = "an endpoint answers over REST, by the version that serves: leave --grpc and --model-version out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // One thread sends a single request; two keep up with what a server on the same machine answers.
    let threads = if args.concurrency.get() == 1 { 1 } else { 2 };
    let runtime = runtime.worker_threads(threads).enable_all().build();
    runtime.map_err(|e| Failure::doing("cannot start the runtime", e))?.block_on(infer(args, request))
}

async fn infer(args: InferArgs, request: Value) -> Result<(), Failure> {
    let base = args.connect.address(&args.http)?;
    let name = match args.is_endpoint() {
        true => None,
        false => Some(args.namespace.name(model(&args.name)?)?),
    };
    let caller = match name.as_ref().filter(|_| args.grpc) {
        Some(name) => Caller::Grpc(Arc::new(grpc::Call::new(&base, name, &args, &request)?)),
        None => Caller::Rest(Arc::new(rest::Call::new(&base, name.as_ref(), &args, &request)?)),
    };
    if args.repeat.get() == 1 {
        let answer = caller.answer().await?;
        let text = answer::text(&answer);
        return Ok(terminal::print(&text)?);
    }
    let figures = measure::measure(&caller, args.repeat, args.concurrency).await?;
    terminal::print(&figures.render())?;
    figures.failure().map_or(Ok(()), Err)
}

/// Reads the request and checks that it is one.
fn read(path: &Path, wanted: RequestKind) -> Result<Value, Failure> {
    let (shown, text) = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|e| Failure::doing("cannot read standard input", e))?;
        if text.trim().is_empty() {
            let message = "standard input is empty: name a file with the request (-f), or pipe one; `berth describe NAME` shows \
                           a request for the model";
            return Err(Failure::Usage(message.to_owned()));
        }
        ("standard input".to_owned(), text)
    } else {
        (path.display().to_string(), fs_err::read_to_string(path)?)
    };
    if text.trim().is_empty() {
        let message = "is empty: write the request into it; `berth describe NAME` shows one for the model";
        return Err(Failure::Invalid(format!("{shown} {message}")));
    }
    let request: Value =
        serde_json::from_str(&text).map_err(|e| Failure::Invalid(format!("{shown} is not JSON: {e}")))?;
    if wanted == RequestKind::Tensors && request.get("inputs").is_none_or(|inputs| !inputs.is_array()) {
        let message = "has no list \"inputs\": write {\"inputs\": [{\"name\", \"datatype\", \"shape\", \"data\"}]}, or \
                       name the path of the endpoint (`berth infer /v1/…`) for a model card's own JSON";
        return Err(Failure::Invalid(format!("{shown} {message}")));
    }
    Ok(request)
}

/// Converts a refusal. `reason` is the gateway's code, which both protocols carry.
fn refused(message: &str, reason: &str) -> Failure {
    let message = format!("{message} ({reason})");
    match reason {
        "not_found" => Failure::NotFound(message),
        "invalid" | "unprocessable" | "too_large" | "uri_too_long" | "unsupported" => Failure::Invalid(message),
        "loading" | "deadline" => Failure::TimedOut(message),
        _ => Failure::Failed(message),
    }
}

/// The remedy when the server does not know who asks.
const WHO: &str = "say who you are with `berth login`, BERTH_TOKEN, --token-file or --client-cert";

/// The failure when no answer came in time.
fn too_late() -> Failure {
    Failure::TimedOut("no answer in time: raise --timeout".to_owned())
}

/// The failure when nobody listens at the gateway's address.
fn nobody(base: &url::Url) -> Failure {
    let base = base.as_str().trim_end_matches('/');
    Failure::Failed(format!(
        "nothing answers at {base}: start a server with `berth up`, or say where it is with --http or BERTH_HTTP"
    ))
}
