//! One YAML document of a registry, every value with its place.

use berth_spec::manifest::node::{self, Node, Position};
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

use crate::problem::{Problem, Step};

/// Largest file in bytes. Holds cards with large schemas and bounds hostile files.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// A document that could be read.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) node: Node,
    pub(crate) json: Value,
}

impl Document {
    /// Reads the only document of a text; `None` if it holds nothing.
    pub(crate) fn read(text: &str, file: &str, step: Step) -> Result<Option<Self>, Box<Problem>> {
        let problem = |rule, message: String| Box::new(Problem::new(step, rule, file, message));
        if text.len() > MAX_FILE_BYTES {
            let message = format!("the file has {} bytes, and {MAX_FILE_BYTES} are allowed", text.len());
            return Err(problem("too-large", message));
        }
        let mut documents = Node::documents(text).map_err(|error| {
            let at = error.location().map(Position::from).unwrap_or_default();
            let message = error.without_snippet().to_string();
            // The library ends its messages with the place, which the problem has already.
            let message = message.split(" at line ").next().unwrap_or_default();
            // And a hint for programs that use it.
            let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned();
            let remedy = "mend the YAML here; nothing after it was read";
            Box::new(Problem::new(step, "syntax", file, message).at(at, "", text).remedy(remedy))
        })?;
        if let Some(second) = documents.get(1) {
            let problem = problem("one-document", "the file holds more than one document".to_owned());
            return Err(Box::new(problem.at(second.at, "", text).remedy("put each into a file of its own")));
        }
        let document = documents.pop().filter(|node| !matches!(node.value, node::Value::Null));
        Ok(document.map(|node| Self { json: node.to_json(), node }))
    }

    /// Converts the document to a type. Whole numbers may have a decimal point, as in JSON Schema: 3.0 is 3.
    ///
    /// # Errors
    /// Where it does not fit, as a JSON pointer, and why.
    pub(crate) fn typed<T: DeserializeOwned>(json: Value) -> Result<T, (String, String)> {
        serde_path_to_error::deserialize(json).map_err(|error| {
            let steps = error.path().iter().filter_map(|segment| match segment {
                Segment::Seq { index } => Some(index.to_string()),
                Segment::Map { key } => Some(key.replace('~', "~0").replace('/', "~1")),
                Segment::Enum { variant } => Some(variant.clone()),
                Segment::Unknown => None,
            });
            (steps.fold(String::new(), |pointer, step| pointer + "/" + &step), error.inner().to_string())
        })
    }

    /// The place of what a JSON pointer names, or of the deepest thing on the way to it; and its path for people.
    pub(crate) fn place(&self, pointer: &str) -> (Position, String) {
        let (mut node, mut path) = (&self.node, String::new());
        let mut at = node.at;
        for step in pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")) {
            let next = match &node.value {
                node::Value::Map(fields) => fields.iter().find(|(key, _)| key.name == step).map(|(key, value)| {
                    // Of a mapping or a list the key is the better place: its content begins lines later.
                    let nested = matches!(value.value, node::Value::Map(_) | node::Value::List(_) | node::Value::Null);
                    (value, if nested { key.at } else { value.at })
                }),
                node::Value::List(items) => {
                    step.parse::<usize>().ok().and_then(|n| items.get(n)).map(|item| (item, item.at))
                }
                _ => None,
            };
            let Some((next, place)) = next else { break };
            if step.bytes().all(|b| b.is_ascii_digit()) && matches!(node.value, node::Value::List(_)) {
                path.push_str(&format!("[{step}]"));
            } else {
                path.push_str(if path.is_empty() { "" } else { "." });
                path.push_str(&step);
            }
            (node, at) = (next, place);
        }
        (at, path)
    }
}

/// Makes whole numbers of those that are written with a point, everywhere in `json`: for JSON Schema 3.0 is an integer.
pub(crate) fn whole(json: &mut Value) {
    /// Above this not every whole number is a float.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match json {
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < EXACT);
            if let Some(float) = float
                && let Ok(integer) = format!("{float:.0}").parse::<i64>()
            {
                *json = integer.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole),
        Value::Object(fields) => fields.values_mut().for_each(whole),
        _ => {}
    }
}
