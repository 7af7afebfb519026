//! Lines over HTTP: one POST for many of them (`application/x-ndjson`).

use std::{path::PathBuf, time::Duration};

use url::Url;

use crate::{broker::secret, tls::TlsFiles};

/// Longest wait for an answer: lines that cannot be written wait in memory meanwhile.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A receiver of lines.
pub(crate) struct HttpSink {
    client: reqwest::Client,
    url: Url,
    token_file: Option<PathBuf>,
}

impl HttpSink {
    pub(super) fn new(url: Url, token_file: Option<PathBuf>, tls: Option<&TlsFiles>) -> Result<Self, String> {
        let mut client =
            reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).no_proxy();
        if let Some(tls) = tls {
            let config = tls.config().map_err(|error| format!("log.to.tls: {error}"))?;
            client = client.tls_backend_preconfigured((*config).clone());
        }
        if let Some(file) = &token_file {
            secret(file).map_err(|error| format!("log.to.tokenFile: {error}"))?;
        }
        let client = client.build().map_err(|error| error.to_string())?;
        Ok(Self { client, url, token_file })
    }

    pub(super) async fn write(&self, text: String) -> Result<(), String> {
        let mut request = self.client.post(self.url.clone()).header("content-type", "application/x-ndjson");
        if let Some(file) = &self.token_file {
            request = request.bearer_auth(secret(file)?);
        }
        let answer = request.body(text).send().await.map_err(|error| error.without_url().to_string())?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("the receiver of the log answered {status}")),
        }
    }
}
