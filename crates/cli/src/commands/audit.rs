//! `berth audit`: who did what to what, with which outcome; followed with `-f`.

use std::time::Duration;

use berth_spec::Time;
use berth_wire::api::{AuditRecord, AuditView, Timestamp};
use clap::Args;
use reqwest::Method;

use super::output::{Form, yaml};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    settings::duration,
    terminal,
};

/// Interval at which a followed log is read again: every node is asked each time.
const FOLLOW: Duration = Duration::from_secs(1);

/// Most records in one answer of the server.
const MAX_RECORDS: u16 = 1_000;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth audit                                  the last changes and refusals, on all nodes
  berth audit -f                               keep printing what is added
  berth audit --since 1h --principal token:kq3vbn2xwp
  berth audit --limit 1000 -o json             one JSON object per line

Each node keeps its last 4,096 records in memory. Its file (--audit-log of the server) has more.
Records are for admins.")]
pub(crate) struct AuditArgs {
    /// Keep printing what is added
    #[arg(short, long)]
    follow: bool,
    /// Only records of this principal: token:ID, certificate:NAME, source:NAME@COMMIT, node:NAME, nobody
    #[arg(long, value_name = "PRINCIPAL")]
    principal: Option<String>,
    /// Only records of this last time: 30m, 1h, 7d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    since: Option<Duration>,
    /// Number of records to begin with
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_RECORDS)))]
    limit: u16,
    /// Output format: table for people, json for one object per line
    #[arg(short, long, value_parser = Form::among(&Form::NAMELESS), default_value = "table", value_name = "FORM")]
    output: Form,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) async fn run(args: &AuditArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let since = args.since.map(|since| {
        let now = terminal::now().0;
        Timestamp(Time(now.saturating_sub(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))))
    });
    let mut reader = Reader { client: &client, args, since, cursor: String::new(), missing: Vec::new() };
    if !reader.read(args.limit).await? && !args.follow {
        eprintln!("no such records");
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(FOLLOW).await;
        reader.read(MAX_RECORDS).await?;
    }
}

struct Reader<'a> {
    client: &'a Client,
    args: &'a AuditArgs,
    since: Option<Timestamp>,
    cursor: String,
    /// Nodes that did not answer last time.
    missing: Vec<String>,
}

impl Reader<'_> {
    /// Prints the records that are new; `false`: there are none.
    async fn read(&mut self, limit: u16) -> Result<bool, Failure> {
        let mut query = vec![("limit", limit.to_string())];
        if !self.cursor.is_empty() {
            query.push(("after", self.cursor.clone()));
        }
        query.extend(self.since.map(|since| ("since", since.to_string())));
        query.extend(self.args.principal.clone().map(|principal| ("principal", principal)));
        let log: AuditView = self.client.json(self.client.request(Method::GET, &["audit"], &query)).await?;
        if !log.missing.is_empty() && log.missing != self.missing {
            eprintln!("no answer from {}: their records are missing", log.missing.join(", "));
        }
        (self.cursor, self.missing) = (log.cursor, log.missing);
        let mut text = String::new();
        for record in &log.items {
            text.push_str(&match self.args.output {
                Form::Json => serde_json::to_string(record).map_err(|e| Failure::doing("cannot write JSON", e))? + "\n",
                Form::Yaml => format!("---\n{}", yaml(record)?),
                _ => shown(record, terminal::colours()),
            });
        }
        if text.is_empty() {
            return Ok(false);
        }
        terminal::print(&text)?;
        Ok(true)
    }
}

/// `2026-11-21 03:41:07  a  200  token:kq3vbn2xwp  POST /v1/apply  ModelDeployment/iris  10.0.0.7  5f0c1b9ae2d34476`.
fn shown(record: &AuditRecord, colours: bool) -> String {
    let at = record.at.to_string().replace('T', " ");
    let names: Vec<String> = record
        .resources
        .iter()
        .map(|resource| {
            let namespace = resource.namespace.as_deref().filter(|namespace| *namespace != "default");
            let namespace = namespace.map_or_else(String::new, |namespace| format!("{namespace}/"));
            format!("{}/{namespace}{}", resource.kind, resource.name)
        })
        .collect();
    let mut names = if names.is_empty() { "-".to_owned() } else { names.join(",") };
    if record.more_resources > 0 {
        names.push_str(&format!(" and {} more", record.more_resources));
    }
    let times = if record.count > 1 { format!("  {} times", record.count) } else { String::new() };
    let reason = if record.outcome.reason.is_empty() { String::new() } else { format!("  {}", record.outcome.reason) };
    let address = record.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let (before, after) = if record.outcome.is_success() || !colours { ("", "") } else { ("\x1b[33m", "\x1b[0m") };
    let line = format!(
        "{}  {}  {before}{}{after}  {}  {}  {names}  {address}  {}{reason}{times}",
        at.get(..19).unwrap_or(&at),
        record.node,
        record.outcome.status,
        record.principal,
        record.operation,
        record.request_id.as_deref().unwrap_or("-"),
    );
    // Names may be a stranger's.
    let line: String = line.chars().map(|c| if c.is_control() && c != '\x1b' { ' ' } else { c }).collect();
    line + "\n"
}

#[cfg(test)]
mod tests {
    use berth_wire::api::{AuditOutcome, AuditPort, AuditResource};

    use super::*;

    #[test]
    fn a_record_is_one_line() {
        let resource = |namespace: &str, name: &str| AuditResource {
            kind: "Alias".to_owned(),
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
        };
        let record = AuditRecord {
            at: Timestamp(Time(1_795_000_000_000_000_000)),
            node: "a".to_owned(),
            port: AuditPort::Api,
            request_id: Some("5f".to_owned()),
            principal: "token:x".to_owned(),
            address: Some([10, 0, 0, 7].into()),
            action: "declare".to_owned(),
            operation: "POST /v1/apply".to_owned(),
            resources: vec![resource("default", "one"), resource("shop", "two")],
            more_resources: 3,
            outcome: AuditOutcome { status: 403, reason: "Forbidden".to_owned() },
            count: 9,
        };
        let line = shown(&record, false);
        let wanted = "  a  403  token:x  POST /v1/apply  Alias/one,Alias/shop/two and 3 more  10.0.0.7  5f  Forbidden  9 times\n";
        assert!(line.ends_with(wanted), "{line}");
    }
}
