//! The texts inside a manifest that mean something: durations, sizes, names, digests, locations, labels. Each has a
//! `format` in the schema, by which the checker finds its rule here, so that all wrong ones are reported at once.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, de::Error as _};

use super::uri;
use crate::{
    ByteSize, DeploymentName, Digest, ModelFormat, Namespace,
    format::FormatError,
    id::{MAX_NAME, MAX_NAMESPACE},
    network::Destination,
    unit::InvalidSize,
};

/// An error in a value, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The error, without the place.
    pub message: String,
    /// The way out, as an imperative; may be empty.
    pub remedy: String,
}

impl Problem {
    /// Joins an error and its remedy, which may be empty.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.remedy.is_empty() { f.write_str(&self.message) } else { write!(f, "{}; {}", self.message, self.remedy) }
    }
}

/// A text with a rule: parsed from and written as text, with a `format` of its own in the schema.
macro_rules! scalar {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal, $schema:tt, $read:expr, $write:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name(pub $inner);

        impl $name {
            pub(crate) const FORMAT: &'static str = $format;

            /// Reads the text.
            ///
            /// # Errors
            /// The rule that it breaks.
            pub fn read(text: &str) -> Result<Self, Problem> {
                let read: fn(&str) -> Result<$inner, Problem> = $read;
                read(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = match serde_json::Value::deserialize(deserializer)? {
                    serde_json::Value::String(text) => text,
                    other => other.to_string(),
                };
                Self::read(&text).map_err(D::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let write: fn(&$inner) -> String = $write;
                serializer.serialize_str(&write(&self.0))
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

scalar! {
    /// A length of time: `500ms`, `30s`, `10m`, `1h30m`, `2d`.
    Span(Duration), "berth-duration",
    { "type": "string", "format": "berth-duration", "pattern": "^(0|([0-9]+(ms|s|m|h|d))+)$", "examples": ["30s"] },
    read_duration, |d| write_duration(*d)
}

scalar! {
    /// A number of bytes: `512MiB`, `1.5GiB`, `200MB`, `64B`; without a unit from 1 MiB.
    Size(ByteSize), "berth-size",
    { "type": ["string", "integer"], "format": "berth-size", "minimum": 1, "examples": ["512MiB"] },
    |text| match ByteSize::from_str(text) {
        Ok(ByteSize::ZERO) => Err(Problem::new("the size is nothing", "give at least 1 byte, or leave the field out")),
        Ok(size) => Ok(size),
        Err(_) => Err(Problem::new(format!("{text:?} is not a size"), "write for example 512MiB, 1.5GiB or 200MB")),
    },
    |size| write_size(*size)
}

scalar! {
    /// The name of a deployment without its namespace: slashes are part of it.
    Name(DeploymentName), "berth-name",
    { "type": "string", "format": "berth-name", "minLength": 1, "maxLength": 253, "pattern": "^\\S(.*\\S)?$" },
    |text| DeploymentName::within(&Namespace::DEFAULT, text).map_err(|e| Problem::new(e.to_string(), suggest_name(text))),
    |name| name.name().to_owned()
}

scalar! {
    /// A namespace: a DNS label.
    InNamespace(Namespace), "berth-namespace",
    { "type": "string", "format": "berth-namespace", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" },
    |text| Namespace::new(text).map_err(|e| Problem::new(e.to_string(), suggest_namespace(text))),
    |namespace| namespace.to_string()
}

scalar! {
    /// A SHA-256 digest.
    Sha256(Digest), "berth-sha256",
    { "type": "string", "format": "berth-sha256", "pattern": "^(sha256:)?[0-9a-fA-F]{64}$" },
    |text| Digest::from_str(text).map_err(|e| Problem::new(e.to_string(), "copy it from `sha256sum FILE`")),
    |digest| digest.to_string()
}

scalar! {
    /// Where an artifact is; relative ones are not resolved yet.
    Location(String), "berth-uri",
    { "type": "string", "format": "berth-uri", "examples": ["file:iris.onnx", "s3://models/iris.onnx"] },
    |text| uri::check(text).map(|()| text.to_owned()),
    String::clone
}

scalar! {
    /// The value of a label: at most 253 bytes, without commas, `=`, `!` and control characters.
    #[derive(Default)]
    Label(String), "berth-label",
    { "type": "string", "format": "berth-label", "maxLength": 253 },
    |text| match text.chars().find(|c| c.is_control() || matches!(c, ',' | '=' | '!')) {
        Some(c) => Err(Problem::new(format!("{c:?} is not allowed in a label"), "selectors could not name it: remove it")),
        None if text.len() > 253 => Err(Problem::new("a label has at most 253 bytes", "use an annotation for long texts")),
        None => Ok(text.to_owned()),
    },
    String::clone
}

scalar! {
    /// A word that goes into addresses and settings: a version, an execution provider.
    #[derive(Default)]
    Word(String), "berth-word",
    { "type": "string", "format": "berth-word", "minLength": 1, "maxLength": 63, "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$" },
    |text| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() || text.len() > 63 || !text.chars().all(plain) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err(Problem::new(
                format!("{text:?} is not a word that fits an address"),
                "use at most 63 letters, digits, '.', '_' and '-', and begin with a letter or digit",
            ));
        }
        Ok(text.to_owned())
    },
    String::clone
}

scalar! {
    /// A host and a port: `api.example.com:443`.
    HostPort(Destination), "berth-host-port",
    { "type": "string", "format": "berth-host-port", "examples": ["api.example.com:443", "10.0.0.5:5432"] },
    |text| text.parse::<Destination>().map_err(|_| {
        Problem::new(format!("{text:?} is not a host and a port"), "write for example api.example.com:443 or 10.0.0.5:5432")
    }),
    Destination::to_string
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Whole<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Whole<MIN, MAX> {
    /// Takes a number within the bounds.
    ///
    /// # Errors
    /// The bound that it crosses.
    pub fn new(number: u32) -> Result<Self, Problem> {
        if (MIN..=MAX).contains(&number) {
            return Ok(Self(number));
        }
        let side = if number < MIN { "low" } else { "high" };
        let remedy = if MAX == u32::MAX { format!("give at least {MIN}") } else { format!("give {MIN} to {MAX}") };
        Err(Problem::new(format!("{number} is too {side}"), remedy))
    }

    /// A number that is known to be within the bounds: the nearest one that is.
    #[must_use]
    pub const fn constant(number: u32) -> Self {
        Self(if number < MIN {
            MIN
        } else if number > MAX {
            MAX
        } else {
            number
        })
    }

    /// The number, which is within the bounds.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> Default for Whole<MIN, MAX> {
    /// The lowest number within the bounds.
    fn default() -> Self {
        Self(MIN)
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(u32::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<const MIN: u32, const MAX: u32> JsonSchema for Whole<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Whole{MIN}to{MAX}").into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "integer", "format": "uint32", "minimum": MIN });
        if MAX < u32::MAX {
            schema.insert("maximum".to_owned(), MAX.into());
        }
        schema
    }
}

/// A number with a fraction, written with as few digits as tell it apart: 0.1 stays 0.1.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Decimal(pub f32);

impl Serialize for Decimal {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_string().parse::<f64>() {
            Ok(number) => serializer.serialize_f64(number),
            Err(_) => serializer.serialize_f32(self.0),
        }
    }
}

impl JsonSchema for Decimal {
    fn schema_name() -> Cow<'static, str> {
        "Decimal".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        f32::json_schema(generator)
    }
}

scalar! {
    /// A model format: `onnx`, `sklearn:1`.
    Format(ModelFormat), "berth-format",
    { "type": "string", "format": "berth-format", "minLength": 1, "maxLength": 127, "pattern": "^[a-z0-9][a-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._+-]*)?$", "examples": ["onnx"] },
    |text| text.parse().map_err(|error: FormatError| Problem::new(error.to_string(), "for example `onnx` or `sklearn:1`")),
    ToString::to_string
}

scalar! {
    /// The version of a model format: 1 to 63 letters, digits, `-`, `_`, `.` and `+`.
    FormatVersion(String), "berth-format-version",
    { "type": ["string", "number"], "format": "berth-format-version", "maxLength": 63, "examples": ["1"] },
    |text| ModelFormat::new(ModelFormat::ONNX.as_str(), Some(text))
        .map(|_| text.to_owned())
        .map_err(|error| Problem::new(error.to_string(), "for example `\"1\"`")),
    String::clone
}

/// Applies the rule of `format` to `text`; formats of others pass.
pub(crate) fn check(format: &str, text: &str) -> Result<(), Problem> {
    match format {
        Span::FORMAT => Span::read(text).map(drop),
        Size::FORMAT => match ByteSize::given(text) {
            Err(InvalidSize::NoUnit(number, likely)) => {
                let remedy = format!("write {likely} if that is meant, {number}B for bytes");
                Err(Problem::new(format!("{number} has no unit"), remedy))
            }
            _ => Size::read(text).map(drop),
        },
        Name::FORMAT => Name::read(text).map(drop),
        InNamespace::FORMAT => InNamespace::read(text).map(drop),
        Sha256::FORMAT => Sha256::read(text).map(drop),
        Location::FORMAT => Location::read(text).map(drop),
        Label::FORMAT => Label::read(text).map(drop),
        Word::FORMAT => Word::read(text).map(drop),
        HostPort::FORMAT => HostPort::read(text).map(drop),
        Format::FORMAT => Format::read(text).map(drop),
        FormatVersion::FORMAT => FormatVersion::read(text).map(drop),
        _ => Ok(()),
    }
}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// In the largest unit that says it to the byte.
fn write_size(size: ByteSize) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| size.0 >= *unit && size.0.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", size.0 / unit),
        None if size.0 < 1 << 20 => format!("{}B", size.0),
        None => size.0.to_string(),
    }
}

/// Sums parts of a number and a unit: `1h30m`. At most ten years, so that no sum of a time and a duration overflows.
fn read_duration(text: &str) -> Result<Duration, Problem> {
    const MAX_MILLIS: u64 = 3_650 * 86_400_000;
    let invalid =
        || Problem::new(format!("{text:?} is not a duration"), "write for example 500ms, 30s, 10m, 1h30m or 2d");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::new(format!("{text} has no unit"), format!("write {text}s if seconds are meant")));
    }
    let (mut rest, mut millis) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let factor = UNITS.iter().find(|(name, _)| *name == &tail[..unit]).map(|(_, factor)| *factor);
        let part = number.parse::<u64>().ok().zip(factor).and_then(|(n, factor)| n.checked_mul(factor));
        millis = part.and_then(|part| millis.checked_add(part)).ok_or_else(invalid)?;
        rest = &tail[unit..];
    }
    if text.is_empty() {
        return Err(invalid());
    }
    if millis > MAX_MILLIS {
        return Err(Problem::new(format!("{text:?} is more than ten years"), "give a shorter time"));
    }
    Ok(Duration::from_millis(millis))
}

