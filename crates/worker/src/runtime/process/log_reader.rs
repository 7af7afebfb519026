//! Output of a model's process: copied into the worker's log, line by line and within bounds; its last lines are kept
//! for whoever asks why it failed.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_spec::DeploymentName;

/// The lines that are kept: a native crash report fits.
const MAX_LINES: usize = 64;

/// The most bytes of a line: progress bars without line ends are cut here.
const MAX_LINE: usize = 2 << 10;

/// The lines in a row that are logged at once, and the lines that are credited per second: a chatty load loses none,
/// and a model that prints every request does not fill the log.
const BURST: u32 = 200;
const PER_SECOND: f64 = 20.0;

/// The budget of lines that may be logged. Pure.
#[derive(Debug)]
pub(in crate::runtime) struct Rate {
    left: f64,
    at: Instant,
    dropped: u64,
}

impl Rate {
    pub(in crate::runtime) fn new(now: Instant) -> Self {
        Self { left: f64::from(BURST), at: now, dropped: 0 }
    }

    /// Asks to log one more line; `Some` with the number of lines that were dropped before it.
    pub(in crate::runtime) fn allow(&mut self, now: Instant) -> Option<u64> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * PER_SECOND).min(f64::from(BURST));
        self.at = now;
        if self.left < 1.0 {
            self.dropped += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// The last [`MAX_LINES`] lines that a process printed. Clones share them.
#[derive(Debug, Clone, Default)]
pub(in crate::runtime) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Tail {
    pub(in crate::runtime) fn push(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The lines that are kept, each with its line end.
    pub(in crate::runtime) fn text(&self) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().fold(String::new(), |text, line| text + line + "\n")
    }
}

/// Reads until everybody who could print is gone.
pub(in crate::runtime) fn listen(
    from: impl Read + Send + 'static,
    deployment: DeploymentName,
    tail: Tail,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("berth-model-out".to_owned()).spawn(move || {
        let mut rate = Rate::new(Instant::now());
        let mut from = BufReader::new(from);
        while let Some(line) = next_line(&mut from) {
            if line.is_empty() {
                continue;
            }
            if let Some(dropped) = rate.allow(Instant::now()) {
                if dropped > 0 {
                    tracing::warn!(event = "model_output_dropped", deployment_id = %deployment, lines = dropped);
                }
                tracing::info!(event = "model_output", deployment_id = %deployment, line);
            }
            tail.push(line);
        }
    })
}

/// The next line, or as much of it as is kept; a carriage return ends one, too. `None` at the end.
pub(in crate::runtime) fn next_line(from: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let there = match from.fill_buf() {
            Ok([]) | Err(_) => return (!line.is_empty()).then(|| shown(&line)),
            Ok(there) => there,
        };
        let end = there.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let part = &there[..end.unwrap_or(there.len())];
        let room = MAX_LINE.saturating_sub(line.len()).min(part.len());
        line.extend_from_slice(&part[..room]);
        let read = end.map_or(there.len(), |end| end + 1);
        from.consume(read);
        if end.is_some() {
            return Some(shown(&line));
        }
    }
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

/// The wait for a dead process's last output, which a child may hold open: a traceback arrives even on a busy machine,
/// and a failed load is reported soon.
pub(in crate::runtime) const LAST_WORDS: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_made_harmless() {
        let text = format!("one\r\ntwo\x1b[31m\n{}\nend", "x".repeat(3 * MAX_LINE));
        let mut from = BufReader::with_capacity(7, text.as_bytes());
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut from)).collect();
        assert_eq!(lines, ["one", "", "two [31m", &"x".repeat(MAX_LINE), "end"]);
    }

    #[test]
    fn a_flood_is_thinned_and_counted() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let allowed = (0..1000).filter(|_| rate.allow(start).is_some()).count();
        assert_eq!(allowed, BURST as usize);
        assert_eq!(rate.allow(start + Duration::from_secs(1)), Some(800));
        assert_eq!(rate.allow(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn the_last_lines_are_kept() {
        let tail = Tail::default();
        (0..100).for_each(|number| tail.push(number.to_string()));
        let text = tail.text();
        assert_eq!((text.lines().next(), text.lines().count()), (Some("36"), MAX_LINES));
    }
}
