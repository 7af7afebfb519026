//! Stages that run at the same time: prints the output of each in one piece when it ends, and a table at the end.

use std::{
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use fs_err::File;

use crate::{
    process::{Took, run_within},
    run::styled,
};

/// Time that a stage may take before it is taken to hang: several times the longest stage on an idle machine, since a busy one
/// that compiles from nothing is slow too.
pub(crate) const LIMIT: Duration = Duration::from_secs(70 * 60);

/// All stages of one run.
pub(crate) struct Stages {
    began: Instant,
    /// Outputs of stages that run.
    folder: PathBuf,
    next: AtomicUsize,
    done: Mutex<Vec<Stage>>,
}

/// A stage that has ended.
struct Stage {
    name: String,
    began: Duration,
    took: Took,
    failure: Option<String>,
}

/// Result of a command.
pub(crate) struct Ended {
    pub(crate) passed: bool,
    pub(crate) output: String,
}

impl Stages {
    pub(crate) fn new(folder: PathBuf) -> Result<Self> {
        fs_err::create_dir_all(&folder)?;
        Ok(Self { began: Instant::now(), folder, next: AtomicUsize::new(0), done: Mutex::default() })
    }

    /// Runs a command with its output put aside, and prints `shown` of that output when it ends.
    pub(crate) fn run(&self, name: &str, command: &mut Command, shown: impl Fn(&str) -> String) -> Ended {
        let place = self.place();
        let result = File::create(&place).and_then(|file| {
            command.stdin(Stdio::null()).stdout(file.file().try_clone()?).stderr(file.into_file());
            Ok(())
        });
        self.watched(name, command, result.map_err(Into::into), &place, shown)
    }

    /// Runs a command whose standard output is data: the rest of its output is printed when it ends, the data returned.
    pub(crate) fn read(&self, name: &str, command: &mut Command) -> Ended {
        let (data, place) = (self.place(), self.place());
        let result = File::create(&data).and_then(|file| {
            command.stdin(Stdio::null()).stdout(file.into_file()).stderr(File::create(&place)?.into_file());
            Ok(())
        });
        let passed = self.watched(name, command, result.map_err(Into::into), &place, str::to_owned).passed;
        Ended { passed, output: taken(&data) }
    }

    /// Does something that is no command; `None` where it failed.
    pub(crate) fn step<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        let began = self.begins(name);
        let result = work();
        let took = Took { wall: self.began.elapsed().saturating_sub(began), cpu: Duration::ZERO };
        let (value, failure) = match result {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        self.ends(Stage { name: name.to_owned(), began, took, failure }, "");
        value
    }

    /// Records a stage that cannot run.
    pub(crate) fn not_run(&self, name: &str, why: &str) {
        let failure = Some(format!("not run: {why}"));
        self.ends(Stage { name: name.to_owned(), began: self.began.elapsed(), took: Took::default(), failure }, "");
    }

    /// Prints a line about something that is left out.
    pub(crate) fn note(&self, text: &str) {
        let _quiet = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!("{}", styled("1", &format!("── {} {text}", clock(self.began.elapsed()))));
    }

    fn watched(
        &self,
        name: &str,
        command: &mut Command,
        ready: Result<()>,
        place: &PathBuf,
        shown: impl Fn(&str) -> String,
    ) -> Ended {
        let began = self.begins(name);
        let (took, result) = match ready {
            Ok(()) => run_within(LIMIT, command),
            Err(error) => (Took::default(), Err(error)),
        };
        let output = taken(place);
        let failure = result.err().map(|error| format!("{error:#}"));
        let passed = failure.is_none();
        self.ends(Stage { name: name.to_owned(), began, took, failure }, &shown(&output));
        Ended { passed, output }
    }

    fn place(&self) -> PathBuf {
        self.folder.join(format!("{}-{}.log", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn begins(&self, name: &str) -> Duration {
        self.note(&format!("{name}: started"));
        self.began.elapsed()
    }

    fn ends(&self, stage: Stage, output: &str) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let (style, word) = if stage.failure.is_some() { ("1;31", "FAILED") } else { ("1", "passed") };
        let took = clock(stage.took.wall);
        let heading = format!("── {} {}: {word} after {took}", clock(self.began.elapsed()), stage.name);
        let mut text = styled(style, &heading);
        for part in [output.trim_end(), stage.failure.as_deref().unwrap_or_default()] {
            if !part.is_empty() {
                let _ = write!(text, "\n{part}");
            }
        }
        eprintln!("{text}");
        done.push(stage);
    }

    /// The closing table; an error that names the stages that failed.
    pub(crate) fn finish(self) -> Result<()> {
        let done = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!("\nStages (start, time, processor time):");
        for Stage { name, began, took, failure } in &done {
            let word = if failure.is_some() { "  FAILED" } else { "" };
            println!("  {} {} {:>6.0} s  {name}{word}", clock(*began), clock(took.wall), took.cpu.as_secs_f64());
        }
        let cpu: f64 = done.iter().map(|stage| stage.took.cpu.as_secs_f64()).sum();
        println!("  all: {}, {cpu:.0} s of processor time", clock(self.began.elapsed()));
        let failed: Vec<&str> =
            done.iter().filter(|stage| stage.failure.is_some()).map(|stage| stage.name.as_str()).collect();
        if !failed.is_empty() {
            bail!("these failed: {}", failed.join(", "));
        }
        Ok(())
    }
}

/// The content of a file, which is removed.
fn taken(place: &PathBuf) -> String {
    let content = fs_err::read(place).unwrap_or_default();
    fs_err::remove_file(place).ok();
    String::from_utf8_lossy(&content).into_owned()
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{:>2}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
