//! `berth card`: model cards, for those who own models.

mod check;
mod new;
mod python;
mod trial;

use clap::{Args, Subcommand};

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth card new ./iris-model --framework sklearn
  berth card check ./iris-model
  berth card check --run ./iris-model        run all steps of a worker locally")]
pub(crate) struct CardArgs {
    #[command(subcommand)]
    command: CardCommand,
}

#[derive(Debug, Subcommand)]
enum CardCommand {
    /// Create a model repository: a card with working code
    New(new::NewArgs),
    /// Check a card and its code
    Check(check::CheckArgs),
}

pub(crate) fn run(args: &CardArgs) -> Result<(), Failure> {
    match &args.command {
        CardCommand::New(args) => new::run(args),
        CardCommand::Check(args) => check::run(args),
    }
}
