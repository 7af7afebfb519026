//! `grpc-timeout`: the time that a call may take, as the gRPC protocol writes it ("gRPC over HTTP2", `Timeout`): at most eight digits and
//! a unit.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header by which gRPC limits the time of a call: digits and a unit.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The most digits of a value, by the protocol of gRPC.
const DIGITS: usize = 8;

/// A header of that name whose value is no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("grpc-timeout is {0:?}: it must be up to 8 digits and a unit of HMSmun")]
pub struct MalformedTimeout(HeaderValue);

/// Time that the headers of a call give; `None`: it may take any time.
///
/// # Errors
/// The header is there and gives no time.
pub fn of(headers: &HeaderMap) -> Result<Option<Duration>, MalformedTimeout> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    value.to_str().ok().and_then(read).map(Some).ok_or_else(|| MalformedTimeout(value.clone()))
}

fn read(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let are_digits = (1..=DIGITS).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let count: u64 = Some(digits).filter(|_| are_digits)?.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Value of the header for this time, rounded up. The protocol has no zero. From a second on in milliseconds: calls with one time limit
/// then have the same value, which HTTP/2 knows from the one before.
#[must_use]
pub fn value(time: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let text = match time.as_nanos().div_ceil(1_000) {
        micros if micros < 1_000_000 => format!("{}u", micros.max(1)),
        micros if micros.div_ceil(1_000) <= MOST => format!("{}m", micros.div_ceil(1_000)),
        micros => format!("{}S", micros.div_ceil(1_000_000).min(MOST)),
    };
    // Digits and a letter always are a value.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("1u"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_the_protocol_writes_them() {
        for (text, time) in [
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("5S", Some(Duration::from_secs(5))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("1n", Some(Duration::from_nanos(1))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3_600))),
            ("", None),
            ("S", None),
            ("123456789S", None),
            ("5", None),
            ("5 S", None),
            ("-5S", None),
            ("+5S", None),
            ("5é", None),
        ] {
            let header = HeaderValue::from_bytes(text.as_bytes()).expect("a value");
            let headers: HeaderMap = [(GRPC_TIMEOUT, header.clone())].into_iter().collect();
            assert_eq!(of(&headers), time.map(Some).ok_or(MalformedTimeout(header)), "{text}");
        }
        assert_eq!(of(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn times_have_eight_digits_at_most_and_are_read_again() {
        for (time, written) in [
            (Duration::ZERO, "1u"),
            (Duration::from_nanos(1_500), "2u"),
            (Duration::from_millis(250), "250000u"),
            (Duration::from_micros(9_999_987), "10000m"),
            (Duration::from_micros(100_000_001), "100001m"),
            (Duration::from_secs(3_600), "3600000m"),
            (Duration::from_secs(1_000_000), "1000000S"),
            (Duration::from_secs(u64::MAX), "99999999S"),
        ] {
            assert_eq!(value(time), written, "{time:?}");
            assert!(read(written).is_some(), "{written}");
        }
    }
}
