//! Trust, certificates and tokens of this program as a client, for REST and gRPC.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use berth_spec::Secret;
use clap::Args;
use http::{HeaderValue, header::AUTHORIZATION};
use reqwest::{
    Certificate, ClientBuilder, Identity,
    header::HeaderMap,
    redirect::{Action, Attempt, Policy},
};
use tonic::transport::{Certificate as GrpcCertificate, ClientTlsConfig, Endpoint, Identity as GrpcIdentity};
use url::Url;

use super::{DEFAULT_API, DEFAULT_GATEWAY};
use crate::{failure::Failure, settings::tls::scheme};

/// Limit for a connection. Long enough for busy machines, short enough to report a wrong address soon.
const CONNECT: Duration = Duration::from_secs(5);

/// Trust in servers, and the identity of the one who asks.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConnectArgs {
    /// CA certificates of the server (PEM) [default: the system's CAs]; the default address is then https://
    #[arg(long, value_name = "FILE", env = "BERTH_CA", help_heading = "Connection")]
    ca: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_CLIENT_CERT", requires = "client_key", help_heading = "Connection")]
    client_cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_CLIENT_KEY", requires = "client_cert", help_heading = "Connection")]
    client_key: Option<PathBuf>,
    /// Token that proves who you are. Others on this machine can read flags: prefer BERTH_TOKEN or --token-file
    #[arg(long, value_name = "TOKEN", env = "BERTH_TOKEN", hide_env_values = true, value_parser = secret, help_heading = "Connection")]
    token: Option<Secret>,
    /// File with the token
    #[arg(long, value_name = "FILE", env = "BERTH_TOKEN_FILE", help_heading = "Connection")]
    token_file: Option<PathBuf>,
    /// Context that gives address, CA, certificate, token and namespace where no flag or variable does (berth login)
    /// [default: the current one, unless an address is given]
    #[arg(long, value_name = "NAME", env = "BERTH_CONTEXT", help_heading = "Connection", add = crate::commands::completing::contexts())]
    context: Option<String>,
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text.to_owned()))
}

impl ConnectArgs {
    /// Settings where there is no command line, by the names of their variables.
    pub(crate) fn from_variables(text: impl Fn(&str) -> Option<String>) -> Self {
        let file = |name: &str| text(name).map(PathBuf::from);
        Self {
            ca: file("BERTH_CA"),
            client_cert: file("BERTH_CLIENT_CERT"),
            client_key: file("BERTH_CLIENT_KEY"),
            token: text("BERTH_TOKEN").map(Secret::new),
            token_file: file("BERTH_TOKEN_FILE"),
            context: None,
        }
    }

    /// Context that was named.
    pub(crate) fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// Files of trust and identity, for a context to keep.
    pub(crate) fn files(&self) -> [Option<&Path>; 3] {
        [self.ca.as_deref(), self.client_cert.as_deref(), self.client_key.as_deref()]
    }

    /// Token as it was given; a file named `-` is standard input. `BERTH_TOKEN` is not among it where the file is typed
    /// (`settings::environment`).
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn given_token(&self) -> Result<Option<Secret>, Failure> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(file)) if file == Path::new("-") => {
                Ok(Some(Secret::new(std::io::read_to_string(std::io::stdin())?)))
            }
            (None, Some(file)) => Ok(Some(Secret::new(fs_err::read_to_string(file)?))),
            (None, None) => Ok(None),
        }
    }

    /// The same with this token.
    pub(crate) fn with_token(self, token: Option<Secret>) -> Self {
        Self { token, token_file: None, ..self }
    }

    /// Reads an address that people write with or without its scheme. Who names a CA or shows a certificate means TLS.
    ///
    /// # Errors
    /// [`Failure::Usage`]: the text is no address.
    pub(crate) fn address(&self, text: &str) -> Result<Url, Failure> {
        let has_tls = self.ca.is_some() || self.client_cert.is_some();
        let bare = match text {
            DEFAULT_API | DEFAULT_GATEWAY => text.trim_start_matches("http://"),
            _ => text,
        };
        let full = if bare.contains("://") { bare.to_owned() } else { format!("{}://{bare}", scheme(has_tls)) };
        match Url::parse(&full) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(url),
            _ => Err(Failure::Usage(format!("{text:?} is not an address: write for example {DEFAULT_API}"))),
        }
    }

    /// The client for REST at these addresses.
    ///
    /// # Errors
    /// A file that cannot be read or used.
    pub(crate) fn http(&self, bases: &[Url]) -> Result<reqwest::Client, Failure> {
        let mut builder = plain();
        if let Some(ca) = &self.ca {
            builder = builder.tls_certs_only(authorities(ca, &fs_err::read(ca)?)?);
        } else if !may_use_tls(bases) {
            // To read the system's CAs takes a quarter of a command's processor time.
            builder = builder.tls_certs_only([]);
        }
        if let Some(Shown { file, certificate, key }) = self.shown()? {
            let identity = Identity::from_pem(&[certificate, key].concat()).map_err(|error| unusable(file, &error))?;
            builder = builder.identity(identity);
        }
        if let Some(token) = self.authorization()? {
            builder = builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, token)]));
        }
        built(builder)
    }

    /// The channel for gRPC, not connected yet.
    ///
    /// # Errors
    /// An address that is none for gRPC, or a file that cannot be read or used.
    pub(crate) fn endpoint(&self, base: &Url) -> Result<Endpoint, Failure> {
        let wrong = |error| Failure::Usage(format!("{base} is not an address for gRPC: {error}"));
        let endpoint =
            Endpoint::from_shared(base.to_string()).map_err(wrong)?.connect_timeout(CONNECT).tcp_nodelay(true);
        if base.scheme() != "https" {
            return Ok(endpoint);
        }
        let mut tls = match &self.ca {
            Some(ca) => {
                let text = fs_err::read(ca)?;
                authorities(ca, &text)?;
                ClientTlsConfig::new().ca_certificate(GrpcCertificate::from_pem(text))
            }
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        if let Some(Shown { certificate, key, .. }) = self.shown()? {
            tls = tls.identity(GrpcIdentity::from_pem(certificate, key));
        }
        endpoint.tls_config(tls).map_err(|error| Failure::doing("TLS cannot be set up", super::root(&error)))
    }

    /// Value of the header that says who asks.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds no token.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, Failure> {
        let Some(token) = self.given_token()? else { return Ok(None) };
        let wrong = || {
            Failure::Usage(
                "the token is empty or has characters that no token has: look at --token, BERTH_TOKEN or --token-file"
                    .to_owned(),
            )
        };
        let text = token.expose().trim();
        if text.is_empty() {
            return Err(wrong());
        }
        let mut value = HeaderValue::try_from(format!("Bearer {text}")).map_err(|_| wrong())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    fn shown(&self) -> Result<Option<Shown<'_>>, Failure> {
        let (Some(file), Some(key)) = (&self.client_cert, &self.client_key) else { return Ok(None) };
        Ok(Some(Shown { file, certificate: fs_err::read(file)?, key: fs_err::read(key)? }))
    }
}

