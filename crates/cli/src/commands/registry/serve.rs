//! `berth registry serve`: Git repositories over HTTP, so that a small installation needs no other Git server: the hook is
//! in every repository, and roles say who may do what.
//!
//! ```text
//! TCP ──▶ TLS ──▶ who (token) ──▶ may they (role × repository) ──▶ git http-backend ──▶ pre-receive ──▶ repository
//! ```

mod backend;
mod users;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_git::{Repository, Stop};
use berth_peer::port::{
    Activity, Bounds, ClientAuth, Counting, Damped, Greeted, Inactivity, Paced, Patience, Port, PortTls, TlsSettings,
    TlsVersion, prepare,
};
use berth_spec::Time;
use clap::Args;
use fs_err as fs;
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{Method, Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use prometheus_client::metrics::counter::Counter;
use tokio::{net::TcpListener, time::Instant};
use tokio_util::task::TaskTracker;

pub(super) use self::users::{TokenArgs, token};
use self::{
    backend::{Backend, Service},
    users::{Access, Role, User, Users},
};
use super::{
    access,
    hook::{RepositoryKind, Rules},
    install,
};
use crate::{commands::signal, failure::Failure, settings::tls::scheme, terminal};

/// Bounds of the port, and of git processes: as many of these may run as connections may be open. One address leaves half of them to others.
const BOUNDS: Bounds = Bounds { connections: 128, per_address: 64 };

/// Requests of one HTTP/2 connection at once. Git sends one after the other.
const STREAMS: u32 = 4;

/// Limit for the first request, its TLS handshake included, and for running requests at shutdown.
const PATIENCE: Duration = Duration::from_secs(10);

/// Longest silence of a connection between requests, in a request's head, and between HTTP/2 pings.
const SILENCE: Duration = Duration::from_secs(30);

/// Longest time that a client may leave an answer unread: git waits for it, with a process and a connection.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(300);

/// Limits for the first request, and for HTTP/2 connections at rest: git asks at once, and closes when it is done.
const SILENT: Patience = Patience { first: PATIENCE, idle: SILENCE };

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry token ada --role ops >> users.yaml   once per user; the token on standard error
  berth registry serve --root /srv/git --users users.yaml \\
    --create model-registry --create sentiment-model
  git clone http://ada:TOKEN@127.0.0.1:8418/model-registry.git

Roles:                 the registry      model repositories
  ops                  read, write       read
  ml                   read              read, write, tag
  controller           read, write       read
  worker               read              read

Without TLS, it listens on loopback addresses only. Use --insecure behind a proxy that does TLS.")]
pub(crate) struct ServeArgs {
    /// Folder of the repositories
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:8418", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// File of users and roles, one entry per user; reread for every request
    #[arg(long, value_name = "FILE")]
    users: PathBuf,
    /// Create this repository if missing. Repeatable
    #[arg(long, value_name = "NAME")]
    create: Vec<String>,
    /// Name of the registry repository; all others are model repositories. Repeatable
    #[arg(long, default_value = "model-registry", value_name = "NAME")]
    registry: Vec<String>,
    /// Serve over TLS with this certificate chain (PEM); reread when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen on any address without TLS
    #[arg(long)]
    insecure: bool,
    /// Branch of the registry whose commits must be valid
    #[arg(long, default_value = "main", value_name = "BRANCH")]
    branch: String,
    #[command(flatten)]
    announce: install::AnnounceArgs,
    #[command(flatten)]
    access: access::AccessArgs,
}

pub(super) fn run(args: ServeArgs) -> Result<(), Failure> {
    if args.tls_cert.is_none() && !args.insecure && !args.listen.ip().is_loopback() {
        return Err(Failure::Usage(format!(
            "{} is not a loopback address, and without TLS tokens would cross the network in the clear: give --tls-cert and \
             --tls-key, or --insecure if something in front does TLS",
            args.listen
        )));
    }
    fs::create_dir_all(&args.root)?;
    let root = fs::canonicalize(&args.root)?;
    let users = Users::new(args.users.clone());
    let writers = users.of_role(Role::Controller)?;
    make_repositories(&args, &root, writers)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(port_tls(certificate.clone(), key.clone())?),
        _ => None,
    };
    let (backend, registries) = (Backend::new(root, BOUNDS), args.registry.clone());
    let server = Arc::new(Server { backend, users, registries, told: DampedLines::default() });
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?
        .block_on(serve(server, args.listen, tls))
}

