//! `docs/cli.md` and `docs/configuration.md`, made from the definitions of the command line.

mod configuration;
mod typed;

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use crate::{args, failure::EXIT_CODES};

const INTRODUCTION: &str = "# Command line

<!-- Generated from crates/cli/src: `UPDATE=1 cargo test -p berth-cli reference` rewrites it. -->

`berth` is one binary. `berth up` runs a single server, `berth node` a node of a cluster; the other commands ask a server or work on
files. Results go to standard output, logs and errors to standard error. `NO_COLOR` turns colours off. Every command has
`--help` with examples. Settings of servers can also be in a file: [configuration](configuration.md).

";

fn page() -> String {
    let mut root = args::command();
    root.build();
    let mut out = INTRODUCTION.to_owned();
    // Formatting into a string cannot fail.
    let _ = writeln!(out, "```text\n{EXIT_CODES}\n```\n\n| command | what it does |\n|---|---|");
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name();
        let _ = writeln!(out, "| [`berth {name}`](#berth-{name}) | {} |", about(command));
    }
    sections(&root, "##", "berth", &mut out);
    out
}

/// A section for each command below `parent`, and those below it.
fn sections(parent: &Command, level: &str, words: &str, out: &mut String) {
    for command in parent.get_subcommands().filter(|command| command.get_name() != "help") {
        let words = format!("{words} {}", command.get_name());
        section(command, level, &words, out);
        // What `config show up` takes is what `up` takes.
        if words != "berth config show" {
            sections(command, "###", &words, out);
        }
    }
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn section(command: &Command, level: &str, words: &str, out: &mut String) {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = writeln!(out, "\n{level} {words}\n\n{}.\n\n```text\n{usage}\n```\n", about(command));
    // By what they do, not by name: `berth schema` has a `--version` of its own.
    let shown = |arg: &&Arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        !arg.is_hide_set() && !matches!(arg.get_action(), Help | HelpShort | HelpLong | Version)
    };
    if command.get_arguments().any(|arg| shown(&arg)) {
        out.push_str("| argument | default | environment | meaning |\n|---|---|---|---|\n");
    }
    for arg in command.get_arguments().filter(shown) {
        let (default, env, help) = (default(arg), env(arg), help(arg));
        let _ = writeln!(out, "| `{}` | {default} | {env} | {help}{} |", spelled(arg), choices(arg));
    }
    if let Some(examples) = command.get_after_help() {
        let _ = writeln!(out, "\n```text\n{examples}\n```");
    }
}

fn default(arg: &Arg) -> String {
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    match default.join(" ") {
        text if text.is_empty() || !arg.get_action().takes_values() => "–".to_owned(),
        text => format!("`{text}`"),
    }
}

fn env(arg: &Arg) -> String {
    arg.get_env().map_or_else(|| "–".to_owned(), |name| format!("`{}`", name.to_string_lossy()))
}

/// The help; a bar would end the cell.
fn help(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|")
}

fn spelled(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string()).unwrap_or_default();
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => return value,
    };
    match arg.get_action().takes_values() {
        true if arg.is_require_equals_set() => format!("{flag}[={value}]"),
        true => format!("{flag} {value}"),
        false => flag,
    }
}

fn choices(arg: &Arg) -> String {
    let told = arg.get_action().takes_values() && !arg.is_hide_possible_values_set();
    let values = if told { arg.get_possible_values() } else { Vec::new() };
    let words: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

#[test]
fn the_reference_is_up_to_date() {
    for (file, made) in [("cli.md", page()), ("configuration.md", configuration::page())] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        if std::env::var_os("UPDATE").is_some() {
            // In one step: the test of what pages tell people to type reads all pages beside this one.
            let new = path.with_extension("new");
            fs_err::write(&new, &made).expect("the page is written");
            fs_err::rename(&new, &path).expect("the page is replaced");
        }
        let kept = fs_err::read_to_string(&path).unwrap_or_default();
        assert!(kept == made, "docs/{file} is out of date: UPDATE=1 cargo test -p berth-cli reference");
    }
}

#[test]
fn the_definitions_are_sound_and_every_command_teaches() {
    let command = args::command();
    command.clone().debug_assert();
    for command in command.get_subcommands() {
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(examples.starts_with("Examples:\n"), "{} has no examples", command.get_name());
        let name = command.get_name();
        // An operator's commands are Kubernetes' matter; its own page has the examples.
        for below in command.get_subcommands().filter(|below| name != "operator" && below.get_name() != "help") {
            let examples = below.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(examples.starts_with("Examples"), "{name} {} has no examples", below.get_name());
        }
    }
}

/// Columns of a help text, at which clap breaks a line: in the middle of a command line, too.
const WIDTH: usize = 100;

#[test]
fn no_line_of_a_help_text_is_broken() {
    fn wide(command: &Command, found: &mut Vec<String>) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        found.extend(text.lines().filter(|line| line.chars().count() > WIDTH).map(str::to_owned));
        command.get_subcommands().for_each(|below| wide(below, found));
    }
    let mut found = Vec::new();
    wide(&args::command(), &mut found);
    assert!(found.is_empty(), "{found:#?}");
}
