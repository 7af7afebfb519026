//! The code of a function, from where its spec says.

use std::{path::Path, time::Duration};

use futures::StreamExt as _;
use object_store::{
    ObjectStore, ObjectStoreExt as _,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    path::Path as Key,
};
use tokio::{io::AsyncWriteExt as _, time::Instant};
use url::Url;

use super::{
    BuildError, Builder, Workplace, blocking, git,
    tree::{Tree, digest_of},
    unpack,
};
use crate::deployment::{CodeUri, FunctionSpec, Language};

/// The most bytes of an archive of code: libraries are installed and not sent, so that code has megabytes; a model
/// beside it fits.
const MAX_ARCHIVE_BYTES: u64 = 512 << 20;

/// The longest fetch: the largest archive at somewhat less than one megabyte per second.
const FETCH_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection on which nothing comes for this long is broken: stores that are busy think for seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// Bytes that have to come in [`SILENCE`] at least: a server that drips would hold up the builds of others for [`FETCH_TIMEOUT`].
const MIN_WINDOW_BYTES: u64 = 64 << 10;

/// Folders that are no code: they are made anew, or belong to tools.
const LEFT_OUT: [&str; 4] = [".git", "node_modules", "__pycache__", ".venv"];

/// Variables of the environment with an account of S3.
const S3_VARIABLES: &str = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION";

/// Variables of the environment with an account of Azure Blob Storage.
const AZURE_VARIABLES: &str = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY";

type Chunks = futures::stream::BoxStream<'static, Result<bytes::Bytes, BuildError>>;

impl Builder {
    /// Puts the code into the folder `code` of the workplace.
    pub(super) async fn fetch(&self, place: &Workplace<'_>) -> Result<(), BuildError> {
        let spec = place.spec;
        let named = first_part(spec);
        let (code, archive) = (place.code(), place.folder.join("archive"));
        let chunks = match &spec.source {
            CodeUri::File(path) if path.is_dir() => {
                if spec.sha256.is_some() {
                    return Err(BuildError::lasting(
                        "InvalidSource",
                        "spec.sourceSha256 is for archives, and the code is a folder",
                    ));
                }
                let path = path.clone();
                return blocking(move || copy(&path, &code)).await;
            }
            CodeUri::File(path) => {
                let (from, to) = (path.clone(), archive.clone());
                blocking(move || copy_file(&from, &to)).await?;
                None
            }
            CodeUri::Git { url, commit } => {
                let job = git::Job { url: url.clone(), commit: commit.clone(), copy: place.folder.join("git"), code };
                return git::checkout(job, place.log).await;
            }
            CodeUri::Http(url) => Some(from_web(url).await?),
            CodeUri::S3 { bucket, key } => Some(from_store(&*self.s3(bucket)?, key, spec).await?),
            CodeUri::AzureBlob { container, blob } => {
                Some(from_store(&*self.azure_blob(container)?, blob, spec).await?)
            }
        };
        if let Some(chunks) = chunks {
            let saved = tokio::time::timeout(FETCH_TIMEOUT, save(chunks, &spec.source, &archive)).await;
            let late = || {
                BuildError::away(
                    "FetchFailed",
                    format!("{} did not come within {} s", spec.source, FETCH_TIMEOUT.as_secs()),
                )
            };
            saved.map_err(|_| late())??;
        }
        let wanted = spec.sha256.clone();
        unpack::stoppable(move |stop| {
            if let Some(wanted) = wanted {
                check(&archive, &wanted)?;
            }
            unpack::unpack(&archive, &code, &named, stop)
        })
        .await
    }

    fn s3(&self, bucket: &str) -> Result<Box<dyn ObjectStore>, BuildError> {
        let builder = AmazonS3Builder::new().with_bucket_name(bucket);
        let builder =
            self.known::<AmazonS3ConfigKey>().fold(builder, |builder, (key, value)| builder.with_config(key, value));
        Ok(Box::new(builder.build().map_err(|error| unusable("S3", S3_VARIABLES, &error))?))
    }

    fn azure_blob(&self, container: &str) -> Result<Box<dyn ObjectStore>, BuildError> {
        let builder = MicrosoftAzureBuilder::new().with_container_name(container);
        let builder =
            self.known::<AzureConfigKey>().fold(builder, |builder, (key, value)| builder.with_config(key, value));
        Ok(Box::new(builder.build().map_err(|error| unusable("Azure Blob Storage", AZURE_VARIABLES, &error))?))
    }

    /// Settings of the environment that a kind of store understands; it ignores the others.
    fn known<K: std::str::FromStr>(&self) -> impl Iterator<Item = (K, &String)> {
        self.config
            .credentials
            .iter()
            .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
    }
}