/// Makes repositories that are wanted, and puts the hooks into all that are there.
fn make_repositories(args: &ServeArgs, root: &std::path::Path, writers: Vec<String>) -> Result<(), Failure> {
    let git = access::git();
    for name in &args.create {
        if !backend::is_name(name) {
            return Err(Failure::Usage(format!("--create {name:?}: use letters, digits, `-`, `_` and `.`")));
        }
        let stop = Stop::within(PATIENCE);
        Repository::create(Arc::clone(&git), &root.join(format!("{name}.git")), &args.branch, &stop)?;
    }
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".git"))
        else {
            continue;
        };
        let is_registry = args.registry.iter().any(|registry| registry == name);
        let kind = if is_registry { RepositoryKind::Registry } else { RepositoryKind::Model };
        let writer = writers.clone();
        let rules = Rules { kind, branch: args.branch.clone(), writer, access: args.access.clone() };
        let stop = Stop::within(PATIENCE);
        let repository = Repository::open(Arc::clone(&git), &path, &stop)?;
        install::install(&repository, &rules, &stop)?;
        if let install::Announcing::Foreign(path) = install::announcing(&repository, kind, &args.announce)? {
            eprintln!("{}", install::foreign(&path));
        }
    }
    Ok(())
}

/// TLS as it has always been here: git of old systems speaks 1.2.
fn port_tls(certificate: PathBuf, key: PathBuf) -> Result<PortTls, Failure> {
    let settings = TlsSettings { certificate, key, clients: ClientAuth::Off, oldest: TlsVersion::V1_2 };
    PortTls::load(settings).map_err(|error| Failure::Invalid(error.to_string()))
}

async fn serve(server: Arc<Server>, address: SocketAddr, tls: Option<PortTls>) -> Result<(), Failure> {
    let listener =
        TcpListener::bind(address).await.map_err(|e| Failure::doing(format!("cannot listen on {address}"), e))?;
    terminal::print(&format!("serving {}://{}", scheme(tls.is_some()), listener.local_addr()?))?;
    let port = Port::new("registry", listener, BOUNDS).with_tls(tls.clone());
    let (tasks, greeter) = (TaskTracker::new(), port.greeter());
    let following = async {
        match tls {
            Some(tls) => tls.follow().await,
            None => std::future::pending().await,
        }
    };
    let accepting = async {
        loop {
            let (stream, peer, place) = port.accept().await;
            prepare(&stream, UNREAD_TIMEOUT);
            let (server, greeter) = (Arc::clone(&server), greeter.clone());
            tasks.spawn(async move {
                let _place = place;
                if let Some(greeted) = greeter.greet(stream, SILENT).await {
                    connection(server, greeted, peer).await;
                }
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = following => {}
        () = signal::stopped() => {}
    }
    drop(port);
    tasks.close();
    let _ = tokio::time::timeout(PATIENCE, tasks.wait()).await;
    Ok(())
}

async fn connection(server: Arc<Server>, greeted: Greeted, peer: SocketAddr) {
    let Greeted { stream, patience, .. } = greeted;
    let activity = Activity::new(UNREAD_TIMEOUT, Counter::default());
    let counted = activity.clone();
    let answer = service_fn(move |request: Request<Incoming>| {
        counted.request();
        let (server, version) = (Arc::clone(&server), request.version());
        async move {
            let answer = server.answer(request, peer).await;
            Ok::<_, std::convert::Infallible>(answer.map(|body| Paced::new(body, version)))
        }
    });
    let mut builder = Builder::new(Counting(activity.clone()));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(SILENCE)
        .keep_alive_timeout(PATIENCE);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), answer));
    // A peer that breaks the line ends its own request only.
    tokio::select! {
        _ = connection.as_mut() => {}
        silence = activity.clone().silence(patience) => {
            if silence != Inactivity::NoRequest {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    // A request may have begun meanwhile; a client that never leaves has no more than its time.
                    _ = tokio::time::timeout(backend::REQUEST_TIMEOUT, connection) => {}
                    () = activity.unread_still() => {}
                }
            }
        }
    }
}

