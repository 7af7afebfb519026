//! `berth validate`: checks manifests offline.

use clap::{Args, ValueEnum};

use crate::{
    failure::Failure,
    files::{FileArgs, plural},
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth validate -f .                        every manifest below here; exit code 4 if one is wrong
  berth validate -f iris.yaml -o json        errors as data, for editors and CI")]
pub(crate) struct ValidateArgs {
    #[command(flatten)]
    files: FileArgs,
    /// How to print errors
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ErrorForm,
}

/// How to print errors.
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
            "{} in {} right",
            plural(manifests.count(), "manifest"),
            plural(manifests.files, "file")
        ))?;
    }
    Ok(())
}
