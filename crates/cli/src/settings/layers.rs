//! Flags before the environment before the file, or the context, before defaults.
//!
//! The command line is read once to find the file, the file's values are put into the definitions as defaults, and it is
//! read again. So a value from a file is read by the same parser as a flag, and clap's order of precedence is the one
//! order there is.

use std::{ffi::OsString, path::PathBuf};

use berth_spec::manifest::{ManifestError, closest};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, builder::Resettable};

use super::{
    effective::Effective,
    environment,
    file::{File, FileSetting, SettingValue},
    from_context, tips,
};
use crate::{
    args::{self, Arguments},
    failure::Failure,
};

/// A command line, read with all that stands behind it.
pub(crate) struct Parsed {
    pub(crate) arguments: Arguments,
    /// Of a server's command: every setting and where it came from.
    pub(crate) effective: Option<Effective>,
}

/// The commands that have settings, by their words.
const SERVERS: [&[&str]; 4] = [&["up"], &["node"], &["config", "show", "up"], &["config", "show", "node"]];

/// Arguments that are not settings.
pub(crate) const NOT_SETTINGS: [&str; 4] = ["help", "version", "config", "output"];

/// Reads a command line, the environment and the file that they name. What is wrong with the command line ends the
/// process with clap's own words.
///
/// # Errors
/// What is wrong with the file, or with a variable of the environment.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
    let words = with_kind(words.into_iter().collect());
    let matches = read(args::command(), &words)?;
    let Some((path, leaf)) = server(&matches) else {
        return match from_context::layered(&matches)? {
            Some(command) => parsed(&read(command, &words)?, None),
            None => parsed(&matches, None),
        };
    };
    let file = leaf.get_one::<PathBuf>("config").map(|path| File::read(path)).transpose()?;
    let Some(file) = file else {
        let effective = Effective::of(&definitions(path), leaf, None);
        return parsed(&matches, Some(effective));
    };
    check(&file, path)?;
    let matches = read(at(args::command(), path, &mut |command| with_defaults(command, &file)), &words)?;
    let effective = server(&matches).map(|(path, leaf)| Effective::of(&definitions(path), leaf, Some(&file)));
    parsed(&matches, effective)
}

/// Reads a command line. What is wrong with it ends the process; what is wrong with a variable is told by its name.
fn read(command: Command, words: &[OsString]) -> Result<ArgMatches, Failure> {
    let command = environment::that_count(command, words, &|name| std::env::var_os(name));
    let error = match command.try_get_matches_from(words) {
        Ok(matches) => return Ok(matches),
        Err(error) => error,
    };
    match environment::explained(&error, &args::command(), words, |name| std::env::var_os(name)) {
        Some(failure) => Err(failure),
        None => tips::add(error, &args::command(), words).exit(),
    }
}

fn parsed(matches: &ArgMatches, effective: Option<Effective>) -> Result<Parsed, Failure> {
    let arguments = Arguments::from_arg_matches(matches).map_err(|e| Failure::Usage(e.to_string()))?;
    Ok(Parsed { arguments, effective })
}

/// `berth config show` alone is about `berth up`.
fn with_kind(mut words: Vec<OsString>) -> Vec<OsString> {
    let shows = words.get(1).is_some_and(|word| word == "config") && words.get(2).is_some_and(|word| word == "show");
    let decided = |word: &OsString| ["up", "node", "-h", "--help"].iter().any(|kind| word == kind);
    if shows && !words[3..].iter().any(decided) {
        words.insert(3, "up".into());
    }
    words
}

/// The command that starts a server, or says what starting it would mean: its words and its matches.
fn server(matches: &ArgMatches) -> Option<(&'static [&'static str], &ArgMatches)> {
    SERVERS.iter().find_map(|path| {
        let leaf = path.iter().try_fold(matches, |matches, word| matches.subcommand_matches(word));
        leaf.map(|leaf| (*path, leaf))
    })
}

