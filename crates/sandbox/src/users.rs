//! Users for the processes that root starts: one for each model or function, which no other process of the machine has.
//!
//! Another pool on this machine takes its users from the same range. A number that is taken twice costs the limit on
//! processes, which the kernel counts by user, and without a process namespace the two could signal each other.

use std::{
    collections::HashSet,
    hash::{BuildHasher as _, RandomState},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Numbers that no account has, as systemd's list of numbers says.
const USERS: Range<u32> = 60_578..61_184;

/// Pool of user ids for sandboxes: each is given to one process at a time, while there are enough.
#[derive(Debug, Default)]
pub struct Users {
    taken: Mutex<HashSet<u32>>,
}

/// A user that is taken until this is dropped.
#[derive(Debug)]
pub struct User {
    number: u32,
    users: Arc<Users>,
}

impl Users {
    /// Takes a user that neither the pool has given nor a process of this machine has. When all are taken, one is shared. Blocks for
    /// some milliseconds.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> User {
        // Two pools that start processes at the same time see neither's process yet: each begins elsewhere.
        let begin = RandomState::new().hash_one(0) as u32;
        let running = running();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = choose(begin, |number| !taken.contains(&number) && !running.contains(&number));
        taken.insert(number);
        User { number, users: Arc::clone(self) }
    }
}

impl User {
    /// The user id of the kernel.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.users.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// True if any user may read a file, or list and enter a folder.
#[must_use]
pub fn is_open(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|about| {
        let wanted = if about.is_dir() { 0o5 } else { 0o4 };
        about.mode() & wanted == wanted
    })
}

/// The first free number from `begin` on, around the range; `begin` itself if none is.
fn choose(begin: u32, is_free: impl Fn(u32) -> bool) -> u32 {
    let length = USERS.end - USERS.start;
    let nth = |offset: u32| USERS.start + (begin % length + offset) % length;
    (0..length).map(nth).find(|number| is_free(*number)).unwrap_or_else(|| nth(0))
}

/// Users of the range that processes of this machine have.
fn running() -> HashSet<u32> {
    let processes = fs_err::read_dir("/proc").into_iter().flatten().flatten();
    let statuses = processes.filter_map(|process| std::fs::read_to_string(process.path().join("status")).ok());
    statuses.filter_map(|status| user_of(&status)).filter(|user| USERS.contains(user)).collect()
}

/// The real user in a process's `status`.
fn user_of(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_is_taken_twice_while_there_are_others() {
        let users = Arc::new(Users::default());
        let first: Vec<User> = (0..20).map(|_| users.take()).collect();
        let numbers: HashSet<u32> = first.iter().map(User::number).collect();
        assert_eq!(numbers.len(), 20);
        drop(first);
        assert!(users.taken.lock().expect("no panic").is_empty());
    }

    #[test]
    fn the_search_goes_around_the_range() {
        let last = USERS.end - USERS.start - 1;
        assert_eq!(choose(last, |_| true), USERS.end - 1);
        assert_eq!(choose(last, |number| number != USERS.end - 1), USERS.start);
        assert_eq!(choose(3, |_| false), USERS.start + 3);
    }

    #[test]
    fn the_real_user_is_read_from_a_status() {
        assert_eq!(user_of("Name:\tpython\nUid:\t60600\t1\t1\t1\nGid:\t0\t0\t0\t0\n"), Some(60_600));
        assert_eq!(user_of("Name:\tpython\n"), None);
    }
}
