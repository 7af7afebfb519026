//! From a store to a file: one question that is also the first range, then the other ranges in parallel.
//!
//! ```text
//! GET range 0, if-none-match ──304──▶ Unchanged: the cache has it
//!        │ 206: size, etag                   │ 200: the server knows no ranges
//!        ▼                                   ▼
//! preallocate, GET the rest in parallel     GET it whole, in one stream
//!        │ each with if-match                │
//!        ▼                                   ▼
//!      Complete (to be checked)            Complete
//! ```
//! A partial file of an earlier attempt is gone on with, if the object is still the same.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use berth_spec::FailureCategory;
use futures::{StreamExt, stream};
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectStore, path::Path as Key};

use super::{
    PARALLEL_RANGES,
    cache::{Cache, Reservation},
    classify::classify,
    location::Location,
    partial::{self, Partial, RANGE},
    progress::Progress,
    web::UNKNOWN_SIZE,
};
use crate::fault::Fault;

/// The bytes that are gathered before they are written: few hand-overs to blocking threads, for a mebibyte per
/// connection.
const WRITE: usize = 1 << 20;

/// The outcome of a download.
pub(super) enum Outcome {
    /// The object is what it was when it was last looked at.
    Unchanged,
    /// All bytes are in the partial file.
    Complete { etag: Option<String>, room: Reservation },
}

/// The reason why a download stopped.
enum DownloadError {
    /// The object is another one than the partial file is of.
    Changed,
    Fault(Fault),
}

/// The bound of an answer's length.
enum Bound<'a> {
    /// To this byte of the object.
    End(u64),
    /// As far as there is room, which is made larger as it comes.
    Room(&'a mut Reservation),
}

impl From<Fault> for DownloadError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The download of one object into the cache, which goes on with what an earlier one left.
pub(super) struct Download<'a> {
    pub(super) location: &'a Location,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) key: Key,
    /// The location's name in the cache.
    pub(super) name: &'a str,
    pub(super) cache: &'a Cache,
    /// The etag of what the cache has.
    pub(super) cached: Option<String>,
    pub(super) progress: &'a Progress,
}

