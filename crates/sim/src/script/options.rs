//! The words of a command: a verb, what it is about, and `key=value` options.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::ByteSize;

/// Options of a command.
pub(super) struct Options<'a>(BTreeMap<&'a str, &'a str>);

/// The verb, what it is about (empty: nothing), and the options.
pub(super) fn parse(line: &str) -> (&str, &str, Options<'_>) {
    let mut words = line.split_whitespace();
    let (verb, subject) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    (verb, subject, Options(words.map(|word| word.split_once('=').unwrap_or((word, ""))).collect()))
}

impl<'a> Options<'a> {
    /// For commands that are about nothing but their options: the first word is one, too.
    pub(super) fn with_subject(mut self, subject: &'a str) -> Self {
        self.0.extend(subject.split_once('='));
        self
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    /// The words of a list, which commas separate.
    pub(super) fn list(&self, key: &str) -> Vec<&'a str> {
        self.text(key).into_iter().flat_map(|text| text.split(',')).collect()
    }

    pub(super) fn size(&self, key: &str) -> Result<Option<ByteSize>, String> {
        self.text(key).map(|text| text.parse().map_err(|error| format!("{error}"))).transpose()
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<u32>, String> {
        self.text(key).map(|text| text.parse().map_err(|_| format!("{key}={text} is no number"))).transpose()
    }

    /// No time if it is not said.
    pub(super) fn time(&self, key: &str) -> Result<Duration, String> {
        self.text(key).map_or(Ok(Duration::ZERO), duration)
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no duration"))?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err(format!("{text:?} is no duration: write 200ms, 5s or 10m")),
    }
}
