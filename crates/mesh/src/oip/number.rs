//! Numbers: read from JSON into exactly the value that the text means.
//!
//! A float is correctly rounded to the width that it is wanted in. Most numbers take Clinger's fast path ("How to read
//! floating point numbers accurately", 1990): up to 2^53, times or divided by a power of ten up to 10^22, both exact, is one
//! rounding. What it does not cover goes to the standard library (Eisel–Lemire).

use std::str::FromStr;

use super::json::{Scanner, Syntax};

/// Powers of ten that a double holds exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Digits that a `u64` holds whatever they are.
const EXACT_DIGITS: usize = 19;

/// A number of a JSON text, scanned and not converted yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number<'a> {
    /// All of it, for what the fast paths do not cover.
    text: &'a [u8],
    negative: bool,
    /// The digits without point and sign, if `exact`.
    mantissa: u64,
    /// The power of ten that the mantissa is multiplied by.
    exponent: i32,
    /// The mantissa holds every digit.
    exact: bool,
}

/// The reason why a number is not an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntegerError {
    /// The number has a fraction.
    Fraction,
    /// The number is beyond ±2^127.
    Huge,
}

impl<'a> Scanner<'a> {
    /// Reads the number that is exactly here (white space was stepped over by a `peek`), by JSON's grammar: no leading zero
    /// or plus, digits on both sides of the point.
    ///
    /// Always inlined, so that the position stays in a register: one number's end is where the next begins, and that chain is
    /// what limits the speed.
    #[inline(always)]
    pub(super) fn number(&mut self) -> Result<Number<'a>, Syntax> {
        let rest = self.rest();
        let negative = rest.first() == Some(&b'-');
        let start = usize::from(negative);
        let (mut mantissa, mut at) = few_digits(rest, start, 0);
        let mut count = at - start;
        if count == 0 || (count > 1 && rest[start] == b'0') {
            return Err(self.error("expected a number"));
        }
        let mut exponent = 0;
        if rest.get(at) == Some(&b'.') {
            let fraction = at + 1;
            (mantissa, at) = digits(rest, fraction, mantissa);
            if at == fraction {
                return Err(self.error("expected a digit after the point of the number"));
            }
            count += at - fraction;
            // A body has fewer than 2^31 bytes; if it ever has not, the number is not exact and this is not used.
            exponent = -i32::try_from(at - fraction).unwrap_or(i32::MAX);
        }
        if let Some(b'e' | b'E') = rest.get(at) {
            let Some((power, end)) = power(rest, at + 1) else {
                return Err(self.error("expected a digit in the exponent of the number"));
            };
            (exponent, at) = (exponent.saturating_add(power), end);
        }
        self.advance(at);
        Ok(Number { text: &rest[..at], negative, mantissa, exponent, exact: count <= EXACT_DIGITS })
    }
}

/// Reads digits from `at` on and appends them to `value` (wrapping: the caller counts them). Returns where they end.
///
/// Eight bytes at a time, as many of them as are digits: for fractions, which differ in length, so that a loop over digits
/// would mispredict its end each time.
#[inline]
fn digits(text: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*eight) ^ 0x3030_3030_3030_3030;
        // The high bit of each byte that is not 0 to 9; a carry only goes up from such a byte, so the lowest bit is right.
        let others = (word.wrapping_add(0x7676_7676_7676_7676) | word) & 0x8080_8080_8080_8080;
        if others == 0 {
            value = value.wrapping_mul(100_000_000).wrapping_add(eight_digits(word));
            at += 8;
            continue;
        }
        let count = others.trailing_zeros() / 8;
        if count > 0 {
            // What is not a digit is shifted out; the zeros that come in are leading ones.
            let digits = eight_digits(word << (64 - 8 * count));
            value = value.wrapping_mul(WHOLE_POWERS[count as usize]).wrapping_add(digits);
            at += count as usize;
        }
        return (value, at);
    }
    few_digits(text, at, value)
}

/// As [`digits`], one at a time: for what is short.
#[inline]
fn few_digits(text: &[u8], mut at: usize, mut value: u64) -> (u64, usize) {
    while let Some(digit) = text.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|&digit| digit <= 9) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        at += 1;
    }
    (value, at)
}

