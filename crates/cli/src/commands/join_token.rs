//! `berth join-token`: make, list and revoke what new nodes are given to get a certificate.

use std::{path::PathBuf, time::Duration};

use berth_spec::Roles;
use berth_wire::api::{CreatedJoinToken, JoinTokenSpec, JoinTokenView, NewJoinToken};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::{
    output::{Form, Row, creator, or_dash, print_list, print_value},
    secret_file::SecretFile,
};
use crate::{
    client::ApiArgs,
    failure::Failure,
    settings::duration,
    terminal::{self, age},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth join-token create --roles worker --out join.token         then copy it to the new machine;
    berth node --name gpu-1 --roles worker --join-token join.token    there
  berth join-token create --roles worker --uses 20 --expires 1d   for twenty machines, today
  berth join-token create --roles worker --node gpu-1             only for a node of this name
  berth join-token list                                           who joined; never the secrets
  berth join-token revoke kq3vbn2xwp                              nobody joins with it any more

The leader must be started with --authority DIR, the folder that `berth pki init` made.")]
pub(crate) struct JoinTokenArgs {
    #[command(subcommand)]
    what: JoinTokenCommand,
}

#[derive(Debug, Subcommand)]
enum JoinTokenCommand {
    /// Create a join token and print its text, which is shown only once
    Create(CreateArgs),
    /// List the join tokens
    List(ListArgs),
    /// Revoke join tokens
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth join-token create --roles worker --out join.token
  berth join-token create --roles worker --uses 20 --expires 1d   for twenty machines, today
  berth join-token create --roles worker --node gpu-1             only for a node of this name")]
struct CreateArgs {
    /// Roles of the nodes: controller, worker, gateway
    #[arg(long, value_name = "ROLE,…")]
    roles: Roles,
    /// The only name that a node may take [default: any that no node has]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Nodes that may join
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u32,
    /// Validity, at most 30 days
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    expires: Duration,
    /// Purpose, for the list
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// New file for the text, which only its owner may read [default: print it]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Output format; `name` prints the text alone
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth join-token list                      who joined with them; never the secrets")]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth join-token revoke kq3vbn2xwp         nobody joins with it any more")]
struct RevokeArgs {
    /// Names of join tokens, as `berth join-token list` shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &JoinTokenArgs) -> Result<(), Failure> {
    match &args.what {
        JoinTokenCommand::Create(create) => create.run().await,
        JoinTokenCommand::List(list) => {
            let tokens = list.api.client()?.list::<JoinTokenView>(&["join-tokens"], &[]).await?;
            print_list("join-token", &tokens, list.output)
        }
        JoinTokenCommand::Revoke(revoke) => {
            let client = revoke.api.client()?;
            for name in &revoke.names {
                let name = name.strip_prefix("join-token/").unwrap_or(name);
                let _revoked: JoinTokenView =
                    client.json(client.request(Method::DELETE, &["join-tokens", name], &[])).await?;
                terminal::print(&format!("join-token/{name} revoked"))?;
            }
            Ok(())
        }
    }
}

impl CreateArgs {
    async fn run(&self) -> Result<(), Failure> {
        let new = NewJoinToken {
            spec: JoinTokenSpec {
                roles: self.roles.to_string(),
                node: self.node.clone(),
                uses: self.uses,
                description: self.description.clone(),
            },
            expires_in_seconds: Some(self.expires.as_secs()),
        };
        let client = self.api.client()?;
        let out = self.out.as_deref().map(SecretFile::create).transpose()?;
        let created: CreatedJoinToken =
            client.json(client.request(Method::POST, &["join-tokens"], &[]).json(&new)).await?;
        let name = &created.token.metadata.name;
        if let Some((file, path)) = out.zip(self.out.as_deref()) {
            file.keep(&created.secret)?;
            return Ok(terminal::print(&format!("join-token/{name} made; its text is in {}", path.display()))?);
        }
        match self.output {
            form @ (Form::Json | Form::Yaml) => print_value(&created, form),
            Form::Name => Ok(terminal::print(&created.secret)?),
            Form::Table | Form::Wide => Ok(terminal::print(&format!(
                "join-token/{name} made. Its text is shown this once:\n{}",
                created.secret
            ))?),
        }
    }
}

impl Row for JoinTokenView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "ROLES", "NODE", "USED", "EXPIRES", "JOINED", "DESCRIPTION"], &["CREATED", "CREATED BY"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let (spec, status) = (&self.spec, &self.status);
        vec![
            self.metadata.name.clone(),
            spec.roles.clone(),
            spec.node.clone().unwrap_or_else(|| "any".to_owned()),
            format!("{}/{}", status.nodes.len(), spec.uses),
            match status.expires_at {
                _ if status.expired => "expired".to_owned(),
                Some(at) => at.to_string(),
                None => "-".to_owned(),
            },
            or_dash(&status.nodes.join(",")),
            or_dash(&spec.description),
            age(status.created_at),
            creator(&status.created_by),
        ]
    }
}
