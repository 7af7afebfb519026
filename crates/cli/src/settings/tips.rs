//! Tips for a command line that cannot be read: the command that people of other tools mean, the flag that a file needs.

use std::{ffi::OsString, path::Path};

use clap::{
    Command,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Commands of other tools, and those of Berth.
const MEANT: [(&str, &str); 28] = [
    ("check", "berth doctor"),
    ("create", "berth apply -f FILE"),
    ("deploy", "berth apply -f FILE"),
    ("deployments", "berth get deployments"),
    ("download", "berth fetch URI --to DIR"),
    ("events", "berth get events"),
    ("history", "berth rollout history NAME"),
    ("install", "berth apply -f FILE"),
    ("list", "berth get models"),
    ("ls", "berth get models"),
    ("models", "berth get models"),
    ("nodes", "berth get nodes"),
    ("pause", "berth source pause NAME"),
    ("predict", "berth infer NAME -f FILE"),
    ("promote", "berth rollout promote NAME"),
    ("ps", "berth get models"),
    ("pull", "berth fetch URI --to DIR"),
    ("remove", "berth delete NAME"),
    ("restart", "berth rollout restart NAME"),
    ("resume", "berth source resume NAME"),
    ("rm", "berth delete NAME"),
    ("rollback", "berth rollout undo NAME"),
    ("run", "berth serve MODEL"),
    ("show", "berth describe NAME"),
    ("start", "berth up FOLDER"),
    ("status", "berth get models"),
    ("sync", "berth source sync NAME"),
    ("undo", "berth rollout undo NAME"),
];

/// Flags of other tools; the flag that a command must have for the tip; the tip.
const MEANT_FLAGS: [(&str, &str, &str); 7] = [
    ("-p", "http", PORTS),
    ("--port", "http", PORTS),
    ("--host", "http", PORTS),
    ("--file", "filename", "the flag for a file is `-f`"),
    ("--wait", "filename", "`berth wait NAME` waits until it serves"),
    ("-v", "log", "`--log debug` logs more"),
    ("--verbose", "log", "`--log debug` logs more"),
];

const PORTS: &str = "`--http ADDRESS:PORT` is the address for inference, `--api` that of the control API";

/// Adds what helps to an error. `words` is the command line.
pub(super) fn add(mut error: clap::Error, command: &Command, words: &[OsString]) -> clap::Error {
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => meant(&error),
        ErrorKind::UnknownArgument => file(&error, command, words).or_else(|| flag(&error, command, words)),
        ErrorKind::MissingRequiredArgument if words.get(1).is_some_and(|word| word == "get") => Some(
            "`berth get models` lists models; also: nodes, workers, replicas, aliases, events, sources, …".to_owned(),
        ),
        _ => None,
    };
    if error.get(ContextKind::Usage).is_some() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage(command, words)));
    }
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

/// The usage of the command. That of the error names what variables of the environment gave, as if it had to be there.
fn usage(command: &Command, words: &[OsString]) -> StyledStr {
    let mut root = command.clone();
    root.build();
    let mut leaf = &root;
    for word in words.iter().skip(1) {
        let Some(below) = leaf.find_subcommand(word) else { break };
        leaf = below;
    }
    leaf.clone().render_usage()
}

fn meant(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (_, meant) = MEANT.iter().find(|(other, _)| other == word)?;
    Some(format!("that is `{meant}`"))
}

fn flag(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let command = command.find_subcommand(words.get(1)?.to_str()?)?;
    let has = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    MEANT_FLAGS.iter().find(|(other, ours, _)| other == word && has(ours)).map(|(.., tip)| (*tip).to_owned())
}

/// A file that is named without `-f`.
fn file(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = words.get(1)?.to_str()?;
    let takes = command.find_subcommand(name)?.get_arguments().any(|arg| arg.get_long() == Some("filename"));
    (takes && Path::new(word).exists()).then(|| format!("a file has a flag: `berth {name} -f {word}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn told(words: &[&str]) -> String {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let error = args::command().try_get_matches_from(&words).expect_err("it is wrong");
        add(error, &args::command(), &words).to_string()
    }

    #[test]
    fn commands_of_other_tools_lead_to_ours() {
        for (word, meant) in MEANT {
            let told = told(&["berth", word]);
            assert!(told.contains(&format!("that is `{meant}`")) && told.matches("tip:").count() == 1, "{told}");
        }
        assert!(told(&["berth", "ge"]).contains("'get'"), "what clap finds stays");
    }

    #[test]
    fn what_is_meant_exists() {
        for (word, meant) in MEANT {
            let named: Vec<&str> =
                meant.split(' ').skip(1).take_while(|part| part.starts_with(char::is_lowercase)).collect();
            let command = args::command();
            let found = named.iter().try_fold(&command, |command, part| command.find_subcommand(part));
            assert!(
                found.is_some()
                    || named.last().is_some_and(|last| ["models", "nodes", "deployments", "events"].contains(last)),
                "{meant}"
            );
            assert!(command.find_subcommand(word).is_none(), "{word} is a command");
        }
    }

    #[test]
    fn a_file_without_its_flag_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("iris.yaml");
        fs_err::write(&file, "").expect("written");
        let file = file.to_str().expect("text");
        assert!(told(&["berth", "validate", file]).contains(&format!("`berth validate -f {file}`")));
        assert!(!told(&["berth", "validate", "/nowhere/iris.yaml"]).contains("tip:"));
        assert!(told(&["berth", "get"]).contains("berth get models"));
    }

    #[test]
    fn the_usage_does_not_ask_for_what_was_given() {
        let told = told(&["berth", "get", "--api", "http://127.0.0.1:1"]);
        assert!(told.contains("Usage: berth get [OPTIONS] <[KIND/]NAME>..."), "{told}");
    }

    #[test]
    fn flags_of_other_tools_lead_to_ours() {
        for (word, command, meant) in [
            ("--port", "serve", "`--http ADDRESS:PORT`"),
            ("-p", "up", "`--http ADDRESS:PORT`"),
            ("--file", "apply", "is `-f`"),
            ("--wait", "apply", "`berth wait NAME`"),
            ("--verbose", "node", "`--log debug`"),
        ] {
            let told = told(&["berth", command, word, "8080"]);
            assert!(told.contains(meant) && told.matches("tip:").count() == 1, "{told}");
        }
    }
}