/// The powers of ten for up to eight digits.
const WHOLE_POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// The number that eight bytes of 0 to 9 make, first digit lowest (the multiply-and-shift of Lemire's fast_float).
#[inline]
const fn eight_digits(word: u64) -> u64 {
    let pairs = word.wrapping_mul(10).wrapping_add(word >> 8);
    let low = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

/// The power after an `e`, saturating, and where it ends.
fn power(text: &[u8], mut at: usize) -> Option<(i32, usize)> {
    let negative = text.get(at) == Some(&b'-');
    at += usize::from(matches!(text.get(at), Some(b'-' | b'+')));
    let start = at;
    let mut power: i32 = 0;
    while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
        power = power.saturating_mul(10).saturating_add(i32::from(digit - b'0'));
        at += 1;
    }
    (at > start).then_some((if negative { -power } else { power }, at))
}

impl Number<'_> {
    /// The nearest double; infinite beyond the range.
    #[inline]
    pub(super) fn to_f64(self) -> f64 {
        match self.quick() {
            Some(value) if self.mantissa <= 1 << 53 => self.signed(value),
            _ => self.parse(),
        }
    }

    /// The nearest single; infinite beyond the range.
    ///
    /// The quick double is off by two units in its last place at most. That decides the single, unless the double lies as
    /// near to the middle between two of them: then the text is read again.
    #[inline]
    pub(super) fn to_f32(self) -> f32 {
        const MIDDLE: u64 = 1 << 28;
        match self.quick() {
            Some(value) if (value.to_bits() & ((1 << 29) - 1)).abs_diff(MIDDLE) > 4 => self.signed(value) as f32,
            _ => self.parse(),
        }
    }

    /// The magnitude by one multiplication or division, where the powers of ten allow it. Correctly rounded for mantissas
    /// up to 2^53.
    #[inline]
    fn quick(self) -> Option<f64> {
        let power = *POWERS.get(self.exponent.unsigned_abs() as usize)?;
        let mantissa = self.mantissa as f64;
        self.exact.then_some(if self.exponent < 0 { mantissa / power } else { mantissa * power })
    }

    #[inline]
    fn signed(self, magnitude: f64) -> f64 {
        if self.negative { -magnitude } else { magnitude }
    }

    #[cold]
    fn parse<F: FromStr + Default>(self) -> F {
        // JSON's grammar is within that of Rust's floats, so this cannot fail.
        str::from_utf8(self.text).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// True with a point or an exponent.
    pub(super) fn is_written_as_float(self) -> bool {
        self.text.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
    }

    /// The integer that it is, however it is written: `3`, `3.0`, `0.3e1`.
    #[inline]
    pub(super) fn to_whole(self) -> Result<i128, IntegerError> {
        if self.exact && self.exponent == 0 {
            let magnitude = i128::from(self.mantissa);
            return Ok(if self.negative { -magnitude } else { magnitude });
        }
        self.to_whole_slowly()
    }

    #[cold]
    fn to_whole_slowly(self) -> Result<i128, IntegerError> {
        let mantissa = self.text.split(|byte| matches!(byte, b'e' | b'E')).next().unwrap_or_default();
        let mut digits: Vec<u8> = mantissa.iter().copied().filter(u8::is_ascii_digit).collect();
        let mut exponent = i64::from(self.exponent);
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent += 1;
        }
        let leading = digits.iter().take_while(|&&digit| digit == b'0').count();
        let digits = &digits[leading..];
        if digits.is_empty() {
            return Ok(0);
        }
        if exponent < 0 {
            return Err(IntegerError::Fraction);
        }
        let power = u32::try_from(exponent).ok().and_then(|exponent| 10_i128.checked_pow(exponent));
        let magnitude = digits
            .iter()
            .try_fold(0_i128, |value, &digit| value.checked_mul(10)?.checked_add(i128::from(digit - b'0')))
            .and_then(|value| value.checked_mul(power?))
            .ok_or(IntegerError::Huge)?;
        Ok(if self.negative { -magnitude } else { magnitude })
    }
}
