//! The pace of lines in the log about objects that fail: whoever may write objects can cause any number of them.

use std::time::{Duration, Instant};

/// Lines of a minute: enough to see that several objects fail, and why.
const LINES: u32 = 20;

/// Length of that minute.
const MINUTE: Duration = Duration::from_mins(1);

/// Lets so many lines of a minute through, and counts those between.
#[derive(Debug, Default)]
pub struct LinePace {
    /// Begin of the minute, and lines in it.
    minute: Option<(Instant, u32)>,
    left_out: u64,
}

impl LinePace {
    /// The number of lines that were left out since the last one, if it is time for one.
    pub fn tell(&mut self, now: Instant) -> Option<u64> {
        let (since, told) = self.minute.filter(|(since, _)| now < *since + MINUTE).unwrap_or((now, 0));
        if told >= LINES {
            self.left_out += 1;
            return None;
        }
        self.minute = Some((since, told + 1));
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_lines_of_a_minute_are_told_with_the_number_of_others() {
        let (mut pace, now) = (LinePace::default(), Instant::now());
        let told: Vec<_> = (0..1_000).filter_map(|_| pace.tell(now)).collect();
        assert_eq!(told, [0; LINES as usize]);
        let later = now + MINUTE;
        assert_eq!((pace.tell(later), pace.tell(later)), (Some(1_000 - u64::from(LINES)), Some(0)));
    }
}
