//! A REST inference body becomes a request.

use berth_spec::{InferError, Signature};
use bytes::Bytes;

use super::{
    Decoded, Layout,
    decoded::OutputForm,
    input::{self, Blobs},
    json::Scanner,
    parameter::{self, flag},
    raw,
    seen::{Field, SeenKeys},
    shared::RangeParameters,
};

/// Decodes a decompressed body. `signature` is the model's: raw bodies are understood by it, the others do not need it.
/// Blobs are slices of `body`, not copies.
pub fn decode(body: &Bytes, layout: Layout, signature: &Signature) -> Result<Decoded, InferError> {
    match layout {
        Layout::Json => decode_json(body, Blobs::default()),
        Layout::Binary { json } if json <= body.len() => {
            decode_json(&body[..json], Blobs { rest: body.slice(json..), expected: true })
        }
        Layout::Binary { json } => Err(InferError::Invalid(format!(
            "the body has {} bytes, which is less than the {json} of its JSON part",
            body.len()
        ))),
        Layout::Raw => raw::decode(body, signature),
    }
}

fn decode_json(text: &[u8], mut blobs: Blobs) -> Result<Decoded, InferError> {
    let mut decoded = Decoded::default();
    let mut seen = SeenKeys::default();
    let mut scanner = Scanner::new(text);
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "id" => {
                seen.once(Field::Id, key)?;
                decoded.request.id = optional_string(scanner)?;
            }
            "parameters" => {
                seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| parameter::take(&mut decoded, name, value))?;
            }
            "inputs" => {
                seen.once(Field::Inputs, key)?;
                scanner.array::<InferError>(|scanner| {
                    let index = decoded.request.inputs.len();
                    let (input, range) = input::read(scanner, index, &mut blobs)?;
                    decoded.request.inputs.push(input);
                    decoded.shared.extend(range.map(|range| (index, range)));
                    Ok(())
                })?;
            }
            "outputs" => {
                seen.once(Field::Outputs, key)?;
                if !scanner.take_word("null") {
                    scanner.array::<InferError>(|scanner| {
                        decoded.want(read_output(scanner)?);
                        Ok(())
                    })?;
                }
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    scanner.end()?;
    if !seen.has(Field::Inputs) {
        return Err(InferError::Invalid("the request has no \"inputs\"".to_owned()));
    }
    if !blobs.rest.is_empty() {
        return Err(InferError::Invalid(format!(
            "{} bytes of the body are left after the last input with binary_data_size",
            blobs.rest.len()
        )));
    }
    decoded.check_names()
}

fn read_output(scanner: &mut Scanner<'_>) -> Result<OutputForm, InferError> {
    let (mut output, mut shared) = (OutputForm::default(), RangeParameters::default());
    let mut seen = SeenKeys::default();
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "name" => {
                seen.once(Field::Name, key)?;
                output.name = scanner.string()?.into_owned();
            }
            "parameters" => {
                seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| {
                    match name {
                        "binary_data" => output.binary = Some(flag(name, &value)?),
                        "classification" => output.classification = Some(parameter::classes(&value)?),
                        _ => shared.take(name, &value)?,
                    }
                    Ok(())
                })?;
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    if !seen.has(Field::Name) {
        return Err(InferError::Invalid("a requested output has no \"name\"".to_owned()));
    }
    output.shared = shared.range()?;
    Ok(output)
}

fn optional_string(scanner: &mut Scanner<'_>) -> Result<Option<String>, InferError> {
    if scanner.take_word("null") { Ok(None) } else { Ok(Some(scanner.string()?.into_owned())) }
}
