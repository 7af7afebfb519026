//! The client of the control API: addresses, JSON in and out, and errors turned into what a person can act on.

mod connect;
mod trouble;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use berth_wire::api::{ErrorBody, ErrorDetail, ErrorInfo, List};
use clap::Args;
use futures::{Stream, StreamExt};
use reqwest::{Method, Request, RequestBuilder, Response, StatusCode, header::RETRY_AFTER};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};
use url::Url;

pub(crate) use self::{
    connect::{ConnectArgs, to_itself},
    trouble::of as tls_trouble,
};
use crate::failure::Failure;

/// The address at which a server on this machine answers for the control API, unless it is told otherwise (`--api`).
pub(crate) const DEFAULT_API: &str = "http://127.0.0.1:8081";

/// The address at which a server on this machine takes inference, unless it is told otherwise (`--http`).
pub(crate) const DEFAULT_GATEWAY: &str = "http://127.0.0.1:8080";

/// Address of the control API.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApiArgs {
    /// Address of the control API; for a cluster, several addresses separated by commas: the first that answers is
    /// used
    #[arg(long, value_name = "URL,…", env = "BERTH_API", default_value = DEFAULT_API, global = false)]
    pub(crate) api: String,
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Limit for an answer when several addresses are given. Passes over a node that hangs without giving up on a busy
/// one.
const HEAD_WITHIN: Duration = Duration::from_secs(3);

/// Limit for a server to know what it needs for an answer. Enough to fetch the keys of an issuer.
const KNOWS_WITHIN: Duration = Duration::from_secs(10);

/// A request that came to nothing.
struct Unanswered {
    failure: Failure,
    /// Time after which the server wants to be asked again; `None`: it named none.
    retry_in: Option<Duration>,
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self { failure, retry_in: None }
    }
}

/// Talks to the control API, at the first of its addresses that answers.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    bases: Vec<Url>,
    /// The address that answered last; the first at first.
    at: Arc<AtomicUsize>,
    http: reqwest::Client,
}

impl ApiArgs {
    /// Checks the addresses; connects when something is asked.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let bases = self.api.split(',').map(str::trim).filter(|text| !text.is_empty());
        let bases = bases.map(|text| self.connect.address(text));
        let bases = bases.collect::<Result<Vec<_>, _>>()?;
        if bases.is_empty() {
            return Err(Failure::Usage("--api is empty: write for example http://127.0.0.1:8081".to_owned()));
        }
        let http = self.connect.http(&bases)?;
        Ok(Client { bases, at: Arc::default(), http })
    }
}

impl Client {
    /// Starts a request; segments of the path and values of the query are encoded here.
    pub(crate) fn request(&self, method: Method, path: &[&str], query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base().clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.http.request(method, url)
    }

