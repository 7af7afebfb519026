//! `berth secrets check` and `show`: what can be said of files without a private key.

use std::path::{Path, PathBuf};

use berth_secrets::{Contents, Document, Stored};
use berth_wire::api::Timestamp;
use clap::{Args, ValueHint};
use fs_err as fs;
use serde_json::{Value, json};

use super::wrong;
use crate::{
    commands::output::{Form, or_dash, print_value},
    failure::Failure,
    files::plural,
    terminal::{self, Rows, age},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets check workers/secrets/*.yaml     in CI or before a commit; exit code 4 on errors
  berth secrets check workers/secrets            all *.yaml in a folder
  berth secrets check workers/secrets -o json | jq -r '.[].path'")]
pub(super) struct CheckArgs {
    /// Files of secrets, or folders with such files
    #[arg(value_name = "FILE|DIR", required = true, value_hint = ValueHint::AnyPath)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets show workers/secrets
  berth secrets show worker-a-secrets.yaml -o wide               also the recipients' keys
  berth secrets show workers/secrets -o json | jq '.[].keys'     which keys are still in use")]
pub(super) struct ShowArgs {
    /// Files of secrets, or folders with such files
    #[arg(value_name = "FILE|DIR", required = true, value_hint = ValueHint::AnyPath)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

pub(super) fn check(args: &CheckArgs) -> Result<(), Failure> {
    let files = all(&args.files)?;
    let mut problems = Vec::new();
    for path in &files {
        problems.extend(berth_secrets::check(&fs::read_to_string(path)?, &path.display().to_string()));
    }
    if matches!(args.output, Form::Json | Form::Yaml) {
        let list: Vec<Value> = problems
            .iter()
            .map(|problem| {
                json!({"file": problem.file, "line": problem.line, "column": problem.column, "path": problem.path,
                       "message": problem.message, "remedy": problem.remedy})
            })
            .collect();
        print_value(&list, args.output)?;
    }
    if !problems.is_empty() {
        return Err(wrong(&problems));
    }
    match args.output {
        Form::Json | Form::Yaml => Ok(()),
        _ => Ok(terminal::print(&format!("{} valid\n", plural(files.len(), "file")))?),
    }
}

pub(super) fn show(args: &ShowArgs) -> Result<(), Failure> {
    let mut read = Vec::new();
    for path in all(&args.files)? {
        let contents = Contents::parse(&fs::read_to_string(&path)?, &path.display().to_string());
        read.push((path, contents.map_err(|problems| wrong(&problems))?));
    }
    match args.output {
        Form::Json | Form::Yaml => {
            let list: Vec<Value> = read.iter().map(|(path, contents)| machine(path, contents)).collect();
            print_value(&list, args.output)
        }
        Form::Name => {
            let names: Vec<String> = read.iter().flat_map(|(_, contents)| names(contents)).collect();
            Ok(terminal::print(&names.join("\n"))?)
        }
        form => Ok(terminal::print(&table(&read, form == Form::Wide))?),
    }
}

fn table(read: &[(PathBuf, Contents)], wide: bool) -> String {
    let mut heads = vec!["WORKER", "NAME", "TYPE", "BACKEND", "ENCRYPTED", "KEY AGE"];
    heads.extend(if wide { &["PLAIN", "KEYS", "FILE"][..] } else { &[] });
    let mut rows = Rows::new(&heads);
    for (path, contents) in read {
        let file = path.display().to_string();
        match contents {
            Contents::Encrypted(document) => {
                for entry in &document.secrets {
                    let fields = |sealed: bool| -> String {
                        let names =
                            entry.fields.iter().filter(|(_, field)| matches!(field, Stored::Sealed(_)) == sealed);
                        or_dash(&names.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(","))
                    };
                    let oldest = entry.sealed().filter_map(|sealed| created(document, sealed.data)).min();
                    let mut row = vec![
                        document.worker.to_string(),
                        entry.name.clone(),
                        entry.kind.to_string(),
                        "file".to_owned(),
                    ];
                    row.extend([fields(true), age(oldest.map(Timestamp))]);
                    row.extend(wide.then(|| [fields(false), ids(document), file.clone()]).into_iter().flatten());
                    rows.add(row);
                }
            }
            Contents::Vault(worker, declared) => {
                for (name, want) in &declared.wants {
                    let mut row = vec![worker.to_string(), name.clone(), want.kind.to_string(), "vault".to_owned()];
                    row.extend(["-".to_owned(), "-".to_owned()]);
                    row.extend(
                        wide.then(|| [want.path.clone(), declared.addr.to_string(), file.clone()])
                            .into_iter()
                            .flatten(),
                    );
                    rows.add(row);
                }
            }
        }
    }
    rows.render()
}

fn machine(path: &Path, contents: &Contents) -> Value {
    let file = path.display().to_string();
    match contents {
        Contents::Encrypted(document) => {
            let secrets: Vec<Value> = document
                .secrets
                .iter()
                .map(|entry| {
                    let named = |sealed: bool| -> Vec<&str> {
                        let names = entry.fields.iter().filter(|(_, field)| matches!(field, Stored::Sealed(_)) == sealed);
                        names.map(|(name, _)| name.as_str()).collect()
                    };
                    let mut data: Vec<String> = entry.sealed().map(|sealed| sealed.data.to_string()).collect();
                    data.dedup();
                    json!({"name": entry.name, "type": entry.kind.as_str(), "encrypted": named(true), "plain": named(false),
                           "dataKeys": data})
                })
                .collect();
            let keys: Vec<Value> = document
                .keys
                .iter()
                .map(|key| json!({"data": key.data.to_string(), "id": key.id.as_str(), "created": key.created}))
                .collect();
            json!({"file": file, "worker": document.worker.as_str(), "backend": "file", "secrets": secrets, "keys": keys})
        }
        Contents::Vault(worker, declared) => {
            let secrets: Vec<Value> = declared
                .wants
                .iter()
                .map(|(name, want)| json!({"name": name, "type": want.kind.as_str(), "path": want.path}))
                .collect();
            json!({"file": file, "worker": worker.as_str(), "backend": "vault", "addr": declared.addr.as_str(),
                   "namespace": declared.namespace, "secrets": secrets})
        }
    }
}

fn names(contents: &Contents) -> Vec<String> {
    let (worker, names): (_, Vec<&String>) = match contents {
        Contents::Encrypted(document) => (&document.worker, document.secrets.iter().map(|entry| &entry.name).collect()),
        Contents::Vault(worker, declared) => (worker, declared.wants.keys().collect()),
    };
    names.into_iter().map(|name| format!("{worker}/{name}")).collect()
}

/// Creation time of a data key; `None` if the file does not give a valid one.
fn created(document: &Document, data: berth_secrets::DataId) -> Option<berth_spec::Time> {
    let key = document.keys.iter().find(|key| key.data == data)?;
    key.created.parse::<Timestamp>().ok().map(|at| at.0)
}

fn ids(document: &Document) -> String {
    let mut ids: Vec<&str> = document.keys.iter().map(|key| key.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.join(",")
}

/// The files, and those in the folders.
fn all(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        if !fs::metadata(path)?.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
                found.push(file);
            }
        }
        if found.is_empty() {
            return Err(Failure::NotFound(format!("{} has no *.yaml or *.yml file", path.display())));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}
