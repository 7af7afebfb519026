//! `berth scale`: another number of replicas.

use berth_spec::DeploymentName;
use clap::Args;
use serde_json::{Value, json};

use super::{
    change::change,
    namespace::NamespaceArgs,
    resource::{Resource, Target},
};
use crate::{client::ApiArgs, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments])), after_help = "Examples:
  berth scale iris --replicas 3              always three
  berth scale iris --min 1 --max 4           one to four, by load
  berth scale iris --min 0                   on demand: loaded by the first request
  berth scale iris --replicas 0              keep the declaration, load nothing

Changes spec.replicas on the server. A manifest in a file or a repository keeps its own number:
change it there, too.")]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    target: Target,
    /// Exact number of replicas
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=1_000), conflicts_with_all = ["min", "max"])]
    replicas: Option<u32>,
    /// Least number of replicas; 0: on demand
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    min: Option<u32>,
    /// Largest number of replicas
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    max: Option<u32>,
    /// Take over what belongs to another source, such as a folder
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &ScaleArgs) -> Result<(), Failure> {
    if args.replicas.is_none() && args.min.is_none() && args.max.is_none() {
        return Err(Failure::Usage("how many? Write --replicas N, or --min N and --max N".to_owned()));
    }
    let client = args.api.client()?;
    for (_, name) in args.target.find(&client, &args.namespace, &[Resource::Deployments]).await? {
        let name = DeploymentName::new(&name).map_err(|error| Failure::Usage(error.to_string()))?;
        let changed = change(&client, &name, args.force, |_, manifest| {
            let replicas = wanted(&manifest["spec"]["replicas"], args)?;
            manifest["spec"]["replicas"] = replicas;
            Ok(())
        });
        terminal::print(&format!("deployment/{name} {}", changed.await?.outcome.as_str()))?;
    }
    Ok(())
}

/// The field `replicas` with the bounds that were given; a bound that was not given stays.
fn wanted(now: &Value, args: &ScaleArgs) -> Result<Value, Failure> {
    if now.get("regions").is_some() {
        let message = "its replicas are counted per region: change them with `berth edit`";
        return Err(Failure::Usage(message.to_owned()));
    }
    if let Some(exact) = args.replicas {
        return Ok(json!(exact));
    }
    let (min, max) = match now {
        Value::Null => (Some(1), None),
        Value::Number(exact) => (exact.as_u64(), None),
        range => (range.get("min").and_then(Value::as_u64), range.get("max").and_then(Value::as_u64)),
    };
    let min = args.min.map(u64::from).or(min);
    // A largest number that was given before does not stand against a higher least one.
    let max = args.max.map(u64::from).or(max.map(|max| max.max(min.unwrap_or_default())));
    let mut range = json!({});
    for (field, bound) in [("min", min), ("max", max)] {
        if let Some(bound) = bound {
            range[field] = json!(bound);
        }
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_are_not_given_stay() {
        let args = |replicas, min, max| ScaleArgs {
            target: Target { words: vec!["iris".to_owned()] },
            replicas,
            min,
            max,
            force: false,
            namespace: NamespaceArgs::default(),
            api: ApiArgs { api: String::new(), connect: crate::client::ConnectArgs::default() },
        };
        for (now, args, wanted_now) in [
            (json!(2), args(Some(3), None, None), json!(3)),
            (Value::Null, args(None, None, Some(4)), json!({"min": 1, "max": 4})),
            (json!(2), args(None, Some(0), None), json!({"min": 0})),
            (json!({"min": 1, "max": 2}), args(None, Some(3), None), json!({"min": 3, "max": 3})),
            (json!({"min": 1, "max": 2}), args(None, None, Some(8)), json!({"min": 1, "max": 8})),
        ] {
            assert_eq!(wanted(&now, &args).expect("a range"), wanted_now, "{now}");
        }
        assert!(wanted(&json!({"regions": {"eu": 1}}), &args(Some(1), None, None)).is_err());
    }
}