    /// Sends it; anything but a success is a failure. Where nothing listens, nothing answers, or no leader is known, the
    /// next address is asked: nothing has been done yet.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        self.attempt(request).await.map_err(|unanswered| unanswered.failure)
    }

    async fn attempt(&self, request: RequestBuilder) -> Result<Response, Unanswered> {
        let mut request = request.build().map_err(|e| Failure::doing("cannot make a request", root(&e)))?;
        let first = self.at.load(Ordering::Relaxed);
        // What a node said that is there: it says more than that others are not.
        let mut said = None;
        for offset in 0.. {
            let at = (first + offset) % self.bases.len();
            let last = offset + 1 >= self.bases.len();
            if let Err(error) = self.answers(at).await {
                if last {
                    return Err(said.unwrap_or_else(|| self.unreachable(&error).into()));
                }
                request = self.moved(request, at);
                continue;
            }
            // A body that is a stream cannot be sent twice; there is none.
            let again = if last { None } else { request.try_clone() };
            match self.http.execute(request).await {
                Err(error) if error.is_connect() => match again {
                    Some(again) => request = self.moved(again, at),
                    None => return Err(said.unwrap_or_else(|| self.unreachable(&error).into())),
                },
                Err(error) => return Err(self.unreachable(&error).into()),
                Ok(response) if response.status().is_success() => {
                    self.at.store(at, Ordering::Relaxed);
                    return Ok(response);
                }
                Ok(response) => match again.filter(|_| response.status() == StatusCode::SERVICE_UNAVAILABLE) {
                    Some(again) => {
                        said = Some(refused(response).await);
                        request = self.moved(again, at);
                    }
                    None => return Err(refused(response).await),
                },
            }
        }
        Err(Failure::Failed("there is no address of a control API".to_owned()).into())
    }

    /// True if a node answers. With several addresses, a change goes only to a node that does, because it cannot be
    /// sent twice.
    async fn answers(&self, at: usize) -> Result<(), reqwest::Error> {
        if self.bases.len() == 1 {
            return Ok(());
        }
        let mut url = self.bases[at].clone();
        url.set_path("/healthz");
        self.http.get(url).timeout(HEAD_WITHIN).send().await.map(drop)
    }

    /// A request for the address at `from`, for the one after it.
    fn moved(&self, mut request: Request, from: usize) -> Request {
        let (old, new) = (&self.bases[from], &self.bases[(from + 1) % self.bases.len()]);
        let path = request.url().path().strip_prefix(old.path().trim_end_matches('/')).unwrap_or_default().to_owned();
        let query = request.url().query().map(str::to_owned);
        let mut url = new.clone();
        url.set_path(&format!("{}{path}", new.path().trim_end_matches('/')));
        url.set_query(query.as_deref());
        *request.url_mut() = url;
        request
    }

    /// The address that answered last.
    fn base(&self) -> &Url {
        &self.bases[self.at.load(Ordering::Relaxed) % self.bases.len()]
    }

    /// Sends it and reads the JSON that comes back.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let response = self.send(request).await?;
        self.read(response).await
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        response.json().await.map_err(|e| {
            Failure::doing(
                format!("{} answered something that this version of berth does not understand", self.base()),
                e,
            )
        })
    }

    /// Asks for the object at `path` and reads its JSON.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        self.json(self.request(Method::GET, path, &[])).await
    }

    /// The same, from a server that may not know yet what it needs for an answer: asks again when it says so, for some seconds.
    pub(crate) async fn get_when_known<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, Failure> {
        let end = Instant::now() + KNOWS_WITHIN;
        loop {
            match self.attempt(self.request(Method::GET, path, &[])).await {
                Ok(response) => return self.read(response).await,
                Err(Unanswered { retry_in: Some(pause), .. }) if Instant::now() + pause <= end => sleep(pause).await,
                Err(unanswered) => return Err(unanswered.failure),
            }
        }
    }

    /// Gets a list, all pages of it.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<List<T>, Failure> {
        let mut whole: List<T> = self.json(self.request(Method::GET, path, query)).await?;
        while let Some(next) = whole.metadata.continue_.take() {
            let query = query.iter().cloned().chain([("continue", next)]).collect::<Vec<_>>();
            let page: List<T> = self.json(self.request(Method::GET, path, &query)).await?;
            whole.items.extend(page.items);
            whole.metadata = page.metadata;
        }
        Ok(whole)
    }

    /// Follows newline-delimited JSON until the server ends it.
    pub(crate) async fn watch<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<impl Stream<Item = Result<T, Failure>> + use<T>, Failure> {
        let response = self.send(self.request(Method::GET, path, query)).await?;
        Ok(lines(response).map(|line| {
            serde_json::from_str(&line?).map_err(|e| Failure::doing("the watch sent something unexpected", e))
        }))
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        if let Some(remedy) = tls_trouble(error) {
            Failure::Failed(format!("{}: {remedy}", self.base().as_str().trim_end_matches('/')))
        } else if error.is_connect() {
            let bases: Vec<&str> = self.bases.iter().map(|base| base.as_str().trim_end_matches('/')).collect();
            Failure::Failed(format!(
                "nothing answers at {}: start a server with `berth up`, or say where it is with --api or BERTH_API",
                bases.join(", ")
            ))
        } else if error.is_timeout() {
            Failure::TimedOut(format!("{} did not answer in time", self.base()))
        } else if self.base().scheme() == "https" && is_closed(&root(error)) {
            // With TLS 1.3 a client is refused after its own handshake is done, and the reason may come too late.
            let base = self.base().as_str().trim_end_matches('/');
            Failure::Failed(format!(
                "{base} closed the connection: it may ask for a client certificate (--client-cert and --client-key), or not \
                 trust the CA of the one that it got"
            ))
        } else {
            Failure::doing(format!("cannot talk to {}", self.base()), root(error))
        }
    }
}

/// True for the words about a connection that the other side closed.
fn is_closed(words: &str) -> bool {
    ["connection closed", "broken pipe", "Broken pipe", "onnection reset"].iter().any(|part| words.contains(part))
}

