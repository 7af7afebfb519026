//! Artifacts: from a location to checked files on this machine.
//!
//! ```text
//! file:                       used in place, hashed once per (path, size, modification time)
//! http: https: s3: gs: az: ──▶ cache? ──▶ download ──▶ SHA-256 ──▶ cache ──▶ Artifact
//! storage: pvc:               one of these, as `storage-config` says (see `storage`)
//! ...MODEL/                   a folder: listed, each file as above, linked together (see `folder`)
//! ```
//! An ONNX graph in a folder of this machine is used in place, with its external data beside it; its data is not part of
//! the digest then. Runtimes that find artifacts by themselves get [`Source::Opaque`], and nothing is fetched.

mod cache;
pub(crate) mod checksum;
mod classify;
mod download;
mod fetch_request;
mod file;
mod folder;
mod key_lock;
mod location;
mod pace;
mod partial;
mod progress;
pub(crate) mod storage;
mod stores;
mod web;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use berth_spec::{ByteSize, CredentialSet, Digest, OpaqueModel, Revision};
pub use cache::Pin;
pub use fetch_request::FetchRequest;
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture, stream};
pub(crate) use key_lock::KeyLock;
pub use progress::Listener;
pub use storage::{StorageSettings, VOLUMES};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    cache::{Cache, ContentRecord},
    download::{Download, Outcome, blocking},
    location::Location,
    progress::Progress,
    stores::Stores,
};
use crate::{fault::Fault, metrics::CacheMetrics};

/// The connections per fetch: enough to fill a line to a far store, few enough to leave requests on a shared line their
/// part.
pub const PARALLEL_RANGES: usize = 6;

/// A checked artifact on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// The form in which a runtime gets it, with its path.
    pub source: Source,
    /// The digest of its bytes; of a folder, of its sorted lines `DIGEST  PATH`.
    pub digest: Digest,
    /// Bytes of the file, or of all files of the folder.
    pub size: ByteSize,
}

/// The form in which a runtime gets an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file on this machine.
    File(PathBuf),
    /// A folder on this machine.
    Folder(PathBuf),
    /// Something that the runtime finds by itself.
    Opaque {
        /// The model's type, or its format.
        kind: String,
        /// Its place, in the runtime's own terms.
        path: String,
        /// The key that the runtime needs for access; may be empty.
        key: String,
    },
}

impl Source {
    /// Its place on this machine.
    ///
    /// # Errors
    /// It is opaque: the text says so.
    pub fn path(&self) -> Result<&Path, String> {
        match self {
            Self::File(path) | Self::Folder(path) => Ok(path),
            Self::Opaque { path, .. } => Err(format!("{path} is not on this machine: its runtime finds it by itself")),
        }
    }
}

impl Artifact {
    /// An artifact that its runtime finds by itself: named by what it is told.
    #[must_use]
    pub fn opaque(revision: &Revision) -> Self {
        let OpaqueModel { kind, path, key } = revision.uri.parse().unwrap_or_else(|_| OpaqueModel {
            kind: revision.format.to_string(),
            path: revision.uri.clone(),
            key: revision.digest.map_or_else(String::new, |digest| digest.to_string()),
        });
        let digest = checksum::of(format!("{kind}\n{path}\n{key}").as_bytes());
        Self { source: Source::Opaque { kind, path, key }, digest, size: ByteSize::ZERO }
    }
}

/// The dependency behind a location, for circuit breakers: `s3://bucket`, `https://host:port`. `None` for files of
/// this machine and for what is no location.
#[must_use]
pub fn origin(uri: &str) -> Option<String> {
    Location::parse(uri).ok()?.origin()
}

/// Fetches artifacts and keeps them.
pub struct Artifacts {
    stores: Stores,
    cache: Cache,
    /// One download per location at a time: a cancelled one may still be on its way out.
    key_lock: KeyLock,
    /// Folders that were put together.
    folders: AtomicU64,
}

