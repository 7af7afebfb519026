//! Closed-loop load: `concurrency` callers that each send the next request when the last one is answered.
//!
//! Requests are encoded once and sent as bytes, and responses are read only as far as needed to know that they are
//! whole and good, so that the generator takes as little of the machine as it can.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// One request, ready to be sent.
#[derive(Clone)]
pub(crate) enum Request {
    /// The bytes of a whole HTTP/1.1 request.
    Http(Bytes),
    /// A path and a length-prefixed message.
    Grpc { path: &'static str, message: Bytes },
}

/// Figures of a load.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:8.0}/s  p50 {:?}  p99 {:?}", self.per_second, self.p50, self.p99)
    }
}

/// Time under load before anything is counted.
pub(crate) const WARM_UP: Duration = Duration::from_millis(700);

/// gRPC clients share connections as real ones do: this many streams on one.
const STREAMS: usize = 16;

/// Encryption of connections.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) connector: TlsConnector,
    pub(crate) name: ServerName<'static>,
}

/// One request over a connection of its own.
pub(crate) async fn once(address: SocketAddr, tls: Option<Tls>, request: &[u8]) -> Result<(u16, Bytes)> {
    match tls {
        None => HttpConnection::open(address).await?.call(request).await,
        Some(tls) => {
            let stream = tls.connector.connect(tls.name, connect(address).await?).await?;
            HttpConnection::over(stream).call(request).await
        }
    }
}

/// Runs the load over HTTP/1.1, encrypted or not.
pub(crate) async fn run_over(
    address: SocketAddr,
    tls: Option<Tls>,
    request: &Request,
    concurrency: usize,
    seconds: u64,
) -> Result<Figures> {
    let (Request::Http(bytes), Some(tls)) = (request, tls) else {
        return run(address, request, concurrency, seconds).await;
    };
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(seconds);
    let mut callers = JoinSet::new();
    for _ in 0..concurrency {
        let (tls, bytes) = (tls.clone(), bytes.clone());
        callers.spawn(async move {
            let stream = tls.connector.connect(tls.name, connect(address).await?).await?;
            http_caller(HttpConnection::over(stream), bytes, begin, end).await
        });
    }
    gather(callers, seconds).await
}

/// Runs the load; any failed request is an error, because figures of failures mean nothing.
pub(crate) async fn run(address: SocketAddr, request: &Request, concurrency: usize, seconds: u64) -> Result<Figures> {
    let begin = Instant::now() + WARM_UP;
    let end = begin + Duration::from_secs(seconds);
    let mut callers = JoinSet::new();
    match request {
        Request::Http(bytes) => {
            for _ in 0..concurrency {
                let bytes = bytes.clone();
                callers
                    .spawn(async move { http_caller(HttpConnection::open(address).await?, bytes, begin, end).await });
            }
        }
        Request::Grpc { path, message } => {
            for first in (0..concurrency).step_by(STREAMS) {
                let connection = grpc_connection(address).await?;
                for _ in first..concurrency.min(first + STREAMS) {
                    callers.spawn(grpc_caller(connection.clone(), address, path, message.clone(), begin, end));
                }
            }
        }
    }
    gather(callers, seconds).await
}

async fn gather(mut callers: JoinSet<Result<Histogram<u64>>>, seconds: u64) -> Result<Figures> {
    let mut all = Histogram::<u64>::new(3)?;
    while let Some(caller) = callers.join_next().await {
        all.add(caller??)?;
    }
    ensure!(!all.is_empty(), "no request was answered");
    Ok(figures(&all, seconds))
}

/// The figures of latencies in nanoseconds that were seen in so many seconds.
pub(crate) fn figures(seen: &Histogram<u64>, seconds: u64) -> Figures {
    let quantile = |q| Duration::from_nanos(seen.value_at_quantile(q));
    Figures { per_second: seen.len() as f64 / seconds as f64, p50: quantile(0.5), p99: quantile(0.99) }
}

async fn http_caller<S: AsyncRead + AsyncWrite + Unpin>(
    mut connection: HttpConnection<S>,
    request: Bytes,
    begin: Instant,
    end: Instant,
) -> Result<Histogram<u64>> {
    let mut seen = Histogram::new(3)?;
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(seen);
        }
        let (status, body) = connection.call(&request).await?;
        ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(&body));
        if sent >= begin {
            seen.record(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))?;
        }
    }
}

/// A kept-alive HTTP/1.1 connection that reads responses with a content length.
pub(crate) struct HttpConnection<S = TcpStream> {
    stream: S,
    buffer: BytesMut,
}

