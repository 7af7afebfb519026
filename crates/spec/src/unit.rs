//! Units: bytes and points in time. Durations are [`std::time::Duration`].

use std::{
    fmt,
    ops::{Add, AddAssign, Sub, SubAssign},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// A number of bytes of memory or disk. Written `512MiB`, `1.5GiB`, `200MB`, `64B`, or from 1 MiB a plain number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// The reason why a string is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSize {
    /// No number, an unknown unit, or too much.
    #[error("{0:?} is not a size: write for example 512MiB, 1.5GiB, 200MB or a number of bytes")]
    Unreadable(String),
    /// A small number without a unit: nobody means so few bytes.
    #[error("{0} has no unit: write {1} if that is meant, {0}B for bytes")]
    NoUnit(u64, ByteSize),
}

/// Numbers below this are meant in another unit than bytes: no model takes less than a mebibyte.
const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

impl ByteSize {
    /// Reads a size as a person gives it: a small number needs a unit. What programs wrote is read by [`FromStr`].
    ///
    /// # Errors
    /// The form to write instead.
    pub fn given(text: &str) -> Result<Self, InvalidSize> {
        match text.trim().parse::<u64>() {
            Ok(number @ 1..LEAST_WITHOUT_UNIT) => Err(InvalidSize::NoUnit(number, likely(number))),
            _ => text.parse(),
        }
    }

    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `n` times 2^20 bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` times 2^30 bytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The difference, or nothing where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for ByteSize {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for ByteSize {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for ByteSize {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl SubAssign for ByteSize {
    fn sub_assign(&mut self, other: Self) {
        *self = self.saturating_sub(other);
    }
}

impl std::iter::Sum for ByteSize {
    fn sum<I: Iterator<Item = Self>>(sizes: I) -> Self {
        sizes.fold(Self::ZERO, Add::add)
    }
}

impl ByteSize {
    /// For people, where another size stands beside it: to the byte if both would read the same and are not.
    #[must_use]
    pub fn beside(self, other: Self) -> String {
        let text = self.to_string();
        if self != other && text == other.to_string() { format!("{}B", self.0) } else { text }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        // What would be rounded to 1024 of a unit is 1 of the next.
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value < 99.95 && (value * 10.0).round() % 10.0 != 0.0);
        match f.width() {
            None if value.fract() == 0.0 => write!(f, "{}{}", value as u64, UNITS[unit]),
            None => write!(f, "{value:.digits$}{}", UNITS[unit]),
            Some(_) => f.pad(&format!("{value:.digits$}{}", UNITS[unit])),
        }
    }
}

impl FromStr for ByteSize {
    type Err = InvalidSize;
    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let invalid = || InvalidSize::Unreadable(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "k" | "kB" | "KB" => 1_000,
            "M" | "MB" => 1_000_000,
            "G" | "GB" => 1_000_000_000,
            "T" | "TB" => 1_000_000_000_000,
            "Ki" | "KiB" => 1 << 10,
            "Mi" | "MiB" => 1 << 20,
            "Gi" | "GiB" => 1 << 30,
            "Ti" | "TiB" => 1 << 40,
            _ => return Err(invalid()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(invalid);
        }
        let value: f64 = number.parse().map_err(|_| invalid())?;
        let bytes = value * factor as f64;
        if bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64 {
            Ok(Self(bytes as u64))
        } else {
            Err(invalid())
        }
    }
}

/// The size that a small number without a unit most likely stands for: gibibytes as machines have them, mebibytes as models
/// have them, else bytes in the unit that reads best.
fn likely(number: u64) -> ByteSize {
    match number {
        0..=64 => ByteSize::gib(number),
        65..=9_999 => ByteSize::mib(number),
        _ => ByteSize(number.next_multiple_of(1 << 10)),
    }
}

/// A point in time: nanoseconds since the Unix epoch. Decisions are given it; only drivers read a clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// The beginning: "never" when it says when something last happened.
    pub const ZERO: Self = Self(0);

    /// The time that has passed since `earlier`; nothing if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

impl Add<Duration> for Time {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Time {
    /// RFC 3339 in UTC with milliseconds. Days to a date: Howard Hinnant's `civil_from_days`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.0 / 1_000_000_000, self.as_millis() % 1_000);
        let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year_of_era + era * 400 + u64::from(month <= 2);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("64B", 64),
            ("512MiB", 512 << 20),
            ("1.5Gi", 3 << 29),
            ("200MB", 200_000_000),
            (" 7 B", 7),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for bad in ["", "MiB", "-1", "1e999GiB", "5 apples", "99999999999TiB", "."] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
        for (text, meant) in [("8", "8GiB"), ("512", "512MiB"), ("65536", "64KiB")] {
            let error = ByteSize::given(text).expect_err(text).to_string();
            assert!(
                error.contains(&format!("write {meant} if")) && error.contains(&format!("{text}B for bytes")),
                "{error}"
            );
            assert!(text.parse::<ByteSize>().is_ok(), "what was stored is read");
        }
        assert_eq!(ByteSize::mib(1536).to_string(), "1.5GiB");
        assert_eq!(ByteSize::gib(2).to_string(), "2GiB");
        let less = |size: ByteSize, by: u64| ByteSize(size.0 - by);
        for (size, text) in [
            (less(ByteSize::gib(1), 1), "1GiB"),
            (less(ByteSize::gib(2), 1), "2GiB"),
            (ByteSize::mib(1023), "1023MiB"),
            (ByteSize(1023), "1023B"),
            (ByteSize(1 << 60), "1048576TiB"),
        ] {
            assert_eq!(size.to_string(), text);
        }
        let (one, other) = (ByteSize::gib(1), less(ByteSize::gib(1), 1));
        assert_eq!((one.beside(other), other.beside(one)), ("1073741824B".to_owned(), "1073741823B".to_owned()));
        assert_eq!((one.beside(one), one.beside(ByteSize::gib(2))), ("1GiB".to_owned(), "1GiB".to_owned()));
    }

    #[test]
    fn times() {
        assert_eq!(Time(951_782_400_000_000_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(Time(1_761_648_300_123_000_000).to_string(), "2025-10-28T10:45:00.123Z");
        assert_eq!(Time(5).since(Time(9)), Duration::ZERO);
    }
}
