//! Finds nodes that are being replaced: those of an older version, while one of a newer version has joined lately. What is
//! put there would be moved again before long.
//!
//! Versions are compared as numbers, part by part, and times are times: what is old here is never older than the window
//! says, and a fleet of one version has nobody who is replaced.

use std::cmp::Ordering;

use berth_spec::Time;

use crate::World;

/// A version of Berth, `1.2.3` or `1.2.3-rc.1`. Only those that begin with a number are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version<'a> {
    parts: Vec<u64>,
    /// Pre-release part after `-`. A version with one comes before the same version without.
    before: Option<&'a str>,
}

impl<'a> Version<'a> {
    /// Reads one; `None`: it is no version.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let text = text.split_once('+').map_or(text, |(version, _)| version);
        let (numbers, before) = text.split_once('-').map_or((text, None), |(numbers, rest)| (numbers, Some(rest)));
        let parts: Option<Vec<u64>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        Some(Self { parts: parts?, before })
    }
}

impl Ord for Version<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let before = |version: &Self| (version.before.is_none(), version.before.map(str::to_owned));
        self.parts.cmp(&other.parts).then_with(|| before(self).cmp(&before(other)))
    }
}

impl PartialOrd for Version<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The newest version of the workers that can be reached, if a worker of it has joined lately and others are older.
pub(crate) fn newest_joined(world: &World, now: Time) -> Option<Version<'_>> {
    let alive = || {
        world.workers.values().filter(|tracked| tracked.alive() && tracked.reported).filter_map(|tracked| {
            let version = Version::read(&tracked.info.as_ref()?.version)?;
            Some((version, tracked.joined))
        })
    };
    let mut texts = world.workers.values().filter_map(|tracked| tracked.info.as_ref()).map(|info| &info.version);
    let first = texts.next()?;
    if texts.all(|text| text == first) {
        return None; // the usual case, without reading a thousand of them
    }
    let (newest, joined) = alive().max()?;
    (now < joined + world.policy.replacing_window).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let sorted = ["0.9.0", "0.10.0-rc.1", "0.10.0", "0.10.1", "1.0.0"];
        for pair in sorted.windows(2) {
            assert!(Version::read(pair[0]) < Version::read(pair[1]), "{pair:?}");
        }
        assert_eq!(Version::read("v1.2.0+abc"), Version::read("1.2.0"));
        assert_eq!(Version::read("test"), None);
    }
}
