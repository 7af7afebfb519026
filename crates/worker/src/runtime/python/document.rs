//! Requests and answers as documents, and what tensors are as such: one row is one request.

use std::sync::Arc;

use berth_spec::{
    Datatype, InferError, InferRequest, Signature, Tensor,
    card::signature::{Column, Form, REQUEST},
    tensor::BytesElements,
};
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Map, Number, Value};

use super::{numbers, schema::Schema};
use crate::runtime::process::document::{Array, Document};

/// A card's interface: its schemas, and their form in tensors.
pub(super) struct Interface {
    pub(super) input: Schema,
    pub(super) output: Schema,
    pub(super) signature: Arc<Signature>,
    takes: Form,
    gives: Form,
    /// One input may have any name and any type of number; the answer is a tensor of what it turns out to be.
    lenient: bool,
}

impl Interface {
    pub(super) fn new(input: Schema, output: Schema) -> Self {
        let (takes, gives) = (Form::of_input(input.json()), Form::of_output(output.json()));
        let signature =
            Arc::new(Signature { inputs: takes.tensors(), outputs: gives.tensors(), ..Signature::default() });
        Self { input, output, signature, takes, gives, lenient: false }
    }

    /// Takes one input of any name and type of number, and answers as a tensor of any name, as the servers of such models elsewhere
    /// do. The type of the answer is only known from answers, so the signature has no outputs.
    pub(super) fn lenient(self) -> Self {
        let signature = Arc::new(Signature { inputs: self.signature.inputs.clone(), ..Signature::default() });
        Self { lenient: true, signature, ..self }
    }

    /// The properties of a request that are arrays of numbers.
    pub(super) fn arrays(&self) -> Vec<&str> {
        let Form::Columns(columns) = &self.takes else { return Vec::new() };
        let arrays = columns.iter().filter(|column| !column.shape.is_empty() && column.datatype != Datatype::Bytes);
        arrays.map(|column| column.name.as_str()).collect()
    }

    /// One JSON document, checked.
    pub(super) fn document(&self, json: Bytes) -> Result<Document, InferError> {
        let value: Value = serde_json::from_slice(&json)
            .map_err(|error| InferError::Invalid(format!("the request is no JSON: {error}")))?;
        self.input.check_request(&value, None)?;
        Ok(Document { json, beside: Vec::new() })
    }

    /// The rows of a request in tensors, each checked.
    pub(super) fn rows(&self, request: &InferRequest) -> Result<Vec<Document>, InferError> {
        match &self.takes {
            Form::Documents(name) => self.documents(name, &request.inputs),
            Form::Columns(columns) => match (&columns[..], &request.inputs[..]) {
                ([column], [input]) if self.lenient => {
                    Rows::of(columns, &[numbers::named(column, input)])?.documents(&self.input)
                }
                _ => Rows::of(columns, &request.inputs)?.documents(&self.input),
            },
        }
    }

    fn documents(&self, name: &str, inputs: &[Tensor]) -> Result<Vec<Document>, InferError> {
        let [input] = inputs else {
            let given = inputs.len();
            return Err(InferError::Invalid(format!("the model takes one input, {name:?}; the request has {given}")));
        };
        let fits = input.name == name && input.datatype == Datatype::Bytes && input.shape.len() == 1;
        if !fits {
            let Tensor { name: given, datatype, shape, .. } = input;
            return Err(InferError::Invalid(format!(
                "the model takes {name:?}, BYTES [-1] of JSON documents; the request has {given:?}, {datatype} {shape:?}"
            )));
        }
        some_rows(input.elements())?;
        let one = |(row, element): (usize, &[u8])| {
            let value: Value = serde_json::from_slice(element)
                .map_err(|error| InferError::Invalid(format!("element {row} of {name:?} is no JSON: {error}")))?;
            self.input.check_request(&value, Some(row))?;
            Ok(Document { json: input.data.slice_ref(element), beside: Vec::new() })
        };
        BytesElements::new(&input.data).flatten().enumerate().map(one).collect()
    }

