//! A report for its readers: people at a terminal, programs, code scanners, test runners.

mod junit;
mod sarif;
mod text;

use serde_json::{Value, json};

pub use self::{
    junit::junit,
    sarif::sarif,
    text::{Colours, problems, summary, text},
};
use crate::Report;

/// The whole report as one JSON object.
#[must_use]
pub fn json(report: &Report) -> Value {
    json!({
        "outcome": report.outcome,
        "accepted": report.is_accepted(),
        "transient": report.is_transient(),
        "offline": report.offline,
        "commit": report.commit,
        "signer": report.signer.as_ref().map(|signer| json!({"name": signer.name, "key": signer.key})),
        "tell": report.audience(),
        "counts": report.counts,
        "problems": report.problems,
    })
}