/// The innermost cause, which says most.
pub(crate) fn root(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// Complete lines of a body that never ends.
fn lines(response: Response) -> impl Stream<Item = Result<String, Failure>> {
    let state = (response.bytes_stream(), Vec::new());
    futures::stream::unfold(state, |(mut chunks, mut kept)| async move {
        loop {
            if let Some(end) = kept.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = kept.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                if line.is_empty() {
                    continue;
                }
                return Some((Ok(line), (chunks, kept)));
            }
            match chunks.next().await? {
                Ok(chunk) => kept.extend_from_slice(&chunk),
                Err(e) => return Some((Err(Failure::doing("the watch broke off", root(&e))), (chunks, kept))),
            }
        }
    })
}

/// Reads an error response.
async fn refused(response: Response) -> Unanswered {
    let status = response.status();
    let retry_in = retry_in(&response);
    let server = response.url().origin().ascii_serialization();
    let body = response.bytes().await.unwrap_or_default();
    let message = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error }) => match error.request_id.as_ref().filter(|_| is_logged(status)) {
            Some(id) => format!("{}\n  the logs of the server have it as request {id}", describe(&error)),
            None => describe(&error),
        },
        // A gateway, or another server: that it lacks the path says nothing about what is declared.
        Err(_) if status == StatusCode::NOT_FOUND => {
            let message = format!(
                "{server} is no control API: that has a port of its own (8081 by default), say where it is with --api or BERTH_API"
            );
            return Failure::Failed(message).into();
        }
        Err(_) => format!("{server} answered {status}: {}", String::from_utf8_lossy(&body).trim()),
    };
    Unanswered { failure: failure(status, message), retry_in }
}

fn failure(status: StatusCode, message: String) -> Failure {
    match status {
        StatusCode::NOT_FOUND => Failure::NotFound(message),
        StatusCode::UNAUTHORIZED => Failure::Failed(format!(
            "{message}\n  say who you are with `berth login`, BERTH_TOKEN, --token-file or --client-cert\n  {AUDITED}"
        )),
        StatusCode::FORBIDDEN => {
            Failure::Forbidden(format!("{message}\n  ask an administrator for a role that may do this\n  {AUDITED}"))
        }
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
            Failure::Invalid(message)
        }
        StatusCode::PRECONDITION_FAILED => Failure::Conflict(message),
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Failure::TimedOut(message),
        _ => Failure::Failed(message),
    }
}

/// Where refusals are found. They are in no line of the log at its default level.
const AUDITED: &str = "refusals are in the audit log, which `berth audit` shows to admins";

/// Time after which a server that cannot answer now wants to be asked again, at least a second.
fn retry_in(response: &Response) -> Option<Duration> {
    let waits = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    let header = response.headers().get(RETRY_AFTER).filter(|_| waits)?;
    let seconds: u64 = header.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.max(1)))
}

/// True if somebody may want to look for the request in the server's logs.
fn is_logged(status: StatusCode) -> bool {
    status == StatusCode::INTERNAL_SERVER_ERROR
}