impl HttpConnection {
    pub(crate) async fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self::over(connect(address).await?))
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl<S: AsyncRead + AsyncWrite + Unpin> HttpConnection<S> {
    fn over(stream: S) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(1 << 16) }
    }

    /// Sends the bytes of a request and reads the answer to it.
    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<(u16, Bytes)> {
        let (status, _, body) = self.exchange(request).await?;
        Ok((status, body))
    }

    /// The same, with the head of the answer between its status and its body.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<(u16, Bytes, Bytes)> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let (status, head, length) = loop {
            if let Some(found) = head(&self.buffer)? {
                break found;
            }
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed the connection");
        };
        while self.buffer.len() < head + length {
            ensure!(self.stream.read_buf(&mut self.buffer).await? > 0, "the server closed the connection");
        }
        let mut answer = self.buffer.split_to(head + length).freeze();
        let body = answer.split_off(head);
        Ok((status, answer, body))
    }

    /// True if no byte of an answer is there that was not read to its end.
    pub(crate) fn is_silent(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Status, length of the head, length of the body; `None` until the head is whole.
fn head(buffer: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&buffer[..end])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status line")?.parse()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    match length {
        Some(length) => Ok(Some((status, end + 4, length?))),
        None => bail!("the response has no content length: {text}"),
    }
}

/// A connection of HTTP/2 for calls at once.
pub(crate) async fn grpc_connection(address: SocketAddr) -> Result<h2::client::SendRequest<Bytes>> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(8 << 20);
    let (sender, connection) = builder.handshake(stream).await?;
    // The connection ends with its last sender; its errors show in the calls.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    driver.detach_all();
    Ok(sender)
}

async fn grpc_caller(
    sender: h2::client::SendRequest<Bytes>,
    address: SocketAddr,
    path: &'static str,
    message: Bytes,
    begin: Instant,
    end: Instant,
) -> Result<Histogram<u64>> {
    let mut seen = Histogram::new(3)?;
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(seen);
        }
        grpc_call(sender.clone(), address, path, message.clone()).await?;
        if sent >= begin {
            seen.record(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))?;
        }
    }
}

async fn grpc_call(
    sender: h2::client::SendRequest<Bytes>,
    address: SocketAddr,
    path: &str,
    message: Bytes,
) -> Result<()> {
    let mut stream = GrpcStream::open(sender, address, path, &[]).await?;
    stream.send(message, true)?;
    stream.finish().await
}

/// A gRPC call with messages in both directions.
pub(crate) struct GrpcStream {
    to: h2::SendStream<Bytes>,
    from: From,
}

/// The answer's side of a call.
enum From {
    Waits(h2::client::ResponseFuture),
    Comes(h2::RecvStream),
}

impl GrpcStream {
    pub(crate) async fn open(
        sender: h2::client::SendRequest<Bytes>,
        address: SocketAddr,
        path: &str,
        metadata: &[(&str, &str)],
    ) -> Result<Self> {
        let mut sender = sender.ready().await?;
        let mut request = http::Request::post(format!("http://{address}{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let (response, to) = sender.send_request(request.body(())?, false)?;
        Ok(Self { to, from: From::Waits(response) })
    }

    /// Sends bytes, and with `last` the end of them.
    pub(crate) fn send(&mut self, bytes: Bytes, last: bool) -> Result<()> {
        Ok(self.to.send_data(bytes, last)?)
    }

    /// Reads so many bytes of the answer.
    pub(crate) async fn receive(&mut self, length: usize) -> Result<Bytes> {
        let mut all = BytesMut::with_capacity(length);
        let body = self.body().await?;
        while all.len() < length {
            let data = body.data().await.context("the answer ended early")??;
            body.flow_control().release_capacity(data.len())?;
            all.extend_from_slice(&data);
        }
        Ok(all.freeze())
    }

    /// Reads to the end, which must be a good one.
    pub(crate) async fn finish(mut self) -> Result<()> {
        let body = self.body().await?;
        while let Some(data) = body.data().await {
            let length = data?.len();
            body.flow_control().release_capacity(length)?;
        }
        let trailers = body.trailers().await?.context("the gRPC response has no trailers")?;
        good(&trailers)?.context("the trailers have no status")
    }

    async fn body(&mut self) -> Result<&mut h2::RecvStream> {
        if let From::Waits(response) = &mut self.from {
            let response = response.await?;
            good(response.headers())?;
            self.from = From::Comes(response.into_body());
        }
        match &mut self.from {
            From::Comes(body) => Ok(body),
            From::Waits(_) => bail!("the answer has not come"),
        }
    }
}

/// Looks for a status: `None` where there is none, an error where it is a bad one.
fn good(headers: &http::HeaderMap) -> Result<Option<()>> {
    let Some(status) = headers.get("grpc-status") else { return Ok(None) };
    ensure!(status.as_bytes() == b"0", "gRPC error: {:?}", headers.get("grpc-message"));
    Ok(Some(()))
}