    /// Answers as the tensors that were asked for; all of them where none was.
    pub(super) fn tensors(&self, answers: &[Bytes], wanted: &InferRequest) -> Result<Vec<Tensor>, InferError> {
        if self.lenient && wanted.outputs.len() <= 1 {
            return predictions(answers, wanted).map(|tensor| vec![tensor]);
        }
        let specs = &self.signature.outputs;
        let mut indices = Vec::new();
        for output in &wanted.outputs {
            let index = specs.iter().position(|spec| spec.name == output.name).ok_or_else(|| {
                let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
                InferError::Invalid(format!("output {:?} is not one of the model's: {names:?}", output.name))
            })?;
            indices.push(index);
        }
        if indices.is_empty() {
            indices = (0..specs.len()).collect();
        }
        let Form::Columns(columns) = &self.gives else {
            let name = specs.first().map_or(REQUEST, |spec| &spec.name);
            return Ok(vec![texts(name, vec![answers.len() as i64], answers.iter().map(|answer| &answer[..]))]);
        };
        let parsed = answers.iter().map(|answer| serde_json::from_slice(answer)).collect::<Result<Vec<Value>, _>>();
        let parsed = parsed.map_err(|error| InferError::Model(format!("the answer is no JSON: {error}")))?;
        indices.into_iter().map(|index| column(&columns[index], &parsed)).collect()
    }

    /// Refuses outputs that are not there, before anything is run.
    pub(super) fn check_outputs(&self, wanted: &InferRequest) -> Result<(), InferError> {
        if self.lenient && wanted.outputs.len() <= 1 {
            return Ok(());
        }
        let known = |name: &str| self.signature.outputs.iter().any(|spec| spec.name == name);
        match wanted.outputs.iter().find(|output| !known(&output.name)) {
            Some(_) => self.tensors(&[], wanted).map(drop),
            None => Ok(()),
        }
    }
}

/// The most rows of a request. Each is a request of its own, with some hundred bytes beside its data: a few megabytes
/// of booleans must not take gigabytes here, and clients can still score a table at once.
const MAX_ROWS: usize = 1 << 16;

fn some_rows(rows: usize) -> Result<(), InferError> {
    match rows {
        0 => Err(InferError::Invalid("the request has no rows: send at least one".to_owned())),
        1..=MAX_ROWS => Ok(()),
        _ => Err(InferError::Invalid(format!("the request has {rows} rows: send at most {MAX_ROWS} at once"))),
    }
}

/// The tensors of a request, in the order of the columns.
struct Rows<'a> {
    count: usize,
    columns: Vec<(&'a Column, &'a Tensor)>,
}

impl<'a> Rows<'a> {
    fn of(columns: &'a [Column], inputs: &'a [Tensor]) -> Result<Self, InferError> {
        let names = || columns.iter().map(|column| format!("{:?}", column.name)).collect::<Vec<_>>().join(", ");
        let mut found = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let column = columns.iter().find(|column| column.name == input.name);
            let again = inputs[..index].iter().any(|earlier| earlier.name == input.name);
            let Some(column) = column.filter(|_| !again) else {
                let name = &input.name;
                let message = format!("input {name:?} is given twice or is not one of the model's: {}", names());
                return Err(InferError::Invalid(message));
            };
            fits(column, input)?;
            found.push((column, input));
        }
        if let Some(missing) = columns.iter().find(|column| column.required && !found.iter().any(|(c, _)| c == column))
        {
            let message = format!("input {:?} is missing: the model takes {}", missing.name, names());
            return Err(InferError::Invalid(message));
        }
        let mut counts = found.iter().filter_map(|(_, input)| input.shape.first().copied());
        let count = counts.next().unwrap_or(0);
        if counts.any(|other| other != count) {
            let message = "the inputs have different numbers of rows: the first dimension is the request";
            return Err(InferError::Invalid(message.to_owned()));
        }
        let count = usize::try_from(count).unwrap_or(0);
        some_rows(count)?;
        Ok(Self { count, columns: found })
    }

    fn documents(&self, schema: &Schema) -> Result<Vec<Document>, InferError> {
        let whole = self.columns.iter().any(|(column, _)| !column.plain);
        let texts: Vec<Option<Vec<&[u8]>>> = self.columns.iter().map(|(_, input)| elements(input)).collect();
        let parts: Vec<_> =
            self.columns.iter().map(|(column, input)| ColumnShape::of(column, input, self.count)).collect();
        let one = |row: usize| {
            let (mut object, mut beside, mut seen) = (Map::new(), Vec::new(), Map::new());
            for (((column, input), part), texts) in self.columns.iter().zip(&parts).zip(&texts) {
                let in_json = column.shape.is_empty() || column.datatype == Datatype::Bytes;
                if in_json || whole {
                    let value = part.value(column, input, texts.as_deref(), row)?;
                    seen.insert(column.name.clone(), value.clone());
                    if in_json {
                        object.insert(column.name.clone(), value);
                    }
                }
                if !in_json {
                    beside.push(part.array(input, row));
                }
            }
            if whole {
                schema.check_request(&Value::Object(seen), Some(row))?;
            }
            let json = serde_json::to_vec(&object).map_err(|error| InferError::Internal(error.to_string()))?;
            Ok(Document { json: json.into(), beside })
        };
        (0..self.count).map(one).collect()
    }
}

