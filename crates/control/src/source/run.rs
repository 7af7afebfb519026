//! Runs the sources of a term, each by itself: what fails begins again, and hinders no other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use berth_spec::{Epoch, Origin};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    Context, Source, SourceName, SourceState, SourceStatus,
    migrate::{forget, migrate},
    reconcile::Reconciler,
    requests::requests,
};
use crate::{
    Handle,
    handle::Error,
    store::{StoreError, layout},
};

/// Pause after a failure before a source restarts: long enough for a store that is away, short enough to go
/// unnoticed.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// The name in logs of the part of Berth itself that runs like a source.
const OWN: &str = "berth-functions";

/// The sources of a process, in the order of its configuration.
#[derive(Clone, Default)]
pub struct Setup {
    sources: Vec<(SourceName, Arc<dyn Source>)>,
    /// Part of Berth itself: it runs like a source, and is not listed.
    own: Option<Arc<dyn Source>>,
}

/// The reason why sources cannot run beside each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Two sources have this name.
    #[error("two sources are named {0}: give one of them another name, --source NAME=KIND+PLACE")]
    Name(SourceName),
    /// Two sources, by their names, follow one place: each would delete what the other declares.
    #[error("the sources {0} and {1} follow the same place, {2}: remove one of them")]
    Place(SourceName, SourceName, Origin),
}

impl Setup {
    /// Checks that names and places are unique.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(sources: Vec<(SourceName, Arc<dyn Source>)>) -> Result<Self, SetupError> {
        let (mut names, mut places) = (BTreeSet::new(), BTreeMap::new());
        for (name, source) in &sources {
            if !names.insert(name) {
                return Err(SetupError::Name(name.clone()));
            }
            if let Some(other) = places.insert(source.origin(), name) {
                return Err(SetupError::Place(other.clone(), name.clone(), source.origin()));
            }
        }
        Ok(Self { sources, own: None })
    }

    /// The same with a part of Berth itself, which runs like a source and is not listed.
    #[must_use]
    pub fn with_own(self, own: Arc<dyn Source>) -> Self {
        Self { own: Some(own), ..self }
    }

    /// The sources in the order of the configuration, without Berth's own.
    pub fn iter(&self) -> impl Iterator<Item = &(SourceName, Arc<dyn Source>)> {
        self.sources.iter()
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sources.iter().map(|(name, source)| (name, source.origin()))).finish()
    }
}

/// Runs the sources until `shutdown`, for the term `epoch` (0: this process is alone). What they declared stays when they
/// end. First what other configurations left behind is taken back.
///
/// # Errors
/// [`Error::Stopped`] when the control plane has stopped, or its term is over; [`Error::Store`] before anything ran. All
/// else is shown in the status of the source and tried again.
pub async fn run(setup: Setup, handle: Handle, epoch: Epoch, shutdown: CancellationToken) -> Result<(), Error> {
    migrate(&handle, &setup).await?;
    forget(&handle, &setup).await?;
    let mut running = JoinSet::new();
    if let (Some(own), Ok(name)) = (setup.own, OWN.parse()) {
        let reconciler = Arc::new(Reconciler::new(handle.clone(), own.origin()));
        let context = Context { name, handle: handle.clone(), epoch, shutdown: shutdown.clone(), reconciler };
        let (sender, asked) = requests(false);
        running.spawn(async move {
            let ended = own.run(context, asked).await;
            drop(sender);
            ended
        });
    }
    for (place, (name, source)) in setup.sources.into_iter().enumerate() {
        let reconciler = Arc::new(Reconciler::new(handle.clone(), source.origin()));
        let (handle, shutdown) = (handle.clone(), shutdown.clone());
        let context = Context { name, handle, epoch, shutdown, reconciler };
        running.spawn(keep_running(source, context, place));
    }
    let mut result = Ok(());
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => result = Err(error),
            Err(error) => {
                tracing::error!(event = "source_broke", %error, "a source broke, please report it");
                result = Err(Error::Stopped);
            }
        }
    }
    result
}

async fn keep_running(source: Arc<dyn Source>, context: Context, place: usize) -> Result<(), Error> {
    let origin = source.origin();
    let mut before: Option<SourceStatus> = None;
    loop {
        let error = match begin(&source, &context, place, &origin, before.take()).await {
            Ok(()) => return Ok(()),
            Err(_) if context.shutdown.is_cancelled() => return Ok(()),
            Err(error) => error,
        };
        if context.handle.is_stopped() || matches!(error, Error::Store(StoreError::Deposed)) {
            return Err(error);
        }
        tracing::error!(event = "source_failed", source = %context.name, %error, "source failed; restarting in 5 s");
        context.update_status(|status| {
            (status.state, status.problem) = (SourceState::Retrying, Some(error.to_string()));
        });
        before = context.status();
        if context.shutdown.run_until_cancelled(tokio::time::sleep(RESTART_PAUSE)).await.is_none() {
            return Ok(());
        }
    }
}

/// One attempt.
async fn begin(
    source: &Arc<dyn Source>,
    context: &Context,
    place: usize,
    origin: &Origin,
    before: Option<SourceStatus>,
) -> Result<(), Error> {
    let blank = || SourceStatus::new(context.name.clone(), source.kind(), origin.id().to_owned());
    let mut status = before.unwrap_or_else(blank);
    status.origin = Some(origin.clone());
    if context.status().is_none() {
        // People see it before the store has answered.
        drop(context.handle.sources.open(status.clone(), place));
    }
    let key = layout::source_key(&context.name, layout::PAUSED);
    status.paused = context.handle.store.get(&key).await?.is_some();
    let requests = context.handle.sources.open(status, place);
    Arc::clone(source).run(context.clone(), requests).await
}
