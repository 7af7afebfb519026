//! A proxy in front of a member that loses answers, to see what becomes of what was asked.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

/// Passes bytes on in both directions, until told to lose them.
pub(crate) struct Proxy {
    address: SocketAddr,
    switch: Arc<Switch>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Switch {
    /// Drops everything that the server sends.
    mute: AtomicBool,
    /// Every connection that is open ends.
    cut: Notify,
}

impl Proxy {
    pub(crate) async fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let switch = Arc::new(Switch::default());
        let mut tasks = JoinSet::new();
        let (shared, server) = (Arc::clone(&switch), server.to_owned());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (shared, server) = (Arc::clone(&shared), server.clone());
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        () = pass(client, server, &shared) => {}
                        () = shared.cut.notified() => {}
                    }
                });
            }
        });
        Self { address, switch, _tasks: tasks }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on nothing that the server says arrives, on any connection.
    pub(crate) fn mute(&self) {
        self.switch.mute.store(true, Ordering::SeqCst);
    }

    /// Ends all connections, and lets the next ones through.
    pub(crate) fn cut(&self) {
        self.switch.mute.store(false, Ordering::SeqCst);
        self.switch.cut.notify_waiters();
    }
}

async fn pass(client: TcpStream, server: TcpStream, switch: &Switch) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let down = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let length = from_server.read(&mut bytes).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            if !switch.mute.load(Ordering::SeqCst) {
                to_client.write_all(&bytes[..length]).await?;
            }
        }
    };
    // Either end: the other follows when both halves are dropped.
    let _ended = futures::future::select(std::pin::pin!(up), std::pin::pin!(down)).await;
}
