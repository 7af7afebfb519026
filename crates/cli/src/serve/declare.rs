//! The manifests of what is served, and the code that they name.

use std::path::{Path, PathBuf};

use berth_spec::{
    DeploymentName,
    manifest::{ManifestError, ParseContext},
};
use berth_worker::runtime::python::example;
use fs_err as fs;
use serde_json::{Value, json};

use super::content::Content;
use crate::{
    commands::card::{card_of, pin},
    failure::Failure,
};

/// Folders below the data folder.
pub(super) struct ServeFolders {
    pub(super) manifests: PathBuf,
    /// Code of a card, as a repository that a worker fetches from.
    pub(super) code: PathBuf,
}

/// Declared models.
#[derive(Debug)]
pub(super) struct Declared {
    /// For people, before anything is loaded.
    pub(super) notes: Vec<String>,
    /// At least one.
    pub(super) models: Vec<Model>,
}

/// One model.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) name: DeploymentName,
    /// The way to ask it.
    pub(super) call_format: CallFormat,
    /// Its `spec.model`. An earlier run may have left another model under the same name.
    pub(super) declared: Value,
}

/// The way to ask a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CallFormat {
    /// By one row of numbers as plain JSON, at this path.
    Rows(String),
    /// By JSON as its card describes it, at this path; with a request, where one can be made up.
    Document(String, Option<Value>),
    /// By the Open Inference Protocol only.
    Tensors,
}

/// Extra settings of the declaration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Choices<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) requirements: Option<&'a Path>,
    pub(super) python: Option<&'a str>,
    pub(super) artifact: Option<&'a Path>,
}

/// Writes the manifests, in place of those of before.
pub(super) fn declare(what: &Content, choices: Choices<'_>, folders: &ServeFolders) -> Result<Declared, Failure> {
    check_choices(what, choices)?;
    let (documents, declared) = match what {
        Content::Onnx(files) => onnx(files, choices)?,
        Content::Card(folder) => {
            let name = name_of(choices.name, folder)?;
            let (document, call_format) = carded(&name, folder, choices.artifact, folders)?;
            let model = Model { name, call_format, declared: document["spec"]["model"].clone() };
            (vec![document], Declared { notes: Vec::new(), models: vec![model] })
        }
        Content::Estimator(framework, file) => {
            let name = name_of(choices.name, file)?;
            let packages = framework.packages(file, choices.requirements)?;
            let python = framework.python(file, choices.python)?;
            let endpoint = format!("/v1/{}", name.as_str());
            let model = json!({
                "format": framework.format(),
                "uri": format!("file:{}", file.display()),
                "environment": {"python": python.version, "packages": packages.pins},
            });
            let document = manifest(&name, json!({"model": model, "replicas": 1, "endpoint": endpoint}));
            let mut notes = vec![format!("packages: {}", packages.from)];
            notes.extend(python.note.map(|note| format!("Python: {note}")));
            let model = Model { name, call_format: CallFormat::Rows(endpoint), declared: model };
            (vec![document], Declared { notes, models: vec![model] })
        }
    };
    documents.iter().try_for_each(check)?;
    if folders.manifests.exists() {
        fs::remove_dir_all(&folders.manifests)?;
    }
    fs::create_dir_all(&folders.manifests)?;
    for (number, document) in documents.iter().enumerate() {
        fs::write(folders.manifests.join(format!("{number}.yaml")), document.to_string())?;
    }
    Ok(declared)
}

/// Refuses flags without effect.
fn check_choices(what: &Content, choices: Choices<'_>) -> Result<(), Failure> {
    let (is_estimator, is_card) = (matches!(what, Content::Estimator(..)), matches!(what, Content::Card(_)));
    let message = if choices.python.is_some() && !is_estimator {
        "--python is for estimators; a card names its own (runtime.python_version), and ONNX needs none"
    } else if choices.requirements.is_some() && !is_estimator {
        "--requirements is for estimators; a card lists its own (runtime.dependencies), and ONNX needs none"
    } else if choices.artifact.is_some() && !is_card {
        "--artifact is for the folder of a model card: it takes the place of the weights that the card names"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(message.to_owned()))
}

/// Checks a manifest here: the server would only log that it is wrong, and go on waiting for a right one.
fn check(document: &Value) -> Result<(), Failure> {
    let parsed = berth_spec::manifest::parse_all(&document.to_string(), &ParseContext::default());
    let told = |error: &ManifestError| {
        // The path is made of the name, which is that of the file.
        let remedy = if error.path == "spec.endpoint" { "--model takes another name" } else { error.remedy.as_str() };
        format!("{} ({}): {remedy}", error.message, error.path)
    };
    parsed.map(drop).map_err(|errors| Failure::Invalid(errors.iter().map(told).collect::<Vec<_>>().join("; ")))
}

