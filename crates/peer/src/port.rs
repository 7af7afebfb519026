//! The bounds of a port: how many connections, how many of one address, and how long each may be silent. Every port of
//! Berth has them, whatever it speaks.
//!
//! ```text
//! kernel ──▶ accept ── room for all? ── room for its address? ──▶ Place (counts until it is dropped)
//!               ▲            │ no: waits in the kernel   │ no: closed at once, one line in the log now and then
//!               └────────────┘
//! Greeter::greet:     TLS, where the port has it, in 10 s (greeting)
//!
//! Activity::silence:  no request within Patience::first ──▶ NoRequest  (whatever protocol it began to speak)
//!                     HTTP/2 without streams for Patience::idle ──▶ Idle    (HTTP/1 has a limit of its own in hyper)
//!                     the end of an answer over HTTP/2 is left unread ──▶ Unread: no new streams; for as long again ──▶ unread_still
//! ReadWatch:          an answer over HTTP/2 is left unread ──▶ its stream is reset (unread); HTTP/1 is the kernel's (prepare)
//! ```

mod activity;
mod addresses;
mod client_certificate;
mod discard;
mod greeting;
mod kept_pieces;
mod read_ahead;
mod stream;
mod tls;
mod unread;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

pub use self::{
    activity::{Activity, Counting, Inactivity, OpenStream, Patience},
    addresses::{AddressLimit, AddressPlace, HolderLimit, HolderPlace},
    discard::{RequestBody, answer_whole, discard},
    greeting::{Greeted, Greeter},
    kept_pieces::KeptPieces,
    read_ahead::ReadAhead,
    stream::{ClientStream, MaybeTls, ServerStream, prepare},
    tls::{ClientAuth, PortTls, SelfMade, TlsError, TlsSettings, TlsVersion, suites},
    unread::{LeftUnread, Paced, ReadWatch},
};

/// The pause after the kernel could not give a connection, most often for want of file descriptors: long enough not to
/// spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// Shortest time between two lines in the log about the same port, which strangers can cause at any rate.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Bounds on the number of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once; more wait in the kernel.
    pub connections: usize,
    /// Connections of one address; more are closed.
    pub per_address: usize,
}

/// Room for connections, of one port or of several that share it.
#[derive(Clone)]
pub struct Room {
    all: Arc<Semaphore>,
    addresses: Arc<AddressLimit>,
}

impl Room {
    /// Room for so many connections.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let addresses = AddressLimit::new(bounds.per_address);
        Self { all: Arc::new(Semaphore::new(bounds.connections)), addresses }
    }
}

/// A listening port: accepts connections within its bounds, with or without TLS.
pub struct Port {
    name: &'static str,
    listener: TcpListener,
    room: Room,
    failed: Damped,
    refused: Damped,
    greeter: Greeter,
}

/// The place of one connection. Counts until it is dropped.
pub struct ConnectionPermit {
    _of_address: AddressPlace,
    _room: OwnedSemaphorePermit,
}

impl Port {
    /// `name` is what the log calls it.
    #[must_use]
    pub fn new(name: &'static str, listener: TcpListener, bounds: Bounds) -> Self {
        Self::within(name, listener, Room::new(bounds))
    }

    /// The same, in the room of several ports. Each that waits for a connection holds a place of it.
    #[must_use]
    pub fn within(name: &'static str, listener: TcpListener, room: Room) -> Self {
        Self {
            name,
            listener,
            room,
            failed: Damped::default(),
            refused: Damped::default(),
            greeter: Greeter::new(name, None),
        }
    }

    /// Its connections begin with a TLS handshake. Nobody follows the files here ([`PortTls::follow`]).
    #[must_use]
    pub fn with_tls(self, tls: Option<PortTls>) -> Self {
        Self { greeter: Greeter::new(self.name, tls), ..self }
    }

    /// Begins its connections, each in the task that serves it.
    #[must_use]
    pub fn greeter(&self) -> Greeter {
        self.greeter.clone()
    }

    /// The next connection. Failures to accept one are told in the log, and waited out.
    pub async fn accept(&self) -> (TcpStream, SocketAddr, ConnectionPermit) {
        loop {
            let Ok(room) = Arc::clone(&self.room.all).acquire_owned().await else { std::future::pending().await };
            match self.listener.accept().await {
                Ok((stream, from)) => match self.room.addresses.place(from.ip()) {
                    Some(of_address) => {
                        return (stream, from, ConnectionPermit { _of_address: of_address, _room: room });
                    }
                    None => self.refuse(from),
                },
                Err(error) => {
                    if let Some(times) = self.failed.tell(Instant::now()) {
                        tracing::warn!(
                            event = "accept_failed",
                            port = self.name,
                            %error,
                            times,
                            "cannot accept a connection; if files are short, raise the limit of open files"
                        );
                    }
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn refuse(&self, from: SocketAddr) {
        if let Some(times) = self.refused.tell(Instant::now()) {
            tracing::warn!(
                event = "connection_refused",
                port = self.name,
                address = %from.ip(),
                most = self.room.addresses.most(),
                times,
                "an address has too many connections; further ones are closed"
            );
        }
    }
}

/// Lets one of many equal lines through now and then, with their number.
#[derive(Debug, Default)]
pub struct Damped(Mutex<(Option<Instant>, u64)>);

impl Damped {
    /// The number of times since the last line, if it is time for one.
    pub fn tell(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, times) = &mut *state;
        *times += 1;
        if told.is_some_and(|told| now < told + TOLD_EVERY) {
            return None;
        }
        *told = Some(now);
        Some(std::mem::take(times))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_of_many_lines_is_told_with_their_number() {
        let (damped, now) = (Damped::default(), Instant::now());
        let told: Vec<_> = (0..1_000).filter_map(|_| damped.tell(now)).collect();
        assert_eq!((told, damped.tell(now + TOLD_EVERY)), (vec![1], Some(1_000)));
    }

    #[tokio::test]
    async fn an_address_has_its_share_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let port = Port::new("test", listener, Bounds { connections: 8, per_address: 2 });
        let clients = futures::future::join_all((0..3).map(|_| TcpStream::connect(address))).await;
        let (first, second) = (port.accept().await, port.accept().await);
        assert!(port.accept().now_or_never().is_none(), "the third was closed");
        drop((first, clients));
        let _again = TcpStream::connect(address).await.expect("it listens");
        port.accept().await;
        drop(second);
        assert_eq!(port.room.all.available_permits(), 8);
        assert!(port.room.addresses.held().is_empty());
    }
}
