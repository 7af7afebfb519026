//! Tips for a command line that cannot be read: the command that people of other tools mean, the flag that a file needs.

use std::{
    error::Error as _,
    ffi::OsString,
    num::{IntErrorKind, ParseIntError},
    path::Path,
};

use berth_spec::manifest::closest;
use clap::{
    Arg, Command,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Commands of other tools, with the words before them, and those of Berth.
const MEANT: [(&str, &str); 35] = [
    ("annotate", "berth edit NAME"),
    ("auth", "berth whoami"),
    ("autoscale", "berth scale NAME --min N --max N"),
    ("check", "berth doctor"),
    ("config get-contexts", "berth context list"),
    ("config use-context", "berth context use NAME"),
    ("create", "berth apply -f FILE"),
    ("deploy", "berth apply -f FILE"),
    ("deployments", "berth get deployments"),
    ("download", "berth fetch URI --to DIR"),
    ("events", "berth get events"),
    ("history", "berth rollout history NAME"),
    ("install", "berth apply -f FILE"),
    ("label", "berth edit NAME"),
    ("list", "berth get models"),
    ("ls", "berth get models"),
    ("models", "berth get models"),
    ("nodes", "berth get nodes"),
    ("patch", "berth edit NAME"),
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
const MEANT_FLAGS: [(&str, &str, &str); 9] = [
    ("-p", "http", PORTS),
    ("--port", "http", PORTS),
    ("--host", "http", PORTS),
    ("--file", "filename", "the flag for a file is `-f`"),
    ("-R", "filename", BELOW),
    ("--recursive", "filename", BELOW),
    ("--wait", "filename", "`berth wait NAME` waits until it serves"),
    ("-v", "log", "`--log debug` logs more"),
    ("--verbose", "log", "`--log debug` logs more"),
];

const PORTS: &str = "`--http ADDRESS:PORT` is the address for inference, `--api` that of the control API";

const BELOW: &str = "`-f FOLDER` reads the folder with all below it";

/// Adds what helps to an error. `words` is the command line.
pub(super) fn add(mut error: clap::Error, command: &Command, words: &[OsString]) -> clap::Error {
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            nearest(&mut error, command, words);
            meant(&error, words)
        }
        ErrorKind::UnknownArgument => {
            without_escape(&mut error);
            let tip = file(&error, command, words).or_else(|| flag(&error, command, words));
            tip.or_else(|| early(&error, command, words))
        }
        ErrorKind::MissingRequiredArgument => missing(&error, words).map(str::to_owned),
        ErrorKind::ValueValidation => number(&mut error, command).map(str::to_owned),
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
    leaf(&root, words).clone().render_usage()
}

/// The last command that the words name.
fn leaf<'a>(root: &'a Command, words: &[OsString]) -> &'a Command {
    let mut leaf = root;
    for word in words.iter().skip(1) {
        let Some(below) = leaf.find_subcommand(word) else { break };
        leaf = below;
    }
    leaf
}

fn meant(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let until = words.iter().skip(1).position(|word| word == wrong.as_str())? + 1;
    of_another_tool(&words[1..=until]).map(|meant| format!("that is `{meant}`"))
}

/// The command of Berth for the words of another tool's.
fn of_another_tool(words: &[OsString]) -> Option<&'static str> {
    let typed: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let typed = typed.join(" ");
    MEANT.iter().find(|(other, _)| *other == typed).map(|(_, meant)| *meant)
}

/// A flag before the command that has it, or before a command of another tool.
fn early(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_wrong = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with(wrong.as_str()));
    let at = words.iter().position(is_wrong).filter(|_| wrong.starts_with('-'))?;
    let mut root = command.clone();
    root.build();
    let here = leaf(&root, &words[..at]);
    // Without the flag; the words after it may be its value.
    let lines = (at + 1..words.len()).map(|next| [&words[..at], &words[next..]].concat());
    let lines: Vec<Vec<OsString>> = lines.collect();
    if let Some(line) = lines.iter().find(|line| here.find_subcommand(&line[at]).is_some()) {
        let typed = leaf(&root, line);
        let has = |arg: &Arg| {
            arg.get_long().is_some_and(|long| *wrong == format!("--{long}"))
                || arg.get_short().is_some_and(|short| *wrong == format!("-{short}"))
        };
        let name = typed.get_bin_name().filter(|_| typed.get_arguments().any(has))?;
        return Some(format!("flags come after the command: `{name} {wrong} …`"));
    }
    let meant = lines.iter().find_map(|line| of_another_tool(&line[1..=at]))?;
    Some(format!("that is `{meant}`; flags come after the command"))
}

/// Puts the command with the fewest slips in place of those that clap finds, which are similar in other ways: `scael` is `scale`.
fn nearest(error: &mut clap::Error, command: &Command, words: &[OsString]) {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let known = leaf(command, words).get_subcommands().map(Command::get_name);
    if let Some(near) = closest(wrong, known) {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near.to_owned()]));
    }
}

/// Removes the tip to write `--` before a flag that is not there: nothing that is named begins with a dash.
fn without_escape(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) else { return };
    tips.retain(|tip| !tip.to_string().contains("as a value, use"));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Tip for a command that lacks a word.
fn missing(error: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let Some(ContextValue::Strings(lacking)) = error.get(ContextKind::InvalidArg) else { return None };
    match words.get(1)?.to_str()? {
        "get" => Some("`berth get models` lists models; also: nodes, workers, replicas, aliases, events, sources, …"),
        "plan" => Some("`-f FILE` takes manifests, `--registry FOLDER` a registry"),
        _ if lacking.iter().any(|word| word.contains("[KIND/]NAME")) => Some("`berth get deployments` lists names"),
        _ => None,
    }
}

