//! Damping of lines that libraries write: strangers can cause them. Each answer to a PING that was not sent was one, a million for
//! a few megabytes of a client that showed no token.
//!
//! Berth's own lines are damped where they are written, and say how many they stand for.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{Event, Level, Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::layer::{Context, Filter};

use super::json::is_ours;

/// Lines of one place in the code within [`LINES_WINDOW`]: enough to see what a library tries again and again.
const LINES: u32 = 10;

/// See [`LINES`].
const LINES_WINDOW: Duration = Duration::from_secs(60);

/// Lets a bounded number of warnings and errors of each place in the code of libraries through. Lower levels are told only where
/// somebody asked for them.
#[derive(Debug, Default)]
pub(super) struct LibraryDamper {
    /// Lines of each place, and since when they count.
    places: Mutex<HashMap<&'static str, (Instant, u32)>>,
}

impl LibraryDamper {
    /// Counts a line. False: its place has had enough of them.
    fn takes(&self, place: &'static str, now: Instant) -> bool {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, lines) = places.entry(place).or_insert((now, 0));
        if now.saturating_duration_since(*since) >= LINES_WINDOW {
            (*since, *lines) = (now, 0);
        }
        *lines = lines.saturating_add(1);
        *lines <= LINES
    }
}

impl<S> Filter<S> for LibraryDamper {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// Lets each event that may be left out be asked for: where all of a place are taken, `Registry` knows no refusal of one.
    fn callsite_enabled(&self, of: &'static Metadata<'static>) -> Interest {
        if is_damped(of) { Interest::sometimes() } else { Interest::always() }
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let of = event.metadata();
        // The name of an event is its place in the code.
        !is_damped(of) || self.takes(of.name(), Instant::now())
    }

    /// The highest: another filter decides.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }
}

/// True for a warning or an error of a library.
fn is_damped(of: &Metadata<'_>) -> bool {
    *of.level() <= Level::WARN && !is_ours(of.target())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_spec::WorkerId;
    use tracing_subscriber::{Layer as _, filter::FilterExt as _, layer::SubscriberExt as _};

    use super::*;
    use crate::telemetry::json::JsonLogs;

    #[test]
    fn each_place_has_so_many_lines_a_minute() {
        let (damper, now) = (LibraryDamper::default(), Instant::now());
        let told = |place, at| (0..1_000).filter(|_| damper.takes(place, at)).count();
        assert_eq!([told("a", now), told("b", now), told("a", now)], [10, 10, 0]);
        assert_eq!(told("a", now + LINES_WINDOW), 10);
    }

    /// A client that showed no token filled the log: h2 warns of each answer to a PING that was not sent.
    #[test]
    fn warnings_of_libraries_are_damped_and_no_others() {
        let lines = Arc::new(Mutex::new(Vec::<String>::new()));
        let kept = Arc::clone(&lines);
        let sink = Box::new(move |line: &str| kept.lock().expect("unpoisoned").push(line.to_owned()));
        let logs = JsonLogs::new(&WorkerId::new("a").expect("a name"), sink);
        let logs = logs.with_filter(LevelFilter::DEBUG.and(LibraryDamper::default()));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(logs), || {
            for _ in 0..100 {
                tracing::warn!(target: "h2::proto::ping_pong", "an answer to no question");
                tracing::debug!(target: "h2::proto::ping_pong", "asked for");
                tracing::warn!(target: "berth_mesh::gateway", event = "own");
            }
        });
        let lines = lines.lock().expect("unpoisoned");
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!([count("an answer"), count("asked for"), count("\"own\"")], [10, 100, 100]);
    }
}
