//! Checks a request against a signature and brings it into the signature's order. What passes can be run; what does
//! not is the caller's fault and says what to change.

use std::sync::Arc;

use berth_spec::{Datatype, InferError, InferRequest, Signature, Tensor, TensorSpec};

use super::batch::queue::Work;

/// The rules that inputs are checked against, prepared once per model.
#[derive(Debug)]
pub(super) struct Checker {
    signature: Arc<Signature>,
    all_outputs: Arc<[usize]>,
}

impl Checker {
    /// Checks against `signature`.
    #[must_use]
    pub(super) fn new(signature: Arc<Signature>) -> Self {
        let all_outputs = (0..signature.outputs.len()).collect();
        Self { signature, all_outputs }
    }

    /// The signature that requests are checked against.
    #[must_use]
    pub(super) fn signature(&self) -> &Arc<Signature> {
        &self.signature
    }

    /// Checks a request, and puts its inputs in the order of the signature. Fails with the first mistake.
    pub(super) fn check(&self, request: InferRequest) -> Result<Work, InferError> {
        let inputs = self.inputs(request.inputs)?;
        let outputs = if request.outputs.is_empty() {
            Arc::clone(&self.all_outputs)
        } else {
            request.outputs.iter().map(|wanted| self.output(&wanted.name)).collect::<Result<_, _>>()?
        };
        // With an input that may be left out it runs alone: others of the batch would be run with it too.
        let plain = inputs.len() == self.signature.inputs.len();
        let rows = if plain { shared_rows(&inputs) } else { None };
        Ok(Work { inputs, outputs, rows })
    }

    fn inputs(&self, mut inputs: Vec<Tensor>) -> Result<Vec<Tensor>, InferError> {
        let specs = &self.signature.inputs;
        for (index, spec) in specs.iter().enumerate() {
            let found = inputs.get(index..).and_then(|rest| rest.iter().position(|input| input.name == spec.name));
            let Some(offset) = found else { return Err(self.missing(&spec.name, &inputs)) };
            inputs.swap(index, index + offset);
            check_input(spec, &inputs[index])?;
        }
        for (index, input) in inputs.iter().enumerate().skip(specs.len()) {
            match self.signature.optional.iter().find(|spec| spec.name == input.name) {
                Some(spec) if inputs[specs.len()..index].iter().all(|other| other.name != input.name) => {
                    check_input(spec, input)?;
                }
                _ => return Err(self.extra(input)),
            }
        }
        Ok(inputs)
    }

    fn extra(&self, extra: &Tensor) -> InferError {
        let all: Vec<TensorSpec> = self.signature.inputs.iter().chain(&self.signature.optional).cloned().collect();
        InferError::Invalid(format!(
            "input {:?} is given twice or is not one of the model's: {}",
            extra.name,
            names(&all)
        ))
    }

    fn missing(&self, name: &str, given: &[Tensor]) -> InferError {
        let given: Vec<&str> = given.iter().map(|input| input.name.as_str()).collect();
        let inputs = names(&self.signature.inputs);
        InferError::Invalid(format!("input {name:?} is missing: the model takes {inputs}, the request has {given:?}"))
    }

    fn output(&self, name: &str) -> Result<usize, InferError> {
        let outputs = &self.signature.outputs;
        outputs.iter().position(|spec| spec.name == name).ok_or_else(|| {
            InferError::Invalid(format!("output {name:?} is not one of the model's: {}", names(outputs)))
        })
    }
}

fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<String> = specs.iter().map(|spec| format!("{:?}", spec.name)).collect();
    names.join(", ")
}

fn check_input(spec: &TensorSpec, input: &Tensor) -> Result<(), InferError> {
    let name = &spec.name;
    if input.datatype != spec.datatype {
        let (got, want) = (input.datatype, spec.datatype);
        return Err(InferError::Invalid(format!("input {name:?} is {got}, the model takes {want}")));
    }
    let fits = |(&got, &want): (&i64, &i64)| got >= 0 && (want < 0 || got == want);
    if input.shape.len() != spec.shape.len() || !input.shape.iter().zip(&spec.shape).all(fits) {
        let (got, want) = (&input.shape, &spec.shape);
        let note = if want.contains(&-1) { " (-1: any size)" } else { "" };
        return Err(InferError::Invalid(format!("input {name:?} has shape {got:?}, the model takes {want:?}{note}")));
    }
    if input.datatype == Datatype::Bool && input.data.iter().any(|&byte| byte > 1) {
        return Err(InferError::Invalid(format!("input {name:?} is BOOL and has a byte that is neither 0 nor 1")));
    }
    if input.datatype == Datatype::Bytes && !texts(input).all(|text| std::str::from_utf8(text).is_ok()) {
        return Err(InferError::Invalid(format!(
            "input {name:?} has an element that is not UTF-8, as ONNX strings are"
        )));
    }
    Ok(())
}

