//! The last small commits in memory: a watch that has seen all others gets them without a read of the file, for which it would
//! have to wait for a thread that may block. Plans for missing models are such commits.

use std::collections::VecDeque;

use crate::store::{Change, Commit, Rev};

/// Commits that are kept: a watch that is further behind reads the file.
const KEPT: usize = 16;

/// The most bytes of a commit that is kept: all of them together are a megabyte at most.
const MAX_BYTES: usize = 64 << 10;

/// Commits without a gap, the last of which is the last that was acknowledged.
#[derive(Debug, Default)]
pub(super) struct RecentCommits(VecDeque<Commit>);

impl RecentCommits {
    /// Takes in the next commit. A large one is not kept, nor what came before it.
    pub(super) fn push(&mut self, commit: Commit) {
        if commit.changes.iter().map(bytes).sum::<usize>() > MAX_BYTES {
            return self.clear();
        }
        if self.0.back().is_some_and(|last| last.rev.next() != commit.rev) {
            self.clear();
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(commit);
    }

    /// Forgets all: the file may say something else now.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The commits from `from` on; empty where they are not kept.
    pub(super) fn from(&self, from: Rev) -> Vec<Commit> {
        if self.0.front().is_none_or(|first| from < first.rev) {
            return Vec::new();
        }
        self.0.iter().filter(|commit| commit.rev >= from).cloned().collect()
    }
}

fn bytes(change: &Change) -> usize {
    let value = match change {
        Change::Put(entry) => entry.value.len(),
        Change::Deleted { .. } => 0,
    };
    size_of::<Change>() + change.key().len() + value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(rev: u64, changes: usize) -> Commit {
        Commit { rev: Rev(rev), changes: vec![Change::Deleted { key: "/a".to_owned() }; changes] }
    }

    fn revs(recent: &RecentCommits, from: u64) -> Vec<u64> {
        recent.from(Rev(from)).iter().map(|commit| commit.rev.0).collect()
    }

    #[test]
    fn what_is_given_has_no_gap() {
        let mut recent = RecentCommits::default();
        (3..6).for_each(|rev| recent.push(commit(rev, 1)));
        assert_eq!((revs(&recent, 2), revs(&recent, 4), revs(&recent, 6)), (vec![], vec![4, 5], vec![]));
        recent.push(commit(6, MAX_BYTES / 10));
        recent.push(commit(7, 1));
        assert_eq!((revs(&recent, 5), revs(&recent, 7)), (vec![], vec![7]));
        recent.push(commit(9, 1));
        assert_eq!((revs(&recent, 7), revs(&recent, 9)), (vec![], vec![9]));
        (10..100).for_each(|rev| recent.push(commit(rev, 1)));
        assert_eq!((revs(&recent, 83), revs(&recent, 84).len()), (vec![], KEPT));
    }
}
