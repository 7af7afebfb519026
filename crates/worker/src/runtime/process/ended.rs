//! Describes how a process ended.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use berth_spec::{ByteSize, FailureCategory};

use crate::cgroup::Cgroup;
use crate::runtime::LoadError;

/// The end of a model's process: its status in words, and its last output.
#[derive(Debug, Clone)]
pub(in crate::runtime) struct Ended {
    /// For people: `killed by signal 9`.
    pub(in crate::runtime) cause: String,
    /// The kernel killed it for memory, or what looks like that.
    pub(in crate::runtime) memory: bool,
    /// The last lines that it printed; of one that could not be started again, the trace of that.
    pub(in crate::runtime) tail: String,
}

impl Ended {
    /// `ours`: we killed it, for it did not end by itself.
    pub(in crate::runtime) fn of(status: Option<ExitStatus>, ours: bool, cgroup: &Cgroup, tail: String) -> Self {
        let memory = cgroup.ran_out_of_memory() || suspicious(status, ours, cgroup);
        Self { cause: described(status, ours), memory, tail }
    }

    /// One that could not be started again.
    pub(in crate::runtime) fn of_load(error: LoadError) -> Self {
        let memory = error.category == FailureCategory::Memory;
        Self { cause: error.message, memory, tail: error.trace.map(Into::into).unwrap_or_default() }
    }

    /// The last line that it printed.
    pub(in crate::runtime) fn last_words(&self) -> &str {
        self.tail.lines().last().unwrap_or_default()
    }

    /// All of it in a sentence or two; `limit`: the memory that it may take.
    pub(in crate::runtime) fn told(&self, limit: Option<ByteSize>) -> String {
        let mut told = self.cause.clone();
        if self.memory {
            told += "; it ran out of memory";
            if let Some(limit) = limit {
                told += &format!(": it may take {limit} (resources.memory)");
            }
        }
        match self.last_words() {
            "" => told,
            words => format!("{told}; its last words: {words}"),
        }
    }
}

fn described(status: Option<ExitStatus>, ours: bool) -> String {
    match status {
        _ if ours => "it did not end when asked, and was killed".to_owned(),
        None => "it ended, and nobody knows how".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it ended with code {code}"),
            (None, Some(signal)) => format!("it was killed by signal {signal}{}", signal_name(signal)),
            (None, None) => "it ended".to_owned(),
        },
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction: a package was built for another processor)",
        6 => " (abort)",
        7 | 11 => " (a crash in native code)",
        9 => " (the system kills like that when memory runs out)",
        15 => " (somebody asked it to end)",
        _ => "",
    }
}

/// SIGKILL that was not ours, where no control group could tell: nearly always memory.
fn suspicious(status: Option<ExitStatus>, ours: bool, cgroup: &Cgroup) -> bool {
    !ours && cgroup.own_limit().is_some() && status.and_then(|status| status.signal()) == Some(9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_what_can_be_done() {
        let cgroup = Cgroup::default();
        for (status, ours, expected) in [
            (Some(3 << 8), false, "it ended with code 3"),
            (Some(11), false, "it was killed by signal 11 (a crash in native code)"),
            (Some(9), true, "it did not end when asked, and was killed"),
            (None, false, "it ended, and nobody knows how"),
        ] {
            let ended = Ended::of(status.map(ExitStatus::from_raw), ours, &cgroup, String::new());
            assert_eq!((ended.told(None).as_str(), ended.memory), (expected, false));
        }
        let ended = Ended { cause: "it was killed".to_owned(), memory: true, tail: "one\ntwo\n".to_owned() };
        let expected = "it was killed; it ran out of memory: it may take 96MiB (resources.memory); its last words: two";
        assert_eq!(ended.told(Some(ByteSize::mib(96))), expected);
    }
}
