//! An inference as it came in, whichever protocol it came by.

use std::{collections::HashSet, time::Duration};

use berth_spec::{InferError, InferRequest, inference::RequestedOutput};

/// A request and how it wants to be treated.
#[derive(Debug, Clone, Default)]
pub struct Decoded {
    /// The request for the model.
    pub request: InferRequest,
    /// The form of the answer.
    pub form: AnswerForm,
    /// The options for the server rather than for the model.
    pub options: Options,
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
}

/// The form that a requested output asks for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OutputForm {
    pub(super) name: String,
    /// `binary_data`.
    pub(super) binary: Option<bool>,
    /// `classification`.
    pub(super) classification: Option<u32>,
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

    fn output(&self, name: &str) -> Option<&OutputForm> {
        self.outputs.iter().find(|form| form.name == name)
    }
}

impl Decoded {
    /// Adds a requested output.
    pub(super) fn want(&mut self, output: OutputForm) {
        self.request.outputs.push(RequestedOutput { name: output.name.clone(), classification: output.classification });
        if output.binary.is_some() || output.classification.is_some() {
            self.form.outputs.push(output);
        }
    }

    /// Refuses tensors of one name.
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
