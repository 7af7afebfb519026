//! KServe's first protocol, which TensorFlow Serving has too: rows in, rows out.
//!
//! ```text
//! {"instances": [row, …]}                  a model with one input
//! {"instances": [{"NAME": value, …}, …]}   each row by the names of the inputs
//! {"inputs": {"NAME": [row, …], …}}        the same by columns
//! ```
//! The answer is `{"predictions": [row, …]}`; rows are objects where the model has several outputs.
//!
//! Source: KServe, "V1 inference protocol"; TensorFlow Serving, "RESTful API", row and columnar format.

use berth_spec::{InferError, InferRequest, InferResponse, Signature, Tensor, TensorSpec};

use super::value::{Elements, PaddingSide, input, read};
use crate::oip::{
    json::{Scanner, write_string},
    parameter,
    seen::{Field, SeenKeys},
};

/// Reads a request of KServe's first protocol: `instances` by row, or `inputs` by column.
pub fn decode(body: &[u8], signature: &Signature) -> Result<InferRequest, InferError> {
    let mut request = InferRequest::default();
    let mut seen = SeenKeys::default();
    let mut scanner = Scanner::new(body);
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "instances" | "inputs" => {
                seen.once(Field::Inputs, key)?;
                request.inputs = match (key, scanner.peek()) {
                    ("inputs", Some(b'{')) => columns(scanner, signature)?,
                    _ => rows(scanner, signature)?,
                };
            }
            "parameters" => {
                seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| {
                    request.parameters.insert(name.to_owned(), value);
                    Ok(())
                })?;
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    scanner.end()?;
    if !seen.has(Field::Inputs) {
        return Err(InferError::Invalid("the request has no \"instances\"".to_owned()));
    }
    Ok(request)
}

fn columns(scanner: &mut Scanner<'_>, signature: &Signature) -> Result<Vec<Tensor>, InferError> {
    let mut inputs = Vec::new();
    scanner.object::<InferError>(|scanner, name| {
        if inputs.iter().any(|input: &Tensor| input.name == name) {
            return Err(InferError::Invalid(format!("input {name:?} is given twice")));
        }
        inputs.push(read(scanner, known(signature, name)?, PaddingSide::Last)?);
        Ok(())
    })?;
    Ok(inputs)
}

fn rows(scanner: &mut Scanner<'_>, signature: &Signature) -> Result<Vec<Tensor>, InferError> {
    let mut first = *scanner;
    first.open(b'[', "expected an array of instances")?;
    if first.peek() == Some(b'{') {
        return objects(scanner, signature);
    }
    match signature.inputs.as_slice() {
        [only] => Ok(vec![read(scanner, only, PaddingSide::Last)?]),
        several => {
            let names: Vec<&str> = several.iter().map(|spec| spec.name.as_str()).collect();
            let message =
                format!("the model has the inputs {names:?}: write each instance as an object with these names");
            Err(InferError::Invalid(message))
        }
    }
}

/// A column while its rows come in.
struct Column<'a> {
    spec: &'a TensorSpec,
    /// Of one row.
    shape: Vec<i64>,
    data: Vec<u8>,
    rows: i64,
}

fn objects(scanner: &mut Scanner<'_>, signature: &Signature) -> Result<Vec<Tensor>, InferError> {
    let mut columns: Vec<Column<'_>> = Vec::new();
    let mut count = 0;
    scanner.array::<InferError>(|scanner| {
        scanner.object::<InferError>(|scanner, name| {
            let spec = known(signature, name)?;
            let of_row = TensorSpec { shape: spec.shape.get(1..).unwrap_or_default().to_vec(), ..spec.clone() };
            let row = read(scanner, &of_row, PaddingSide::Last)?;
            let column = match columns.iter_mut().find(|column| column.spec.name == name) {
                Some(column) => column,
                None => {
                    columns.push(Column { spec, shape: row.shape.clone(), data: Vec::new(), rows: 0 });
                    let last = columns.len() - 1;
                    &mut columns[last]
                }
            };
            if column.shape != row.shape || column.rows != count {
                return Err(InferError::Invalid(format!(
                    "input {name:?}: every instance must have it once, in one shape; instance {count} differs"
                )));
            }
            column.data.extend_from_slice(&row.data);
            column.rows += 1;
            Ok(())
        })?;
        count += 1;
        Ok(())
    })?;
    if let Some(short) = columns.iter().find(|column| column.rows != count) {
        return Err(InferError::Invalid(format!("input {:?}: not every instance has it", short.spec.name)));
    }
    let tensor = |column: Column<'_>| {
        let shape = [vec![count], column.shape].concat();
        Tensor::new(column.spec.name.clone(), column.spec.datatype, shape, column.data.into())
            .map_err(|error| InferError::Invalid(error.to_string()))
    };
    columns.into_iter().map(tensor).collect()
}

fn known<'a>(signature: &'a Signature, name: &str) -> Result<&'a TensorSpec, InferError> {
    input(signature, name).ok_or_else(|| {
        let names: Vec<&str> = signature.inputs.iter().map(|spec| spec.name.as_str()).collect();
        InferError::Invalid(format!("input {name:?} is not one of the model's: {names:?}"))
    })
}

