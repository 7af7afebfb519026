//! Parameters: free ones go to the model's request, the protocol's own are taken out.

use std::time::Duration;

use berth_spec::{
    InferError,
    inference::{Parameter, Parameters},
};

use super::{
    Decoded,
    json::{Scanner, Syntax, write_string},
};

/// Puts one request parameter where it belongs.
pub(super) fn take(decoded: &mut Decoded, name: &str, value: Parameter) -> Result<(), InferError> {
    match name {
        "timeout" => {
            let micros = unsigned(name, &value, "whole microseconds from 0")?;
            decoded.options.timeout = (micros > 0).then(|| Duration::from_micros(micros));
        }
        // Models have no priority levels, as `config` says: it is checked and left out, as Triton does then.
        "priority" => drop(unsigned(name, &value, "a whole number from 0")?),
        "binary_data_output" => decoded.form.binary = flag(name, &value)?,
        "triton_enable_empty_final_response" => decoded.options.final_response = flag(name, &value)?,
        "sequence_id" | "sequence_start" | "sequence_end" => refuse_sequence(&value)?,
        // Reserved for headers that a server forwards: what a client puts there means nothing.
        "headers" => {}
        _ => {
            if decoded.request.parameters.insert(name.to_owned(), value).is_some() {
                return Err(InferError::Invalid(format!("parameter {name:?} is given twice")));
            }
        }
    }
    Ok(())
}

/// Reads a parameter that must be true or false. Fails with its name.
pub(super) fn flag(name: &str, value: &Parameter) -> Result<bool, InferError> {
    match *value {
        Parameter::Bool(flag) => Ok(flag),
        _ => Err(wrong(name, "true or false")),
    }
}

/// A parameter that must be a number from 0; `what` says so.
pub(super) fn unsigned(name: &str, value: &Parameter, what: &'static str) -> Result<u64, InferError> {
    match *value {
        Parameter::Uint(value) => Some(value),
        Parameter::Int(value) => u64::try_from(value).ok(),
        _ => None,
    }
    .ok_or_else(|| wrong(name, what))
}

/// Reads the parameter `classification`: the number of classes that are wanted.
pub(super) fn classes(value: &Parameter) -> Result<u32, InferError> {
    let what = "a whole number from 1 to 2^32-1";
    let classes = unsigned("classification", value, what)?;
    u32::try_from(classes).ok().filter(|&classes| classes > 0).ok_or_else(|| wrong("classification", what))
}

fn wrong(name: &str, what: &'static str) -> InferError {
    InferError::Invalid(format!("parameter {name:?} must be {what}"))
}

/// Clients send 0, "" and false for "no sequence".
fn refuse_sequence(value: &Parameter) -> Result<(), InferError> {
    let none = match value {
        Parameter::Bool(flag) => !flag,
        Parameter::Int(id) => *id == 0,
        Parameter::Uint(id) => *id == 0,
        Parameter::Float(id) => *id == 0.0,
        Parameter::Text(id) => id.is_empty(),
    };
    if none {
        return Ok(());
    }
    Err(InferError::Unsupported(
        "this server does not do sequences: leave sequence_id, sequence_start and sequence_end out".to_owned(),
    ))
}

/// Reads the object of parameters at the scanner, or `null`. `take` gets each; those whose value is `null` are left out,
/// as are arrays and objects under `headers`.
pub(super) fn read(
    scanner: &mut Scanner<'_>,
    mut take: impl FnMut(&str, Parameter) -> Result<(), InferError>,
) -> Result<(), InferError> {
    if scanner.take_word("null") {
        return Ok(());
    }
    scanner.object(|scanner, name| match scanner.peek() {
        Some(b'[' | b'{') if name == "headers" => Ok(scanner.skip()?),
        Some(b'[' | b'{') => Err(wrong(name, "a string, a number, true or false")),
        _ => match read_value(scanner)? {
            Some(value) => take(name, value),
            None => Ok(()),
        },
    })
}

/// Reads a string, a number or a truth value; `None`: null.
pub(super) fn read_value(scanner: &mut Scanner<'_>) -> Result<Option<Parameter>, Syntax> {
    Ok(Some(match scanner.peek() {
        Some(b'"') => Parameter::Text(scanner.string()?.into_owned()),
        Some(b't') if scanner.take_word("true") => Parameter::Bool(true),
        Some(b'f') if scanner.take_word("false") => Parameter::Bool(false),
        Some(b'n') if scanner.take_word("null") => return Ok(None),
        _ => {
            let number = scanner.number()?;
            let whole = number.to_whole().ok().filter(|_| !number.is_written_as_float());
            match whole.map(|whole| (i64::try_from(whole), u64::try_from(whole))) {
                Some((Ok(value), _)) => Parameter::Int(value),
                Some((_, Ok(value))) => Parameter::Uint(value),
                _ => Parameter::Float(number.to_f64()),
            }
        }
    }))
}

/// Appends parameters as a JSON object. Floats that JSON cannot say become `null`.
pub(super) fn write(out: &mut Vec<u8>, parameters: &Parameters) {
    out.push(b'{');
    for (index, (name, value)) in parameters.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_string(out, name);
        out.push(b':');
        match value {
            Parameter::Bool(flag) => out.extend_from_slice(if *flag { b"true" } else { b"false" }),
            Parameter::Int(value) => out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes()),
            Parameter::Uint(value) => out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes()),
            Parameter::Float(value) if value.is_finite() => {
                out.extend_from_slice(zmij::Buffer::new().format_finite(*value).as_bytes());
            }
            Parameter::Float(_) => out.extend_from_slice(b"null"),
            Parameter::Text(text) => write_string(out, text),
        }
    }
    out.push(b'}');
}
