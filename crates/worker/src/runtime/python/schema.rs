//! A card's schemas, compiled once when the model is loaded: what does not fit never reaches the model's code.

use berth_spec::{FailureCategory, InferError, Violation};
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::runtime::LoadError;

/// The most characters of a message about one place: a validator repeats the value, which may be long.
const MAX_WORDS: usize = 300;

/// Steps back that a pattern of a schema may take over one text: what takes more is refused. A pattern that people write for names and
/// dates takes a few hundred; one that never ends would hold a thread.
const BACKTRACKS: usize = 10_000;

/// Weight of a byte where a schema has patterns: a few kilobytes of short texts may each step back as often as is allowed.
const PATTERNED: usize = 64;

/// A JSON schema of a card, compiled, with a bound on what checking a document costs.
pub(super) struct Schema {
    json: Value,
    validator: Validator,
    /// Bytes for which one byte of a document counts: patterns take longer than all else.
    factor: usize,
}

/// The fault of an answer, in words: it is no JSON, or breaks the output schema.
#[derive(Debug)]
pub(super) enum AnswerFault {
    NoJson(String),
    BreaksSchema(String),
}

impl Schema {
    /// Compiles `json`, which the card has at `place`. References out of the document are not followed.
    pub(super) fn compile(place: &str, json: &Value) -> Result<Self, LoadError> {
        let patterns = PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS);
        let options = jsonschema::draft202012::options().with_pattern_options(patterns);
        let validator = options.build(json).map_err(|error| {
            let message = format!("{place} is no JSON schema that can be used: {}", shortened(&error.to_string()));
            LoadError::new(FailureCategory::Code, message)
        })?;
        let factor = if json.to_string().contains("\"pattern") { PATTERNED } else { 1 };
        Ok(Self { json: json.clone(), validator, factor })
    }

    /// Weight of looking at a document of so many bytes, for [`berth_mesh::offload`].
    pub(super) const fn weight(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.factor)
    }

    /// The fault in an answer, if there is one.
    pub(super) fn fault_in(&self, answer: &[u8]) -> Option<AnswerFault> {
        match serde_json::from_slice::<Value>(answer) {
            Ok(value) => self.check_answer(&value).err().map(AnswerFault::BreaksSchema),
            Err(error) => Some(AnswerFault::NoJson(format!("the answer is no JSON: {error}"))),
        }
    }

    /// As the card says it.
    pub(super) fn json(&self) -> &Value {
        &self.json
    }

    /// The violations of the schema by a document, place by place; empty: none.
    pub(super) fn violations(&self, document: &Value) -> Vec<Violation> {
        if self.validator.is_valid(document) {
            return Vec::new();
        }
        let errors = self.validator.iter_errors(document).take(Violation::MAX);
        let violation = |error: jsonschema::ValidationError<'_>| {
            let path = error.instance_path().to_string();
            Violation { path, message: shortened(&error.to_string()) }
        };
        errors.map(violation).collect()
    }

    /// Refuses a request that does not fit. `row`: which of several it is.
    pub(super) fn check_request(&self, document: &Value, row: Option<usize>) -> Result<(), InferError> {
        let mut violations = self.violations(document);
        if violations.is_empty() {
            return Ok(());
        }
        if let Some(row) = row {
            violations.iter_mut().for_each(|violation| violation.path = format!("/{row}{}", violation.path));
        }
        let message = format!("the request is not as the model's input schema says: {}", told(&violations));
        Err(InferError::Unprocessable { message, violations })
    }

    /// Refuses an answer that does not fit: a fault of the model's code.
    pub(super) fn check_answer(&self, document: &Value) -> Result<(), String> {
        let violations = self.violations(document);
        if violations.is_empty() {
            return Ok(());
        }
        Err(format!("the answer is not as interface.output_schema says: {}", told(&violations)))
    }
}

/// `/a/b: what is wrong; /c: …`
pub(super) fn told(violations: &[Violation]) -> String {
    let place = |path: &str| if path.is_empty() { "(the document)".to_owned() } else { path.to_owned() };
    let told = violations.iter().map(|violation| format!("{}: {}", place(&violation.path), violation.message));
    told.collect::<Vec<_>>().join("; ")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_WORDS) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn violations_name_their_places() {
        let schema = json!({
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "maxLength": 5}, "tags": {"type": "array", "items": {"type": "string"}}},
        });
        let schema = Schema::compile("interface.input_schema", &schema).expect("a schema");
        let paths = |document: &Value| -> Vec<String> {
            schema.violations(document).into_iter().map(|violation| violation.path).collect()
        };
        assert_eq!(paths(&json!({"text": "fine"})), Vec::<String>::new());
        assert_eq!(paths(&json!({})), [""]);
        assert_eq!(paths(&json!({"text": "longer", "tags": ["a", 1]})), ["/tags/1", "/text"]);
        let error = schema.check_request(&json!({"text": "x".repeat(100_000)}), Some(3)).expect_err("too long");
        assert!(error.to_string().len() < 500, "{error}");
        assert!(matches!(error, InferError::Unprocessable { violations, .. } if violations[0].path == "/3/text"));
        let many: Vec<i32> = (0..1000).collect();
        assert_eq!(paths(&json!({"text": "", "tags": many})).len(), Violation::MAX);
    }

    #[test]
    fn schemas_that_lead_elsewhere_are_refused() {
        for schema in
            [json!({"$ref": "https://example.com/a.json"}), json!({"$ref": "file:///etc/passwd"}), json!({"type": 1})]
        {
            let refused = Schema::compile("interface.input_schema", &schema).err().expect("refused");
            assert_eq!(refused.category, FailureCategory::Code, "{}", refused.message);
        }
    }
}