/// The definitions of one of [`SERVERS`].
pub(crate) fn definitions(path: &[&str]) -> Command {
    let mut command = args::command();
    command.build();
    let found = path.iter().try_fold(&command, |command, word| command.find_subcommand(word));
    found.cloned().unwrap_or_default()
}

/// Changes the command at `path`.
fn at(command: Command, path: &[&'static str], change: &mut dyn FnMut(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [word, rest @ ..] => command.mut_subcommand(word, |command| at(command, rest, change)),
    }
}

/// True if an argument is a setting.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    !NOT_SETTINGS.contains(&arg.get_id().as_str())
}

/// Key of a setting in a file: the name of its flag.
pub(crate) fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().to_owned(), str::to_owned)
}

/// The file's values as defaults.
fn with_defaults(mut command: Command, file: &File) -> Command {
    let settings: Vec<(clap::Id, Vec<String>)> = command
        .get_arguments()
        .filter(|arg| is_setting(arg))
        .filter_map(|arg| {
            let entry = file.entries.iter().find(|entry| entry.key == key(arg))?;
            Some((arg.get_id().clone(), entry.value.each().to_vec()))
        })
        .collect();
    for (id, values) in settings {
        command = command.mut_arg(id, |arg| arg.default_values(values));
    }
    command
}

/// Checks that every key of the file is a setting of the command with a valid value.
fn check(file: &File, path: &[&str]) -> Result<(), Failure> {
    let command = definitions(path);
    let settings: Vec<&Arg> = command.get_arguments().filter(|arg| is_setting(arg)).collect();
    let errors: Vec<ManifestError> = file
        .entries
        .iter()
        .filter_map(|entry| match settings.iter().find(|arg| key(arg) == entry.key) {
            Some(arg) => wrong(file, entry, arg),
            None => Some(unknown(file, entry, path, &settings)),
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(file.failure(errors)) }
}

fn unknown(file: &File, entry: &FileSetting, path: &[&str], settings: &[&Arg]) -> ManifestError {
    let (this, other) = match path.last() {
        Some(&"node") => ("node", "up"),
        _ => ("up", "node"),
    };
    let message = format!("{:?} is not a setting of `berth {this}`", entry.key);
    let keys: Vec<String> = settings.iter().map(|arg| key(arg)).collect();
    let elsewhere = definitions(&[other]).get_arguments().any(|arg| is_setting(arg) && key(arg) == entry.key);
    let remedy = match closest(&entry.key, keys.iter().map(String::as_str)) {
        _ if elsewhere => format!("it is one of `berth {other}`: remove it here"),
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("`berth {this} --help` lists them; the file's keys are named as the flags are"),
    };
    file.error(entry.key_at, &entry.key, message, remedy)
}

/// Error of a value, if the flag's parser rejects it.
fn wrong(file: &File, entry: &FileSetting, arg: &Arg) -> Option<ManifestError> {
    let name = &entry.key;
    if matches!(entry.value, SettingValue::Many(_)) && !matches!(arg.get_action(), ArgAction::Append) {
        let message = format!("{name} takes one value, not several");
        return Some(file.error(entry.value_at, name, message, format!("write `{name}: VALUE`")));
    }
    let alone = arg.clone().env(Resettable::Reset).required(false);
    let words = entry.value.each().iter().map(|word| match arg.get_long() {
        Some(long) => format!("--{long}={word}"),
        None => word.clone(),
    });
    let read = Command::new("file").no_binary_name(true).arg(alone).try_get_matches_from(words);
    let error = read.err()?;
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let remedy = match std::error::Error::source(&error) {
        Some(cause) => cause.to_string(),
        None if choices.is_empty() => String::new(),
        None => format!("write one of {}", choices.join(", ")),
    };
    let message = format!("{:?} is not right for {name}", entry.value.each().join(","));
    Some(file.error(entry.value_at, name, message, remedy))
}
