//! Step 4 for all manifests: every card is found, read once, and checked; and the code that it names must be there.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use berth_git::{Category, GitError, Oid, Stop};

use crate::{
    DeploymentManifest, DesiredDeployment, Environment,
    card::{CardRules, CheckedCard, check_card},
    parse::Parsed,
    problem::{Outcome, Problem, Step},
    remotes::{Answers, FetchedFile, FileRequest, LookupError, Remotes, TagCache},
};

/// Cards that were looked at, by repository, commit and path.
pub(crate) type CardCache = HashMap<(String, Oid, String), Arc<CheckedCard>>;

/// A manifest with its environment and the path of its file.
type Placed = (Environment, String, Arc<Parsed<DeploymentManifest>>);

/// Result of checking the cards of all manifests.
pub(crate) struct Cards {
    /// Deployments with nothing wrong so far, in the order of their files.
    pub(crate) deployments: Vec<(DesiredDeployment, Arc<Parsed<DeploymentManifest>>)>,
    pub(crate) problems: Vec<Problem>,
    /// Cards that were not known.
    pub(crate) parsed: usize,
}

/// A card without errors, with the manifest that pins it and the file that was found.
struct ValidCard<'a> {
    placed: &'a Placed,
    manifest: Arc<DeploymentManifest>,
    found: FetchedFile,
    card: Arc<berth_spec::ModelCard>,
    file: String,
}

pub(crate) fn find(
    remotes: &Remotes,
    manifests: &[Placed],
    known: &mut CardCache,
    rules: &CardRules<'_>,
    stop: &Stop,
) -> Cards {
    let asked = TagCache::default();
    let good = manifests.iter().filter_map(|placed| Some((placed, placed.2.value.clone()?)));
    let manifests: Vec<(&Placed, Arc<DeploymentManifest>)> = good.collect();
    let wanted = manifests.iter().map(|(_, manifest)| wanted_card(manifest)).collect();
    let answers = remotes.find(&wanted, &asked, stop);
    let mut cards = Cards { deployments: Vec::new(), problems: Vec::new(), parsed: 0 };
    let mut current = CardCache::new();
    let (mut good, mut told) = (Vec::new(), BTreeSet::new());
    for (placed, manifest) in manifests {
        let card = &manifest.model_card_ref;
        let found = match answers.get(&wanted_card(&manifest)) {
            Some(Ok(found)) => found.clone(),
            Some(Err(fault)) => {
                cards.problems.push(not_found(placed, &manifest, fault));
                continue;
            }
            None => continue,
        };
        cards.problems.extend(from_memory(placed, &found));
        let file = format!("{}@{}:{}", card.repository, card.reference, card.path);
        let key = (card.repository.clone(), found.commit.clone(), card.path.clone());
        let checked = current.entry(key.clone()).or_insert_with(|| {
            known.remove(&key).unwrap_or_else(|| {
                cards.parsed += 1;
                let text = found.text.as_deref().unwrap_or_default();
                Arc::new(check_card(text, &file, rules))
            })
        });
        // The same card under another tag, or in several manifests, is told of once.
        for problem in &checked.problems {
            if told.insert((problem.file.clone(), problem.line, problem.message.clone())) {
                cards.problems.push(Problem { manifest: placed.1.clone(), ..problem.clone() });
            }
        }
        if let Some(card) = &checked.card {
            good.push(ValidCard { placed, card: Arc::clone(card), manifest, found, file });
        }
    }
    *known = current;
    with_code(remotes, good, &asked, stop, &mut cards);
    cards
}

fn wanted_card(manifest: &DeploymentManifest) -> FileRequest {
    let card = &manifest.model_card_ref;
    FileRequest {
        repository: card.repository.clone(),
        reference: card.reference.clone(),
        path: Some(card.path.clone()),
    }
}

