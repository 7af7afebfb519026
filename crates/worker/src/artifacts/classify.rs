//! What a store's error means.

use std::error::Error as _;

use berth_spec::FailureCategory;
use object_store::Error;

use super::location::{Kind, Location};
use crate::fault::Fault;

/// The longest text from a store that is passed on, in characters: some answer with a page.
const LONGEST: usize = 300;

/// The fault that an error of the store behind `location` is, named and with a remedy.
pub(super) fn classify(error: &Error, location: &Location) -> Fault {
    let shown = location.shown();
    let category = category(error);
    let message = match category {
        FailureCategory::NotFound => format!("there is nothing at {shown}: check spec.model.uri"),
        FailureCategory::Auth => {
            format!("{shown} refused access: {} ({})", remedy(location.kind), brief(error, location))
        }
        _ => format!("could not fetch {shown}: {}", brief(error, location)),
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
        Kind::Http => "the server wants credentials; a pre-signed link carries its own",
        Kind::File => "check the permissions of the file",
    }
}

/// The innermost causes say most; outer ones repeat them.
fn brief(error: &Error, location: &Location) -> String {
    let text = chain(error).into_iter().max_by_key(String::len).unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = location.redact(&line);
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
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
