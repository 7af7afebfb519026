//! The command `berth delete`.

use clap::Args;
use reqwest::Method;

use super::{
    namespace::{NamespaceArgs, path_in},
    resource::{Resource, Target, not_found},
};
use crate::{client::ApiArgs, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth delete deployment iris               requests in flight are answered first
  berth delete deployment/iris deployment/digits
  berth delete alias iris-live               the deployments that it leads to stay
  berth wait deployment/iris --for=delete    until it is gone")]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    target: Target,
    /// Also delete what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &DeleteArgs) -> Result<(), Failure> {
    let (resource, names) = args.target.parse()?;
    if !matches!(resource, Resource::Deployments | Resource::Aliases) {
        return Err(Failure::Usage(format!(
            "{} cannot be deleted, only deployments and aliases: they say what the rest should be",
            resource.plural()
        )));
    }
    if names.is_empty() {
        return Err(Failure::Usage(format!("name the {0}: `berth delete {0} NAME`", resource.singular())));
    }
    let client = args.api.client()?;
    for name in &names {
        let name = args.namespace.name(name)?;
        let query: &[_] = if args.force { &[("force", "true".to_owned())] } else { &[] };
        let request = client.request(Method::DELETE, &path_in(resource, &name), query);
        match client.send(request).await {
            Ok(_) => terminal::print(&format!("{}/{name} deleted", resource.singular()))?,
            Err(Failure::NotFound(_)) => return Err(not_found(&client, resource, name.as_str()).await),
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
