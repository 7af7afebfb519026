//! Running other programs: say what runs, fail with what it was.

use std::{
    io::IsTerminal as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// Prints a step's heading.
pub(crate) fn step(what: &str) {
    eprintln!("\n{}", styled("1", &format!("── {what}")));
}

/// The text in a style (an SGR number) where people read it on a terminal.
pub(crate) fn styled(style: &str, text: &str) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some() || !std::io::stderr().is_terminal();
    if plain { text.to_owned() } else { format!("\x1b[{style}m{text}\x1b[0m") }
}

/// Runs to the end, output shown; an exit status other than 0 is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let started = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown} ended with {status} after {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The same within a time: what still runs then is named and ended, with all that it started. The output stays as it is,
/// on a terminal or elsewhere.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Result<()> {
    let started = Instant::now();
    run_unless(|| started.elapsed() >= limit, command)
}

fn run_unless(mut over: impl FnMut() -> bool, command: &mut Command) -> Result<()> {
    let shown = show(command);
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {shown}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if over() {
            let running = family(child.id());
            let ids = running.iter().map(|process| process.id.to_string());
            // The shell's own `kill` is everywhere. Who is gone by now is no fault.
            run_quiet(Command::new("sh").args(["-c", r#"kill -KILL "$@""#, "sh"]).args(ids)).ok();
            child.wait()?;
            let lines: String =
                running.iter().map(|process| format!("\n    {} {}", process.id, process.line)).collect();
            bail!("{shown} was given up after {:.0} s; these ran:{lines}", started.elapsed().as_secs_f64());
        }
        thread::sleep(LOOK);
    };
    if !status.success() {
        bail!("{shown} ended with {status} after {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Between two looks at a program that runs. Halved, nothing is gained; doubled, a fast one is waited for in vain.
const LOOK: Duration = Duration::from_millis(50);

/// A program that runs.
struct Running {
    id: u32,
    parent: u32,
    line: String,
}

/// A program and all that it and its children started, as far as this system tells (Linux does).
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

/// What `/proc` says of one process; `None` where the folder is of something else, or the process is gone.
fn running(folder: &Path) -> Option<Running> {
    let id = folder.file_name()?.to_str()?.parse().ok()?;
    let about = fs_err::read_to_string(folder.join("status")).ok()?;
    let parent = about.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    let line = fs_err::read(folder.join("cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    Some(Running { id, parent, line: line.chars().take(200).collect::<String>().trim_end().to_owned() })
}

/// Runs quietly; the output is shown only where it fails.
pub(crate) fn run_quiet(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {shown}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} ended with {}:\n{text}{errors}", output.status);
    }
    Ok(text)
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_named_and_ended_with_all_that_it_started() {
        let folder = std::env::temp_dir().join(format!("xtask-run-{}", std::process::id()));
        fs_err::create_dir_all(&folder).expect("a folder");
        assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().expect("mkfifo").success());
        // It reads from a pipe that nobody writes to.
        fs_err::write(folder.join("stuck.sh"), "echo $$ > new; mv new id; read never < pipe\n").expect("a script");
        let mut command = Command::new("sh");
        command.args(["-c", "sh stuck.sh; true"]).current_dir(&folder);
        let error = run_unless(|| folder.join("id").exists(), &mut command).expect_err("it does not end").to_string();
        let id = fs_err::read_to_string(folder.join("id")).expect("its number");
        let id = id.trim();
        assert!(error.contains("given up") && error.contains(&format!("\n    {id} sh stuck.sh")), "{error}");
        // Whoever adopted it may take a moment to notice; what is dead has no arguments.
        let lives = || fs_err::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| !line.is_empty());
        let began = Instant::now();
        while lives() {
            assert!(began.elapsed() < Duration::from_secs(60), "{id} still runs");
            thread::sleep(LOOK);
        }
        fs_err::remove_dir_all(folder).expect("the folder goes");
    }
}
