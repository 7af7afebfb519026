//! Whatever strangers send to the port, against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use socket2::SockRef;

use crate::{
    fixture::{Echo, TestGateway},
    mutator,
};

/// The end of an answer comes within this, or never.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes are all that one connection says. It ends, every answer has a status, none is a fault of the server's, and others are
/// served.
#[test]
fn fuzz_http() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let (gateway, address) = tokio.block_on(async {
        let mut gateway = TestGateway::new();
        gateway.serve("iris", "1", Echo::open()).await;
        let address = gateway.address();
        (gateway, address)
    });
    let is_alive = || {
        // One that closes its half may be gone, and is then owed no answer: this one stays.
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("it reads");
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{ended:?} {:?}", String::from_utf8_lossy(&answer));
    };
    let cases = std::cell::Cell::new(0_u64);
    mutator::run("http", |data| {
        check(&said(address, data));
        cases.set(cases.get() + 1);
        if cases.get() % 1_000 == 1 {
            is_alive();
        }
    });
    is_alive();
    drop(gateway);
    tokio.shutdown_background();
}

/// Says it, says no more, and reads to the end.
fn said(address: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // Closed by a reset, so that a million of them leave nothing in the kernel.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
    let mut answer = Vec::new();
    // It may refuse while this is still being said.
    let sent = stream.write_all(data).and_then(|()| stream.shutdown(Shutdown::Write));
    match sent.and_then(|()| stream.read_to_end(&mut answer)) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            panic!("the connection does not end")
        }
        Err(_) => {}
    }
    answer
}

/// The first answer of HTTP/1.1 has a status that blames nobody else.
fn check(answer: &[u8]) {
    let Some(rest) = answer.strip_prefix(b"HTTP/1.") else { return };
    let status = rest.get(2..5).and_then(|status| std::str::from_utf8(status).ok()?.parse::<u16>().ok());
    let status = status.unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(answer)));
    assert!((100..600).contains(&status) && status != 500, "{}", String::from_utf8_lossy(answer));
}
