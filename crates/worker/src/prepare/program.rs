//! Runs a program of somebody else's: bounded in time and output, in a process group of its own that goes as a whole,
//! and with nothing in its environment but what it is given.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
};

/// The most bytes kept of each output, from its end: a long list of packages fits.
const KEPT: usize = 256 << 10;

/// The most bytes of a line that are heard: lines that tell of progress are short.
const LONGEST_LINE: usize = 1 << 10;

/// A program to be run once.
#[derive(Debug, Clone)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    folder: PathBuf,
}

/// The output of a program that ended.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) words: String,
}

impl ProgramOutput {
    /// The reason why it failed, where it did: its last words, else how it ended.
    pub(super) fn reason(&self) -> String {
        let words = if self.words.trim().is_empty() { &self.out } else { &self.words };
        match words.trim() {
            "" => self.status.to_string(),
            words => words.to_owned(),
        }
    }
}

/// The reason why there is nothing that a program has said.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    /// The program could not be started.
    #[error("cannot run {}: {error}", path.display())]
    Start { path: PathBuf, error: io::Error },
    /// The program did not end in time.
    #[error("{} did not end within {} s", path.display(), limit.as_secs())]
    TooLong { path: PathBuf, limit: Duration },
}

impl Program {
    /// `folder`: where it runs.
    pub(super) fn new(path: impl Into<PathBuf>, environment: Vec<(OsString, OsString)>, folder: &Path) -> Self {
        Self { path: path.into(), arguments: Vec::new(), environment, folder: folder.to_owned() }
    }

    pub(super) fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.retain(|(has, _)| has != name);
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs it to its end. Dropping the future ends it and all that it started.
    pub(super) async fn run(self, limit: Duration) -> Result<ProgramOutput, RunError> {
        self.run_heard(limit, |_| ()).await
    }

    /// As [`run`](Self::run). `hear` gets each line of its standard error when it is written, or the beginning of a long one.
    pub(super) async fn run_heard(
        self,
        limit: Duration,
        hear: impl FnMut(&str) + Send,
    ) -> Result<ProgramOutput, RunError> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).env_clear().envs(self.environment).current_dir(&self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let start = |error| RunError::Start { path: self.path.clone(), error };
        let mut child = command.spawn().map_err(start)?;
        let (out, words) = (child.stdout.take(), child.stderr.take());
        let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
        let ended = async {
            let status = child.wait().await;
            // What it left running would hold its outputs open.
            drop(group);
            status
        };
        let all = async { tokio::join!(ended, tail(out, |_| ()), tail(words, hear)) };
        let (status, out, words) =
            tokio::time::timeout(limit, all).await.map_err(|_| RunError::TooLong { path: self.path.clone(), limit })?;
        Ok(ProgramOutput { status: status.map_err(start)?, out, words })
    }
}

/// A group of processes that goes with this.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody is left in it where all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The end of what comes; a broken pipe is an end, too. `hear` gets each line.
async fn tail(pipe: Option<impl AsyncRead + Unpin>, mut hear: impl FnMut(&str)) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let (mut kept, mut buffer, mut line) = (Vec::new(), vec![0; 16 << 10], Vec::new());
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        for piece in buffer[..n].split_inclusive(|&byte| byte == b'\n') {
            let room = LONGEST_LINE.saturating_sub(line.len());
            line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                hear(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > 2 * KEPT {
            kept.drain(..kept.len() - KEPT);
        }
    }
    let surplus = kept.len().saturating_sub(KEPT);
    String::from_utf8_lossy(&kept[surplus..]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        let path = vec![("PATH".into(), "/usr/bin:/bin".into())];
        Program::new("/bin/sh", path, Path::new("/")).args(["-c", script])
    }

    #[tokio::test]
    async fn says_how_it_ended_and_what_it_said() {
        let said = shell("echo out; echo $SECRET words >&2; exit 3").env("SECRET", "no").env("SECRET", "some");
        let said = said.run(Duration::from_secs(60)).await.expect("it ran");
        assert_eq!((said.status.code(), said.out.as_str(), said.reason().as_str()), (Some(3), "out\n", "some words"));
        let missing = Program::new("/nowhere/x", Vec::new(), Path::new("/")).run(Duration::from_secs(60)).await;
        assert!(matches!(missing, Err(RunError::Start { .. })));
    }

    #[tokio::test]
    async fn its_lines_are_heard() {
        let script = r"{ printf 'one\ntw'; printf 'o\n'; yes | tr -d '\n' | head -c 100000; printf '\nlast\nx'; } >&2";
        let mut heard = Vec::new();
        let said = shell(script).run_heard(Duration::from_secs(60), |line| heard.push(line.to_owned())).await;
        assert!(said.expect("it ran").words.ends_with("last\nx"));
        let lengths: Vec<usize> = heard.iter().map(String::len).collect();
        assert_eq!((lengths.as_slice(), heard[1].as_str()), ([3, 3, LONGEST_LINE, 4].as_slice(), "two"));
    }

    #[tokio::test]
    async fn what_it_started_goes_with_it() {
        // The grandchild holds the pipe: without the group's end this would wait for it.
        let said = shell("sleep 1000 & echo begun").run(Duration::from_secs(60)).await.expect("it ran");
        assert_eq!(said.out, "begun\n");
    }

    #[tokio::test]
    async fn of_a_flood_the_end_is_kept() {
        let said = shell("yes x | head -c 2000000; echo last").run(Duration::from_secs(60)).await.expect("it ran");
        assert!(said.out.len() <= KEPT && said.out.ends_with("last\n"));
    }

    #[tokio::test]
    async fn it_is_ended_when_its_time_is_up() {
        let slow = shell("sleep 1000").run(Duration::from_millis(1)).await;
        assert!(matches!(slow, Err(RunError::TooLong { .. })));
    }
}
