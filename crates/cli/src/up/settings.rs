//! What `berth up` is told beyond what every server is.

use std::path::PathBuf;

use berth_spec::WorkerId;
use clap::Args;

use crate::{
    failure::Failure,
    settings::{
        ServerArgs, ServerSettings,
        source::{Source, SourceArgs},
    },
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth up ./models                          serve what the folder declares, and follow its changes
  berth up                                   serve what is declared through the API (`berth apply`)
  berth up ./models --memory 4GiB            models together take at most this much
  berth up --source git=https://git.example.com/ops/model-registry.git#main --registry-key file:registry.key
  berth up --config berth.yaml               settings from a file; `berth config show` says what came from where
  berth up --data /var/lib/berth --log-format json
  curl http://127.0.0.1:8080/v2/models/iris  where models answer; the control API is on 8081

SIGTERM or Ctrl-C refuses new requests, finishes those in flight, and exits with 0; a second one exits at once.
It listens on loopback unless told otherwise; there is no TLS yet, so other addresses need --insecure.")]
pub(crate) struct UpArgs {
    /// A folder of manifests to serve and to follow
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    source: SourceArgs,
}

/// The settings of a server that is alone.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where deployments come from besides the API.
    pub(super) source: Option<Source>,
    /// What every server is told.
    pub(super) server: ServerSettings,
}

/// The name of the only worker.
const NAME: &str = "local";

impl Settings {
    /// Checks what one setting alone cannot know.
    pub(super) fn new(args: UpArgs) -> Result<Self, Failure> {
        let name = WorkerId::new(NAME).expect("the name of the only worker is a name");
        let source = match (args.folder, args.source.settings()?) {
            (Some(_), Some(_)) => {
                return Err(Failure::Usage("a folder and --source: give one of them".to_owned()));
            }
            (Some(folder), None) => Some(Source::Directory(folder)),
            (None, source) => source,
        };
        let mut server = ServerSettings::new(args.server, name)?;
        server.cards.local_repositories |= source.as_ref().is_some_and(Source::is_local);
        Ok(Self { source, server })
    }
}
