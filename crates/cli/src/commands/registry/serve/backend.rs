//! One request handed to `git http-backend` (git-http-backend(1)), which speaks CGI (RFC 3875).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use berth_peer::port::{AddressLimit, AddressPlace, Bounds};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::{Frame, Incoming},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::Instant,
};
use tokio_util::io::ReaderStream;

use super::{Body, plain};

/// Limit for one request. Allows for cloning large repositories over slow links.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(900);

/// Longest wait for the end of another process, where as many run as may.
const PLACE_WITHIN: Duration = Duration::from_secs(10);

/// Largest push in bytes (512 MiB). Keeps one push from filling the disk.
const LARGEST_PUSH: &str = "536870912";

/// Bytes of what the backend says before its body.
const LARGEST_HEAD: u64 = 64 << 10;

/// Environment variables for the hook, which reads model repositories: network settings and trusted certificates,
/// besides `PATH`.
const PASSED_ON: [&str; 10] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];

/// Git service that is requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    UploadPack,
    ReceivePack,
}

/// Runner of git processes.
pub(super) struct Backend {
    root: PathBuf,
    processes: Arc<Semaphore>,
    of_address: Arc<AddressLimit>,
}

/// The place of one process. Counts until it is dropped.
struct ProcessPlace {
    _process: OwnedSemaphorePermit,
    _of_address: AddressPlace,
}

/// The repository and the service of a request; `None` for all that is not smart HTTP.
pub(super) fn target(uri: &Uri, method: &Method) -> Option<(String, Service)> {
    let (name, rest) = uri.path().strip_prefix('/')?.split_once(".git/")?;
    let service = match (method, rest, uri.query()) {
        (&Method::GET, "info/refs", Some("service=git-upload-pack")) => Service::UploadPack,
        (&Method::GET, "info/refs", Some("service=git-receive-pack")) => Service::ReceivePack,
        (&Method::POST, "git-upload-pack", None) => Service::UploadPack,
        (&Method::POST, "git-receive-pack", None) => Service::ReceivePack,
        _ => return None,
    };
    is_name(name).then(|| (name.to_owned(), service))
}

/// True if the name is valid for a repository: one path segment, not hidden, not an option.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 100
        && !name.starts_with(['.', '-'])
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl Backend {
    /// Runs as many processes as there may be connections: one of HTTP/2 has several requests.
    pub(super) fn new(root: PathBuf, bounds: Bounds) -> Self {
        let processes = Arc::new(Semaphore::new(bounds.connections));
        Self { root, processes, of_address: AddressLimit::new(bounds.per_address) }
    }

    /// A place for one more process; `None`: there is none in time, or the address has its share.
    async fn place(&self, address: IpAddr) -> Option<ProcessPlace> {
        let of_address = self.of_address.place(address)?;
        let process = tokio::time::timeout(PLACE_WITHIN, Arc::clone(&self.processes).acquire_owned()).await;
        Some(ProcessPlace { _process: process.ok()?.ok()?, _of_address: of_address })
    }

    pub(super) async fn run(
        &self,
        name: &str,
        service: Service,
        user: &str,
        request: Request<Incoming>,
        peer: SocketAddr,
    ) -> Response<Body> {
        if !self.root.join(format!("{name}.git")).is_dir() {
            return plain(StatusCode::NOT_FOUND, &format!("there is no repository {name}.git"));
        }
        let Some(place) = self.place(peer.ip()).await else {
            let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests run at once: try again later");
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
            return response;
        };
        let command = self.command(service, user, &request, peer);
        match tokio::time::timeout(REQUEST_TIMEOUT, exchange(command, request.into_body(), place)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("git failed: {error}")),
            Err(_) => plain(StatusCode::GATEWAY_TIMEOUT, "git took too long"),
        }
    }

    fn command(&self, service: Service, user: &str, request: &Request<Incoming>, peer: SocketAddr) -> Command {
        let mut command = Command::new("git");
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let configuration = [
            ("safe.directory", "*"),
            ("http.receivepack", if service == Service::ReceivePack { "true" } else { "false" }),
            ("http.getanyfile", "false"),
            ("receive.maxInputSize", LARGEST_PUSH),
            ("receive.autogc", "true"),
            ("gc.autoDetach", "false"),
        ];
        command.arg("http-backend").env_clear().env("PATH", path).env("HOME", "/nonexistent").env("LC_ALL", "C");
        command.envs(PASSED_ON.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_CONFIG_COUNT", configuration.len().to_string());
        for (n, (name, value)) in configuration.into_iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{n}"), name).env(format!("GIT_CONFIG_VALUE_{n}"), value);
        }
        command.env("GIT_PROJECT_ROOT", &self.root).env("GIT_HTTP_EXPORT_ALL", "1");
        command.env("GATEWAY_INTERFACE", "CGI/1.1").env("SERVER_PROTOCOL", "HTTP/1.1");
        command.env("REQUEST_METHOD", request.method().as_str()).env("PATH_INFO", request.uri().path());
        command.env("QUERY_STRING", request.uri().query().unwrap_or_default());
        command.env("REMOTE_USER", user).env("REMOTE_ADDR", peer.ip().to_string());
        for (header, name) in [
            ("content-type", "CONTENT_TYPE"),
            ("content-encoding", "HTTP_CONTENT_ENCODING"),
            ("content-length", "CONTENT_LENGTH"),
            ("git-protocol", "GIT_PROTOCOL"),
        ] {
            if let Some(value) = request.headers().get(header).and_then(|value| value.to_str().ok()) {
                command.env(name, value);
            }
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// Feeds the request in while the answer comes out.
async fn exchange(mut command: Command, body: Incoming, place: ProcessPlace) -> io::Result<Response<Body>> {
    let mut child = command.spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("git has no pipes"));
    };
    // Beside the answer, not before it: git may write much before it has read all.
    let mut feeding = JoinSet::new();
    feeding.spawn(feed(input, body));
    let mut output = BufReader::new(output);
    let head = head(&mut output).await?;
    // Process and feeding live as long as the answer: dropped early, they end.
    let held = ResponseStream {
        output: ReaderStream::new(output),
        _child: child,
        _feeding: feeding,
        _place: place,
        until: Instant::now() + REQUEST_TIMEOUT,
    };
    let body = futures::stream::try_unfold(held, |mut held| async move {
        match tokio::time::timeout_at(held.until, held.output.next()).await {
            Ok(part) => Ok(part.transpose()?.map(|part| (Frame::data(part), held))),
            Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        }
    });
    let mut response = Response::new(StreamBody::new(body).boxed_unsync());
    (*response.status_mut(), *response.headers_mut()) = head;
    Ok(response)
}

