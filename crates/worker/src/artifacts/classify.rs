//! Classifies errors of stores.

use std::error::Error as _;

use berth_spec::FailureCategory;
use object_store::Error;

use super::location::{Kind, Location};
use crate::fault::Fault;

/// The longest text from a store that is passed on, in characters: some answer with a page.
const MAX_TEXT_CHARS: usize = 300;

/// The fault that an error of the store behind `location` is, named and with a remedy.
pub(super) fn classify(error: &Error, location: &Location) -> Fault {
    let shown = location.shown();
    let category = category(error);
    let message = match category {
        FailureCategory::NotFound => format!("there is nothing at {shown}: check spec.model.uri"),
        FailureCategory::Auth => {
            let what = match error {
                Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => "access was refused to",
                _ => "there are no usable credentials for",
            };
            let remedy = match &location.secret {
                Some(secret) => format!("check the secret {secret} of this worker"),
                None => remedy(location.kind).to_owned(),
            };
            format!("{what} {shown} ({}): {remedy}", reason(error, location))
        }
        FailureCategory::Timeout => {
            format!("could not fetch {shown} ({}): check that the worker reaches the host", reason(error, location))
        }
        _ => format!(
            "could not fetch {shown} ({}): check that the server is up and the worker reaches it",
            reason(error, location)
        ),
    };
    Fault::new(category, message)
}

fn category(error: &Error) -> FailureCategory {
    match error {
        Error::NotFound { .. } | Error::InvalidPath { .. } => FailureCategory::NotFound,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } | Error::UnknownConfigurationKey { .. } => {
            FailureCategory::Auth
        }
        // Credentials that cannot be had come as a generic error of the store.
        other if chain(other).iter().any(|text| text.contains("credential") || text.contains("metadata endpoint")) => {
            FailureCategory::Auth
        }
        other if chain(other).iter().any(|text| text.contains("timed out")) => FailureCategory::Timeout,
        _ => FailureCategory::Network,
    }
}

fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::S3 => {
            "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the worker (AWS_SKIP_SIGNATURE=true for public buckets)"
        }
        Kind::Gcs => "check GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT of the worker",
        Kind::Azure => "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY of the worker",
        Kind::Http => {
            "Berth sends none to web servers: let the worker read it without, or put it where the worker has \
             credentials (s3, gs, az)"
        }
        Kind::File | Kind::Volume => "check the permissions of the file",
        Kind::Storage => "check the storage-config of the worker",
    }
}

/// The message of the server or the network. That is the innermost cause; the outer ones tell of the library's own
/// doings: its retries, and a name that it gave the object.
fn reason(error: &Error, location: &Location) -> String {
    let innermost = chain(error).pop().unwrap_or_default();
    let line = innermost.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = if let Some(answer) = line.strip_prefix("Server returned non-2xx status code:") {
        let (status, body) = answer.trim().split_once(": ").unwrap_or((answer.trim(), ""));
        let body = text_of(body);
        let status = status.trim_end_matches(':');
        format!("the server answered {status}{}{body}", if body.is_empty() { "" } else { ": " })
    } else if let Some(body) = line.strip_prefix("Server returned error response:") {
        format!("the server answered: {}", text_of(body.trim()))
    } else {
        line.split(" (os error").next().unwrap_or_default().to_owned()
    };
    let said = location.redact(said.trim_end_matches('.'));
    match said.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &said[..end]),
        None => said,
    }
}

/// The readable part of an error's body: the message in the stores' XML, nothing of a page, any other text as it is.
fn text_of(body: &str) -> &str {
    let message = body.split_once("<Message>").and_then(|(_, rest)| rest.split_once("</Message>"));
    match message {
        Some((message, _)) => message,
        None if body.starts_with('<') => "",
        None => body,
    }
}

fn chain(error: &Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    texts
}
