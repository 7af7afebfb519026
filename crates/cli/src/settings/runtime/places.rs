//! The words in braces that the file of a runtime may use: free ports of this machine, the folder of the model repository, and of a
//! process that one model has to itself a name that no other one has, the model's name and its artifact.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use berth_worker::runtime::spi::{OneModel, StartModel};

/// The beginning of the words for the artifact.
pub(super) const ARTIFACT: &str = "{artifact";

pub(super) struct Places<'m> {
    repository: PathBuf,
    one: Option<OneModel<'m>>,
    /// By the name after `port`.
    ports: BTreeMap<String, u16>,
    /// Held until all are known, so that no two are the same.
    held: Vec<TcpListener>,
}

impl<'m> Places<'m> {
    pub(super) fn new(data: &Path, name: &str, said: Option<&Path>, one: Option<OneModel<'m>>) -> Self {
        let mut repository = said.map_or_else(|| data.join("runtimes").join(name), Path::to_owned);
        repository.extend(one.map(|one| one.process));
        Self { repository, one, ports: BTreeMap::new(), held: Vec::new() }
    }

    /// The folder, from the root: the server may run elsewhere.
    pub(super) fn repository(&self) -> PathBuf {
        std::path::absolute(&self.repository).unwrap_or_else(|_| self.repository.clone())
    }

    /// The artifact of the one model, and where its server finds it.
    pub(super) fn given(&self) -> Option<StartModel> {
        let (artifact, file) = self.one?.artifact?;
        Some(StartModel { artifact: artifact.to_owned(), at: self.repository().join(file) })
    }

    pub(super) fn filled(&mut self, text: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((head, after)) = rest.split_once('}') {
            // The last brace is a word's: those before it are of others, as in JSON.
            let (before, said) = match head.rsplit_once('{') {
                Some((before, word)) => (before, self.said(word)?),
                None => (head, None),
            };
            match said {
                Some(said) => {
                    filled.push_str(before);
                    filled.push_str(&said);
                }
                None => {
                    filled.push_str(head);
                    filled.push('}');
                }
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// The text in place of a word; `None`: it stands for itself.
    fn said(&mut self, word: &str) -> Result<Option<String>, String> {
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        Ok(match word.split_once('.').unwrap_or((word, "")) {
            ("port", of) => Some(self.port(of)?.to_string()),
            ("repository", "") => Some(shown(&self.repository())),
            ("model", "") => self.one.map(|one| one.process.to_owned()),
            ("name", "") => self.one.map(|one| one.name.to_owned()),
            ("artifact", "") => self.given().map(|given| shown(&given.at)),
            ("artifact", "folder") => self.given().map(|given| match given.artifact.is_dir() {
                true => shown(&given.at),
                false => shown(&self.repository()),
            }),
            _ => None,
        })
    }

    fn port(&mut self, of: &str) -> Result<u16, String> {
        if let Some(port) = self.ports.get(of) {
            return Ok(*port);
        }
        let (port, held) = free().map_err(|error| format!("there is no free port: {error}"))?;
        self.held.push(held);
        self.ports.insert(of.to_owned(), port);
        Ok(port)
    }
}

/// A free port, held until its listener is dropped. It is below the usual range of outgoing connections: one of those would take the
/// port before the server has it, and keep it for long.
fn free() -> io::Result<(u16, TcpListener)> {
    let random = || 20_000 + u16::try_from(RandomState::new().hash_one(()) % 12_768).unwrap_or_default();
    let mut tried = (0..16).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, random())));
    let held = match tried.find_map(Result::ok) {
        Some(held) => held,
        None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
    };
    Ok((held.local_addr()?.port(), held))
}
