//! An inference as it came in, whichever protocol it came by.

use std::{collections::HashSet, sync::Arc, time::Duration};

use berth_spec::{InferError, InferRequest, InferResponse, Signature, inference::RequestedOutput};
use bytes::Bytes;

use super::{classification::classify, raw, shared::Range};

/// A request and how it wants to be treated.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// The request for the model, without what is for the server.
    pub request: InferRequest,
    /// The form in which the caller wants each output.
    pub form: AnswerForm,
    /// The options for the server rather than for the model.
    pub options: Options,
    /// Inputs without data yet, by their index: it is in shared memory.
    pub shared: Vec<(usize, Range)>,
}

/// Request parameters that the protocol reserves; they are not in `request.parameters`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// `timeout` (microseconds on the wire; 0 means none).
    pub timeout: Option<Duration>,
    /// `triton_enable_empty_final_response`: answers on a stream carry `triton_final_response`.
    pub final_response: bool,
}

/// The form of the answer that the caller wants: kept while the model runs, given to `encode`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerForm {
    /// Outputs that do not say otherwise are binary (REST) or raw (gRPC).
    pub binary: bool,
    /// Outputs that say something of their own; empty costs nothing.
    outputs: Vec<OutputForm>,
    /// The model's signature, which has the labels, where classes are wanted.
    signature: Option<Arc<Signature>>,
}

/// The form that a requested output asks for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OutputForm {
    pub(super) name: String,
    /// The parameter `binary_data`; `None`: [`AnswerForm::binary`] decides.
    pub(super) binary: Option<bool>,
    pub(super) classification: Option<u32>,
    /// `shared_memory_region` and what goes with it: where the data is to be written.
    pub(super) shared: Option<Range>,
}

impl AnswerForm {
    /// True if this output is wanted as bytes.
    pub(super) fn is_binary(&self, output: &str) -> bool {
        self.output(output).and_then(|form| form.binary).unwrap_or(self.binary)
    }

    /// The number of classes that are wanted instead of this output's tensor.
    pub(super) fn classification(&self, output: &str) -> Option<u32> {
        self.output(output).and_then(|form| form.classification)
    }

    /// The place of an output whose data was written to shared memory.
    pub(super) fn shared(&self, output: &str) -> Option<&Range> {
        self.output(output)?.shared.as_ref()
    }

    /// True if an output is to be written to shared memory.
    #[must_use]
    pub fn places(&self) -> bool {
        self.outputs.iter().any(|form| form.shared.is_some())
    }

    /// Has `write` put the outputs into shared memory that belong there; it gives the number of bytes that it wrote. Their data
    /// is not in the answer then.
    ///
    /// # Errors
    /// Those of `write`, and of classes that cannot be had.
    pub fn place(
        &mut self,
        response: &mut InferResponse,
        mut write: impl FnMut(&Bytes, &Range) -> Result<u64, InferError>,
    ) -> Result<(), InferError> {
        let labels = self.signature.clone();
        let labels = labels.as_ref().map_or(&[][..], |signature| &signature.labels);
        for tensor in &mut response.outputs {
            let Some(form) = self.outputs.iter_mut().find(|form| form.name == tensor.name) else { continue };
            let Some(range) = &mut form.shared else { continue };
            if let Some(classes) = form.classification.take() {
                *tensor = classify(tensor, classes, labels)?;
            }
            range.size = write(&tensor.data, range)?;
            tensor.data = Bytes::new();
        }
        Ok(())
    }

    /// True if classes are wanted of an output.
    #[must_use]
    pub fn classifies(&self) -> bool {
        self.outputs.iter().any(|form| form.classification.is_some())
    }

    /// Gives it the model's signature, whose labels name the classes that are wanted.
    pub fn label(&mut self, signature: Arc<Signature>) {
        self.signature = Some(signature);
    }

    pub(super) fn labels(&self) -> &[String] {
        self.signature.as_ref().map_or(&[], |signature| &signature.labels)
    }

    fn output(&self, name: &str) -> Option<&OutputForm> {
        self.outputs.iter().find(|form| form.name == name)
    }
}

impl Decoded {
    /// Adds a requested output, and its form if it asks for one.
    pub(super) fn want(&mut self, output: OutputForm) {
        self.request.outputs.push(RequestedOutput { name: output.name.clone(), classification: output.classification });
        if output.binary.is_some() || output.classification.is_some() || output.shared.is_some() {
            self.form.outputs.push(output);
        }
    }

    /// Refuses inputs in shared memory: nobody is there to read it.
    ///
    /// # Errors
    /// There is one.
    pub fn with_data(self) -> Result<Self, InferError> {
        if self.shared.is_empty() {
            return Ok(self);
        }
        Err(InferError::Invalid("an input is in shared memory: give its data instead".to_owned()))
    }

    /// Gives an input that is in shared memory its data.
    ///
    /// # Errors
    /// The data is not what datatype and shape say.
    pub fn fill(&mut self, index: usize, data: Bytes) -> Result<(), InferError> {
        let input = self.request.inputs.get_mut(index);
        let input = input.ok_or_else(|| InferError::Internal("an input in shared memory is gone".to_owned()))?;
        let (name, shape) = (std::mem::take(&mut input.name), std::mem::take(&mut input.shape));
        *input = raw::tensor(name, input.datatype, shape, data)?;
        Ok(())
    }

    /// Refuses a request in which two inputs or two outputs have one name.
    pub(super) fn check_names(self) -> Result<Self, InferError> {
        let inputs = self.request.inputs.iter().map(|input| input.name.as_str());
        let outputs = self.request.outputs.iter().map(|output| output.name.as_str());
        for (kind, twice) in [("input", twice(inputs)), ("output", twice(outputs))] {
            if let Some(name) = twice {
                return Err(InferError::Invalid(format!("{kind} {name:?} is given twice")));
            }
        }
        Ok(self)
    }
}

/// The first name that comes again.
fn twice<'a>(mut names: impl ExactSizeIterator<Item = &'a str>) -> Option<&'a str> {
    if names.len() < 2 {
        return None;
    }
    let mut seen = HashSet::with_capacity(names.len());
    names.find(|name| !seen.insert(*name))
}
