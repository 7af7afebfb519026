//! Layout of an artifact: the code, its packages, and the files that Azure Functions (v4) starts from.
//!
//! ```text
//! host.json                                   both
//! berth.json                                  what runs it on this machine
//! function_app.py, requirements.txt           Python: the v2 model, over the entrypoint
//! berth_function.mjs, package.json (main)     Node.js: the v4 model, over the entrypoint
//! ```
//! A file of this name that the code brings stays as it is.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{BuildError, javascript::ENDINGS};
use crate::deployment::{FunctionSpec, Language};

/// Name of the file that says how an artifact is run.
pub const MANIFEST: &str = "berth.json";

/// Adapter for Azure's Node.js worker.
const NODE_ADAPTER: &str = "berth_function.mjs";

/// Adapters: what a function takes and answers is decided as on this machine.
const PYTHON_APP: &str = concat!(include_str!("../host/convention.py"), include_str!("../host/function_app.py"));
const NODE_APP: &str = concat!(include_str!("../host/convention.js"), include_str!("../host/function.mjs"));

/// The way to run an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Name of the function.
    pub name: String,
    /// Language of the code.
    pub language: Language,
    /// Module of the entrypoint.
    pub module: String,
    /// Function of the entrypoint.
    pub function: String,
    /// Version of the language, if one was wished.
    pub version: Option<String>,
}

impl Manifest {
    /// The manifest of a spec.
    #[must_use]
    pub fn of(spec: &FunctionSpec) -> Self {
        Self {
            name: spec.name.to_string(),
            language: spec.language,
            module: spec.entrypoint.module.clone(),
            function: spec.entrypoint.function.clone(),
            version: spec.version.clone(),
        }
    }
}

/// Adds the files of the layout to some built code.
pub(super) fn write(code: &Path, manifest: &Manifest) -> Result<(), BuildError> {
    let host = json!({
        "version": "2.0",
        "extensionBundle": {"id": "Microsoft.Azure.Functions.ExtensionBundle", "version": "[4.*, 5.0.0)"},
    });
    unless_there(&code.join("host.json"), &pretty(&host))?;
    fs_err::write(code.join(MANIFEST), pretty(&json!(manifest)))?;
    match manifest.language {
        Language::Python => python(code, manifest),
        Language::JavaScript => javascript(code, manifest),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn unless_there(path: &Path, text: &str) -> Result<(), BuildError> {
    if !path.exists() {
        fs_err::write(path, text)?;
    }
    Ok(())
}

fn fill(template: &str, manifest: &Manifest, module: &str) -> String {
    let text = |text: &str| Value::from(text).to_string();
    template
        .replace("\"$NAME\"", &text(&manifest.name))
        .replace("\"$MODULE\"", &text(module))
        .replace("\"$FUNCTION\"", &text(&manifest.function))
}

fn python(code: &Path, manifest: &Manifest) -> Result<(), BuildError> {
    // An app of the first model has a folder with function.json for each function.
    let first_model = fs_err::read_dir(code)?.flatten().any(|entry| entry.path().join("function.json").is_file());
    if !first_model {
        unless_there(&code.join("function_app.py"), &fill(PYTHON_APP, manifest, &manifest.module))?;
    }
    unless_there(&code.join("requirements.txt"), "")
}

fn javascript(code: &Path, manifest: &Manifest) -> Result<(), BuildError> {
    let files = ENDINGS.iter().map(|ending| format!("{}.{ending}", manifest.module));
    let file = files.into_iter().find(|file| code.join(file).is_file()).unwrap_or_else(|| manifest.module.clone());
    fs_err::write(code.join(NODE_ADAPTER), fill(NODE_APP, manifest, &format!("./{file}")))?;
    let path = code.join("package.json");
    let mut package: Value = match path.is_file() {
        true => serde_json::from_slice(&fs_err::read(&path)?).unwrap_or_default(),
        false => json!({}),
    };
    let Some(fields) = package.as_object_mut() else { return Ok(()) };
    fields.insert("main".to_owned(), NODE_ADAPTER.into());
    fields.entry("name").or_insert_with(|| manifest.name.to_ascii_lowercase().into());
    fs_err::write(path, pretty(&package))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tests/e2e/test_functions_adapters.py asks the adapters.
    #[test]
    fn adapters_are_complete_programs_over_the_entrypoint() {
        for (language, file, parts) in [
            (Language::Python, "function_app.py", ["def style_of(", "import_module(\"handler\")", "\"predict\""]),
            (Language::JavaScript, NODE_ADAPTER, ["function styleOf(", "from \"./handler\"", "[\"predict\"]"]),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let manifest = Manifest {
                name: "words".to_owned(),
                language,
                module: "handler".to_owned(),
                function: "predict".to_owned(),
                version: None,
            };
            write(folder.path(), &manifest).expect("a layout");
            let text = fs_err::read_to_string(folder.path().join(file)).expect("the adapter");
            for part in parts {
                assert!(text.contains(part), "{file} lacks {part}");
            }
            assert!(!text.contains("\"$"), "{file} has a gap");
        }
    }
}