/// An error of the API, with its details each in a line.
pub(crate) fn describe(error: &ErrorInfo) -> String {
    let mut text = error.message.clone();
    // The only detail of an error may be the error itself.
    let only = error.details.len() == 1;
    let again = |one: &ErrorDetail| only && one.message == error.message && one.file.is_none() && one.remedy.is_empty();
    for detail in error.details.iter().filter(|one| !again(one)) {
        let place = match (&detail.file, detail.line, detail.column) {
            (Some(file), Some(line), Some(column)) => format!("{file}:{line}:{column}: "),
            (Some(file), ..) => format!("{file}: "),
            (None, Some(line), Some(column)) => format!("line {line}, column {column}: "),
            _ => String::new(),
        };
        let path = if detail.path.is_empty() { String::new() } else { format!("{}: ", detail.path) };
        let remedy = if detail.remedy.is_empty() { String::new() } else { format!("; {}", detail.remedy) };
        let line = format!("{place}{path}{}{remedy}", detail.message);
        if !only || line != error.message {
            text.push_str(&format!("\n  {line}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
    };

    use serde_json::Value;

    use super::*;

    const NO_LEADER: &str = r#"{"error":{"code":503,"reason":"NoLeader","message":"no controller leads"}}"#;

    /// Gives these answers, each a status with further headers and a body, to one request after the other.
    fn answering<const N: usize>(answers: [(&str, &str); N]) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let answers = answers.map(|(head, body)| {
            format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        });
        let thread = std::thread::spawn(move || {
            for answer in answers {
                let (mut connection, _) = listener.accept().expect("a request");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    connection.read_exact(&mut byte).expect("a whole head");
                    head.push(byte[0]);
                }
                connection.write_all(answer.as_bytes()).expect("an answer");
            }
        });
        (address, thread)
    }

    #[test]
    fn what_a_node_says_is_told_where_others_are_gone() {
        let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let (here, thread) = answering([("200 OK", ""), ("503 Service Unavailable", NO_LEADER)]);
        let failure = runtime().block_on(client(format!("{here},{gone}")).get::<Value>(&["nodes"]));
        assert_eq!(failure.expect_err("nobody leads").to_string(), "no controller leads");
        thread.join().expect("both were asked for");
    }

    #[test]
    fn a_server_that_knows_nobody_yet_is_asked_again_when_it_says_so() {
        let later = "503 Service Unavailable\r\nretry-after: 1";
        let (here, thread) = answering([(later, NO_LEADER), ("200 OK", r#"{"name": "ada"}"#)]);
        let found = runtime().block_on(client(here).get_when_known::<Value>(&["whoami"]));
        assert_eq!(found.expect("the second answer")["name"], "ada");
        thread.join().expect("it was asked twice");
        let (here, thread) = answering([("503 Service Unavailable\r\nretry-after: 60", NO_LEADER)]);
        let failure = runtime().block_on(client(here).get_when_known::<Value>(&["whoami"]));
        assert_eq!(failure.expect_err("a minute is too long").to_string(), "no controller leads");
        thread.join().expect("it was asked once");
    }

    #[test]
    fn a_refusal_names_the_audit_log_and_a_fault_the_log() {
        let body = r#"{"error":{"code":403,"reason":"Forbidden","message":"no","requestId":"5f0c1b9ae2d34476"}}"#;
        let told = |status: &str| {
            let (here, thread) = answering([(status, body)]);
            let failure = runtime().block_on(client(here).get::<Value>(&["nodes"])).expect_err(status);
            thread.join().expect("it was asked");
            failure
        };
        let forbidden = told("403 Forbidden");
        assert!(matches!(forbidden, Failure::Forbidden(_)), "{forbidden:?}");
        let words = forbidden.to_string();
        assert!(words.contains("berth audit") && !words.contains("5f0c"), "{words}");
        let fault = told("500 Internal Server Error").to_string();
        assert!(fault.contains("the logs of the server have it as request 5f0c1b9ae2d34476"), "{fault}");
    }

    #[test]
    fn a_gateway_is_no_control_api_that_lacks_a_thing() {
        let (here, thread) = answering([("404 Not Found", r#"{"error":"no such path","reason":"not_found"}"#)]);
        let failure = runtime().block_on(client(here.clone()).get::<Value>(&["nodes"])).expect_err("another server");
        thread.join().expect("it was asked");
        assert!(matches!(failure, Failure::Failed(_)), "nothing is known of the thing: {failure:?}");
        assert!(failure.to_string().starts_with(&format!("http://{here} is no control API")), "{failure}");
    }

    #[test]
    fn an_error_says_nothing_twice() {
        let told = |details: Value| {
            let error = serde_json::json!({"code": 409, "reason": "Owned", "message": "no", "details": details});
            describe(&serde_json::from_value(error).expect("an error"))
        };
        assert_eq!(told(serde_json::json!([{"path": "iris", "message": "no"}])), "no");
        let whole = serde_json::json!({"code": 400, "reason": "Invalid", "message": "a: no; yes",
            "details": [{"path": "a", "message": "no", "remedy": "yes"}]});
        assert_eq!(describe(&serde_json::from_value(whole).expect("an error")), "a: no; yes");
        let placed = serde_json::json!({"code": 422, "reason": "InvalidManifest", "message": "line 3, column 5: a: no; yes",
            "details": [{"path": "a", "message": "no", "remedy": "yes", "line": 3, "column": 5}]});
        assert_eq!(describe(&serde_json::from_value(placed).expect("an error")), "line 3, column 5: a: no; yes");
        let more = serde_json::json!([{"path": "a", "message": "no", "remedy": "yes"}, {"path": "b", "message": "c"}]);
        assert_eq!(told(more), "no\n  a: no; yes\n  b: c");
    }

    fn client(api: String) -> Client {
        ApiArgs { api, connect: ConnectArgs::default() }.client().expect("addresses")
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
    }
}
