//! Elements of tensors: how a JSON value becomes the little-endian bytes of a datatype.

use berth_spec::Datatype;
use half::{bf16, f16};

use super::{
    json::{Scanner, Syntax},
    number::IntegerError,
};

/// The reason why a value is not an element of a datatype.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misfit {
    /// Not even JSON.
    #[error(transparent)]
    Syntax(#[from] Syntax),
    /// JSON, but of another kind.
    #[error("must be {0}")]
    Kind(&'static str),
    /// A number with a fraction for an integer.
    #[error("has a fraction, which {0} cannot hold")]
    Fraction(Datatype),
    /// A number beyond what the datatype holds.
    #[error("does not fit {0}, which holds {1}")]
    Range(Datatype, &'static str),
    /// A string longer than its 4-byte length can say.
    #[error("is longer than 4 GiB")]
    Long,
}

/// A kind of element: one type per datatype, so that the loop over a tensor is compiled once for each.
pub(super) trait Element {
    /// Reads one value at the scanner and appends its bytes to `out`.
    fn read(scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), Misfit>;
}

/// BOOL: one byte.
pub(super) struct Bool;
/// FP16, rounded from a double to the nearest.
pub(super) struct Fp16;
/// BF16, rounded from a single to the nearest.
pub(super) struct Bf16;
/// FP32.
pub(super) struct Fp32;
/// FP64.
pub(super) struct Fp64;
/// BYTES: the UTF-8 of a string behind its length.
pub(super) struct Text;

impl Element for Bool {
    fn read(scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
        let kind = Misfit::Kind("true, false, 0 or 1");
        let value = match scanner.peek() {
            Some(b't') if scanner.take_word("true") => 1,
            Some(b'f') if scanner.take_word("false") => 0,
            Some(b'-' | b'0'..=b'9') => match scanner.number()?.to_whole() {
                Ok(0) => 0,
                Ok(1) => 1,
                _ => return Err(kind),
            },
            _ => return Err(kind),
        };
        out.push(value);
        Ok(())
    }
}

macro_rules! integers {
    ($($name:ident $int:ty, $datatype:ident, $range:literal;)*) => {$(
        #[doc = concat!(stringify!($datatype), ": ", $range, ".")]
        pub(super) struct $name;

        impl Element for $name {
            #[inline]
            fn read(scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
                let Some(b'-' | b'0'..=b'9') = scanner.peek() else { return Err(Misfit::Kind("a number")) };
                let value = match scanner.number()?.to_whole() {
                    Ok(value) => <$int>::try_from(value).ok(),
                    Err(IntegerError::Huge) => None,
                    Err(IntegerError::Fraction) => return Err(Misfit::Fraction(Datatype::$datatype)),
                };
                let value = value.ok_or(Misfit::Range(Datatype::$datatype, $range))?;
                out.extend_from_slice(&value.to_le_bytes());
                Ok(())
            }
        }
    )*};
}

integers! {
    Uint8 u8, Uint8, "0 to 255";
    Uint16 u16, Uint16, "0 to 65535";
    Uint32 u32, Uint32, "0 to 2^32-1";
    Uint64 u64, Uint64, "0 to 2^64-1";
    Int8 i8, Int8, "-128 to 127";
    Int16 i16, Int16, "-32768 to 32767";
    Int32 i32, Int32, "-2^31 to 2^31-1";
    Int64 i64, Int64, "-2^63 to 2^63-1";
}

/// Reads a number, or the words that stand for what is not one. `convert` must keep infinity and NaN.
macro_rules! floats {
    ($($name:ident, $datatype:ident, $range:literal, $read:expr, $convert:expr;)*) => {$(
        impl Element for $name {
            #[inline]
            fn read(scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
                if let Some(b'-' | b'0'..=b'9') = scanner.peek() {
                    if !scanner.rest().starts_with(b"-I") {
                        let value = $convert($read(scanner.number()?));
                        if !value.is_finite() {
                            return Err(Misfit::Range(Datatype::$datatype, $range));
                        }
                        out.extend_from_slice(&value.to_le_bytes());
                        return Ok(());
                    }
                }
                out.extend_from_slice(&$convert(word(scanner)?.into()).to_le_bytes());
                Ok(())
            }
        }
    )*};
}

floats! {
    Fp16, Fp16, "up to ±65504", super::number::Number::to_f64, f16::from_f64;
    Bf16, Bf16, "up to about ±3.39e38", super::number::Number::to_f32, bf16::from_f32;
    Fp32, Fp32, "up to about ±3.4e38", super::number::Number::to_f32, std::convert::identity::<f32>;
    Fp64, Fp64, "up to about ±1.8e308", super::number::Number::to_f64, std::convert::identity::<f64>;
}

/// `NaN`, `Infinity` or `-Infinity`.
#[cold]
fn word(scanner: &mut Scanner<'_>) -> Result<f32, Misfit> {
    if scanner.take_word("NaN") {
        Ok(f32::NAN)
    } else if scanner.take_word("Infinity") {
        Ok(f32::INFINITY)
    } else if scanner.take_word("-Infinity") {
        Ok(f32::NEG_INFINITY)
    } else {
        Err(Misfit::Kind("a number"))
    }
}

impl Element for Text {
    fn read(scanner: &mut Scanner<'_>, out: &mut Vec<u8>) -> Result<(), Misfit> {
        if scanner.peek() != Some(b'"') {
            return Err(Misfit::Kind("a string"));
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        scanner.string_into(out)?;
        let length = u32::try_from(out.len() - start - 4).map_err(|_| Misfit::Long)?;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }
}
