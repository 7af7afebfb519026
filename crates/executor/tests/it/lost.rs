//! No request is lost that was accepted: the model server is killed and started again under load, then the executor ends.
//!
//! `BERTH_REQUESTS=1000000 cargo test --release -p berth-executor lost` sends as many.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    task::JoinSet,
};

use crate::fixture::{PATIENCE, anywhere, config, echo, executor, server};

/// Clients that send one request after the other.
const CLIENTS: usize = 32;

/// Times that the model server is killed.
const KILLS: usize = 5;

/// Counts of the requests of all clients.
#[derive(Default)]
struct Fate {
    sent: AtomicUsize,
    answered: AtomicUsize,
    /// The executor has been told to end.
    ending: AtomicBool,
}

/// One request on a connection, and if the connection goes on after it.
async fn ask(connection: &mut BufReader<TcpStream>, number: usize) -> io::Result<bool> {
    let body = number.to_string();
    let request = format!("POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    connection.get_mut().write_all(request.as_bytes()).await?;
    let (mut line, mut length, mut stays) = (String::new(), 0, true);
    if connection.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    if !line.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!("the answer begins with {line:?}")));
    }
    loop {
        line.clear();
        connection.read_line(&mut line).await?;
        match line.trim_end().split_once(": ") {
            Some(("content-length", bytes)) => length = bytes.parse().map_err(io::Error::other)?,
            Some(("connection", "close")) => stays = false,
            Some(_) => {}
            None => break,
        }
    }
    let mut answer = vec![0; length];
    connection.read_exact(&mut answer).await?;
    match answer == format!("/predict {body}").as_bytes() {
        true => Ok(stays),
        false => Err(io::Error::other("the answer is another one's")),
    }
}

/// Sends requests until nobody takes its connections. An error: a request was lost.
async fn client(to: SocketAddr, fate: Arc<Fate>) -> io::Result<()> {
    loop {
        let Ok(stream) = TcpStream::connect(to).await else { return Ok(()) };
        let mut connection = BufReader::new(stream);
        let mut is_first = true;
        loop {
            let number = fate.sent.fetch_add(1, Relaxed);
            let stays = match tokio::time::timeout(PATIENCE, ask(&mut connection, number)).await? {
                Ok(stays) => stays,
                // The kernel had the connection, and the executor never took it.
                Err(error) if is_first && fate.ending.load(Relaxed) && is_untouched(&error) => {
                    fate.sent.fetch_sub(1, Relaxed);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            fate.answered.fetch_add(1, Relaxed);
            is_first = false;
            if !stays {
                break;
            }
        }
    }
}

fn is_untouched(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

async fn answered(fate: &Fate, number: usize) {
    while fate.answered.load(Relaxed) < number {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_accepted_request_is_lost() {
    let wanted = std::env::var_os("BERTH_REQUESTS").and_then(|text| text.to_str()?.parse().ok()).unwrap_or(3_000_usize);
    let mut model = server(anywhere(), echo).await;
    let address = model.address;
    let settings = "connectTimeout: 20s, retry: {attempts: 10, paths: [/predict]}, health: {every: 100ms}";
    let executor = executor(&config(address, settings).replace("delay: 0s", "delay: 1s"));
    let (fate, mut clients) = (Arc::new(Fate::default()), JoinSet::new());
    for _ in 0..CLIENTS {
        clients.spawn(client(executor.address, Arc::clone(&fate)));
    }
    for kill in 1..=KILLS {
        answered(&fate, wanted * kill / (KILLS + 1)).await;
        drop(model);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        model = server(address, echo).await;
    }
    answered(&fate, wanted).await;
    // Clients go on, and are told to leave.
    fate.ending.store(true, Relaxed);
    assert_eq!(executor.ends().await, 0);
    for outcome in clients.join_all().await {
        outcome.expect("no request is lost");
    }
    let (sent, answered) = (fate.sent.load(Relaxed), fate.answered.load(Relaxed));
    assert!(sent == answered && answered >= wanted, "{answered} of {sent}");
    println!("{answered} of {sent} answered");
}
