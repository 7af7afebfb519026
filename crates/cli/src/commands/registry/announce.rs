//! `berth registry hook post-receive`: tells a server of a push, so that it looks at once and not with its next poll. The server
//! needs no token for that, only the secret of its webhook if it has one.

use std::{io::Read as _, path::PathBuf, time::Duration};

use clap::Args;
use reqwest::{Method, header::AUTHORIZATION};

use crate::{client::ApiArgs, commands::block_on, failure::Failure, terminal};

/// Limit for all of it: whoever pushed waits.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Most bytes of what git says of a push; it is not looked at.
const MAX_INPUT_BYTES: u64 = 4 << 20;

#[derive(Debug, Args)]
pub(super) struct PostReceiveArgs {
    /// File with the secret of the webhook
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Tells every Git source of the server. Never fails: the push has been taken, and the next poll finds it anyway.
pub(super) fn run(args: &PostReceiveArgs) -> Result<(), Failure> {
    let mut updates = Vec::new();
    // Git waits until they are read.
    let _read = std::io::stdin().take(MAX_INPUT_BYTES).read_to_end(&mut updates);
    let told = block_on(async {
        let late = |_| Err(Failure::TimedOut("it did not answer in time".to_owned()));
        tokio::time::timeout(ANNOUNCE_TIMEOUT, tell(args)).await.unwrap_or_else(late)
    });
    let said = match told {
        Ok(()) => format!("told {} to look now", args.api.api),
        Err(failure) => format!("no server was told ({failure}): the next poll finds it"),
    };
    Ok(terminal::print(&said)?)
}

async fn tell(args: &PostReceiveArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    // By its own path for all sources: their list takes a token.
    let mut request = client.request(Method::POST, &["webhook"], &[]);
    if let Some(file) = &args.secret_file {
        let secret = fs_err::read_to_string(file)?;
        request = request.header(AUTHORIZATION, format!("Bearer {}", secret.trim()));
    }
    client.send(request).await.map(drop)
}
