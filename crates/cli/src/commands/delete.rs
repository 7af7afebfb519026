//! The command `berth delete`.

use berth_spec::DeploymentName;
use clap::Args;
use reqwest::Method;

use super::{
    namespace::{NamespaceArgs, path_in},
    resource::{Resource, Target, not_found},
};
use crate::{client::ApiArgs, failure::Failure, terminal};

/// The kinds that `berth delete` takes.
const DELETED: [Resource; 3] = [Resource::Deployments, Resource::Aliases, Resource::Functions];

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&DELETED)), after_help = "Examples:
  berth delete iris                          requests in flight are answered first
  berth delete iris digits
  berth delete alias/iris-live               the deployments that it leads to stay
  berth delete function/words                it is removed from its platform
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
    let client = args.api.client()?;
    for (resource, name) in args.target.find(&client, &args.namespace, &DELETED).await? {
        let name = DeploymentName::new(&name).map_err(|error| Failure::Usage(error.to_string()))?;
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
