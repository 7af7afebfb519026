//! Levels of the log that change while the server runs: clients of the inference port may set them (the logging extension).

use std::sync::{Arc, Mutex, PoisonError};

use berth_mesh::controls::{LogControl, LogSettings};
use tracing_subscriber::{EnvFilter, reload};

/// Levels that `--log` says: as good as nothing is off.
const STARTED: LogSettings = LogSettings { info: true, warning: true, error: true, verbose: 0 };

/// The control over a filter that began as `filter`. The levels are those of Berth's own messages; as they were at the start, the
/// filter is the one that it began as.
pub(super) fn control<S: 'static>(filter: &str, handle: reload::Handle<EnvFilter, S>) -> LogControl {
    let (filter, now) = (filter.to_owned(), Arc::new(Mutex::new(STARTED)));
    let read = Arc::clone(&now);
    LogControl {
        read: Arc::new(move || *read.lock().unwrap_or_else(PoisonError::into_inner)),
        write: Arc::new(move |settings| {
            let changed = match level(settings) {
                _ if settings == STARTED => filter.clone(),
                level => format!("{filter},berth={level}"),
            };
            let changed = EnvFilter::try_new(&changed).map_err(|error| error.to_string())?;
            handle.reload(changed).map_err(|error| error.to_string())?;
            *now.lock().unwrap_or_else(PoisonError::into_inner) = settings;
            Ok(())
        }),
    }
}

/// The lowest level that is told. Levels above one that is told are told too: a log without its errors helps nobody.
fn level(settings: LogSettings) -> &'static str {
    match settings {
        LogSettings { verbose: 2.., .. } => "trace",
        LogSettings { verbose: 1, .. } => "debug",
        LogSettings { info: true, .. } => "info",
        LogSettings { warning: true, .. } => "warn",
        LogSettings { error: true, .. } => "error",
        _ => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_levels() {
        for (settings, expected) in [
            (STARTED, "info"),
            (LogSettings { verbose: 1, ..STARTED }, "debug"),
            (LogSettings { verbose: 7, info: false, ..STARTED }, "trace"),
            (LogSettings { info: false, ..STARTED }, "warn"),
            (LogSettings { info: false, warning: false, ..STARTED }, "error"),
            (LogSettings { info: false, warning: false, error: false, verbose: 0 }, "off"),
        ] {
            assert_eq!(level(settings), expected, "{settings:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_filters() {
        let (layer, handle) = reload::Layer::<_, tracing_subscriber::Registry>::new(EnvFilter::new("warn,berth=info"));
        let shown = handle.clone();
        let control = control("warn,berth=info", handle);
        assert_eq!((control.read)(), STARTED);
        let verbose = LogSettings { verbose: 1, ..STARTED };
        (control.write)(verbose).expect("a filter");
        assert_eq!((control.read)(), verbose);
        let shown = shown.with_current(EnvFilter::to_string).expect("it lives");
        assert!(shown.contains("berth=debug") && shown.contains("warn"), "{shown}");
        drop(layer);
        assert!((control.write)(STARTED).is_err(), "there is nothing left to change");
    }
}
