//! Folders of models as servers expect them.
//!
//! ```text
//! MLServer  NAME/model-settings.json      which class, and where the artifact is
//! Triton    NAME/1/model.EXT              with the artifact's own folder and config.pbtxt where it has them
//! OpenVINO  NAME/1/model.EXT              the same, and a file with the list of models (`listed`)
//! TensorFlow NAME/1/saved_model.pb        the same
//! ```

use std::{
    io,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use berth_wire::mmesh::LoadModelRequest;
use fs_err as fs;
use serde_json::{Value, json};

use super::listed;

/// The layout of a model repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The layout of MLServer: each model's folder has a `model-settings.json`.
    MlServer,
    /// The layout of Triton: each model's folder has a folder of its version, `1`, and a `config.pbtxt` where the artifact has one.
    Triton,
    /// The layout of OpenVINO Model Server.
    OpenVino,
    /// The layout of TensorFlow Serving.
    TensorFlow,
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mlserver" => Ok(Self::MlServer),
            "triton" => Ok(Self::Triton),
            "openvino" => Ok(Self::OpenVino),
            _ => Err("write mlserver, triton or openvino".to_owned()),
        }
    }
}

/// A model repository that the server reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Its folder. Each model has one in it.
    pub folder: PathBuf,
    /// The files that the server expects in a model's folder.
    pub layout: Layout,
    /// True if nobody else puts models there: then it is emptied at the start.
    pub owned: bool,
    /// The one model that the server is started with; `None`: it is told which to hold.
    pub given: Option<StartModel>,
}

/// The artifact of the model that a server is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartModel {
    /// Path of the artifact: a file or a folder.
    pub artifact: PathBuf,
    /// The link by which the server finds it.
    pub at: PathBuf,
}

/// MLServer's classes by format.
const CLASSES: [(&str, &str); 7] = [
    ("sklearn", "mlserver_sklearn.SKLearnModel"),
    ("xgboost", "mlserver_xgboost.XGBoostModel"),
    ("lightgbm", "mlserver_lightgbm.LightGBMModel"),
    ("catboost", "mlserver_catboost.CatboostModel"),
    ("mlflow", "mlserver_mlflow.MLflowRuntime"),
    ("huggingface", "mlserver_huggingface.HuggingFaceRuntime"),
    ("mllib", "mlserver_mllib.MLlibModel"),
];

const SETTINGS: &str = "model-settings.json";
const CONFIG: &str = "config.pbtxt";

/// The most characters of a model's name that are kept in the name of its folder.
const MAX_NAME_CHARS: usize = 80;

/// The name of a model for servers that take it as the name of a folder and as a part of paths.
pub(super) fn safe(id: &str) -> String {
    // With '.' a folder is hidden, and with '-' a word of a command line is an option.
    if id.len() <= MAX_NAME_CHARS && !id.starts_with(['.', '-']) && id.chars().all(is_plain) {
        return id.to_owned();
    }
    let number = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let words: String = plain(id).chars().take(MAX_NAME_CHARS).collect();
    format!("{words}-{number:016x}").trim_start_matches(['.', '-']).to_owned()
}

/// The text with `-` in place of all signs that mean something to a shell: a command line may be a script.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { '-' }).collect()
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@')
}

impl Repository {
    /// Makes the repository. Servers load what they find there, and what is left from an earlier run is nobody's.
    pub(super) fn open(&self) -> io::Result<()> {
        if self.owned && self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        fs::create_dir_all(&self.folder)?;
        if let Some(StartModel { artifact, at }) = &self.given {
            std::os::unix::fs::symlink(fs::canonicalize(artifact)?, at)?;
        }
        listed::write(self, &[])
    }

