//! One YAML document of a registry, every value with its place.

use berth_spec::manifest::node::{Node, Place, Value};

use crate::problem::{Problem, Step};

/// Bytes of one file. Halved, cards with large schemas are refused; doubled, a hostile file costs that much more.
pub const LARGEST: usize = 1 << 20;

/// A document that could be read.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) node: Node,
    pub(crate) json: serde_json::Value,
}

impl Document {
    /// Reads the only document of a text; `None` if it holds nothing.
    pub(crate) fn read(text: &str, file: &str, step: Step) -> Result<Option<Self>, Box<Problem>> {
        let problem = |rule, message: String| Box::new(Problem::new(step, rule, file, message));
        if text.len() > LARGEST {
            let message = format!("the file has {} bytes, and {LARGEST} are allowed", text.len());
            return Err(problem("too-large", message));
        }
        let mut documents = Node::documents(text).map_err(|error| {
            let at = error.location().map(Place::from).unwrap_or_default();
            let message = error.without_snippet().to_string();
            // The library ends its messages with the place, which the problem has already.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            let remedy = "mend the YAML here; nothing after it was read";
            Box::new(Problem::new(step, "syntax", file, message).at(at, "", text).remedy(remedy))
        })?;
        if let Some(second) = documents.get(1) {
            let problem = problem("one-document", "the file holds more than one document".to_owned());
            return Err(Box::new(problem.at(second.at, "", text).remedy("put each into a file of its own")));
        }
        let document = documents.pop().filter(|node| !matches!(node.value, Value::Null));
        Ok(document.map(|node| Self { json: node.to_json(), node }))
    }

    /// The place of what a JSON pointer names, or of the deepest thing on the way to it; and its path for people.
    pub(crate) fn place(&self, pointer: &str) -> (Place, String) {
        let (mut node, mut path) = (&self.node, String::new());
        let mut at = node.at;
        for step in pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")) {
            let next = match &node.value {
                Value::Map(fields) => fields.iter().find(|(key, _)| key.name == step).map(|(key, value)| {
                    // Of a mapping or a list the key is the better place: its content begins lines later.
                    let nested = matches!(value.value, Value::Map(_) | Value::List(_) | Value::Null);
                    (value, if nested { key.at } else { value.at })
                }),
                Value::List(items) => step.parse::<usize>().ok().and_then(|n| items.get(n)).map(|item| (item, item.at)),
                _ => None,
            };
            let Some((next, place)) = next else { break };
            if step.bytes().all(|b| b.is_ascii_digit()) && matches!(node.value, Value::List(_)) {
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
