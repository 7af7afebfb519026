//! Callbacks: the end of a job, sent to who asked for it.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};

use super::{
    attempt::Outcome,
    job::{Answer, JobId, Status},
    settings::CallbackSettings,
    signature::{Secret, timestamp},
    view,
};

/// Sends messages to receivers.
pub(crate) struct Receiver {
    client: reqwest::Client,
    timeout: Duration,
    secret_file: Option<PathBuf>,
}

impl Receiver {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub(crate) fn new(settings: &CallbackSettings) -> Result<Self, String> {
        let CallbackSettings { secret_file, timeout, tls, .. } = settings;
        let mut client = reqwest::Client::builder()
            .timeout(*timeout)
            // A redirect may lead to where no answers may be sent.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        if let Some(tls) = tls {
            let config = tls.config().map_err(|error| format!("async.callbacks.tls: {error}"))?;
            client = client.tls_backend_preconfigured((*config).clone());
        }
        let client = client.build().map_err(|error| error.to_string())?;
        Ok(Self { client, timeout: *timeout, secret_file: secret_file.clone() })
    }

    /// The secret of signatures, as its file has it now.
    ///
    /// # Errors
    /// The file cannot be read, or holds none.
    pub(crate) fn secret(&self) -> Result<Option<Secret>, String> {
        let Some(file) = &self.secret_file else { return Ok(None) };
        let named = |error: String| format!("async.callbacks.secretFile {}: {error}", file.display());
        let text = fs_err::read_to_string(file).map_err(|error| named(error.kind().to_string()))?;
        Secret::parse(&text).map(Some).map_err(named)
    }

    /// Sends one message. What the receiver answers decides if it is sent again.
    pub(crate) async fn tell(&self, url: &str, id: &JobId, status: &Status, answer: Option<Answer>) -> Outcome {
        let body = message(id, status, answer).to_string();
        let now = timestamp(SystemTime::now());
        let mut request = self.client.post(url).header("content-type", "application/json");
        request = request.header("webhook-id", id.as_str()).header("webhook-timestamp", now);
        match self.secret() {
            Ok(None) => {}
            Ok(Some(secret)) => {
                request = request.header("webhook-signature", secret.sign(id.as_str(), now, body.as_bytes()));
            }
            Err(why) => return Outcome::Failed(why),
        }
        match request.body(body).send().await {
            Ok(answer) => Outcome::Answered(Answer::new(answer.status(), &HeaderMap::new(), Bytes::new())),
            Err(error) => Outcome::Failed(self.why(error)),
        }
    }

    /// All that is known of a failure but the URL, which may be a secret.
    fn why(&self, error: reqwest::Error) -> String {
        if error.is_timeout() {
            return format!(
                "the receiver of the callback did not answer within {:?} (async.callbacks.timeout)",
                self.timeout
            );
        }
        let error = error.without_url();
        let mut words = format!("the receiver of the callback cannot be reached: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            words = format!("{words}: {cause}");
            source = cause.source();
        }
        words
    }
}

/// The message: what a status says, and the answer.
fn message(id: &JobId, status: &Status, answer: Option<Answer>) -> Value {
    let mut message = view::status(id, status);
    if let (Value::Object(fields), Some(answer)) = (&mut message, answer) {
        fields.insert("result".to_owned(), view::answer(&answer));
    }
    json!({ "type": "job.ended", "data": message })
}
