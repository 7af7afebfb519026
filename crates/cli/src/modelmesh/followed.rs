//! A file of ModelMesh's that is read again when it changes, as Kubernetes changes mounted files: by looking, since links are moved
//! there.

use std::{path::PathBuf, thread, time::Duration};

use crate::failure::Failure;

/// The interval of looks: Kubernetes itself takes a minute to pass a change on.
const INTERVAL: Duration = Duration::from_secs(2);

/// Calls `take` with the text of the file whenever it is another than the last, `read` being the first, until the process ends. A text
/// that cannot be taken is told once, and the last good one stays.
///
/// # Errors
/// [`Failure`]: there is no thread.
pub(super) fn follow(
    path: PathBuf,
    read: String,
    variable: &'static str,
    take: impl Fn(&str) -> Result<(), String> + Send + 'static,
) -> Result<(), Failure> {
    let run = move || {
        let mut last = read;
        loop {
            thread::sleep(INTERVAL);
            let Ok(text) = fs_err::read_to_string(&path) else { continue };
            if text == last {
                continue;
            }
            match take(&text) {
                Ok(()) => tracing::info!(event = "configuration_changed", variable, "it is read again"),
                Err(error) => {
                    tracing::warn!(event = "configuration_refused", variable, error, "the one before stays");
                }
            }
            last = text;
        }
    };
    let thread = thread::Builder::new().name("modelmesh-files".to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Failure::doing("cannot follow a file of ModelMesh's", error))
}
