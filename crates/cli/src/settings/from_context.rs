//! The context's values as defaults of a command that asks a server: below flags and variables, above built-in defaults. The addresses of
//! a context that is typed are above variables: its token must not go to the server of a shell.

use clap::{ArgMatches, Command, Id, builder::Resettable, parser::ValueSource};

use crate::{args, contexts, failure::Failure};

/// Flags that name a server.
const ADDRESSES: [&str; 2] = ["api", "http"];

/// Flags that say who asks. A context's identity is left out whole where one of them is given.
const IDENTITY: [&str; 4] = ["token", "token_file", "client_cert", "client_key"];

/// The definitions with the values of the context that is in force; `None`: the command takes none, or none is in force.
///
/// # Errors
/// The named context does not exist, the file of contexts cannot be read, or the context's login has ended.
pub(super) fn layered(matches: &ArgMatches) -> Result<Option<Command>, Failure> {
    let (path, leaf) = leaf(matches);
    let command = args::command();
    let Some(defined) = path.iter().try_fold(&command, |command, word| command.find_subcommand(word)) else {
        return Ok(None);
    };
    let takes = defined.get_arguments().any(|arg| arg.get_id() == "context");
    // What is given to a login becomes the context.
    if !takes || path == ["login"] {
        return Ok(None);
    }
    let said = |id: &str| {
        let is_there = leaf.try_contains_id(id).unwrap_or(false);
        is_there && matches!(leaf.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let named = leaf.get_one::<String>("context").map(String::as_str);
    let Some(context) = contexts::in_force(named, ADDRESSES.into_iter().any(said))? else { return Ok(None) };
    let identified = IDENTITY.into_iter().any(said);
    if !identified {
        crate::commands::block_on(contexts::renew(&context))?;
    }
    let comes_from =
        |id: &str, source| leaf.try_contains_id(id).unwrap_or(false) && leaf.value_source(id) == Some(source);
    let is_typed = comes_from("context", ValueSource::CommandLine);
    let outranks = |id: &Id| {
        is_typed && ADDRESSES.iter().any(|address| id == address) && comes_from(id.as_str(), ValueSource::EnvVariable)
    };
    let values: Vec<(Id, String, bool)> = defined
        .get_arguments()
        .filter(|arg| !(identified && IDENTITY.iter().any(|id| arg.get_id() == id)))
        .filter_map(|arg| {
            let value = context.variable(arg.get_env()?.to_str()?)?;
            Some((arg.get_id().clone(), value, outranks(arg.get_id())))
        })
        .collect();
    Ok(Some(with(command, &path, values)))
}

/// The words of the innermost command, and its matches.
fn leaf(matches: &ArgMatches) -> (Vec<String>, &ArgMatches) {
    let (mut path, mut leaf) = (Vec::new(), matches);
    while let Some((word, inner)) = leaf.subcommand() {
        path.push(word.to_owned());
        leaf = inner;
    }
    (path, leaf)
}

/// The command with these defaults; true: above the argument's variable.
fn with(command: Command, path: &[String], values: Vec<(Id, String, bool)>) -> Command {
    match path {
        [] => values.into_iter().fold(command, |command, (id, value, outranks)| {
            command.mut_arg(id, |arg| {
                let arg = arg.default_value(value);
                if outranks { arg.env(Resettable::Reset) } else { arg }
            })
        }),
        [word, rest @ ..] => command.mut_subcommand(word, |command| with(command, rest, values)),
    }
}
