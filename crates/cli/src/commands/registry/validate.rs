//! `berth registry validate`: what the server would say.

use std::path::{Path, PathBuf};

use berth_git::Repository;
use berth_registry::{
    Desired, Pass, Report, Tree, Validator,
    render::{self, Colours},
};
use clap::{Args, ValueEnum};

use super::access::{self, AccessArgs};
use crate::{
    commands::output::{Form, print_value},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry validate .                          the working tree, committed or not
  berth registry validate . --commit HEAD --previous origin/main
  berth registry validate /srv/git/model-registry.git --commit main
  berth registry validate . --offline                steps 1, 2, 3 and 6: nothing is fetched
  berth registry validate . -o sarif > results.sarif for the code scanner of a Git host

The steps: structure, manifests, pinned references, model cards, compatibility with workers, worker
configurations and secrets. Exit code 1 if there are errors; warnings do not count. With -o sarif
and -o junit, the report for people goes to standard error.")]
pub(crate) struct ValidateArgs {
    /// Folder or bare repository
    #[arg(value_name = "DIR|REPOSITORY", default_value = ".")]
    path: PathBuf,
    /// Commit to validate: a branch, tag, commit id or HEAD~1 [default: the working tree of a folder, HEAD of a bare
    /// repository]
    #[arg(long, value_name = "COMMIT")]
    commit: Option<String>,
    /// Last accepted commit: its keys must have signed the new commits, and removing all its deployments is an error
    #[arg(long, value_name = "COMMIT")]
    previous: Option<String>,
    /// Skip model cards: fetch nothing
    #[arg(long)]
    offline: bool,
    /// Allow removing the last deployment
    #[arg(long)]
    allow_empty: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: ReportForm,
    #[command(flatten)]
    access: AccessArgs,
}

/// Output format of a report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ReportForm {
    /// With the line and a caret for each problem
    #[default]
    Text,
    /// Everything, as JSON
    Json,
    /// For code scanners: SARIF 2.1.0
    Sarif,
    /// For test reports: JUnit XML
    Junit,
}

pub(super) fn run(args: &ValidateArgs) -> Result<(), Failure> {
    let (git, stop) = (access::git(), args.access.stop());
    let tree = tree(&args.path, args.commit.as_deref(), &args.access)?;
    let previous = match (&args.previous, &tree) {
        (Some(name), Tree::Commit { repository, .. }) => Some(access::commit(repository, name, &stop)?),
        (Some(_), Tree::Folder(_)) => {
            return Err(Failure::Usage("--previous compares commits: say --commit HEAD, too".to_owned()));
        }
        (None, _) => None,
    };
    let validator =
        if args.offline { Validator::offline(args.access.protocols()) } else { args.access.validator(git, None)? };
    let pass = Pass {
        tree: &tree,
        previous: previous.as_ref(),
        now: access::now(),
        allow_empty: args.allow_empty,
        stop: &stop,
    };
    print(&validator.validate(&pass)?, args.output)
}

/// Desired state of a registry if it is valid; otherwise the failure contains the report. Blocks.
pub(crate) fn wanted(path: &Path, commit: Option<&str>, access: &AccessArgs) -> Result<Desired, Failure> {
    let (tree, stop) = (tree(path, commit, access)?, access.stop());
    let pass = Pass { tree: &tree, previous: None, now: access::now(), allow_empty: true, stop: &stop };
    let mut report = access.validator(access::git(), None)?.validate(&pass)?;
    match report.desired.take() {
        Some(desired) => Ok(desired),
        None => Err(Failure::Failed(render::text(&report, Colours::Off).trim_end().to_owned())),
    }
}

/// The folder as it lies there, or a commit of it; of a bare repository always a commit.
fn tree(path: &Path, commit: Option<&str>, access: &AccessArgs) -> Result<Tree, Failure> {
    if !path.is_dir() {
        return Err(Failure::NotFound(format!("{} is no folder", path.display())));
    }
    let bare = ["HEAD", "objects", "refs"].iter().all(|part| path.join(part).exists());
    if commit.is_none() && !bare {
        return Ok(Tree::Folder(path.to_owned()));
    }
    if !bare && !path.join(".git").exists() {
        let message = format!(
            "{} is not the root of a repository, so it has no commits of its own: name the root, or leave --commit out to \
             check the folder as it lies there",
            path.display()
        );
        return Err(Failure::Usage(message));
    }
    let stop = access.stop();
    let repository = Repository::open(access::git(), path, &stop)?;
    let commit = access::commit(&repository, commit.unwrap_or("HEAD"), &stop)?;
    Ok(Tree::Commit { repository, commit })
}

fn print(report: &Report, form: ReportForm) -> Result<(), Failure> {
    match form {
        ReportForm::Text => {
            let colours = if terminal::colours() { Colours::On } else { Colours::Off };
            if report.is_accepted() {
                return Ok(terminal::print(&render::text(report, colours))?);
            }
            // Colours are asked for standard output; what is told here goes beside it.
            eprint!("{}", render::problems(report, Colours::Off));
            return Err(Failure::Failed(render::summary(report)));
        }
        ReportForm::Json => print_value(&render::json(report), Form::Json)?,
        // These go into files of a CI system, whose log people read.
        ReportForm::Sarif => {
            eprint!("{}", render::problems(report, Colours::Off));
            print_value(&render::sarif(report), Form::Json)?;
        }
        ReportForm::Junit => {
            eprint!("{}", render::problems(report, Colours::Off));
            terminal::print(&render::junit(report))?;
        }
    }
    if report.is_accepted() {
        return Ok(());
    }
    Err(Failure::Failed(render::summary(report)))
}