/// First part of the path that the entrypoint names.
fn first_part(spec: &FunctionSpec) -> String {
    let separator = if spec.language == Language::Python { '.' } else { '/' };
    spec.entrypoint.module.split(separator).next().unwrap_or_default().to_owned()
}

fn unusable(what: &str, variables: &str, error: &object_store::Error) -> BuildError {
    let message =
        format!("cannot use {what}: {error}; give the controller the account in its environment ({variables})");
    BuildError::lasting("FetchFailed", message)
}

async fn from_store(store: &dyn ObjectStore, key: &str, spec: &FunctionSpec) -> Result<Chunks, BuildError> {
    let wrong = |error: object_store::Error| match error {
        object_store::Error::NotFound { .. } => BuildError::passing(
            "SourceNotFound",
            format!("there is no {}: upload it, or change spec.sourceUri", spec.source),
        ),
        error @ (object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. }) => {
            BuildError::passing("FetchFailed", format!("cannot fetch {}: {error}", spec.source))
        }
        error => BuildError::away("FetchFailed", format!("cannot fetch {}: {error}", spec.source)),
    };
    let key =
        Key::parse(key).map_err(|error| BuildError::lasting("FetchFailed", format!("spec.sourceUri: {error}")))?;
    let found = tokio::time::timeout(FETCH_TIMEOUT, store.get(&key)).await;
    let late = || BuildError::away("FetchFailed", format!("{} did not answer", spec.source));
    let found = found.map_err(|_| late())?.map_err(wrong)?;
    let shown = spec.source.to_string();
    let broken = move |error| BuildError::away("FetchFailed", format!("{shown} broke off: {error}"));
    Ok(found.into_stream().map(move |chunk| chunk.map_err(&broken)).boxed())
}

async fn from_web(url: &Url) -> Result<Chunks, BuildError> {
    let shown = CodeUri::Http(url.clone()).to_string();
    let failed = |error: reqwest::Error| {
        BuildError::away("FetchFailed", format!("cannot fetch {shown}: {}", causes(&error.without_url())))
    };
    let client = reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).read_timeout(SILENCE).build();
    let answer = client.map_err(failed)?.get(url.clone()).send().await.map_err(failed)?;
    let status = answer.status();
    if !status.is_success() {
        let message = format!("{shown} answered {status}: upload the archive, or change spec.sourceUri");
        return Err(match status.as_u16() {
            404 => BuildError::passing("SourceNotFound", message),
            429 | 500.. => BuildError::away("FetchFailed", message),
            _ => BuildError::passing("FetchFailed", message),
        });
    }
    let broken = move |error: reqwest::Error| {
        BuildError::away("FetchFailed", format!("{shown} broke off: {}", causes(&error.without_url())))
    };
    Ok(answer.bytes_stream().map(move |chunk| chunk.map_err(&broken)).boxed())
}

/// An error with all that caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

async fn save(mut chunks: Chunks, source: &CodeUri, to: &Path) -> Result<(), BuildError> {
    let mut file = tokio::fs::File::create(to).await?;
    let (mut size, mut rate) = (0, FetchRate::default());
    loop {
        let asked = Instant::now();
        let next = tokio::time::timeout(SILENCE, chunks.next()).await;
        let silent = || {
            let message = format!("nothing of {source} came for {} s: {FASTER}", SILENCE.as_secs());
            BuildError::away("FetchFailed", message)
        };
        let Some(chunk) = next.map_err(|_| silent())? else { break };
        let chunk = chunk?;
        // The end of a small archive may come late; there is more to come of this one.
        rate.check(source)?;
        rate.came(chunk.len() as u64, asked.elapsed());
        size += chunk.len() as u64;
        too_large(size)?;
        file.write_all(&chunk).await?;
    }
    file.flush().await?;
    Ok(())
}

/// Remedy where a server is slow.
const FASTER: &str = "upload the archive to a faster place, or change spec.sourceUri";

/// Pace of the code: bytes that came, and the time that they were waited for.
#[derive(Default)]
struct FetchRate {
    bytes: u64,
    waited: Duration,
}

impl FetchRate {
    fn came(&mut self, bytes: u64, after: Duration) {
        self.bytes += bytes;
        self.waited += after;
    }

    /// Refuses one that is too slow, and measures anew where it is not.
    fn check(&mut self, source: &CodeUri) -> Result<(), BuildError> {
        let Self { bytes, waited } = *self;
        if waited < SILENCE {
            return Ok(());
        }
        if bytes < MIN_WINDOW_BYTES {
            let message = format!("{source} comes too slowly, {bytes} bytes in {} s: {FASTER}", waited.as_secs());
            return Err(BuildError::away("FetchFailed", message));
        }
        *self = Self::default();
        Ok(())
    }
}

