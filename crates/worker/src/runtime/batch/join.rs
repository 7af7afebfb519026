//! Putting the inputs of several requests together and taking the outputs apart again, by rows.

use std::cell::RefCell;

use berth_spec::{Datatype, InferError, Tensor, tensor::BytesElements};
use bytes::Bytes;

use super::{Engine, StopCondition, View, queue::Work};

/// The memory for joined inputs that a thread keeps between batches: most batches fit without allocating, and idle
/// threads hold little.
const MAX_SCRATCH_BYTES: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The durations of the parts of a run, in their order.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunTimings {
    /// Copying the inputs of several requests into one batch; zero for a run of one.
    pub input: std::time::Duration,
    /// Calls of the engine.
    pub infer: std::time::Duration,
    /// Cutting the outputs into those of each request; zero for a run of one.
    pub output: std::time::Duration,
}

/// Runs one request without copying its inputs, and adds the engine's time to `timings`.
pub fn run_alone(
    engine: &dyn Engine,
    work: &Work,
    stop: &StopCondition,
    timings: &mut RunTimings,
) -> Result<Vec<Tensor>, InferError> {
    let views: Vec<View<'_>> = work.inputs.iter().map(View::of).collect();
    let start = std::time::Instant::now();
    let outputs = engine.run(&views, &work.outputs, stop);
    timings.infer += start.elapsed();
    outputs
}

/// Runs compatible requests, each with at least one row, as one batch; the answers are in their order.
/// An error means that each should be run alone.
pub fn run_joined(
    engine: &dyn Engine,
    works: &[&Work],
    stop: &StopCondition,
    timings: &mut RunTimings,
) -> Result<Vec<Vec<Tensor>>, InferError> {
    let Some(first) = works.first() else { return Ok(Vec::new()) };
    let rows: Vec<usize> = works.iter().map(|work| work.counted_rows() as usize).collect();
    let total: usize = rows.iter().sum();

    let start = std::time::Instant::now();
    let mut buffers = SCRATCH.take();
    buffers.resize_with(first.inputs.len(), Vec::new);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        buffer.clear();
        for work in works {
            buffer.extend_from_slice(&work.inputs[index].data);
        }
    }
    let shapes: Vec<Vec<i64>> = first.inputs.iter().map(|input| with_rows(&input.shape, total)).collect();
    let views = first.inputs.iter().zip(&shapes).zip(&buffers);
    let views: Vec<View<'_>> =
        views.map(|((input, shape), data)| View { name: &input.name, datatype: input.datatype, shape, data }).collect();
    let joined = std::time::Instant::now();
    let outputs = engine.run(&views, &first.outputs, stop);
    let done = std::time::Instant::now();
    drop(views);
    for buffer in &mut buffers {
        buffer.shrink_to(MAX_SCRATCH_BYTES);
    }
    SCRATCH.set(buffers);

    let answers = outputs.and_then(|outputs| split(outputs, &rows, total));
    timings.input += joined - start;
    timings.infer += done - joined;
    timings.output += done.elapsed();
    answers
}

/// `shape` with another first dimension.
fn with_rows(shape: &[i64], rows: usize) -> Vec<i64> {
    let mut shape = shape.to_vec();
    if let Some(first) = shape.first_mut() {
        *first = rows as i64;
    }
    shape
}

/// Slices each output at the rows of each request. The parts share the memory of the whole.
fn split(outputs: Vec<Tensor>, rows: &[usize], total: usize) -> Result<Vec<Vec<Tensor>>, InferError> {
    let mut answers: Vec<Vec<Tensor>> = rows.iter().map(|_| Vec::with_capacity(outputs.len())).collect();
    for output in outputs {
        if output.shape.first().copied() != Some(total as i64) {
            let (name, shape) = (&output.name, &output.shape);
            return Err(InferError::Model(format!("output {name:?} has shape {shape:?} for a batch of {total} rows")));
        }
        let ends = row_ends(&output, rows, total);
        let mut start = 0;
        for ((answer, &rows), end) in answers.iter_mut().zip(rows).zip(ends) {
            let data = output.data.slice(start..end);
            start = end;
            let shape = with_rows(&output.shape, rows);
            answer.push(Tensor { name: output.name.clone(), datatype: output.datatype, shape, data });
        }
    }
    Ok(answers)
}

/// The byte at which the part of each request ends.
fn row_ends(output: &Tensor, rows: &[usize], total: usize) -> Vec<usize> {
    let mut after = 0;
    let upto = rows.iter().map(|rows| {
        after += rows;
        after
    });
    if output.datatype != Datatype::Bytes {
        let row = output.data.len() / total;
        return upto.map(|rows| rows * row).collect();
    }
    let per_row = output.elements() / total;
    let mut element_ends = vec![0];
    for element in BytesElements::new(&output.data).flatten() {
        element_ends.push(element_ends[element_ends.len() - 1] + 4 + element.len());
    }
    upto.map(|rows| element_ends.get(rows * per_row).copied().unwrap_or(output.data.len())).collect()
}

/// The rows `from..from + count` of `tensor`, without copying; the tensor must have so many.
#[must_use]
pub fn rows_of(tensor: &Tensor, from: usize, count: usize) -> Tensor {
    let total = tensor.shape.first().map_or(0, |&rows| rows as usize);
    let data = if total == 0 {
        Bytes::new()
    } else {
        let ends = row_ends(tensor, &[from, count], total);
        tensor.data.slice(ends[0]..ends[1])
    };
    Tensor { name: tensor.name.clone(), datatype: tensor.datatype, shape: with_rows(&tensor.shape, count), data }
}
