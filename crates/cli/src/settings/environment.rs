//! Errors of environment variables. Names the variable, where clap would name the flag that nobody wrote.

use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
};

use clap::{
    Arg, Command,
    builder::Resettable,
    error::{ContextKind, ContextValue},
};

use super::effective::redacted;
use crate::failure::Failure;

/// Variables of commands that ask a server.
const OF_CLIENTS: [&str; 9] = [
    "BERTH_API",
    "BERTH_HTTP",
    "BERTH_CA",
    "BERTH_CLIENT_CERT",
    "BERTH_CLIENT_KEY",
    "BERTH_TOKEN",
    "BERTH_TOKEN_FILE",
    "BERTH_CONTEXT",
    "BERTH_NAMESPACE",
];

/// Flags that say who asks, and the variables of a token that they outrank. Each flag outranks its own variable, but a token that a shell
/// has exported must not outrank the file that a command names, nor keep it from a login.
const OUTRANKED: [(&str, &[&str]); 2] =
    [("--token-file", &["BERTH_TOKEN"]), ("--oidc", &["BERTH_TOKEN", "BERTH_TOKEN_FILE"])];

/// The definitions without variables of [`OF_CLIENTS`] that do not count: empty ones, since `BERTH_CONTEXT= berth …` is how a shell says
/// none, and those that a flag among `words` outranks.
pub(super) fn that_count(command: Command, words: &[OsString], env: &dyn Fn(&OsStr) -> Option<OsString>) -> Command {
    let typed = OUTRANKED.iter().filter(|(flag, _)| words.iter().any(|word| is_flag(word, flag)));
    let outranked: Vec<&str> = typed.flat_map(|(_, variables)| *variables).copied().collect();
    without(command, &|variable| {
        let Some(name) = variable.to_str().filter(|name| OF_CLIENTS.contains(name)) else { return false };
        outranked.contains(&name) || env(variable).is_some_and(|value| value.is_empty())
    })
}

/// The definitions without the variables that are left out.
fn without(command: Command, is_out: &dyn Fn(&OsStr) -> bool) -> Command {
    command
        .mut_args(|arg| if arg.get_env().is_some_and(is_out) { arg.env(Resettable::Reset) } else { arg })
        .mut_subcommands(|command| without(command, is_out))
}

/// True of `--flag` and `--flag=value`.
fn is_flag(word: &OsStr, flag: &str) -> bool {
    let after = word.to_str().and_then(|word| word.strip_prefix(flag));
    after.is_some_and(|after| after.is_empty() || after.starts_with('='))
}

/// The error in the words of the environment, where that is where the value came from; `None`: it is the command line's.
pub(super) fn explained(
    error: &clap::Error,
    command: &Command,
    words: &[OsString],
    env: impl Fn(&OsStr) -> Option<OsString>,
) -> Option<Failure> {
    // `--http <ADDR>`
    let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = named.split([' ', '[', '=']).next()?.strip_prefix("--")?;
    let arg = find(command, flag)?;
    let (variable, value) = arg.get_env().and_then(|variable| Some((variable, env(variable)?)))?;
    if written(arg, words) {
        return None;
    }
    let shown = match arg.is_hide_env_values_set() {
        true => String::new(),
        false => format!(" is {:?}", redacted(&value.to_string_lossy())),
    };
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let why = match error.source() {
        Some(cause) => format!(": {cause}"),
        None if choices.is_empty() => ", which cannot be read".to_owned(),
        None => format!(": write one of {}", choices.join(", ")),
    };
    Some(Failure::Usage(format!("the variable {}{shown}{why}", variable.to_string_lossy())))
}

/// The definition of a flag, of whichever command.
fn find<'a>(command: &'a Command, flag: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| arg.get_long() == Some(flag) && arg.get_env().is_some());
    own.or_else(|| command.get_subcommands().find_map(|command| find(command, flag)))
}

/// True if the command line sets the argument.
fn written(arg: &Arg, words: &[OsString]) -> bool {
    let mut names = arg.get_long_and_visible_aliases().unwrap_or_default();
    names.extend(arg.get_long());
    words.iter().filter_map(|word| word.to_str()?.strip_prefix("--")).any(|word| {
        let name = word.split('=').next().unwrap_or(word);
        names.contains(&name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// Error for `flags`, given the words of the command line and the content of the environment.
    fn told(flags: &[&str], words: &[&str], variable: &str) -> Option<String> {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let error = args::command().try_get_matches_from(line(flags)).expect_err("it is wrong");
        let env = |name: &OsStr| (name == variable).then(|| flags.last().map(OsString::from))?;
        explained(&error, &args::command(), &line(words), env).map(|failure| failure.to_string())
    }

    #[test]
    fn an_empty_variable_of_a_client_is_none() {
        let env = |name: &OsStr| (name != "BERTH_TOKEN").then(OsString::new);
        let command = that_count(args::command(), &[], &env);
        let whoami = command.find_subcommand("whoami").expect("a command");
        let variables: Vec<_> = whoami.get_arguments().filter_map(|arg| arg.get_env()).collect();
        assert_eq!(variables, ["BERTH_TOKEN"]);
        let up = command.find_subcommand("up").expect("a command");
        assert!(up.get_arguments().any(|arg| arg.get_env() == Some(OsStr::new("BERTH_MEMORY"))), "servers are strict");
    }

    #[test]
    fn a_token_that_is_typed_outranks_the_one_of_the_environment() {
        let token = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let command = that_count(args::command(), &words, &|_| None);
            let login = command.find_subcommand("login").expect("a command");
            let variables = login.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
            variables.filter(|name| name.starts_with("BERTH_TOKEN")).map(str::to_owned).collect::<Vec<_>>()
        };
        let both = ["BERTH_TOKEN", "BERTH_TOKEN_FILE"];
        assert_eq!(token(&["berth", "login", "berth:8081"]), both);
        assert_eq!(token(&["berth", "login", "berth:8081", "--token", "t"]), both, "the flag has its own variable");
        assert_eq!(token(&["berth", "login", "berth:8081", "--token-file", "-"]), ["BERTH_TOKEN_FILE"]);
        assert_eq!(token(&["berth", "login", "berth:8081", "--token-file=t"]), ["BERTH_TOKEN_FILE"]);
        assert_eq!(token(&["berth", "login", "berth:8081", "--oidc", "https://issuer"]), [""; 0]);
    }

    #[test]
    fn a_wrong_variable_is_called_by_its_name() {
        let up = &["berth", "up"][..];
        let http = told(&["berth", "up", "--http", "nowhere"], up, "BERTH_HTTP_ADDR").expect("it is the variable");
        assert!(
            http.starts_with("the variable BERTH_HTTP_ADDR is \"nowhere\": ") && !http.contains("--http"),
            "{http}"
        );
        let format = told(&["berth", "up", "--log-format", "xml"], up, "BERTH_LOG_FORMAT");
        assert_eq!(format.as_deref(), Some("the variable BERTH_LOG_FORMAT is \"xml\": write one of auto, text, json"));
        let flag = ["berth", "up", "--http", "nowhere"];
        assert_eq!(told(&flag, &flag, "BERTH_HTTP_ADDR"), None, "the flag comes first");
        assert_eq!(told(&flag, up, "BERTH_API_ADDR"), None, "it is not there");
        let secret =
            told(&["berth", "up", "--otlp", "secret"], up, "OTEL_EXPORTER_OTLP_ENDPOINT").expect("the variable");
        assert!(!secret.contains("secret"), "{secret}");
    }
}
