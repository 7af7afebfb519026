//! `berth card`: model cards, for those who own models.

mod check;
mod new;
mod python;
mod trial;

use clap::{Args, Subcommand};

use std::path::Path;

use berth_git::Protocols;
use berth_registry::{CardRules, Matrix, check_card};
use berth_spec::ModelCard;

pub(crate) use self::trial::pin;
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

/// The card of a folder, if it is valid.
pub(crate) fn card_of(folder: &Path) -> Result<ModelCard, Failure> {
    let path = folder.join("model-card.yaml");
    let shown = path.display().to_string();
    let text = fs_err::read_to_string(&path)?;
    let (matrix, today) = (Matrix::embedded(), super::registry::today());
    let rules = CardRules { matrix: &matrix, today: &today, protocols: Protocols::default().with_local() };
    let checked = check_card(&text, &shown, &rules);
    let errors = checked.problems.iter().filter(|problem| problem.is_error());
    let errors: Vec<String> = errors.map(berth_registry::Problem::render).collect();
    match checked.card.filter(|_| errors.is_empty()) {
        Some(card) => Ok(std::sync::Arc::unwrap_or_clone(card)),
        None => Err(Failure::Failed(errors.join("\n\n"))),
    }
}
