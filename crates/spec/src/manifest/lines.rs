//! Lines of a text, found without a scan from its beginning: a text of megabytes may have an error in each of its last lines.

use std::cell::OnceCell;

/// Lines from one known beginning to the next. A beginning for each would take more than a text of short lines does.
const STRIDE: usize = 64;

/// A text whose lines are looked up by number.
#[derive(Debug)]
pub struct Lines<'a> {
    text: &'a str,
    /// The beginning of every [`STRIDE`]th line; found when the first is looked up, as most texts have no errors.
    starts: OnceCell<Vec<usize>>,
}

impl<'a> Lines<'a> {
    /// Looks at `text`, without a scan of it yet.
    #[must_use]
    pub const fn of(text: &'a str) -> Self {
        Self { text, starts: OnceCell::new() }
    }

    /// The whole text, as it was given.
    #[must_use]
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// The line of a number from 1, without its end.
    #[must_use]
    pub fn line(&self, number: u32) -> Option<&'a str> {
        let nth = (number as usize).checked_sub(1)?;
        let starts = self.starts.get_or_init(|| starts(self.text));
        self.text.get(*starts.get(nth / STRIDE)?..)?.lines().nth(nth % STRIDE)
    }
}

fn starts(text: &str) -> Vec<usize> {
    let after_ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(after_ends).step_by(STRIDE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_that_of_a_scan() {
        let long: String = (0..1_000).map(|number| format!("é{number}\r\n")).collect();
        for text in ["", "a", "a\n", "\n\n", &long, long.trim_end(), &"\n".repeat(STRIDE), &"\n".repeat(STRIDE + 1)] {
            let lines = Lines::of(text);
            assert_eq!(lines.line(0), None);
            for number in 1..1_100_u32 {
                assert_eq!(lines.line(number), text.lines().nth(number as usize - 1), "line {number}");
            }
        }
    }
}
