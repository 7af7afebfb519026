//! `berth convert`: manifests of other systems as Berth's own, offline.

use clap::{Args, ValueEnum};

use super::output::{Form, print_value, yaml};
use crate::{failure::Failure, files::FileArgs, settings::runtime, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth convert -f inference-service.yaml              prints a ModelDeployment
  berth convert -f kserve/ > models.yaml               all objects below a folder
  kubectl get isvc iris -o yaml | berth convert -f -   an object of a cluster
  berth convert -f serving-runtime.yaml                prints a Runtime, for --runtime of a worker

Reads InferenceService and TrainedModel of KServe, Predictor of ModelMesh, and ServingRuntime of
both; docs/dialects.md lists their fields. `berth apply` takes such files as they are, and
`berth up --runtime` a ServingRuntime.")]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    files: FileArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ConvertForm,
}

/// Output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ConvertForm {
    /// Documents for `berth apply`, and of runtimes for `--runtime`
    #[default]
    Yaml,
    /// A list
    Json,
}

/// Prints manifests as Berth's own. An annotation names what has no effect.
pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let read = args.files.read_with_runtimes()?;
    let manifests = read.batches.iter().flat_map(|batch| &batch.documents).map(|manifest| Ok(manifest.raw().clone()));
    let runtimes = read.runtimes.iter().map(runtime::of_kserve);
    let converted = manifests.chain(runtimes).collect::<Result<Vec<_>, Failure>>()?;
    match args.output {
        ConvertForm::Json => print_value(&converted, Form::Json),
        ConvertForm::Yaml => {
            let documents = converted.iter().map(yaml).collect::<Result<Vec<_>, _>>()?;
            Ok(terminal::print(&documents.join("---\n"))?)
        }
    }
}
