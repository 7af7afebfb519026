//! `berth card new`: a model repository to begin with.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fs_err as fs;

use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth card new ./iris-model
  berth card new ./sentiment-model --framework pytorch

Existing files stay unchanged.")]
pub(crate) struct NewArgs {
    /// Folder to create; its name without -model is the name of the model
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Framework of the model
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    framework: Framework,
}

/// Framework of a model.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Framework {
    /// scikit-learn
    #[default]
    Sklearn,
    /// PyTorch
    Pytorch,
    /// XGBoost
    Xgboost,
    /// TensorFlow
    Tensorflow,
    /// ONNX Runtime, with pre- and postprocessing in Python
    Onnx,
    /// Anything else: plain Python
    Custom,
}

/// Parts of the template that depend on the framework.
struct FrameworkTemplate {
    name: &'static str,
    version: &'static str,
    dependencies: &'static [&'static str],
    weights: &'static str,
    /// The body of `load`, and what is called for one input.
    load: &'static str,
}

impl Framework {
    const fn words(self) -> FrameworkTemplate {
        match self {
            Self::Sklearn => FrameworkTemplate {
                name: "sklearn",
                version: "1.7.2",
                dependencies: &["scikit-learn==1.7.2", "joblib==1.5.2", "numpy==2.3.4"],
                weights: "model.joblib",
                load: "    import joblib\n\n    model = joblib.load(path)\n    return lambda features: model.predict([features])[0].item()\n",
            },
            Self::Pytorch => FrameworkTemplate {
                name: "pytorch",
                version: "2.9.0",
                dependencies: &["torch==2.9.0", "numpy==2.3.4"],
                weights: "model.pt",
                load: "    import torch\n\n    model = torch.jit.load(path).eval()\n\n    def predict(features):\n        with torch.no_grad():\n            return model(torch.tensor([features]))[0].tolist()\n\n    return predict\n",
            },
            Self::Xgboost => FrameworkTemplate {
                name: "xgboost",
                version: "3.1.1",
                dependencies: &["xgboost==3.1.1", "numpy==2.3.4"],
                weights: "model.ubj",
                load: "    import numpy\n    import xgboost\n\n    model = xgboost.Booster(model_file=path)\n    return lambda features: model.predict(xgboost.DMatrix(numpy.array([features])))[0].item()\n",
            },
            Self::Tensorflow => FrameworkTemplate {
                name: "tensorflow",
                version: "2.20.0",
                dependencies: &["tensorflow==2.20.0", "numpy==2.3.4"],
                weights: "model.keras",
                load: "    import numpy\n    import tensorflow\n\n    model = tensorflow.keras.models.load_model(path)\n    return lambda features: model(numpy.array([features])).numpy()[0].tolist()\n",
            },
            Self::Onnx => FrameworkTemplate {
                name: "onnx",
                version: "1.23.2",
                dependencies: &["onnxruntime==1.23.2", "numpy==2.3.4"],
                weights: "model.onnx",
                load: "    import numpy\n    import onnxruntime\n\n    session = onnxruntime.InferenceSession(path)\n    name = session.get_inputs()[0].name\n    return lambda features: session.run(None, {name: numpy.array([features], numpy.float32)})[0][0].tolist()\n",
            },
            Self::Custom => FrameworkTemplate {
                name: "custom",
                version: "1.0.0",
                dependencies: &[],
                weights: "weights.json",
                load: "    import json\n\n    with open(path, encoding=\"utf-8\") as file:\n        weights = json.load(file)\n    return lambda features: sum(weight * feature for weight, feature in zip(weights, features))\n",
            },
        }
    }
}

pub(super) fn run(args: &NewArgs) -> Result<(), Failure> {
    let folder = std::path::absolute(&args.folder)?;
    let given = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = model_name(&given);
    let words = args.framework.words();
    let list = |indent: &str| words.dependencies.iter().map(|one| format!("{indent}- {one}\n")).collect::<String>();
    let dependencies = if words.dependencies.is_empty() {
        "dependencies: []\n".to_owned()
    } else {
        format!("dependencies:\n{}", list("    "))
    };
    let filled = |text: &str| {
        text.replace("NAME", &name)
            .replace("FRAMEWORK_VERSION", words.version)
            .replace("FRAMEWORK", words.name)
            .replace("WEIGHTS", words.weights)
            .replace("dependencies: DEPENDENCIES\n", &dependencies)
            .replace("    LOAD\n", words.load)
    };
    let requirements: String = words.dependencies.iter().map(|one| format!("{one}\n")).collect();
    let files = [
        ("model-card.yaml", filled(include_str!("template/model-card.yaml.txt"))),
        ("src/__init__.py", String::new()),
        ("src/model.py", filled(include_str!("template/src/model.py.txt"))),
        ("src/preprocessing.py", include_str!("template/src/preprocessing.py.txt").to_owned()),
        ("src/postprocessing.py", include_str!("template/src/postprocessing.py.txt").to_owned()),
        ("tests/test_functions.py", include_str!("template/test_functions.py.txt").to_owned()),
        ("requirements.txt", requirements),
        ("README.md", filled(include_str!("template/README.md"))),
    ];
    let mut made = 0;
    for (file, text) in files {
        let path = args.folder.join(file);
        if path.symlink_metadata().is_ok() {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text)?;
        made += 1;
    }
    let shown = args.folder.display();
    Ok(terminal::print(&format!(
        "made {made} files in {shown}\n\n\
         next:\n  \
         1. put the weights where artifacts.model_path says, and their sha256sum into artifacts.checksum\n  \
         2. set metadata.owner, code.repository, and what goes in and out in interface\n  \
         3. berth card check {shown}\n  \
         4. berth card check --run {shown} --artifact {weights}   run all steps of a worker locally\n  \
         5. berth serve {shown} --artifact {weights}   answer requests from here\n  \
         6. git tag v0.1.0 && git push --tags\n",
        weights = words.weights,
    ))?)
}

/// A name as cards have it.
fn model_name(folder: &str) -> String {
    let plain: String =
        folder.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let plain = plain.trim_matches('-');
    let name = plain.strip_suffix("-model").unwrap_or(plain);
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}
