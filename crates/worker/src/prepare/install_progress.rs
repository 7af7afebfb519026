//! The progress of making an environment, in words for people.
//!
//! ```text
//! resolving ──▶ fetching: downloads, builds ──▶ installing ──▶ checking the files ──▶ compiling
//! ```
//! It is read from the lines that `uv` and the compiler write. Only names, sizes and numbers are taken from them:
//! an address with a password in it is shown to nobody.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::{residency::Preparing, shortened};
use tokio::time::timeout;

/// The shortest time between two reports: nobody reads faster, and each is sent to the controller.
const INTERVAL: Duration = Duration::from_secs(1);

/// Downloads and builds that are remembered: more than `uv` does at once.
const MOST: usize = 64;

/// The longest name of a package that is shown.
const LONGEST_NAME: usize = 60;

/// Tells the steps of a preparation, and what is done in them.
pub(super) struct InstallProgress<'a> {
    tell: &'a (dyn Fn(Preparing) + Send + Sync),
    activity: Mutex<Activity>,
}

impl<'a> InstallProgress<'a> {
    pub(super) fn new(tell: &'a (dyn Fn(Preparing) + Send + Sync)) -> Self {
        Self { tell, activity: Mutex::default() }
    }

    /// Tells that a step begins.
    pub(super) fn begin(&self, step: Preparing) {
        (self.tell)(step);
    }

    /// Takes in a line of `uv` or the compiler.
    pub(super) fn hear(&self, line: &str) {
        self.change(|activity| activity.hear(line));
    }

    /// An installation begins, perhaps another one than before.
    pub(super) fn resolve(&self) {
        self.change(|activity| *activity = Activity { stage: Stage::Resolving, ..Activity::default() });
    }

