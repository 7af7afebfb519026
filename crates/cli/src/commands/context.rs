//! `berth context`: list, choose, show, rename and delete contexts.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    completing,
    output::{Form, Row, or_dash, print_value, table},
};
use crate::{
    contexts::{Context, Contexts},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context list          the contexts; * marks the current one
  berth context use prod      commands ask that server from now on
  berth context show          the current one; its token is not shown
  berth get nodes --context staging    another one for one command
  berth context delete old    forget a server, and its token")]
pub(crate) struct ContextArgs {
    #[command(subcommand)]
    what: ContextCommand,
}

#[derive(Debug, Subcommand)]
enum ContextCommand {
    /// List the contexts
    List(ListArgs),
    /// Make a context the current one
    Use(OneArgs),
    /// Show a context
    Show(ShowArgs),
    /// Give a context another name
    Rename(RenameArgs),
    /// Delete contexts, and their tokens
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context list
  berth context list -o json")]
struct ListArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context use prod                     commands ask that server from now on")]
struct OneArgs {
    /// Name of the context
    #[arg(value_name = "NAME", add = completing::contexts())]
    name: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context show                         the current one
  berth context show prod -o json")]
struct ShowArgs {
    /// Name of the context [default: the current one]
    #[arg(value_name = "NAME", add = completing::contexts())]
    name: Option<String>,
    /// Output format
    #[arg(short, long, value_parser = Form::among(&[Form::Json, Form::Yaml]), default_value = "yaml", value_name = "FORM")]
    output: Form,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context rename prod production")]
struct RenameArgs {
    /// Name of the context
    #[arg(value_name = "NAME", add = completing::contexts())]
    name: String,
    /// New name
    #[arg(value_name = "NEW")]
    new: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth context delete old                   forget a server, and its token")]
struct DeleteArgs {
    /// Names of contexts
    #[arg(value_name = "NAME", required = true, add = completing::contexts())]
    names: Vec<String>,
}

pub(crate) fn run(args: &ContextArgs) -> Result<(), Failure> {
    let mut all = Contexts::read()?;
    match &args.what {
        ContextCommand::List(list) => {
            let current = all.current.as_deref();
            let rows = all
                .contexts
                .into_iter()
                .map(|context| ContextRow { current: current == Some(&*context.name), context });
            let rows: Vec<ContextRow> = rows.collect();
            match list.output {
                form @ (Form::Json | Form::Yaml) => print_value(&rows, form),
                Form::Name => {
                    Ok(terminal::print(&rows.iter().map(|row| format!("{}\n", row.name())).collect::<String>())?)
                }
                form => Ok(terminal::print(&table(&rows, form))?),
            }
        }
        ContextCommand::Use(OneArgs { name }) => {
            all.get(name)?;
            all.current = Some(name.clone());
            all.write()?;
            Ok(terminal::print(&format!("context {name} is the current one"))?)
        }
        ContextCommand::Show(show) => {
            let Some(name) = show.name.as_deref().or(all.current.as_deref()) else {
                let message =
                    "no context is the current one: `berth login` makes one, `berth context use NAME` chooses one";
                return Err(Failure::NotFound(message.to_owned()));
            };
            print_value(all.get(name)?, show.output)
        }
        ContextCommand::Rename(RenameArgs { name, new }) => {
            all.rename(name, new)?;
            all.write()?;
            Ok(terminal::print(&format!("context {name} is called {new} now"))?)
        }
        ContextCommand::Delete(DeleteArgs { names }) => {
            for name in names {
                all.delete(name)?;
                all.write()?;
                terminal::print(&format!("context {name} deleted"))?;
            }
            Ok(())
        }
    }
}

/// A context in the list.
#[derive(Serialize)]
struct ContextRow {
    current: bool,
    #[serde(flatten)]
    context: Context,
}

impl Row for ContextRow {
    const HEADS: (&'static [&'static str], &'static [&'static str]) =
        (&["CURRENT", "NAME", "API", "HTTP", "IDENTITY"], &["NAMESPACE", "CA"]);

    fn name(&self) -> String {
        self.context.name.clone()
    }

    fn cells(&self) -> Vec<String> {
        let context = &self.context;
        let identity = match (&context.token_file, &context.client_cert) {
            (Some(_), _) => "token",
            (None, Some(_)) => "certificate",
            (None, None) => "none",
        };
        let ca = context.ca.as_ref().map(|ca| ca.display().to_string());
        vec![
            if self.current { "*" } else { "" }.to_owned(),
            context.name.clone(),
            context.api.clone(),
            or_dash(context.http.as_deref().unwrap_or_default()),
            identity.to_owned(),
            or_dash(context.namespace.as_deref().unwrap_or_default()),
            or_dash(&ca.unwrap_or_default()),
        ]
    }
}
