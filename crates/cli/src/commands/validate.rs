//! `berth validate`: checks manifests offline.

use clap::{Args, ValueEnum};

use crate::{
    failure::Failure,
    files::{FileArgs, plural},
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth validate -f .                        all manifests below; exit code 4 if one is invalid
  berth validate -f iris.yaml -o json        errors as data, for editors and CI")]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Output format of errors
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ErrorForm,
}

/// Output format of errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ErrorForm {
    /// With the line and a caret, on standard error
    #[default]
    Text,
    /// A JSON list on standard output
    Json,
}

pub(crate) fn run(args: &ValidateArgs) -> Result<(), Failure> {
    let manifests = args.files.read()?;
    if manifests.skipped > 0 {
        eprintln!("skipped {} without an apiVersion", plural(manifests.skipped, "file"));
    }
    if args.output == ErrorForm::Json {
        let text =
            serde_json::to_string_pretty(&manifests.errors).map_err(|e| Failure::doing("cannot write JSON", e))?;
        terminal::print(&text)?;
    }
    if let Some(failure) = manifests.failure() {
        return Err(match args.output {
            ErrorForm::Text => failure,
            ErrorForm::Json => Failure::Invalid(plural(manifests.errors.len(), "error")),
        });
    }
    if args.output == ErrorForm::Text {
        terminal::print(&format!(
            "{} in {} valid",
            plural(manifests.count(), "manifest"),
            plural(manifests.files, "file")
        ))?;
    }
    Ok(())
}
