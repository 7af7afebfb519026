//! The code of a commit.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use berth_git::{Category, CheckoutLimits, Credentials, Git, History, Mirror, Oid, Protocols, Remote, Rev, Stop};

use super::{BuildError, BuildLog, blocking};

/// The longest fetch: a large repository over a slow line takes minutes, and a host that hangs keeps no build for ever.
const FETCH_TIMEOUT: Duration = Duration::from_secs(600);

/// A commit, and where to put it.
pub(super) struct Job {
    pub(super) url: String,
    pub(super) commit: String,
    /// Folder for a copy of the repository, for a while.
    pub(super) copy: PathBuf,
    /// Folder for the files.
    pub(super) code: PathBuf,
}

/// Raises a flag when nobody waits any more.
struct Cancels(Arc<AtomicBool>);

impl Drop for Cancels {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Checks a commit out.
pub(super) async fn checkout(job: Job, log: &BuildLog) -> Result<(), BuildError> {
    log.line(&format!("git: fetching {} of {}", job.commit, job.url));
    let cancelled = Cancels(Arc::default());
    let stop = Stop::within(FETCH_TIMEOUT).with_flag(Arc::clone(&cancelled.0));
    blocking(move || job.run(&stop)).await
}

impl Job {
    fn run(self, stop: &Stop) -> Result<(), BuildError> {
        let failed = |error: berth_git::GitError| match error.category {
            Category::Invalid | Category::TooLarge => BuildError::lasting("InvalidSource", error.to_string()),
            Category::RefNotFound | Category::NotFound => BuildError::passing("SourceNotFound", error.to_string()),
            Category::Network | Category::TimedOut => BuildError::away("FetchFailed", error.to_string()),
            _ => BuildError::passing("FetchFailed", error.to_string()),
        };
        let remote = Remote::parse(&self.url, Protocols::default().with_local()).map_err(failed)?;
        let commit =
            Oid::parse(&self.commit).ok_or_else(|| BuildError::lasting("InvalidSource", "the commit is none"))?;
        let mirror = Mirror::open(Arc::new(Git::new(std::env::vars_os())), &self.copy, remote, stop).map_err(failed)?;
        let wanted = [Rev::Commit(self.commit.clone())];
        mirror.fetch(&wanted, History::Tip, &Credentials::None, stop).map_err(failed)?;
        mirror.repository().checkout(&commit, &self.code, CheckoutLimits::default(), stop).map_err(failed)?;
        Ok(())
    }
}
