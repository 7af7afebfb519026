//! The checkpoint of a Git source: the last good commit, and what a newer one disables at once.

use berth_git::Oid;
use berth_spec::{Origin, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Driver, brain::Brain, watcher::EmergencyStop};
use berth_control::handle::Error;

/// The slot of the source's checkpoint in the store. Fixed: every leader reads what the last one wrote.
const SLOT: &str = "checkpoint";

/// The number of the stored form.
const FORM: u32 = 1;

/// The last good commit of a source, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Progress {
    v: u32,
    /// `URL#BRANCH`: the owner of what it declared.
    pub(crate) origin: String,
    /// The last good commit: 40 or 64 hex digits.
    pub(crate) applied: String,
    /// When that came into force, in nanoseconds since 1970.
    pub(crate) at: u64,
    /// The deployments that a commit disables which is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) halted: Option<StoredStop>,
}

/// An emergency stop in the form of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoredStop {
    /// The commit: 40 or 64 hex digits.
    pub(crate) commit: String,
    /// Deployments, by their ids.
    pub(crate) ids: Vec<String>,
}

impl Progress {
    /// The checkpoint of a commit that has come into force.
    pub(crate) fn new(origin: String, applied: String, at: Time, halted: Option<StoredStop>) -> Self {
        Self { v: FORM, origin, applied, at: at.0, halted }
    }

    /// The emergency stop in the brain's form; `None`: there is none, or its commit cannot be read.
    pub(crate) fn stop(&self) -> Option<EmergencyStop> {
        self.halted.as_ref().and_then(EmergencyStop::restored)
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads a checkpoint; the error says what is wrong with it.
    pub(crate) fn read(value: &[u8]) -> Result<Self, String> {
        let stored: Self = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if stored.v == FORM { Ok(stored) } else { Err(format!("it has form {}, this berth reads {FORM}", stored.v)) }
    }
}

impl Driver {
    /// Reads the checkpoint; that of another place gives only whose deployments to take over.
    pub(crate) async fn remembered(&mut self) -> Result<Option<Progress>, Error> {
        let Some(value) = self.context.load(SLOT).await? else { return Ok(None) };
        let stored = match Progress::read(&value) {
            Ok(stored) => stored,
            // The next good commit takes its place.
            Err(problem) => {
                tracing::error!(event = "stored_value_skipped", problem, "the last good commit is not known");
                return Ok(None);
            }
        };
        if stored.origin == self.config.place() {
            return Ok(Some(stored));
        }
        self.context.take_over(Origin::git(&stored.origin));
        Ok(None)
    }

    /// Stores the last good commit, and what a newer one disables.
    pub(crate) async fn remember(&mut self, commit: &Oid, brain: &Brain, now: Time) -> Result<(), Error> {
        let place = self.config.place();
        let since = self.stored.as_ref().filter(|known| known.applied == commit.as_str() && known.origin == place);
        let at = since.map_or(now, |known| Time(known.at));
        let halted = brain.stop_beside(commit).map(EmergencyStop::stored);
        let stored = Progress::new(place, commit.to_string(), at, halted);
        self.context.save(SLOT, stored.bytes()).await?;
        self.stored = Some(stored);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_as_it_was_also_from_an_earlier_version() {
        let halted = StoredStop { commit: "b".repeat(40), ids: vec!["one".to_owned()] };
        for halted in [None, Some(halted)] {
            let stored = Progress::new("https://h/r.git#main".to_owned(), "a".repeat(40), Time(7), halted);
            assert_eq!(Progress::read(&stored.bytes()), Ok(stored));
        }
        let old = br#"{"v":1,"origin":"https://h/r.git#main","applied":"aa","at":7}"#;
        assert_eq!(Progress::read(old).map(|stored| stored.applied), Ok("aa".to_owned()));
        assert!(Progress::read(br#"{"v":2,"origin":"","applied":"","at":7}"#).is_err());
    }
}
