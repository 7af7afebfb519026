//! The file of tokens: the records that `berth token create --file` writes. It holds hashes and no secret.

use std::{path::Path, path::PathBuf, time::Duration};

use berth_wire::access::{Access, Snapshot, TokenRecord};

/// The interval between looks at the file: a revoked token works for no longer, and reading the largest file takes a
/// few milliseconds.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Largest file: some ten thousand tokens.
const MAX_FILE_BYTES: u64 = 8 << 20;

pub(super) struct TokenFile {
    path: PathBuf,
    text: String,
    revision: u64,
}

impl TokenFile {
    /// Reads the file and puts its tokens into force. Blocking.
    pub(super) fn read(path: &Path, access: &Access) -> Result<Self, String> {
        let text = read(path)?;
        access.learn(&Snapshot { revision: 1, tokens: parse(path, &text)? });
        Ok(Self { path: path.to_owned(), text, revision: 1 })
    }

    /// Uses the file as it changes. A change that cannot be used is warned of once, and the tokens from before stay.
    pub(super) async fn follow(mut self, access: &Access) {
        let mut told = String::new();
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let path = self.path.clone();
            let Ok(text) = tokio::task::spawn_blocking(move || read(&path)).await else { continue };
            let tokens = match text {
                Ok(text) if text == self.text => continue,
                Ok(text) => parse(&self.path, &text).map(|tokens| (text, tokens)),
                Err(error) => Err(error),
            };
            match tokens {
                Ok((text, tokens)) => {
                    self.revision += 1;
                    self.text = text;
                    let number = tokens.len();
                    access.learn(&Snapshot { revision: self.revision, tokens });
                    tracing::info!(event = "tokens_changed", number, "the changed file of tokens is in use");
                    told.clear();
                }
                Err(error) if error == told => {}
                Err(error) => {
                    tracing::warn!(
                        event = "tokens_unusable",
                        error,
                        "the changed file of tokens cannot be used; keeping those from before"
                    );
                    told = error;
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let length = fs_err::metadata(path).map_err(|error| error.to_string())?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!(
            "{}: the file has {length} bytes; one of tokens has at most {MAX_FILE_BYTES}",
            path.display()
        ));
    }
    fs_err::read_to_string(path).map_err(|error| error.to_string())
}

fn parse(path: &Path, text: &str) -> Result<Vec<TokenRecord>, String> {
    serde_json::from_str(text).map_err(|error| format!("{}: {error}", path.display()))
}
