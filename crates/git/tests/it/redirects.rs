//! A host that sends us elsewhere, over HTTP on loopback.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use berth_git::{Category, Credentials, GitError, Mirror, Protocols, Remote};

use crate::fixture::{git_program, stop};

/// The heads of all requests that a server got.
type Heads = Arc<Mutex<Vec<String>>>;

/// Answers every request with what `answer` makes of its head, until the test ends.
fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let heads = Heads::default();
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream: TcpStream = stream.expect("a connection");
            let lines = BufReader::new(stream.try_clone().expect("the same")).lines();
            let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let head = head.join("\n");
            let reply = answer(&head);
            seen.lock().expect("nobody panicked").push(head);
            // Who hung up wants no answer.
            let _ = stream.write_all(format!("HTTP/1.1 {reply}\r\nConnection: close\r\n\r\n").as_bytes());
        }
    });
    (port, heads)
}

/// A head of an answer that speaks git's protocol, so that git goes on to ask more.
fn advertisement() -> String {
    let body = "001e# service=git-upload-pack\n0000000eversion 2\n0013ls-refs=unborn\n0012fetch=shallow\n0000";
    format!(
        "200 OK\r\nContent-Type: application/x-git-upload-pack-advertisement\r\nConnection: close\r\nContent-Length: \
         {}\r\n\r\n{body}",
        body.len()
    )
}

/// Outcome of asking a server on this machine for its refs, with a token.
fn asked(port: u16) -> GitError {
    let folder = tempfile::tempdir().expect("a folder");
    let remote = Remote::parse(&format!("http://127.0.0.1:{port}/x.git"), Protocols::default()).expect("a URL");
    let mirror = Mirror::open(git_program(), folder.path(), remote, &stop()).expect("a mirror");
    let token = Credentials::Token { username: "u".to_owned(), token: "s3cret".to_owned() };
    mirror.ls_remote(&[], &token, &stop()).expect_err("nobody here lets us in")
}

const FORBIDDEN: &str = "403 Forbidden\r\nContent-Length: 0";

#[test]
fn a_token_is_shown_to_the_host_that_wants_it() {
    let (port, heads) = serve(|head| match head.contains("Authorization:") {
        true => FORBIDDEN.to_owned(),
        false => "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0".to_owned(),
    });
    let error = asked(port);
    assert_eq!(error.category, Category::Auth, "{error}");
    let heads = heads.lock().expect("nobody panicked");
    assert!(heads.iter().any(|head| head.contains("Authorization: Basic dTpzM2NyZXQ=")), "{heads:?}");
}

#[test]
fn a_token_is_not_shown_to_the_host_that_the_remote_redirects_to() {
    let (elsewhere, heads) = serve(|head| if head.starts_with("GET") { advertisement() } else { FORBIDDEN.to_owned() });
    let (port, _) = serve(move |head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        format!("302 Found\r\nLocation: http://localhost:{elsewhere}{path}\r\nContent-Length: 0")
    });
    let error = asked(port);
    assert_eq!(error.category, Category::Auth, "{error}");
    let heads = heads.lock().expect("nobody panicked");
    assert!(heads.iter().any(|head| head.starts_with("POST")), "{heads:?}");
    assert!(heads.iter().all(|head| !head.contains("Authorization")), "{heads:?}");
}
