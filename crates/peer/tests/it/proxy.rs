//! Network between two nodes: carries bytes until it stops or breaks.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProxyMode {
    Forward,
    /// Takes bytes and loses them: a partition as TCP sees it.
    Blackhole,
}

pub(crate) struct Proxy {
    pub(crate) at: SocketAddr,
    pub(crate) accepted: Arc<AtomicUsize>,
    mode: watch::Sender<ProxyMode>,
    tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let (mode, accepted) = (watch::Sender::new(ProxyMode::Forward), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        let (modes, count) = (mode.subscribe(), Arc::clone(&accepted));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                count.fetch_add(1, SeqCst);
                let Ok(far) = TcpStream::connect(target).await else { continue };
                let ((a, b), (c, d)) = (near.into_split(), far.into_split());
                connections.spawn(carry(a, d, modes.clone()));
                connections.spawn(carry(c, b, modes.clone()));
            }
        });
        Self { at, accepted, mode, tasks }
    }

    pub(crate) fn swallow(&self) {
        self.mode.send_replace(ProxyMode::Blackhole);
    }

    /// Breaks all connections and takes no more.
    pub(crate) async fn cut(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mode: watch::Receiver<ProxyMode>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(some @ 1..) = from.read(&mut bytes).await {
        if *mode.borrow() == ProxyMode::Forward && to.write_all(&bytes[..some]).await.is_err() {
            return;
        }
    }
}
