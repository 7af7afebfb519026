//! `berth secrets encrypt`: plain YAML or single values in, an encrypted file out.

use std::path::{Path, PathBuf};

use berth_secrets::{Document, Plain, PlainEntry, encrypt, plain_of};
use berth_spec::{
    Secret, WorkerId,
    credential::{FieldValue, Kind},
};
use clap::{Args, ValueHint};

use super::{RecipientArgs, document, plain_text, replace, warn_of_comments, wrong};
use crate::{failure::Failure, files::plural, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets encrypt --key registry.pub --worker worker-a \\
        --file plain.yaml --out worker-a-secrets.yaml
  vault kv get -format=json … | jq … | \\
        berth secrets encrypt --key registry.pub --worker worker-a > worker-a-secrets.yaml
  berth secrets encrypt --key registry.pub --into worker-a-secrets.yaml \\
        --set git.type=git_token --set git.token=@- --set git.hosts=git.acme.com < token
  berth secrets encrypt --key registry.pub --into worker-a-secrets.yaml \\
        --set s3_access.secret_access_key=@new-key

Input format (docs/secrets.md lists types and fields):
  secrets:
    s3_access:
      type: s3_credentials
      access_key_id: AKIA…
      secret_access_key: …
      region: us-east-1

With --into, other secrets and fields stay unchanged.")]
pub(super) struct EncryptArgs {
    #[command(flatten)]
    recipients: RecipientArgs,
    /// Worker that the secrets belong to; with --into the file names it
    #[arg(long, value_name = "WORKER")]
    worker: Option<WorkerId>,
    /// Secrets in plain YAML; standard input if neither this nor --set is given
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "set")]
    file: Option<PathBuf>,
    /// Set a field: NAME.FIELD=VALUE, =@FILE or =@- (standard input). Secret fields only from a file or standard
    /// input, because other users can see arguments
    #[arg(long, value_name = "NAME.FIELD=VALUE")]
    set: Vec<String>,
    /// Encrypted file to change; needs no private key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    into: Option<PathBuf>,
    /// Output file [default: the file of --into, else standard output]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &EncryptArgs) -> Result<(), Failure> {
    let recipients = args.recipients.read()?;
    let previous = args.into.as_deref().map(document).transpose()?;
    let plain = if args.set.is_empty() {
        let text = plain_text(args.file.as_deref())?;
        let name = args.file.as_ref().map_or_else(|| "-".to_owned(), |file| file.display().to_string());
        plain_of(&text, &name).map_err(|problems| wrong(&problems))?
    } else {
        set(&args.set, previous.as_ref())?
    };
    let worker = worker(args, &plain, previous.as_ref())?;
    if let (Some(path), Some(previous)) = (&args.into, &previous) {
        warn_of_comments(path, previous);
    }
    let made = encrypt(&worker, &plain, &recipients, previous.as_ref(), terminal::now())?;
    let text = made.to_yaml();
    match args.out.as_deref().or(args.into.as_deref()) {
        None => Ok(terminal::print(&text)?),
        Some(path) => {
            if args.into.is_none() && path.exists() {
                let path = path.display();
                return Err(Failure::Failed(format!(
                    "{path} is there already: change it with --into {path}, or move it away"
                )));
            }
            replace(path, &text)?;
            let what = plural(plain.secrets.len(), "secret");
            Ok(terminal::print(&format!("encrypted {what} of {worker} in {}\n", path.display()))?)
        }
    }
}

fn worker(args: &EncryptArgs, plain: &Plain, previous: Option<&Document>) -> Result<WorkerId, Failure> {
    let said: Vec<(&str, &WorkerId)> = [
        ("--worker", args.worker.as_ref()),
        ("the secrets", plain.worker.as_ref()),
        ("--into", previous.map(|previous| &previous.worker)),
    ]
    .into_iter()
    .filter_map(|(who, worker)| Some((who, worker?)))
    .collect();
    let Some((first, worker)) = said.first() else {
        return Err(Failure::Usage("name the worker with --worker WORKER".to_owned()));
    };
    match said.iter().find(|(_, other)| other != worker) {
        None => Ok((*worker).clone()),
        Some((second, other)) => {
            Err(Failure::Usage(format!("{first} says {worker} and {second} {other}: a file is one worker's")))
        }
    }
}

/// Secrets from `--set`.
fn set(all: &[String], previous: Option<&Document>) -> Result<Plain, Failure> {
    // Types first: fields are read by them.
    let mut kinds: Vec<(String, Kind)> = Vec::new();
    let mut values = Vec::new();
    for one in all {
        let usage = || Failure::Usage("--set takes NAME.FIELD=VALUE, NAME.FIELD=@FILE or NAME.FIELD=@-".to_owned());
        let (place, value) = one.split_once('=').ok_or_else(usage)?;
        let (name, field) = place.rsplit_once('.').ok_or_else(usage)?;
        if field == "type" {
            let kind =
                value.parse().map_err(|remedy| Failure::Usage(format!("--set {place}: no such type; {remedy}")))?;
            kinds.push((name.to_owned(), kind));
        } else {
            values.push((name, field, value));
        }
    }
    if values.iter().filter(|(.., value)| *value == "@-").count() > 1 {
        return Err(Failure::Usage("only one --set can be read from standard input".to_owned()));
    }
    let mut plain = Plain::default();
    for (name, field, value) in values {
        let known = previous.and_then(|document| document.secrets.iter().find(|entry| entry.name == name));
        let kind = kinds.iter().find(|(set, _)| set == name).map(|(_, kind)| *kind).or(known.map(|entry| entry.kind));
        let kind = kind.ok_or_else(|| {
            Failure::Usage(format!("{name} is a new secret: add --set {name}.type=TYPE, one of {}", Kind::names()))
        })?;
        let known = kind
            .field(field)
            .map_err(|wrong| Failure::Usage(format!("--set {name}.{field}: {}; {}", wrong.message, wrong.remedy)))?;
        if known.secret && !value.starts_with('@') {
            return Err(Failure::Usage(format!(
                "--set {name}.{field}: others on this machine see arguments, and your shell keeps them: write {name}.{field}=@- and give \
                 it on standard input, or =@FILE"
            )));
        }
        let text = match value.strip_prefix('@') {
            Some(path) => {
                let text = plain_text(Some(Path::new(path)))?;
                // What ends a line in a file is not a part of a token; keys end in one.
                let text = text.strip_suffix('\n').filter(|text| !text.contains('\n')).unwrap_or(&text);
                Secret::new(text)
            }
            None => Secret::new(value),
        };
        let value = if known.list {
            FieldValue::List(text.expose().split(',').map(|item| item.trim().to_owned()).collect())
        } else {
            FieldValue::Text(text)
        };
        match plain.secrets.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.fields.push((field.to_owned(), value)),
            None => {
                let fields = vec![(field.to_owned(), value)];
                plain.secrets.push(PlainEntry { name: name.to_owned(), kind, fields });
            }
        }
    }
    if let Some((name, _)) = kinds.iter().find(|(name, _)| !plain.secrets.iter().any(|entry| entry.name == *name)) {
        return Err(Failure::Usage(format!("{name} has a type and nothing else: set its fields as well")));
    }
    Ok(plain)
}