/// Certificate to show to servers.
struct Shown<'a> {
    file: &'a Path,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// A client of this process's own ports, which it knows by their address.
///
/// # Errors
/// The system gives no client.
pub(crate) fn to_itself() -> Result<reqwest::Client, Failure> {
    // Nobody else can listen where this process does, and its certificate need not be for a loopback address.
    built(plain().tls_danger_accept_invalid_certs(true))
}

/// True if a connection to these addresses may be one over TLS: also that to a proxy.
fn may_use_tls(bases: &[Url]) -> bool {
    let is_tls = |variable: &&str| {
        std::env::var_os(variable)
            .is_some_and(|proxy| proxy.as_encoded_bytes().to_ascii_lowercase().starts_with(b"https"))
    };
    bases.iter().any(|base| base.scheme() != "http")
        || ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].iter().any(is_tls)
}

/// Follows redirects within one server. A token is for that alone: `reqwest` takes it out of the request to another one, and puts it back
/// for the redirect after it. From or to plain HTTP, a request would be sent again as nobody meant it.
fn followed(attempt: Attempt<'_>) -> Action {
    if attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin()) {
        return Policy::default().redirect(attempt);
    }
    let origin = attempt.url().origin().ascii_serialization();
    attempt.error(format!("it redirects to {origin}: give that as the address"))
}

/// The one way in which this program does HTTP as a client.
fn plain() -> ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .redirect(Policy::custom(followed))
}

fn built(builder: ClientBuilder) -> Result<reqwest::Client, Failure> {
    builder.build().map_err(|error| Failure::doing("cannot set up the HTTP client", super::root(&error)))
}

fn authorities(file: &Path, text: &[u8]) -> Result<Vec<Certificate>, Failure> {
    let found = Certificate::from_pem_bundle(text).map_err(|error| unusable(file, &error))?;
    match found.is_empty() {
        true => {
            Err(Failure::Usage(format!("{} holds no certificate: expected PEM with BEGIN CERTIFICATE", file.display())))
        }
        false => Ok(found),
    }
}

fn unusable(file: &Path, error: &reqwest::Error) -> Failure {
    Failure::Usage(format!("{} cannot be used: {}", file.display(), super::root(error)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Answers one request with a redirect.
    async fn redirect(listener: &tokio::net::TcpListener, to: &str) -> tokio::net::TcpStream {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        assert_ne!(stream.read(&mut [0; 1_024]).await.expect("a request"), 0);
        let head = format!(
            "HTTP/1.1 308 Permanent Redirect\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream
    }

    /// A redirect to another server was followed, and the one after it had the token again.
    #[tokio::test]
    async fn redirects_stay_with_the_server_that_the_token_is_for() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let base = Url::parse(&base).expect("an address");
        let client = ConnectArgs::default().http(std::slice::from_ref(&base)).expect("a client");
        for to in ["https://berth.example.org", "http://127.0.0.2:9"] {
            let redirected = async {
                let own = redirect(&listener, "/elsewhere").await;
                (own, redirect(&listener, &format!("{to}/v1")).await)
            };
            let (answer, _streams) = tokio::join!(client.get(base.clone()).send(), redirected);
            let told = crate::client::root(&answer.expect_err("it is not followed"));
            assert_eq!(told, format!("it redirects to {to}: give that as the address"));
        }
    }

    #[test]
    fn a_token_is_sent_and_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        fs_err::write(&file, "from-file\n").expect("written");
        let args = |token: Option<&str>, file: Option<&Path>| ConnectArgs {
            token: token.map(|token| Secret::new(token.to_owned())),
            token_file: file.map(Path::to_owned),
            ..ConnectArgs::default()
        };
        let sent = |args: &ConnectArgs| args.authorization().map(|value| value.map(|value| value.as_bytes().to_vec()));
        let both = args(Some("flag"), Some(&file));
        assert_eq!(sent(&both).expect("a token"), Some(b"Bearer flag".to_vec()));
        assert!(!format!("{both:?} {:?}", both.authorization()).contains("flag"), "{both:?}");
        assert_eq!(sent(&args(None, Some(&file))).expect("a token"), Some(b"Bearer from-file".to_vec()));
        assert_eq!(sent(&args(None, None)).expect("none"), None);
        for bad in ["", " \n", "a\nb"] {
            assert!(sent(&args(Some(bad), None)).is_err(), "{bad:?}");
        }
    }
}