/// The part that all rows of one column share.
struct ColumnShape {
    name: Arc<str>,
    shape: Arc<[i64]>,
    /// Elements of one row.
    each: usize,
}

impl ColumnShape {
    fn of(column: &Column, input: &Tensor, rows: usize) -> Self {
        let shape = input.shape.get(1..).unwrap_or_default().into();
        Self { name: column.name.as_str().into(), shape, each: input.elements() / rows.max(1) }
    }

    fn array(&self, input: &Tensor, row: usize) -> Array {
        let bytes = self.each * input.datatype.size().unwrap_or(0);
        let data = input.data.slice(row * bytes..(row + 1) * bytes);
        Array { name: Arc::clone(&self.name), datatype: input.datatype, shape: Arc::clone(&self.shape), data }
    }

    fn value(&self, column: &Column, input: &Tensor, texts: Option<&[&[u8]]>, row: usize) -> Result<Value, InferError> {
        let refused = |why: &str| InferError::Invalid(format!("input {:?}, row {row}: {why}", column.name));
        let mut index = row * self.each;
        let mut next = || {
            let at = index;
            index += 1;
            match texts {
                Some(texts) => {
                    let text = std::str::from_utf8(texts[at]).map_err(|_| refused("a text that is not UTF-8"))?;
                    Ok(Value::String(text.to_owned()))
                }
                None => scalar(input, at).ok_or_else(|| refused("a number that JSON does not have (NaN or infinite)")),
            }
        };
        nested(&self.shape, &mut next)
    }
}

fn nested(shape: &[i64], next: &mut impl FnMut() -> Result<Value, InferError>) -> Result<Value, InferError> {
    match shape {
        [] => next(),
        [length, rest @ ..] => (0..*length).map(|_| nested(rest, next)).collect::<Result<_, _>>().map(Value::Array),
    }
}

fn elements(input: &Tensor) -> Option<Vec<&[u8]>> {
    (input.datatype == Datatype::Bytes).then(|| BytesElements::new(&input.data).flatten().collect())
}

/// Of the four datatypes that columns have.
fn scalar(input: &Tensor, at: usize) -> Option<Value> {
    let eight = || input.data.as_chunks::<8>().0.get(at).copied();
    match input.datatype {
        Datatype::Bool => input.data.get(at).map(|byte| Value::Bool(*byte != 0)),
        Datatype::Int64 => eight().map(|bytes| Value::from(i64::from_le_bytes(bytes))),
        _ => eight().and_then(|bytes| Number::from_f64(f64::from_le_bytes(bytes))).map(Value::Number),
    }
}

fn fits(column: &Column, input: &Tensor) -> Result<(), InferError> {
    let spec = column.spec();
    let same = |(&got, &want): (&i64, &i64)| got >= 0 && (want < 0 || got == want);
    let shape = input.shape.len() == spec.shape.len() && input.shape.iter().zip(&spec.shape).all(same);
    if input.datatype == spec.datatype && shape {
        return Ok(());
    }
    Err(InferError::Invalid(format!(
        "input {:?} is {} {:?}, the model takes {} {:?} (-1: any size)",
        spec.name, input.datatype, input.shape, spec.datatype, spec.shape
    )))
}

