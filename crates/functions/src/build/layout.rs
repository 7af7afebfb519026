//! Layout of an artifact: the code, its packages, and the files that Azure Functions (v4) starts from.
//!
//! ```text
//! host.json                                   both
//! berth.json                                  what runs it on this machine
//! function_app.py, requirements.txt           Python: the v2 model, over the entrypoint; with `programmingModel: v1`
//! NAME/function.json, berth_function.py       in its place: the v1 model
//! berth_function.mjs, package.json (main)     Node.js: the v4 model, over the entrypoint
//! ```
//! A file of this name that the code brings stays as it is.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{BuildError, javascript::ENDINGS};
use crate::deployment::{AzureEntry, FunctionSpec, Language, ProgrammingModel};

/// Name of the file that says how an artifact is run.
pub const MANIFEST: &str = "berth.json";

/// Adapter for Azure's Node.js worker.
const NODE_ADAPTER: &str = "berth_function.mjs";

/// Adapter for Azure's Python worker in the first model, which may be beside a package with the name of the function.
const PYTHON_ADAPTER: &str = "berth_function.py";

/// The function of that adapter.
const PYTHON_FUNCTION: &str = "berth_function";

/// Methods that a function takes, in the words of `function.json`.
const METHODS: [&str; 7] = ["get", "post", "put", "patch", "delete", "head", "options"];

/// Adapters: what a function takes and answers is decided as on this machine.
const PYTHON_ENTRY: &str = concat!(include_str!("../host/convention.py"), include_str!("../host/azure_entry.py"));
const PYTHON_APP: &str = concat!(
    include_str!("../host/convention.py"),
    include_str!("../host/azure_entry.py"),
    include_str!("../host/function_app.py")
);
const NODE_APP: &str = concat!(include_str!("../host/convention.js"), include_str!("../host/function.mjs"));

/// The way to run an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Name of the function in its namespace: the same artifact may serve in several.
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
            name: spec.name.name().to_owned(),
            language: spec.language,
            module: spec.entrypoint.module.clone(),
            function: spec.entrypoint.function.clone(),
            version: spec.version.clone(),
        }
    }
}

