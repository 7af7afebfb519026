//! `berth token`: make, list and revoke tokens.

use std::time::Duration;

use berth_wire::{
    access::Role,
    api::{CreatedToken, NewToken, TokenSpec, TokenView},
};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::output::{Form, Row, or_dash, print_value, table};
use crate::{
    client::ApiArgs,
    failure::Failure,
    settings::duration,
    terminal::{self, age},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth token create --role caller --models 'fraud-*' --expires 30d   may ask models of these names, for a month
  berth token create --role deployer --namespace team                 may declare and ask models in one namespace
  berth token create --role viewer -o name                            the secret alone, for scripts
  berth token list                                                    rights and last use; never the secrets
  berth token revoke kq3vbn2xwp                                       nobody gets in with it any more")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    what: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print its secret, this once
    Create(CreateArgs),
    /// List the tokens
    List(ListArgs),
    /// Revoke tokens
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Role of the holder: viewer, caller, deployer, operator, admin
    #[arg(long, value_name = "ROLE")]
    role: Role,
    /// Only in this namespace. Repeatable
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',')]
    namespace: Vec<String>,
    /// Only for models of these names, with * for any text. Repeatable
    #[arg(long, value_name = "PATTERN,…", value_delimiter = ',')]
    models: Vec<String>,
    /// Validity [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires: Option<Duration>,
    /// Purpose, for the list
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Output format; `name` prints the secret alone
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Names of tokens, as `berth token list` shows them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &TokenArgs) -> Result<(), Failure> {
    match &args.what {
        TokenCommand::Create(create) => create.run().await,
        TokenCommand::List(list) => {
            let tokens = list.api.client()?.list::<TokenView>(&["tokens"], &[]).await?;
            match list.output {
                form @ (Form::Json | Form::Yaml) => print_value(&tokens, form),
                Form::Name => {
                    let names: String = tokens.items.iter().map(|token| format!("token/{}\n", token.name())).collect();
                    Ok(terminal::print(&names)?)
                }
                form => Ok(terminal::print(&table(&tokens.items, form))?),
            }
        }
        TokenCommand::Revoke(revoke) => {
            let client = revoke.api.client()?;
            for name in &revoke.names {
                let name = name.strip_prefix("token/").unwrap_or(name);
                let _revoked: TokenView = client.json(client.request(Method::DELETE, &["tokens", name], &[])).await?;
                terminal::print(&format!("token/{name} revoked"))?;
            }
            Ok(())
        }
    }
}

impl CreateArgs {
    async fn run(&self) -> Result<(), Failure> {
        let new = NewToken {
            spec: TokenSpec {
                role: self.role,
                namespaces: self.namespace.clone(),
                models: self.models.clone(),
                description: self.description.clone(),
            },
            expires_in_seconds: self.expires.map(|expires| expires.as_secs()),
        };
        let client = self.api.client()?;
        let created: CreatedToken = client.json(client.request(Method::POST, &["tokens"], &[]).json(&new)).await?;
        match self.output {
            form @ (Form::Json | Form::Yaml) => print_value(&created, form),
            Form::Name => Ok(terminal::print(&created.secret)?),
            Form::Table | Form::Wide => Ok(terminal::print(&format!(
                "token/{} made. Its secret is shown this once:\n{}",
                created.token.name(),
                created.secret
            ))?),
        }
    }
}

impl Row for TokenView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["NAME", "ROLE", "NAMESPACES", "MODELS", "EXPIRES", "LAST USED", "DESCRIPTION"], &["CREATED", "CREATED BY"]);

    fn name(&self) -> String {
        self.metadata.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let all = |places: &[String]| if places.is_empty() { "all".to_owned() } else { places.join(",") };
        let (spec, status) = (&self.spec, &self.status);
        vec![
            self.metadata.name.clone(),
            spec.role.to_string(),
            all(&spec.namespaces),
            all(&spec.models),
            match status.expires_at {
                _ if status.expired => "expired".to_owned(),
                Some(at) => at.to_string(),
                None => "never".to_owned(),
            },
            age(status.last_used_at),
            or_dash(&spec.description),
            age(status.created_at),
            or_dash(&status.created_by),
        ]
    }
}
