//! Runs a program within a time limit and counts the processor time of all that it starts.

use std::{
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::run::{run_quiet, show};

/// The pause between two looks at a program that runs: short beside the shortest stage, and 20 looks a second cost nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time that a program took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) wall: Duration,
    /// Processor time, children included; zero where the system does not tell.
    pub(crate) cpu: Duration,
}

/// Runs to the end. A program that is still running at the limit is named and killed, with all that it started.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> (Took, Result<()>) {
    let started = Instant::now();
    run_unless(|| started.elapsed() >= limit, command)
}

fn run_unless(mut over: impl FnMut() -> bool, command: &mut Command) -> (Took, Result<()>) {
    let started = Instant::now();
    let mut cpu = Duration::ZERO;
    let ended = watch(&mut over, command, started, &mut cpu);
    (Took { wall: started.elapsed(), cpu }, ended)
}

fn watch(over: &mut impl FnMut() -> bool, command: &mut Command, started: Instant, cpu: &mut Duration) -> Result<()> {
    let shown = show(command);
    let mut child = command.spawn().with_context(|| format!("cannot start {shown}"))?;
    let status = loop {
        // Before the status is asked for: afterwards the process is gone, and its count with it.
        *cpu = processor_time(child.id()).unwrap_or(*cpu);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if over() {
            let lines = kill(&mut child)?;
            bail!("{shown} did not end within {:.0} s; these were running:{lines}", started.elapsed().as_secs_f64());
        }
        thread::sleep(POLL_INTERVAL);
    };
    if !status.success() {
        bail!("{shown} ended with {status} after {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Kills a program and all that it started; returns a line for each.
fn kill(child: &mut Child) -> Result<String> {
    let running = family(child.id());
    let ids = running.iter().map(|process| process.id.to_string());
    // The shell's own `kill` is everywhere. A process that ended meanwhile is no failure.
    run_quiet(Command::new("sh").args(["-c", r#"kill -KILL "$@""#, "sh"]).args(ids)).ok();
    child.wait()?;
    Ok(running.iter().map(|process| format!("\n    {} {}", process.id, process.line)).collect())
}

/// User and system time of a process and of its children that have ended (fields 14 to 17 of `/proc/PID/stat`).
fn processor_time(id: u32) -> Option<Duration> {
    /// Ticks per second in `/proc`: the same on every Linux.
    const TICKS: u64 = 100;
    let stat = fs_err::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, field 2, may hold spaces; it ends with the last parenthesis.
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// A program that runs.
struct Running {
    id: u32,
    parent: u32,
    line: String,
}

/// A program and all that it and its children started, as far as `/proc` tells.
fn family(first: u32) -> Vec<Running> {
    let mut others: Vec<Running> = fs_err::read_dir("/proc")
        .map(|entries| entries.filter_map(|entry| running(&entry.ok()?.path())).collect())
        .unwrap_or_default();
    let mut found: Vec<Running> = others.extract_if(.., |process| process.id == first).collect();
    if found.is_empty() {
        found.push(Running { id: first, parent: 0, line: String::new() });
    }
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].id;
        found.extend(others.extract_if(.., |process| process.parent == parent));
        next += 1;
    }
    found
}

/// Reads one process from `/proc`; `None` where the folder is of something else, or the process is gone.
fn running(folder: &Path) -> Option<Running> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let about = fs_err::read_to_string(folder.join("status")).ok()?;
    let parent = about.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    let line = fs_err::read(folder.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    Some(Running { id, parent, line: line.chars().take(200).collect::<String>().trim_end().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_is_named_and_killed_with_all_that_it_started() {
        let folder = std::env::temp_dir().join(format!("xtask-run-{}", std::process::id()));
        fs_err::create_dir_all(&folder).expect("a folder");
        assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().expect("mkfifo").success());
        // It reads from a pipe that nobody writes to.
        fs_err::write(folder.join("stuck.sh"), "echo $$ > new; mv new id; read never < pipe\n").expect("a script");
        let mut command = Command::new("sh");
        command.args(["-c", "sh stuck.sh; true"]).current_dir(&folder);
        let (_, ended) = run_unless(|| folder.join("id").exists(), &mut command);
        let error = ended.expect_err("it does not end").to_string();
        let id = fs_err::read_to_string(folder.join("id")).expect("its number");
        let id = id.trim();
        assert!(error.contains("did not end") && error.contains(&format!("\n    {id} sh stuck.sh")), "{error}");
        // Whoever adopted it may take a moment to notice; what is dead has no arguments.
        let lives = || fs_err::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| !line.is_empty());
        let began = Instant::now();
        while lives() {
            assert!(began.elapsed() < Duration::from_secs(60), "{id} still runs");
            thread::sleep(POLL_INTERVAL);
        }
        fs_err::remove_dir_all(folder).expect("the folder goes");
    }

    #[test]
    fn processor_time_of_children_is_counted() {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 0.2"]);
        let (took, ended) = run_within(Duration::from_secs(600), &mut command);
        ended.expect("it ends");
        assert!(took.wall >= Duration::from_millis(200), "{took:?}");
        assert!(!cfg!(target_os = "linux") || took.cpu > Duration::ZERO, "{took:?}");
    }
}