fn onnx(files: &[PathBuf], choices: Choices<'_>) -> Result<(Vec<Value>, Declared), Failure> {
    if choices.name.is_some() && files.len() > 1 {
        return Err(Failure::Usage("--model names one model, and the folder holds several".to_owned()));
    }
    // Several are loaded when they are asked for: they may be more than fit.
    let replicas = if files.len() > 1 { json!({"min": 0, "max": 1}) } else { json!(1) };
    let (mut documents, mut models) = (Vec::new(), Vec::new());
    for file in files {
        let name = name_of(choices.name, file)?;
        let model = json!({"format": "onnx", "uri": format!("file:{}", file.display())});
        documents.push(manifest(&name, json!({"model": model, "replicas": replicas})));
        let bytes = fs::metadata(file).map_or(u64::MAX, |metadata| metadata.len());
        models.push((bytes, Model { name, call_format: CallFormat::Tensors, declared: model }));
    }
    // The request to try is for the first: the smallest is loaded soon, and its inputs tend to fit a screen.
    models.sort_by_key(|(bytes, _)| *bytes);
    Ok((documents, Declared { notes: Vec::new(), models: models.into_iter().map(|(_, model)| model).collect() }))
}

/// The manifest of a card, and the way to ask its model.
fn carded(
    name: &DeploymentName,
    folder: &Path,
    artifact: Option<&Path>,
    folders: &ServeFolders,
) -> Result<(Value, CallFormat), Failure> {
    let repository = folders.code.join("code.git");
    if repository.exists() {
        fs::remove_dir_all(&repository)?;
    }
    fs::create_dir_all(&folders.code)?;
    let pinned = pin(folder, card_of(folder)?, artifact, &repository)?;
    let card = serde_json::to_value(&pinned).map_err(|error| Failure::doing("the card cannot be written", error))?;
    let endpoint = format!("/v1/{}", name.as_str());
    let spec = json!({"model": {"format": "python", "card": card}, "replicas": 1, "endpoint": endpoint});
    let call_format = CallFormat::Document(endpoint, example(&pinned.card.interface.input_schema));
    Ok((manifest(name, spec), call_format))
}

fn manifest(name: &DeploymentName, spec: Value) -> Value {
    json!({"apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name.as_str()}, "spec": spec})
}

/// The name that was chosen, or that of the file or folder.
fn name_of(chosen: Option<&str>, path: &Path) -> Result<DeploymentName, Failure> {
    let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let found = stem.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = chosen.unwrap_or(&found);
    DeploymentName::new(name).map_err(|error| Failure::Usage(format!("{error}; --model takes another name")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::estimator::Framework;

    #[test]
    fn several_graphs_are_loaded_when_they_are_asked_for_and_those_of_before_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = ServeFolders { manifests: folder.path().join("manifests"), code: folder.path().join("code") };
        let files = vec![PathBuf::from("/m/a.onnx"), PathBuf::from("/m/b.onnx")];
        let two = declare(&Content::Onnx(files.clone()), Choices::default(), &folders).expect("declared");
        assert_eq!(two.models.len(), 2);
        let text = fs::read_to_string(folders.manifests.join("1.yaml")).expect("written");
        assert!(text.contains("\"min\":0") && text.contains("file:/m/b.onnx"), "{text}");
        let chosen = Choices { name: Some("mine"), ..Choices::default() };
        assert!(declare(&Content::Onnx(files.clone()), chosen, &folders).is_err());
        let one = declare(&Content::Onnx(files[..1].to_vec()), chosen, &folders).expect("declared");
        assert_eq!(one.models[0].name.as_str(), "mine");
        assert!(!folders.manifests.join("1.yaml").exists());
        let chosen = Choices { python: Some("3.12"), ..Choices::default() };
        let refused = declare(&Content::Onnx(files.clone()), chosen, &folders).expect_err("no estimator");
        assert!(refused.to_string().contains("--python"), "{refused}");
        let file = Some(Path::new("f"));
        for (chosen, flag) in [
            (Choices { requirements: file, ..Choices::default() }, "--requirements"),
            (Choices { artifact: file, ..Choices::default() }, "--artifact"),
        ] {
            let refused = declare(&Content::Onnx(files.clone()), chosen, &folders).expect_err("it would do nothing");
            assert!(refused.to_string().starts_with(flag), "{refused}");
        }
    }

    #[test]
    fn an_estimator_is_declared_with_the_python_that_was_chosen() {
        let folder = tempfile::tempdir().expect("a folder");
        let folders = ServeFolders { manifests: folder.path().join("manifests"), code: folder.path().join("code") };
        let what = Content::Estimator(Framework::Sklearn, folder.path().join("m.joblib"));
        for (python, expected) in [(Some("3.12"), "3.12"), (None, "3.11")] {
            let declared = declare(&what, Choices { python, ..Choices::default() }, &folders).expect("declared");
            assert_eq!(declared.models[0].declared["environment"]["python"], expected);
            assert_eq!(declared.notes.len(), 1, "{:?}", declared.notes);
        }
        let spaced = Choices { name: Some("my model"), ..Choices::default() };
        let refused = declare(&what, spaced, &folders).expect_err("no path").to_string();
        assert!(refused.ends_with("(spec.endpoint): --model takes another name"), "{refused}");
        let old = Choices { python: Some("3.7"), ..Choices::default() };
        let refused = declare(&what, old, &folders).expect_err("models do not run with it").to_string();
        assert!(
            refused.contains("no version of Python that runs models") && refused.contains("from 3.8 on"),
            "{refused}"
        );
    }
}
