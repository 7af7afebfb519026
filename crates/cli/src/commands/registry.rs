//! `berth registry`: the Git registry of models, for those who keep it: to begin one, to check it, and to serve it so
//! that a bad commit never gets in. What a registry must be is [`berth_registry`]'s; here is what people are told.

mod access;
mod announce;
mod hook;
mod init;
mod install;
mod serve;
mod validate;

use clap::{Args, Subcommand};

pub(crate) use self::{
    access::{AccessArgs, today},
    validate::wanted,
};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry init ./model-registry       create folders, schemas, CI and a README
  berth registry validate ./model-registry   run the server's checks; exit code 1 if it would reject
  berth registry hook install /srv/git/model-registry.git
  berth registry serve --root /srv/git --users users.yaml --create model-registry")]
pub(crate) struct RegistryArgs {
    #[command(subcommand)]
    command: RegistryCommand,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Create a registry in a folder
    Init(init::InitArgs),
    /// Validate a registry: a folder, or a commit of a repository
    Validate(validate::ValidateArgs),
    /// Reject invalid pushes on a Git server
    Hook(hook::HookArgs),
    /// Serve Git repositories over HTTP, with the hook and roles
    Serve(Box<serve::ServeArgs>),
    /// Create a token for a user of `berth registry serve`
    Token(serve::TokenArgs),
}

pub(crate) fn run(args: RegistryArgs) -> Result<(), Failure> {
    match args.command {
        RegistryCommand::Init(args) => init::run(&args),
        RegistryCommand::Validate(args) => validate::run(&args),
        RegistryCommand::Hook(args) => hook::run(&args),
        RegistryCommand::Serve(args) => serve::run(*args),
        RegistryCommand::Token(args) => serve::token(&args),
    }
}
