//! `berth token`: make, list and revoke tokens.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_spec::{ByteSize, UseLimits};
use berth_wire::{
    access::{Role, Secret, TokenRecord},
    api::{CreatedToken, NewToken, PrincipalView, TokenLimits, TokenSpec, TokenView},
};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::json;

use super::{
    output::{Form, Row, creator, or_dash, print_list, print_value},
    secret_file::SecretFile,
};
use crate::{
    client::ApiArgs,
    failure::Failure,
    settings::{duration, size},
    terminal::{self, age},
};

/// Longest wait for the server's word on what it asks for: the secret is told by then.
const WHOAMI_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth token create --role caller --models 'fraud-*' --expires 30d   these models, for a month
  berth token create --role deployer --namespace team                 everything in a namespace
  berth token create --role caller --rate 100 --in-flight 16          limits at each gateway
  berth token create --role viewer --out viewer.token                 a file that only you can read
  berth token create --role viewer -o name                            the secret alone
  berth token create --role caller --models iris --file tokens.json   for executors; asks no server
  berth token list                                                    rights and last use
  berth token revoke kq3vbn2xwp                                       every server refuses it now")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    what: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print its secret, which is shown only once
    Create(CreateArgs),
    /// List the tokens
    List(ListArgs),
    /// Revoke tokens
    Revoke(RevokeArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth token create --role caller --models 'fraud-*' --expires 30d
  berth token create --role deployer --namespace team
  berth token create --role viewer --out viewer.token   the secret in a file that only you can read")]
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
    /// Requests per second at each gateway [default: --principal-rate of the server]
    #[arg(long, value_name = "N")]
    rate: Option<u32>,
    /// Requests that may come at one moment after a pause [default: as many as --rate]
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,
    /// Requests at once at each gateway, those that wait included
    #[arg(long, value_name = "N")]
    in_flight: Option<u32>,
    /// Bytes of request bodies per second at each gateway
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes: Option<ByteSize>,
    /// No limits, whatever the server has for everybody
    #[arg(long, conflicts_with_all = ["rate", "in_flight", "bytes"])]
    unlimited: bool,
    /// Purpose, for the list
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    /// Add the token to this file, which executors read (`access.tokens`), in place of asking a server. The file holds no secret
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// New file for the secret, which only its owner may read [default: print it]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    out: Option<PathBuf>,
    /// Output format; `name` prints the secret alone
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth token list                           rights and last use; never the secrets")]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth token revoke kq3vbn2xwp              every server refuses it from now on")]
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
            print_list("token", &tokens, list.output)
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
    /// Limits of its own; `None`: those for everybody.
    fn limits(&self) -> Option<TokenLimits> {
        let limits = TokenLimits {
            rate: self.rate,
            burst: self.burst,
            in_flight: self.in_flight,
            bytes_per_second: self.bytes.map(|bytes| bytes.0),
        };
        (self.unlimited || limits != TokenLimits::default()).then_some(limits)
    }

    async fn run(&self) -> Result<(), Failure> {
        let new = NewToken {
            spec: TokenSpec {
                role: self.role,
                namespaces: self.namespace.clone(),
                models: self.models.clone(),
                description: self.description.clone(),
                limits: self.limits(),
            },
            expires_in_seconds: self.expires.map(|expires| expires.as_secs()),
        };
        let out = self.out.as_deref().map(SecretFile::create).transpose()?;
        if let Some(file) = &self.file {
            let (name, secret) = add_to(file, new)?;
            if let Some((out, path)) = out.zip(self.out.as_deref()) {
                out.keep(&secret)?;
                let (file, path) = (file.display(), path.display());
                return Ok(terminal::print(&format!("token/{name} added to {file}; its secret is in {path}"))?);
            }
            return match self.output {
                form @ (Form::Json | Form::Yaml) => print_value(&json!({ "name": name, "secret": secret }), form),
                Form::Name => Ok(terminal::print(&secret)?),
                Form::Table | Form::Wide => Ok(terminal::print(&format!(
                    "token/{name} added to {}. Its secret is shown this once:\n{secret}",
                    file.display()
                ))?),
            };
        }
        let client = self.api.client()?;
        let created: CreatedToken = client.json(client.request(Method::POST, &["tokens"], &[]).json(&new)).await?;
        self.tell(&created, out)?;
        // The token is made and told, whatever the server says to this.
        let me = tokio::time::timeout(WHOAMI_TIMEOUT, client.get::<PrincipalView>(&["whoami"])).await;
        if matches!(me, Ok(Ok(me)) if !me.status.authenticated) {
            eprintln!("this server asks for no token (--auth off): the new one counts once it runs with --auth tokens");
        }
        Ok(())
    }

    /// Puts the secret into the file that was asked for, or prints it.
    fn tell(&self, created: &CreatedToken, out: Option<SecretFile>) -> Result<(), Failure> {
        if let Some((out, path)) = out.zip(self.out.as_deref()) {
            out.keep(&created.secret)?;
            let (name, path) = (created.token.name(), path.display());
            return Ok(terminal::print(&format!("token/{name} made; its secret is in {path}"))?);
        }
        match self.output {
            form @ (Form::Json | Form::Yaml) => print_value(created, form),
            Form::Name => Ok(terminal::print(&created.secret)?),
            Form::Table | Form::Wide => Ok(terminal::print(&format!(
                "token/{} made. Its secret is shown this once:\n{}",
                created.token.name(),
                created.secret
            ))?),
        }
    }
}