fn too_large(size: u64) -> Result<(), BuildError> {
    let message = format!("the archive of the code has more than {MAX_ARCHIVE_BYTES} bytes");
    if size > MAX_ARCHIVE_BYTES { Err(BuildError::lasting("TooLarge", message)) } else { Ok(()) }
}

fn copy_file(from: &Path, to: &Path) -> Result<(), BuildError> {
    let found = fs_err::metadata(from).map_err(|error| {
        let what = match error.kind() {
            std::io::ErrorKind::NotFound => format!("there is no {}", from.display()),
            _ => error.to_string(),
        };
        BuildError::passing("SourceNotFound", format!("{what}: put the code there, or change spec.sourceUri"))
    })?;
    if !found.is_file() {
        return Err(BuildError::lasting("InvalidSource", format!("{} is neither a file nor a folder", from.display())));
    }
    if found.len() == 0 {
        let message = format!("{} is empty: put the archive there, or change spec.sourceUri", from.display());
        return Err(BuildError::passing("InvalidSource", message));
    }
    too_large(found.len())?;
    fs_err::copy(from, to)?;
    Ok(())
}

/// Copies a folder without what is no code.
fn copy(from: &Path, to: &Path) -> Result<(), BuildError> {
    fs_err::create_dir_all(to)?;
    let mut size = 0;
    for file in Tree::list_but(from, &LEFT_OUT)? {
        let (source, place) = (from.join(&file.path), to.join(&file.path));
        let found = fs_err::metadata(&source)?;
        size += found.len();
        too_large(size)?;
        if let Some(parent) = place.parent() {
            fs_err::create_dir_all(parent)?;
        }
        if found.len() == 0 {
            // It is not read: some files of the kernel have no length and no end.
            fs_err::File::create(&place)?;
            fs_err::set_permissions(&place, found.permissions())?;
            continue;
        }
        fs_err::copy(source, place)?;
    }
    Ok(())
}

fn check(archive: &Path, wanted: &str) -> Result<(), BuildError> {
    let (found, _) = digest_of(archive)?;
    if found == wanted {
        return Ok(());
    }
    let message =
        format!("the archive has the SHA-256 {found}, not {wanted}: change spec.sourceSha256 or upload the right one");
    Err(BuildError::passing("ChecksumMismatch", message))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::stream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn code_that_comes_drop_by_drop_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("archive");
        let drops = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(Bytes::from_static(b"x"))
        });
        let source = CodeUri::parse("https://code.example.org/words.zip").expect("a source");
        let error = save(drops.boxed(), &source, &place).await.expect_err("it would take for ever");
        let text = "https://code.example.org/words.zip comes too slowly, 6 bytes in 30 s: upload the archive to a faster place, or change \
                    spec.sourceUri";
        assert_eq!(error.text(), text);
        // Small and slow, but there is no more of it.
        let late = stream::iter([b"abc", b"def"]).then(|bytes| async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok(Bytes::from_static(bytes))
        });
        save(late.boxed(), &source, &place).await.expect("a small archive");
        assert_eq!(fs_err::read(&place).expect("saved"), b"abcdef");
        let whole = stream::iter([Ok(Bytes::from_static(b"abc"))]);
        save(whole.boxed(), &source, &place).await.expect("a small archive");
        assert_eq!(fs_err::read(&place).expect("saved"), b"abc");
    }

    #[test]
    fn files_without_a_length_are_not_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("archive");
        let empty = folder.path().join("empty.zip");
        fs_err::write(&empty, "").expect("written");
        let error = copy_file(&empty, &to).expect_err("as /proc/kmsg");
        assert!(error.text().contains("empty.zip is empty: put the archive there"));
        let error = copy_file(Path::new("/dev/zero"), &to).expect_err("not read");
        assert!(error.text().starts_with("/dev/zero is neither a file nor a folder"));
        let (code, copied) = (folder.path().join("code"), folder.path().join("copied"));
        fs_err::create_dir(&code).expect("made");
        fs_err::write(code.join("__init__.py"), "").expect("written");
        fs_err::write(code.join("handler.py"), "x = 1").expect("written");
        copy(&code, &copied).expect("a folder");
        assert_eq!(fs_err::read_to_string(copied.join("handler.py")).expect("copied"), "x = 1");
        assert_eq!(fs_err::read(copied.join("__init__.py")).expect("copied"), b"");
    }
}