fn texts(input: &Tensor) -> impl Iterator<Item = &[u8]> {
    berth_spec::tensor::BytesElements::new(&input.data).flatten()
}

/// The first dimension, if every input has the same one.
fn shared_rows(inputs: &[Tensor]) -> Option<u32> {
    let mut dimensions = inputs.iter().map(|input| input.shape.first().copied());
    let first = dimensions.next()??;
    if dimensions.all(|other| other == Some(first)) { u32::try_from(first).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use berth_spec::inference::RequestedOutput;

    fn spec(name: &str, datatype: Datatype, shape: &[i64]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype, shape: shape.to_vec() }
    }

    fn tensor(name: &str, datatype: Datatype, shape: &[i64], data: &'static [u8]) -> Tensor {
        Tensor { name: name.to_owned(), datatype, shape: shape.to_vec(), data: Bytes::from_static(data) }
    }

    fn checker() -> Checker {
        Checker::new(Arc::new(Signature {
            inputs: vec![spec("a", Datatype::Uint8, &[-1, 2]), spec("b", Datatype::Bool, &[-1])],
            outputs: vec![spec("x", Datatype::Fp32, &[-1]), spec("y", Datatype::Fp32, &[-1])],
            optional: vec![spec("scale", Datatype::Uint8, &[1])],
            ..Signature::default()
        }))
    }

    #[test]
    fn brings_inputs_into_order() {
        let a = tensor("a", Datatype::Uint8, &[1, 2], &[1, 2]);
        let b = tensor("b", Datatype::Bool, &[1], &[1]);
        let wanted = RequestedOutput { name: "y".to_owned(), classification: None };
        let request = InferRequest { inputs: vec![b, a], outputs: vec![wanted], ..InferRequest::default() };
        let work = checker().check(request).expect("it fits");
        assert_eq!(work.inputs[0].name, "a");
        assert_eq!((&work.outputs[..], work.rows), (&[1][..], Some(1)));
    }

    #[test]
    fn an_input_that_may_be_left_out_comes_last_and_alone() {
        let scale = || tensor("scale", Datatype::Uint8, &[1], &[2]);
        let given = |inputs: Vec<Tensor>| checker().check(InferRequest { inputs, ..InferRequest::default() });
        let both = || vec![tensor("b", Datatype::Bool, &[1], &[1]), tensor("a", Datatype::Uint8, &[1, 2], &[1, 2])];
        let work = given([vec![scale()], both()].concat()).expect("it fits");
        let names: Vec<&str> = work.inputs.iter().map(|input| input.name.as_str()).collect();
        assert_eq!((names, work.rows), (vec!["a", "b", "scale"], None));
        let twice = given([both(), vec![scale(), scale()]].concat()).expect_err("twice");
        assert!(twice.to_string().contains("is given twice"), "{twice}");
        let wrong =
            given([both(), vec![tensor("scale", Datatype::Uint8, &[2], &[2, 2])]].concat()).expect_err("a shape");
        assert!(wrong.to_string().contains("has shape [2], the model takes [1]"), "{wrong}");
    }

    #[test]
    fn says_what_is_wrong() {
        let a = || tensor("a", Datatype::Uint8, &[1, 2], &[1, 2]);
        let b = || tensor("b", Datatype::Bool, &[1], &[1]);
        let cases: Vec<(Vec<Tensor>, &str)> = vec![
            (vec![], "input \"a\" is missing: the model takes \"a\", \"b\", the request has []"),
            (vec![a()], "input \"b\" is missing"),
            (vec![a(), b(), a()], "input \"a\" is given twice"),
            (vec![a(), b(), tensor("c", Datatype::Bool, &[1], &[1])], "input \"c\" is given twice or is not one"),
            (vec![tensor("a", Datatype::Int8, &[1, 2], &[1, 2]), b()], "is INT8, the model takes UINT8"),
            (vec![tensor("a", Datatype::Uint8, &[2], &[1, 2]), b()], "has shape [2], the model takes [-1, 2]"),
            (vec![tensor("a", Datatype::Uint8, &[1, 3], &[1, 2, 3]), b()], "has shape [1, 3]"),
            (vec![tensor("a", Datatype::Uint8, &[-1, 2], &[]), b()], "has shape [-1, 2]"),
            (vec![a(), tensor("b", Datatype::Bool, &[1], &[2])], "neither 0 nor 1"),
        ];
        for (inputs, want) in cases {
            let error = checker().check(InferRequest { inputs, ..InferRequest::default() }).expect_err(want);
            assert!(matches!(&error, InferError::Invalid(message) if message.contains(want)), "{error} / {want}");
        }
    }
}