/// Writes an answer. Outputs without rows in common make no list of predictions: such a model has the second protocol only.
pub fn encode(response: &InferResponse) -> Result<Vec<u8>, InferError> {
    let mut out = b"{\"predictions\":[".to_vec();
    let rows = response.outputs.first().map_or(0, |output| output.shape.first().copied().unwrap_or(1));
    if response.outputs.iter().any(|output| output.shape.first().copied().unwrap_or(1) != rows) {
        return Err(InferError::Unsupported(
            "the model's outputs differ in their first dimension, so they are no list of predictions: use /v2/models/NAME/infer"
                .to_owned(),
        ));
    }
    let outputs: Vec<(&Tensor, Elements<'_>)> =
        response.outputs.iter().map(|output| (output, Elements::of(output))).collect();
    let mut next = vec![0; outputs.len()];
    for row in 0..rows {
        if row > 0 {
            out.push(b',');
        }
        if let [(output, elements)] = outputs.as_slice() {
            next[0] = elements.write_nested(&mut out, output.shape.get(1..).unwrap_or_default(), next[0])?;
            continue;
        }
        for (index, (output, elements)) in outputs.iter().enumerate() {
            out.push(if index == 0 { b'{' } else { b',' });
            write_string(&mut out, &output.name);
            out.push(b':');
            next[index] = elements.write_nested(&mut out, output.shape.get(1..).unwrap_or_default(), next[index])?;
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use berth_spec::{Datatype, tensor::BytesElements};

    use super::*;

    fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn texts(tensor: &Tensor) -> Vec<String> {
        BytesElements::new(&tensor.data).flatten().map(|text| String::from_utf8_lossy(text).into_owned()).collect()
    }

    fn iris() -> Signature {
        Signature { inputs: vec![spec("X", Datatype::Fp32, &[-1, 2])], ..Signature::default() }
    }

    fn two() -> Signature {
        let inputs = vec![spec("age", Datatype::Int64, &[-1, 1]), spec("name", Datatype::Bytes, &[-1])];
        Signature { inputs, ..Signature::default() }
    }

    #[test]
    fn rows_objects_and_columns_say_the_same() {
        let request = decode(br#"{"instances": [[1, 2], [3, 4.5]]}"#, &iris()).expect("rows");
        assert_eq!((&request.inputs[0].shape[..], request.inputs[0].data.len()), (&[2, 2][..], 16));
        let by_rows = decode(br#"{"instances": [{"age": 3, "name": "a"}, {"name": "b", "age": [4]}]}"#, &two());
        let by_columns = decode(br#"{"inputs": {"age": [3, 4], "name": ["a", "b"]}}"#, &two()).expect("columns");
        assert_eq!(by_rows.expect("objects").inputs, by_columns.inputs);
        assert_eq!(
            (&by_columns.inputs[0].shape[..], texts(&by_columns.inputs[1])),
            (&[2, 1][..], vec!["a".to_owned(), "b".to_owned()])
        );
    }

    #[test]
    fn what_is_no_request_says_why() {
        for (body, signature, says) in [
            (&br#"{}"#[..], iris(), "no \"instances\""),
            (br#"{"instances": 3}"#, iris(), "expected an array of instances"),
            (br#"{"instances": [[1, 2], [3]]}"#, iris(), "not rectangular"),
            (br#"{"instances": [[1, "x"]]}"#, iris(), "input \"X\": element 1 must be a number"),
            (br#"{"instances": [1, 2]}"#, two(), "write each instance as an object"),
            (br#"{"instances": [{"size": 1}]}"#, two(), "\"size\" is not one of the model's: [\"age\", \"name\"]"),
            (br#"{"instances": [{"age": 1}, {"name": "x"}]}"#, two(), "every instance must have it once"),
            (br#"{"instances": [{"age": 1, "name": "x"}, {"name": "x"}]}"#, two(), "not every instance has it"),
            (br#"{"instances": [{"age": 1, "age": 1}]}"#, two(), "once"),
            (br#"{"inputs": {"age": [1], "age": [1]}}"#, two(), "input \"age\" is given twice"),
        ] {
            let error = decode(body, &signature).expect_err(says).to_string();
            assert!(error.contains(says), "{error} / {says}");
        }
    }

    fn answer(outputs: Vec<Tensor>) -> InferResponse {
        let name: std::sync::Arc<str> = "m".into();
        InferResponse {
            model_name: name.clone(),
            model_version: name,
            id: None,
            parameters: Default::default(),
            outputs,
        }
    }

    fn fp32(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(name.to_owned(), Datatype::Fp32, shape.to_vec(), data.into()).expect("a tensor")
    }

    #[test]
    fn predictions_are_rows() {
        let one = answer(vec![fp32("p", &[2, 2], &[0.5, 1.0, -2.0, 0.1])]);
        assert_eq!(encode(&one).expect("rows"), br#"{"predictions":[[0.5,1.0],[-2.0,0.1]]}"#);
        let two = answer(vec![fp32("a", &[2], &[1.0, 2.0]), fp32("b", &[2, 1], &[3.0, 4.0])]);
        assert_eq!(encode(&two).expect("rows"), br#"{"predictions":[{"a":1.0,"b":[3.0]},{"a":2.0,"b":[4.0]}]}"#);
        let apart = answer(vec![fp32("a", &[2], &[1.0, 2.0]), fp32("b", &[3], &[3.0, 4.0, 5.0])]);
        assert!(encode(&apart).is_err());
        assert_eq!(encode(&answer(Vec::new())).expect("no rows"), br#"{"predictions":[]}"#);
    }
}