impl Download<'_> {
    pub(super) async fn run(&self) -> Result<Outcome, Fault> {
        let mut room = self.cache.claim(self.name);
        let path = self.path();
        if let Some(partial) = blocking(move || Ok(Partial::resume(&path))).await? {
            match self.complete(partial, room).await {
                Ok(outcome) => return Ok(outcome),
                Err(DownloadError::Fault(fault)) => return Err(fault),
                Err(DownloadError::Changed) => {
                    room = self.cache.claim(self.name);
                    let path = self.path();
                    blocking(move || partial::remove(&path)).await?;
                }
            }
        }
        match self.fresh(room).await {
            Ok(outcome) => Ok(outcome),
            Err(DownloadError::Fault(fault)) => Err(fault),
            Err(DownloadError::Changed) => {
                let message = format!("{} was changed while it was being fetched", self.location.shown());
                Err(Fault::new(FailureCategory::Network, message))
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.cache.partial(self.name)
    }

    async fn fresh(&self, room: Reservation) -> Result<Outcome, DownloadError> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(0..RANGE)),
            if_none_match: self.cached.clone(),
            ..GetOptions::default()
        };
        match self.store.get_opts(&self.key, options).await {
            Ok(first) => {
                let (path, etag, size) = (self.path(), first.meta.e_tag.clone(), first.meta.size);
                let mut room = room;
                // Before the file is made, which takes as much.
                room.extend(size)?;
                let partial = blocking(move || Partial::create(&path, etag, size)).await?;
                self.fill(partial, Some(first), room).await
            }
            Err(Error::NotModified { .. }) => Ok(Outcome::Unchanged),
            Err(Error::NotSupported { .. }) => Ok(self.whole(room).await?),
            Err(error) => Err(classify(&error, self.location).into()),
        }
    }

    /// Goes on with what an earlier attempt left.
    async fn complete(&self, partial: Partial, mut room: Reservation) -> Result<Outcome, DownloadError> {
        room.extend(partial.size())?;
        self.fill(partial, None, room).await
    }

    /// Fetches what is missing. `first` is the answer that carries range 0. After a failure no range is begun any
    /// more, but those under way are brought to their end: each that is complete need not be fetched again.
    async fn fill(
        &self,
        partial: Partial,
        first: Option<GetResult>,
        room: Reservation,
    ) -> Result<Outcome, DownloadError> {
        self.progress.begin(partial.done(), Some(partial.size()));
        let mut first = first;
        let missing: Vec<_> = partial.missing().iter().map(|&index| (index, first.take())).collect();
        let (partial, failed) = (&partial, &AtomicBool::new(false));
        let ranges = stream::iter(missing).map(|(index, answer)| async move {
            if failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let result = self.range(partial, index, answer).await;
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            result
        });
        let results: Vec<_> = ranges.buffer_unordered(PARALLEL_RANGES).collect().await;
        results.into_iter().collect::<Result<(), DownloadError>>()?;
        Ok(Outcome::Complete { etag: partial.etag().map(ToOwned::to_owned), room })
    }

    async fn range(&self, partial: &Partial, index: u64, answer: Option<GetResult>) -> Result<(), DownloadError> {
        let bounds = partial.bounds(index);
        let answer = match answer {
            Some(answer) => answer,
            None => self.ask(partial, bounds.clone()).await?,
        };
        let end = self.write(answer, partial, bounds.start, Bound::End(bounds.end)).await?;
        if end != bounds.end {
            let message = format!("{} ended {} bytes early", self.location.shown(), bounds.end - end);
            return Err(Fault::new(FailureCategory::Network, message).into());
        }
        let partial = partial.clone();
        Ok(blocking(move || partial.finished(index)).await?)
    }

    async fn ask(&self, partial: &Partial, bounds: std::ops::Range<u64>) -> Result<GetResult, DownloadError> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(bounds)),
            if_match: partial.etag().map(ToOwned::to_owned),
            ..GetOptions::default()
        };
        match self.store.get_opts(&self.key, options).await {
            // Some servers do not look at `if-match`.
            Ok(answer) if answer.meta.e_tag.as_deref() != partial.etag() || answer.meta.size != partial.size() => {
                Err(DownloadError::Changed)
            }
            Ok(answer) => Ok(answer),
            Err(Error::Precondition { .. } | Error::NotSupported { .. }) => Err(DownloadError::Changed),
            Err(error) => Err(classify(&error, self.location).into()),
        }
    }

    /// Fetches from a server that knows no ranges: from the beginning, each time.
    async fn whole(&self, mut room: Reservation) -> Result<Outcome, Fault> {
        let options = GetOptions { if_none_match: self.cached.clone(), ..GetOptions::default() };
        let answer = match self.store.get_opts(&self.key, options).await {
            Ok(answer) => answer,
            Err(Error::NotModified { .. }) => return Ok(Outcome::Unchanged),
            Err(error) => return Err(classify(&error, self.location)),
        };
        let etag = answer.meta.e_tag.clone();
        let size = Some(answer.meta.size).filter(|&size| size != UNKNOWN_SIZE);
        room.extend(size.unwrap_or(0))?;
        self.progress.begin(0, size);
        let path = self.path();
        let partial = blocking(move || Partial::create(&path, None, 0)).await?;
        let bound = size.map_or(Bound::Room(&mut room), Bound::End);
        let end = self.write(answer, &partial, 0, bound).await?;
        if size.is_some_and(|size| size != end) {
            let message = format!("{} ended after {end} bytes, too early", self.location.shown());
            return Err(Fault::new(FailureCategory::Network, message));
        }
        Ok(Outcome::Complete { etag, room })
    }

    /// Checks that `more` bytes from `at` on are within the bound.
    fn admit(&self, bound: &mut Bound<'_>, at: u64, more: u64) -> Result<(), Fault> {
        match bound {
            Bound::Room(room) => room.extend(more),
            Bound::End(end) if at + more <= *end => Ok(()),
            Bound::End(_) => {
                let message = format!("{} sent more than was asked for: check the server", self.location.shown());
                Err(Fault::new(FailureCategory::Network, message))
            }
        }
    }

    /// Writes an answer's body from `offset` on and not beyond its bound; returns where it ended.
    async fn write(
        &self,
        answer: GetResult,
        partial: &Partial,
        mut offset: u64,
        mut bound: Bound<'_>,
    ) -> Result<u64, Fault> {
        let mut body = answer.into_stream();
        let mut gathered = Vec::with_capacity(WRITE);
        loop {
            let next = body.next().await;
            let ended = next.is_none();
            if let Some(piece) = next {
                let piece = piece.map_err(|error| classify(&error, self.location))?;
                self.progress.add(piece.len() as u64);
                self.cache.metrics().fetched_bytes.inc_by(piece.len() as u64);
                self.admit(&mut bound, offset + gathered.len() as u64, piece.len() as u64)?;
                gathered.extend_from_slice(&piece);
            }
            if gathered.len() >= WRITE || (ended && !gathered.is_empty()) {
                let (partial, bytes) = (partial.clone(), gathered);
                gathered = blocking(move || {
                    partial.write(&bytes, offset)?;
                    Ok(bytes)
                })
                .await?;
                offset += gathered.len() as u64;
                gathered.clear();
            }
            if ended {
                return Ok(offset);
            }
        }
    }
}

/// Runs what may block on the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| Fault::disk(&error)),
        Err(error) => Err(Fault::internal(error)),
    }
}
