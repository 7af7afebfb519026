//! The text protocol of NATS (docs.nats.io, "Client Protocol"): what a server sends, and what a client does.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Longest line of a server: its INFO names the servers of a cluster.
const LONGEST_LINE: u64 = 64 << 10;

/// Largest message that is read. Servers take at most 64 MiB.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// A message as it comes to a subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) subject: String,
    /// Number of the subscription.
    pub(super) to: u64,
    pub(crate) reply: Option<String>,
    /// The status that a server answers with in the place of a message, such as 503: nobody listens.
    pub(crate) status: Option<u16>,
    pub(crate) payload: Bytes,
}

/// Something that a server says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerMessage {
    Info(String),
    Message(Message),
    Ping,
    Pong,
    Ok,
    Error(String),
}

/// Reads the next thing that the server says.
pub(super) async fn read<R: AsyncBufRead + Unpin>(reader: &mut R) -> io::Result<ServerMessage> {
    let mut line = Vec::new();
    (&mut *reader).take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    let line = std::str::from_utf8(&line).ok().and_then(|line| line.strip_suffix('\n')).ok_or_else(broken)?.trim_end();
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    match word.to_ascii_uppercase().as_str() {
        "INFO" => Ok(ServerMessage::Info(rest.to_owned())),
        "PING" => Ok(ServerMessage::Ping),
        "PONG" => Ok(ServerMessage::Pong),
        "+OK" => Ok(ServerMessage::Ok),
        "-ERR" => Ok(ServerMessage::Error(rest.trim_matches('\'').to_owned())),
        "MSG" | "HMSG" => message(reader, rest, word.len() == 4).await,
        _ => Err(broken()),
    }
}

async fn message<R: AsyncBufRead + Unpin>(reader: &mut R, line: &str, with_headers: bool) -> io::Result<ServerMessage> {
    let mut words: Vec<&str> = line.split_ascii_whitespace().collect();
    let mut number = || words.pop().and_then(|word| word.parse::<usize>().ok()).ok_or_else(broken);
    let all = number()?;
    let head = if with_headers { number()? } else { 0 };
    let (subject, to, reply) = match *words {
        [subject, to] => (subject, to, None),
        [subject, to, reply] => (subject, to, Some(reply.to_owned())),
        _ => return Err(broken()),
    };
    let to = to.parse().map_err(|_| broken())?;
    if all > MAX_MESSAGE_BYTES || head > all {
        return Err(broken());
    }
    let mut payload = BytesMut::zeroed(all + 2);
    reader.read_exact(&mut payload).await?;
    let mut payload = payload.freeze().slice(..all);
    let headers = payload.split_to(head);
    Ok(ServerMessage::Message(Message { subject: subject.to_owned(), to, reply, status: status(&headers), payload }))
}

/// The status in the first line of headers, `NATS/1.0 404 No Messages`.
fn status(headers: &[u8]) -> Option<u16> {
    let line = headers.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.strip_prefix("NATS/1.0 ")?.split(' ').next()?.parse().ok()
}

/// Something that a client says.
pub(super) enum ClientMessage<'a> {
    Publish { subject: &'a str, reply: Option<&'a str>, header: Option<(&'a str, &'a str)>, payload: &'a [u8] },
    Subscribe { subject: &'a str, number: u64 },
}

impl ClientMessage<'_> {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Subscribe { subject, number } => out.extend(format!("SUB {subject} {number}\r\n").into_bytes()),
            Self::Publish { subject, reply, header, payload } => {
                let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
                let head = header.map(|(name, value)| format!("NATS/1.0\r\n{name}: {value}\r\n\r\n"));
                let line = match &head {
                    None => format!("PUB {subject} {reply}{}\r\n", payload.len()),
                    Some(head) => format!("HPUB {subject} {reply}{} {}\r\n", head.len(), head.len() + payload.len()),
                };
                out.extend(line.into_bytes());
                out.extend(head.unwrap_or_default().into_bytes());
                out.extend_from_slice(payload);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server speaks no protocol of NATS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_server_says() {
        let text = b"INFO {\"a\":1}\r\nMSG a.b 7 5\r\nhello\r\nMSG a 7 re.ply 0\r\n\r\n\
            HMSG a 1 r 28 30\r\nNATS/1.0 404 No Messages\r\n\r\nhi\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'Slow'\r\n";
        let mut reader = &text[..];
        let message = |subject: &str, to, reply: Option<&str>, status, payload: &'static [u8]| {
            let reply = reply.map(str::to_owned);
            ServerMessage::Message(Message { subject: subject.into(), to, reply, status, payload: payload.into() })
        };
        for expected in [
            ServerMessage::Info("{\"a\":1}".into()),
            message("a.b", 7, None, None, b"hello"),
            message("a", 7, Some("re.ply"), None, b""),
            message("a", 1, Some("r"), Some(404), b"hi"),
            ServerMessage::Ping,
            ServerMessage::Pong,
            ServerMessage::Ok,
            ServerMessage::Error("Slow".into()),
        ] {
            assert_eq!(read(&mut reader).await.expect("it is right"), expected);
        }
        for wrong in [
            "",
            "MSG a 7",
            "HTTP/1.1 200 OK\r\n",
            "MSG a 7 99999999999\r\n",
            "MSG a x 0\r\n",
            "HMSG a 7 9 3\r\nabc\r\n",
        ] {
            assert!(read(&mut wrong.as_bytes()).await.is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_client_says() {
        let mut out = Vec::new();
        ClientMessage::Subscribe { subject: "a.>", number: 3 }.write(&mut out);
        ClientMessage::Publish { subject: "a", reply: None, header: None, payload: b"x" }.write(&mut out);
        ClientMessage::Publish { subject: "a", reply: Some("r"), header: Some(("K", "1")), payload: b"xy" }
            .write(&mut out);
        let expected = "SUB a.> 3\r\nPUB a 1\r\nx\r\nHPUB a r 18 20\r\nNATS/1.0\r\nK: 1\r\n\r\nxy\r\n";
        assert_eq!(String::from_utf8(out).expect("text"), expected);
    }
}
