//! The tensors of a loaded model, for `berth describe`: its inputs, its outputs, and a request to paste.

use std::time::Duration;

use berth_spec::DeploymentName;
use reqwest::Method;
use serde_json::Value;

use super::{describe::section, namespace::path_of};
use crate::{client::Client, serve::announce::zeros, terminal::Rows};

/// Limit for the answer of a model that is loaded.
const WITHIN: Duration = Duration::from_secs(5);

/// Longest request that is printed: it has to fit a screen.
const LONGEST: usize = 2_000;

/// Adds the sections. A model that does not answer now, or has no tensors, gets none.
pub(super) async fn describe(client: &Client, name: &DeploymentName, text: &mut String) {
    let path = [path_of(name), vec!["try"]].concat();
    let asked = client.request(Method::GET, &path, &[]).timeout(WITHIN);
    let Ok(metadata) = client.json::<Value>(asked).await else { return };
    for (heading, field) in [("Inputs", "inputs"), ("Outputs", "outputs")] {
        if let Some(table) = tensors(&metadata[field]) {
            section(text, heading, &table);
        }
    }
    if let Some(request) = request(&metadata["inputs"]).filter(|request| request.len() <= LONGEST) {
        section(text, "Request", &format!("echo '{request}' | berth infer {}\n", quoted(name)));
    }
}

fn tensors(list: &Value) -> Option<String> {
    let list = list.as_array().filter(|list| !list.is_empty())?;
    let mut rows = Rows::new(&["NAME", "DATATYPE", "SHAPE"]);
    for tensor in list {
        let text = |field: &str| tensor[field].as_str().unwrap_or("-").to_owned();
        rows.add([text("name"), text("datatype"), tensor["shape"].to_string()]);
    }
    Some(rows.render())
}

/// Zeros for every input; dimensions that vary are 1.
fn request(inputs: &Value) -> Option<String> {
    let inputs = inputs.as_array().filter(|inputs| !inputs.is_empty())?;
    let tensors = inputs.iter().map(zeros).collect::<Option<Vec<Value>>>()?;
    Some(serde_json::json!({ "inputs": tensors }).to_string().replace('\'', "'\\''"))
}

/// The name as a shell takes it.
fn quoted(name: &DeploymentName) -> String {
    let name = name.as_str();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_can_be_pasted() {
        let inputs = json!([{"name": "it's", "datatype": "FP32", "shape": [-1, 2]}]);
        let expected = r#"{"inputs":[{"data":[0,0],"datatype":"FP32","name":"it'\''s","shape":[1,2]}]}"#;
        assert_eq!(request(&inputs).as_deref(), Some(expected));
        assert_eq!(request(&json!([])), None);
        assert_eq!(
            quoted(&DeploymentName::new("default/a b").expect("a name")),
            "'default/a b'".replace("default/", "")
        );
    }
}