/// Body of responses.
type Body = UnsyncBoxBody<bytes::Bytes, std::io::Error>;

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let body = Full::from(format!("{text}\n")).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

struct Server {
    backend: Backend,
    users: Users,
    registries: Vec<String>,
    told: DampedLines,
}

/// Lines about strangers, who can send as much as they like: one a minute of each kind, with the number of requests.
#[derive(Default)]
struct DampedLines {
    /// No user, or a wrong token.
    unknown: Damped,
    /// No path of Git, or another method.
    astray: Damped,
    /// The file of users cannot be read.
    unread: Damped,
    reason: Damped,
}

/// A request of a user, and what it is for.
struct Admitted {
    user: User,
    repository: String,
    service: Service,
}

impl Server {
    /// Answers, and tells on standard error who wrote where, and who was not let in: what a server's log is read for.
    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Body> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let line = |user: &str, status: StatusCode| {
            let now = Time::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            format!("{now} {} {user:?} {method} {path:?} {}", peer.ip(), status.as_u16())
        };
        let admitted = match self.admit(&request) {
            Ok(admitted) => admitted,
            Err((damped, refusal)) => {
                let claimed = users::claimed(request.headers());
                let status = refusal.status();
                // Git asks without credentials first, each time: that is nobody's attempt.
                let is_question = claimed.is_none() && status == StatusCode::UNAUTHORIZED;
                if !is_question && let Some(times) = damped.tell(Instant::now()) {
                    let others = if times > 1 { format!(" ({times} of these in a minute)") } else { String::new() };
                    eprintln!("{}{others}", line(claimed.as_deref().unwrap_or_default(), status));
                }
                return *refusal;
            }
        };
        let user = admitted.user.name.clone();
        let is_write = method == Method::POST && admitted.service == Service::ReceivePack;
        let response = self.served(admitted, request, peer).await;
        let status = response.status();
        if is_write || !status.is_success() {
            eprintln!("{}", line(&user, status));
        }
        response
    }

    /// Finds out who asks for what; else the answer to a stranger, and whether it is told of.
    fn admit(&self, request: &Request<Incoming>) -> Result<Admitted, (&Damped, Box<Response<Body>>)> {
        let Some((repository, service)) = backend::target(request.uri(), request.method()) else {
            let known = matches!(*request.method(), Method::GET | Method::POST);
            let status = if known { StatusCode::NOT_FOUND } else { StatusCode::METHOD_NOT_ALLOWED };
            let text = "only the smart HTTP protocol of Git is served: git clone URL/NAME.git";
            return Err((&self.told.astray, Box::new(plain(status, text))));
        };
        match self.users.who(request.headers()) {
            Ok(Some(user)) => Ok(Admitted { user, repository, service }),
            Ok(None) => {
                let mut response = plain(StatusCode::UNAUTHORIZED, "a user and their token, please");
                let challenge = http::HeaderValue::from_static("Basic realm=\"berth registry\"");
                response.headers_mut().insert(http::header::WWW_AUTHENTICATE, challenge);
                Err((&self.told.unknown, Box::new(response)))
            }
            Err(failure) => {
                if self.told.reason.tell(Instant::now()).is_some() {
                    eprintln!("nobody is let in: {failure}");
                }
                // Strangers are told no places of this machine.
                let text = "the users cannot be read: the log of the server says why";
                Err((&self.told.unread, Box::new(plain(StatusCode::INTERNAL_SERVER_ERROR, text))))
            }
        }
    }

    async fn served(&self, admitted: Admitted, request: Request<Incoming>, peer: SocketAddr) -> Response<Body> {
        let Admitted { user, repository, service } = admitted;
        let is_registry = self.registries.contains(&repository);
        let wanted = if service == Service::ReceivePack { Access::Write } else { Access::Read };
        if user.role.access(is_registry) < wanted {
            let what = if is_registry { "a registry" } else { "a model repository" };
            let text = format!("{} has the role {}, which does not write {what}", user.name, user.role.name());
            return plain(StatusCode::FORBIDDEN, &text);
        }
        self.backend.run(&repository, service, &user.name, request, peer).await
    }
}
