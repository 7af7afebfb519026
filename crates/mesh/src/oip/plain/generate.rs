//! Triton's generate extension: one request in flat JSON, and answers in flat JSON, one or a stream of events.
//!
//! ```text
//! {"text_input": "…", "parameters": {"max_tokens": 20}, "id": "…"}
//!   ─▶ each member, and each of "parameters", that is an input of the model is its data; any other value is a parameter
//! {"model_name": "…", "model_version": "…", "text_output": "…"}     an output of one element is that element, others are lists
//! ```
//! Source: Triton's `protocol/extension_generate.md`.

use berth_spec::{InferError, InferRequest, Signature, Tensor, inference::Parameters};

use super::value::{Elements, PaddingSide, input, read};
use crate::oip::{
    answer::error_body,
    json::{Scanner, write_string},
    parameter,
};

/// Reads a request of the generate extension: each field of the JSON object is an input or a parameter.
pub fn decode(body: &[u8], signature: &Signature) -> Result<InferRequest, InferError> {
    let mut request = InferRequest::default();
    let mut scanner = Scanner::new(body);
    scanner.object::<InferError>(|scanner, key| match key {
        "parameters" if input(signature, key).is_none() && scanner.peek() == Some(b'{') => {
            scanner.object::<InferError>(|scanner, key| member(scanner, key, signature, &mut request))
        }
        "id" if input(signature, key).is_none() => {
            request.id = match scanner.peek() {
                Some(b'"') => Some(scanner.string()?.into_owned()),
                _ => {
                    scanner.skip()?;
                    None
                }
            };
            Ok(())
        }
        _ => member(scanner, key, signature, &mut request),
    })?;
    scanner.end()?;
    Ok(request)
}

/// Reads one member: the data of an input, or a parameter.
fn member(
    scanner: &mut Scanner<'_>,
    key: &str,
    signature: &Signature,
    request: &mut InferRequest,
) -> Result<(), InferError> {
    let twice = || InferError::Invalid(format!("{key:?} is given twice"));
    if let Some(spec) = input(signature, key) {
        if request.inputs.iter().any(|input| input.name == key) {
            return Err(twice());
        }
        request.inputs.push(read(scanner, spec, PaddingSide::First)?);
        return Ok(());
    }
    match scanner.peek() {
        Some(b'[' | b'{') => {
            let names: Vec<&str> = signature.inputs.iter().map(|spec| spec.name.as_str()).collect();
            Err(InferError::Invalid(format!(
                "{key:?} is neither an input of the model ({names:?}) nor a string, a number, true or false"
            )))
        }
        _ => {
            let before =
                parameter::read_value(scanner)?.and_then(|value| request.parameters.insert(key.to_owned(), value));
            if before.is_some() { Err(twice()) } else { Ok(()) }
        }
    }
}

/// The parts of an answer of the generate extension.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// Name under which the caller asked.
    pub model_name: &'a str,
    /// Name of the version that answered.
    pub model_version: &'a str,
    /// The caller's id of the request, told back if there is one.
    pub id: Option<&'a str>,
    /// Parameters that the model gave its answer.
    pub parameters: &'a Parameters,
    /// Outputs of the model, each a field of the JSON object.
    pub outputs: &'a [Tensor],
}

/// Writes an answer as one JSON object.
pub fn encode(answer: Answer<'_>) -> Result<Vec<u8>, InferError> {
    let mut out = b"{\"model_name\":".to_vec();
    write_string(&mut out, answer.model_name);
    out.extend_from_slice(b",\"model_version\":");
    write_string(&mut out, answer.model_version);
    if let Some(id) = answer.id {
        out.extend_from_slice(b",\"id\":");
        write_string(&mut out, id);
    }
    if !answer.parameters.is_empty() {
        out.extend_from_slice(b",\"parameters\":");
        parameter::write(&mut out, answer.parameters);
    }
    for output in answer.outputs {
        out.push(b',');
        write_string(&mut out, &output.name);
        out.push(b':');
        let elements = Elements::of(output);
        match i64::try_from(output.elements()).unwrap_or(i64::MAX) {
            1 => elements.write(&mut out, 0)?,
            count => drop(elements.write_nested(&mut out, &[count], 0)?),
        }
    }
    out.push(b'}');
    Ok(out)
}

/// A document as an event of a stream. JSON that is written here has no line ends.
#[must_use]
pub fn event(document: &[u8]) -> Vec<u8> {
    [b"data: ", document, b"\n\n"].concat()
}

/// The event that says why a stream ends before its time.
#[must_use]
pub fn failure(message: &str, reason: &str) -> Vec<u8> {
    event(&error_body(message, reason, &[]))
}

#[cfg(test)]
mod tests {
    use berth_spec::{Datatype, TensorSpec, inference::Parameter};

    use super::*;

    fn signature() -> Signature {
        let spec =
            |name: &str, datatype, shape: &[i64]| TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() };
        let inputs = vec![spec("text_input", Datatype::Bytes, &[-1, 1]), spec("stop", Datatype::Int32, &[-1, -1])];
        Signature { inputs, optional: vec![spec("seed", Datatype::Uint64, &[1])], ..Signature::default() }
    }

    #[test]
    fn members_are_inputs_or_parameters() {
        let body = br#"{"id": "7", "text_input": "hi", "parameters": {"stop": [1, 2], "temperature": 0.5}, "stream": true, "seed": 3}"#;
        let request = decode(body, &signature()).expect("a request");
        let shapes: Vec<_> = request.inputs.iter().map(|input| (input.name.as_str(), &input.shape[..])).collect();
        assert_eq!(shapes, [("text_input", &[1, 1][..]), ("stop", &[1, 2]), ("seed", &[1])]);
        assert_eq!(request.id.as_deref(), Some("7"));
        assert_eq!(request.parameters["temperature"], Parameter::Float(0.5));
        assert_eq!(request.parameters["stream"], Parameter::Bool(true));
    }

    #[test]
    fn what_is_no_request_says_why() {
        for (body, says) in [
            (&br#"[]"#[..], "expected an object"),
            (br#"{"text_input": "a", "text_input": "b"}"#, "given twice"),
            (br#"{"text_input": 3}"#, "must be a string"),
            (br#"{"other": [1]}"#, "\"other\" is neither an input of the model"),
            (br#"{"text_input": "a"} x"#, "expected nothing after the request"),
        ] {
            let error = decode(body, &signature()).expect_err(says).to_string();
            assert!(error.contains(says), "{error} / {says}");
        }
    }

    #[test]
    fn one_element_is_a_value_and_several_are_a_list() {
        let text = |name: &str, texts: &[&str]| {
            let data: Vec<u8> =
                texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()).collect();
            Tensor::new(name.to_owned(), Datatype::Bytes, vec![texts.len() as i64], data.into()).expect("a tensor")
        };
        let outputs = [text("text_output", &["a\nb"]), text("others", &["c", "d"]), text("none", &[])];
        let (parameters, id) = (Parameters::default(), Some("7"));
        let answer = Answer { model_name: "m", model_version: "1", id, parameters: &parameters, outputs: &outputs };
        let expected =
            r#"{"model_name":"m","model_version":"1","id":"7","text_output":"a\nb","others":["c","d"],"none":[]}"#;
        assert_eq!(String::from_utf8(encode(answer).expect("JSON")).expect("UTF-8"), expected);
        assert_eq!(event(b"{}"), b"data: {}\n\n");
    }
}
