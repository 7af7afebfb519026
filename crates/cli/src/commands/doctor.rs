//! `berth doctor`: checks this machine before, or beside, a server.

mod checks;

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use serde::Serialize;

use super::output::{Form, Row, print_value, table};
use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth doctor                               what is there, what is missing, and what to type
  berth doctor --data /var/lib/berth         for a server with this data folder
  berth doctor -o json                       for scripts

The exit code is 1 where something is missing without which `berth up` serves no model.")]
pub(crate) struct DoctorArgs {
    /// Data folder of the server
    #[arg(long, env = "BERTH_DATA", default_value = "./.berth", value_name = "DIR")]
    data: PathBuf,
    /// Address for inference
    #[arg(long, env = "BERTH_HTTP_ADDR", default_value = "127.0.0.1:8080", value_name = "ADDR")]
    http: SocketAddr,
    /// Address of the control API
    #[arg(long, env = "BERTH_API_ADDR", default_value = "127.0.0.1:8081", value_name = "ADDR")]
    api: SocketAddr,
    /// Library of ONNX Runtime
    #[arg(long, env = "ORT_DYLIB_PATH", value_name = "PATH")]
    onnxruntime: Option<PathBuf>,
    /// Library of the NVIDIA driver
    #[arg(long, env = "BERTH_NVML_LIBRARY", value_name = "PATH")]
    nvml_library: Option<PathBuf>,
    /// Program that makes Python environments
    #[arg(long, env = "BERTH_UV", value_name = "PATH")]
    uv: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Check {
    /// The part of the machine.
    name: &'static str,
    verdict: Verdict,
    /// The finding, for people.
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Something does not work without it; the rest does.
    Optional,
    /// Berth serves no model without it.
    Missing,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn lacks(name: &'static str, verdict: Verdict, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name, verdict, found: found.into(), remedy: Some(remedy.into()) }
    }
}

impl Row for Check {
    const HEADS: (&'static [&'static str], &'static [&'static str]) = (&["CHECK", "RESULT", "FOUND"], &[]);

    fn name(&self) -> String {
        format!("check/{}", self.name.replace(' ', "-"))
    }

    fn cells(&self) -> Vec<String> {
        let verdict = match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Optional => "optional",
            Verdict::Missing => "missing",
        };
        vec![self.name.to_owned(), verdict.to_owned(), self.found.clone()]
    }
}

pub(crate) async fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let checks = checks::all(args).await;
    match args.output {
        Form::Json | Form::Yaml => print_value(&checks, args.output)?,
        Form::Name => terminal::print(&checks.iter().map(|check| check.name() + "\n").collect::<String>())?,
        Form::Table | Form::Wide => {
            let mut text = table(&checks, args.output);
            for check in &checks {
                if let Some(remedy) = &check.remedy {
                    text.push_str(&format!("\n{}: {remedy}\n", check.name));
                }
            }
            terminal::print(&text)?;
        }
    }
    let missing: Vec<&str> = checks.iter().filter(|c| c.verdict == Verdict::Missing).map(|c| c.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("models cannot be served yet: {}", missing.join(", "))))
}
