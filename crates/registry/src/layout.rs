//! Step 1: the folders of a registry, and which file is what.

use berth_git::Mode;

use crate::{
    problem::{Problem, Step},
    settings::SETTINGS_FILE,
    tree::{File, Files},
    validate::MATRIX_FILE,
};

/// Folders that must be there.
pub const FOLDERS: [&str; 5] = ["models/production", "models/staging", "transactions", "workers", "errors"];

/// Top-level folders of a registry. Others may hold anything.
pub(crate) const TOP_LEVEL_FOLDERS: [&str; 6] = ["models", "aliases", "functions", "workers", "transactions", "errors"];

/// Files at the root that are looked for, and what they are called by mistake.
const AT_ROOT: [(&str, &[&str]); 2] = [
    (SETTINGS_FILE, &["registry.yml", "registry.json"]),
    (MATRIX_FILE, &["compatibility-matrix.yml", "compatibility-matrix.json"]),
];

/// Target environment of a deployment: the folder of its manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// Folder `models/production`.
    Production,
    /// Folder `models/staging`.
    Staging,
}

impl Environment {
    /// Name of the environment: `production` or `staging`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Production => "production",
            Self::Staging => "staging",
        }
    }
}

/// The files of a registry by what they are.
#[derive(Debug, Default)]
pub(crate) struct Layout<'a> {
    pub(crate) manifests: Vec<(Environment, &'a File)>,
    pub(crate) aliases: Vec<&'a File>,
    pub(crate) functions: Vec<&'a File>,
    pub(crate) workers: Vec<&'a File>,
    pub(crate) secrets: Vec<&'a File>,
}

/// Sorts the files; what is wrong with their places.
pub(crate) fn sort(files: &Files) -> (Layout<'_>, Vec<Problem>) {
    let mut problems = missing(files);
    problems.extend(misnamed(files));
    let mut layout = Layout::default();
    for file in &files.all {
        let Some((folder, rest)) = file.path.split_once('/') else { continue };
        if !TOP_LEVEL_FOLDERS.contains(&folder) {
            continue;
        }
        if matches!(file.mode, Mode::Link | Mode::Submodule) {
            let what = if file.mode == Mode::Link { "a symbolic link" } else { "a submodule" };
            let problem = Problem::new(Step::Structure, "plain-files", &file.path, format!("{what} is not followed"));
            problems.push(problem.remedy("put a plain file there"));
            continue;
        }
        if file.path.contains('\u{fffd}') {
            problems.push(Problem::new(Step::Structure, "plain-files", &file.path, "the name is not UTF-8"));
            continue;
        }
        problems.extend(place(&mut layout, file, folder, rest));
    }
    (layout, problems)
}

fn place<'a>(layout: &mut Layout<'a>, file: &'a File, folder: &str, rest: &str) -> Option<Problem> {
    let problem = |rule, message: &str, remedy: &str| {
        Some(Problem::new(Step::Structure, rule, &file.path, message).remedy(remedy))
    };
    let name = rest.rsplit('/').next().unwrap_or(rest);
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
    match folder {
        "models" => {
            let environment = match rest.split_once('/') {
                Some(("production", _)) => Environment::Production,
                Some(("staging", _)) => Environment::Staging,
                _ if is_yaml => {
                    let remedy = "move it to models/production or models/staging";
                    return problem(
                        "environment",
                        "a manifest lies outside models/production and models/staging",
                        remedy,
                    );
                }
                _ => return None,
            };
            if is_yaml {
                layout.manifests.push((environment, file));
                return None;
            }
            let strange = !name.starts_with('.') && !name.ends_with(".md") && !name.ends_with(".txt");
            strange.then(|| {
                problem("ignored-file", "this file is not read", "manifests end with .yaml").map(Problem::warning)
            })?
        }
        "aliases" if is_yaml => {
            layout.aliases.push(file);
            None
        }
        "functions" if is_yaml => {
            layout.functions.push(file);
            None
        }
        // The code of a function may lie beside its manifest.
        "functions" => None,
        "aliases" if !name.starts_with('.') && !name.ends_with(".md") && !name.ends_with(".txt") => {
            problem("ignored-file", "this file is not read", "aliases end with .yaml").map(Problem::warning)
        }
        // Whatever it is called: what lies beside secrets may well be one.
        "workers" if !is_yaml && rest.starts_with("secrets/") && !name.starts_with('.') && !name.ends_with(".md") => {
            let message = "this file is ignored and not checked for secrets in plain text";
            problem("ignored-file", message, "files of secrets end with .yaml").map(Problem::warning)
        }
        "workers" if !is_yaml && ![".md", ".txt"].iter().any(|end| name.ends_with(end)) && !name.starts_with('.') => {
            problem("ignored-file", "this file is not read", "worker configurations end with .yaml")
                .map(Problem::warning)
        }
        "workers" if is_yaml => {
            match rest.split_once('/') {
                None => layout.workers.push(file),
                Some(("secrets", _)) => layout.secrets.push(file),
                Some(_) => {
                    let remedy = "worker configurations lie in workers/ itself, secrets in workers/secrets/";
                    return problem("workers-folder", "this file is not read", remedy);
                }
            }
            None
        }
        _ => None,
    }
}

/// Settings under a wrong name. They would have no effect: for example, required signatures would be ignored.
fn misnamed(files: &Files) -> Vec<Problem> {
    let mut found = Vec::new();
    for (right, wrong) in AT_ROOT {
        for file in files.all.iter().filter(|file| wrong.contains(&file.path.as_str())) {
            let problem = Problem::new(Step::Structure, "ignored-file", &file.path, "this file is not read");
            found.push(problem.remedy(format!("call it {right}")));
        }
    }
    found
}

fn missing(files: &Files) -> Vec<Problem> {
    let there = |folder: &str| {
        let inside = format!("{folder}/");
        files.all.iter().any(|file| file.path.starts_with(&inside))
            || files.empty_folders.iter().any(|found| found == folder || found.starts_with(&inside))
    };
    let problem = |folder: &&str| {
        let (message, remedy) = if files.all.iter().any(|file| file.path == **folder) {
            ("this must be a folder", "remove the file and make a folder with a .gitkeep".to_owned())
        } else {
            (
                "the folder is missing",
                format!("mkdir -p {folder} && touch {folder}/.gitkeep; Git keeps no empty folders"),
            )
        };
        Problem::new(Step::Structure, "folders", folder, message).remedy(remedy)
    };
    FOLDERS.iter().filter(|folder| !there(folder)).map(problem).collect()
}
