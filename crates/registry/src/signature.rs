//! Checks commit signatures against the keys that the registry trusts.
//!
//! The keys are those of the commit that was accepted before: whoever adds a key to the registry, or turns signatures
//! off, must have been trusted already. Only the first commit ever vouches for itself.

use berth_git::{Category, GitError, Oid, Repository, Signer, Stop, TrustedKeys};

use crate::{
    problem::{Problem, Step},
    settings::{SETTINGS_FILE, Settings, Signatures},
    tree::Tree,
};

/// Commits checked in one push or validation. Covers large merges and bounds the time.
const MAX_COMMITS: usize = 2_000;

/// The signer, and the problems of commits whose signatures do not count.
#[derive(Debug, Default)]
pub(crate) struct SignatureCheck {
    pub(crate) problems: Vec<Problem>,
    /// Signer of the commit, by a trusted key.
    pub(crate) signer: Option<Signer>,
}

impl From<Problem> for SignatureCheck {
    fn from(problem: Problem) -> Self {
        Self { problems: vec![problem], signer: None }
    }
}

/// Checks the signatures of the commits after `before` up to `commit`.
pub(crate) fn check(
    repository: &Repository,
    commit: &Oid,
    before: Option<&Oid>,
    settings: &Settings,
    stop: &Stop,
) -> Result<SignatureCheck, GitError> {
    let (vouching, rules) = match before {
        Some(before) => {
            let tree = Tree::Commit { repository: repository.clone(), commit: before.clone() };
            let files = tree.files(stop)?;
            let text = tree.read_one(&files, SETTINGS_FILE, stop)?;
            // What was accepted was right.
            let old = text.ok().flatten().and_then(|text| Settings::read(&text).ok()).unwrap_or_default();
            if old.signatures.required { (before, old.signatures) } else { (commit, settings.signatures.clone()) }
        }
        None => (commit, settings.signatures.clone()),
    };
    if !rules.required {
        return Ok(SignatureCheck::default());
    }
    let keys = match trusted(repository, vouching, &rules, stop) {
        Ok(keys) => keys,
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => {
            let problem = Problem::new(Step::Structure, "signature-keys", SETTINGS_FILE, error.to_string());
            return Ok(problem.remedy("name files of the registry that hold the keys of those who may sign").into());
        }
    };
    let commits = match before {
        Some(before) if vouching == before => repository.log(Some(before), commit, MAX_COMMITS + 1, stop)?,
        _ => vec![repository.commit(commit, stop)?],
    };
    if commits.len() > MAX_COMMITS {
        let message = format!("more than {MAX_COMMITS} commits at once");
        return Ok(Problem::new(Step::Structure, "signature", "", message).remedy("push fewer at a time").into());
    }
    let mut checked = SignatureCheck::default();
    for info in commits {
        match repository.verify_commit(&info.oid, &keys, stop) {
            Ok(signer) if info.oid == *commit => checked.signer = Some(signer),
            Ok(_) => {}
            Err(error) if error.category == Category::Signature => {
                let mut problem = Problem::new(Step::Structure, "signature", SETTINGS_FILE, error.detail);
                problem = problem.remedy("sign it (`git commit --amend -S`) with a key that the registry trusts");
                problem.commit = Some(info);
                checked.problems.push(problem);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(checked)
}

/// Signer of an accepted commit, by the keys of the commit before it; `None` where no signatures are required.
///
/// # Errors
/// If git cannot be asked.
pub fn signer(repository: &Repository, commit: &Oid, stop: &Stop) -> Result<Option<Signer>, GitError> {
    let tree = Tree::Commit { repository: repository.clone(), commit: commit.clone() };
    let text = tree.read_one(&tree.files(stop)?, SETTINGS_FILE, stop)?.ok().flatten();
    let settings = text.and_then(|text| Settings::read(&text).ok()).unwrap_or_default();
    let before = repository.commit(commit, stop)?.parents.into_iter().next();
    Ok(check(repository, commit, before.as_ref(), &settings, stop)?.signer)
}

fn trusted(repository: &Repository, commit: &Oid, rules: &Signatures, stop: &Stop) -> Result<TrustedKeys, GitError> {
    let tree = Tree::Commit { repository: repository.clone(), commit: commit.clone() };
    let files = tree.files(stop)?;
    let absent = |what: &str| GitError {
        category: Category::PathNotFound,
        doing: "read the trusted keys".to_owned(),
        remote: String::new(),
        detail: format!("commit {} has no {what}", commit.short()),
    };
    let signers = match &rules.allowed_signers {
        Some(path) => match tree.read_one(&files, path, stop)? {
            Ok(text) => text.ok_or_else(|| absent(path))?,
            Err(problem) => return Err(absent(&format!("readable {path}: {}", problem.message))),
        },
        None => String::new(),
    };
    let mut keys = Vec::new();
    if let Some(folder) = &rules.gpg_keys {
        let inside = format!("{}/", folder.trim_end_matches('/'));
        let found: Vec<_> =
            files.all.iter().filter(|f| f.path.starts_with(&inside) && f.path.ends_with(".asc")).collect();
        if found.is_empty() {
            return Err(absent(&format!("*.asc in {folder}")));
        }
        keys.extend(
            tree.read(&files, &found, stop)?.into_values().map(|key| String::from_utf8_lossy(&key).into_owned()),
        );
    }
    TrustedKeys::new(&keys, &signers, stop)
}