    /// Runs `work` to its end, and tells the activity meanwhile whenever it has changed.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut told = String::new();
        loop {
            if let Ok(done) = timeout(INTERVAL, work.as_mut()).await {
                return done;
            }
            let text = self.activity.lock().unwrap_or_else(PoisonError::into_inner).text();
            if text != told {
                (self.tell)(Preparing::Environment(Some(Arc::from(text.as_str()))));
                told = text;
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Activity)) {
        change(&mut self.activity.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A package that is being downloaded.
#[derive(Debug)]
struct Download {
    name: String,
    /// As `uv` writes it, e.g. `2.3GiB`.
    size: String,
    bytes: f64,
}

/// The present activity.
#[derive(Debug, Default)]
struct Activity {
    stage: Stage,
    /// Packages in all, once they are resolved.
    packages: Option<u32>,
    /// The largest first.
    downloads: Vec<Download>,
    builds: Vec<String>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Nothing is installed yet: an empty environment is made.
    #[default]
    Begun,
    Resolving,
    Fetching,
    Installing,
    Checking,
    Compiling {
        done: u32,
        files: u32,
    },
}

impl Activity {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        match *words.as_slice() {
            ["Resolved", count, "package" | "packages", ..] => {
                self.stage = Stage::Fetching;
                self.packages = count.parse().ok();
            }
            ["Downloading", package, size] => {
                if let (Some(name), Some((size, bytes))) = (name(package), download_size(size))
                    && self.downloads.len() < MOST
                {
                    let at = self.downloads.partition_point(|other| other.bytes >= bytes);
                    self.downloads.insert(at, Download { name, size, bytes });
                }
            }
            ["Downloaded", package] => self.downloads.retain(|download| download.name != package),
            ["Building", package, ..] => {
                if let Some(name) = name(package).filter(|_| self.builds.len() < MOST) {
                    self.builds.push(name);
                }
            }
            ["Built", package, ..] => {
                let built = name(package);
                self.builds.retain(|name| Some(name) != built.as_ref());
            }
            ["Prepared", ..] => self.stage = Stage::Installing,
            ["Installed", ..] => self.stage = Stage::Checking,
            // From `compile_packages.py`.
            ["Compiled", done, "of", files, "files"] => {
                if let (Ok(done), Ok(files)) = (done.parse(), files.parse()) {
                    self.stage = Stage::Compiling { done, files };
                }
            }
            _ => {}
        }
    }

    /// For people; empty: there is nothing to tell.
    fn text(&self) -> String {
        let packages = match self.packages {
            Some(1) => "1 package".to_owned(),
            Some(count) => format!("{count} packages"),
            None => "packages".to_owned(),
        };
        let text = match &self.stage {
            Stage::Begun => String::new(),
            Stage::Resolving => "resolving packages".to_owned(),
            Stage::Fetching if !self.downloads.is_empty() => {
                let one = |download: &Download| format!("{} ({})", download.name, download.size);
                format!("downloading {}, of {packages}", some(self.downloads.iter().map(one)))
            }
            Stage::Fetching if !self.builds.is_empty() => {
                format!("building {}, of {packages}", some(self.builds.iter().cloned()))
            }
            Stage::Fetching => format!("fetching {packages}"),
            Stage::Installing => format!("installing {packages}"),
            Stage::Checking => format!("checking the files of {packages}"),
            Stage::Compiling { done, files } => format!("compiling {files} files, {done} are done"),
        };
        shortened(text, Preparing::MAX_ACTIVITY)
    }
}

/// The first two, and the number of the others.
fn some(items: impl ExactSizeIterator<Item = String>) -> String {
    let others = items.len().saturating_sub(2);
    let named = items.take(2).collect::<Vec<_>>().join(", ");
    if others > 0 { format!("{named} and {others} more") } else { named }
}

/// The name of a package in `NAME` or `NAME==VERSION`; `None` for anything else, such as an address.
fn name(package: &str) -> Option<String> {
    let name = package.split_once("==").map_or(package, |(name, _)| name);
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    (is_name && (1..=LONGEST_NAME).contains(&name.len())).then(|| name.to_owned())
}

/// The size in `(2.3GiB)`, and its bytes.
fn download_size(text: &str) -> Option<(String, f64)> {
    let size = text.strip_prefix('(')?.strip_suffix(')')?;
    let (number, unit) = size.split_at(size.find(|c: char| c.is_ascii_alphabetic())?);
    let exponent = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|known| *known == unit)?;
    let number: f64 = number.parse().ok()?;
    Some((size.to_owned(), number * 1024_f64.powi(i32::try_from(exponent).ok()?)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn lines_of_uv_become_an_activity() {
        assert_eq!(Activity::default().text(), "");
        let mut activity = Activity { stage: Stage::Resolving, ..Activity::default() };
        for (line, text) in [
            ("Using Python 3.11.7 environment at: v", "resolving packages"),
            ("Resolved 23 packages in 8.35s", "fetching 23 packages"),
            ("   Building docopt==0.6.2", "building docopt, of 23 packages"),
            ("Downloading numpy (16.1MiB)", "downloading numpy (16.1MiB), of 23 packages"),
            ("Downloading torch (2.3GiB)", "downloading torch (2.3GiB), numpy (16.1MiB), of 23 packages"),
            ("Downloading x (1.0KiB)", "downloading torch (2.3GiB), numpy (16.1MiB) and 1 more, of 23 packages"),
            (" Downloaded numpy", "downloading torch (2.3GiB), x (1.0KiB), of 23 packages"),
            (" Downloaded x", "downloading torch (2.3GiB), of 23 packages"),
            (" Downloaded torch", "building docopt, of 23 packages"),
            ("      Built docopt==0.6.2", "fetching 23 packages"),
            ("Prepared 23 packages in 39.17s", "installing 23 packages"),
            ("Installed 23 packages in 2.16s", "checking the files of 23 packages"),
            (" + torch==2.9.0", "checking the files of 23 packages"),
            ("Compiled 256 of 3754 files", "compiling 3754 files, 256 are done"),
        ] {
            activity.hear(line);
            assert_eq!(activity.text(), text, "{line}");
        }
    }

    #[test]
    fn nothing_else_is_shown_and_nothing_grows() {
        let mut activity = Activity::default();
        activity.hear("Resolved 1 package in 1ms");
        for line in [
            "   Building a @ https://user:hush@host/a.tar.gz".to_owned(),
            "      Built a".to_owned(),
            "   Building https://user:hush@host/a.tar.gz".to_owned(),
            "Downloading https://user:hush@host/a.whl (2.3GiB)".to_owned(),
            "Downloading a (https://user:hush@host)".to_owned(),
            "Downloading \u{1b}[31ma (2.3GiB)".to_owned(),
            format!("Downloading {} (2.3GiB)", "a".repeat(1_000)),
            " Updating https://user:hush@host/a.git (HEAD)".to_owned(),
        ] {
            activity.hear(&line);
            assert!(!activity.text().contains("hush") && !activity.text().contains('\u{1b}'), "{line}");
        }
        assert_eq!(activity.text(), "fetching 1 package");
        for n in 0..1_000 {
            activity.hear(&format!("Downloading {}{n} (2.3GiB)", "a".repeat(LONGEST_NAME - 4)));
        }
        assert!(activity.downloads.len() <= MOST && activity.text().len() <= Preparing::MAX_ACTIVITY);
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_told_now_and_then() {
        let told = Mutex::new(Vec::new());
        let tell = |step: Preparing| told.lock().expect("alone").push(step.to_string());
        let progress = InstallProgress::new(&tell);
        let work = async {
            for line in 0..10 {
                progress.hear(&format!("Resolved {} packages in 1ms", line / 5));
                tokio::time::sleep(INTERVAL / 2).await;
            }
            progress.hear("Prepared 1 package in 1ms");
            tokio::time::sleep(INTERVAL * 5).await;
        };
        progress.during(work).await;
        let told_now = told.lock().expect("alone").clone();
        let expected = ["fetching 0 packages", "fetching 1 package", "installing 1 package"];
        assert_eq!(told_now, expected);
        assert_eq!(timeout(INTERVAL * 5, progress.during(pending::<()>())).await.ok(), None, "dropping it ends it");
    }
}