/// The shortest form that [`read_duration`] reads back; below a millisecond is cut.
pub(crate) fn write_duration(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, factor) in UNITS {
        if millis >= factor {
            text.push_str(&format!("{}{unit}", millis / factor));
            millis %= factor;
        }
    }
    text
}

/// A name as near to `text` as the rules allow.
fn suggest_name(text: &str) -> String {
    let name: String = text.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    match DeploymentName::within(&Namespace::DEFAULT, name.trim()) {
        Ok(name) => format!("write for example {:?}", name.name()),
        Err(_) => "write for example iris-v2".to_owned(),
    }
}

/// A namespace as near to `text` as the rules allow.
fn suggest_namespace(text: &str) -> String {
    let plain = |c: char| if matches!(c, 'a'..='z' | '0'..='9') { c } else { '-' };
    let namespace: String = text.to_lowercase().chars().map(plain).take(MAX_NAMESPACE).collect();
    match namespace.trim_matches('-') {
        "" => "use lower-case letters, digits and '-', for example team-a".to_owned(),
        namespace => format!("write for example {namespace}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in
            [("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("2d", 172_800_000), ("0s", 0), ("0", 0)]
        {
            assert_eq!(read_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "30", "s", "1.5s", "-1s", "1 s", "1x", "99999999999999999999s", "4000d", "1sé", "٣s"] {
            assert!(read_duration(bad).is_err(), "{bad}");
        }
        let remedy = read_duration("30").map_err(|problem| problem.remedy);
        assert_eq!(remedy, Err("write 30s if seconds are meant".to_owned()));
        for millis in [1, 999, 1_000, 61_001, 86_400_000, 90_061_001] {
            let duration = Duration::from_millis(millis);
            assert_eq!(read_duration(&write_duration(duration)), Ok(duration));
        }
    }

    #[test]
    fn a_wrong_name_gets_a_right_one() {
        for (text, remedy) in [(" Iris V2 ", "write for example \"Iris V2\""), ("..", "write for example iris-v2")] {
            assert_eq!(Name::read(text).expect_err("not a name").remedy, remedy);
        }
    }
}
