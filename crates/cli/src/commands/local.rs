//! Commands that only print what the binary knows of itself: completions, manual, version.

use clap::Args;
use clap_complete::{Shell, env::Shells};
use serde_json::json;

use super::output::{Form, print_value};
use crate::{args, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth completions bash > /etc/bash_completion.d/berth
  berth completions zsh > \"${fpath[1]}/_berth\"
  berth completions fish > ~/.config/fish/completions/berth.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell to generate for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    let shell = args.shell.to_string();
    match Shells::builtins().completer(&shell) {
        // Asks this program for what can stand where, so that names of things are offered, too.
        Some(completer) => completer.write_registration("COMPLETE", "berth", "berth", "berth", &mut script)?,
        None => clap_complete::generate(args.shell, &mut args::command(), "berth", &mut script),
    }
    Ok(terminal::print(&String::from_utf8_lossy(&script))?)
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth man | man -l -                       the overview
  berth man infer | man -l -                 one command")]
pub(crate) struct ManArgs {
    /// Command; without one, the overview
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut command = args::command();
    command.build();
    if let Some(name) = &args.command {
        let found = command.find_subcommand(name).cloned();
        let unknown = || Failure::Usage(format!("{name:?} is not a command: `berth help` lists them"));
        command = found.ok_or_else(unknown)?.display_name(format!("berth-{name}"));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(terminal::print(&String::from_utf8_lossy(&page))?)
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth version
  berth version -o json")]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
}

pub(crate) fn version(args: &VersionArgs) -> Result<(), Failure> {
    let (version, target) = (env!("CARGO_PKG_VERSION"), format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS));
    match args.output {
        Form::Json | Form::Yaml => {
            let build = if cfg!(debug_assertions) { "debug" } else { "release" };
            print_value(&json!({"version": version, "platform": target, "build": build}), args.output)
        }
        _ => Ok(terminal::print(&format!("berth {version} ({target})"))?),
    }
}
