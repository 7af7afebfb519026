//! A point in time as JSON carries it.

use std::{fmt, str::FromStr};

use berth_spec::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A point in time, written in RFC 3339 in UTC with milliseconds: `2026-11-21T07:30:00.000Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, format = DateTime, examples("2026-11-21T07:30:00.000Z"))]
pub struct Timestamp(pub Time);

/// Error for a text that is not a [`Timestamp`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a point in time: write it as 2026-11-21T07:30:00.000Z")]
pub struct InvalidTimestamp(String);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Timestamp> for String {
    fn from(at: Timestamp) -> Self {
        at.to_string()
    }
}

impl TryFrom<String> for Timestamp {
    type Error = InvalidTimestamp;
    fn try_from(text: String) -> Result<Self, InvalidTimestamp> {
        text.parse()
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTimestamp;

    /// Reads what [`Time`] writes: UTC, with up to nine digits of a second. A date to days: Howard Hinnant's
    /// `days_from_civil`.
    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        read(text).map(Self).ok_or_else(|| InvalidTimestamp(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Time> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers::<3>(date, '-')?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let [hour, minute, second] = numbers::<3>(clock, ':')?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !in_range || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let nanos = format!("{fraction:0<9}").parse::<u64>().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos).map(Time)
}

fn numbers<const N: usize>(text: &str, separator: char) -> Option<[u64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for number in &mut numbers {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for millis in [0, 951_782_400_000, 1_761_648_300_123, 4_102_444_799_999] {
            let at = Timestamp(Time(millis * 1_000_000));
            assert_eq!(at.to_string().parse(), Ok(at), "{at}");
        }
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Timestamp(Time(1_000_000_000))));
    }

    #[test]
    fn refuses_the_rest() {
        for bad in [
            "",
            "today",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-1--1T0:0:0Z",
            "2026-01-01T24:00:00Z",
            "99999-01-01T00:00:00Z",
            "2026-01-01T00:00:00.1234567890Z",
        ] {
            assert!(bad.parse::<Timestamp>().is_err(), "{bad}");
        }
    }
}
