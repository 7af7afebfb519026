//! The command line: every command, its flags, and help that teaches. `docs/cli.md`, man pages and completions are
//! made from these definitions.

use clap::{CommandFactory, Parser, Subcommand};

use crate::{commands, failure::EXIT_CODES, modelmesh, node, serve, up};

/// Serve machine-learning models from declarations: one binary that loads, places, routes and updates them.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    arg_required_else_help = true,
    disable_help_subcommand = false,
    after_help = EXIT_CODES,
    after_long_help = LONG_HELP
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_HELP: &str = "Start here:
  berth serve model.onnx                 serve a model file or folder
  berth doctor                           check this machine
  berth up ./models                      serve what the folder declares
  berth get deployments                  list deployments and their state
  berth infer iris -f input.json         send a request
  berth explain iris                     explain where its replicas are, and why

Results go to standard output, logs and errors to standard error. NO_COLOR turns colours off.
BERTH_API is the address of the control API, BERTH_HTTP that of the gateway; `berth login` keeps
both in a context.

Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  not found
  4  invalid input
  5  timed out";

/// Subcommands of `berth`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a single server: gateway, worker and control plane in one process
    Up(Box<up::UpArgs>),
    /// Serve a model from a file or folder: ONNX, scikit-learn, XGBoost, LightGBM, MLflow, PyTorch, TensorFlow, a model card
    Serve(Box<serve::ServeArgs>),
    /// Start a node of a cluster
    Node(Box<node::settings::NodeArgs>),
    /// Start an instance from the environment variables of ModelMesh
    #[command(name = "modelmesh")]
    ModelMesh(modelmesh::ModelMeshArgs),
    /// Create or update deployments, aliases and functions from manifests
    Apply(commands::apply::ApplyArgs),
    /// List resources: deployments, nodes, workers, replicas, revisions, aliases, functions, events, sources or secrets
    Get(commands::get::GetArgs),
    /// Show all details of a deployment, alias, function, source, node or worker
    Describe(commands::describe::DescribeArgs),
    /// Print the recent log of a model over all its replicas, or of a function
    Logs(commands::logs::LogsArgs),
    /// Explain the placement of a deployment: where its replicas are, where they cannot be, and why
    Explain(commands::explain::ExplainArgs),
    /// Preview the effect of applying manifests
    Plan(commands::plan::PlanArgs),
    /// Show the fields that applying manifests would change
    Diff(commands::diff::DiffArgs),
    /// Change the number of replicas
    Scale(commands::scale::ScaleArgs),
    /// Change a deployment in an editor
    Edit(commands::edit::EditArgs),
    /// Follow, promote, undo and restart rollouts
    Rollout(commands::rollout::RolloutArgs),
    /// Wait for a condition of a deployment
    Wait(commands::wait::WaitArgs),
    /// Send inference requests to a model
    Infer(commands::infer::InferArgs),
    /// Watch models live: memory, request rates, misses, latencies
    Top(commands::top::TopArgs),
    /// Delete deployments, aliases or functions
    Delete(commands::delete::DeleteArgs),
    /// Keep new replicas off a node
    #[command(after_help = commands::cordon::CORDON_EXAMPLES)]
    Cordon(commands::cordon::CordonArgs),
    /// Allow new replicas on a node again
    #[command(after_help = commands::cordon::UNCORDON_EXAMPLES)]
    Uncordon(commands::cordon::CordonArgs),
    /// Move all replicas off a node
    Drain(commands::drain::DrainArgs),
    /// Show the sources of deployments; read them now, pause and resume them
    Source(commands::source::SourceArgs),
    /// Log in to a server: check its address, and keep it with a token as a context
    Login(commands::login::LoginArgs),
    /// Show who you are to the server, and what you may do
    #[command(name = "whoami")]
    WhoAmI(commands::whoami::WhoAmIArgs),
    /// List, choose and delete contexts: servers that you have logged in to
    Context(commands::context::ContextArgs),
    /// Create, list and revoke tokens of clients
    Token(commands::token::TokenArgs),
    /// Create, list and revoke join tokens, with which new nodes get their certificates
    JoinToken(commands::join_token::JoinTokenArgs),
    /// Show who changed what, and who was refused
    Audit(commands::audit::AuditArgs),
    /// Fetch an artifact into a folder: in parts, resumed, checked
    Fetch(commands::fetch::FetchArgs),
    /// Run a proxy before a model server: it measures, limits and retries requests
    Executor(commands::executor::ExecutorArgs),
    /// Run the Kubernetes operator, or print the manifests that install it
    Operator(commands::operator::OperatorArgs),
    /// Check manifests without a server
    Validate(commands::validate::ValidateArgs),
    /// Print manifests of KServe and ModelMesh as Berth's own
    Convert(commands::convert::ConvertArgs),
    /// Create, inspect and revoke the certificates of a cluster
    Pki(commands::pki::PkiArgs),
    /// Encrypt and inspect the credentials of workers
    Secrets(commands::secrets::SecretsArgs),
    /// Show the settings of a server and their origins
    Config(Box<commands::config::ConfigArgs>),
    /// Create, validate and serve a Git registry of models
    Registry(commands::registry::RegistryArgs),
    /// Create a model repository, or check its card
    Card(commands::card::CardArgs),
    /// Print the schemas of manifests, model cards and a registry's files
    Schema(commands::schema::SchemaArgs),
    /// Run parts for tests: a scriptable model server
    Testing(commands::testing::TestingArgs),
    /// Check this machine: what Berth finds, what is missing, and what to type
    Doctor(commands::doctor::DoctorArgs),
    /// Print a completion script for a shell
    Completions(commands::local::CompletionsArgs),
    /// Print a manual page
    Man(commands::local::ManArgs),
    /// Print the version
    Version(commands::local::VersionArgs),
}

/// The definitions, for what is made from them.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}