/// One fetched file of a folder: its path in the folder, where it lies, its digest, and what keeps it there.
type FolderPart = ((String, PathBuf), Digest, Pin);

impl Artifacts {
    /// With a cache below `root`, bounded to `bound` bytes. Blocks.
    pub fn open(
        root: PathBuf,
        bound: ByteSize,
        credentials: BTreeMap<String, String>,
        metrics: CacheMetrics,
    ) -> Result<Self, Fault> {
        let cache = Cache::open(root, bound, metrics).map_err(|error| Fault::disk(&error))?;
        Ok(Self { stores: Stores::new(credentials)?, cache, key_lock: KeyLock::default(), folders: AtomicU64::new(0) })
    }

    /// The same, with what the controller hands out before what is in `credentials`: the latest of it whenever a store is
    /// opened.
    #[must_use]
    pub fn with_keys(self, keys: watch::Receiver<Arc<CredentialSet>>) -> Self {
        Self { stores: self.stores.with_keys(keys), ..self }
    }

    /// The same, with storages by name.
    #[must_use]
    pub fn with_storages(self, storages: StorageSettings) -> Self {
        Self { stores: self.stores.with_storages(storages), ..self }
    }

    /// The artifact of a revision. It stays where it is while the pin lives. Dropping the future stops the fetch; the
    /// next one goes on where it was.
    pub async fn fetch(&self, revision: &Revision, listener: Listener) -> Result<(Artifact, Pin), Fault> {
        self.get(&FetchRequest::artifact_of(revision, None), listener).await
    }

    /// As [`fetch`](Self::fetch), of anything that is wanted.
    pub async fn get(&self, request: &FetchRequest, listener: Listener) -> Result<(Artifact, Pin), Fault> {
        let fetched = self.find(request, listener).await;
        fetched.map_err(|fault| Fault { message: request.in_its_words(fault.message), ..fault })
    }

