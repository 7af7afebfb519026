//! Every setting of a server with its value and where that came from.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use url::Url;

use super::{
    file::File,
    layers::{is_setting, key},
};

/// All settings, in the order of the help.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    /// The file that was read, if one was.
    pub(crate) file: Option<PathBuf>,
    pub(crate) settings: Vec<Setting>,
}

/// Setting with its value and origin.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Its key in a file.
    pub(crate) key: String,
    /// Its values as they were written, secrets left out; none where nobody says anything.
    pub(crate) values: Vec<String>,
    /// True if it is repeatable.
    pub(crate) repeatable: bool,
    /// Description of the default for people.
    pub(crate) default_text: Option<String>,
    pub(crate) origin: Origin,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag or an argument of the command line.
    Flag(String),
    /// A variable of the environment.
    Environment(String),
    /// A line of the file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Line in the file, from 1.
        line: u32,
    },
    /// Built-in default.
    Default,
}

impl Effective {
    /// Settings that result from `matches` and the definitions of `command`.
    pub(super) fn of(command: &Command, matches: &ArgMatches, file: Option<&File>) -> Self {
        let settings = command.get_arguments().filter(|arg| is_setting(arg));
        Self {
            file: file.map(|file| file.path.clone()),
            settings: settings.map(|arg| Setting::of(arg, matches, file)).collect(),
        }
    }
}

impl Setting {
    fn of(arg: &Arg, matches: &ArgMatches, file: Option<&File>) -> Self {
        let (key, id) = (key(arg), arg.get_id().as_str());
        let entry = file.and_then(|file| file.entries.iter().find(|entry| entry.key == key).map(|entry| (file, entry)));
        let origin = match (matches.value_source(id), entry) {
            (Some(ValueSource::CommandLine), _) => match arg.get_long() {
                Some(long) => Origin::Flag(format!("--{long}")),
                None => Origin::Flag(key.to_uppercase()),
            },
            (Some(ValueSource::EnvVariable), _) => {
                Origin::Environment(arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
            }
            (_, Some((file, entry))) => Origin::File { path: file.path.clone(), line: entry.key_at.line },
            (_, None) => Origin::Default,
        };
        let raw = matches.get_raw(id).into_iter().flatten();
        Self {
            values: raw.map(|value| redacted(&value.to_string_lossy())).collect(),
            repeatable: matches!(arg.get_action(), clap::ArgAction::Append),
            default_text: default_text(arg),
            key,
            origin,
        }
    }
}

/// A password in an address is nobody's business.
pub(super) fn redacted(value: &str) -> String {
    match Url::parse(value) {
        Ok(mut url) if url.password().is_some() => {
            // What has a password can have another one.
            let _ = url.set_password(Some("REDACTED"));
            url.to_string()
        }
        _ => value.to_owned(),
    }
}

/// Default as the help describes it where it is not a value: `[default: one per core]`.
pub(crate) fn default_text(arg: &Arg) -> Option<String> {
    let help = arg.get_help().map(ToString::to_string)?;
    let (_, rest) = help.split_once("[default: ")?;
    rest.strip_suffix(']').map(str::to_owned)
}
