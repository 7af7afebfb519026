//! `berth schema`: the forms of everything that people write.

use berth_registry::schema::{MATRIX, NEWEST, SchemaKind, VERSIONS, schema_json, schema_text};
use clap::{Args, ValueEnum, builder::PossibleValuesParser};

use super::output::{Form, print_value};
use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth schema manifest > berth.schema.json  schema of manifests for `berth apply`
  # then, first line of a manifest, for editors with the YAML language server:
  # yaml-language-server: $schema=berth.schema.json
  berth schema alias                         schema of aliases
  berth schema function                      schema of functions
  berth schema model-card --version 3.0.0 -o yaml
  berth schema deployment                    a file in models/ of a registry
  berth schema matrix                        the compatibility matrix of model card versions")]
pub(crate) struct SchemaArgs {
    /// Document kind
    #[arg(value_enum, default_value_t, value_name = "KIND")]
    kind: Kind,
    /// The version of the schema, for what has versions
    #[arg(long, value_parser = PossibleValuesParser::new(VERSIONS), default_value = NEWEST, value_name = "VERSION")]
    version: String,
    /// Output format [default: json; for the matrix yaml]
    #[arg(short, long, value_enum, value_name = "FORM")]
    output: Option<SchemaForm>,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SchemaForm {
    /// For editors and validators
    Json,
    /// As it is published
    Yaml,
}

/// Document with a schema.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Kind {
    /// A manifest for `berth apply` (apiVersion: berth.dev/v1)
    #[default]
    Manifest,
    /// A manifest of an alias (kind: Alias)
    Alias,
    /// A manifest of a function (kind: Function)
    Function,
    /// model-card.yaml of a model repository
    ModelCard,
    /// A deployment of a registry: a file below models/
    #[value(alias = "registry", alias = "registry-deployment")]
    Deployment,
    /// The configuration of a worker in a registry
    WorkerConfig,
    /// registry.yaml of a registry
    RegistrySettings,
    /// Compatibility matrix of model card versions
    Matrix,
}

pub(crate) fn run(args: &SchemaArgs) -> Result<(), Failure> {
    let published = |kind| match args.output {
        Some(SchemaForm::Yaml) => {
            let text = schema_text(kind, &args.version).ok_or_else(|| unknown(&args.version))?;
            Ok(terminal::print(text)?)
        }
        _ => print_value(&schema_json(kind, &args.version).ok_or_else(|| unknown(&args.version))?, Form::Json),
    };
    match args.kind {
        Kind::Manifest => {
            let form = if args.output == Some(SchemaForm::Yaml) { Form::Yaml } else { Form::Json };
            print_value(berth_spec::manifest::json_schema(), form)
        }
        Kind::Alias | Kind::Function => {
            let form = if args.output == Some(SchemaForm::Yaml) { Form::Yaml } else { Form::Json };
            let schema = match args.kind {
                Kind::Function => berth_spec::manifest::function_json_schema(),
                _ => berth_spec::manifest::alias_json_schema(),
            };
            print_value(schema, form)
        }
        Kind::ModelCard => published(SchemaKind::ModelCard),
        Kind::Deployment => published(SchemaKind::Deployment),
        Kind::WorkerConfig => published(SchemaKind::WorkerConfig),
        Kind::RegistrySettings => published(SchemaKind::Settings),
        Kind::Matrix if args.output == Some(SchemaForm::Json) => {
            let matrix: serde_json::Value =
                serde_saphyr::from_str(MATRIX).map_err(|e| Failure::doing("cannot read the matrix", e))?;
            print_value(&matrix, Form::Json)
        }
        Kind::Matrix => Ok(terminal::print(MATRIX)?),
    }
}

fn unknown(version: &str) -> Failure {
    Failure::Usage(format!("there is no schema of version {version}: there are {}", VERSIONS.join(", ")))
}