/// Adds a token to a file of records: its name and its secret.
fn add_to(file: &Path, new: NewToken) -> Result<(String, String), Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Invalid(format!("{}: {error}", file.display()));
    let mut records: Vec<TokenRecord> = match std::fs::read_to_string(file) {
        Ok(text) => serde_json::from_str(&text).map_err(|error| wrong(&error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(wrong(&error)),
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (secret, now) = (Secret::generate(), since.as_secs());
    records.push(TokenRecord {
        id: secret.id().to_owned(),
        hash: secret.hash(),
        grant: new.spec.grant(),
        description: new.spec.description,
        created_by: String::new(),
        created: now,
        expires: new.expires_in_seconds.map(|seconds| now.saturating_add(seconds)),
        limits: new.spec.limits.map(UseLimits::from),
    });
    let text = serde_json::to_string_pretty(&records).map_err(|error| wrong(&error))?;
    // Whole or not at all: an executor may read it now.
    let beside = file.with_extension("new");
    fs_err::write(&beside, text + "\n").and_then(|()| fs_err::rename(&beside, file)).map_err(|error| wrong(&error))?;
    Ok((secret.id().to_owned(), secret.reveal().to_owned()))
}

impl Row for TokenView {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (
        &["NAME", "ROLE", "NAMESPACES", "MODELS", "LIMITS", "EXPIRES", "LAST USED", "DESCRIPTION"],
        &["CREATED", "CREATED BY"],
    );

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
            limits(spec.limits),
            match status.expires_at {
                _ if status.expired => "expired".to_owned(),
                Some(at) => at.to_string(),
                None => "never".to_owned(),
            },
            age(status.last_used_at),
            or_dash(&spec.description),
            age(status.created_at),
            creator(&status.created_by),
        ]
    }
}

/// The limits in a few characters: `100/s, 16 at once, 10MiB/s`.
fn limits(limits: Option<TokenLimits>) -> String {
    let Some(TokenLimits { rate, burst, in_flight, bytes_per_second }) = limits else { return "default".to_owned() };
    let rate = rate.map(|rate| match burst {
        Some(burst) => format!("{rate}/s (burst {burst})"),
        None => format!("{rate}/s"),
    });
    let in_flight = in_flight.map(|most| format!("{most} at once"));
    let bytes = bytes_per_second.map(|bytes| format!("{}/s", ByteSize(bytes)));
    let all: Vec<String> = [rate, in_flight, bytes].into_iter().flatten().collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_added_to_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens.json");
        let spec = |models: &str| TokenSpec {
            role: Role::Caller,
            namespaces: Vec::new(),
            models: vec![models.to_owned()],
            description: String::new(),
            limits: None,
        };
        let new = |models: &str| NewToken { spec: spec(models), expires_in_seconds: Some(60) };
        let (_, first) = add_to(&file, new("iris")).expect("a new file");
        let (name, _) = add_to(&file, new("rose")).expect("the same file");
        let text = fs_err::read_to_string(&file).expect("it is there");
        let records: Vec<TokenRecord> = serde_json::from_str(&text).expect("records");
        assert_eq!((records.len(), &records[1].id, &records[1].grant.models[..]), (2, &name, &["rose".to_owned()][..]));
        assert!(!text.contains(&first), "no secret");
        fs_err::write(&file, "x").expect("written");
        assert!(add_to(&file, new("iris")).is_err());
    }

    #[test]
    fn limits_in_a_few_characters() {
        let none = TokenLimits::default();
        let all =
            TokenLimits { rate: Some(100), burst: Some(9), in_flight: Some(16), bytes_per_second: Some(10 << 20) };
        for (given, shown) in [
            (None, "default"),
            (Some(none), "none"),
            (Some(TokenLimits { rate: Some(5), ..none }), "5/s"),
            (Some(all), "100/s (burst 9), 16 at once, 10MiB/s"),
        ] {
            assert_eq!(limits(given), shown);
        }
    }
}
