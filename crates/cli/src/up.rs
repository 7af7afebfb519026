//! `berth up`: a node without a cluster. Its store is embedded, and it decides for itself alone.

use std::path::PathBuf;

use clap::Args;

use crate::{
    failure::Failure,
    node::{self, Hooks, settings::NodeSettings},
    settings::{ServerArgs, source::SourceArgs, values::Host},
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth up ./models                          serve the manifests of a folder, and follow changes
  berth up                                   serve what `berth apply` declares
  berth up ./models --memory 4GiB            limit the memory of all models
  berth up --source git+https://git.example.com/ops/model-registry.git#main \\
           --registry-key file:registry.key
  berth up ./models --source team-b=git+https://git.example.com/b/models.git   several sources
  berth up --config berth.yaml               settings from a file; `berth config show` explains
  berth up --http 0.0.0.0:8080 --tls self --auth tokens   for other machines (docs/security.md)
  berth up --data /var/lib/berth --log-format json
  curl http://127.0.0.1:8080/v2/models/iris  ask a model; the control API is on 8081

On SIGTERM or Ctrl-C, the server refuses new requests, finishes those in flight and exits with 0. A
second signal ends it at once. By default the server listens on loopback alone. Other addresses need
TLS (--tls-cert and --tls-key, or --tls self) and authentication (--auth tokens, or
--tls-client-ca), or --insecure.")]
pub(crate) struct UpArgs {
    /// Folder of manifests to serve and watch
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Host or address at which others reach this server: clients of functions and, in a cluster, other nodes [default: the addresses
    /// to listen on]
    #[arg(long, value_name = "HOST", env = "BERTH_ADVERTISE", value_parser = Host::parse)]
    pub(crate) advertise: Option<Host>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Starts a server and serves until it is told to stop.
pub(crate) fn run(args: UpArgs) -> Result<(), Failure> {
    node::start(settings(args)?, Hooks::default())
}

/// Checks what one setting alone cannot know.
pub(crate) fn settings(args: UpArgs) -> Result<NodeSettings, Failure> {
    if let Some(file) = args.folder.as_ref().filter(|path| path.is_file()) {
        let file = file.display();
        return Err(Failure::Usage(format!(
            "{file} is a file, and `berth up` follows a folder; `berth apply -f {file}` gives it to a server that runs"
        )));
    }
    let sources = args.source.settings(args.folder)?;
    if !args.server.insecure {
        sources.check_exposed()?;
    }
    NodeSettings::alone(args.server, sources, args.advertise)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: UpArgs,
    }

    #[test]
    fn a_server_that_is_alone_is_reached_at_the_advertised_host() {
        let advertised = |words: &[&str]| {
            let words = std::iter::once("up").chain(words.iter().copied());
            let args = TestArgs::try_parse_from(words).expect("arguments").args;
            let settings = settings(args).expect("settings");
            settings.advertised().map(ToString::to_string)
        };
        assert_eq!(advertised(&["--advertise", "models.example"]).as_deref(), Some("models.example"));
        assert_eq!(advertised(&[]), None);
    }
}
