//! Guesses about the builds of functions that a plan changes. The code is read when a build begins, so nothing is certain before.

use berth_wire::api::{ApplyResult, FieldChange, Outcome};
use serde::Serialize;
use serde_json::Value;

/// Fields of a function that decide what its build gives. Its name does, too, and does not change.
const INPUTS: [&str; 8] = [
    "spec.sourceUri",
    "spec.sourceSha256",
    "spec.type",
    "spec.entrypoint",
    "spec.runtime",
    "spec.build",
    "spec.target.programmingModel",
    "spec.target.authLevel",
];

/// Guess about the build of a function that changes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct BuildGuess {
    /// Name of the function.
    function: String,
    build: Likelihood,
    /// Always true: the code is not read.
    guess: bool,
    /// Changed fields that a build depends on.
    because: Vec<String>,
    /// The same for people.
    pub(super) message: String,
}

/// Likelihood of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Likelihood {
    /// The function is new: only the same code, built before, needs no build.
    Yes,
    /// Something that a build depends on differs.
    Likely,
    /// Only other code at the same place needs a build.
    No,
}

impl BuildGuess {
    /// `None` where nothing is built for sure.
    pub(super) fn of(document: &ApplyResult) -> Option<Self> {
        if document.kind != "Function" || matches!(document.outcome, Outcome::Unchanged | Outcome::Deleted) {
            return None;
        }
        let inputs = document.changes.iter().filter(|change| is_input(change));
        let because: Vec<String> = match document.outcome {
            Outcome::Created => Vec::new(),
            _ => inputs.map(|change| change.path.clone()).collect(),
        };
        let (build, message) = match (document.outcome, because.as_slice()) {
            (Outcome::Created, _) => {
                let message = "yes, unless the same code was built before (a guess: the code is not read)";
                (Likelihood::Yes, message.to_owned())
            }
            (_, []) => {
                let message = "no, unless the code at spec.sourceUri has changed (a guess: the code is not read)";
                (Likelihood::No, message.to_owned())
            }
            (_, differ) => {
                let differ = differ.join(", ");
                let message =
                    format!("likely, because of {differ} (a guess: the same code may have been built before)");
                (Likelihood::Likely, message)
            }
        };
        Some(Self { function: document.name.clone(), build, guess: true, because, message })
    }
}

/// True of a field that a build depends on. An artifact for Azure brings a library along.
fn is_input(change: &FieldChange) -> bool {
    let path = change.path.as_str();
    let is_azure = |value: Option<&Value>| value.and_then(Value::as_str) == Some("azure-function");
    let below = |field: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    INPUTS.iter().any(|field| below(field))
        || (path == "spec.target.platform" && (is_azure(change.from.as_ref()) || is_azure(change.to.as_ref())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(outcome: Outcome, changes: &[(&str, &str)]) -> ApplyResult {
        let change = |(path, to): &(&str, &str)| FieldChange {
            path: (*path).to_owned(),
            from: Some("local".into()),
            to: Some((*to).into()),
        };
        ApplyResult {
            kind: "Function".to_owned(),
            name: "words".to_owned(),
            outcome,
            generation: 2,
            resource_version: "7".to_owned(),
            warnings: Vec::new(),
            changes: changes.iter().map(change).collect(),
        }
    }

    #[test]
    fn a_plan_guesses_whether_a_function_is_built() {
        let told = |outcome, changes: &[(&str, &str)]| {
            BuildGuess::of(&document(outcome, changes)).map(|guess| guess.message).unwrap_or_default()
        };
        assert_eq!(told(Outcome::Unchanged, &[]), "");
        assert!(told(Outcome::Created, &[]).starts_with("yes, unless"));
        let same = [("spec.env.A", "1"), ("spec.target.platform", "replica"), ("spec.buildings", "1")];
        assert!(told(Outcome::Configured, &same).starts_with("no, unless"));
        let other =
            [("spec.env.A", "1"), ("spec.runtime.pythonVersion", "3.12"), ("spec.target.platform", "azure-function")];
        let text = told(Outcome::Configured, &other);
        assert!(text.starts_with("likely, because of spec.runtime.pythonVersion, spec.target.platform ("), "{text}");
        let model = ApplyResult { kind: "ModelDeployment".to_owned(), ..document(Outcome::Created, &[]) };
        assert_eq!(BuildGuess::of(&model), None);
    }

    #[test]
    fn programs_read_that_it_is_a_guess() {
        let guess = BuildGuess::of(&document(Outcome::Configured, &[("spec.entrypoint", "a.b"), ("spec.env.A", "1")]));
        let value = serde_json::to_value(guess.expect("a function that changes")).expect("JSON");
        let message = &value["message"];
        assert_eq!(
            value,
            json!({
                "function": "words", "build": "likely", "guess": true, "because": ["spec.entrypoint"],
                "message": message
            })
        );
    }
}
