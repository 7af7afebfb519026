//! `berth registry hook`: what a Git server asks before it takes a push. Git keeps what a push brings in quarantine until
//! the hook agrees: a rejected push leaves nothing behind.

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_git::{Git, Oid, Quarantine, Repository, Rev, Stop};
use berth_registry::{
    CardRules, Matrix, Pass, Settings, Tree, check_card,
    render::{self, Colours},
    settings::SETTINGS_FILE,
};
use clap::{Args, Subcommand, ValueEnum};

use super::{
    access::{self, AccessArgs},
    announce, install,
};
use crate::{failure::Failure, files::plural, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry hook install /srv/git/model-registry.git
  berth registry hook install /srv/git/sentiment-model.git --kind model")]
pub(crate) struct HookArgs {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, Subcommand)]
enum HookCommand {
    /// Install the hook in a bare repository
    Install(install::InstallArgs),
    /// Run as a pre-receive hook: check the updates that git writes to standard input
    PreReceive(PreReceiveArgs),
    /// Run as a post-receive hook: tell a server of the push
    PostReceive(announce::PostReceiveArgs),
}

/// Kind of repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum RepositoryKind {
    /// A registry: every push to its branch must pass validation
    #[default]
    Registry,
    /// A model repository: a version tag must have a right card, and never moves
    Model,
}

/// Rules of a hook.
#[derive(Debug, Clone, Args)]
pub(super) struct Rules {
    /// Kind of repository
    #[arg(long, value_enum, default_value_t, value_name = "KIND")]
    pub(super) kind: RepositoryKind,
    /// Branch whose commits must be valid
    #[arg(long, default_value = "main", value_name = "BRANCH")]
    pub(super) branch: String,
    /// User who may write the actual-state branch, as the server names users; others may not. Repeatable [default:
    /// everybody who may push]
    #[arg(long, value_name = "USER")]
    pub(super) writer: Vec<String>,
    #[command(flatten)]
    pub(super) access: AccessArgs,
}

#[derive(Debug, Args)]
pub(super) struct PreReceiveArgs {
    #[command(flatten)]
    rules: Rules,
}

pub(super) fn run(args: &HookArgs) -> Result<(), Failure> {
    match &args.command {
        HookCommand::Install(args) => install::run(args),
        HookCommand::PreReceive(args) => pre_receive(&args.rules),
        HookCommand::PostReceive(args) => announce::run(args),
    }
}

/// One line of what git says of a push.
struct Update {
    old: Oid,
    new: Oid,
    name: String,
}

/// Most bytes of updates. Holds a push of very many tags.
const MOST_UPDATES: u64 = 4 << 20;

/// Problems are told on standard output, which the pusher sees behind `remote:`; any failure rejects the whole push.
fn pre_receive(rules: &Rules) -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin().take(MOST_UPDATES).read_to_string(&mut text)?;
    let updates: Vec<Update> = text.lines().map(update).collect::<Result<_, _>>()?;
    let (git, stop) = (access::git(), rules.access.stop());
    let folder = PathBuf::from(std::env::var_os("GIT_DIR").unwrap_or_else(|| ".".into()));
    let mut repository = Repository::open(Arc::clone(&git), &folder, &stop)?;
    let of_push = |name: &str| std::env::var_os(name).unwrap_or_default();
    if std::env::var_os("GIT_QUARANTINE_PATH").is_some() {
        let objects = of_push("GIT_OBJECT_DIRECTORY");
        repository =
            repository.in_quarantine(Quarantine { objects, alternates: of_push("GIT_ALTERNATE_OBJECT_DIRECTORIES") });
    }
    let hook = Hook { rules, git, repository, user: pusher(), stop };
    let mut rejected = 0;
    for update in &updates {
        if let Some(why) = hook.check(update)? {
            rejected += 1;
            terminal::print(&format!("\n{}: {}\n", update.name, why.trim_end()))?;
        }
    }
    if rejected == 0 {
        return Ok(());
    }
    Err(Failure::Failed(format!("nothing of this push is taken: {} rejected", plural(rejected, "ref"))))
}

fn update(line: &str) -> Result<Update, Failure> {
    let parts: Vec<&str> = line.splitn(3, ' ').collect();
    let odd =
        || Failure::Usage(format!("standard input must have lines `OLD NEW REF`, not {line:?}: git runs this command"));
    let [old, new, name] = parts.as_slice() else { return Err(odd()) };
    let oid = |text: &str| Oid::parse(text).ok_or_else(odd);
    Ok(Update { old: oid(old)?, new: oid(new)?, name: (*name).to_owned() })
}

/// Name of the pusher, from the environment of common servers.
fn pusher() -> Option<String> {
    let known = ["REMOTE_USER", "GL_USERNAME", "GITEA_PUSHER_NAME", "GL_USER"];
    known.into_iter().find_map(std::env::var_os).map(|user| user.to_string_lossy().into_owned())
}