/// Adds the files of the layout to some built code.
pub(super) fn write(code: &Path, manifest: &Manifest, entry: AzureEntry) -> Result<(), BuildError> {
    let host = json!({
        "version": "2.0",
        "extensionBundle": {"id": "Microsoft.Azure.Functions.ExtensionBundle", "version": "[4.*, 5.0.0)"},
    });
    unless_there(&code.join("host.json"), &pretty(&host))?;
    fs_err::write(code.join(MANIFEST), pretty(&json!(manifest)))?;
    match manifest.language {
        Language::Python => python(code, manifest, entry),
        Language::JavaScript => javascript(code, manifest, entry),
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

fn fill(template: &str, manifest: &Manifest, module: &str, entry: AzureEntry) -> String {
    let text = |text: &str| Value::from(text).to_string();
    template
        .replace("\"$AUTH\"", &text(entry.auth.as_str()))
        .replace("\"$NAME\"", &text(&manifest.name))
        .replace("\"$MODULE\"", &text(module))
        .replace("\"$FUNCTION\"", &text(&manifest.function))
}

fn python(code: &Path, manifest: &Manifest, entry: AzureEntry) -> Result<(), BuildError> {
    // An app of the first model has a folder with function.json for each function.
    let brings_files = fs_err::read_dir(code)?.flatten().any(|found| found.path().join("function.json").is_file());
    if !brings_files {
        match entry.model {
            ProgrammingModel::V1 => first_model(code, manifest, entry)?,
            ProgrammingModel::V2 => {
                let text = fill(PYTHON_APP, manifest, &manifest.module, entry);
                unless_there(&code.join("function_app.py"), &text)?;
            }
        }
    }
    unless_there(&code.join("requirements.txt"), "")
}

/// Adds the files of Python's first model. Source: learn.microsoft.com/azure/azure-functions/functions-reference-python (`scriptFile`,
/// `entryPoint`) and functions-bindings-http-webhook-trigger (`authLevel`, `methods`, `route`).
fn first_model(code: &Path, manifest: &Manifest, entry: AzureEntry) -> Result<(), BuildError> {
    let conflict = |message: String| Err(BuildError::lasting("LayoutConflict", message));
    if code.join("function_app.py").exists() {
        return conflict(
            "the code brings function_app.py, which Azure takes for the second model: remove that file, or \
             spec.target.programmingModel"
                .to_owned(),
        );
    }
    let folder = code.join(&manifest.name);
    if folder.exists() && !folder.is_dir() {
        let name = &manifest.name;
        return conflict(format!(
            "the code has a file {name:?}, where Azure's first model needs a folder of this name: rename the file or the function"
        ));
    }
    fs_err::create_dir_all(&folder)?;
    let about = json!({
        "scriptFile": format!("../{PYTHON_ADAPTER}"),
        "entryPoint": PYTHON_FUNCTION,
        "bindings": [
            {
                "type": "httpTrigger", "direction": "in", "name": "req", "authLevel": entry.auth.as_str(), "methods": METHODS,
                "route": manifest.name,
            },
            {"type": "http", "direction": "out", "name": "$return"},
        ],
    });
    fs_err::write(folder.join("function.json"), pretty(&about))?;
    fs_err::write(code.join(PYTHON_ADAPTER), fill(PYTHON_ENTRY, manifest, &manifest.module, entry))?;
    Ok(())
}

fn javascript(code: &Path, manifest: &Manifest, entry: AzureEntry) -> Result<(), BuildError> {
    let files = ENDINGS.iter().map(|ending| format!("{}.{ending}", manifest.module));
    let file = files.into_iter().find(|file| code.join(file).is_file()).unwrap_or_else(|| manifest.module.clone());
    fs_err::write(code.join(NODE_ADAPTER), fill(NODE_APP, manifest, &format!("./{file}"), entry))?;
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
    use crate::deployment::AuthLevel;

    fn manifest(language: Language) -> Manifest {
        Manifest {
            name: "words".to_owned(),
            language,
            module: "handler".to_owned(),
            function: "predict".to_owned(),
            version: None,
        }
    }

    /// tests/e2e/test_functions_adapters.py asks the adapters.
    #[test]
    fn adapters_are_complete_programs_over_the_entrypoint() {
        for (language, file, parts) in [
            (Language::Python, "function_app.py", ["def style_of(", "import_module(\"handler\")", "\"predict\""]),
            (Language::JavaScript, NODE_ADAPTER, ["function styleOf(", "from \"./handler\"", "[\"predict\"]"]),
        ] {
            for auth in [AuthLevel::Anonymous, AuthLevel::Function] {
                let folder = tempfile::tempdir().expect("a folder");
                let entry = AzureEntry { auth, ..AzureEntry::default() };
                write(folder.path(), &manifest(language), entry).expect("a layout");
                let text = fs_err::read_to_string(folder.path().join(file)).expect("the adapter");
                for part in parts {
                    assert!(text.contains(part), "{file} lacks {part}");
                }
                assert!(text.contains(&format!("\"{}\"", auth.as_str())), "{file} lacks {auth:?}");
                assert!(!text.contains("\"$"), "{file} has a gap");
            }
        }
    }

    #[test]
    fn the_first_model_of_python_is_declared_in_a_file() {
        let entry = AzureEntry { model: ProgrammingModel::V1, auth: AuthLevel::Function };
        let laid_out = |file: Option<(&str, &str)>| {
            let folder = tempfile::tempdir().expect("a folder");
            if let Some((path, text)) = file {
                let path = folder.path().join(path);
                fs_err::create_dir_all(path.parent().expect("a folder")).expect("made");
                fs_err::write(path, text).expect("written");
            }
            let done = write(folder.path(), &manifest(Language::Python), entry).map_err(BuildError::text);
            (folder, done)
        };
        // A package of the code may have the name of the function.
        for file in [None, Some(("words/__init__.py", "X = 1\n"))] {
            let (folder, done) = laid_out(file);
            done.expect("a layout");
            let text = fs_err::read(folder.path().join("words/function.json")).expect("it is there");
            let about: Value = serde_json::from_slice(&text).expect("JSON");
            assert_eq!(
                (&about["scriptFile"], &about["entryPoint"]),
                (&json!("../berth_function.py"), &json!("berth_function"))
            );
            let trigger = &about["bindings"][0];
            assert_eq!((&trigger["route"], &trigger["authLevel"]), (&json!("words"), &json!("function")));
            let adapter = fs_err::read_to_string(folder.path().join(PYTHON_ADAPTER)).expect("the adapter");
            assert!(adapter.contains("def berth_function(req") && !adapter.contains("\"$"), "{adapter}");
            assert!(!folder.path().join("function_app.py").exists(), "Azure would take it for the second model");
        }
        for (file, says) in [("function_app.py", "brings function_app.py"), ("words", "a file \"words\"")] {
            let message = laid_out(Some((file, ""))).1.expect_err(file);
            assert!(message.contains(says), "{file}: {message}");
        }
        let (folder, done) = laid_out(Some(("own/function.json", "{}")));
        done.expect("an app of the first model stays as it is");
        assert!(!folder.path().join("words").exists() && !folder.path().join(PYTHON_ADAPTER).exists());
    }
}
