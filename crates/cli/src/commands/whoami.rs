//! `berth whoami`: who the server takes one for.

use berth_wire::api::PrincipalView;
use clap::Args;

use super::output::{Form, print_value};
use crate::{client::ApiArgs, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth whoami            the principal, its roles and where they hold
  berth whoami -o name    the name alone, as it is in the logs of the server")]
pub(crate) struct WhoAmIArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &WhoAmIArgs) -> Result<(), Failure> {
    let me: PrincipalView = args.api.client()?.get(&["whoami"]).await?;
    match args.output {
        form @ (Form::Json | Form::Yaml) => print_value(&me, form),
        Form::Name => Ok(terminal::print(&me.metadata.name)?),
        Form::Table | Form::Wide => Ok(terminal::print(&described(&me))?),
    }
}

/// A principal in a few lines.
pub(crate) fn described(me: &PrincipalView) -> String {
    if !me.status.authenticated {
        return format!("{}: the server asks nobody who they are, and allows everything", me.metadata.name);
    }
    let mut lines = vec![me.metadata.name.clone()];
    for grant in &me.status.grants {
        let mut line = format!("  {}", grant.role);
        if !grant.namespaces.is_empty() {
            line.push_str(&format!(" in {}", grant.namespaces.join(", ")));
        }
        if !grant.models.is_empty() {
            line.push_str(&format!(" for models {}", grant.models.join(", ")));
        }
        lines.push(line);
    }
    if let Some(at) = me.status.expires_at {
        lines.push(format!("  until {at}"));
    }
    lines.join("\n")
}
