//! `berth edit`: a declared deployment in an editor.

use berth_spec::{
    DeploymentName,
    manifest::{self, ParseContext, changes},
};
use clap::Args;
use serde_json::Value;

use super::{
    change::{manifest_of, read, write},
    editor::{EditedFile, again},
    namespace::NamespaceArgs,
    output::yaml,
    resource::{Resource, Target},
};
use crate::{client::ApiArgs, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments])), after_help = "Examples:
  berth edit iris
  EDITOR='code --wait' berth edit iris -n team

The editor is $VISUAL, $EDITOR, or vi. Nothing is changed if the text stays as it is, or if somebody
else changes the deployment meanwhile.")]
pub(crate) struct EditArgs {
    #[command(flatten)]
    target: Target,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &EditArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let named = args.target.find(&client, &args.namespace, &[Resource::Deployments]).await?;
    let [(_, name)] = named.as_slice() else {
        return Err(Failure::Usage("edit one deployment at a time".to_owned()));
    };
    let name = DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
    let view = read(&client, &name).await?;
    let before = manifest_of(&view);
    let file = EditedFile::new("deployment.yaml", &yaml(&before)?)?;
    loop {
        file.edit()?;
        let changed = match parsed(&file.text()?, &name) {
            Ok(after) if changes(&before, &after).is_empty() => return Ok(terminal::print("nothing changed")?),
            Ok(after) => write(&client, &name, &after, &view.metadata.resource_version, args.force).await,
            Err(wrong) => Err(wrong),
        };
        match changed {
            Ok(result) => {
                return Ok(terminal::print(&format!("deployment/{name} {}", result.outcome.as_str()))?);
            }
            Err(Failure::Conflict(_)) => {
                let message = format!("deployment/{name} changed meanwhile; nothing was written: edit it again");
                return Err(Failure::Failed(message));
            }
            Err(failure) if again(&failure) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// The one manifest of the text, with every error at its place.
fn parsed(text: &str, name: &DeploymentName) -> Result<Value, Failure> {
    let context = ParseContext { file: "your text".to_owned(), ..ParseContext::default() };
    let read = manifest::parse_all(text, &context).map_err(|errors| {
        Failure::Invalid(errors.iter().map(manifest::ManifestError::render).collect::<Vec<_>>().join("\n\n"))
    })?;
    let [only] = read.as_slice() else {
        return Err(Failure::Invalid(format!("your text holds {} documents: leave the one of {name}", read.len())));
    };
    if only.name() != name {
        let message =
            format!("the name cannot be changed: {name} became {}; apply a new manifest instead", only.name());
        return Err(Failure::Invalid(message));
    }
    let mut raw = only.raw().clone();
    if let Some(base) = only.base() {
        raw["metadata"]["baseUri"] = base.into();
    }
    Ok(raw)
}
