//! `berth logs`: the recent log of a model over all its workers, or of a function; followed with `-f`.

use std::time::Duration;

use berth_spec::DeploymentName;
use berth_wire::api::{LogLine, LogView};
use clap::Args;
use reqwest::Method;

use super::{
    functions,
    namespace::{NamespaceArgs, path_of},
    output::Form,
    resource::{Resource, Target, not_found},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

/// Interval at which a followed log is read again: it seems immediate.
const FOLLOW: Duration = Duration::from_millis(500);

/// Most lines in one answer of the server.
const MAX_LINES: u16 = 1_000;

#[derive(Debug, Args)]
#[command(mut_args(Target::words_of(&[Resource::Deployments, Resource::Functions])), after_help = "Examples:
  berth logs iris                            output, loads and failures of all its replicas
  berth logs iris -f                         keep printing what is added
  berth logs iris --tail 20 --node a         the last 20 lines of one node
  berth logs iris -o json                    one JSON object per line
  berth logs function/words                  the last build of a function, then its output

Each node keeps the last 128 KiB of a model's lines, and 8 MiB of all models together, in memory.")]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    target: Target,
    /// Keep printing what is added
    #[arg(short, long)]
    follow: bool,
    /// Number of lines to begin with
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_LINES)))]
    tail: u16,
    /// Only lines of this node
    #[arg(long, value_name = "NODE", add = super::completing::nodes())]
    node: Option<String>,
    /// Output format: table for people, json for one object per line
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &LogsArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let named = args.target.find(&client, &args.namespace, &[Resource::Deployments, Resource::Functions]).await?;
    let [(resource, name)] = named.as_slice() else {
        return Err(Failure::Usage("name one model: `berth logs NAME`".to_owned()));
    };
    let name = DeploymentName::new(name).map_err(|error| Failure::Usage(error.to_string()))?;
    if *resource == Resource::Functions {
        if args.node.is_some() {
            return Err(Failure::Usage("--node is for models: a function has one log; leave it out".to_owned()));
        }
        let wanted = functions::LogWanted { follow: args.follow, tail: args.tail.into(), form: args.output };
        return functions::print_log(&client, &name, &wanted).await;
    }
    let mut reader = Reader { client: &client, args, name, cursor: String::new(), missing: Vec::new() };
    if !reader.read(args.tail).await? && !args.follow {
        eprintln!("no lines are kept of it: its workers have not loaded it since they started");
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(FOLLOW).await;
        reader.read(MAX_LINES).await?;
    }
}

struct Reader<'a> {
    client: &'a Client,
    args: &'a LogsArgs,
    name: DeploymentName,
    cursor: String,
    /// Nodes that did not answer last time.
    missing: Vec<String>,
}

impl Reader<'_> {
    /// Prints the lines that are new; `false`: there are none.
    async fn read(&mut self, limit: u16) -> Result<bool, Failure> {
        let mut query = vec![("limit", limit.to_string())];
        if !self.cursor.is_empty() {
            query.push(("after", self.cursor.clone()));
        }
        let path = [path_of(&self.name), vec!["log"]].concat();
        let log: LogView = match self.client.json(self.client.request(Method::GET, &path, &query)).await {
            Err(Failure::NotFound(_)) => {
                return Err(not_found(self.client, Resource::Deployments, self.name.as_str()).await);
            }
            other => other?,
        };
        if !log.missing.is_empty() && log.missing != self.missing {
            eprintln!("no answer from {}: their lines are missing", log.missing.join(", "));
        }
        (self.cursor, self.missing) = (log.cursor, log.missing);
        let lines = log.lines.iter().filter(|line| self.args.node.as_ref().is_none_or(|node| *node == line.node));
        let mut text = String::new();
        for line in lines {
            text.push_str(&match self.args.output {
                Form::Json => serde_json::to_string(line).map_err(|e| Failure::doing("cannot write JSON", e))? + "\n",
                Form::Yaml => format!("---\n{}", super::output::yaml(line)?),
                _ => shown(line, terminal::colours()),
            });
        }
        if text.is_empty() {
            return Ok(false);
        }
        terminal::print(&text)?;
        Ok(true)
    }
}

/// `03:41:07  node-a  text`; what the model itself printed stands after a bar.
fn shown(line: &LogLine, colours: bool) -> String {
    let at = line.at.to_string();
    let mark = match line.event.as_str() {
        "model_output" | "model_log" | "model_raised" => "| ",
        _ => "",
    };
    let text: String = line.text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let (before, after) = match line.level.as_str() {
        "ERROR" if colours => ("\x1b[31m", "\x1b[0m"),
        "WARN" if colours => ("\x1b[33m", "\x1b[0m"),
        _ => ("", ""),
    };
    format!("{}  {}  {before}{mark}{text}{after}\n", at.get(11..19).unwrap_or(&at), line.node)
}

#[cfg(test)]
mod tests {
    use berth_spec::Time;
    use berth_wire::api::Timestamp;

    use super::*;

    #[test]
    fn a_line_says_when_where_and_what() {
        let mut line = LogLine {
            node: "a".to_owned(),
            number: 1,
            at: Timestamp(Time(1_795_000_000_000_000_000)),
            level: "INFO".to_owned(),
            event: "model_output".to_owned(),
            text: "hello\x1b[2J".to_owned(),
        };
        let time = line.at.to_string()[11..19].to_owned();
        assert_eq!(shown(&line, true), format!("{time}  a  | hello [2J\n"));
        (line.event, line.level) = ("model_load_failed".to_owned(), "ERROR".to_owned());
        assert_eq!(shown(&line, true), format!("{time}  a  \x1b[31mhello [2J\x1b[0m\n"));
    }
}
