//! Runs other programs, and fails with the name of the one that failed.

use std::{
    io::IsTerminal as _,
    process::{Command, Stdio},
    time::Instant,
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

/// The command as it would be typed.
pub(crate) fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        shown.push(' ');
        shown.push_str(&argument.to_string_lossy());
    }
    shown
}
