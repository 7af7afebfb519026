//! A program on a network of its own whose one way out is a listener on its loopback, which is handed to the starter.
//!
//! ```text
//! starter ──▶ berth --sandbox-network new 3128 -- uv …
//!    ▲          │ leaves the machine's network, turns the loopback of its own on, listens
//!    └ listener ┘ over standard input; then exec, with nothing on standard input
//! ```
//! Nothing else is confined here: that is done by whoever starts it, or by the program that it becomes (bubblewrap).

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode, Stdio},
};

use crate::{
    launch::{NOT_MADE, NOT_STARTED},
    loopback, namespaces, passing,
    spec::Mechanisms,
};

/// The first argument of the program when it is started to put another one on a network of its own.
pub(crate) const FLAG: &str = "--sandbox-network";

/// The network that the listener is made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnNetwork {
    /// A new one, as root makes it.
    New,
    /// A new one in a user namespace, as an ordinary user makes it.
    NewForUser,
    /// The one that this process is on: its starter has made it.
    Given,
}

impl OwnNetwork {
    const WORDS: [(&'static str, Self); 3] =
        [("new", Self::New), ("new-for-user", Self::NewForUser), ("given", Self::Given)];

    fn read(word: &OsStr) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| word == *known).map(|(_, network)| *network)
    }

    /// The arguments of this program before the program that it becomes. Its standard input has to be a socket, over which the
    /// starter takes the listener ([`receive`](crate::receive)).
    #[must_use]
    pub fn arguments(self, port: u16) -> [OsString; 4] {
        let word = Self::WORDS.iter().find(|(_, network)| *network == self).map_or("", |(word, _)| word);
        [FLAG.into(), word.into(), port.to_string().into(), "--".into()]
    }

    fn open(self, port: u16) -> io::Result<()> {
        if self != Self::Given {
            let user_namespace = self == Self::NewForUser;
            namespaces::leave(Mechanisms { user_namespace, network: true, ..Mechanisms::default() })?;
            loopback::up()?;
        }
        passing::send_listener(port)
    }
}

/// Does the work of such a start. `words`: the arguments after the first one.
pub(crate) fn start(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let network = words.next().and_then(|word| OwnNetwork::read(&word));
    let port = words.next().and_then(|port| port.to_str()?.parse().ok());
    let (Some(network), Some(port), Some(program)) = (network, port, words.nth(1)) else {
        return refused(NOT_MADE, "the order cannot be read");
    };
    if let Err(error) = network.open(port) {
        return refused(NOT_MADE, &error.to_string());
    }
    let error = Command::new(&program).args(words).stdin(Stdio::null()).exec();
    refused(NOT_STARTED, &format!("cannot run {}: {error}", program.display()))
}

fn refused(code: u8, why: &str) -> ExitCode {
    // The starter keeps what its processes say.
    let _ = writeln!(io::stderr(), "berth: a network of its own: {why}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        for network in [OwnNetwork::New, OwnNetwork::NewForUser, OwnNetwork::Given] {
            let [flag, word, port, end] = network.arguments(3128);
            assert_eq!((flag.to_str(), port.to_str(), end.to_str()), (Some(FLAG), Some("3128"), Some("--")));
            assert_eq!(OwnNetwork::read(&word), Some(network));
        }
        assert_eq!(OwnNetwork::read(OsStr::new("machine")), None);
    }
}