/// An answer on its way.
struct ResponseStream {
    output: ReaderStream<BufReader<ChildStdout>>,
    _child: Child,
    _feeding: JoinSet<()>,
    _place: ProcessPlace,
    until: Instant,
}

async fn feed(mut input: ChildStdin, body: Incoming) {
    let mut body = body.into_data_stream();
    while let Some(Ok(part)) = body.next().await {
        // Git may have its answer before it has read everything: a push that is refused.
        if input.write_all(&part).await.is_err() {
            return;
        }
    }
    let _ = input.shutdown().await;
}

/// The lines before the body: headers, and `Status:` where it is not 200.
async fn head(output: &mut BufReader<ChildStdout>) -> io::Result<(StatusCode, HeaderMap)> {
    let (mut status, mut headers) = (StatusCode::OK, HeaderMap::new());
    let mut limited = output.take(LARGEST_HEAD);
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line).await? == 0 {
            return Err(io::Error::other("it said nothing"));
        }
        let line = line.trim_end();
        if line.is_empty() {
            return Ok((status, headers));
        }
        let odd = || io::Error::other(format!("it wrote the header {line:?}"));
        let (name, value) = line.split_once(':').ok_or_else(odd)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("status") {
            status = value.get(..3).and_then(|code| code.parse().ok()).ok_or_else(odd)?;
        } else {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| odd())?;
            headers.insert(name, HeaderValue::from_str(value).map_err(|_| odd())?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn processes_have_a_bound_and_each_address_its_share() {
        let backend = Backend::new(PathBuf::new(), Bounds { connections: 2, per_address: 1 });
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let first = backend.place(address(1)).await.expect("a place");
        assert!(backend.place(address(1)).await.is_none(), "it has its share");
        let _second = backend.place(address(2)).await.expect("a place");
        assert!(backend.place(address(3)).await.is_none(), "as many run as may");
        drop(first);
        assert!(backend.place(address(3)).await.is_some());
    }

    #[test]
    fn only_smart_http_has_a_target() {
        let uri = |text: &str| text.parse::<Uri>().expect("a URI");
        for (method, text, found) in [
            (Method::GET, "/a.git/info/refs?service=git-upload-pack", Some(Service::UploadPack)),
            (Method::GET, "/a.git/info/refs?service=git-receive-pack", Some(Service::ReceivePack)),
            (Method::POST, "/a.git/git-receive-pack", Some(Service::ReceivePack)),
            (Method::GET, "/a.git/info/refs", None),
            (Method::GET, "/a.git/HEAD", None),
            (Method::GET, "/a.git/objects/info/packs", None),
            (Method::POST, "/../a.git/git-upload-pack", None),
            (Method::POST, "/x/a.git/git-upload-pack", None),
            (Method::POST, "/.a.git/git-upload-pack", None),
            (Method::POST, "/a%2f.git/git-upload-pack", None),
            (Method::GET, "/a.git/git-upload-pack", None),
        ] {
            assert_eq!(target(&uri(text), &method).map(|(_, service)| service), found, "{text}");
        }
    }
}