    /// Makes the folder of a model. One that is there is made anew.
    pub(super) fn lay(&self, request: &LoadModelRequest) -> io::Result<()> {
        self.clear(&request.model_id)?;
        let folder = self.folder_of(&request.model_id)?;
        fs::create_dir_all(&folder)?;
        let artifact = fs::canonicalize(&request.model_path)?;
        match self.layout {
            Layout::MlServer => mlserver(&folder, &artifact, request),
            Layout::Triton | Layout::OpenVino | Layout::TensorFlow => versions(&folder, &artifact, &request.model_key),
        }
    }

    /// Removes the folder of a model, if it is there.
    pub(super) fn clear(&self, id: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.folder_of(id)?) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn folder_of(&self, id: &str) -> io::Result<PathBuf> {
        let mut parts = Path::new(id).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => Ok(self.folder.join(name)),
            _ => Err(io::Error::other(format!("{id:?} cannot name a folder"))),
        }
    }
}

fn mlserver(folder: &Path, artifact: &Path, request: &LoadModelRequest) -> io::Result<()> {
    let own = artifact.join(SETTINGS);
    let (mut settings, root) = match fs::read(&own) {
        Ok(text) => (serde_json::from_slice::<Value>(&text)?, Some(artifact)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            (json!({}), None)
        }
        Err(error) => return Err(error),
    };
    let fields = settings.as_object_mut().ok_or_else(|| io::Error::other(format!("{SETTINGS} is no object")))?;
    fields.insert("name".to_owned(), json!(request.model_id));
    if !fields.contains_key("implementation") {
        let format = request.model_type.split(':').next().unwrap_or_default();
        let class = CLASSES.iter().find(|(name, _)| *name == format).map(|(_, class)| *class);
        let class = class.ok_or_else(|| {
            io::Error::other(format!("MLServer has no class for {format:?}: put a {SETTINGS} beside the model"))
        })?;
        fields.insert("implementation".to_owned(), json!(class));
    }
    let parameters = fields.entry("parameters").or_insert_with(|| json!({}));
    let said = parameters.get("uri").and_then(Value::as_str).map(str::to_owned);
    let uri = match (root, said) {
        // Beside its settings, as its author put it.
        (Some(root), Some(said)) => confined(root, &said)?,
        (Some(root), None) => root.to_owned(),
        // Some libraries tell formats by the ending of the name.
        (None, _) if artifact.is_dir() => artifact.to_owned(),
        (None, _) => {
            let named = folder.join(file_name(&request.model_key));
            std::os::unix::fs::symlink(artifact, &named)?;
            named
        }
    };
    parameters["uri"] = json!(uri);
    fs::write(folder.join(SETTINGS), serde_json::to_vec_pretty(&settings)?)
}

fn versions(folder: &Path, artifact: &Path, name: &str) -> io::Result<()> {
    let link = |from: &Path, to: PathBuf| std::os::unix::fs::symlink(from, to);
    let version = folder.join("1");
    if !artifact.is_dir() {
        fs::create_dir(&version)?;
        let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
        return link(artifact, version.join(ending.map_or("model".to_owned(), |ending| format!("model.{ending}"))));
    }
    let mut versions = 0;
    for entry in fs::read_dir(artifact)? {
        let entry = entry?;
        let file = entry.file_name();
        let number = file.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
        versions += usize::from(number && entry.path().is_dir());
        if file == CONFIG {
            // The name in it would have to be the folder's.
            let text = fs::read_to_string(entry.path())?;
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("name:"));
            fs::write(folder.join(CONFIG), lines.collect::<Vec<_>>().join("\n"))?;
        } else {
            link(&entry.path(), folder.join(&file))?;
        }
    }
    if versions == 0 { link(artifact, version) } else { Ok(()) }
}

/// A path below `root`.
fn confined(root: &Path, said: &str) -> io::Result<PathBuf> {
    let inside = Path::new(said).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if inside { Ok(root.join(said)) } else { Err(io::Error::other(format!("uri {said:?} leads out of the model"))) }
}

