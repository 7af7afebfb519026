//! `berth config show`: what a server would be told, and by whom.

use std::fmt::Write as _;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::output::{Form, print_value};
use crate::{
    failure::Failure,
    node::settings::NodeArgs,
    settings::effective::{Effective, Origin, Setting},
    terminal::{self, Rows},
    up::UpArgs,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth config show --config berth.yaml      the settings of `berth up --config berth.yaml`
  berth config show node --config berth.yaml --memory 8GiB
  berth config show > berth.yaml             a file to start from; defaults are comments")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the settings of a server and the origin of each: flag, environment, file, default
    Show(ShowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth config show --config berth.yaml      the settings of `berth up --config berth.yaml`
  berth config show node -o table            settings of `berth node` as a table
  berth config show node -o json             for programs

The YAML is itself a configuration file. A comment names the origin of each value. Secrets are left
out.")]
struct ShowArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM", global = true)]
    output: ShowForm,
    #[command(subcommand)]
    server: Server,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ShowForm {
    /// A configuration file, with comments
    #[default]
    Yaml,
    /// JSON, for programs
    Json,
    /// Table, for people
    Table,
}

#[derive(Debug, Subcommand)]
enum Server {
    /// Those of `berth up`; the default
    Up(Box<UpArgs>),
    /// Those of `berth node`
    Node(Box<NodeArgs>),
}

/// Prints `effective`, which was read with the same definitions as the server's own.
pub(crate) fn run(args: &ConfigArgs, effective: &Effective) -> Result<(), Failure> {
    let ConfigCommand::Show(args) = &args.command;
    match args.output {
        ShowForm::Json => print_value(&machine(effective), Form::Json),
        ShowForm::Yaml => Ok(terminal::print(&file(effective))?),
        ShowForm::Table => {
            let mut rows = Rows::new(&["SETTING", "VALUE", "FROM"]);
            for setting in &effective.settings {
                let value = if setting.values.is_empty() { default_text(setting) } else { setting.values.join(",") };
                rows.add([setting.key.clone(), value, origin(&setting.origin)]);
            }
            Ok(terminal::print(&rows.render())?)
        }
    }
}

fn machine(effective: &Effective) -> serde_json::Value {
    let setting = |setting: &Setting| {
        let value = match (setting.repeatable, setting.values.as_slice()) {
            (true, values) => json!(values),
            (false, values) => json!(values.first()),
        };
        let (source, place) = match &setting.origin {
            Origin::Flag(flag) => ("flag", json!(flag)),
            Origin::Environment(name) => ("environment", json!(name)),
            Origin::File { path, line } => ("file", json!(format!("{}:{line}", path.display()))),
            Origin::Default => ("default", json!(null)),
        };
        json!({ "setting": setting.key, "value": value, "source": source, "from": place })
    };
    json!({
        "file": effective.file.as_ref().map(|path| path.display().to_string()),
        "settings": effective.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}

fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Flag(flag) => format!("flag {flag}"),
        Origin::Environment(name) => format!("env {name}"),
        Origin::File { path, line } => format!("{}:{line}", path.display()),
        Origin::Default => "default".to_owned(),
    }
}

fn default_text(setting: &Setting) -> String {
    setting.default_text.clone().unwrap_or_else(|| "-".to_owned())
}

/// A configuration file that says the same.
fn file(effective: &Effective) -> String {
    let said = |setting: &Setting| {
        if setting.repeatable {
            let values: Vec<String> = setting.values.iter().map(|value| scalar(value)).collect();
            return format!("{}: [{}]", setting.key, values.join(", "));
        }
        format!("{}: {}", setting.key, setting.values.first().map(|value| scalar(value)).unwrap_or_default())
    };
    let mut text = String::new();
    for setting in &effective.settings {
        // Formatting into a string cannot fail.
        let _ = match setting.values.is_empty() {
            false => writeln!(text, "{:<44} # {}", said(setting), origin(&setting.origin)),
            true => writeln!(
                text,
                "{:<44} # {}",
                format!("# {}:", setting.key),
                setting.default_text.as_deref().unwrap_or("not set")
            ),
        };
    }
    text
}

/// A value as YAML: bare where that means the same, else quoted.
fn scalar(value: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '_' | '-' | '=' | ':' | '+' | '@');
    let begins = value.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/'));
    let word = !matches!(value.to_lowercase().as_str(), "null" | "true" | "false" | "yes" | "no" | "on" | "off");
    if begins && !value.ends_with(':') && value.chars().all(bare) && (word || matches!(value, "true" | "false")) {
        return value.to_owned();
    }
    serde_json::to_string(value).unwrap_or_default()
}
