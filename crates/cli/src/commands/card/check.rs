//! `berth card check`: a card, and the code that it names, without running any of it.

use std::path::{Path, PathBuf};

use berth_git::Protocols;
use berth_registry::{CardRules, Matrix, Problem, Step, check_card};
use berth_spec::{ModelCard, card::lock::Lock, manifest::closest};
use clap::{Args, ValueEnum};
use fs_err as fs;

use super::{
    python,
    trial::{self, TrialArgs},
};
use crate::{
    commands::{
        output::{Form, print_value},
        registry,
    },
    failure::Failure,
    files::plural,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth card check .                         check ./model-card.yaml and its modules and functions
  berth card check . --file cards/small.yaml
  berth card check . -o json                 problems as data, for editors and CI
  berth card check --run .                   also run all steps of a worker
  berth card check --run . --artifact model.joblib --request request.json

Exit code 1 if there are errors; warnings do not count.")]
pub(crate) struct CheckArgs {
    /// Folder of the model repository
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Card file in the folder
    #[arg(long, value_name = "FILE", default_value = "model-card.yaml")]
    file: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: CheckForm,
    #[command(flatten)]
    trial: TrialArgs,
}

/// Output format of problems.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum CheckForm {
    /// With the line and a caret
    #[default]
    Text,
    /// Print problems as a JSON list; steps and response of --run go to standard error
    Json,
}

pub(super) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let path = args.folder.join(&args.file);
    let shown = path.display().to_string();
    if !path.exists() {
        let begin = args.folder.display();
        return Err(Failure::NotFound(format!(
            "there is no {shown}: `berth card new {begin}` begins a model repository, --file names another card"
        )));
    }
    let text = fs::read_to_string(&path)?;
    let (matrix, today) = (Matrix::embedded(), registry::today());
    let rules = CardRules { matrix: &matrix, today: &today, protocols: Protocols::default().with_local() };
    let checked = check_card(&text, &shown, &rules);
    let mut problems = checked.problems;
    if let Some(card) = &checked.card {
        problems.extend(Code { root: &args.folder, card, file: &shown, text: &text }.check());
    }
    let errors = problems.iter().filter(|problem| problem.is_error()).count();
    let warnings = problems.len() - errors;
    if args.output == CheckForm::Json {
        print_value(&problems, Form::Json)?;
    }
    let told: String = problems.iter().map(|problem| problem.render() + "\n\n").collect();
    if errors > 0 {
        let count = plural(errors, "error");
        return Err(Failure::Failed(if args.output == CheckForm::Json { count } else { format!("{told}{count}") }));
    }
    if args.output == CheckForm::Text {
        let name =
            checked.card.as_ref().map_or_else(String::new, |c| format!("{} {}", c.metadata.name, c.metadata.version));
        terminal::print(&format!("{told}{name} is valid; {}", plural(warnings, "warning")))?;
    }
    let tell: trial::Tell = match args.output {
        CheckForm::Text => terminal::print,
        CheckForm::Json => terminal::print_aside,
    };
    match checked.card {
        Some(card) if args.trial.run => {
            trial::run(&args.trial, &args.folder, std::sync::Arc::unwrap_or_clone(card), tell)
        }
        _ => Ok(()),
    }
}

/// The code beside a card.
struct Code<'a> {
    root: &'a Path,
    card: &'a ModelCard,
    file: &'a str,
    text: &'a str,
}

impl Code<'_> {
    fn check(&self) -> Vec<Problem> {
        let card = self.card;
        let mut found = Vec::new();
        for (field, function) in [("preprocessing", &card.preprocessing), ("postprocessing", &card.postprocessing)] {
            found.extend(self.function(field, &function.module, &function.function));
        }
        match card.code.entrypoint.as_deref().map(|text| text.split_once(':').unwrap_or((text, ""))) {
            // What loads the model is looked for under several names, unless one is given.
            Some((module, "")) if self.source(module).is_none() => {
                found.push(self.missing_module("entrypoint", module));
            }
            None | Some((_, "")) => {}
            Some((module, function)) => found.extend(self.function("entrypoint", module, function)),
        }
        found.extend(self.lock());
        found
    }

    /// The lock of the packages, but for that of a project of `uv`, which only `uv` reads: `--run` does.
    fn lock(&self) -> Option<Problem> {
        let runtime = &self.card.runtime;
        let path = runtime.dependencies_lock.as_deref()?;
        let wrong = |message: String, remedy: &str| {
            let problem = self.problem("dependencies-lock", "dependencies_lock:", message);
            Some(problem.remedy(remedy))
        };
        let file = self.root.join(path);
        if !file.is_file() {
            return wrong(format!("there is no {}", file.display()), "`uv pip compile --generate-hashes` writes it");
        }
        if file.file_name().is_some_and(|name| name == "uv.lock") {
            return None;
        }
        let again = "write it again: `uv pip compile --generate-hashes requirements.txt -o requirements.lock`";
        let lock = match fs::read_to_string(&file).map_err(|error| error.to_string()).map(|text| Lock::read(&text)) {
            Ok(Ok(lock)) => lock,
            Ok(Err(error)) => return wrong(format!("{path}: {error}"), again),
            Err(error) => return wrong(error, ""),
        };
        lock.stale(&runtime.dependencies).and_then(|how| wrong(format!("{path} is out of date: {how}"), again))
    }

    fn function(&self, field: &str, module: &str, function: &str) -> Option<Problem> {
        let Some((path, source)) = self.source(module) else { return Some(self.missing_module(field, module)) };
        let names = python::names(&source)?;
        if names.contains(function) {
            return None;
        }
        let shown = path.display();
        let near = closest(function, names.iter().map(String::as_str));
        let remedy = near.map_or_else(|| format!("define it in {shown}"), |near| format!("did you mean {near}?"));
        let key = if field == "entrypoint" { format!("entrypoint: {module}") } else { format!("function: {function}") };
        Some(self.problem("function", &key, format!("{shown} defines no {function}")).remedy(remedy))
    }

    /// The file of a module: from the repository's root, or from the folder of the code.
    fn source(&self, module: &str) -> Option<(PathBuf, String)> {
        let relative = module.replace('.', "/");
        let code = self.root.join(&self.card.code.path);
        let candidates = [self.root.to_owned(), code]
            .into_iter()
            .flat_map(|folder| [folder.join(format!("{relative}.py")), folder.join(&relative).join("__init__.py")]);
        candidates.into_iter().find_map(|path| Some((path.clone(), fs::read_to_string(&path).ok()?)))
    }

    fn missing_module(&self, field: &str, module: &str) -> Problem {
        let place = self.root.join(module.replace('.', "/"));
        let key = if field == "entrypoint" { "entrypoint" } else { "module" };
        let problem = self.problem("module", &format!("{key}: {module}"), format!("there is no module {module}"));
        problem.remedy(format!("write {}.py, or name another module", place.display()))
    }

    /// At the line that holds `part`.
    fn problem(&self, rule: &'static str, part: &str, message: String) -> Problem {
        let problem = Problem::new(Step::Cards, rule, self.file, message);
        let line = self.text.lines().position(|line| line.trim_start().starts_with(part));
        let Some(line) = line else { return problem };
        let column = self.text.lines().nth(line).and_then(|text| text.find(part)).unwrap_or(0) + 1;
        let number = |n: usize| u32::try_from(n).unwrap_or(0);
        let place = berth_spec::manifest::node::Position { line: number(line + 1), column: number(column) };
        problem.at(place, part.split(':').next().unwrap_or_default(), self.text)
    }
}