fn texts<'a>(name: &str, shape: Vec<i64>, texts: impl Iterator<Item = &'a [u8]>) -> Tensor {
    let mut data = BytesMut::new();
    for text in texts {
        data.put_u32_le(u32::try_from(text.len()).unwrap_or(u32::MAX));
        data.put_slice(text);
    }
    Tensor { name: name.to_owned(), datatype: Datatype::Bytes, shape, data: data.freeze() }
}

/// Name of an estimator's output where the request has none, and of the property in its answers.
const PREDICTION: &str = "prediction";

/// The predictions of an estimator, under the name that was asked for; documents where they are of several types.
fn predictions(answers: &[Bytes], wanted: &InferRequest) -> Result<Tensor, InferError> {
    let name = wanted.outputs.first().map_or(PREDICTION, |output| &output.name);
    let parsed = answers.iter().map(|answer| serde_json::from_slice(answer)).collect::<Result<Vec<Value>, _>>();
    let parsed = parsed.map_err(|error| InferError::Model(format!("the answer is no JSON: {error}")))?;
    let found = parsed.iter().map(|answer| numbers::kind(&answer[PREDICTION])).reduce(|a, b| a?.joined(b?)).flatten();
    let Some(found) = found else {
        return Ok(texts(name, vec![answers.len() as i64], answers.iter().map(|answer| &answer[..])));
    };
    let (datatype, shape) = (found.datatype, vec![-1; found.depth]);
    let of = Column { name: PREDICTION.to_owned(), datatype, shape, required: true, plain: true };
    column(&of, &parsed).map(|tensor| Tensor { name: name.to_owned(), ..tensor })
}

/// A property of all answers as one tensor.
fn column(column: &Column, answers: &[Value]) -> Result<Tensor, InferError> {
    let odd = |what: &str| InferError::Model(format!("output {:?} cannot be a tensor: {what}", column.name));
    let (mut data, mut inner) = (BytesMut::new(), None);
    for answer in answers {
        let value = answer.get(&column.name).ok_or_else(|| odd("an answer lacks it"))?;
        let mut shape = Vec::new();
        flat(value, column, 0, &mut shape, &mut data).map_err(odd)?;
        if inner.get_or_insert_with(|| shape.clone()) != &shape {
            return Err(odd("answers have arrays of different lengths: ask for them one by one, or as JSON"));
        }
    }
    let inner = inner.unwrap_or_else(|| vec![0; column.shape.len()]);
    let shape = std::iter::once(answers.len() as i64).chain(inner).collect();
    Ok(Tensor { name: column.name.clone(), datatype: column.datatype, shape, data: data.freeze() })
}

fn flat(
    value: &Value,
    column: &Column,
    depth: usize,
    shape: &mut Vec<i64>,
    data: &mut BytesMut,
) -> Result<(), &'static str> {
    if depth == column.shape.len() {
        return put(value, column.datatype, data);
    }
    let list = value.as_array().ok_or("an answer has something else than an array")?;
    let length = list.len() as i64;
    match shape.get(depth) {
        None => shape.push(length),
        Some(known) if *known != length => return Err("it is a ragged array"),
        Some(_) => {}
    }
    list.iter().try_for_each(|inner| flat(inner, column, depth + 1, shape, data))?;
    if list.is_empty() {
        shape.resize(column.shape.len(), 0);
    }
    Ok(())
}

fn put(value: &Value, datatype: Datatype, data: &mut BytesMut) -> Result<(), &'static str> {
    match datatype {
        Datatype::Bytes => {
            let text = value.as_str().ok_or("an answer has something else than a text")?;
            data.put_u32_le(u32::try_from(text.len()).map_err(|_| "a text is too long")?);
            data.put_slice(text.as_bytes());
        }
        Datatype::Bool => data.put_u8(value.as_bool().ok_or("an answer has something else than true or false")?.into()),
        Datatype::Int64 => {
            // 3.0 is an integer to JSON schemas.
            let whole = || value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 2_f64.powi(63));
            let number = value.as_i64().or_else(|| whole().map(|number| number as i64));
            data.put_i64_le(number.ok_or("an answer has something else than a 64-bit integer")?);
        }
        _ => data.put_f64_le(value.as_f64().ok_or("an answer has something else than a number")?),
    }
    Ok(())
}