/// The last part of a location, as the name of a file.
pub(super) fn file_name(location: &str) -> &str {
    let path = location.split(['?', '#']).next().unwrap_or_default();
    match path.rsplit('/').next() {
        Some(name) if !name.is_empty() && name != ".." && name != "." => name,
        _ => "model",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &Path, format: &str, key: &str) -> LoadModelRequest {
        LoadModelRequest {
            model_id: "m".to_owned(),
            model_type: format.to_owned(),
            model_path: path.display().to_string(),
            model_key: key.to_owned(),
        }
    }

    #[test]
    fn names_are_safe() {
        assert_eq!(safe("iris@1a2b"), "iris@1a2b");
        for odd in ["../x", "team/model", ".hidden", "...", "--help", "-", "a b", "'$(x)'", &"x".repeat(300)] {
            let name = safe(odd);
            assert!(name.chars().all(is_plain) && !name.starts_with(['.', '-']) && name.len() < 100, "{name}");
            assert_ne!(name, safe(&format!("{odd}!")));
        }
        assert_eq!(file_name("s3://b/k/model.json?x=1"), "model.json");
        assert_eq!(file_name("s3://b/.."), "model");
        assert_eq!(plain(file_name("s3://b/k/a b;$(x).bin")), "a-b---x-.bin");
    }

    #[test]
    fn mlserver_gets_settings_that_point_at_the_artifact() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository =
            Repository { folder: folder.path().join("repository"), layout: Layout::MlServer, owned: true, given: None };
        let file = folder.path().join("4f2a");
        fs::write(&file, "weights").expect("written");
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(repository.folder.join("m").join(name)).expect("a file")).expect("JSON")
        };
        repository.lay(&request(&file, "xgboost:2", "model.ubj")).expect("laid");
        let settings = read(SETTINGS);
        assert_eq!((&settings["name"], &settings["implementation"]), (&json!("m"), &json!(CLASSES[1].1)));
        let uri = settings["parameters"]["uri"].as_str().expect("a path");
        assert!(uri.ends_with("/m/model.ubj") && fs::read(uri).is_ok_and(|bytes| bytes == b"weights"), "{uri}");
        assert!(repository.lay(&request(&file, "other", "m")).is_err());

        let own = folder.path().join("own");
        fs::create_dir(&own).expect("made");
        for (uri, right) in [("./weights.bin", true), ("../4f2a", false), ("/etc/passwd", false)] {
            let text = json!({"name": "theirs", "implementation": "their.Class", "parameters": {"uri": uri}});
            fs::write(own.join(SETTINGS), text.to_string()).expect("written");
            assert_eq!(repository.lay(&request(&own, "other", "own")).is_ok(), right, "{uri}");
            if right {
                assert_eq!(
                    (&read(SETTINGS)["name"], &read(SETTINGS)["implementation"]),
                    (&json!("m"), &json!("their.Class"))
                );
            }
        }
        repository.clear("m").expect("removed");
        assert!(!repository.folder.join("m").exists());
    }

    #[test]
    fn triton_gets_versions_and_a_config_without_a_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let repository =
            Repository { folder: folder.path().join("repository"), layout: Layout::Triton, owned: true, given: None };
        let model = repository.folder.join("m");
        let file = folder.path().join("4f2a");
        fs::write(&file, "graph").expect("written");
        repository.lay(&request(&file, "onnx", "net.onnx")).expect("laid");
        assert_eq!(fs::read(model.join("1/model.onnx")).expect("a file"), b"graph");
        let own = folder.path().join("own");
        fs::create_dir_all(own.join("3")).expect("made");
        fs::write(own.join(CONFIG), "name: \"theirs\"\nbackend: \"python\"").expect("written");
        repository.lay(&request(&own, "triton", "own")).expect("laid");
        assert_eq!(fs::read_to_string(model.join(CONFIG)).expect("a file"), "backend: \"python\"");
        assert!(model.join("3").is_dir() && !model.join("1").exists());
    }
}
