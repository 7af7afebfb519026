//! Email over SMTP: always over TLS, but to a server on this machine.

use std::time::Duration;

use berth_git::Identity;
use berth_registry::{notify::Email, settings::Notification};
use berth_spec::Secret;
use lettre::{
    Message, SmtpTransport, Transport,
    message::{Mailbox, header::ContentType},
    transport::smtp::authentication::Credentials,
};
use percent_encoding::percent_decode_str;
use url::{Host, Url};

/// The time limit of each step of the exchange with a server: some let every sender wait for their greeting.
const PATIENCE: Duration = Duration::from_secs(15);

/// An email and the server that takes it.
#[derive(Debug, Clone)]
pub(crate) struct Mail {
    message: Message,
    server: SmtpTransport,
}

impl Mail {
    /// To those whom `target` names; `password` belongs to the user in its URL.
    pub(crate) fn new(
        target: &Notification,
        password: Option<&Secret>,
        from: &Identity,
        email: &Email,
    ) -> Result<Self, String> {
        let address = |text: &str| text.parse().map_err(|error| format!("{text:?} is no address for email: {error}"));
        let sender = Mailbox::new(Some(from.name.clone()), address(&from.email)?);
        let mut message = Message::builder().from(sender).message_id(None).subject(&email.subject);
        message = message.header(ContentType::TEXT_PLAIN);
        for to in &target.to {
            message = message.to(Mailbox::new(None, address(to)?));
        }
        let message = message.body(email.text.clone()).map_err(|error| error.to_string())?;
        let url =
            target.url.as_deref().ok_or("email needs url: smtps://USER@HOST[:PORT] or smtp://USER@HOST[:PORT]")?;
        Ok(Self { message, server: server(url, password)? })
    }

    /// Sends it once; the flag says whether the server will never take it.
    pub(crate) async fn send(&self) -> Result<(), (String, bool)> {
        let letter = self.clone();
        let sending = tokio::task::spawn_blocking(move || letter.server.send(&letter.message).map(drop));
        let sent = sending.await.map_err(|error| (error.to_string(), false))?;
        sent.map_err(|error| (words(&error), error.is_permanent()))
    }
}

/// The error with its causes, as a text.
fn words(error: &lettre::transport::smtp::Error) -> String {
    let mut words = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) {
            words.push_str(&format!(": {cause_words}"));
        }
        source = cause.source();
    }
    words
}

fn server(url: &str, password: Option<&Secret>) -> Result<SmtpTransport, String> {
    let wrong = |why: &str| {
        format!("{why}: write smtps://USER@HOST[:PORT] or smtp://USER@HOST[:PORT], the password in a secret")
    };
    let url = Url::parse(url).map_err(|_| wrong("the URL of the mail server cannot be read"))?;
    let host = url.host_str().ok_or_else(|| wrong("it names no host"))?;
    let is_here = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    let builder = match url.scheme() {
        "smtps" => SmtpTransport::relay(host),
        "smtp" if is_here => Ok(SmtpTransport::builder_dangerous(host)),
        "smtp" => SmtpTransport::starttls_relay(host),
        _ => return Err(wrong("it is of no protocol for email")),
    };
    let mut builder = builder.map_err(|error| error.to_string())?.timeout(Some(PATIENCE));
    if let Some(port) = url.port() {
        builder = builder.port(port);
    }
    match (url.username(), password) {
        ("", _) => {}
        (user, Some(password)) => {
            // A user is often an address, whose @ is %40 in a URL.
            let user = percent_decode_str(user).decode_utf8().map_err(|_| wrong("its user cannot be read"))?;
            builder = builder.credentials(Credentials::new(user.into_owned(), password.expose().trim().to_owned()));
        }
        (_, None) => return Err(wrong("there is a user and no password")),
    }
    Ok(builder.build())
}
