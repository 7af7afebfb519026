//! The command line: every command, its flags, and help that teaches. `docs/cli.md`, man pages and completions are
//! made from these definitions.

use clap::{CommandFactory, Parser, Subcommand};

use crate::{commands, failure::EXIT_CODES, node, up};

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
  berth up ./models                      serve what the folder declares
  berth get deployments                  what is declared, and how it is
  berth infer iris -f input.json         send a request
  berth explain iris                     why it is where it is, or why it is nowhere

Results go to standard output, logs and errors to standard error. NO_COLOR turns colours off.
BERTH_API says where the control API is, BERTH_HTTP where models answer.

Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  not found
  4  invalid input
  5  timed out";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server: gateway, worker and control plane in one process
    Up(Box<up::UpArgs>),
    /// Start a node of a cluster
    Node(Box<node::settings::NodeArgs>),
    /// Declare models, or change what is declared
    Apply(commands::apply::ApplyArgs),
    /// List deployments, nodes, workers, replicas, revisions, aliases, events, sources or secrets
    Get(commands::get::GetArgs),
    /// Show one deployment, node or worker with all that is known about it
    Describe(commands::describe::DescribeArgs),
    /// Say why a deployment is where it is, or why it is nowhere
    Explain(commands::explain::ExplainArgs),
    /// Say what applying manifests would change, without changing it
    Plan(commands::plan::PlanArgs),
    /// Wait until a deployment is as it should be
    Wait(commands::wait::WaitArgs),
    /// Send inference requests to a model
    Infer(commands::infer::InferArgs),
    /// Watch models live: memory, rates, misses, latencies
    Top(commands::top::TopArgs),
    /// Delete deployments
    Delete(commands::delete::DeleteArgs),
    /// Keep new replicas off a node
    #[command(after_help = commands::cordon::CORDON_EXAMPLES)]
    Cordon(commands::cordon::CordonArgs),
    /// Let a node take new replicas again
    #[command(after_help = commands::cordon::UNCORDON_EXAMPLES)]
    Uncordon(commands::cordon::CordonArgs),
    /// Move what a node holds elsewhere, and wait until it is empty
    Drain(commands::drain::DrainArgs),
    /// See the Git registry that is followed, and have it looked at now
    Source(commands::source::SourceArgs),
    /// Check manifests without a server
    Validate(commands::validate::ValidateArgs),
    /// Make the certificates of a cluster, and look at them
    Pki(commands::pki::PkiArgs),
    /// Encrypt the credentials of workers, and look at their files
    Secrets(commands::secrets::SecretsArgs),
    /// Show the settings of a server, and where each came from
    Config(Box<commands::config::ConfigArgs>),
    /// Begin, check and serve a Git registry of models
    Registry(commands::registry::RegistryArgs),
    /// Begin a model repository, and check its card
    Card(commands::card::CardArgs),
    /// Print the schemas of manifests, model cards and a registry's files
    Schema(commands::schema::SchemaArgs),
    /// Print a script that completes commands in a shell
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
