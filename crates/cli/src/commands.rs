//! The commands that ask a server, or need none. One file each: its arguments, what it does, what it prints.

pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod card;
mod change;
pub(crate) mod completing;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod convert;
pub(crate) mod cordon;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod edit;
mod editor;
pub(crate) mod executor;
pub(crate) mod explain;
pub(crate) mod fetch;
mod functions;
pub(crate) mod get;
pub(crate) mod infer;
pub(crate) mod join_token;
pub(crate) mod local;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod namespace;
mod nodes;
pub(crate) mod operator;
pub(crate) mod output;
pub(crate) mod pki;
pub(crate) mod plan;
pub(crate) mod registry;
pub(crate) mod resource;
pub(crate) mod rollout;
pub(crate) mod scale;
pub(crate) mod schema;
mod secret_file;
pub(crate) mod secrets;
mod signal;
mod signature;
pub(crate) mod source;
pub(crate) mod testing;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod validate;
pub(crate) mod wait;
pub(crate) mod whoami;

use crate::{args::Command, failure::Failure, modelmesh, node, serve, settings::layers::Parsed, up};

/// Carries out a command.
pub(crate) fn run(Parsed { arguments, effective }: Parsed) -> Result<(), Failure> {
    match arguments.command {
        Command::Up(args) => up::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Node(args) => node::run(*args),
        Command::ModelMesh(args) => modelmesh::run(args),
        Command::Config(args) => match &effective {
            Some(effective) => config::run(&args, effective),
            None => Err(Failure::Usage("which settings? Write `berth config show`".to_owned())),
        },
        Command::Secrets(args) => secrets::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Registry(args) => registry::run(args),
        Command::Card(args) => card::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => local::completions(&args),
        Command::Man(args) => local::man(&args),
        Command::Version(args) => local::version(&args),
        Command::Infer(args) => infer::run(args),
        Command::Executor(args) => executor::run(&args),
        Command::Context(args) => context::run(&args),
        command => block_on(ask(command)),
    }
}

async fn ask(command: Command) -> Result<(), Failure> {
    match command {
        Command::Testing(args) => testing::run(args).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Fetch(args) => fetch::run(&args).await,
        Command::Operator(args) => operator::run(args).await,
        Command::Apply(args) => apply::run(&args).await,
        Command::Get(args) => get::run(&args).await,
        Command::Describe(args) => describe::run(&args).await,
        Command::Logs(args) => logs::run(&args).await,
        Command::Scale(args) => scale::run(&args).await,
        Command::Edit(args) => edit::run(&args).await,
        Command::Diff(args) => diff::run(&args).await,
        Command::Rollout(args) => rollout::run(&args).await,
        Command::Token(args) => token::run(&args).await,
        Command::JoinToken(args) => join_token::run(&args).await,
        Command::Pki(args) => pki::run(&args).await,
        Command::Login(args) => login::run(args).await,
        Command::WhoAmI(args) => whoami::run(&args).await,
        Command::Audit(args) => audit::run(&args).await,
        Command::Explain(args) => explain::run(&args).await,
        Command::Plan(args) => plan::run(&args).await,
        Command::Wait(args) => wait::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Delete(args) => delete::run(&args).await,
        Command::Cordon(args) => cordon::run(&args, cordon::NodeAction::Cordon).await,
        Command::Uncordon(args) => cordon::run(&args, cordon::NodeAction::Uncordon).await,
        Command::Drain(args) => drain::run(&args).await,
        Command::Source(args) => source::run(&args).await,
        _ => Ok(()), // carried out by `run` without a runtime
    }
}

/// Runs a client command on one thread: it mostly waits.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?
        .block_on(future)
}