struct Hook<'a> {
    rules: &'a Rules,
    git: Arc<Git>,
    repository: Repository,
    user: Option<String>,
    stop: Stop,
}

impl Hook<'_> {
    /// Reason for refusing an update.
    fn check(&self, update: &Update) -> Result<Option<String>, Failure> {
        match self.rules.kind {
            RepositoryKind::Registry => self.of_registry(update),
            RepositoryKind::Model => self.of_model(update),
        }
    }

    fn of_registry(&self, update: &Update) -> Result<Option<String>, Failure> {
        let Some(branch) = update.name.strip_prefix("refs/heads/") else {
            let notes = update.name.starts_with("refs/notes/") && !self.may_write();
            return Ok(notes.then(|| self.not_a_writer("notes")));
        };
        if branch == self.rules.branch {
            return self.of_branch(update);
        }
        let own = branch == self.actual_state()? && !self.may_write();
        Ok(own.then(|| self.not_a_writer("the actual state")))
    }

    fn of_branch(&self, update: &Update) -> Result<Option<String>, Failure> {
        if update.new.is_null() {
            return Ok(Some("this branch is what runs: it is not deleted".to_owned()));
        }
        let previous = (!update.old.is_null()).then_some(&update.old);
        if let Some(old) = previous
            && !self.repository.is_ancestor(old, &update.new, &self.stop)?
        {
            let why =
                "this branch only grows: pull, and push on top (to go back to an older version, commit its ref again)";
            return Ok(Some(why.to_owned()));
        }
        let cache = self.repository.folder().join("berth");
        let validator = self.rules.access.validator(Arc::clone(&self.git), Some(cache))?;
        let tree = Tree::Commit { repository: self.repository.clone(), commit: update.new.clone() };
        let pass = Pass { tree: &tree, previous, now: access::now(), allow_empty: false, stop: &self.stop };
        let report = validator.validate(&pass)?;
        let text = render::text(&report, Colours::Off);
        if report.is_accepted() {
            terminal::print(&text)?;
            return Ok(None);
        }
        Ok(Some(format!("\n\n{text}")))
    }

    /// The branch that belongs to the controller, by the settings that were accepted last.
    fn actual_state(&self) -> Result<String, Failure> {
        let settings = match self.repository.tip(&self.rules.branch, &self.stop)? {
            Some(tip) => self.repository.read(&tip, SETTINGS_FILE, berth_registry::MAX_FILE_BYTES, &self.stop).ok(),
            None => None,
        };
        let settings =
            settings.and_then(|text| Settings::read(&String::from_utf8_lossy(&text)).ok()).unwrap_or_default();
        Ok(settings.write_back.branch)
    }

    fn may_write(&self) -> bool {
        let user = self.user.as_deref();
        self.rules.writer.is_empty() || self.rules.writer.iter().any(|writer| Some(writer.as_str()) == user)
    }

    fn not_a_writer(&self, what: &str) -> String {
        format!(
            "{what} is written by {} alone, and this push is by {}",
            self.rules.writer.join(", "),
            self.user.as_deref().unwrap_or("an unnamed user")
        )
    }

    /// A version is tagged once, and its card is right.
    fn of_model(&self, update: &Update) -> Result<Option<String>, Failure> {
        let tag = update.name.strip_prefix("refs/tags/").filter(|tag| matches!(Rev::pinned(tag), Some(Rev::Tag(_))));
        let Some(tag) = tag else { return Ok(None) };
        if !update.old.is_null() {
            return Ok(Some("a version never changes: release the next one".to_owned()));
        }
        let info = self.repository.peel(&update.new, &self.stop)?;
        let file = Path::new("model-card.yaml");
        let text =
            match self.repository.read(&info, &file.to_string_lossy(), berth_registry::MAX_FILE_BYTES, &self.stop) {
                Ok(text) => text,
                // A repository may keep its cards elsewhere: the registry says where, and checks them then.
                Err(error) if error.category == berth_git::Category::PathNotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        let matrix = Matrix::embedded();
        let today = super::access::today();
        let rules = CardRules { matrix: &matrix, today: &today, protocols: self.rules.access.protocols() };
        let checked = check_card(&String::from_utf8_lossy(&text), "model-card.yaml", &rules);
        let told: String = checked.problems.iter().map(|problem| problem.render() + "\n\n").collect();
        let Some(card) = checked.card else { return Ok(Some(format!("\n\n{told}"))) };
        terminal::print(&told)?;
        let own = format!("v{}", card.metadata.version);
        Ok((own != tag).then(|| format!("the card says that it is version {}: tag it {own}", card.metadata.version)))
    }
}