    async fn find(&self, request: &FetchRequest, listener: Listener) -> Result<(Artifact, Pin), Fault> {
        let location = Location::parse(&request.uri)?;
        let location = Location { secret: self.stores.secret(&location), ..location };
        let location = match self.stores.storages() {
            storages if storage::reads(&storages, &location) => {
                let resolved = tokio::task::spawn_blocking(move || storage::resolve(&storages, location)).await;
                resolved.map_err(Fault::internal)??
            }
            _ => location,
        };
        let progress = Progress::new(listener);
        if let Some(path) = location.path() {
            let artifact = file::check(&self.cache, &location, path, request).await?;
            return Ok((artifact, Pin::NONE));
        }
        if location.is_folder() {
            return self.folder(&location, request, &progress).await;
        }
        let key = location.key();
        let _alone = self.key_lock.acquire(&key).await;
        if let Some(digest) = request.digest
            && let Some(hit) = self.cached(digest).await?
        {
            return Ok(hit);
        }
        let known = self.known(&key).await?;
        let cached = match &known {
            Some(known) if request.digest.is_none() => self.cached(known.digest).await?,
            _ => None,
        };
        let etag = known.and_then(|known| known.etag).filter(|_| cached.is_some());
        match (self.download(&location, &key, etag, &progress).await, cached) {
            (Ok(Outcome::Unchanged), Some(hit)) => Ok(hit),
            (Ok(Outcome::Unchanged), None) => Err(Fault::internal("a store says unchanged of what was never fetched")),
            (Ok(Outcome::Complete { etag, room }), _) => self.check(&location, &key, request, etag, room).await,
            // The bytes that were good before the restart are better than none while the store is away.
            (Err(fault), Some(hit)) if fault.category.transient() => {
                tracing::warn!(event = "artifact_not_revalidated", artifact_path = location.shown(), error = %fault);
                Ok(hit)
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// A folder of a store. Each file is fetched, checked and resumed by itself.
    async fn folder(
        &self,
        location: &Location,
        request: &FetchRequest,
        progress: &Progress,
    ) -> Result<(Artifact, Pin), Fault> {
        let (store, prefix) = self.stores.open_folder(location)?;
        let parts = folder::list(&*store, &prefix, location).await?;
        let size: u64 = parts.iter().map(|part| part.size).sum();
        self.cache.check_bound(size)?;
        progress.begin(0, Some(size));
        let fetches: Vec<_> = parts.into_iter().map(|part| self.part(location, request, progress, part)).collect();
        let fetched: Vec<_> = stream::iter(fetches).buffered(folder::PARALLEL_FILES).try_collect().await?;
        let digest = folder::digest_of(fetched.iter().map(|((path, _), digest, _)| (path.as_str(), *digest)));
        request.check(digest, location)?;
        let root = self.cache.folder(self.folders.fetch_add(1, Ordering::Relaxed));
        let (files, pins): (Vec<_>, Vec<_>) = fetched.into_iter().map(|(file, _, pin)| (file, pin)).unzip();
        let made = blocking(move || folder::Assembled::make(root.clone(), &files).map(|made| (made, root))).await?;
        let (made, root) = made;
        Ok((Artifact { source: Source::Folder(root), digest, size: ByteSize(size) }, Pin::of(Arc::new((made, pins)))))
    }

    /// Fetches one file of a folder.
    fn part<'a>(
        &'a self,
        location: &'a Location,
        request: &'a FetchRequest,
        progress: &'a Progress,
        part: folder::FolderFile,
    ) -> BoxFuture<'a, Result<FolderPart, Fault>> {
        async move {
            let one = request.part(folder::uri_of(location, &part.path));
            let (artifact, pin) = self.find(&one, Arc::new(|_, _| ())).await?;
            progress.add(artifact.size.0);
            let file = artifact.source.path().map_err(Fault::internal)?.to_owned();
            Ok(((part.path, file), artifact.digest, pin))
        }
        .boxed()
    }

    async fn cached(&self, digest: Digest) -> Result<Option<(Artifact, Pin)>, Fault> {
        let cache = self.cache.clone();
        let hit = blocking(move || Ok(cache.get(&digest))).await?;
        match hit.is_some() {
            true => self.cache.metrics().hits.inc(),
            false => self.cache.metrics().misses.inc(),
        };
        Ok(hit)
    }

    async fn known(&self, key: &str) -> Result<Option<ContentRecord>, Fault> {
        let (cache, key) = (self.cache.clone(), key.to_owned());
        blocking(move || Ok(cache.known(&key))).await
    }

    async fn download(
        &self,
        location: &Location,
        key: &str,
        cached: Option<String>,
        progress: &Progress,
    ) -> Result<Outcome, Fault> {
        let (store, object) = self.stores.open(location)?;
        let download = Download { location, store, key: object, name: key, cache: &self.cache, cached, progress };
        pace::keep(download.run(), progress, location).await
    }

    /// Compares what was downloaded with what it must be, and takes it in.
    async fn check(
        &self,
        location: &Location,
        key: &str,
        request: &FetchRequest,
        etag: Option<String>,
        room: cache::Reservation,
    ) -> Result<(Artifact, Pin), Fault> {
        let path = self.cache.partial(key);
        let started = tokio::time::Instant::now();
        let (hashed, cancel) = (path.clone(), CancellationToken::new());
        let _cancels_when_dropped = cancel.clone().drop_guard();
        let digest = blocking(move || checksum::of_file(&hashed, &cancel)).await?;
        if let Err(fault) = request.check(digest, location) {
            blocking(move || partial::remove(&path)).await?;
            return Err(fault);
        }
        request.told_validated(digest, started.elapsed());
        let (cache, key) = (self.cache.clone(), key.to_owned());
        blocking(move || {
            let (artifact, pin) = cache.admit(&path, digest, room)?;
            cache.remember(&key, &ContentRecord { etag, digest, size: artifact.size.0 })?;
            Ok((artifact, pin))
        })
        .await
    }
}
