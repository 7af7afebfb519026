//! The end of a connection to a model server whose machine has gone without a word.
//!
//! Nodes ping each other over HTTP/2 ([`LinePolicy`](crate::LinePolicy)). Model servers get no such pings: servers of gRPC end a
//! connection, and all calls on it, if pings come more often than every five minutes while no data flows, or every two hours while
//! there is no call (`too_many_pings`, <https://grpc.io/docs/guides/keepalive/>). The kernel asks in their place (TCP keep-alive). No server
//! counts its questions, they go out while a connection is idle, too, and the other kernel answers for a server that is busy.
//!
//! The kernel asks nothing while data is not acknowledged. It sends that again, and gives up after about a quarter of an hour
//! (`net.ipv4.tcp_retries2`); calls end then, or at their own time limits. `TCP_USER_TIMEOUT` would end the connection sooner, but it counts
//! the time for which a live server reads nothing and its receive window is full, too: a server that is stuck would lose all calls. A limit
//! that no live server meets would take the place of the number of questions (`tcp_keepalive_timer` of Linux), so that the end of an idle
//! connection would come late.

use std::{io, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, ToSocketAddrs};

/// Silence after which the kernel asks the other end for a sign of life: as long as between the pings of nodes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// Interval between further questions: several may be lost before the connection is given up.
pub const ASK_EVERY: Duration = Duration::from_secs(5);

/// Number of questions without an answer after which a connection ends: 30 s after the other end was last heard. That outlasts a machine
/// that is paused or moved, and callers mostly wait longer.
pub const ASKS: u32 = 4;

/// Connects to a server. What is written goes out at once, and an idle connection ends when the machine is silent.
///
/// # Errors
/// Nobody takes the connection.
pub async fn connect(place: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(place).await?;
    stream.set_nodelay(true)?;
    end_when_silent(&stream);
    Ok(stream)
}

/// Has the kernel end a connection that is idle, or whose calls wait for answers, when the machine at its other end is silent.
pub fn end_when_silent(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let asked = TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(ASK_EVERY).with_retries(ASKS);
    // A socket that refuses still works.
    let _ = socket.set_tcp_keepalive(&asked);
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_machine_ends_an_idle_connection_in_30_s_and_a_full_window_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream = connect(listener.local_addr().expect("bound")).await.expect("connected");
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("a setting"));
        let asked = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval(), socket.tcp_keepalive_retries());
        let asked = (asked.0.expect("a setting"), asked.1.expect("a setting"), asked.2.expect("a setting"));
        assert_eq!(asked, (KEEPALIVE_IDLE, ASK_EVERY, ASKS));
        assert_eq!(KEEPALIVE_IDLE + ASK_EVERY * ASKS, Duration::from_secs(30), "as the docs have it");
        // It would count a full window, and replace the number of questions.
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().expect("a setting"), None);
    }
}