/// Finds the commits of the code.
fn with_code(remotes: &Remotes, good: Vec<ValidCard<'_>>, asked: &TagCache, stop: &Stop, cards: &mut Cards) {
    let wanted = |one: &ValidCard<'_>| {
        let code = &one.card.code;
        FileRequest { repository: code.repository.clone(), reference: code.reference.clone(), path: None }
    };
    let all: BTreeSet<FileRequest> = good.iter().map(wanted).collect();
    let answers: Answers = remotes.find(&all, asked, stop);
    let mut told = BTreeSet::new();
    for one in good {
        let (environment, path, parsed) = one.placed;
        match answers.get(&wanted(&one)) {
            Some(Ok(code)) => {
                cards.problems.extend(version_warning(&one));
                let deployment = DesiredDeployment {
                    id: one.manifest.id.clone(),
                    path: path.clone(),
                    environment: *environment,
                    manifest: one.manifest,
                    card: one.card,
                    card_commit: one.found.commit,
                    code_commit: code.commit.clone(),
                };
                cards.deployments.push((deployment, Arc::clone(parsed)));
            }
            Some(Err(fault)) if told.insert(one.file.clone()) => {
                let (message, remedy) = match fault {
                    LookupError::Git(error) => {
                        (format!("the code cannot be found: {}", error.what()), no_code(error).to_owned())
                    }
                    LookupError::Moved { before, now, memory } => moved(&one.card.code.reference, before, now, memory),
                };
                let mut problem = Problem::new(Step::Cards, "code-ref", &one.file, message);
                problem = problem.transient(matches!(fault, LookupError::Git(error) if error.is_transient()));
                "code.ref".clone_into(&mut problem.path);
                problem.manifest.clone_from(path);
                cards.problems.push(problem.remedy(remedy));
            }
            _ => {}
        }
    }
}

/// The tag of the repository and the version in the card are usually the same.
fn version_warning(one: &ValidCard<'_>) -> Option<Problem> {
    let reference = &one.manifest.model_card_ref.reference;
    let version = &one.card.metadata.version;
    let differs = reference.strip_prefix('v').is_some_and(|tag| tag != version);
    differs.then(|| {
        let message = format!("the card at {reference} says that it is version {version}");
        let problem = one.placed.2.problem(Step::Cards, "/model_card_ref/ref", "card-version", message);
        problem.remedy("tag the commit whose card has this version").warning()
    })
}

/// Problem for a missing or moved card.
fn not_found(placed: &Placed, manifest: &DeploymentManifest, fault: &LookupError) -> Problem {
    let at = |step, pointer: &str, rule, message| placed.2.problem(step, pointer, rule, message);
    match fault {
        LookupError::Moved { before, now, memory } => {
            let (message, remedy) = moved(&manifest.model_card_ref.reference, before, now, memory);
            at(Step::References, "/model_card_ref/ref", "moved-tag", message).remedy(remedy)
        }
        LookupError::Git(error) => {
            let pointer = match error.category {
                Category::RefNotFound => "/model_card_ref/ref",
                Category::PathNotFound | Category::TooLarge | Category::Invalid => "/model_card_ref/path",
                _ => "/model_card_ref/repository",
            };
            let problem = at(Step::Cards, pointer, rule_of(error), error.what());
            let remedy = match error.category {
                Category::PathNotFound => "name the card's file in the repository, for example model-card.yaml",
                _ if error.is_transient() => "nothing, if the repository answers again: it is tried again",
                _ => error.remedy(),
            };
            // It is there, and is no card.
            let is_there = matches!(error.category, Category::TooLarge | Category::Invalid);
            let outcome = if is_there { Outcome::InvalidModelCard } else { Outcome::ModelCardNotFound };
            problem.outcome(outcome).remedy(remedy).transient(error.is_transient())
        }
    }
}

fn rule_of(error: &GitError) -> &'static str {
    match error.category {
        Category::RefNotFound => "ref-not-found",
        Category::PathNotFound => "card-not-found",
        Category::TooLarge | Category::Invalid => "card-unreadable",
        Category::Auth => "repository-denied",
        Category::NotFound => "repository-not-found",
        _ => "repository-unreachable",
    }
}

/// Remedy for code that is not found.
fn no_code(error: &GitError) -> &'static str {
    match error.category {
        Category::Auth | Category::Certificate | Category::Disk => error.remedy(),
        _ if error.is_transient() => "nothing, if the repository answers again: it is tried again",
        _ => "push the tag or commit of the code, or mend `code` in a new version of the card",
    }
}

/// Message and remedy for a moved tag. Quotes the whole former commit, so that the tag can be moved back.
fn moved(tag: &str, before: &Oid, now: &Oid, memory: &Path) -> (String, String) {
    let message = format!(
        "the tag {tag} was moved: it was at {before} when it was first accepted, and is at {} now",
        now.short()
    );
    let remedy = format!(
        "move it back, or release a new version: what is tagged never changes. Where the repository was made anew on \
         purpose, remove the tag from {} while no berth runs that uses it",
        memory.display()
    );
    (message, remedy)
}

/// The card is known, but whether its tag is still where it was could not be asked.
fn from_memory(placed: &Placed, found: &FetchedFile) -> Option<Problem> {
    let error = found.unasked.as_ref()?;
    let message = format!("the card is known from before, but its repository does not answer: {}", error.what());
    let problem = placed.2.problem(Step::Cards, "/model_card_ref/repository", "repository-unreachable", message);
    Some(problem.outcome(Outcome::ModelCardNotFound).remedy(error.remedy()).warning())
}
