//! `berth convert`: manifests of other systems as Berth's own, offline.

use berth_spec::manifest::Manifest;
use clap::{Args, ValueEnum};

use super::output::{Form, print_value, yaml};
use crate::{failure::Failure, files::FileArgs, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth convert -f inference-service.yaml              prints a ModelDeployment
  berth convert -f kserve/ > models.yaml               all objects below a folder
  kubectl get isvc iris -o yaml | berth convert -f -   an object of a cluster

Reads InferenceService and TrainedModel of KServe and Predictor of ModelMesh; docs/dialects.md lists their
fields. `berth apply` takes such files as they are.")]
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
    /// Documents for `berth apply`
    #[default]
    Yaml,
    /// A list
    Json,
}

/// Prints manifests as Berth's own. An annotation names what has no effect.
pub(crate) fn run(args: &ConvertArgs) -> Result<(), Failure> {
    let manifests: Vec<Manifest> = args.files.read_right()?.into_iter().flat_map(|batch| batch.documents).collect();
    let converted: Vec<_> = manifests.iter().map(Manifest::raw).collect();
    match args.output {
        ConvertForm::Json => print_value(&converted, Form::Json),
        ConvertForm::Yaml => {
            let documents = converted.iter().map(yaml).collect::<Result<Vec<_>, _>>()?;
            Ok(terminal::print(&documents.join("---\n"))?)
        }
    }
}
