//! The webhook, which admits and converts objects: its port, and its certificate, which it makes and renews by itself. Each operator has its own key,
//! which never leaves its pod; its certificate is published where the API server looks.

mod turns;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use berth_operator::{admission, driver::gatekeeper::Gatekeeper};
use berth_peer::port::{ClientAuth, Port, PortTls, SelfMade, TlsSettings, TlsVersion};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use self::turns::{LISTS, REVIEWS, Turns};
use super::port::{self, response};
use crate::failure::Failure;

/// Interval between looks at the certificate and at what the API server trusts: one small request each time, and a new
/// operator is asked within seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// A webhook that listens.
pub(super) struct Webhook {
    port: Port,
    tls: PortTls,
    certificate: Certificate,
    gatekeeper: Gatekeeper,
}

/// The place and the names of the certificate.
#[derive(Clone)]
struct Certificate {
    folder: PathBuf,
    names: Vec<String>,
}

impl Certificate {
    /// The certificate as it is, or a new one where it is missing or ends soon. Blocking.
    fn made(&self) -> Result<SelfMade, Failure> {
        SelfMade::in_folder(&self.folder, &self.names)
            .map_err(|error| Failure::doing("cannot make the webhook's certificate", error))
    }
}

/// Takes the port, with a certificate for the Service of `namespace`.
///
/// # Errors
/// [`Failure`]: the port is taken, or the folder cannot be written.
pub(super) async fn bind(
    address: SocketAddr,
    folder: &Path,
    namespace: &str,
    gatekeeper: Gatekeeper,
) -> Result<Webhook, Failure> {
    let names = [&format!("berth-operator.{namespace}.svc"), "localhost", "127.0.0.1"].map(str::to_owned).to_vec();
    let certificate = Certificate { folder: folder.to_owned(), names };
    let SelfMade { certificate: file, key, .. } = certificate.made()?;
    let settings = TlsSettings { certificate: file, key, clients: ClientAuth::Off, oldest: TlsVersion::V1_2 };
    let tls =
        PortTls::load(settings).map_err(|error| Failure::doing("the webhook's certificate is unusable", error))?;
    let port = port::bind("the webhook", "--webhook-listen", address, Some(tls.clone())).await?;
    Ok(Webhook { port, tls, certificate, gatekeeper })
}

impl Webhook {
    /// Answers, until it is dropped.
    pub(super) async fn serve(self) {
        let (gatekeeper, reviews, lists) = (self.gatekeeper.clone(), Turns::of(REVIEWS), Turns::of(LISTS));
        let answer = move |request: Request<Incoming>| {
            let (gatekeeper, reviews, lists) = (gatekeeper.clone(), reviews.clone(), lists.clone());
            async move {
                match (request.method(), request.uri().path()) {
                    (&Method::POST, "/admit") => review(&gatekeeper, request, &reviews).await,
                    (&Method::POST, "/convert") => convert(gatekeeper, request, &lists).await,
                    _ => response(StatusCode::NOT_FOUND, TEXT, "use POST /admit or /convert\n".to_owned()),
                }
            }
        };
        tokio::join!(
            port::serve(self.port, answer),
            self.tls.follow(),
            keep_trusted(&self.certificate, &self.gatekeeper),
        );
    }
}

/// Renews the certificate before it ends, and keeps it among those that the API server trusts.
async fn keep_trusted(certificate: &Certificate, gatekeeper: &Gatekeeper) {
    let mut told = String::new();
    loop {
        let made = certificate.clone();
        let trusted = tokio::task::spawn_blocking(move || {
            let made = made.made()?;
            Ok::<_, Failure>(fs_err::read_to_string(&made.ca)?)
        });
        let published = match trusted.await {
            Ok(Ok(ca)) => gatekeeper.publish(&ca).await.map_err(|error| error.to_string()),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match published {
            Ok(true) => {
                tracing::info!(event = "webhook_trusted", "the API server is told to trust this operator's certificate")
            }
            Ok(false) => told.clear(),
            Err(error) if error == told => {}
            Err(error) => {
                tracing::warn!(event = "webhook_untrusted", %error, "tried again");
                told = error;
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn review(gatekeeper: &Gatekeeper, request: Request<Incoming>, turns: &Turns) -> Response<Full<Bytes>> {
    let question = match turns.read(request.into_body()).await {
        Ok(question) => question,
        Err(refusal) => return response(refusal.status(), TEXT, format!("{refusal}\n")),
    };
    // A long one would keep others from this thread for some time.
    let read = match question.is_long() {
        false => Ok((admission::Request::read(question.bytes()), None)),
        true => {
            let read = move || (admission::Request::read(question.bytes()), question.into_turn());
            tokio::task::spawn_blocking(read).await
        }
    };
    // The turn is held until the answer is there, as what was read is.
    let (asked, _turn) = match read {
        Ok((Ok(asked), turn)) => (asked, turn),
        Ok((Err(malformed), _)) => return response(StatusCode::BAD_REQUEST, TEXT, format!("{malformed}\n")),
        Err(error) => return response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    };
    response(StatusCode::OK, JSON, gatekeeper.review(&asked).await.to_string())
}

async fn convert(gatekeeper: Gatekeeper, request: Request<Incoming>, turns: &Turns) -> Response<Full<Bytes>> {
    let list = match turns.read(request.into_body()).await {
        Ok(list) => list,
        Err(refusal) => return response(refusal.status(), TEXT, format!("{refusal}\n")),
    };
    // The list goes along: it keeps its turn until it is converted, also where the sender has left.
    match tokio::task::spawn_blocking(move || gatekeeper.convert(list.bytes())).await {
        Ok(Ok(answer)) => response(StatusCode::OK, JSON, answer),
        Ok(Err(malformed)) => response(StatusCode::BAD_REQUEST, TEXT, format!("{malformed}\n")),
        Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
    }
}