/// Tip for a value that is not the number that is wanted, in place of the words of Rust's library.
fn number(error: &mut clap::Error, command: &Command) -> Option<&'static str> {
    let tip = match error.source()?.downcast_ref::<ParseIntError>()?.kind() {
        IntErrorKind::PosOverflow => "write a smaller number",
        IntErrorKind::NegOverflow => "write a larger number",
        IntErrorKind::Zero => "write 1 or more",
        _ => "write a whole number",
    };
    // The words cannot be taken out: without its source the error is the same otherwise.
    let mut plain = clap::Error::new(ErrorKind::ValueValidation).with_cmd(command);
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue] {
        if let Some(value) = error.get(kind) {
            plain.insert(kind, value.clone());
        }
    }
    *error = plain;
    Some(tip)
}

fn flag(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = words.get(1)?.to_str()?;
    let tip = match (name, word.as_str()) {
        ("describe", "-o" | "--output") => Some("`berth get NAME -o yaml` prints a thing as data"),
        ("delete", "-f" | "--filename") => Some("name what to delete: `berth delete NAME`"),
        _ => None,
    };
    if let Some(tip) = tip {
        return Some(tip.to_owned());
    }
    let command = command.find_subcommand(name)?;
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
            let words: Vec<&str> = ["berth"].into_iter().chain(word.split(' ')).collect();
            let told = told(&words);
            assert!(told.contains(&format!("that is `{meant}`")) && told.matches("tip:").count() == 1, "{told}");
        }
        for words in [&["berth", "source", "ls"][..], &["berth", "context", "remove"]] {
            assert!(!told(words).contains("that is"), "{words:?} is no such command");
        }
    }

    #[test]
    fn a_flag_before_the_command_is_told_its_place() {
        for (words, tip) in [
            (&["berth", "--api", "http://127.0.0.1:1", "list"][..], "that is `berth get models`; flags come after"),
            (&["berth", "context", "--token=t", "ls"], ""),
            (&["berth", "-n", "team", "get", "models"], "flags come after the command: `berth get -n …`"),
            (&["berth", "--api=x", "source", "sync"], "`berth source sync --api …`"),
            (&["berth", "source", "--api", "x", "sync"], "`berth source sync --api …`"),
        ] {
            let told = told(words);
            let tips = usize::from(!tip.is_empty());
            assert!(told.contains(tip) && told.matches("flags come after").count() == tips, "{told}");
        }
        for words in [&["berth", "--nothing", "get", "models"][..], &["berth", "get", "--nothing", "models"]] {
            assert!(!told(words).contains("flags come after"), "no command has it");
        }
    }

    #[test]
    fn the_command_with_the_fewest_slips_is_told() {
        for (words, near) in [
            (&["berth", "scael", "iris"][..], "scale"),
            (&["berth", "ge"], "get"),
            (&["berth", "rollout", "unod"], "undo"),
        ] {
            let told = told(words);
            assert!(told.contains(&format!("'{near}'")) && told.matches("tip:").count() == 1, "{told}");
        }
    }

    #[test]
    fn a_flag_that_is_not_there_is_no_value() {
        for words in [&["berth", "get", "deploy", "--no-headers"][..], &["berth", "logs", "iris", "-p"]] {
            let told = told(words);
            assert!(!told.contains("as a value") && !told.contains("tip:"), "{told}");
        }
        assert!(told(&["berth", "get", "deploy", "--outptu"]).contains("'--output'"), "what clap finds stays");
        assert!(told(&["berth", "describe", "iris", "-o", "yaml"]).contains("`berth get NAME -o yaml`"));
        assert!(told(&["berth", "delete", "-f", "iris.yaml"]).contains("`berth delete NAME`"));
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
            let typed = word.split(' ').try_fold(&command, |command, part| command.find_subcommand(part));
            assert!(typed.is_none(), "{word} is a command");
        }
    }

    #[test]
    fn a_value_that_is_no_number_is_told_in_plain_words() {
        for (words, tip) in [
            (&["berth", "scale", "iris", "--replicas", "x"][..], "whole number"),
            (&["berth", "infer", "iris", "--repeat", "x"], "whole number"),
            (&["berth", "infer", "iris", "--repeat", "0"], "1 or more"),
            (&["berth", "infer", "iris", "--concurrency", "99999999999"], "smaller"),
        ] {
            let told = told(words);
            assert!(told.contains("invalid value") && told.contains(&format!("for '{}", words[3])), "{told}");
            assert!(told.contains(tip) && told.matches("tip:").count() == 1, "{told}");
            for leaked in ["digit", "parse", "target type", "non-zero"] {
                assert!(!told.contains(leaked), "{told}");
            }
        }
        assert!(told(&["berth", "scale", "iris", "--replicas", "1001"]).contains("1001 is not in 0..=1000"));
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
        assert!(told(&["berth", "plan"]).contains("`--registry FOLDER`"));
        assert!(told(&["berth", "delete"]).contains("`berth get deployments` lists names"));
        assert!(told(&["berth", "rollout", "undo"]).contains("`berth get deployments` lists names"));
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
            ("-R", "apply", "all below it"),
        ] {
            let told = told(&["berth", command, word, "8080"]);
            assert!(told.contains(meant) && told.matches("tip:").count() == 1, "{told}");
        }
    }
}
